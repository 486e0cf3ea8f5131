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
	return f.restore(ctx, c, pack, int(dir.Fd()), hostID, func(t *tree) sink { return t })
}

// restore is Restore into a sink on the tree, which is given directories that were not changed
// as well, each before what is in it.
func (f *Fork) restore(ctx context.Context, c Capture, pack string, root int, hostID uint32, on func(*tree) sink) error {
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
	t := newTree(root, Limits{Bytes: 1 << 62, Entries: 1 << 62})
	t.shift = hostID
	r := &restoring{tree: t, out: &parents{sink: on(t), below: below}, pack: packed}
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
	out  *parents
	pack *os.File
}

// parents gives a sink, of entries in canonical order, the directories that lead to them, as
// the lower layers have these, where the entries do not name them.
type parents struct {
	sink
	below lowerDir
	at    string // the directory that came last
}

func (s *parents) add(e *entry, body io.Reader) error {
	for i, c := range e.path {
		if c != '/' || s.at == e.path[:i] || strings.HasPrefix(s.at, e.path[:i+1]) {
			continue
		}
		dir, err := s.below.at(e.path[:i])
		if err != nil {
			return err
		}
		if dir == nil {
			dir = &entry{mode: rootMode, mtime: epoch}
		}
		dir.path, dir.kind, dir.opaque = e.path[:i], typeDir, false
		if err := s.sink.add(dir, nil); err != nil {
			return err
		}
		s.at = dir.path
	}
	if e.kind == typeDir {
		s.at = e.path
	}
	return s.sink.add(e, body)
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
		return r.out.add(&entry{path: p, kind: typeWhiteout, mtime: epoch}, nil)
	case c.LinkedTo != "":
		e.kind, e.target, e.size, e.xattrs = typeHardlink, strings.TrimPrefix(c.LinkedTo, "/"), 0, nil
		return r.out.add(e, nil)
	case c.Type == typeChar || c.Type == typeBlock:
		return nil // no sandbox can make one, nor open it
	case c.Type == typeFile:
		if c.Offset < 0 {
			return errors.New("its bytes were not kept")
		}
		return r.out.add(e, io.NewSectionReader(r.pack, c.Offset, c.Size))
	}
	return r.out.add(e, nil)
}
