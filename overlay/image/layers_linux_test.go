package image_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paddock-run/paddock/overlay"
)

// The cases are those of docs/proof.md: images and layers.
func TestLayersAreAppliedInOrder(t *testing.T) {
	t.Parallel()
	whiteout := func(name string) header { return header{Name: name, Mode: 0o600} }
	for name, c := range map[string]struct {
		layers [][]header
		script string
		want   string
	}{
		"I01 opaque": {
			[][]header{{file("a/b/foo", "x")}, {dir("a/"), whiteout("a/.wh..wh..opq")}},
			"find a", "a\n",
		},
		"I01 opaque after what it keeps": {
			[][]header{{file("a/old", "x")}, {dir("a/"), file("a/new", "y"), whiteout("a/.wh..wh..opq")}},
			"find a | sort", "a\na/new\n",
		},
		"I03 file then its whiteout": {
			[][]header{{file("f", "1")}, {file("f", "2"), whiteout(".wh.f")}}, "cat f", "2",
		},
		"I03 whiteout then the file": {
			[][]header{{file("f", "1")}, {whiteout(".wh.f"), file("f", "2")}}, "cat f", "2",
		},
		"I03 directory then its whiteout": {
			[][]header{{file("d/old", "1")}, {dir("d"), file("d/new", "2"), whiteout(".wh.d")}}, "find d | sort", "d\nd/new\n",
		},
		"a whiteout of a directory": {
			[][]header{{file("d/x", "1"), file("k", "")}, {whiteout(".wh.d")}}, "find d k 2>/dev/null || true", "k\n",
		},
		"I04 the link outlives its target": {
			[][]header{{file("t1", "text"), link("t2", "t1")}, {whiteout(".wh.t1")}}, "cat t2; find . -name t1", "text",
		},
		"I04 a link to a file of a lower layer": {
			[][]header{{{Name: "d/t1", Linkname: "text", Uid: 5, Mode: 0o4755}}, {link("e/t2", "d/t1")}},
			"cat d/t1 e/t2; stat -c ' %u %a %h' e/t2", "texttext 5 4755 2\n",
		},
		"I07 a directory twice": {
			[][]header{{{Name: "d", Typeflag: tar.TypeDir, Mode: 0o700, ModTime: time.Unix(5, 0)}, file("d/f", "x"), {Name: "d/", Typeflag: tar.TypeDir, Mode: 0o750, Uid: 3, ModTime: time.Unix(9, 0)}}},
			"stat -c '%u %a %Y' d; cat d/f", "3 750 9\nx",
		},
		"I07 a file twice": {[][]header{{file("f", "1"), file("f", "2")}}, "cat f", "2"},
		"I07 a directory after a file": {
			[][]header{{file("p", "1"), dir("p"), file("p/q", "2")}}, "cat p/q", "2",
		},
		"I07 a file after a directory": {
			[][]header{{dir("p"), file("p/q", "1"), dir("p/r"), file("p", "2")}}, "cat p", "2",
		},
		"I07 a file after the symlink of its name": {
			[][]header{{file("t", "1"), symlink("p", "t"), file("p", "2")}}, "cat t p", "12",
		},
		"I09 below what was a file": {
			[][]header{{file("p", "1")}, {file("p/q", "2")}}, "cat p/q; find p | sort", "2p\np/q\n",
		},
		"I09 below a file of the same layer": {
			[][]header{{file("p", "1"), file("p/q", "2")}}, "cat p/q", "2",
		},
		"I09 below what was a symlink": {
			[][]header{{symlink("p", "/etc"), file("etc/x", "x")}, {file("p/q", "2")}}, "cat p/q; find etc/q 2>/dev/null || echo none", "2none\n",
		},
		"I09 below a symlink of the same layer": {
			[][]header{{symlink("p", "/etc"), file("p/q", "2")}}, "cat p/q; find etc/q 2>/dev/null || echo none", "2none\n",
		},
		"a directory becomes a file": {
			[][]header{{file("p/q", "1")}, {file("p", "2")}}, "cat p", "2",
		},
		"a file becomes a symlink": {
			[][]header{{file("p", "1"), file("t", "3")}, {symlink("p", "t")}}, "readlink p; cat p", "t\n3",
		},
		"an implied directory is as below": {
			[][]header{{{Name: "home/u", Typeflag: tar.TypeDir, Mode: 0o700, Uid: 7, Gid: 8}}, {file("home/u/f", "x")}},
			"stat -c '%u %g %a' home/u", "7 8 700\n",
		},
		"set-id bits and owners": {
			[][]header{{{Name: "s", Linkname: "x", Mode: 0o6755, Uid: 9, Gid: 65535}, {Name: "t", Typeflag: tar.TypeDir, Mode: 0o1777}}},
			"stat -c '%u %g %a' s t", "9 65535 6755\n0 0 1777\n",
		},
		"an empty file and a hole and a fifo": {
			[][]header{{file("e", ""), file("z", strings.Repeat("\x00", 300000)+"end"), {Name: "p", Typeflag: tar.TypeFifo, Mode: 0o600}}},
			"stat -c '%s %F' e z p", "0 regular empty file\n300003 regular file\n0 fifo\n",
		},
		"large files replaced and linked at once": {
			[][]header{{
				file("f", strings.Repeat("a", 1<<20)), file("f", strings.Repeat("b", 600000)), link("g", "f"),
				file("f", strings.Repeat("c", 300001)),
				{Name: "r", Linkname: "x", Mode: 0o444, Uid: 5},
				{Name: "n", Mode: 0o1, Gid: 6},
				{Name: "w", Mode: 0o666}, // more than a umask leaves
			}},
			"tr -d c <f | wc -c; tr -d b <g | wc -c; stat -c '%s %h %u %g %a' f g r n w",
			"0\n0\n300001 1 0 0 644\n600000 1 0 0 644\n1 1 5 0 444\n0 1 0 6 1\n0 1 0 0 666\n",
		},
		"a directory that gives its group": {
			[][]header{{{Name: "d", Typeflag: tar.TypeDir, Mode: 0o2775, Gid: 7}, file("d/f", "x"), {Name: "d/g", Gid: 7, Mode: 0o2750}}},
			"stat -c '%g %a' d d/f d/g", "7 2775\n0 644\n7 2750\n",
		},
		"a device in /dev is left out": {
			[][]header{{dir("dev"), {Name: "dev/null", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}, file("f", "x")}}, "find dev", "dev\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var layers [][]byte
			for _, l := range c.layers {
				layers = append(layers, tarOf(t, l...))
			}
			if got := shown(t, pictureOf(t, layers...), c.script); got != c.want {
				t.Errorf("the world shows %q, want %q", got, c.want)
			}
		})
	}
}

