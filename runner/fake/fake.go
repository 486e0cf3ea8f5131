// Package fake has an in-memory launcher and store of worlds for tests of what stands on
// them. They pass runner/contract's suites without any right: a "process" is a goroutine
// that knows a handful of commands, a sandbox's tree is a directory over directories.
// Nothing is isolated, and users, limits, modes of directories and links are not looked at.
package fake

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/paddock-run/paddock/overlay"
	"github.com/paddock-run/paddock/runner"
)

// Worlds is a store of worlds in one directory.
type Worlds struct {
	root string

	mu    sync.Mutex
	byID  map[string]*world
	names map[string]string
	// Damaged worlds fail to fork, as a layer that does not match its digest does.
	damaged map[string]bool
}

type world struct {
	overlay.World
	layers []string // directories, the topmost first
	forks  int
}

// NewWorlds returns an empty store below dir.
func NewWorlds(dir string) *Worlds {
	return &Worlds{root: dir, byID: map[string]*world{}, names: map[string]string{}, damaged: map[string]bool{}}
}

var _ runner.Worlds = (*Worlds)(nil)

// Damage makes later forks of a world fail with overlay.ErrCorrupt, or heals it.
func (w *Worlds) Damage(id string, damaged bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.damaged[id] = damaged
}

// World resolves an id, a unique prefix of one, or a name.
func (w *Worlds) World(_ context.Context, ref string) (overlay.World, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	got, err := w.findLocked(ref)
	if err != nil {
		return overlay.World{}, err
	}
	return w.namedLocked(got), nil
}

func (w *Worlds) namedLocked(one *world) overlay.World {
	out := one.World
	out.Names = w.namesLocked(one.ID)
	return out
}

func (w *Worlds) namesLocked(id string) []string {
	var names []string
	for name, of := range w.names {
		if of == id {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func (w *Worlds) findLocked(ref string) (*world, error) {
	if id, ok := w.names[ref]; ok {
		return w.byID[id], nil
	}
	var found *world
	for id, one := range w.byID {
		if id == ref || (len(ref) > len("sha256:")+4 && strings.HasPrefix(id, ref)) {
			found = one
		}
	}
	if found == nil {
		return nil, &overlay.NotFoundError{Ref: ref}
	}
	return found, nil
}

// Unname takes a name away; the world stays.
func (w *Worlds) Unname(_ context.Context, name string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.names, name)
	return nil
}

// List lists the worlds.
func (w *Worlds) List(context.Context) ([]overlay.World, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []overlay.World
	for _, id := range slices.Sorted(maps.Keys(w.byID)) {
		out = append(out, w.namedLocked(w.byID[id]))
	}
	return out, nil
}

// Build copies a directory, or makes the fake busybox: the files that the contract's
// suites and the runner look for.
func (w *Worlds) Build(_ context.Context, r overlay.Recipe, _ overlay.Progress) (overlay.Built, error) {
	files := map[string][]byte{}
	switch {
	case r.Busybox:
		files["etc/passwd"] = []byte("root:x:0:0:root:/root:/bin/sh\nagent:x:1000:1000::/home/agent:/bin/sh\n")
		files["etc/group"] = []byte("root:x:0:\nagent:x:1000:\n")
		files["tmp/"] = nil
	case r.Dir != "":
		if err := readTree(r.Dir, files); err != nil {
			return overlay.Built{}, &overlay.RecipeError{Kind: "not_found", Path: r.Dir, Detail: err.Error()}
		}
	default:
		return overlay.Built{}, &overlay.RecipeError{Kind: "bad_recipe", Detail: "the fake builds only dir and busybox"}
	}
	return w.put(files, r.Config, r.Base, r.Name)
}

func readTree(dir string, into map[string][]byte) error {
	return fs.WalkDir(os.DirFS(dir), ".", func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && p != ".":
			into[p+"/"] = nil
		case d.Type().IsRegular():
			text, err := os.ReadFile(filepath.Join(dir, p))
			into[p] = text
			return err
		}
		return nil
	})
}

// sealed is what a world's id is the hash of, and what Export writes.
type sealed struct {
	Base   string
	Config overlay.Config
	Files  map[string][]byte
}

