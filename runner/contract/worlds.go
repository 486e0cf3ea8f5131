package contract

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/paddock-run/paddock/overlay"
	"github.com/paddock-run/paddock/runner"
)

// WorldsUnderTest is an empty store of worlds.
type WorldsUnderTest struct {
	Worlds runner.Worlds
	// HostID is what owners in upper directories are shifted by; 0 where the test may
	// not change owners.
	HostID uint32
}

// Worlds runs the suite of runner.Worlds. Each call of open makes an empty store.
func Worlds(t *testing.T, open func(t *testing.T) WorldsUnderTest) {
	t.Helper()
	for _, c := range []struct {
		name string
		run  func(context.Context, *testing.T, WorldsUnderTest)
	}{
		{"SameContentSameWorld", sameContent},
		{"Resolve", resolve},
		{"Names", names},
		{"UnknownIsNotFound", unknownWorld},
		{"ForkPins", forkPins},
		{"Capture", captureSuite},
		{"Seal", sealSuite},
		{"ExportImport", exportImport},
		{"NameCollect", nameCollect},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			c.run(ctx, t, open(t))
		})
	}
}

func folder(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func build(ctx context.Context, t *testing.T, w runner.Worlds, r overlay.Recipe) overlay.Built {
	t.Helper()
	b, err := w.Build(ctx, r, nil)
	if err != nil {
		t.Fatalf("Build: %v", err)
	}
	return b
}

func sameContent(ctx context.Context, t *testing.T, u WorldsUnderTest) {
	files := map[string]string{"a/one": "1", "two": "22"}
	first := build(ctx, t, u.Worlds, overlay.Recipe{Dir: folder(t, files)})
	again := build(ctx, t, u.Worlds, overlay.Recipe{Dir: folder(t, files)})
	if first.Hit || !again.Hit || first.World.ID != again.World.ID {
		t.Errorf("hit %v then %v, worlds %s and %s; want one world, a hit the second time",
			first.Hit, again.Hit, first.World.ID, again.World.ID)
	}
	other := build(ctx, t, u.Worlds, overlay.Recipe{Dir: folder(t, map[string]string{"two": "x"})})
	if other.World.ID == first.World.ID {
		t.Error("other content has the same world")
	}
}

func resolve(ctx context.Context, t *testing.T, u WorldsUnderTest) {
	b := build(ctx, t, u.Worlds, overlay.Recipe{
		Dir: folder(t, map[string]string{"f": "x"}), Name: "mine:v1",
		Config: overlay.Config{WorkingDir: "/srv", Env: []string{"X=1"}},
	})
	for _, ref := range []string{b.World.ID, "mine:v1", b.World.ID[:len("sha256:")+16]} {
		w, err := u.Worlds.World(ctx, ref)
		if err != nil || w.ID != b.World.ID || w.Config.WorkingDir != "/srv" {
			t.Errorf("World(%q) = %+v, %v", ref, w, err)
		}
	}
	list, err := u.Worlds.List(ctx)
	if err != nil || len(list) != 1 {
		t.Errorf("List = %d worlds, %v; want 1", len(list), err)
	}
}

func names(ctx context.Context, t *testing.T, u WorldsUnderTest) {
	recipe := overlay.Recipe{Dir: folder(t, map[string]string{"f": "x"})}
	for _, name := range []string{"a", "b", "c"} {
		recipe.Name = name
		build(ctx, t, u.Worlds, recipe)
	}
	want := func(what string, err error, names ...string) {
		t.Helper()
		list, lerr := u.Worlds.List(ctx)
		if err != nil || lerr != nil || len(list) != 1 || !slices.Equal(list[0].Names, names) {
			t.Errorf("%s: %v, then List = %+v, %v; want one world with names %q", what, err, list, lerr, names)
		}
	}
	want("three builds", nil, "a", "b", "c")
	want("Remove of a name", u.Worlds.Remove(ctx, "b"), "a", "c")
	want("Unname", u.Worlds.Unname(ctx, "a"), "c")
	want("Unname of no name", u.Worlds.Unname(ctx, "a"), "c")
	want("Unname of the last", u.Worlds.Unname(ctx, "c"))
	if w, err := u.Worlds.World(ctx, "c"); err == nil {
		t.Errorf("World of a name that was taken away = %+v", w)
	}
}

func unknownWorld(ctx context.Context, t *testing.T, u WorldsUnderTest) {
	want := func(what string, err error) {
		t.Helper()
		if _, ok := errors.AsType[*overlay.NotFoundError](err); !ok {
			t.Errorf("%s: %v, want a NotFoundError", what, err)
		}
	}
	_, err := u.Worlds.World(ctx, "nobody")
	want("World", err)
	_, err = u.Worlds.Fork(ctx, "sha256:"+string(bytes.Repeat([]byte("0"), 64)))
	want("Fork", err)
	want("Remove", u.Worlds.Remove(ctx, "nobody"))
}

func forkPins(ctx context.Context, t *testing.T, u WorldsUnderTest) {
	b := build(ctx, t, u.Worlds, overlay.Recipe{Dir: folder(t, map[string]string{"f": "x"})})
	f, err := u.Worlds.Fork(ctx, b.World.ID)
	if err != nil {
		t.Fatal(err)
	}
	if f.World().ID != b.World.ID || len(f.Lowers()) == 0 {
		t.Errorf("fork of %s with %d layers", f.World().ID, len(f.Lowers()))
	}
	if text, err := os.ReadFile(filepath.Join(f.Lowers()[0], "f")); err != nil || string(text) != "x" {
		t.Errorf("the top layer's f = %q, %v", text, err)
	}
	if err := u.Worlds.Remove(ctx, b.World.ID); !errors.Is(err, overlay.ErrInUse) {
		t.Errorf("Remove of a forked world: %v, want ErrInUse", err)
	}
	f.Release()
	if err := u.Worlds.Remove(ctx, b.World.ID); err != nil {
		t.Errorf("Remove after Release: %v", err)
	}
}

func captureSuite(ctx context.Context, t *testing.T, u WorldsUnderTest) {
	b := build(ctx, t, u.Worlds, overlay.Recipe{Dir: folder(t, map[string]string{"d/old": "old", "same": "same"})})
	f, err := u.Worlds.Fork(ctx, b.World.ID)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Release)
	capture := func(files map[string]string, pack string) overlay.Capture {
		t.Helper()
		upper := folder(t, files)
		chownTree(t, upper, u.HostID)
		dir, err := os.Open(upper)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = dir.Close() }()
		c, err := f.Capture(ctx, overlay.CaptureInput{Upper: dir, HostID: u.HostID, Pack: pack})
		if err != nil {
			t.Fatalf("Capture: %v", err)
		}
		return c
	}
	c := capture(map[string]string{"d/new": "bytes", "d/old": "newer"}, filepath.Join(t.TempDir(), "pack"))
	kinds := map[string]overlay.ChangeKind{}
	for _, ch := range c.Changes {
		if ch.Type == "file" {
			kinds[ch.Path] = ch.Kind
		}
	}
	if kinds["/d/new"] != overlay.Created || kinds["/d/old"] != overlay.Modified || len(kinds) != 2 {
		t.Errorf("changes = %v, want /d/new created and /d/old modified", kinds)
	}
	if c.Bytes != 10 || !c.Rescorable {
		t.Errorf("bytes %d rescorable %v, want 10 and true", c.Bytes, c.Rescorable)
	}
	again := capture(map[string]string{"d/new": "bytes", "d/old": "newer"}, "")
	other := capture(map[string]string{"d/new": "other"}, "")
	if again.State != c.State || other.State == c.State || c.State == "" {
		t.Errorf("state digests %q, again %q, other %q", c.State, again.State, other.State)
	}
}

