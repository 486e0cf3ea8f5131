package overlay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// errEnough ends a capture at its bound of entries.
var errEnough = errors.New("enough entries")

const (
	// captureText bounds the names, targets and attributes that a capture holds in memory;
	// what it does not hold makes it Truncated.
	captureText = 256 << 20
	// captureXattrs is the part of it that attributes may have; further ones are left out,
	// and the capture is not rescorable.
	captureXattrs = 16 << 20
)

// Capture reads what an episode changed from its upper directory and compares it with the
// world. A directory that overlayfs only copied up, and a file that is again as the world
// has it, are no change. What the guest left there is hostile: nothing but regular files
// and directories is ever opened, no path is resolved twice, no symlink is followed.
func (f *Fork) Capture(ctx context.Context, in CaptureInput) (Capture, error) {
	begin := time.Now()
	below, err := openLowers(f.lowers)
	if err != nil {
		return Capture{}, fmt.Errorf("capture: %w", err)
	}
	defer below.close()
	packed := newPack(in.Pack, in.MaxBytes)
	defer packed.discard()
	c := &capture{
		hostID: in.HostID, max: in.MaxEntries, pack: packed, links: map[inode]int{},
		state: newState(volatilePath), full: newState(func(string) bool { return false }),
	}
	if c.max == 0 {
		c.max = DefaultCaptureEntries
	}
	c.out.Changes = []Change{}
	c.whole = in.Pack != ""
	err = c.root(ctx, int(in.Upper.Fd()), below)
	if errors.Is(err, errEnough) {
		c.out.Truncated, c.whole, err = true, false, nil
	}
	if err == nil {
		err = packed.seal()
	}
	if err != nil {
		return Capture{}, fmt.Errorf("capture: %w", err)
	}
	c.out.Stored = packed.off
	c.out.Rescorable = c.whole
	c.out.State, c.out.StateFull = c.state.digest(), c.full.digest()
	c.out.Took = time.Since(begin)
	return c.out, nil
}

// capture is one reading of an upper directory.
type capture struct {
	hostID uint32
	max    int64
	pack   *pack
	links  map[inode]int // to the index of the first change
	state  *state
	full   *state
	whole  bool
	text   int64 // bytes of names, targets and attributes
	xattrs int64 // of attributes
	out    Capture
}

// met is one entry of the upper directory beside what the world has there.
type met struct {
	path  string
	depth int
	// hidden: some directory above hides what the world has.
	hidden bool
	fd     int
	st     unix.Stat_t
	entry  *entry
	old    *entry // nil: the world has nothing
	below  *lowerNode
}

// root compares the world's own root directory, which the launcher made, then its entries.
func (c *capture) root(ctx context.Context, upper int, below lowerDir) error {
	var st unix.Stat_t
	if err := unix.Fstat(upper, &st); err != nil {
		return err
	}
	e, err := c.describe(upper, &st)
	if err != nil {
		return err
	}
	uid, gid := c.owner(st.Uid), c.owner(st.Gid)
	if e.mode != rootMode || uid != 0 || gid != 0 || len(e.xattrs) > 0 {
		change := Change{Path: "/", Kind: Modified, Type: typeDir, Mode: e.mode, UID: uid, GID: gid, Xattrs: e.xattrs, ModTime: e.mtime, Offset: -1}
		if err := c.put(change, inode{}, true); err != nil {
			return err
		}
	}
	return c.dir(ctx, upper, met{hidden: e.opaque}, below)
}

