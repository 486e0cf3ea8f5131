package overlay

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"time"
)

// Owner is whose files are.
type Owner struct{ UID, GID uint32 }

// CopyInput says what goes into a world, and where: COPY, ADD and WORKDIR of a Dockerfile.
// The rules are those of Docker 20.10's builder, but that nothing of one type takes the
// place of something of another.
type CopyInput struct {
	// Base is the world that it goes into, by id; empty is an empty one.
	Base string
	// From is what goes; nil makes Dest as a directory.
	From *Selection
	// Dest is an absolute path, whose symlinks are followed inside the world. It is a
	// directory when it ends in a slash, is one already, or takes in a directory's contents.
	Dest string
	// Owner is whose it all is; nil keeps each entry's own. A file that is given away loses
	// its set-id bits and capabilities, as with chown.
	Owner *Owner
	// Mode, unless it is nil, is that of all files and directories that are copied.
	Mode *uint32
	// Times keeps the files' times; without, they are those of every layer.
	Times bool
	// Unpack unpacks a file that is a tar, plain or compressed, into Dest, with the owners
	// that it names.
	Unpack bool
	Seal   Sealed
}

// StepRecipe is the Recipe of worlds that stand between a build's steps, for its cache.
const StepRecipe = "dockerfile step"

// Sealed says what a new world is called.
type Sealed struct {
	// Config is the world's, whole.
	Config Config
	// Recipe says to people what the world was made from.
	Recipe string
	// Key, unless empty, is what Cached finds the world by.
	Key string
}

// Copy makes a world of another one and a layer of what was selected. A file that is not any
// more what it was when it was selected is an error. A refusal is a *RecipeError, and nothing
// is left of it.
func (s *Store) Copy(ctx context.Context, in CopyInput, p Progress) (World, error) {
	if p == nil {
		p = func(string, int64, int64) {}
	}
	if err := in.Seal.Config.check(); err != nil {
		return World{}, err
	}
	layers, release, err := s.pinBase(in.Base)
	if err != nil {
		return World{}, err
	}
	defer release()
	if len(layers) >= maxLayers {
		return World{}, refuse("world_too_large", "", "the world has %d layers already", len(layers))
	}
	below, err := openLowers(s.own(layers))
	if err != nil {
		return World{}, fmt.Errorf("open the base: %w", err)
	}
	c := &copying{store: s, in: in, below: below, plan: map[string]*planned{}, progress: p}
	defer c.close()
	if err := c.place(ctx); err != nil {
		return World{}, err
	}
	return c.seal(ctx, layers)
}

func (s *Store) pinBase(id string) ([]layer, func(), error) {
	if id == "" {
		return nil, func() {}, nil
	}
	_, layers, release, err := s.pin(id)
	return layers, release, err
}

// copying is one call of Copy.
type copying struct {
	store    *Store
	in       CopyInput
	below    lowerDir
	plan     map[string]*planned
	progress Progress
	unpacked []*unpackedTar
}

// planned is one entry of the layer.
type planned struct {
	entry
	item *picked
	view *View
	pick int // which source it is of: links join no two
}

func (c *copying) close() {
	c.below.close()
	for _, u := range c.unpacked {
		u.close()
	}
}

// place plans the layer.
func (c *copying) place(ctx context.Context) error {
	dest, e, err := c.below.resolve(strings.Trim(c.in.Dest, "/"))
	if err != nil {
		return err
	}
	if c.in.From == nil {
		return c.directory(dest, e, Owner{}, Owner{})
	}
	for i := range c.in.From.picks {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := c.pick(ctx, i, &c.in.From.picks[i], dest, e); err != nil {
			return err
		}
	}
	return nil
}

func (c *copying) pick(ctx context.Context, n int, one *pick, dest string, e *entry) error {
	if one.dir {
		return c.tree(n, one, dest, e, c.as())
	}
	if c.in.Unpack {
		u, err := c.archive(ctx, one)
		if err != nil {
			return err
		}
		if u != nil {
			c.unpacked = append(c.unpacked, u)
			sel, err := u.view.Select(ctx, Selecting{Sources: []string{"/"}}, c.progress)
			if err != nil {
				return err
			}
			return c.tree(n, &sel.picks[0], dest, e, manner{times: true})
		}
	}
	return c.file(n, one, dest, e)
}

// manner is what becomes of an entry's owner and time.
type manner struct {
	owner *Owner
	times bool
}