func sealSuite(ctx context.Context, t *testing.T, u WorldsUnderTest) {
	b := build(ctx, t, u.Worlds, overlay.Recipe{Dir: folder(t, map[string]string{"d/old": "old", "same": "same"})})
	f, err := u.Worlds.Fork(ctx, b.World.ID)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Release)
	upper := folder(t, map[string]string{"d/new": "bytes", "d/old": "newer"})
	chownTree(t, upper, u.HostID)
	dir, err := os.Open(upper)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = dir.Close() }()
	in := overlay.SealInput{Upper: dir, HostID: u.HostID, Config: overlay.Config{WorkingDir: "/d"}, Recipe: "branch", Name: "sealed", Branch: true}
	if err := f.Compact(ctx); err != nil {
		t.Errorf("Compact of a fork on one layer: %v", err)
	}
	w, err := f.Seal(ctx, in)
	if err != nil {
		t.Fatalf("Seal: %v", err)
	}
	again, err := f.Seal(ctx, in)
	if err != nil || again.ID != w.ID {
		t.Errorf("sealed again: %s, %v, want %s", again.ID, err, w.ID)
	}
	if w.ID == b.World.ID || w.Config.WorkingDir != "/d" {
		t.Errorf("Seal() = %+v", w)
	}
	if named, err := u.Worlds.World(ctx, "sealed"); err != nil || named.ID != w.ID {
		t.Errorf("World(sealed) = %s, %v", named.ID, err)
	}
	on, err := u.Worlds.Fork(ctx, w.ID)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(on.Release)
	for name, want := range map[string]string{"d/new": "bytes", "d/old": "newer", "same": "same"} {
		if got := firstOf(on.Lowers(), name); got != want {
			t.Errorf("%s of the sealed world = %q, want %q", name, got, want)
		}
	}
}

