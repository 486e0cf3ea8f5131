package overlay_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"

	"github.com/paddock-run/paddock/internal/need"
	"github.com/paddock-run/paddock/overlay"
	"github.com/paddock-run/paddock/overlay/image"
)

type header = tar.Header

// tarOf writes entries; a regular file's bytes are its Linkname.
func tarOf(t *testing.T, entries ...header) []byte {
	t.Helper()
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	for _, h := range entries {
		text := ""
		if h.Typeflag == 0 || h.Typeflag == tar.TypeReg {
			h.Typeflag, text, h.Linkname = tar.TypeReg, h.Linkname, ""
			h.Size = int64(len(text))
		}
		if h.Mode == 0 {
			h.Mode = 0o755
		}
		must(t, tw.WriteHeader(&h))
		_, err := tw.Write([]byte(text))
		must(t, err)
	}
	must(t, tw.Close())
	return buf.Bytes()
}

func file(t *testing.T, data []byte) string {
	t.Helper()
	p := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(p, data, 0o644))
	return p
}

func wantKind(t *testing.T, err error, kind string) {
	t.Helper()
	if e, ok := errors.AsType[*overlay.RecipeError](err); !ok || e.Kind != kind {
		t.Errorf("error %v, want a RecipeError of kind %s", err, kind)
	}
}

// nothingLeft fails when a refused recipe left something in the store.
func nothingLeft(t *testing.T, s *overlay.Store) {
	t.Helper()
	strays, err := s.Strays()
	list, errList := s.List(t.Context())
	if err != nil || errList != nil || len(strays) > 0 || len(list) > 0 {
		t.Errorf("left in the store: %q, %d worlds, %v, %v", strays, len(list), err, errList)
	}
}

func TestHostileTarsAreRefusedWhole(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		kind    string
		entries []header
	}{
		"dot dot":            {"outside_root", []header{{Name: "../x", Linkname: "x"}}},
		"dot dot inside":     {"outside_root", []header{{Name: "a/../../x", Linkname: "x"}}},
		"absolute":           {"invalid_path", []header{{Name: "/x", Linkname: "x"}}},
		"link climbs":        {"outside_root", []header{{Name: "a", Typeflag: tar.TypeSymlink, Linkname: "../../etc/shadow"}}},
		"hard link outside":  {"outside_root", []header{{Name: "a", Typeflag: tar.TypeLink, Linkname: "../../etc/shadow"}}},
		"hard link absolute": {"invalid_path", []header{{Name: "a", Typeflag: tar.TypeLink, Linkname: "/etc/shadow"}}},
		"hard link unknown":  {"bad_archive", []header{{Name: "a", Typeflag: tar.TypeLink, Linkname: "b"}}},
		"through own link": {"invalid_path", []header{
			{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "/host"}, {Name: "l/x", Linkname: "x"},
		}},
		"hard link through own link": {"bad_archive", []header{
			{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "/etc"}, {Name: "h", Typeflag: tar.TypeLink, Linkname: "l/shadow"},
		}},
		"below a file":   {"invalid_path", []header{{Name: "f", Linkname: "x"}, {Name: "f/x", Linkname: "x"}}},
		"duplicate":      {"duplicate_entry", []header{{Name: "f", Linkname: "x"}, {Name: "./f", Linkname: "y"}}},
		"file over link": {"duplicate_entry", []header{{Name: "f", Typeflag: tar.TypeSymlink, Linkname: "/x"}, {Name: "f", Linkname: "y"}}},
		"char":           {"unsupported_entry", []header{{Name: "d", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 5}}},
		"whiteout":       {"unsupported_entry", []header{{Name: "d", Typeflag: tar.TypeChar}}},
		"block":          {"unsupported_entry", []header{{Name: "d", Typeflag: tar.TypeBlock}}},
		"etc a link":     {"world_invalid", []header{{Name: "etc", Typeflag: tar.TypeSymlink, Linkname: "/x"}}},
		"proc a file":    {"world_invalid", []header{{Name: "proc", Linkname: "x"}}},
		"long name":      {"invalid_path", []header{{Name: strings.Repeat("n", 256), Linkname: "x"}}},
		"root a file":    {"invalid_path", []header{{Name: ".", Typeflag: tar.TypeSymlink, Linkname: "/x"}}},
		"too many":       {"world_too_large", []header{{Name: "1"}, {Name: "2"}, {Name: "3"}, {Name: "4"}, {Name: "5"}, {Name: "6"}}},
		"too large":      {"world_too_large", []header{{Name: "1", Linkname: strings.Repeat("x", 5000)}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := openStore(t, overlay.Options{Limits: overlay.Limits{Bytes: 4096, Entries: 5}})
			p := file(t, tarOf(t, c.entries...))
			_, err := s.Build(t.Context(), overlay.Recipe{Tar: p}, nil)
			wantKind(t, err, c.kind)
			nothingLeft(t, s)
		})
	}
}