// Case I12: attributes are kept, or the import says that they are not.
func TestAttributesAreKeptOrNamed(t *testing.T) {
	t.Parallel()
	capability := string([]byte{1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}) // cap_net_bind_service
	p := pictureOf(t, tarOf(t, header{Name: "bin/p", Linkname: "x", PAXRecords: map[string]string{
		"SCHILY.xattr.security.capability":      capability,
		"SCHILY.xattr.user.x":                   "kept",
		"SCHILY.xattr.system.posix_acl_access":  "acl",
		"SCHILY.xattr.trusted.overlay.opaque":   "y",
		"SCHILY.xattr.trusted.overlay.redirect": "/etc",
	}}))
	s := openStore(t)
	w, err := p.into(t, s)
	must(t, err)
	f, err := s.Fork(t.Context(), w.ID)
	must(t, err)
	defer f.Release()
	at := filepath.Join(f.Lowers()[0], "bin/p")
	for name, want := range map[string]string{"security.capability": capability, "user.x": "kept"} {
		buf := make([]byte, 100)
		n, err := unix.Lgetxattr(at, name, buf)
		if err != nil || string(buf[:n]) != want {
			t.Errorf("%s = %q, %v", name, buf[:max(n, 0)], err)
		}
	}
	if n, err := unix.Lgetxattr(at, "trusted.overlay.redirect", nil); err == nil {
		t.Errorf("an attribute that steers overlayfs came in: %d bytes", n)
	}
	slices.Sort(w.Dropped)
	want := []string{"/bin/p: attribute system.posix_acl_access", "/bin/p: attribute trusted.overlay.opaque", "/bin/p: attribute trusted.overlay.redirect"}
	if !slices.Equal(w.Dropped, want) {
		t.Errorf("dropped %q, want %q", w.Dropped, want)
	}
	must(t, s.Verify(t.Context(), w.ID, nil))
	comesBack(t, s, w)
	must(t, unix.Lsetxattr(at, "user.x", []byte("else"), 0))
	if err := s.Verify(t.Context(), w.ID, nil); err == nil {
		t.Error("Verify() sees no changed attribute")
	}
}

