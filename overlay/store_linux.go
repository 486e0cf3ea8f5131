package overlay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Options of a store; the zero value is fine.
type Options struct {
	Limits Limits
	Log    *slog.Logger
	// Busybox and Mmdebstrap are the programs of the base recipes, found by PATH when empty.
	Busybox    string
	Mmdebstrap string
}

// Store holds worlds and their layers in one directory:
//
//	lock                     held by the process that has the store open
//	worlds/index.json        worlds, names, cache keys and layers; replaced as a whole
//	layers/sha256/<hex>/     a layer as a lower directory of overlayfs
//	layers/skeleton-1/       what lies below every world
//	blobs/sha256/<hex>       image configs, manifests, and layers as they were imported
//	downloads/<hex>          blobs of a registry, whole or in part, until their world is sealed
//	tmp/                     what is being made; emptied at the next Open
//
// What is not in the index is not there: a layer comes into being by a rename within the
// store and counts when the index, replaced after it, names it.
type Store struct {
	root string
	opts Options
	lock *os.File

	// commit is held over changes of the index and the directories it speaks of. It is
	// taken by builds' ends and removals, never by a fork.
	commit sync.Mutex

	mu      sync.Mutex
	index   index
	pins    map[string]int // by world id
	corrupt map[string]bool
	flights map[string]chan struct{}
	coming  map[string]*arrival // layers by chain
}

type index struct {
	Version int               `json:"version"`
	Worlds  map[string]World  `json:"worlds"`
	Names   map[string]string `json:"names"`
	Keys    map[string]string `json:"keys"`
	Layers  map[string]layer  `json:"layers"` // by diffID
	// Used is when a world was last forked, built on or exported, as of the last save.
	Used map[string]time.Time `json:"used,omitempty"`
}

// layer is what the store knows of a layer.
type layer struct {
	DiffID string `json:"diff_id"`
	// Tree is the digest of the canonical tar of the directory: the diffID without its
	// prefix for what paddock made.
	Tree    string `json:"tree"`
	TarSize int64  `json:"tar_size"`
	Size    int64  `json:"size"`
	Entries int64  `json:"entries"`
	// Blob is the digest of the imported form, where the diffID is not Tree and there is
	// no split.
	Blob     string `json:"blob,omitempty"`
	BlobType string `json:"blob_type,omitempty"`
	BlobSize int64  `json:"blob_size,omitempty"`
	// Literal is a path whose name an image would take for a deletion; the layer cannot
	// be exported.
	Literal string `json:"literal,omitempty"`
	// Split is the digest of what, with the directory, gives an imported layer's tar
	// again. Attributes is then the digest of the directory without its files' bytes, which
	// the diffID covers; Tree is set only where files came from below.
	Split      string `json:"split,omitempty"`
	Attributes string `json:"attributes,omitempty"`
	// Dropped says what of the layer's tar the directory does not hold.
	Dropped []string `json:"dropped,omitempty"`
}

func (l layer) hex() string { return strings.TrimPrefix(l.DiffID, digestPrefix) }

// Open opens the store at root, making it when missing. ErrLocked says that another
// process has it. What a crash left half made is removed.
func Open(root string, opts Options) (*Store, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, err
	}
	opts.Limits = opts.Limits.orDefault()
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	for _, dir := range []string{"worlds", "layers/sha256", "blobs/sha256", "downloads", "tmp"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o700); err != nil {
			return nil, fmt.Errorf("open store: %w", err)
		}
	}
	s := &Store{root: root, opts: opts, pins: map[string]int{}, corrupt: map[string]bool{}, flights: map[string]chan struct{}{}, coming: map[string]*arrival{}}
	if s.lock, err = lockFile(filepath.Join(root, "lock")); err != nil {
		return nil, fmt.Errorf("open store %s: %w", root, err)
	}
	if err := s.recover(); err != nil {
		return nil, errors.Join(fmt.Errorf("open store %s: %w", root, err), s.Close())
	}
	return s, nil
}

