package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"time"
)

// maxSocketPath is the kernel's bound (sun_path, the final NUL left out).
const maxSocketPath = 107

// socketMode lets the owner and the socket's group connect, nobody else.
const socketMode = 0o660

// SocketOptions say where the daemon listens and who may connect.
type SocketOptions struct {
	Path string
	// Group is a name or a number; empty is the daemon's own group.
	Group string
}

// lookupGroup finds a group by name or number; -1 for none.
func lookupGroup(group string) (int, error) {
	if group == "" {
		return -1, nil
	}
	if gid, err := strconv.ParseUint(group, 10, 31); err == nil {
		return int(gid), nil
	}
	g, err := user.LookupGroup(group)
	if err != nil {
		return 0, fmt.Errorf("socket group %q: %w; make it with: groupadd --system %s", group, err, group)
	}
	gid, err := strconv.Atoi(g.Gid)
	if err != nil {
		return 0, fmt.Errorf("socket group %q: group id %q is no number", group, g.Gid)
	}
	return gid, nil
}

// ownedSocket is what a socket's file shall be.
type ownedSocket struct {
	path     string
	uid, gid int // -1 leaves the daemon's
	mode     os.FileMode
}

// listen makes a listening socket that has its owner and mode before anybody can see it.
// A socket that nobody listens on any more is replaced, a live one is an error.
func (o ownedSocket) listen(ctx context.Context) (*net.UnixListener, error) {
	if len(o.path) > maxSocketPath {
		return nil, fmt.Errorf("socket %s: the path has %d bytes, the kernel's bound is %d", o.path, len(o.path), maxSocketPath)
	}
	if err := o.checkFree(ctx); err != nil {
		return nil, err
	}
	// Bound in a directory that only this process may enter, then moved: between bind and
	// chmod a socket at its place could be connected to by anybody.
	tmp, err := os.MkdirTemp(filepath.Dir(o.path), ".p")
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w", o.path, err)
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	hidden := filepath.Join(tmp, "s")
	if len(hidden) > maxSocketPath {
		return nil, fmt.Errorf("socket %s: the path is too long by %d bytes", o.path, len(hidden)-maxSocketPath)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: hidden, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w", o.path, err)
	}
	l.SetUnlinkOnClose(false)
	if err := o.publish(hidden); err != nil {
		return nil, errors.Join(fmt.Errorf("socket %s: %w", o.path, err), l.Close())
	}
	return l, nil
}

func (o ownedSocket) publish(hidden string) error {
	if o.uid >= 0 || o.gid >= 0 {
		if err := os.Chown(hidden, o.uid, o.gid); err != nil {
			return err
		}
	}
	if err := os.Chmod(hidden, o.mode); err != nil {
		return err
	}
	return os.Rename(hidden, o.path)
}

func (o ownedSocket) checkFree(ctx context.Context) error {
	info, err := os.Lstat(o.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("socket %s: %w", o.path, err)
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("socket %s: there is something else than a socket at this path", o.path)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", o.path)
	if err != nil {
		return nil // left by a daemon that died
	}
	_ = conn.Close()
	return fmt.Errorf("socket %s: another daemon listens there; stop it or choose another --socket", o.path)
}
