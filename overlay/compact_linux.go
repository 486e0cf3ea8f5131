package overlay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// A sandbox pays for each layer below it with a mount, and a lookup of a name that is not
// there asks each. So the layers that branches of branches leave are merged now and then.
//
// A world is named by its layers, so a merger makes another world, with the same files and
// config. It is cached under the id of the one that it was made of: branches of one world
// stand on one merger. Which layers are merged follows from them alone, so equal branches of
// a world are equal worlds on any day and host.
const (
	// MaxChain bounds the layers that branches leave on one another. A branch takes at 32
	// about 1.4 times what it takes at 1, at 100 twice (docs/performance.md).
	MaxChain = 32
	// leastMerged is how many are merged at least, so that it does not happen at every
	// branch; more are while they weigh little beside those above them.
	leastMerged = 8
	// maxStack bounds what a fork stands on. No engine makes images of more layers; before
	// Linux 6.13 all their names must fit in a page, and it holds about twice as many.
	maxStack = 128
	// entryWeight is what an entry costs beside its bytes, in bytes.
	entryWeight = 4096
)

// MergedRecipe is the Recipe of worlds that are another one on fewer layers.
const MergedRecipe = "merged layers"

// stack is a world as forks and branches stand on it. release lets it be removed.
type stack struct {
	world   World
	layers  []layer
	release func()
}

// Compact makes ahead what the next Seal of a branch needs first: one layer of many. Where
// there are few it does nothing.
func (f *Fork) Compact(ctx context.Context) error {
	w, layers, release, err := f.store.pin(f.world.ID)
	if err != nil {
		return err
	}
	defer release()
	short, err := f.store.shortChain(ctx, w, layers)
	if err != nil {
		return err
	}
	short.release()
	return nil
}

// shortChain is a pinned world with room for one more layer of a branch.
func (s *Store) shortChain(ctx context.Context, w World, layers []layer) (stack, error) {
	if w.Branched < MaxChain {
		return stack{w, layers, func() {}}, nil
	}
	return s.merged(ctx, w, layers, s.cut(layers, w.Branched, leastMerged))
}

// lowStack is a pinned world on no more layers than a fork may stand on.
func (s *Store) lowStack(ctx context.Context, w World, layers []layer) (stack, error) {
	if len(layers) <= maxStack {
		return stack{w, layers, func() {}}, nil
	}
	return s.merged(ctx, w, layers, s.cut(layers, len(layers), len(layers)-maxStack+leastMerged))
}

func (l layer) weight() int64 { return l.Size + l.Entries*entryWeight }

// cut says which layers are merged: those from there on. They are at least as many as asked
// for, and more of the topmost chain, down to the first that weighs more than twice what is
// above it: so a file is copied again only when as much has come on top of it. What is too
// much for one layer stays as it is.
func (s *Store) cut(layers []layer, chain, least int) int {
	var run layer // its sums
	fits := func(l layer) bool {
		return run.Size+l.Size <= s.opts.Limits.Bytes && run.Entries+l.Entries <= s.opts.Limits.Entries
	}
	at := len(layers)
	for at > len(layers)-chain {
		l := layers[at-1]
		if !fits(l) || (len(layers)-at >= least && l.weight() > 2*run.weight()) {
			break
		}
		run.Size, run.Entries, at = run.Size+l.Size, run.Entries+l.Entries, at-1
	}
	return at
}

// merged is a world with its layers from a cut on as one, made when the store has it not.
func (s *Store) merged(ctx context.Context, w World, layers []layer, cut int) (stack, error) {
	if len(layers)-cut < 2 {
		return stack{w, layers, func() {}}, nil
	}
	key := mergedKey(w.ID)
	land, err := s.takeOff(ctx, key)
	if err != nil {
		return stack{}, err
	}
	defer land()
	made, ok := s.cached(key)
	if !ok {
		if made, err = s.merge(ctx, w, layers, cut); err != nil {
			return stack{}, fmt.Errorf("merge layers of world %s: %w", shortID(w.ID), err)
		}
	}
	var out stack
	out.world, out.layers, out.release, err = s.pin(made.ID)
	return out, err
}

// mergedKey is what Cached finds the merger of a world by.
func mergedKey(id string) string { return digestPrefix + sum([]byte("merged-1 "+id)) }

// forgetMerger takes along what the layers of a removed world were merged to, unless it is
// in use or got a name. s.commit is held.
func (s *Store) forgetMerger(id string) (dead []string, err error) {
	s.mu.Lock()
	_, there := s.index.Worlds[id]
	made, ok := s.index.Worlds[s.index.Keys[mergedKey(id)]]
	goes := ok && !there && len(s.namedLocked(made).Names) == 0
	s.mu.Unlock()
	if !goes {
		return nil, nil
	}
	if dead, err = s.forget(made.ID); errors.Is(err, ErrInUse) {
		return nil, nil
	}
	return dead, err
}

