package image_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/paddock-run/paddock/internal/need"
	"github.com/paddock-run/paddock/overlay"
	"github.com/paddock-run/paddock/overlay/image"
)

type header = tar.Header

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

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

func dir(name string) header { return header{Name: name, Typeflag: tar.TypeDir} }

func file(name, text string) header { return header{Name: name, Linkname: text, Mode: 0o644} }

func symlink(name, to string) header {
	return header{Name: name, Typeflag: tar.TypeSymlink, Linkname: to, Mode: 0o777}
}

func link(name, to string) header {
	return header{Name: name, Typeflag: tar.TypeLink, Linkname: to}
}

func gz(t *testing.T, data []byte) []byte {
	t.Helper()
	var buf bytes.Buffer
	z := gzip.NewWriter(&buf)
	_, err := z.Write(data)
	must(t, errors.Join(err, z.Close()))
	return buf.Bytes()
}

func zst(t *testing.T, data []byte) []byte {
	t.Helper()
	enc, err := zstd.NewWriter(nil)
	must(t, err)
	return enc.EncodeAll(data, nil)
}

func digestOf(data []byte) string {
	h := sha256.Sum256(data)
	return hex.EncodeToString(h[:])
}

const gzipMedia = "application/vnd.oci.image.layer.v1.tar+gzip"

// picture is an image in the making: its layers as they come, and what the config says.
type picture struct {
	config string // the inside of the config's "config"
	diffs  []string
	blobs  [][]byte
	media  []string
}

func (p *picture) layer(plain, blob []byte, media string) {
	p.diffs = append(p.diffs, "sha256:"+digestOf(plain))
	p.blobs = append(p.blobs, blob)
	p.media = append(p.media, media)
}

// pictureOf is an image of layers that come gzipped.
func pictureOf(t *testing.T, layers ...[]byte) *picture {
	t.Helper()
	p := &picture{config: `"Env":["A=b"],"WorkingDir":"/w"`}
	for _, l := range layers {
		p.layer(l, gz(t, l), gzipMedia)
	}
	return p
}

func (p *picture) configText() []byte {
	diffs, _ := json.Marshal(p.diffs)
	if p.diffs == nil {
		diffs = []byte("[]")
	}
	return fmt.Appendf(nil, `{"architecture":"amd64","os":"linux","created":"2024-01-02T03:04:05Z","config":{%s},"rootfs":{"type":"layers","diff_ids":%s},"history":[{"created_by":"a test"}]}`, p.config, diffs)
}

// layout are the files of an OCI image layout.
func (p *picture) layout() map[string][]byte {
	files := map[string][]byte{"oci-layout": []byte(`{"imageLayoutVersion":"1.0.0"}`)}
	put := func(data []byte) string {
		files["blobs/sha256/"+digestOf(data)] = data
		return "sha256:" + digestOf(data)
	}
	descs := []string{}
	for i, b := range p.blobs {
		descs = append(descs, fmt.Sprintf(`{"mediaType":%q,"digest":%q,"size":%d}`, p.media[i], put(b), len(b)))
	}
	config := p.configText()
	manifest := fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":%q,"size":%d},"layers":[%s]}`,
		put(config), len(config), strings.Join(descs, ","))
	files["index.json"] = fmt.Appendf(nil, `{"schemaVersion":2,"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":%q,"size":%d}]}`, put(manifest), len(manifest))
	return files
}

// hybrid are the files of `docker save` since version 25: a layout and manifest.json.
func (p *picture) hybrid() map[string][]byte {
	files := p.layout()
	var layers []string
	for _, b := range p.blobs {
		layers = append(layers, "blobs/sha256/"+digestOf(b))
	}
	text, _ := json.Marshal([]map[string]any{{"Config": "blobs/sha256/" + digestOf(p.configText()), "RepoTags": []string{"app:1"}, "Layers": layers}})
	files["manifest.json"] = text
	return files
}