// X-F12: names that delete something in an image's layer are names like others in a plain
// tar or a directory. An image cannot carry them, so that such a world is not exported.
func TestWhiteoutNamesAreLiteralButInAnImage(t *testing.T) {
	t.Parallel()
	names := map[string]string{"d": "over", ".wh.d": "literal", "sub/.wh..wh..opq": "opaque", "sub/.wh.gone": ""}
	var entries []header
	for name, text := range names {
		entries = append(entries, header{Name: name, Linkname: text})
	}
	s := openStore(t, overlay.Options{})
	base, err := s.Build(t.Context(), overlay.Recipe{Dir: tree(t, map[string]string{"d": "under", "sub/gone": "kept", "sub/other": "kept"})}, nil)
	must(t, err)
	for form, recipe := range map[string]overlay.Recipe{
		"tar": {Tar: file(t, tarOf(t, entries...))}, "directory": {Dir: tree(t, names)},
	} {
		recipe.Base = base.World.ID
		b, err := s.Build(t.Context(), recipe, nil)
		must(t, err)
		f, err := s.Fork(t.Context(), b.World.ID)
		must(t, err)
		got := mounted(t, f.Lowers(), t.TempDir(), `grep -r "" . | sort; find . -name .wh.gone`)
		f.Release()
		want := "./.wh.d:literal\n./d:over\n./sub/.wh..wh..opq:opaque\n./sub/gone:kept\n./sub/other:kept\n./sub/.wh.gone\n"
		if got != want {
			t.Errorf("%s: the world holds\n%swant\n%s", form, got, want)
		}
		must(t, s.Verify(t.Context(), b.World.ID, nil))
		var out bytes.Buffer
		wantKind(t, image.Worlds{Store: s}.Export(t.Context(), b.World.ID, &out), "unsupported_entry")
		if out.Len() > 0 {
			t.Errorf("%s: the refused export wrote %d bytes", form, out.Len())
		}
	}
	w, err := s.Add(t.Context(), imageOf(tarOf(t, header{Name: "d", Linkname: "x"}, header{Name: "kept", Linkname: "x"}), tarOf(t, header{Name: ".wh.d", Linkname: "literal"})), "", nil)
	must(t, err)
	f, err := s.Fork(t.Context(), w.ID)
	must(t, err)
	defer f.Release()
	if got := mounted(t, f.Lowers(), t.TempDir(), "ls d kept 2>/dev/null || true"); got != "kept\n" {
		t.Errorf("the image's world holds %q, want what it did not delete", got)
	}
}

// imageOf is an image of plain layers; overlay/image tests every form of one.
func imageOf(layers ...[]byte) overlay.Image {
	var img overlay.Image
	var diffIDs []string
	for _, l := range layers {
		diffIDs = append(diffIDs, fmt.Sprintf(`"sha256:%x"`, sha256.Sum256(l)))
		img.Layers = append(img.Layers, overlay.Blob{Open: func(context.Context) (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(l)), nil }})
	}
	img.Config = fmt.Appendf(nil, `{"architecture":%q,"os":"linux","rootfs":{"type":"layers","diff_ids":[%s]}}`, runtime.GOARCH, strings.Join(diffIDs, ","))
	return img
}

