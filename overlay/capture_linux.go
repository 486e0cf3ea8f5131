package overlay

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"time"
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
	packed.passing = in.Passing
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
	w := newWalk(c)
	defer w.close()
	err = w.root(ctx, int(in.Upper.Fd()), below)
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

// take judges the next entry in path order.
func (c *capture) take(ctx context.Context, m *met) error {
	switch {
	case m.err != nil:
		return fmt.Errorf("read %q: %w", m.path, m.err)
	case m.gone:
		return c.put(Change{Path: m.path, Kind: Deleted, Offset: -1}, inode{}, true)
	}
	if m.cut {
		c.whole = false
	}
	if m.same && m.entry.kind == typeFile && !m.read { // in all but the bytes
		var err error
		if m.same, err = m.sameBytes(ctx); err != nil {
			return fmt.Errorf("compare %q: %w", m.path, err)
		}
	}
	if m.same && !m.hides {
		return nil
	}
	if int64(len(c.out.Changes)) >= c.max {
		return errEnough
	}
	var first *Change
	if m.again {
		first = &c.out.Changes[c.links[m.id]]
		m.entry.xattrs = first.Xattrs
	}
	c.attributes(m)
	change := m.change()
	if m.entry.kind == typeDir {
		change.Opaque = m.hides
		// A directory made anew as it was is listed, since it hides what was in it; the
		// state has the deletions themselves.
		return c.put(change, inode{}, !m.same)
	}
	if first != nil {
		change.LinkedTo, change.SHA256, change.Offset = first.Path, first.SHA256, first.Offset
		return c.put(change, m.id, true)
	}
	if m.entry.kind == typeFile {
		if err := c.bytes(ctx, m, &change); err != nil {
			return fmt.Errorf("read %q: %w", m.path, err)
		}
	}
	if m.id != (inode{}) {
		c.links[m.id] = len(c.out.Changes)
	}
	return c.put(change, m.id, true)
}

// attributes bounds what attributes take: an agent must not be able to break its capture.
func (c *capture) attributes(m *met) {
	for name, value := range m.entry.xattrs {
		c.xattrs += int64(len(name) + len(value))
	}
	if c.xattrs > captureXattrs {
		m.entry.xattrs, c.whole = nil, false
	}
}

func (c *capture) bytes(ctx context.Context, m *met, change *Change) (err error) {
	if c.out.Bytes += m.entry.size; c.out.Bytes < 0 {
		c.out.Bytes = math.MaxInt64
	}
	whole := c.pack.whole(m.entry.size)
	if m.read && whole {
		change.SHA256 = hex.EncodeToString(m.digest[:])
		change.Offset, err = c.pack.keep(m.data)
	} else {
		var fd int
		if fd, err = openSame(m.dir, m.name, &m.st); err != nil {
			return err
		}
		defer closeFD(fd)
		change.SHA256, change.Offset, err = c.pack.add(ctx, &fdReader{fd: fd}, m.entry.size, whole)
	}
	if change.Offset < 0 {
		c.whole = false
	}
	return err
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

// owner is a host id as the sandbox sees it.
func (c *capture) owner(id uint32) uint32 {
	if id < c.hostID || id-c.hostID >= idSpan {
		return overflowID
	}
	return id - c.hostID
}