func (w *Worlds) put(files map[string][]byte, cfg overlay.Config, base, name string) (overlay.Built, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var below []string
	if base != "" {
		b, err := w.findLocked(base)
		if err != nil {
			return overlay.Built{}, err
		}
		below, base = b.layers, b.ID
	}
	raw, err := json.Marshal(sealed{base, cfg, files})
	if err != nil {
		return overlay.Built{}, err
	}
	id := hash(raw)
	if name != "" {
		w.names[name] = id
	}
	if known, ok := w.byID[id]; ok {
		return overlay.Built{World: w.namedLocked(known), Hit: true}, nil
	}
	dir := filepath.Join(w.root, strings.TrimPrefix(id, "sha256:"))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return overlay.Built{}, err
	}
	var size int64
	for p, text := range files {
		size += int64(len(text))
		if err := putFile(dir, p, text); err != nil {
			return overlay.Built{}, err
		}
	}
	made := &world{layers: append([]string{dir}, below...)}
	made.World = overlay.World{ID: id, Layers: []string{id}, Config: cfg, SizeBytes: size, Entries: int64(len(files)), Created: time.Now()}
	w.byID[id] = made
	return overlay.Built{World: w.namedLocked(made)}, nil
}

func putFile(dir, p string, text []byte) error {
	at := filepath.Join(dir, p)
	if strings.HasSuffix(p, "/") {
		return os.MkdirAll(at, 0o755)
	}
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		return err
	}
	return os.WriteFile(at, text, 0o644)
}

