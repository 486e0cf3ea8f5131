package overlay_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/paddock-run/paddock/overlay"
)

// selected selects from a directory of the host.
func selected(t *testing.T, s *overlay.Store, dir string, in overlay.Selecting) (*overlay.Selection, error) {
	t.Helper()
	v, err := s.ViewDir(dir)
	must(t, err)
	t.Cleanup(v.Close)
	return v.Select(t.Context(), in, nil)
}

func digestOf(t *testing.T, s *overlay.Store, dir string, sources ...string) string {
	t.Helper()
	sel, err := selected(t, s, dir, overlay.Selecting{Sources: sources})
	must(t, err)
	return sel.Digest
}

func TestASelectionsDigestCoversContentsAndNoTimes(t *testing.T) {
	t.Parallel()
	s := openStore(t, overlay.Options{})
	files := map[string]string{"d/a": "a", "d/sub/b": "b", "d/l": "->a"}
	dir := tree(t, files)
	first := digestOf(t, s, dir, "d")
	must(t, os.Chtimes(filepath.Join(dir, "d/a"), time.Unix(5, 0), time.Unix(7, 0)))
	must(t, os.Chown(filepath.Join(dir, "d/a"), 12, 13))
	if again := digestOf(t, s, dir, "d"); again != first {
		t.Errorf("other times and owners of a host's files: digest %s, want %s", again, first)
	}
	for name, change := range map[string]func(string) error{
		"bytes":    func(d string) error { return os.WriteFile(filepath.Join(d, "d/a"), []byte("A"), 0o644) },
		"mode":     func(d string) error { return os.Chmod(filepath.Join(d, "d/a"), 0o600) },
		"one more": func(d string) error { return os.WriteFile(filepath.Join(d, "d/c"), nil, 0o644) },
		"link": func(d string) error {
			return errors.Join(os.Remove(filepath.Join(d, "d/l")), os.Symlink("b", filepath.Join(d, "d/l")))
		},
		"hard link": func(d string) error {
			return errors.Join(os.Remove(filepath.Join(d, "d/sub/b")), os.Link(filepath.Join(d, "d/a"), filepath.Join(d, "d/sub/b")))
		},
	} {
		dir := tree(t, files)
		must(t, change(dir))
		if digestOf(t, s, dir, "d") == first {
			t.Errorf("%s: the digest stayed", name)
		}
	}
}

func TestSelectRefuses(t *testing.T) {
	t.Parallel()
	s := openStore(t, overlay.Options{})
	dir := tree(t, map[string]string{"a": "a", "out": "->/etc/passwd", "up": "->../../etc/passwd", "loop": "->loop", "hidden/x": "x", "to-hidden": "->hidden"})
	skip := func(p string) (bool, bool) { return p == "hidden" || strings.HasPrefix(p, "hidden/"), true }
	for source, kind := range map[string]string{
		"none": "not_found", "n*": "not_found", "hidden/x": "not_found", "to-hidden": "not_found", "hidden/*": "not_found", "a/b": "invalid_path",
		"out": "not_found", "up": "not_found", "loop": "invalid_path", "[": "bad_recipe", "../../../etc/passwd": "not_found",
	} {
		_, err := selected(t, s, dir, overlay.Selecting{Sources: []string{source}, Skip: skip})
		if e, ok := errors.AsType[*overlay.RecipeError](err); !ok || e.Kind != kind {
			t.Errorf("%s: %v, want %s", source, err, kind)
		}
	}
}

func TestCopyRefusesWhatWouldHideAnotherType(t *testing.T) {
	t.Parallel()
	s := openStore(t, overlay.Options{})
	base, err := s.Build(t.Context(), overlay.Recipe{Dir: tree(t, map[string]string{"usr/bin/sh": "x", "bin": "->usr/bin", "dir/in": "x", "file": "x"})}, nil)
	must(t, err)
	dir := tree(t, map[string]string{"root/bin/tool": "t", "f": "f", "dir": "f", "d/file/x": "x", "d2/dir": "f"})
	for name, in := range map[string]struct{ source, dest string }{
		"a directory over a symlink": {"root", "/"}, "a file over a directory": {"dir", "/"}, "a directory over a file": {"d", "/"},
		"a directory's file over a directory": {"d2", "/"}, "below a file": {"f", "/file/x"}, "a directory to a file": {"d", "/file"},
		"a file into a file": {"f", "/file/"}, "the mount point": {"f", "/proc"},
	} {
		sel, err := selected(t, s, dir, overlay.Selecting{Sources: []string{in.source}})
		must(t, err)
		_, err = s.Copy(t.Context(), overlay.CopyInput{Base: base.World.ID, From: sel, Dest: in.dest, Owner: &overlay.Owner{}}, nil)
		if e, ok := errors.AsType[*overlay.RecipeError](err); !ok {
			t.Errorf("%s: %v (%v), want a refusal", name, err, e)
		}
	}
	if list, err := s.List(t.Context()); err != nil || len(list) != 1 {
		t.Errorf("%d worlds, %v; want the base alone", len(list), err)
	}
}

