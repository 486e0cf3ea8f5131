package overlay_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/paddock-run/paddock/overlay"
	"github.com/paddock-run/paddock/overlay/image"
)

func BenchmarkFork(b *testing.B) {
	for _, n := range []int{20, 20_000} {
		b.Run(fmt.Sprintf("world of %d files", n), func(b *testing.B) {
			s, id := benchWorld(b, n)
			for b.Loop() {
				f, err := s.Fork(b.Context(), id)
				if err != nil {
					b.Fatal(err)
				}
				f.Release()
			}
		})
	}
}

func BenchmarkCaptureOfFewFiles(b *testing.B) {
	s, err := overlay.Open(b.TempDir(), overlay.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	world := b.TempDir()
	built, err := s.Build(b.Context(), overlay.Recipe{Dir: world}, nil)
	if err != nil {
		b.Fatal(err)
	}
	f, err := s.Fork(b.Context(), built.World.ID)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Release()
	upper := b.TempDir()
	for i := range 10 {
		if err := os.WriteFile(filepath.Join(upper, fmt.Sprint(i)), []byte("text"), 0o644); err != nil {
			b.Fatal(err)
		}
	}
	dir, err := os.Open(upper)
	if err != nil {
		b.Fatal(err)
	}
	defer dir.Close()
	pack := filepath.Join(b.TempDir(), "pack")
	for b.Loop() {
		if _, err := f.Capture(b.Context(), overlay.CaptureInput{Upper: dir, Pack: pack}); err != nil {
			b.Fatal(err)
		}
	}
}

// FuzzTar feeds archives and images of any form: the answer is typed and the store stays whole.
func FuzzTar(f *testing.F) {
	f.Add([]byte("x"), false)
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	for _, h := range []tar.Header{{Name: "d/", Typeflag: tar.TypeDir}, {Name: "d/l", Typeflag: tar.TypeSymlink, Linkname: "../x"}, {Name: "h", Typeflag: tar.TypeLink, Linkname: "d/l"}, {Name: ".wh.f", Typeflag: tar.TypeReg}} {
		if err := tw.WriteHeader(&h); err != nil {
			f.Fatal(err)
		}
	}
	f.Add(buf.Bytes(), false)
	f.Add(buf.Bytes(), true)
	f.Add([]byte{0x1f, 0x8b, 8, 0}, true)
	s, err := overlay.Open(f.TempDir(), overlay.Options{Limits: overlay.Limits{Bytes: 1 << 20, Entries: 100}})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = s.Close() })
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte, isImage bool) {
		var err error
		var id string
		if isImage {
			var w overlay.World
			w, err = image.Worlds{Store: s}.Import(t.Context(), overlay.Source{Stream: bytes.NewReader(data)}, "", nil)
			id = w.ID
		} else {
			p := filepath.Join(dir, "archive")
			must(t, os.WriteFile(p, data, 0o600))
			var b overlay.Built
			b, err = s.Build(t.Context(), overlay.Recipe{Tar: p}, nil)
			id = b.World.ID
		}
		if err == nil {
			must(t, s.Remove(t.Context(), id))
		} else if _, ok := errors.AsType[*overlay.RecipeError](err); !ok {
			t.Errorf("error %v is not a RecipeError", err)
		}
		if strays, err := s.Strays(); err != nil || len(strays) > 0 {
			t.Errorf("strays %q, %v", strays, err)
		}
	})
}