// old is an archive of `docker save` before version 25: a directory for each layer, where
// one that comes again is a symlink.
func (p *picture) old(t *testing.T) []byte {
	t.Helper()
	var entries []header
	var layers []string
	seen := map[string]string{}
	for i, b := range p.blobs {
		plain := unpacked(t, b)
		id := fmt.Sprintf("%064d", i)
		entries = append(entries, dir(id+"/"), file(id+"/VERSION", "1.0"), file(id+"/json", "{}"))
		if first := seen[p.diffs[i]]; first != "" {
			entries = append(entries, symlink(id+"/layer.tar", "../"+first+"/layer.tar"))
		} else {
			seen[p.diffs[i]] = id
			entries = append(entries, file(id+"/layer.tar", string(plain)))
		}
		layers = append(layers, id+"/layer.tar")
	}
	config := p.configText()
	text, _ := json.Marshal([]map[string]any{{"Config": digestOf(config) + ".json", "RepoTags": []string{"app:1"}, "Layers": layers}})
	entries = append(entries, file(digestOf(config)+".json", string(config)), file("manifest.json", string(text)), file("repositories", "{}"))
	return tarOf(t, entries...)
}

func unpacked(t *testing.T, blob []byte) []byte {
	t.Helper()
	var r io.Reader = bytes.NewReader(blob)
	switch {
	case bytes.HasPrefix(blob, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(r)
		must(t, err)
		r = z
	case bytes.HasPrefix(blob, []byte{0x28, 0xb5}):
		z, err := zstd.NewReader(r)
		must(t, err)
		defer z.Close()
		r = z
	}
	out, err := io.ReadAll(r)
	must(t, err)
	return out
}

// archive makes a tar of files, the names in order.
func archive(t *testing.T, files map[string][]byte) []byte {
	t.Helper()
	var entries []header
	for name, data := range files {
		entries = append(entries, file(name, string(data)))
	}
	slices.SortFunc(entries, func(a, b header) int { return strings.Compare(a.Name, b.Name) })
	return tarOf(t, entries...)
}

func folder(t *testing.T, files map[string][]byte) string {
	t.Helper()
	at := t.TempDir()
	for name, data := range files {
		must(t, os.MkdirAll(filepath.Join(at, filepath.Dir(name)), 0o755))
		must(t, os.WriteFile(filepath.Join(at, name), data, 0o644))
	}
	return at
}

func onDisk(t *testing.T, data []byte) string {
	t.Helper()
	p := filepath.Join(t.TempDir(), "archive")
	must(t, os.WriteFile(p, data, 0o644))
	return p
}

func openStore(t *testing.T) image.Worlds {
	t.Helper()
	need.Root(t)
	s, err := overlay.Open(filepath.Join(t.TempDir(), "store"), overlay.Options{})
	must(t, err)
	t.Cleanup(func() {
		if strays, err := s.Strays(); err != nil || len(strays) > 0 {
			t.Errorf("Strays() = %q, %v, want none", strays, err)
		}
		must(t, s.Close())
	})
	return image.Worlds{Store: s}
}

func (p *picture) into(t *testing.T, s image.Worlds) (overlay.World, error) {
	t.Helper()
	return s.Import(t.Context(), overlay.Source{Stream: bytes.NewReader(archive(t, p.layout()))}, "", nil)
}

// shown imports an image, and says what a script sees in the mounted world. The world is
// also verified, and its export gives the same diffIDs, tars and world.
func shown(t *testing.T, p *picture, script string) string {
	t.Helper()
	s := openStore(t)
	w, err := p.into(t, s)
	if err != nil {
		t.Fatalf("Import() = %v", err)
	}
	if !slices.Equal(w.Layers, p.diffs) {
		t.Errorf("layers %q, want %q", w.Layers, p.diffs)
	}
	must(t, s.Verify(t.Context(), w.ID, nil))
	comesBack(t, s, w)
	return see(t, s, w.ID, script)
}

// see runs a script in a mount of the world.
func see(t *testing.T, s image.Worlds, ref, script string) string {
	t.Helper()
	need.Overlay(t)
	f, err := s.Fork(t.Context(), ref)
	must(t, err)
	defer f.Release()
	at := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "unshare", "-m", "sh", "-ec",
		`mount -t overlay -o "redirect_dir=nofollow,metacopy=off,index=off,lowerdir=$1" overlay "$2"; cd "$2"; eval "$3"`,
		"sh", strings.Join(f.Lowers(), ":"), at, script)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("script in the world: %v\n%s", err, out)
	}
	return string(out)
}