func (c *copying) as() manner { return manner{c.in.Owner, c.in.Times} }

// dirs is whose the directories are that nobody named.
func (m manner) dirs() Owner {
	if m.owner != nil {
		return *m.owner
	}
	return Owner{}
}

// tree places a directory's contents.
func (c *copying) tree(n int, one *pick, dest string, e *entry, as manner) error {
	if err := c.directory(dest, e, as.dirs(), Owner{}); err != nil {
		return err
	}
	for i := range one.items {
		item := &one.items[i]
		at := join(dest, item.path)
		if dir := path.Dir(at); dir != "." {
			if err := c.parents(dir, as.dirs()); err != nil {
				return err
			}
		}
		if err := c.put(n, one, item, at, as); err != nil {
			return err
		}
	}
	return nil
}

// file places one file.
func (c *copying) file(n int, one *pick, dest string, e *entry) error {
	if e == nil && c.plan[dest] != nil {
		e = &c.plan[dest].entry
	}
	into := strings.HasSuffix(c.in.Dest, "/") || (e != nil && e.kind == typeDir)
	if into {
		if e != nil && e.kind != typeDir {
			return refuse("invalid_path", "/"+dest, "is no directory")
		}
		dest = join(dest, one.name)
	}
	if dir := path.Dir(dest); dir != "." {
		if err := c.parents(dir, c.as().dirs()); err != nil {
			return err
		}
	}
	return c.put(n, one, &one.items[0], dest, c.as())
}

// directory plans dest as a directory; one that is there stays as it is.
func (c *copying) directory(dest string, e *entry, owner, above Owner) error {
	switch {
	case e != nil && e.kind != typeDir:
		return refuse("invalid_path", "/"+dest, "is a %s, not a directory", e.kind)
	case dest == "" || e != nil || c.plan[dest] != nil:
		return nil // put plans what is on the way when there is something in it
	}
	if dir := path.Dir(dest); dir != "." {
		if err := c.parents(dir, above); err != nil {
			return err
		}
	}
	c.plan[dest] = &planned{entry: entry{path: dest, kind: typeDir, mode: rootMode, uid: owner.UID, gid: owner.GID, mtime: epoch}}
	return nil
}

// parents plans the directories that lead to something: those of the world as they are,
// others as the owner's.
func (c *copying) parents(dir string, owner Owner) error {
	for i := range len(dir) + 1 {
		if i < len(dir) && dir[i] != '/' {
			continue
		}
		at := dir[:i]
		if known := c.plan[at]; known != nil {
			if known.kind != typeDir {
				return refuse("invalid_path", "/"+at, "is a %s, not a directory", known.kind)
			}
			continue
		}
		e, err := c.below.at(at)
		if err != nil {
			return err
		}
		switch {
		case e == nil:
			e = &entry{kind: typeDir, mode: rootMode, uid: owner.UID, gid: owner.GID, mtime: epoch}
		case e.kind != typeDir:
			return refuse("invalid_path", "/"+at, "is a %s of the world, which a directory would hide", e.kind)
		}
		e.path, e.opaque = at, false
		c.plan[at] = &planned{entry: *e}
	}
	return nil
}

// put plans one entry in the place of what is there.
func (c *copying) put(n int, one *pick, item *picked, at string, as manner) error {
	if at == "" {
		return refuse("invalid_path", "/", "is a directory")
	}
	there := c.plan[at]
	if there == nil {
		e, err := c.below.at(at)
		if err != nil {
			return err
		}
		if e != nil {
			there = &planned{entry: *e}
		}
	}
	if there != nil && (there.kind == typeDir) != (item.kind == typeDir) {
		return refuse("invalid_path", "/"+at, "is a %s, and a %s would take its place", there.kind, item.kind)
	}
	e := item.entry
	e.path = at
	if as.owner != nil {
		e.uid, e.gid, e.xattrs = as.owner.UID, as.owner.GID, nil
		e.mode = givenAway(e.kind, e.mode)
	}
	if c.in.Mode != nil && e.kind != typeSymlink {
		e.mode = *c.in.Mode
	}
	if !as.times {
		e.mtime = epoch
	}
	if err := checkEntry(&e); err != nil {
		return err
	}
	c.plan[at] = &planned{entry: e, item: item, view: one.view, pick: n}
	return nil
}