func lockFile(p string) (*os.File, error) {
	f, err := os.OpenFile(p, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = ErrLocked
		}
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Close lets another process open the store. Forks must be released and builds ended.
func (s *Store) Close() error { return s.lock.Close() }

// recover reads the index and removes what it does not name.
func (s *Store) recover() error {
	s.index = index{Version: 1, Worlds: map[string]World{}, Names: map[string]string{}, Keys: map[string]string{}, Layers: map[string]layer{}}
	text, err := os.ReadFile(s.path("worlds/index.json"))
	if err == nil {
		err = json.Unmarshal(text, &s.index)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read the index of worlds: %w", err)
	}
	if s.index.Version != 1 {
		return fmt.Errorf("the index of worlds has version %d, this paddock reads 1", s.index.Version)
	}
	strays, err := s.strays()
	if err != nil {
		return err
	}
	for _, p := range strays {
		s.opts.Log.Info("removing what a crash left", slog.String("path", p))
		if err := os.RemoveAll(p); err != nil {
			return err
		}
	}
	return s.makeSkeleton()
}

// Strays lists what lies in the store and belongs to no world and no build; Open removes
// the same. It is empty unless something is broken.
func (s *Store) Strays() ([]string, error) {
	s.commit.Lock()
	defer s.commit.Unlock()
	s.mu.Lock()
	busy := len(s.flights) > 0
	s.mu.Unlock()
	all, err := s.strays()
	if !busy {
		return all, err
	}
	return slices.DeleteFunc(all, func(p string) bool { return strings.HasPrefix(p, s.path("tmp")) }), err
}

func (s *Store) strays() ([]string, error) {
	blobs := map[string]bool{}
	layers := map[string]bool{}
	s.mu.Lock()
	for id, w := range s.index.Worlds {
		blobs[strings.TrimPrefix(id, digestPrefix)] = true
		blobs[s.index.manifest(w)] = true
	}
	for _, l := range s.index.Layers {
		layers[l.hex()] = true
		blobs[l.Blob], blobs[l.Split] = true, true
	}
	s.mu.Unlock()
	var out []string
	for dir, known := range map[string]map[string]bool{"layers/sha256": layers, "blobs/sha256": blobs, "tmp": {}} {
		list, err := os.ReadDir(s.path(dir))
		if err != nil {
			return nil, err
		}
		for _, e := range list {
			// tmp is shared: only what this package makes there is its own.
			if !known[e.Name()] && (dir != "tmp" || strings.HasPrefix(e.Name(), tmpPrefix)) {
				out = append(out, filepath.Join(s.path(dir), e.Name()))
			}
		}
	}
	slices.Sort(out)
	return out, nil
}

// clone is a copy to go back to.
func (x *index) clone() index {
	return index{
		Version: x.Version, Worlds: maps.Clone(x.Worlds), Names: maps.Clone(x.Names),
		Keys: maps.Clone(x.Keys), Layers: maps.Clone(x.Layers), Used: maps.Clone(x.Used),
	}
}

// manifest is the digest, in hex, of a world's manifest.
func (x *index) manifest(w World) string {
	var layers []layer
	for _, id := range w.Layers {
		layers = append(layers, x.Layers[id])
	}
	text, err := encodeManifest(w.ID, w.ConfigBytes, layers)
	if err != nil {
		return ""
	}
	return sum(text)
}

const tmpPrefix = "overlay-"

func (s *Store) path(p string) string { return filepath.Join(s.root, p) }

func (s *Store) layerDir(l layer) string { return s.path("layers/sha256/" + l.hex()) }

// save writes the index; s.commit is held.
func (s *Store) save() error {
	s.mu.Lock()
	text, err := json.Marshal(s.index)
	s.mu.Unlock()
	if err != nil {
		return err
	}
	if err := writeFile(s.path("worlds/index.json"), text); err != nil {
		return fmt.Errorf("write the index of worlds: %w", err)
	}
	return nil
}

// writeFile replaces a file as a whole.
func writeFile(p string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(p), ".new-*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), p)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return syncDir(filepath.Dir(p))
}

func syncDir(p string) error {
	d, err := os.Open(p)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// World resolves an id, a unique prefix of one of at least 6 digits, or a name. Where no
// name is just so, one that an engine takes for the same image does: see FullName.
func (s *Store) World(_ context.Context, ref string) (World, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.resolveLocked(ref)
}

func (s *Store) resolveLocked(ref string) (World, error) {
	id, ok := s.index.Names[ref]
	if !ok {
		id = digestPrefix + strings.TrimPrefix(ref, digestPrefix)
	}
	if w, ok := s.index.Worlds[id]; ok {
		return s.namedLocked(w), nil
	}
	var found []World
	if len(id) >= len(digestPrefix)+6 {
		for known, w := range s.index.Worlds {
			if strings.HasPrefix(known, id) {
				found = append(found, w)
			}
		}
	}
	if len(found) == 1 {
		return s.namedLocked(found[0]), nil
	}
	if name := s.nameLocked(ref); name != "" {
		return s.namedLocked(s.index.Worlds[s.index.Names[name]]), nil
	}
	return World{}, &NotFoundError{Ref: ref}
}

// nameLocked is the name that ref is or stands for, the first in order; empty when there is
// none.
func (s *Store) nameLocked(ref string) string {
	if s.index.Names[ref] != "" {
		return ref
	}
	if !nameForm.MatchString(ref) {
		return ""
	}
	full, found := FullName(ref), ""
	for name := range s.index.Names {
		if FullName(name) == full && (found == "" || name < found) {
			found = name
		}
	}
	return found
}

// Name points a name at a world, whatever it meant before. *NotFoundError.
func (s *Store) Name(ctx context.Context, name, ref string) (World, error) {
	if err := checkName(name); err != nil {
		return World{}, err
	}
	w, err := s.World(ctx, ref)
	if err != nil {
		return World{}, err
	}
	if err := s.point(name, w.ID); err != nil {
		return World{}, err
	}
	return s.World(ctx, w.ID)
}

func (s *Store) namedLocked(w World) World {
	w.Names = nil
	for name, id := range s.index.Names {
		if id == w.ID {
			w.Names = append(w.Names, name)
		}
	}
	slices.Sort(w.Names)
	return w
}

// List gives all worlds, the oldest first.
func (s *Store) List(context.Context) ([]World, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]World, 0, len(s.index.Worlds))
	for _, w := range s.index.Worlds {
		out = append(out, s.namedLocked(w))
	}
	slices.SortFunc(out, func(a, b World) int {
		if c := a.Created.Compare(b.Created); c != 0 {
			return c
		}
		return strings.Compare(a.ID, b.ID)
	})
	return out, nil
}