// comesBack exports a world to a second store, and holds every layer of the export against
// its diffID.
func comesBack(t *testing.T, s image.Worlds, w overlay.World) {
	t.Helper()
	var out, again bytes.Buffer
	must(t, s.Export(t.Context(), w.ID, &out))
	other := openStore(t)
	got, err := other.Import(t.Context(), overlay.Source{Stream: bytes.NewReader(out.Bytes())}, "", nil)
	if err != nil || got.ID != w.ID {
		t.Fatalf("the export's world is %s, %v, want %s", got.ID, err, w.ID)
	}
	must(t, other.Export(t.Context(), w.ID, &again))
	if !bytes.Equal(out.Bytes(), again.Bytes()) {
		t.Error("the export of the import of the export differs")
	}
}

func wantKind(t *testing.T, err error, kind string) {
	t.Helper()
	if e, ok := errors.AsType[*overlay.RecipeError](err); !ok || e.Kind != kind {
		t.Errorf("error %v, want a RecipeError of kind %s", err, kind)
	}
}

func nothingLeft(t *testing.T, s image.Worlds) {
	t.Helper()
	strays, err := s.Strays()
	list, errList := s.List(t.Context())
	if err != nil || errList != nil || len(strays) > 0 || len(list) > 0 {
		t.Errorf("left in the store: %q, %d worlds, %v, %v", strays, len(list), err, errList)
	}
}

// Case I14: one image in every form that it comes in is one world.
func TestEveryFormOfAnImageIsOneWorld(t *testing.T) {
	t.Parallel()
	base := tarOf(t, dir("d/"), file("d/f", "text"), dir("etc/"))
	p := pictureOf(t, base, tarOf(t, file("d/g", "more")), base)
	forms := map[string]overlay.Source{
		"old docker-archive":      {Path: onDisk(t, p.old(t))},
		"old docker-archive sent": {Stream: bytes.NewReader(p.old(t))},
		"new docker-archive":      {Path: onDisk(t, archive(t, p.hybrid()))},
		"layout tar":              {Path: onDisk(t, archive(t, p.layout()))},
		"layout directory":        {Path: folder(t, p.layout())},
		"layout tar of gzip":      {Path: onDisk(t, gz(t, archive(t, p.layout())))},
		"layout tar of zstd sent": {Stream: bytes.NewReader(zst(t, archive(t, p.layout())))},
		"by name":                 {Path: onDisk(t, p.old(t)), Image: "app:1"},
	}
	want := "sha256:" + digestOf(p.configText())
	for name, from := range forms {
		t.Run(name, func(t *testing.T) {
			s := openStore(t)
			w, err := s.Import(t.Context(), from, "app", nil)
			if err != nil || w.ID != want || !slices.Equal(w.Layers, p.diffs) {
				t.Fatalf("Import() = %s, %v, want %s", w.ID, err, want)
			}
			if got := see(t, s, "app", "cat d/f d/g"); got != "textmore" {
				t.Errorf("files %q", got)
			}
			must(t, s.Verify(t.Context(), w.ID, nil))
			comesBack(t, s, w)
		})
	}
}