func hash(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Remove removes a world that no fork stands on.
func (w *Worlds) Remove(_ context.Context, ref string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	found, err := w.findLocked(ref)
	if err != nil {
		return err
	}
	if _, named := w.names[ref]; named && len(w.namesLocked(found.ID)) > 1 {
		delete(w.names, ref)
		return nil
	}
	if found.forks > 0 {
		return overlay.ErrInUse
	}
	delete(w.byID, found.ID)
	maps.DeleteFunc(w.names, func(_, id string) bool { return id == found.ID })
	return os.RemoveAll(found.layers[0])
}

// Name points a name at a world.
func (w *Worlds) Name(_ context.Context, name, ref string) (overlay.World, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	found, err := w.findLocked(ref)
	if err != nil {
		return overlay.World{}, err
	}
	w.names[name] = found.ID
	return found.World, nil
}

// Collect removes what nothing needs.
func (w *Worlds) Collect(ctx context.Context, in overlay.Collection) (overlay.Collected, error) {
	var out overlay.Collected
	needed, err := in.Needed(ctx)
	if err != nil {
		return out, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, found := range w.byID {
		switch {
		case slices.Contains(needed, id):
			out.Needed++
		case found.forks > 0:
			out.InUse++
		case !in.All && slices.Contains(slices.Collect(maps.Values(w.names)), id):
			out.Named++
		default:
			out.Removed = append(out.Removed, found.World)
			if !in.DryRun {
				delete(w.byID, id)
				maps.DeleteFunc(w.names, func(_, of string) bool { return of == id })
			}
		}
	}
	return out, nil
}

// Push reaches no registry.
func (w *Worlds) Push(_ context.Context, _ string, to overlay.Remote, _ overlay.Progress) (string, error) {
	return "", &overlay.RegistryError{Kind: overlay.RegistryUnavailable, Ref: to.Ref, Detail: "this store reaches no registry"}
}

// Export writes the fake's own form of a world.
func (w *Worlds) Export(_ context.Context, ref string, out io.Writer) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	found, err := w.findLocked(ref)
	if err != nil {
		return err
	}
	files := map[string][]byte{}
	if err := readTree(found.layers[0], files); err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(sealed{Config: found.Config, Files: files})
}

// Import reads what Export wrote.
func (w *Worlds) Import(_ context.Context, from overlay.Source, name string, _ overlay.Progress) (overlay.World, error) {
	if err := from.Check(); err != nil {
		return overlay.World{}, err
	}
	r := from.Stream
	if from.Path != "" {
		f, err := os.Open(from.Path)
		if err != nil {
			return overlay.World{}, &overlay.RecipeError{Kind: "not_found", Path: from.Path}
		}
		defer func() { _ = f.Close() }()
		r = f
	}
	if r == nil {
		return overlay.World{}, &overlay.RecipeError{Kind: "not_found", Detail: "this store reaches no registry"}
	}
	var s sealed
	if err := json.NewDecoder(r).Decode(&s); err != nil {
		return overlay.World{}, &overlay.RecipeError{Kind: "bad_archive", Detail: err.Error()}
	}
	b, err := w.put(s.Files, s.Config, "", name)
	return b.World, err
}

// Fork pins a world.
func (w *Worlds) Fork(_ context.Context, id string) (runner.Fork, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	found, err := w.findLocked(id)
	if err != nil {
		return nil, err
	}
	if w.damaged[found.ID] {
		return nil, overlay.ErrCorrupt
	}
	found.forks++
	return &fork{w: w, of: found}, nil
}

type fork struct {
	w    *Worlds
	of   *world
	once sync.Once
}

func (f *fork) World() overlay.World { return f.of.World }
func (f *fork) Lowers() []string     { return slices.Clone(f.of.layers) }

func (f *fork) Release() {
	f.once.Do(func() {
		f.w.mu.Lock()
		defer f.w.mu.Unlock()
		f.of.forks--
	})
}

// Capture walks the upper directory.
func (f *fork) Capture(_ context.Context, in overlay.CaptureInput) (overlay.Capture, error) {
	c := overlay.Capture{Rescorable: true}
	files := map[string][]byte{}
	if err := readTree(in.Upper.Name(), files); err != nil {
		return c, err
	}
	for _, p := range slices.Sorted(maps.Keys(files)) {
		ch := overlay.Change{Path: "/" + strings.TrimSuffix(p, "/"), Kind: overlay.Created, Type: "file", Mode: 0o644, Size: int64(len(files[p])), Offset: c.Stored}
		if dir, base := path.Split(p); strings.HasPrefix(base, whiteout) {
			ch = overlay.Change{Path: "/" + dir + strings.TrimPrefix(base, whiteout), Kind: overlay.Deleted, Offset: -1}
			c.Changes = append(c.Changes, ch)
			continue
		}
		known := slices.ContainsFunc(f.of.layers, func(l string) bool { _, err := os.Lstat(filepath.Join(l, p)); return err == nil })
		switch {
		case strings.HasSuffix(p, "/") && known:
			continue // a directory that was only copied up
		case strings.HasSuffix(p, "/"):
			ch.Type, ch.Mode, ch.Offset = "dir", 0o755, -1
		case known:
			ch.Kind = overlay.Modified
		}
		if ch.Type == "file" {
			ch.SHA256 = strings.TrimPrefix(hash(files[p]), "sha256:")
			c.Bytes += ch.Size
			c.Stored += ch.Size
		}
		c.Changes = append(c.Changes, ch)
	}
	raw, err := json.Marshal(files)
	if err != nil {
		return c, err
	}
	c.State, c.StateFull = hash(raw), hash(raw)
	if in.Pack != "" {
		err = os.WriteFile(in.Pack, raw, 0o600)
	}
	return c, err
}

// Restore makes a capture again.
func (f *fork) Restore(_ context.Context, _ overlay.Capture, pack string, dir *os.File, _ uint32) error {
	raw, err := os.ReadFile(pack)
	if err != nil {
		return err
	}
	files := map[string][]byte{}
	if err := json.Unmarshal(raw, &files); err != nil {
		return err
	}
	for p, text := range files {
		if err := putFile(dir.Name(), p, text); err != nil {
			return err
		}
	}
	return nil
}

// Seal makes a world of what the upper directory has.
func (f *fork) Seal(_ context.Context, in overlay.SealInput) (overlay.World, error) {
	files := map[string][]byte{}
	if err := readTree(in.Upper.Name(), files); err != nil {
		return overlay.World{}, err
	}
	b, err := f.w.put(files, in.Config, f.of.ID, in.Name)
	return b.World, err
}

// Compact has nothing to do: a world is one layer.
func (f *fork) Compact(context.Context) error { return nil }

// Track compares the upper directory with what it was.
func (f *fork) Track(upper *os.File, _ uint32) runner.Tracker {
	return &tracker{dir: upper.Name(), seen: map[string]string{}}
}

type tracker struct {
	dir  string
	seen map[string]string
}

func (t *tracker) Changes(_ context.Context, max int) (changes []overlay.Change, more bool, err error) {
	files := map[string][]byte{}
	if err := readTree(t.dir, files); err != nil {
		return nil, false, err
	}
	for _, p := range slices.Sorted(maps.Keys(files)) {
		sum := hash(files[p])
		if t.seen[p] == sum {
			continue
		}
		if len(changes) == max {
			return changes, true, nil
		}
		kind := overlay.Modified
		if _, ok := t.seen[p]; !ok {
			kind = overlay.Created
		}
		t.seen[p] = sum
		changes = append(changes, overlay.Change{Path: "/" + p, Kind: kind, Type: "file", Size: int64(len(files[p]))})
	}
	return changes, false, nil
}

// whiteout begins the name of a file that says that another one was deleted.
const whiteout = ".wh."

// entryHeader is a tar entry's header for a file or directory.
func entryHeader(name string, info fs.FileInfo) *tar.Header {
	h := &tar.Header{Name: name, Mode: int64(info.Mode().Perm()), Typeflag: tar.TypeReg, Size: info.Size()}
	if info.IsDir() {
		h.Typeflag, h.Size, h.Name = tar.TypeDir, 0, name+"/"
	}
	return h
}