func TestBrokenArchivesAreRefused(t *testing.T) {
	t.Parallel()
	whole := tarOf(t, header{Name: "f", Linkname: strings.Repeat("text", 1000)})
	zip := gz(t, whole)
	for name, data := range map[string][]byte{
		"cut": whole[:2000], "gzip cut": zip[:len(zip)/2], "text": []byte(strings.Repeat("not a tar ", 200)), "gzip only": {0x1f, 0x8b},
		"zstd only": {0x28, 0xb5, 0x2f, 0xfd, 0xff},
	} {
		s := openStore(t, overlay.Options{})
		_, err := s.Build(t.Context(), overlay.Recipe{Tar: file(t, data)}, nil)
		if e, ok := errors.AsType[*overlay.RecipeError](err); !ok || e.Kind != "bad_archive" {
			t.Errorf("%s: error %v, want bad_archive", name, err)
		}
		nothingLeft(t, s)
	}
}

func TestABombEndsAtItsBound(t *testing.T) {
	t.Parallel()
	var buf bytes.Buffer
	z, err := zstd.NewWriter(&buf)
	must(t, err)
	tw := tar.NewWriter(z)
	must(t, tw.WriteHeader(&tar.Header{Name: "zeros", Mode: 0o644, Size: 1300 << 20}))
	block := make([]byte, 1<<20)
	for range 1300 {
		_, err := tw.Write(block)
		must(t, err)
	}
	must(t, errors.Join(tw.Close(), z.Close()))
	s := openStore(t, overlay.Options{})
	_, err = s.Build(t.Context(), overlay.Recipe{Tar: file(t, buf.Bytes())}, nil)
	wantKind(t, err, "world_too_large")
	nothingLeft(t, s)
}

// X-F11: what a header says is not what has to come.
func TestHeadersThatPromiseTooMuchAreRefusedWhole(t *testing.T) {
	t.Parallel()
	sparse := rawHeader("huge", 'S', 0, "\x80\x00\x00\x00\x00\x00\x00\x28\x00\x00\x00\x00") // 160 GiB of holes
	pax := append(rawHeader("pax", 'x', 64<<20, ""), make([]byte, 1<<20)...)
	name := append(rawHeader("name", 'L', 64<<20, ""), bytes.Repeat([]byte("n/"), 1<<20)...)
	for _, c := range []struct {
		name, kind string
		data       []byte
	}{
		{"a hole of 160 GiB", "world_too_large", append(sparse, make([]byte, 1024)...)},
		{"64 MiB of attributes", "bad_archive", pax},
		{"a name of 64 MiB", "bad_archive", name},
		{"600 directories deep", "world_too_large", tarOf(t, header{Name: strings.Repeat("d/", 600) + "f", Linkname: "x"})},
		{"a name of 5,000 bytes", "invalid_path", tarOf(t, header{Name: strings.Repeat("dddd/", 1000) + "f", Linkname: "x"})},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := openStore(t, overlay.Options{})
			_, err := s.Build(t.Context(), overlay.Recipe{Tar: file(t, c.data)}, nil)
			wantKind(t, err, c.kind)
			nothingLeft(t, s)
		})
	}
}

// rawHeader is a block that archive/tar would not write. realSize is of a sparse file of GNU's
// old form that has no data.
func rawHeader(name string, kind byte, size int64, realSize string) []byte {
	b := make([]byte, 512)
	copy(b, name)
	copy(b[100:], "0000644\x00")
	copy(b[108:], "0000000\x00")
	copy(b[116:], "0000000\x00")
	copy(b[124:], fmt.Sprintf("%011o\x00", size))
	copy(b[136:], "00000000000\x00")
	copy(b[148:], "        ")
	b[156] = kind
	copy(b[257:], "ustar  \x00")
	copy(b[483:], realSize)
	var sum int64
	for _, v := range b {
		sum += int64(v)
	}
	copy(b[148:], fmt.Sprintf("%06o\x00 ", sum))
	return b
}

func gz(t *testing.T, data []byte) []byte {
	t.Helper()
	var buf bytes.Buffer
	z := gzip.NewWriter(&buf)
	_, err := z.Write(data)
	must(t, errors.Join(err, z.Close()))
	return buf.Bytes()
}