// givenAway is a file's mode after a chown.
func givenAway(kind string, mode uint32) uint32 {
	if kind != typeFile {
		return mode
	}
	mode &^= 0o4000
	if mode&0o010 != 0 {
		mode &^= 0o2000
	}
	return mode
}

// seal writes the layer and makes the world.
func (c *copying) seal(ctx context.Context, layers []layer) (World, error) {
	made := sealing{
		world: World{Recipe: c.in.Seal.Recipe, Key: c.in.Seal.Key, Created: time.Now().UTC()}, config: c.in.Seal.Config,
		layers: slices.Clone(layers), stages: map[string]*staging{}, key: c.in.Seal.Key != "",
	}
	if len(c.plan) > 0 {
		st, err := c.store.newStage()
		if err != nil {
			return World{}, err
		}
		defer st.discard()
		l, err := c.write(ctx, st)
		if err != nil {
			return World{}, err
		}
		if err := st.sync(); err != nil {
			return World{}, err
		}
		made.layers, made.stages[l.DiffID] = append(made.layers, l), st
	}
	w, err := c.store.seal(made)
	if err != nil {
		return World{}, err
	}
	return c.store.World(ctx, w.ID)
}

func (c *copying) write(ctx context.Context, st *staging) (layer, error) {
	t := newTree(st.fd, c.store.opts.Limits)
	tw := newCanon(nil)
	counter := &counting{sink: &layerSink{tree: t, tar: tw}, limits: c.store.opts.Limits, progress: c.progress, step: "copy"}
	paths := make([]string, 0, len(c.plan))
	for p := range c.plan {
		paths = append(paths, p)
	}
	slices.SortFunc(paths, before)
	links := map[linkID]string{}
	for _, p := range paths {
		if ctx.Err() != nil {
			return layer{}, errors.Join(context.Cause(ctx), t.close())
		}
		if err := c.entry(ctx, counter, c.plan[p], links); err != nil {
			return layer{}, errors.Join(err, t.close())
		}
	}
	if err := t.close(); err != nil {
		return layer{}, err
	}
	return counter.finish(tw)
}

// linkID is one file of several names of one source.
type linkID struct {
	inode
	pick int
}

func (c *copying) entry(ctx context.Context, out sink, p *planned, links map[linkID]string) error {
	e := p.entry
	if e.kind != typeFile {
		return out.add(&e, nil)
	}
	if id := (linkID{p.item.id, p.pick}); p.item.id != (inode{}) {
		if first := links[id]; first != "" {
			e.kind, e.target, e.size = typeHardlink, first, 0
			return out.add(&e, nil)
		}
		links[id] = e.path
	}
	body, end, err := p.open()
	if err != nil {
		return err
	}
	defer end()
	h := sha256.New()
	if err := out.add(&e, io.TeeReader(&cancelled{ctx, body}, h)); err != nil {
		return err
	}
	if hex.EncodeToString(h.Sum(nil)) != p.item.sum {
		return fmt.Errorf("%q changed while it was copied", p.item.from)
	}
	return nil
}

func (p *planned) open() (io.Reader, func(), error) {
	if p.item.inline != nil || p.view == nil {
		return bytes.NewReader(p.item.inline), func() {}, nil
	}
	_, f, err := p.view.dirs.open(p.item.from)
	if err != nil {
		return nil, nil, err
	}
	if f == nil {
		return nil, nil, gone(p.item.from)
	}
	return f, func() { _ = f.Close() }, nil
}

// unpackedDir is where an archive's contents are while they are read, so that their topmost
// names are no more special than others.
const unpackedDir = "in"

// Cached finds the world that was sealed under a key.
func (s *Store) Cached(key string) (World, bool) { return s.cached(key) }

// Configure makes a world of another one's layers with a config of its own. An empty base has
// no layers.
func (s *Store) Configure(ctx context.Context, base string, in Sealed) (World, error) {
	if err := in.Config.check(); err != nil {
		return World{}, err
	}
	layers, release, err := s.pinBase(base)
	if err != nil {
		return World{}, err
	}
	defer release()
	w, err := s.seal(sealing{
		world: World{Recipe: in.Recipe, Key: in.Key, Created: time.Now().UTC()}, config: in.Config,
		layers: layers, stages: map[string]*staging{}, key: in.Key != "",
	})
	if err != nil {
		return World{}, err
	}
	return s.World(ctx, w.ID)
}