func TestOneOfSeveralImagesIsNamed(t *testing.T) {
	t.Parallel()
	first, second := pictureOf(t, tarOf(t, file("a", "1"))), pictureOf(t, tarOf(t, file("a", "2")))
	files := first.layout()
	maps.Copy(files, second.layout())
	m := func(p *picture, name string) string {
		var index struct{ Manifests []map[string]any }
		must(t, json.Unmarshal(p.layout()["index.json"], &index))
		index.Manifests[0]["annotations"] = map[string]string{"io.containerd.image.name": name, "org.opencontainers.image.ref.name": "1"}
		text, err := json.Marshal(index.Manifests[0])
		must(t, err)
		return string(text)
	}
	files["index.json"] = fmt.Appendf(nil, `{"schemaVersion":2,"manifests":[%s,%s,
		{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"sha256:%s","size":3,"platform":{"os":"unknown","architecture":"unknown"},"annotations":{"vnd.docker.reference.type":"attestation-manifest"}}]}`,
		m(first, "docker.io/library/first:1"), m(second, "docker.io/library/second:latest"), digestOf(nil))
	s := openStore(t)
	at := folder(t, files)
	_, err := s.Import(t.Context(), overlay.Source{Path: at}, "", nil)
	wantKind(t, err, "bad_archive")
	if err == nil || !strings.Contains(err.Error(), "docker.io/library/second:latest") {
		t.Errorf("error %v does not name the images", err)
	}
	w, err := s.Import(t.Context(), overlay.Source{Path: at, Image: "second"}, "", nil)
	if err != nil || !slices.Equal(w.Layers, second.diffs) {
		t.Errorf("Import(second) = %+v, %v", w, err)
	}
}

func TestAnIndexOfManyPlatformsGivesThisHostsImage(t *testing.T) {
	t.Parallel()
	mine := pictureOf(t, tarOf(t, file("a", "mine")))
	files := mine.layout()
	var index struct{ Manifests []map[string]any }
	must(t, json.Unmarshal(files["index.json"], &index))
	own := index.Manifests[0]
	own["platform"] = map[string]string{"os": "linux", "architecture": "amd64"}
	foreign := map[string]any{"mediaType": own["mediaType"], "digest": "sha256:" + digestOf([]byte("arm")), "size": 3, "platform": map[string]string{"os": "linux", "architecture": "arm64"}}
	newer := map[string]any{"mediaType": own["mediaType"], "digest": "sha256:" + digestOf([]byte("v3")), "size": 3, "platform": map[string]string{"os": "linux", "architecture": "amd64", "variant": "v3"}}
	attestation := map[string]any{"mediaType": own["mediaType"], "digest": "sha256:" + digestOf([]byte("att")), "size": 3, "platform": map[string]string{"os": "unknown", "architecture": "unknown"}}
	inner, err := json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": []any{foreign, newer, own, attestation}})
	must(t, err)
	files["blobs/sha256/"+digestOf(inner)] = inner
	files["index.json"] = fmt.Appendf(nil, `{"schemaVersion":2,"manifests":[{"mediaType":"application/vnd.oci.image.index.v1+json","digest":"sha256:%s","size":%d}]}`, digestOf(inner), len(inner))
	s := openStore(t)
	w, err := s.Import(t.Context(), overlay.Source{Path: folder(t, files)}, "", nil)
	if err != nil || !slices.Equal(w.Layers, mine.diffs) {
		t.Errorf("Import() = %+v, %v", w, err)
	}
}

