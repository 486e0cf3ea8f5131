package overlay

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"strings"
)

// placement says where in a world a dir's or tar's contents go.
type placement struct {
	into   string
	below  lowerDir
	limits Limits
}

func (p placement) close() { p.below.close() }

// parents are the directories that lead to into, as entries.
func (p placement) parents() ([]*entry, error) {
	var out []*entry
	for i, c := range p.into + "/" {
		if c != '/' || i == 0 {
			continue
		}
		e := &entry{path: p.into[:i], kind: typeDir, mode: rootMode}
		if err := p.edit(e); err != nil {
			return nil, err
		}
		out = append(out, e)
	}
	return out, nil
}

// edit makes an entry of a recipe one of the layer: no owners, no times. A directory that
// the base has keeps the base's attributes, as adding files to it is no wish to change it.
func (p placement) edit(e *entry) error {
	e.uid, e.gid, e.mtime, e.opaque = 0, 0, epoch, false
	if e.kind == typeWhiteout {
		e.kind = typeChar
	}
	if err := checkEntry(e); err != nil {
		return err
	}
	if e.kind == typeSymlink && climbs(e.path, e.target) {
		return refuse("outside_root", e.path, "symlink to %q leads out of the world", e.target)
	}
	if e.kind != typeDir {
		return nil
	}
	old, err := p.below.at(e.path)
	if err != nil || old == nil {
		return err
	}
	switch old.kind {
	case typeDir:
		e.mode, e.uid, e.gid, e.xattrs = old.mode, old.uid, old.gid, old.xattrs
	case typeSymlink:
		return refuse("world_invalid", e.path, "would hide the base's symlink to %q; put the contents there", old.target)
	}
	return nil
}

// dirSource is the recipe of a host directory.
type dirSource struct {
	placement
	root   int
	ignore *ignore
}

func newDirSource(dir string, patterns []string, p placement) (*dirSource, error) {
	ig, err := newIgnore(patterns)
	if err != nil {
		return nil, err
	}
	fd, err := openDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, refuse("not_found", dir, "no such directory")
	}
	if err != nil {
		return nil, refuse("bad_recipe", dir, "%v", err)
	}
	return &dirSource{placement: p, root: fd, ignore: ig}, nil
}

func (d *dirSource) kind() string  { return "dir" }
func (d *dirSource) name() string  { return "dir" }
func (d *dirSource) network() bool { return false }

func (d *dirSource) close() {
	closeFD(d.root)
	d.placement.close()
}

// input is the layer's own digest: it covers path, type, mode, link and bytes of every
// entry, and neither times nor owners.
func (d *dirSource) input(ctx context.Context, p Progress) (string, error) {
	l, err := d.write(ctx, nil, p, "hash")
	return l.DiffID, err
}

func (d *dirSource) fill(ctx context.Context, root int, p Progress) (layer, error) {
	t := newTree(root, d.limits)
	l, err := d.write(ctx, t, p, "copy")
	return l, errors.Join(err, t.close())
}

func (d *dirSource) write(ctx context.Context, t *tree, p Progress, step string) (layer, error) {
	c := newCanon(nil)
	counter := &counting{sink: &layerSink{tree: t, tar: c}, limits: d.limits, progress: p, step: step}
	parents, err := d.parents()
	if err != nil {
		return layer{}, err
	}
	for _, e := range parents {
		if err := counter.add(e, nil); err != nil {
			return layer{}, err
		}
	}
	lazy := &lazyDirs{sink: counter}
	err = readTree(ctx, d.root, lazy, func(e *entry) (bool, error) {
		if d.ignore.match(e.path) {
			if e.kind != typeDir || !d.ignore.exceptions {
				return true, nil
			}
			lazy.hold = true
		}
		e.path = join(d.into, e.path)
		if e.kind == typeSocket {
			return false, refuse("unsupported_entry", e.path, "a world holds no sockets; ignore it")
		}
		return false, d.edit(e)
	})
	if err != nil {
		return layer{}, err
	}
	return counter.finish(c)
}

// lazyDirs holds back ignored directories until something in them is kept.
type lazyDirs struct {
	sink
	// hold says that the next entry is an ignored directory.
	hold bool
	held []*entry
}

func (l *lazyDirs) add(e *entry, body io.Reader) error {
	for len(l.held) > 0 && !strings.HasPrefix(e.path, l.held[len(l.held)-1].path+"/") {
		l.held = l.held[:len(l.held)-1]
	}
	if l.hold {
		l.hold = false
		l.held = append(l.held, e)
		return nil
	}
	for _, dir := range l.held {
		if err := l.sink.add(dir, nil); err != nil {
			return err
		}
	}
	l.held = nil
	return l.sink.add(e, body)
}

// counting bounds and counts a layer.
type counting struct {
	sink
	limits   Limits
	progress Progress
	step     string
	entries  int64
	bytes    int64
}

func (c *counting) add(e *entry, body io.Reader) error {
	c.entries++
	c.bytes += e.size
	if c.entries > c.limits.Entries {
		return refuse("world_too_large", e.path, "more than %d entries", c.limits.Entries)
	}
	if c.bytes > c.limits.Bytes {
		return refuse("world_too_large", e.path, "more than %d bytes", c.limits.Bytes)
	}
	if c.entries%1024 == 0 {
		c.progress(c.step, c.entries, 0)
	}
	return c.sink.add(e, body)
}

func (c *counting) finish(tar *canon) (layer, error) {
	digest, size, err := tar.done()
	return layer{DiffID: digestPrefix + digest, Tree: digest, TarSize: size, Size: c.bytes, Entries: c.entries, Literal: tar.literal}, err
}
