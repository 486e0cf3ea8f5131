package overlay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// builderVersion is part of every cache key; it changes when equal recipes give other
// layers.
const builderVersion = "paddock-build/2"

// source is one kind of recipe.
type source interface {
	// kind names the recipe in keys; name describes it to people.
	kind() string
	name() string
	network() bool
	// input identifies what the layer is made from. A source that only knows by making
	// the layer answers "".
	input(ctx context.Context, p Progress) (string, error)
	// fill writes the layer into the directory and its canonical tar.
	fill(ctx context.Context, root int, p Progress) (layer, error)
	close()
}

// Build makes the world of a recipe, or answers it from the cache: see Recipe.Cache.
// Equal builds at one time are made once. A refused recipe is a *RecipeError and leaves
// nothing.
func (s *Store) Build(ctx context.Context, r Recipe, p Progress) (Built, error) {
	begin := time.Now()
	if p == nil {
		p = func(string, int64, int64) {}
	}
	if err := r.check(); err != nil {
		return Built{}, err
	}
	b := &building{store: s, recipe: r, progress: p}
	if r.Base != "" {
		base, layers, release, err := s.pin(r.Base)
		if err != nil {
			return Built{}, err
		}
		defer release()
		b.base, b.layers = base, layers
	}
	b.config = r.Config.override(b.base.Config)
	src, err := s.source(r, b.layers)
	if err != nil {
		return Built{}, err
	}
	defer src.close()
	b.src = src
	built, err := b.run(ctx)
	if err != nil {
		return Built{}, err
	}
	if err := s.point(r.Name, built.World.ID); err != nil {
		return Built{}, err
	}
	if built.World, err = s.World(ctx, built.World.ID); err != nil {
		return Built{}, err
	}
	built.Network = src.network()
	built.Took = time.Since(begin)
	return built, nil
}

func (r *Recipe) check() error {
	n := 0
	for _, set := range []bool{r.Dir != "", r.Tar != "", r.Busybox, r.Debian != nil} {
		if set {
			n++
		}
	}
	if n != 1 {
		return refuse("bad_recipe", "", "exactly one of dir, tar, busybox and debian must be set, not %d", n)
	}
	if r.Base != "" && (r.Busybox || r.Debian != nil) {
		return refuse("bad_recipe", "", "a base recipe has no base")
	}
	if !slices.Contains([]string{"", "auto", "off", "refresh"}, r.Cache) {
		return refuse("bad_recipe", "", "cache %q is not auto, off or refresh", r.Cache)
	}
	if r.Into != "" && (r.Dir == "" && r.Tar == "") {
		return refuse("bad_recipe", "", "into is for dir and tar")
	}
	if len(r.Ignore) > 0 && r.Dir == "" {
		return refuse("bad_recipe", "", "ignore is for dir")
	}
	if r.Name != "" {
		if err := checkName(r.Name); err != nil {
			return err
		}
	}
	return r.Config.check()
}

// into is the recipe's directory as an entry's path.
func (r *Recipe) into() (string, error) {
	p, err := cleanPath(strings.TrimPrefix(r.Into, "/"))
	if err != nil {
		return "", err
	}
	return p, nil
}

func (s *Store) source(r Recipe, base []layer) (source, error) {
	into, err := r.into()
	if err != nil {
		return nil, err
	}
	switch {
	case r.Busybox:
		return newBusybox(s)
	case r.Debian != nil:
		return newDebian(s, *r.Debian)
	}
	below, err := openLowers(s.lowers(base))
	if err != nil {
		return nil, fmt.Errorf("open the base: %w", err)
	}
	target := placement{into: into, below: below, limits: s.opts.Limits}
	if r.Dir != "" {
		src, err := newDirSource(r.Dir, r.Ignore, target)
		if err != nil {
			below.close()
		}
		return src, err
	}
	src, err := newTarSource(r.Tar, target)
	if err != nil {
		below.close()
	}
	return src, err
}