func TestEveryFormOfAnArchiveAndTheDirectoryAreOneWorld(t *testing.T) {
	t.Parallel()
	s := openStore(t, overlay.Options{})
	dir := tree(t, map[string]string{"a/f": "text", "b": "->a/f"})
	must(t, os.Link(filepath.Join(dir, "a/f"), filepath.Join(dir, "z")))
	must(t, os.Chmod(filepath.Join(dir, "a"), 0o750))
	plain := tarOf(t,
		header{Name: "./", Typeflag: tar.TypeDir}, header{Name: "z", Linkname: "text", Mode: 0o644},
		header{Name: "a/f", Typeflag: tar.TypeLink, Linkname: "./z"}, header{Name: "a/", Typeflag: tar.TypeDir, Mode: 0o750},
		header{Name: "b", Typeflag: tar.TypeSymlink, Linkname: "a/f", Mode: 0o777},
	)
	enc, err := zstd.NewWriter(nil)
	must(t, err)
	ids := map[string]string{}
	for name, r := range map[string]overlay.Recipe{
		"dir": {Dir: dir}, "tar": {Tar: file(t, plain)}, "gzip": {Tar: file(t, gz(t, plain))}, "zstd": {Tar: file(t, enc.EncodeAll(plain, nil))},
	} {
		b, err := s.Build(t.Context(), r, nil)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		ids[name] = b.World.ID
	}
	if ids["dir"] != ids["tar"] || ids["tar"] != ids["gzip"] || ids["gzip"] != ids["zstd"] {
		t.Errorf("ids = %v, want one", ids)
	}
	again, err := s.Build(t.Context(), overlay.Recipe{Tar: file(t, plain)}, nil)
	if err != nil || !again.Hit {
		t.Errorf("the same archive again: hit %v, %v", again.Hit, err)
	}
	at := func(when int64, uid int) string {
		return file(t, tarOf(t, header{Name: "f", Linkname: "text", ModTime: time.Unix(when, 0), Uid: uid}))
	}
	_, err = s.Build(t.Context(), overlay.Recipe{Tar: at(1, 1)}, nil)
	must(t, err)
	other, err := s.Build(t.Context(), overlay.Recipe{Tar: at(2, 2)}, nil)
	if err != nil || !other.Hit {
		t.Errorf("other times and owners: hit %v, %v, want a hit", other.Hit, err)
	}
}

// The digest of a small world is pinned: a change of the canonical form changes the ids of
// all worlds, and must change builderVersion.
func TestCanonicalFormIsPinned(t *testing.T) {
	t.Parallel()
	s := openStore(t, overlay.Options{})
	dir := tree(t, map[string]string{"a/f": "text", "a-b": "1", "l": "->a/f", "\xff\n": "odd"})
	must(t, os.Chtimes(filepath.Join(dir, "a/f"), time.Unix(99, 0), time.Unix(99, 0)))
	must(t, os.Chown(filepath.Join(dir, "a"), 12, 13))
	b, err := s.Build(t.Context(), overlay.Recipe{Dir: dir}, nil)
	must(t, err)
	if got, want := b.World.Layers[0], "sha256:519e30f4c492857264fd330b6e687cf9f3aff70ff601f9f933800ae7ce8a822b"; got != want {
		t.Errorf("layer %s, want %s", got, want)
	}
}

func TestRecipesThatMakeNoSense(t *testing.T) {
	t.Parallel()
	s := openStore(t, overlay.Options{})
	dir := tree(t, map[string]string{"f": "f"})
	for name, c := range map[string]struct {
		kind string
		r    overlay.Recipe
	}{
		"none":        {"bad_recipe", overlay.Recipe{}},
		"two":         {"bad_recipe", overlay.Recipe{Dir: dir, Busybox: true}},
		"base of one": {"bad_recipe", overlay.Recipe{Base: "x", Busybox: true}},
		"cache":       {"bad_recipe", overlay.Recipe{Dir: dir, Cache: "maybe"}},
		"name":        {"bad_recipe", overlay.Recipe{Dir: dir, Name: "sha256:abc"}},
		"hex name":    {"bad_recipe", overlay.Recipe{Dir: dir, Name: "abcdef0123"}},
		"env":         {"bad_recipe", overlay.Recipe{Dir: dir, Config: overlay.Config{Env: []string{"=x"}}}},
		"tool":        {"bad_recipe", overlay.Recipe{Dir: dir, Config: overlay.Config{Tools: []overlay.Tool{{Name: "t"}}}}},
		"no dir":      {"not_found", overlay.Recipe{Dir: dir + "/none"}},
		"no tar":      {"not_found", overlay.Recipe{Tar: dir + "/none"}},
		"tar a dir":   {"bad_recipe", overlay.Recipe{Tar: dir}},
		"into":        {"outside_root", overlay.Recipe{Dir: dir, Into: "/a/../.."}},
		"into etc":    {"world_invalid", overlay.Recipe{Dir: tree(t, map[string]string{"tmp": "->x"})}},
		"suite":       {"bad_recipe", overlay.Recipe{Debian: &overlay.Debian{Suite: "--help"}}},
		"package":     {"bad_recipe", overlay.Recipe{Debian: &overlay.Debian{Suite: "bookworm", Packages: []string{"a,b"}}}},
	} {
		_, err := s.Build(t.Context(), c.r, nil)
		if e, ok := errors.AsType[*overlay.RecipeError](err); !ok || e.Kind != c.kind {
			t.Errorf("%s: error %v, want kind %s", name, err, c.kind)
		}
	}
	_, err := s.Build(t.Context(), overlay.Recipe{Dir: dir, Base: "nobody"}, nil)
	if _, ok := errors.AsType[*overlay.NotFoundError](err); !ok {
		t.Errorf("unknown base: %v, want a NotFoundError", err)
	}
	nothingLeft(t, s)
}