// Case I17: a layer's content says how it is compressed.
func TestContentDecidesTheCompression(t *testing.T) {
	t.Parallel()
	l := tarOf(t, file("f", strings.Repeat("text", 100)))
	skippable := append([]byte{0x50, 0x2a, 0x4d, 0x18, 4, 0, 0, 0, 1, 2, 3, 4}, zst(t, l)...)
	for name, c := range map[string]struct {
		blob  []byte
		media string
	}{
		"gzip":                         {gz(t, l), gzipMedia},
		"zstd":                         {zst(t, l), "application/vnd.oci.image.layer.v1.tar+zstd"},
		"plain":                        {l, "application/vnd.oci.image.layer.v1.tar"},
		"zstd called gzip":             {zst(t, l), gzipMedia},
		"docker's zstd":                {zst(t, l), "application/vnd.docker.image.rootfs.diff.tar.zstd"},
		"plain called gzip":            {l, "application/vnd.docker.image.rootfs.diff.tar.gzip"},
		"gzip of two members":          {append(gz(t, l[:700]), gz(t, l[700:])...), gzipMedia},
		"zstd of two frames":           {append(zst(t, l[:700]), zst(t, l[700:])...), gzipMedia},
		"zstd after a skippable frame": {skippable, gzipMedia},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := &picture{}
			p.layer(l, c.blob, c.media)
			p.layer(tarOf(t, file("g", "")), gz(t, tarOf(t, file("g", ""))), gzipMedia)
			if got := shown(t, p, "wc -c <f; find g"); got != "400\ng\n" {
				t.Errorf("the world shows %q", got)
			}
		})
	}
}

// Case I18: any number of layers up to the bound works; beyond, the import says the number.
func TestManyLayersWork(t *testing.T) {
	t.Parallel()
	for _, n := range []int{60, 122, 127, 128, 300, 480} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			p := &picture{}
			for i := range n {
				l := tarOf(t, file(fmt.Sprintf("f%d", i), ""), file("last", fmt.Sprint(i)))
				p.layer(l, l, "")
			}
			s := openStore(t)
			w, err := p.into(t, s)
			must(t, err)
			f, err := s.Fork(t.Context(), w.ID)
			must(t, err)
			defer f.Release()
			if got := len(f.Lowers()); len(w.Layers) != n || (n <= 128 && got != n+1) || got > 129 {
				t.Errorf("the world has %d layers, its fork %d lower directories", len(w.Layers), got)
			}
			if n <= 128 {
				return
			}
			if got, want := see(t, s, w.ID, "ls -d f* | wc -l; cat last"), fmt.Sprintf("%d\n%d", n, n-1); got != want {
				t.Errorf("the fork shows %q, want %q", got, want)
			}
		})
	}
	over := &picture{diffs: slices.Repeat([]string{"sha256:" + digestOf(nil)}, 481), blobs: slices.Repeat([][]byte{{}}, 481), media: make([]string, 481)}
	_, err := over.into(t, openStore(t))
	if err == nil || !strings.Contains(err.Error(), "481 layers; at most 480") {
		t.Errorf("481 layers: %v", err)
	}
}

// Layers are shared: a second image with the same base opens and keeps only its own.
func TestImagesShareTheirLayers(t *testing.T) {
	t.Parallel()
	base := tarOf(t, file("base", strings.Repeat("b", 1<<20)))
	first, second := pictureOf(t, base, tarOf(t, file("one", "1"))), pictureOf(t, base, tarOf(t, file("two", "2")))
	s := openStore(t)
	a, err := first.into(t, s)
	must(t, err)
	files := second.layout()
	delete(files, "blobs/sha256/"+digestOf(second.blobs[0])) // it is not needed any more
	b, err := s.Import(t.Context(), overlay.Source{Path: folder(t, files)}, "", nil)
	must(t, err)
	if a.Layers[0] != b.Layers[0] || a.ID == b.ID {
		t.Errorf("worlds %+v and %+v", a, b)
	}
	must(t, s.Remove(t.Context(), a.ID))
	must(t, s.Verify(t.Context(), b.ID, nil))
	if got := see(t, s, b.ID, "wc -c <base; cat two"); got != "1048576\n2" {
		t.Errorf("after the first world went, the second shows %q", got)
	}
}

