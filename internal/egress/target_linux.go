package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/user"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// connect connects to a target with the rights of a user of the host.
func (h *Host) connect(ctx context.Context, t Target, uid uint32) (net.Conn, error) {
	if t.network != "unix" {
		return h.Dialer.DialContext(ctx, t.network, t.address)
	}
	c, err := connectAs(ctx, t.address, uid)
	if err != nil {
		return nil, err
	}
	if err := notOurs(c); err != nil && !h.foreign {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// connectAs connects to a unix socket as a user: the socket's mode counts, and its owner
// sees that user. The daemon is root, and whoever named the path need not be.
func connectAs(ctx context.Context, path string, uid uint32) (*net.UnixConn, error) {
	dial := func() (*net.UnixConn, error) {
		var d net.Dialer
		c, err := d.DialContext(ctx, "unix", path)
		if err != nil {
			return nil, err
		}
		return c.(*net.UnixConn), nil
	}
	if int64(uid) == int64(unix.Geteuid()) {
		return dial()
	}
	gid, groups := groupsOf(uid)
	type result struct {
		c   *net.UnixConn
		err error
	}
	done := make(chan result)
	go func() {
		// Never unlocked: the thread ends with the goroutine, so that no other work is done
		// as that user. Its real and saved ids stay root's, or that user might signal it.
		runtime.LockOSThread()
		if err := become(uid, gid, groups); err != nil {
			done <- result{err: fmt.Errorf("act as user %d: %w", uid, err)}
			return
		}
		c, err := dial()
		done <- result{c, err}
	}()
	r := <-done
	return r.c, r.err
}

// become sets this thread's effective ids and groups, and no other thread's.
func become(uid, gid uint32, groups []int) error {
	if err := unix.Setgroups(groups); err != nil {
		return err
	}
	const keep = ^uintptr(0)
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESGID, keep, uintptr(gid), keep); e != 0 {
		return e
	}
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, keep, uintptr(uid), keep); e != 0 {
		return e
	}
	return nil
}

// groupsOf are those of a user of the host; one without an account is in none.
func groupsOf(uid uint32) (gid uint32, groups []int) {
	const nobody = 65534
	u, err := user.LookupId(strconv.FormatUint(uint64(uid), 10))
	if err != nil {
		return nobody, nil
	}
	g, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nobody, nil
	}
	ids, err := u.GroupIds()
	if err != nil {
		return uint32(g), nil
	}
	for _, id := range ids {
		if n, err := strconv.ParseUint(id, 10, 32); err == nil {
			groups = append(groups, int(n))
		}
	}
	return uint32(g), groups
}

// notOurs refuses a connection whose other end is this process.
func notOurs(c *net.UnixConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var peer *unix.Ucred
	var perr error
	if err := raw.Control(func(fd uintptr) { peer, perr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return err
	}
	if perr != nil {
		return perr
	}
	if int(peer.Pid) == os.Getpid() {
		return errOwnSocket
	}
	return nil
}