func TestHostileImagesAreRefusedWhole(t *testing.T) {
	t.Parallel()
	ok := tarOf(t, file("f", "x"))
	edited := func(edit func(files map[string][]byte)) []byte {
		files := pictureOf(t, ok).layout()
		edit(files)
		return archive(t, files)
	}
	layers := func(layers ...[]byte) []byte { return archive(t, pictureOf(t, layers...).layout()) }
	saved := func(entries ...header) []byte { return tarOf(t, entries...) }
	lying := pictureOf(t, ok)
	lying.diffs[0] = "sha256:" + digestOf([]byte("other"))
	cut := pictureOf(t, ok)
	cut.blobs[0] = cut.blobs[0][:len(cut.blobs[0])/2]
	many := &picture{}
	for range 481 {
		many.layer(ok, ok, gzipMedia)
	}
	for name, c := range map[string]struct {
		kind  string
		image []byte
	}{
		"neither form": {"bad_archive", tarOf(t, file("x", "x"))},
		"no tar":       {"bad_archive", []byte(strings.Repeat("no tar ", 200))},
		"cut":          {"bad_archive", layers(ok)[:2000]},
		"wrong blobs": {"bad_archive", edited(func(f map[string][]byte) {
			for n := range f {
				if strings.HasPrefix(n, "blobs/") {
					f[n] = []byte("x")
				}
			}
		})},
		"bad index":                  {"bad_archive", edited(func(f map[string][]byte) { f["index.json"] = []byte("{") })},
		"no image":                   {"bad_archive", edited(func(f map[string][]byte) { f["index.json"] = []byte("{}") })},
		"schema 1":                   {"bad_archive", edited(func(f map[string][]byte) { f["index.json"] = []byte(`{"schemaVersion":1}`) })},
		"missing layer":              {"bad_archive", edited(func(f map[string][]byte) { delete(f, "blobs/sha256/"+digestOf(gz(t, ok))) })},
		"lying diffID":               {"bad_archive", archive(t, lying.layout())},
		"cut layer":                  {"bad_archive", archive(t, cut.layout())},
		"too many layers":            {"world_invalid", archive(t, many.layout())},
		"twice":                      {"duplicate_entry", tarOf(t, file("index.json", "{}"), file("./index.json", "{}"))},
		"docker, no config":          {"bad_archive", saved(file("manifest.json", `[{"Config":"x.json","Layers":[]}]`))},
		"docker, two images":         {"bad_archive", saved(file("manifest.json", `[{"Config":"x.json"},{"Config":"y.json"}]`))},
		"docker, links loop":         {"bad_archive", saved(symlink("x.json", "y.json"), symlink("y.json", "x.json"), file("manifest.json", `[{"Config":"x.json"}]`))},
		"docker, climbs":             {"bad_archive", saved(symlink("x.json", "../../../etc/passwd"), file("manifest.json", `[{"Config":"x.json"}]`))},
		"high owner":                 {"world_invalid", layers(tarOf(t, header{Name: "f", Linkname: "x", Uid: 65536}))},
		"device":                     {"unsupported_entry", layers(tarOf(t, header{Name: "d", Typeflag: tar.TypeChar}))},
		"dot dot":                    {"outside_root", layers(tarOf(t, file("../x", "x")))},
		"absolute":                   {"invalid_path", layers(tarOf(t, file("/x", "x")))},
		"whiteout of dot dot":        {"invalid_path", layers(tarOf(t, header{Name: "a/.wh..."}))},
		"hard link to nothing":       {"bad_archive", layers(tarOf(t, link("a", "b")))},
		"hard link to a symlink out": {"bad_archive", layers(tarOf(t, symlink("l", "/etc")), tarOf(t, link("a", "l/passwd")))},
		"dev a link":                 {"world_invalid", layers(tarOf(t, symlink("dev", "/x")))},
		"proc a link":                {"world_invalid", layers(tarOf(t, symlink("proc", "/x")))},
		"sys a file":                 {"world_invalid", layers(tarOf(t, file("sys", "x")))},
		"etc a link":                 {"world_invalid", layers(tarOf(t, dir("etc")), tarOf(t, symlink("etc", "/x")))},
		"etc whited out":             {"world_invalid", layers(tarOf(t, header{Name: ".wh.etc"}))},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := openStore(t)
			_, err := s.Import(t.Context(), overlay.Source{Stream: bytes.NewReader(c.image)}, "", nil)
			wantKind(t, err, c.kind)
			nothingLeft(t, s)
		})
	}
}

// The owner that a sandbox has no id for is named with its path.
func TestAnOwnerAboveTheMapIsNamed(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	_, err := pictureOf(t, tarOf(t, header{Name: "opt/app", Linkname: "x", Uid: 100000, Gid: 7})).into(t, s)
	if err == nil || !strings.Contains(err.Error(), `"opt/app"`) || !strings.Contains(err.Error(), "100000:7") {
		t.Errorf("error %v names neither path nor id", err)
	}
}