// dir goes through a directory of the upper, and through the world's where it is hidden.
func (c *capture) dir(ctx context.Context, fd int, at met, below lowerDir) error {
	if at.depth >= maxDepth {
		// What is beside it is still read: one deep path must not hide the others.
		c.out.Truncated, c.whole = true, false
		return nil
	}
	list, err := names(fd)
	if err != nil {
		return fmt.Errorf("list %q: %w", at.path, err)
	}
	gone := map[string]bool{}
	if at.hidden && len(below) > 0 {
		old, err := below.list()
		if err != nil {
			return fmt.Errorf("list %q of the world: %w", at.path, err)
		}
		for _, name := range old {
			if _, there := slices.BinarySearch(list, name); !there {
				gone[name] = true
			}
		}
		list = slices.Sorted(func(yield func(string) bool) {
			for _, name := range list {
				if !yield(name) {
					return
				}
			}
			maps.Keys(gone)(yield)
		})
	}
	for _, name := range list {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		p := at.path + "/" + name
		if gone[name] {
			err = c.put(Change{Path: p, Kind: Deleted, Offset: -1}, inode{}, true)
		} else {
			err = c.entry(ctx, fd, name, met{path: p, depth: at.depth + 1, hidden: at.hidden}, below)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *capture) entry(ctx context.Context, dir int, name string, m met, below lowerDir) (err error) {
	m.fd, m.st, err = child(dir, name)
	if err != nil {
		return fmt.Errorf("open %q: %w", m.path, err)
	}
	defer closeFD(m.fd)
	if m.below, err = below.lookup(name); err != nil {
		return fmt.Errorf("%q: %w", m.path, err)
	}
	defer m.below.close()
	if kindOf(&m.st) == typeWhiteout {
		if m.below == nil {
			return nil // hides nothing
		}
		return c.put(Change{Path: m.path, Kind: Deleted, Offset: -1}, inode{}, true)
	}
	if m.entry, err = c.describe(m.fd, &m.st); err != nil {
		return fmt.Errorf("read %q: %w", m.path, err)
	}
	m.entry.uid, m.entry.gid = c.owner(m.entry.uid), c.owner(m.entry.gid)
	if m.below != nil {
		if m.old, err = describe(m.below.fd, &m.below.st); err != nil {
			return fmt.Errorf("read %q of the world: %w", m.path, err)
		}
	}
	if m.entry.kind == typeDir {
		return c.directory(ctx, m)
	}
	return c.leaf(ctx, m)
}

func (c *capture) directory(ctx context.Context, m met) error {
	var below lowerDir
	if m.old != nil && m.old.kind == typeDir {
		below = m.below.dirs
	}
	hides := m.entry.opaque && below != nil
	same := below != nil && sameAttributes(m.entry, m.old)
	if !same || hides {
		change := m.change()
		change.Opaque = hides
		// A directory made anew as it was is listed, since it hides what was in it; the
		// state has the deletions themselves.
		if err := c.put(change, inode{}, !same); err != nil {
			return err
		}
	}
	m.hidden = m.hidden || m.entry.opaque
	return c.dir(ctx, m.fd, m, below)
}

func (c *capture) leaf(ctx context.Context, m met) error {
	change := m.change()
	id := inode{}
	if m.st.Nlink > 1 {
		id = inode{m.st.Dev, m.st.Ino}
	}
	if first, ok := c.links[id]; ok && id != (inode{}) {
		of := &c.out.Changes[first]
		change.LinkedTo, change.SHA256, change.Offset = of.Path, of.SHA256, of.Offset
		return c.put(change, id, true)
	}
	if id == (inode{}) && m.entry.kind == typeFile && m.old != nil && m.old.kind == typeFile && m.old.size == m.entry.size &&
		sameAttributes(m.entry, m.old) {
		same, err := m.sameBytes(ctx)
		if err != nil || same {
			return err
		}
	}
	if id == (inode{}) && m.entry.kind == typeSymlink && m.old != nil && m.old.kind == typeSymlink && m.old.target == m.entry.target &&
		sameAttributes(m.entry, m.old) {
		return nil
	}
	if int64(len(c.out.Changes)) >= c.max {
		return errEnough
	}
	if m.entry.kind == typeFile {
		if err := c.bytes(ctx, m, &change); err != nil {
			return err
		}
	}
	if id != (inode{}) {
		c.links[id] = len(c.out.Changes)
	}
	return c.put(change, id, true)
}

func (c *capture) bytes(ctx context.Context, m met, change *Change) error {
	f, err := open(m.fd, m.path)
	if err != nil {
		return fmt.Errorf("open %q: %w", m.path, err)
	}
	defer func() { _ = f.Close() }()
	change.SHA256, change.Offset, err = c.pack.add(ctx, f, m.entry.size)
	if err != nil {
		return fmt.Errorf("read %q: %w", m.path, err)
	}
	if change.Offset < 0 {
		c.whole = false
	}
	if c.out.Bytes += m.entry.size; c.out.Bytes < 0 {
		c.out.Bytes = math.MaxInt64
	}
	return nil
}

// put lists a change, and counts it in the state digests unless it is only for show.
func (c *capture) put(change Change, id inode, counts bool) error {
	c.text += int64(len(change.Path) + len(change.Target))
	if int64(len(c.out.Changes)) >= c.max || c.text+c.xattrs > captureText || len(change.Path) > maxPath {
		return errEnough
	}
	c.out.Changes = append(c.out.Changes, change)
	if counts {
		c.state.add(&change, id)
		c.full.add(&change, id)
	}
	return nil
}

// describe is describe for a tree that a guest wrote: attributes beyond the bounds are
// left out, since an agent must not be able to break its capture.
func (c *capture) describe(fd int, st *unix.Stat_t) (*entry, error) {
	e, err := describe(fd, st)
	for name, value := range e.xattrs {
		c.xattrs += int64(len(name) + len(value))
	}
	if errors.Is(err, errXattrs) || c.xattrs > captureXattrs {
		e.xattrs, c.whole = nil, false
		return e, nil
	}
	return e, err
}

// owner is a host id as the sandbox sees it.
func (c *capture) owner(id uint32) uint32 {
	if id < c.hostID || id-c.hostID >= idSpan {
		return overflowID
	}
	return id - c.hostID
}

func (m met) change() Change {
	e := m.entry
	change := Change{
		Path: m.path, Kind: Created, Type: e.kind, Mode: e.mode, UID: e.uid, GID: e.gid, Size: e.size,
		Target: e.target, Xattrs: e.xattrs, ModTime: e.mtime, Offset: -1,
	}
	if e.kind == typeChar || e.kind == typeBlock {
		change.Rdev = m.st.Rdev
	}
	switch {
	case m.old == nil:
	case m.old.kind == e.kind:
		change.Kind = Modified
	default:
		change.Kind = TypeChanged
	}
	return change
}

func sameAttributes(a, b *entry) bool {
	return a.mode == b.mode && a.uid == b.uid && a.gid == b.gid && maps.EqualFunc(a.xattrs, b.xattrs, bytes.Equal)
}

// sameBytes compares a file with the world's of the same size.
func (m met) sameBytes(ctx context.Context) (bool, error) {
	if m.entry.size > sparseBytes {
		return false, nil
	}
	a, err := open(m.fd, m.path)
	if err != nil {
		return false, fmt.Errorf("open %q: %w", m.path, err)
	}
	defer func() { _ = a.Close() }()
	b, err := open(m.below.fd, m.path)
	if err != nil {
		return false, fmt.Errorf("open %q of the world: %w", m.path, err)
	}
	defer func() { _ = b.Close() }()
	return equalFiles(ctx, a, b)
}

func equalFiles(ctx context.Context, a, b *os.File) (bool, error) {
	bufA, bufB := make([]byte, 64<<10), make([]byte, 64<<10)
	for ctx.Err() == nil {
		n, errA := io.ReadFull(a, bufA)
		m, errB := io.ReadFull(b, bufB)
		if n != m || !bytes.Equal(bufA[:n], bufB[:m]) {
			return false, nil
		}
		if errA != nil || errB != nil {
			eof := func(err error) bool {
				return err == nil || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
			}
			if !eof(errA) {
				return false, errA
			}
			if !eof(errB) {
				return false, errB
			}
			return true, nil
		}
	}
	return false, context.Cause(ctx)
}