func TestADirOnABaseKeepsTheBasesDirectories(t *testing.T) {
	t.Parallel()
	s := openStore(t, overlay.Options{Busybox: need.Busybox(t)})
	base, err := s.Build(t.Context(), overlay.Recipe{Busybox: true, Name: "base"}, nil)
	must(t, err)
	b, err := s.Build(t.Context(), overlay.Recipe{
		Base: "base", Into: "/home/agent/workdir", Dir: tree(t, map[string]string{"doc": "text"}),
		Config: overlay.Config{WorkingDir: "/home/agent/workdir"},
	}, nil)
	must(t, err)
	if b.World.Layers[0] != base.World.Layers[0] || len(b.World.Layers) != 2 || len(b.World.Config.Env) != len(base.World.Config.Env) {
		t.Errorf("world %+v is not one layer more than %+v", b.World, base.World)
	}
	f, err := s.Fork(t.Context(), b.World.ID)
	must(t, err)
	defer f.Release()
	out := mounted(t, f.Lowers(), t.TempDir(), `stat -c '%n %u %a' home home/agent home/agent/workdir tmp; cat home/agent/workdir/doc`)
	if want := "home 0 755\nhome/agent 1000 755\nhome/agent/workdir 0 755\ntmp 0 1777\ntext"; out != want {
		t.Errorf("got %q, want %q", out, want)
	}
	if err := s.Remove(t.Context(), "base"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(f.Lowers()[1], "bin/busybox")); err != nil {
		t.Errorf("the base's layer went with its world: %v", err)
	}
	_, err = s.Build(t.Context(), overlay.Recipe{Base: b.World.ID, Dir: tree(t, map[string]string{"bin/sh/x": "x"})}, nil)
	wantKind(t, err, "world_invalid")
}