// firstOf reads a file as overlayfs would where no directory hides another.
func firstOf(lowers []string, name string) string {
	for _, l := range lowers {
		if text, err := os.ReadFile(filepath.Join(l, name)); err == nil {
			return string(text)
		}
	}
	return ""
}

func chownTree(t *testing.T, dir string, id uint32) {
	t.Helper()
	if id == 0 {
		return
	}
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, int(id), int(id))
	})
	if err != nil {
		t.Fatal(err)
	}
}

func exportImport(ctx context.Context, t *testing.T, u WorldsUnderTest) {
	b := build(ctx, t, u.Worlds, overlay.Recipe{Dir: folder(t, map[string]string{"f": "x"})})
	var tarball bytes.Buffer
	if err := u.Worlds.Export(ctx, b.World.ID, &tarball); err != nil {
		t.Fatalf("Export: %v", err)
	}
	if err := u.Worlds.Remove(ctx, b.World.ID); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "archive")
	if err := os.WriteFile(path, tarball.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, from := range map[string]overlay.Source{"a stream": {Stream: &tarball}, "a file": {Path: path}} {
		w, err := u.Worlds.Import(ctx, from, "back", nil)
		if err != nil || w.ID != b.World.ID {
			t.Errorf("Import of %s = %s, %v; want %s", name, w.ID, err, b.World.ID)
		}
	}
	_, err := u.Worlds.Import(ctx, overlay.Source{}, "", nil)
	if _, ok := errors.AsType[*overlay.RecipeError](err); !ok {
		t.Errorf("Import of nothing: %v, want a RecipeError", err)
	}
}

func nameCollect(ctx context.Context, t *testing.T, u WorldsUnderTest) {
	made := map[string]string{}
	for _, what := range []string{"needed", "forked", "named", "free"} {
		made[what] = build(ctx, t, u.Worlds, overlay.Recipe{Dir: folder(t, map[string]string{"f": what})}).World.ID
	}
	if w, err := u.Worlds.Name(ctx, "mine", made["named"]); err != nil || w.ID != made["named"] {
		t.Errorf("Name = %+v, %v", w, err)
	}
	if _, err := u.Worlds.Name(ctx, "mine", "nobody"); err == nil {
		t.Error("a name was given to no world")
	}
	f, err := u.Worlds.Fork(ctx, made["forked"])
	if err != nil {
		t.Fatal(err)
	}
	defer f.Release()
	in := overlay.Collection{DryRun: true, Needed: func(context.Context) ([]string, error) { return []string{made["needed"], "long gone"}, nil }}
	for _, in.DryRun = range []bool{true, false} {
		got, err := u.Worlds.Collect(ctx, in)
		if err != nil || len(got.Removed) != 1 || got.Removed[0].ID != made["free"] || got.Needed != 1 || got.InUse != 1 || got.Named != 1 {
			t.Errorf("Collect, dry %v = %+v, %v; want the free one alone to go", in.DryRun, got, err)
		}
	}
	for what, id := range made {
		if _, err := u.Worlds.World(ctx, id); (err == nil) == (what == "free") {
			t.Errorf("the world that is %s, after: %v", what, err)
		}
	}
	if _, err := u.Worlds.Collect(ctx, overlay.Collection{Needed: func(context.Context) ([]string, error) { return nil, errors.New("no record") }}); err == nil {
		t.Error("a collection that cannot know what is needed went on")
	}
}