func TestCopyNoticesAFileThatChangedSinceItWasSelected(t *testing.T) {
	t.Parallel()
	s := openStore(t, overlay.Options{})
	dir := tree(t, map[string]string{"f": "before"})
	sel, err := selected(t, s, dir, overlay.Selecting{Sources: []string{"f"}})
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "f"), []byte("AFTER!"), 0o644))
	if w, err := s.Copy(t.Context(), overlay.CopyInput{From: sel, Dest: "/f", Seal: overlay.Sealed{Key: "sha256:k"}}, nil); err == nil {
		t.Errorf("made world %s of it", w.ID)
	}
	if _, ok := s.Cached("sha256:k"); ok {
		t.Error("and keeps it under the key of what it was")
	}
	nothingLeft(t, s)
}

func TestEqualCopiesAreOneLayer(t *testing.T) {
	t.Parallel()
	s := openStore(t, overlay.Options{})
	var made []string
	for i := range 2 {
		dir := tree(t, map[string]string{"d/a": "a", "d/b": "b"})
		must(t, os.Chtimes(filepath.Join(dir, "d/a"), time.Unix(int64(i), 0), time.Unix(int64(i)+1e9, 0)))
		sel, err := selected(t, s, dir, overlay.Selecting{Sources: []string{"d"}})
		must(t, err)
		w, err := s.Copy(t.Context(), overlay.CopyInput{From: sel, Dest: "/x/", Owner: &overlay.Owner{UID: 3}}, nil)
		must(t, err)
		made = append(made, w.ID)
	}
	if made[0] != made[1] {
		t.Errorf("worlds %q, want one", made)
	}
}

func TestViewFollowsLinksInsideTheTreeAlone(t *testing.T) {
	t.Parallel()
	s := openStore(t, overlay.Options{})
	b, err := s.Build(t.Context(), overlay.Recipe{Dir: tree(t, map[string]string{
		"etc/real": "inside", "etc/passwd": "->/etc/real", "up": "->etc/passwd", "dir/sub/f": "x", "to": "->/dir/sub", "loop": "->/loop", "dangling": "->/none/x",
	})}, nil)
	must(t, err)
	v, err := s.View(t.Context(), b.World.ID)
	must(t, err)
	defer v.Close()
	if text, err := v.ReadFile("/up", 100); err != nil || string(text) != "inside" {
		t.Errorf("/up: %q, %v; want the world's own file", text, err)
	}
	if _, err := v.ReadFile("/none", 100); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("/none: %v, want fs.ErrNotExist", err)
	}
	wantKindOf := map[string][2]string{
		"/": {"dir", "/"}, "/to/f": {"file", "/dir/sub/f"}, "/to/../new": {"", "/dir/new"}, "/dangling": {"", "/none/x"}, "/a/../etc": {"", "/etc"}, "/etc/": {"dir", "/etc"},
	}
	for p, want := range wantKindOf {
		kind, real, err := v.Kind(p)
		if err != nil || kind != want[0] || real != want[1] {
			t.Errorf("Kind(%s) = %q, %q, %v; want %q", p, kind, real, err, want)
		}
	}
	if _, _, err := v.Kind("/loop"); err == nil {
		t.Error("a loop has no error")
	}
	if !slices.Equal(b.World.Names, nil) {
		t.Error("named")
	}
}

func TestUnpackAndAddRefuseHostileArchives(t *testing.T) {
	t.Parallel()
	s := openStore(t, overlay.Options{})
	for name, data := range map[string][]byte{
		"through a link": tarOf(t, header{Name: "l", Typeflag: 0x32, Linkname: "/etc"}, header{Name: "l/x", Linkname: "x"}),
		"outside":        tarOf(t, header{Name: "../x", Linkname: "x"}),
		"absolute":       tarOf(t, header{Name: "/x", Linkname: "x"}),
		"a device":       tarOf(t, header{Name: "dev", Typeflag: 0x33}),
		"hard link out":  tarOf(t, header{Name: "h", Typeflag: 0x31, Linkname: "../../x"}),
	} {
		dir, drop, err := s.Scratch()
		must(t, err)
		if _, err := s.Unpack(t.Context(), strings.NewReader(string(data)), dir, nil); err == nil {
			t.Errorf("%s: was unpacked as a context", name)
		}
		drop()
		sel, err := selected(t, s, filepath.Dir(file(t, data)), overlay.Selecting{Sources: []string{"file"}})
		must(t, err)
		if _, err := s.Copy(t.Context(), overlay.CopyInput{From: sel, Dest: "/", Owner: &overlay.Owner{}, Unpack: true}, nil); err == nil {
			t.Errorf("%s: was added", name)
		}
	}
	nothingLeft(t, s)
}