// Remove removes a world that nothing uses, with the layers that no other world has. A
// ref that is one of several names of a world takes away that name only.
func (s *Store) Remove(ctx context.Context, ref string) error {
	s.commit.Lock()
	w, err := s.World(ctx, ref)
	var dead, more []string
	if err == nil {
		dead, err = s.forget(ref)
	}
	if err == nil {
		more, err = s.forgetMerger(w.ID)
	}
	s.commit.Unlock()
	dead = append(dead, more...)
	if err != nil {
		return err
	}
	for _, p := range dead {
		if err := os.RemoveAll(p); err != nil {
			return fmt.Errorf("remove world %s: %w", ref, err)
		}
	}
	return nil
}

// forget takes a world out of the index and moves what only it had to tmp.
func (s *Store) forget(ref string) (dead []string, err error) {
	s.mu.Lock()
	w, err := s.resolveLocked(ref)
	if err != nil {
		s.mu.Unlock()
		return nil, err
	}
	if name := s.nameLocked(ref); len(w.Names) > 1 && s.index.Names[name] == w.ID {
		delete(s.index.Names, name)
		s.mu.Unlock()
		return nil, s.save()
	}
	if s.pins[w.ID] > 0 {
		s.mu.Unlock()
		return nil, fmt.Errorf("remove world %s: %w", ref, ErrInUse)
	}
	blobs := []string{strings.TrimPrefix(w.ID, digestPrefix), s.index.manifest(w)}
	delete(s.index.Worlds, w.ID)
	delete(s.index.Used, w.ID)
	isIt := func(_, id string) bool { return id == w.ID }
	maps.DeleteFunc(s.index.Names, isIt)
	maps.DeleteFunc(s.index.Keys, isIt)
	var layers []layer
	for _, id := range w.Layers {
		if l, ok := s.index.Layers[id]; ok && !s.sharedLocked(id) {
			layers = append(layers, l)
			delete(s.index.Layers, id)
			delete(s.corrupt, id)
		}
	}
	s.mu.Unlock()
	if err := s.save(); err != nil {
		return nil, err
	}
	for _, l := range layers {
		blobs = append(blobs, l.Blob, l.Split)
		to := s.path("tmp/" + tmpPrefix + "dead-" + l.hex() + fmt.Sprintf("-%d", time.Now().UnixNano()))
		if err := os.Rename(s.layerDir(l), to); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return dead, err
		}
		dead = append(dead, to)
	}
	for _, b := range blobs {
		if b == "" {
			continue
		}
		// Moved while commit is held: a build may make the same blob right after.
		to := s.path("tmp/" + tmpPrefix + "dead-" + b + fmt.Sprintf("-%d", time.Now().UnixNano()))
		if err := os.Rename(s.path("blobs/sha256/"+b), to); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return dead, err
		}
		dead = append(dead, to)
	}
	return dead, nil
}

