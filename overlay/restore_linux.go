package overlay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Restore makes a capture again as a layer directory in dir, which is empty, with owners
// shifted by hostID. A capture that is not rescorable is refused. After an error dir
// holds a part and is the caller's to remove.
func (f *Fork) Restore(ctx context.Context, c Capture, pack string, dir *os.File, hostID uint32) error {
	if !c.Rescorable {
		return errors.New("restore: the capture does not hold everything that was changed")
	}
	below, err := openLowers(f.lowers)
	if err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	defer below.close()
	var packed *os.File // stays nil, and is never read, when there are no bytes
	if c.Stored > 0 {
		if packed, err = os.Open(pack); err != nil {
			return fmt.Errorf("restore: %w", err)
		}
		defer func() { _ = packed.Close() }()
	}
	t := newTree(int(dir.Fd()), Limits{Bytes: 1 << 62, Entries: 1 << 62})
	t.shift = hostID
	t.implied = below.at
	r := &restoring{tree: t, pack: packed}
	if err := unix.Fchown(t.root, int(hostID), int(hostID)); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	if err := unix.Fchmod(t.root, rootMode); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	for i := range c.Changes {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := r.change(&c.Changes[i]); err != nil {
			return fmt.Errorf("restore %q: %w", c.Changes[i].Path, err)
		}
	}
	if err := t.close(); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	return nil
}

type restoring struct {
	tree *tree
	pack *os.File
}

// change makes one path. An opaque directory is not made opaque again: the capture lists
// what it hid as deleted and leaves out what is again as in the world.
func (r *restoring) change(c *Change) error {
	p := strings.TrimPrefix(c.Path, "/")
	e := &entry{
		path: p, kind: c.Type, mode: c.Mode & modeBits, uid: c.UID, gid: c.GID, size: c.Size, mtime: c.ModTime,
		target: c.Target, xattrs: c.Xattrs,
	}
	if p == "" {
		return r.tree.attributes(r.tree.root, e)
	}
	if err := checkPath(p); err != nil {
		return err
	}
	switch {
	case c.Kind == Deleted:
		return r.tree.add(&entry{path: p, kind: typeWhiteout, mtime: epoch}, nil)
	case c.LinkedTo != "":
		return r.tree.add(&entry{path: p, kind: typeHardlink, target: strings.TrimPrefix(c.LinkedTo, "/")}, nil)
	case c.Type == typeChar || c.Type == typeBlock:
		return nil // no sandbox can make one, nor open it
	case c.Type == typeFile:
		if c.Offset < 0 {
			return errors.New("its bytes were not kept")
		}
		return r.tree.add(e, io.NewSectionReader(r.pack, c.Offset, c.Size))
	}
	return r.tree.add(e, nil)
}