func (s *Store) merge(ctx context.Context, w World, layers []layer, cut int) (World, error) {
	st, l, err := s.mergeLayers(ctx, layers, cut)
	if err != nil {
		return World{}, err
	}
	defer st.discard()
	return s.seal(sealing{
		world:  World{Recipe: MergedRecipe, Key: mergedKey(w.ID), Created: time.Now().UTC(), Branched: max(0, w.Branched-(len(layers)-cut)+1)},
		config: w.Config, layers: append(slices.Clone(layers[:cut]), l), stages: map[string]*staging{l.DiffID: st}, key: true,
	})
}

// mergeLayers writes the layer that is to lie on those below the cut.
func (s *Store) mergeLayers(ctx context.Context, layers []layer, cut int) (*staging, layer, error) {
	st, err := s.newStage()
	if err != nil {
		return nil, layer{}, err
	}
	l, err := mergeDirs(ctx, s.own(layers[cut:]), s.lowers(layers[:cut]), newTree(st.fd, s.opts.Limits))
	if err == nil {
		err = st.sync()
	}
	if err != nil {
		st.discard()
		return nil, layer{}, err
	}
	return st, l, nil
}

// mergeDirs writes what directories of layers, the topmost first, make of those below.
func mergeDirs(ctx context.Context, top, below []string, into *tree) (layer, error) {
	upper, err := openLowers(top)
	if err != nil {
		return layer{}, err
	}
	defer upper.close()
	lower, err := openLowers(below)
	if err != nil {
		return layer{}, err
	}
	defer lower.close()
	c := newCanon(nil)
	count := &counting{
		sink: &layerSink{tree: into, tar: c}, limits: into.limits,
		progress: func(string, int64, int64) {}, step: "merge",
	}
	m := &merger{out: count, links: links{}}
	if err := errors.Join(m.dir(ctx, upper, lower, "", 0), into.close()); err != nil {
		return layer{}, err
	}
	return count.finish(c)
}

// merger walks the upper layers of a stack beside those below and gives what they are as one
// layer to a sink, in canonical order.
type merger struct {
	out   sink
	links links
}

func (m *merger) dir(ctx context.Context, top, below lowerDir, prefix string, depth int) error {
	if depth > maxDepth {
		return refuse("world_too_large", prefix, "deeper than %d directories", maxDepth)
	}
	list, err := top.all()
	if err != nil {
		return fmt.Errorf("list %q: %w", prefix, err)
	}
	for _, name := range list {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := m.entry(ctx, top, below, join(prefix, name), depth); err != nil {
			return err
		}
	}
	return nil
}

func (m *merger) entry(ctx context.Context, top, below lowerDir, p string, depth int) error {
	name := p[strings.LastIndexByte(p, '/')+1:]
	node, closed, err := top.find(name, true)
	if err != nil {
		return err
	}
	defer node.close()
	old, err := below.lookup(name)
	if err != nil {
		return err
	}
	defer old.close()
	switch {
	case node == nil && old == nil:
		return nil // a whiteout that hides nothing
	case node == nil:
		return m.out.add(&entry{path: p, kind: typeWhiteout, mtime: epoch}, nil)
	case node.dirs == nil:
		return m.leaf(node, p)
	}
	e, err := node.describe()
	if err != nil {
		return fmt.Errorf("read %q: %w", p, err)
	}
	e.path, e.opaque = p, closed && old != nil && old.dirs != nil
	if err := m.out.add(e, nil); err != nil {
		return err
	}
	var under lowerDir // what the directory's entries lie on
	if old != nil && !closed {
		under = old.dirs
	}
	return m.dir(ctx, node.dirs, under, p, depth+1)
}

func (m *merger) leaf(node *lowerNode, p string) error {
	e, fd, err := describeAt(node.dir, node.name, &node.st)
	defer closeFD(fd)
	if err != nil {
		return fmt.Errorf("read %q: %w", p, err)
	}
	e.path = p
	var body io.Reader
	if e.kind == typeFile && !m.links.linked(e, &node.st) {
		body = &fdReader{fd: fd}
	}
	return m.out.add(e, body)
}

// all are the names that any layer has in the directory, whiteouts too, in order.
func (d lowerDir) all() ([]string, error) {
	var out []string
	for _, dir := range d {
		list, err := names(dir)
		if err != nil {
			return nil, err
		}
		out = append(out, list...)
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}