func TestOneLayerThatManyImportsBringIsUnpackedOnce(t *testing.T) {
	t.Parallel()
	base := tarOf(t, file("base", strings.Repeat("b", 8<<20)))
	s := openStore(t)
	var mu sync.Mutex
	opened := 0
	var wg sync.WaitGroup
	for i := range 8 {
		p := &picture{}
		own := tarOf(t, file("own", fmt.Sprint(i)))
		p.layer(base, base, "")
		p.layer(own, own, "")
		img := overlay.Image{Config: p.configText(), Origin: "test"}
		for j, blob := range p.blobs {
			img.Layers = append(img.Layers, overlay.Blob{Open: counting(&mu, &opened, j == 0, blob)})
		}
		wg.Go(func() {
			if _, err := s.Add(t.Context(), img, "", nil); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if opened != 1 {
		t.Errorf("the shared layer was unpacked %d times, want once", opened)
	}
	list, err := s.List(t.Context())
	if err != nil || len(list) != 8 {
		t.Errorf("%d worlds, %v", len(list), err)
	}
}

// counting gives a blob and counts, where asked, how often it is opened.
func counting(mu *sync.Mutex, n *int, count bool, blob []byte) func(context.Context) (io.ReadCloser, error) {
	return func(context.Context) (io.ReadCloser, error) {
		if count {
			mu.Lock()
			*n++
			mu.Unlock()
		}
		return io.NopCloser(bytes.NewReader(blob)), nil
	}
}

func TestVerifyFindsAChangedFileOfAnImportAndAnImportHeals(t *testing.T) {
	t.Parallel()
	p := pictureOf(t, tarOf(t, file("f", "text"), file("g", "text")))
	for name, damage := range map[string]func(string) error{
		"bytes": func(at string) error { return os.WriteFile(at+"/f", []byte("tixt"), 0o644) },
		"mode":  func(at string) error { return os.Chmod(at+"/f", 0o600) },
		"gone":  func(at string) error { return os.Remove(at + "/f") },
		"more":  func(at string) error { return os.WriteFile(at+"/h", nil, 0o644) },
	} {
		t.Run(name, func(t *testing.T) {
			s := openStore(t)
			w, err := p.into(t, s)
			must(t, err)
			f, err := s.Fork(t.Context(), w.ID)
			must(t, err)
			at := f.Lowers()[0]
			f.Release()
			info, err := os.Stat(at + "/f")
			must(t, err)
			must(t, damage(at))
			if name == "bytes" {
				must(t, os.Chtimes(at+"/f", info.ModTime(), info.ModTime()))
			}
			if err := s.Verify(t.Context(), w.ID, nil); err == nil {
				t.Fatal("Verify() = nil")
			}
			if _, err := s.Fork(t.Context(), w.ID); err == nil {
				t.Error("a condemned world was forked")
			}
			_, err = p.into(t, s)
			must(t, err)
			must(t, s.Verify(t.Context(), w.ID, nil))
		})
	}
}

func TestAnExportIsForDockerLoadAsWell(t *testing.T) {
	t.Parallel()
	p := pictureOf(t, tarOf(t, file("f", "text")))
	s := openStore(t)
	w, err := p.into(t, s)
	must(t, err)
	var out bytes.Buffer
	must(t, s.Export(t.Context(), w.ID, &out))
	files := map[string][]byte{}
	tr := tar.NewReader(&out)
	for h, err := tr.Next(); err == nil; h, err = tr.Next() {
		var b bytes.Buffer
		_, err := b.ReadFrom(tr)
		must(t, err)
		files[h.Name] = b.Bytes()
	}
	var list []struct {
		Config string
		Layers []string
	}
	must(t, json.Unmarshal(files["manifest.json"], &list))
	if len(list) != 1 || digestOf(files[list[0].Config]) != strings.TrimPrefix(w.ID, "sha256:") || "sha256:"+digestOf(files[list[0].Layers[0]]) != p.diffs[0] {
		t.Errorf("manifest.json says %+v", list)
	}
}