// lowers are the directories of layers as overlayfs wants them: the topmost first, the
// skeleton last. Of a layer that comes twice only the topmost counts: all of the other is
// in it, and overlayfs refuses to have one directory twice.
func (s *Store) lowers(layers []layer) []string {
	out := make([]string, 0, len(layers)+1)
	seen := make(map[string]bool, len(layers))
	for _, l := range slices.Backward(layers) {
		if !seen[l.DiffID] {
			seen[l.DiffID] = true
			out = append(out, s.layerDir(l))
		}
	}
	return append(out, s.Skeleton())
}

// building is one call of Build.
type building struct {
	store    *Store
	recipe   Recipe
	progress Progress
	base     World
	layers   []layer // of the base
	config   Config
	src      source
}

// key is the build-cache key of semantics section 6.
func (b *building) key(input string) (string, error) {
	text, err := json.Marshal(map[string]any{
		"builder": builderVersion, "arch": runtime.GOARCH, "base": b.base.ID, "kind": b.src.kind(),
		"network": b.src.network(), "version": b.recipe.Version, "into": b.recipe.Into, "config": b.config, "input": input,
	})
	if err != nil {
		return "", refuse("bad_recipe", "", "%v", err)
	}
	return digestPrefix + sum(text), nil
}

func (b *building) run(ctx context.Context) (Built, error) {
	input, err := b.src.input(ctx, b.progress)
	if err != nil {
		return Built{}, err
	}
	key, err := b.key(input)
	if err != nil {
		return Built{}, err
	}
	if b.recipe.Cache == "off" {
		w, err := b.make(ctx, key)
		return Built{World: w}, err
	}
	land, err := b.store.takeOff(ctx, key)
	if err != nil {
		return Built{}, err
	}
	defer land()
	if b.recipe.Cache != "refresh" {
		if w, ok := b.store.cached(key); ok {
			return Built{World: w, Hit: true}, nil
		}
	}
	w, err := b.make(ctx, key)
	return Built{World: w}, err
}