func (s *Store) sharedLocked(diffID string) bool {
	for _, w := range s.index.Worlds {
		if slices.Contains(w.Layers, diffID) {
			return true
		}
	}
	return false
}

var nameForm = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._/:@+-]{0,254}$`)

var hexForm = regexp.MustCompile(`^[0-9a-f]{6,64}$`)

// checkName refuses names that could be taken for an id.
func checkName(name string) error {
	if !nameForm.MatchString(name) || strings.HasPrefix(name, digestPrefix) || hexForm.MatchString(name) {
		return refuse("bad_recipe", "", "name %q: letters, digits and ._/:@+- and not the form of an id", name)
	}
	return nil
}

// point makes a name mean a world, whatever it meant before.
func (s *Store) point(name, id string) error {
	if name == "" {
		return nil
	}
	s.commit.Lock()
	defer s.commit.Unlock()
	s.mu.Lock()
	_, ok := s.index.Worlds[id]
	same := s.index.Names[name] == id
	if ok {
		s.index.Names[name] = id
	}
	s.mu.Unlock()
	if !ok {
		return &NotFoundError{Ref: id}
	}
	if same {
		return nil
	}
	return s.save()
}

// Unname takes a name away from the world that has it; the world stays. A name that is not
// there is no error.
func (s *Store) Unname(_ context.Context, name string) error {
	s.commit.Lock()
	defer s.commit.Unlock()
	s.mu.Lock()
	_, named := s.index.Names[name]
	delete(s.index.Names, name)
	s.mu.Unlock()
	if !named {
		return nil
	}
	return s.save()
}

// pin keeps a world from being removed until the answer is called.
func (s *Store) pin(ref string) (World, []layer, func(), error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w, err := s.resolveLocked(ref)
	if err != nil {
		return World{}, nil, nil, err
	}
	layers := make([]layer, 0, len(w.Layers))
	for _, id := range w.Layers {
		if s.corrupt[id] {
			return World{}, nil, nil, fmt.Errorf("world %s: layer %s: %w", shortID(w.ID), shortID(id), ErrCorrupt)
		}
		layers = append(layers, s.index.Layers[id])
	}
	s.pins[w.ID]++
	s.usedLocked(w.ID)
	return w, layers, sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.pins[w.ID]--; s.pins[w.ID] == 0 {
			delete(s.pins, w.ID)
		}
	}), nil
}
