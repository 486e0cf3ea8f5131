package overlay

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/paddock-run/paddock/internal/giveway"
	"github.com/paddock-run/paddock/internal/safepath"
)

// trackEntries bounds what a tracker looks at: it runs after each call.
const trackEntries = 20_000

// trackText bounds the paths that it tells at once.
const trackText = 16 << 20

// Tracker tells which paths changed since it was last asked, from the times and sizes in
// an upper directory; what only changed back is told as well. Programs may write while it
// looks. It looks at no more than 20,000 entries, the first in path order. It belongs to
// one goroutine at a time.
type Tracker struct {
	upper  *os.File
	lowers []string
	hostID uint32
	seen   tracked
	look   uint64
}

// tracked is what the last look saw at a path.
type tracked struct {
	stamp
	look uint64 // that saw it last
	in   map[string]*tracked
}

// stamp is enough to see that a path changed.
type stamp struct {
	ino   uint64
	mode  uint32
	uid   uint32
	gid   uint32
	size  int64
	ctime unix.Timespec
}

func (s stamp) whiteout() bool { return s.mode&unix.S_IFMT == unix.S_IFCHR && s.ino == 0 }

// Track watches an upper directory between calls. The first answer holds all that differs
// from the world by then.
func (f *Fork) Track(upper *os.File, hostID uint32) *Tracker {
	return &Tracker{upper: upper, lowers: f.lowers, hostID: hostID}
}

