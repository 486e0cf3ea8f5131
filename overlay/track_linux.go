package overlay

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// trackEntries bounds what a tracker looks at: it runs after each call.
const trackEntries = 50_000

// trackText bounds the paths that a tracker remembers.
const trackText = 16 << 20

// Tracker tells which paths changed since it was last asked, from the times and sizes in
// an upper directory; what only changed back is told as well. Programs may write while it
// looks. It belongs to one goroutine at a time.
type Tracker struct {
	upper  *os.File
	lowers []string
	hostID uint32
	seen   map[string]stamp
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

// Track watches an upper directory between calls. The first answer holds all that differs
// from the world by then.
func (f *Fork) Track(upper *os.File, hostID uint32) *Tracker {
	return &Tracker{upper: upper, lowers: f.lowers, hostID: hostID, seen: map[string]stamp{}}
}

// Changes returns the changed paths in order, at most limit of them; more says that there
// were others, which are not told again.
func (t *Tracker) Changes(ctx context.Context, limit int) (changes []Change, more bool, err error) {
	below, err := openLowers(t.lowers)
	if err != nil {
		return nil, false, fmt.Errorf("track changes: %w", err)
	}
	defer below.close()
	p := &tracking{old: t.seen, now: make(map[string]stamp, len(t.seen)), below: below, owner: (&capture{hostID: t.hostID}).owner}
	if err := p.dir(ctx, int(t.upper.Fd()), "", 0); err != nil && !errors.Is(err, errEnough) {
		return nil, false, fmt.Errorf("track changes: %w", err)
	} else if err != nil {
		more = true
	}
	if !more { // else what was not reached would look deleted
		for path, was := range t.seen {
			if _, there := p.now[path]; !there && was.mode&unix.S_IFMT != unix.S_IFCHR {
				p.out = append(p.out, Change{Path: "/" + path, Kind: Deleted, Offset: -1})
			}
		}
	}
	t.seen = p.now
	slices.SortFunc(p.out, func(a, b Change) int { return before(a.Path, b.Path) })
	if len(p.out) > limit {
		return p.out[:limit], true, nil
	}
	return p.out, more, nil
}

// tracking is one look.
type tracking struct {
	old, now map[string]stamp
	below    lowerDir
	owner    func(uint32) uint32
	out      []Change
	text     int
}

func (p *tracking) dir(ctx context.Context, fd int, prefix string, depth int) error {
	if depth > maxDepth {
		return errEnough
	}
	list, err := names(fd)
	if err != nil {
		return ignoreGone(err)
	}
	for _, name := range list {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		p.text += len(prefix) + len(name)
		if len(p.now) >= trackEntries || p.text > trackText {
			return errEnough
		}
		if err := p.entry(ctx, fd, name, join(prefix, name), depth); err != nil {
			return err
		}
	}
	return nil
}

func (p *tracking) entry(ctx context.Context, dir int, name, path string, depth int) error {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return ignoreGone(err)
	}
	kind := kindOf(&st)
	now := stamp{ino: st.Ino, mode: st.Mode, uid: st.Uid, gid: st.Gid, size: st.Size, ctime: st.Ctim}
	if kind == typeDir { // its times and size change with what is in it, which is told itself
		now.ctime, now.size = unix.Timespec{}, 0
	}
	if kind == typeWhiteout { // all whiteouts may be links of one
		now = stamp{mode: st.Mode}
	}
	old, known := p.old[path]
	p.now[path] = now
	if !known || old != now {
		if err := p.changed(path, kind, &st, known && old.mode&unix.S_IFMT == unix.S_IFCHR); err != nil {
			return err
		}
	}
	if kind != typeDir {
		return nil
	}
	fd, err := unix.Openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_DIRECTORY, 0)
	if err != nil {
		return ignoreGone(err)
	}
	defer closeFD(fd)
	return p.dir(ctx, fd, path, depth+1)
}

// changed adds a change; what the path was before the episode is asked of the world.
func (p *tracking) changed(path, kind string, st *unix.Stat_t, wasGone bool) error {
	world, err := p.below.at(path)
	if err != nil {
		return err
	}
	_, known := p.old[path]
	if kind == typeWhiteout {
		if world != nil || known {
			p.out = append(p.out, Change{Path: "/" + path, Kind: Deleted, Offset: -1})
		}
		return nil
	}
	c := Change{
		Path: "/" + path, Kind: Modified, Type: kind, Mode: st.Mode & modeBits, UID: p.owner(st.Uid), GID: p.owner(st.Gid),
		Offset: -1,
	}
	if kind == typeFile {
		c.Size = st.Size
	}
	if wasGone || (world == nil && !known) {
		c.Kind = Created
	}
	if kind == typeDir && !known && world != nil && world.kind == typeDir &&
		world.mode == c.Mode && world.uid == c.UID && world.gid == c.GID {
		return nil // copied up
	}
	if !known && world != nil && world.kind != kind {
		c.Kind = TypeChanged
	}
	p.out = append(p.out, c)
	return nil
}

// ignoreGone lets a path vanish while it is looked at.
func ignoreGone(err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return nil
	}
	return err
}