func TestIgnore(t *testing.T) {
	t.Parallel()
	s := openStore(t, overlay.Options{})
	b, err := s.Build(t.Context(), overlay.Recipe{
		Dir:    tree(t, map[string]string{".git/HEAD": "x", "a/.git/x": "x", "a/b.log": "x", "c.log": "x", "build/out/keep": "x", "build/out/no": "x", "build/n/o": "x"}),
		Ignore: []string{".git", "*.log", "# no", "build", "!build/out/keep"},
	}, nil)
	must(t, err)
	f, err := s.Fork(t.Context(), b.World.ID)
	must(t, err)
	defer f.Release()
	var got []string
	must(t, filepath.WalkDir(f.Lowers()[0], func(p string, d os.DirEntry, err error) error {
		if !d.IsDir() {
			got = append(got, strings.TrimPrefix(p, f.Lowers()[0]+"/"))
		}
		return err
	}))
	if diff := cmp.Diff([]string{"a/.git/x", "a/b.log", "build/out/keep"}, got); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

func TestEqualBuildsAtOneTimeAreMadeOnce(t *testing.T) {
	t.Parallel()
	s := openStore(t, overlay.Options{})
	dir := tree(t, map[string]string{"f": "f"})
	var wg sync.WaitGroup
	var mu sync.Mutex
	made, ids := 0, map[string]bool{}
	for range 16 {
		wg.Go(func() {
			b, err := s.Build(context.WithoutCancel(t.Context()), overlay.Recipe{Dir: dir}, nil)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			ids[b.World.ID] = true
			if !b.Hit {
				made++
			}
		})
	}
	wg.Wait()
	if made != 1 || len(ids) != 1 {
		t.Errorf("%d made, %d worlds, want one", made, len(ids))
	}
}

func TestVersionAndConfigMakeOtherKeys(t *testing.T) {
	t.Parallel()
	s := openStore(t, overlay.Options{})
	dir := tree(t, map[string]string{"f": "f"})
	build := func(r overlay.Recipe) overlay.Built {
		r.Dir = dir
		b, err := s.Build(t.Context(), r, nil)
		must(t, err)
		return b
	}
	first, salted, other := build(overlay.Recipe{}), build(overlay.Recipe{Version: "2"}), build(overlay.Recipe{Config: overlay.Config{User: "root"}})
	if salted.Hit || salted.World.ID != first.World.ID {
		t.Errorf("with a version: hit %v, world %s", salted.Hit, salted.World.ID)
	}
	if other.Hit || other.World.ID == first.World.ID || other.World.Layers[0] != first.World.Layers[0] {
		t.Errorf("with a user: hit %v, world %s", other.Hit, other.World.ID)
	}
	off := build(overlay.Recipe{Cache: "off", Version: "3"})
	if again := build(overlay.Recipe{Version: "3"}); off.Hit || again.Hit {
		t.Error("cache off left a key")
	}
}

func TestWorldsOutliveTheStoreAndACrashLeavesNothing(t *testing.T) {
	t.Parallel()
	need.Root(t)
	root := t.TempDir()
	s, err := overlay.Open(root, overlay.Options{})
	must(t, err)
	b, err := s.Build(t.Context(), overlay.Recipe{Dir: tree(t, map[string]string{"f": "f"}), Name: "mine"}, nil)
	must(t, err)
	must(t, s.Close())
	for _, p := range []string{"tmp/overlay-123/x", "layers/sha256/" + strings.Repeat("a", 64), "tmp/upload-1"} {
		must(t, os.MkdirAll(filepath.Join(root, p), 0o755))
	}
	s, err = overlay.Open(root, overlay.Options{})
	must(t, err)
	defer s.Close()
	if w, err := s.World(t.Context(), "mine"); err != nil || w.ID != b.World.ID {
		t.Errorf("World() = %v, %v", w, err)
	}
	if strays, err := s.Strays(); err != nil || len(strays) > 0 {
		t.Errorf("Strays() = %q, %v", strays, err)
	}
	if _, err := os.Stat(filepath.Join(root, "tmp/upload-1")); err != nil {
		t.Errorf("another's file in tmp is gone: %v", err)
	}
}

func TestVerifyFindsAChangedLayerAndARebuildHeals(t *testing.T) {
	t.Parallel()
	s := openStore(t, overlay.Options{})
	dir := tree(t, map[string]string{"f": "f"})
	b, err := s.Build(t.Context(), overlay.Recipe{Dir: dir}, nil)
	must(t, err)
	must(t, s.Verify(t.Context(), b.World.ID, nil))
	f, err := s.Fork(t.Context(), b.World.ID)
	must(t, err)
	layer := f.Lowers()[0]
	f.Release()
	must(t, os.WriteFile(filepath.Join(layer, "f"), []byte("g"), 0o644))
	if err := s.Verify(t.Context(), b.World.ID, nil); !errors.Is(err, overlay.ErrCorrupt) {
		t.Errorf("Verify() = %v, want ErrCorrupt", err)
	}
	if _, err := s.Fork(t.Context(), b.World.ID); !errors.Is(err, overlay.ErrCorrupt) {
		t.Errorf("Fork() = %v, want ErrCorrupt", err)
	}
	again, err := s.Build(t.Context(), overlay.Recipe{Dir: dir}, nil)
	if err != nil || again.Hit || again.World.ID != b.World.ID {
		t.Fatalf("Build() again = %+v, %v", again, err)
	}
	must(t, s.Verify(t.Context(), b.World.ID, nil))
}