// Changes returns the changed paths in order, at most limit of them; more says that there
// were others, which are not told again.
func (t *Tracker) Changes(ctx context.Context, limit int) (changes []Change, more bool, err error) {
	t.look++
	p := &tracking{t: t, owner: (&capture{hostID: t.hostID}).owner, limit: limit}
	defer p.work.Done()
	root := &trackDir{lowers: t.lowers}
	defer root.close()
	fd, err := unix.Openat(int(t.upper.Fd()), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err == nil {
		defer closeFD(fd)
		err = p.dir(ctx, fd, root, &t.seen)
	}
	if err != nil && !errors.Is(err, errEnough) {
		return nil, false, fmt.Errorf("track changes: %w", err)
	}
	more = err != nil || p.more
	slices.SortFunc(p.out, func(a, b Change) int { return before(a.Path, b.Path) })
	if len(p.out) > limit {
		return p.out[:limit], true, nil
	}
	return p.out, more, nil
}

// trackDir is a directory on the way of a look. Its path and what the world has there are
// found when something new is in it.
type trackDir struct {
	parent *trackDir
	name   string
	depth  int
	lowers []string // of the root
	opened bool
	below  lowerDir
}

func (d *trackDir) close() { d.below.close() }

func (d *trackDir) path() string {
	var names []string
	size := 0
	for ; d.parent != nil; d = d.parent {
		names = append(names, d.name)
		size += len(d.name) + 1
	}
	out := make([]byte, 0, size)
	for _, name := range slices.Backward(names) {
		out = append(append(out, '/'), name...)
	}
	return string(out)
}

// world is the directory in the world's layers, empty when the world has none.
func (d *trackDir) world() (lowerDir, error) {
	if d.opened {
		return d.below, nil
	}
	var err error
	if d.parent == nil {
		d.below, err = openLowers(d.lowers)
	} else {
		var up lowerDir
		var node *lowerNode
		if up, err = d.parent.world(); err == nil {
			node, err = up.lookup(d.name)
		}
		if node != nil {
			d.below = node.dirs
		}
	}
	d.opened = err == nil
	return d.below, err
}

// tracking is one look.
type tracking struct {
	t     *Tracker
	owner func(uint32) uint32
	limit int // of what is told
	out   []Change
	work  giveway.Work
	stats int
	text  int
	more  bool
}

func (p *tracking) dir(ctx context.Context, fd int, at *trackDir, was *tracked) error {
	if at.depth > maxDepth {
		p.more = true
		return nil
	}
	list, err := namesOf(fd)
	if err != nil {
		return ignoreGone(err)
	}
	there := 0
	for _, name := range list {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if p.stats++; p.stats > trackEntries {
			err = errEnough
			break
		}
		if p.stats%64 == 0 {
			p.work.Step()
		}
		st, gone := look(fd, name)
		if gone != nil {
			if err = ignoreGone(gone); err != nil {
				return err
			}
			continue
		}
		there++
		if err = p.entry(ctx, fd, name, &st, at, was); err != nil {
			break
		}
	}
	if err != nil && !errors.Is(err, errEnough) {
		return err
	}
	if there != len(was.in) {
		// After errEnough what was not reached is forgotten, and is no deletion.
		err = errors.Join(err, p.forget(at, was, err == nil))
	}
	return err
}

// forget drops what this look did not see.
func (p *tracking) forget(at *trackDir, was *tracked, tell bool) error {
	for name, old := range was.in {
		if old.look == p.t.look {
			continue
		}
		delete(was.in, name)
		if tell {
			if err := p.deleted(at, name, old); err != nil {
				return err
			}
		}
	}
	return nil
}

// deleted tells that a path went with all that was in it.
func (p *tracking) deleted(at *trackDir, name string, old *tracked) error {
	if old.whiteout() {
		return nil
	}
	if err := p.tell(at, name, Change{Kind: Deleted, Offset: -1}); err != nil {
		return err
	}
	in := &trackDir{parent: at, name: name}
	for name, old := range old.in {
		if err := p.deleted(in, name, old); err != nil {
			return err
		}
	}
	return nil
}

func (p *tracking) tell(at *trackDir, name string, c Change) error {
	c.Path = at.path() + "/" + name
	if p.text += len(c.Path); p.text > trackText {
		return errEnough
	}
	p.out = append(p.out, c)
	return nil
}

func (p *tracking) entry(ctx context.Context, dir int, name string, st *unix.Stat_t, at *trackDir, was *tracked) error {
	kind := kindOf(st)
	now := stamp{ino: st.Ino, mode: st.Mode, uid: st.Uid, gid: st.Gid, size: st.Size, ctime: st.Ctim}
	if kind == typeDir { // its times and size change with what is in it, which is told itself
		now.ctime, now.size = unix.Timespec{}, 0
	}
	if kind == typeWhiteout { // all whiteouts may be links of one
		now = stamp{mode: st.Mode}
	}
	old := was.in[name]
	if old == nil {
		if was.in == nil {
			was.in = map[string]*tracked{}
		}
		was.in[name] = &tracked{stamp: now, look: p.t.look}
		if err := p.fresh(at, name, kind, st); err != nil {
			return err
		}
	} else if old.look = p.t.look; old.stamp != now {
		if err := p.changed(at, name, kind, st, old); err != nil {
			return err
		}
		old.stamp = now
	}
	if kind != typeDir {
		return nil
	}
	fd, err := safepath.Child(dir, name, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return ignoreGone(err)
	}
	defer closeFD(fd)
	in := &trackDir{parent: at, name: name, depth: at.depth + 1}
	defer in.close()
	return p.dir(ctx, fd, in, was.in[name])
}

// fresh tells a path that the last look did not see; what it was before is asked of the world.
func (p *tracking) fresh(at *trackDir, name, kind string, st *unix.Stat_t) error {
	// What is looked at after as many as are told comes after them in path order, too.
	if len(p.out) > p.limit && kind != typeDir && kind != typeWhiteout {
		return nil
	}
	below, err := at.world()
	if err != nil {
		return err
	}
	node, err := below.lookup(name)
	if err != nil {
		return err
	}
	defer node.close()
	c := p.change(kind, st)
	switch {
	case kind == typeWhiteout && node == nil:
		return nil
	case kind == typeWhiteout:
		c = Change{Kind: Deleted, Offset: -1}
	case node == nil:
		c.Kind = Created
	case kindOf(&node.st) != kind:
		c.Kind = TypeChanged
	case kind == typeDir && node.st.Mode&modeBits == c.Mode && node.st.Uid == c.UID && node.st.Gid == c.GID:
		return nil // copied up
	}
	return p.tell(at, name, c)
}

// changed tells a path that the last look saw otherwise.
func (p *tracking) changed(at *trackDir, name, kind string, st *unix.Stat_t, old *tracked) error {
	if kind != typeDir {
		in := &trackDir{parent: at, name: name}
		for name, gone := range old.in {
			if err := p.deleted(in, name, gone); err != nil {
				return err
			}
		}
		old.in = nil
	}
	c := p.change(kind, st)
	switch {
	case kind == typeWhiteout:
		c = Change{Kind: Deleted, Offset: -1}
	case old.whiteout():
		c.Kind = Created
	}
	return p.tell(at, name, c)
}

func (p *tracking) change(kind string, st *unix.Stat_t) Change {
	c := Change{Kind: Modified, Type: kind, Mode: st.Mode & modeBits, UID: p.owner(st.Uid), GID: p.owner(st.Gid), Offset: -1}
	if kind == typeFile {
		c.Size = st.Size
	}
	return c
}

// ignoreGone lets a path vanish while it is looked at.
func ignoreGone(err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return nil
	}
	return err
}