// takeOff waits until no other build of the key is on its way.
func (s *Store) takeOff(ctx context.Context, key string) (land func(), err error) {
	for {
		s.mu.Lock()
		other, busy := s.flights[key]
		if !busy {
			mine := make(chan struct{})
			s.flights[key] = mine
			s.mu.Unlock()
			return func() {
				s.mu.Lock()
				delete(s.flights, key)
				s.mu.Unlock()
				close(mine)
			}, nil
		}
		s.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func (s *Store) cached(key string) (World, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w, ok := s.index.Worlds[s.index.Keys[key]]
	for _, id := range w.Layers {
		if s.corrupt[id] {
			return World{}, false
		}
	}
	return w, ok
}

// make builds the layer and commits the world.
func (b *building) make(ctx context.Context, key string) (World, error) {
	if len(b.layers) >= maxLayers {
		return World{}, refuse("world_too_large", "", "the base has %d layers already", len(b.layers))
	}
	st, err := b.store.newStage()
	if err != nil {
		return World{}, err
	}
	defer st.discard()
	l, err := b.src.fill(ctx, st.fd, b.progress)
	if err != nil {
		return World{}, err
	}
	b.progress("seal", 0, 0)
	if err := st.sync(); err != nil {
		return World{}, err
	}
	return b.store.seal(sealing{
		world:  World{Recipe: b.src.name(), Key: key, Created: time.Now().UTC()},
		config: b.config, layers: append(slices.Clone(b.layers), l), stages: map[string]*staging{l.DiffID: st},
		key: b.recipe.Cache != "off",
	})
}

// sealing is a world whose layers lie in staging directories or in the store.
type sealing struct {
	world  World
	config Config
	// image is the config's text when it is given, as for an import.
	image  []byte
	layers []layer
	stages map[string]*staging // by diffID
	blobs  map[string]string   // of layers: digest in hex to a file on the same disk
	key    bool
}

// seal makes a world appear: blobs and layers get to their places, then the index names
// them.
func (s *Store) seal(in sealing) (World, error) {
	var err error
	diffIDs := make([]string, 0, len(in.layers))
	for _, l := range in.layers {
		diffIDs = append(diffIDs, l.DiffID)
	}
	if in.image == nil {
		if in.image, err = encodeImage(in.config, diffIDs); err != nil {
			return World{}, err
		}
	}
	w := in.world
	w.ID, w.Layers, w.Config, w.ConfigBytes = digestPrefix+sum(in.image), diffIDs, in.config, int64(len(in.image))
	w.Names = nil
	s.commit.Lock()
	defer s.commit.Unlock()
	known := s.known(in.layers)
	for _, l := range known {
		w.SizeBytes += l.Size
		w.Entries += l.Entries
		w.Dropped = append(w.Dropped, l.Dropped...)
	}
	manifest, err := encodeManifest(w.ID, w.ConfigBytes, known)
	if err != nil {
		return World{}, err
	}
	for _, data := range [][]byte{in.image, manifest} {
		if err := writeFile(s.path("blobs/sha256/"+sum(data)), data); err != nil {
			return World{}, fmt.Errorf("seal world: %w", err)
		}
	}
	if err := s.place(in); err != nil {
		return World{}, fmt.Errorf("seal world: %w", err)
	}
	s.mu.Lock()
	before := s.index.clone()
	for _, l := range known {
		s.index.Layers[l.DiffID] = l
	}
	if old, ok := s.index.Worlds[w.ID]; ok {
		w.Created, w.Key = old.Created, old.Key
		if old.Recipe != StepRecipe { // a step may turn out to be all of a build
			w.Recipe = old.Recipe
		}
	}
	s.index.Worlds[w.ID] = w
	if in.key {
		s.index.Keys[in.world.Key] = w.ID
	}
	s.mu.Unlock()
	if err := s.save(); err != nil {
		s.mu.Lock()
		s.index = before // commit is held, so nothing else changed meanwhile
		s.mu.Unlock()
		return World{}, fmt.Errorf("seal world: %w", err)
	}
	return w, nil
}

// known are the layers as the store has them already, where it does: the first form of a
// layer stays.
func (s *Store) known(layers []layer) []layer {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := slices.Clone(layers)
	for i, l := range out {
		if old, ok := s.index.Layers[l.DiffID]; ok {
			out[i] = old
		}
	}
	return out
}

func (s *Store) place(in sealing) error {
	placed := map[string]bool{} // an image may have a layer twice
	for _, l := range in.layers {
		if placed[l.DiffID] {
			continue
		}
		placed[l.DiffID] = true
		s.mu.Lock()
		old, known := s.index.Layers[l.DiffID]
		if known {
			l = old // the first form of a layer stays
		}
		bad := s.corrupt[l.DiffID]
		s.mu.Unlock()
		st := in.stages[l.DiffID]
		if st == nil && (!known || bad) {
			return fmt.Errorf("layer %s was removed meanwhile; try again", shortID(l.DiffID))
		}
		if st == nil || (known && !bad) {
			continue
		}
		for _, digest := range []string{l.Blob, l.Split} {
			if from := in.blobs[digest]; digest != "" && from != "" {
				if err := os.Rename(from, s.path("blobs/sha256/"+digest)); err != nil {
					return err
				}
			}
		}
		if bad { // a rebuild heals what Verify condemned
			dead := st.path + "-dead"
			if err := os.Rename(s.layerDir(l), dead); err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
			defer func() { _ = os.RemoveAll(dead) }()
		}
		if err := st.move(s.layerDir(l)); err != nil {
			return err
		}
		s.mu.Lock()
		delete(s.corrupt, l.DiffID)
		s.mu.Unlock()
	}
	return errors.Join(syncDir(s.path("layers/sha256")), syncDir(filepath.Join(s.root, "blobs/sha256")))
}
