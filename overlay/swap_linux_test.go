package overlay_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/paddock-run/paddock/overlay"
)

func TestCaptureIsNeverLedToTheHostBySwaps(t *testing.T) {
	t.Parallel()
	f := testWorld(t, map[string]string{"f": "1"})
	host, upper := t.TempDir(), t.TempDir()
	side := filepath.Join(upper, "side")
	must(t, os.Mkdir(side, 0o755))
	must(t, os.WriteFile(filepath.Join(host, "x"), []byte("secret of the host"), 0o600))
	forms := []string{"file", "link", "dir", "out", "fifo"}
	must(t, os.WriteFile(filepath.Join(side, "file"), []byte("agent"), 0o600))
	must(t, os.Symlink(filepath.Join(host, "x"), filepath.Join(side, "link")))
	must(t, os.Mkdir(filepath.Join(side, "dir"), 0o700))
	must(t, os.WriteFile(filepath.Join(side, "dir/x"), []byte("agent"), 0o600))
	must(t, os.Symlink(host, filepath.Join(side, "out")))
	must(t, unix.Mkfifo(filepath.Join(side, "fifo"), 0o600))
	stop, done := make(chan struct{}), make(chan int)
	go func() {
		n := 0
		for at := filepath.Join(upper, "at"); ; n++ {
			select {
			case <-stop:
				done <- n
				return
			default:
			}
			from := filepath.Join(side, forms[n%len(forms)])
			_ = os.Rename(from, at)
			_ = os.Rename(at, from)
		}
	}()
	dir, err := os.Open(upper)
	must(t, err)
	defer dir.Close()
	secret := fmt.Sprintf("%x", sha256.Sum256([]byte("secret of the host")))
	pack := filepath.Join(t.TempDir(), "pack")
	for range 10_000 {
		c, err := f.Capture(t.Context(), overlay.CaptureInput{Upper: dir})
		// A capture of a tree that moves may end in an error; it may not lead elsewhere.
		if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EXDEV) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Error(err)
		}
		for _, ch := range c.Changes {
			if ch.SHA256 == secret {
				t.Errorf("%s is the host's file", ch.Path)
			}
		}
	}
	close(stop)
	if n := <-done; n < 1000 {
		t.Errorf("only %d swaps", n)
	}
	_, err = f.Capture(t.Context(), overlay.CaptureInput{Upper: dir, Pack: pack})
	must(t, err)
}

func TestDeepPathHidesNothingElse(t *testing.T) {
	t.Parallel()
	f := testWorld(t, map[string]string{"f": "1"})
	upper := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(upper, strings.Repeat("a/", 700)), 0o755))
	must(t, os.WriteFile(filepath.Join(upper, "later"), []byte("1"), 0o644))
	dir, err := os.Open(upper)
	must(t, err)
	defer dir.Close()
	c, err := f.Capture(t.Context(), overlay.CaptureInput{Upper: dir})
	must(t, err)
	if last := c.Changes[len(c.Changes)-1].Path; !c.Truncated || last != "/later" {
		t.Errorf("truncated %v, the last change is %s; want true, /later", c.Truncated, last)
	}
}

func TestAttributesThatSteerOverlayfsAreStripped(t *testing.T) {
	t.Parallel()
	var data bytes.Buffer
	w := tar.NewWriter(&data)
	must(t, w.WriteHeader(&tar.Header{
		Typeflag: tar.TypeReg, Name: "f", Mode: 0o644, Format: tar.FormatPAX,
		PAXRecords: map[string]string{
			"SCHILY.xattr.trusted.overlay.redirect": "/etc", "SCHILY.xattr.user.overlay.opaque": "y", "SCHILY.xattr.user.kept": "1",
		},
	}))
	must(t, w.Close())
	s := openStore(t, overlay.Options{})
	b, err := s.Build(t.Context(), overlay.Recipe{Tar: file(t, data.Bytes())}, nil)
	must(t, err)
	f, err := s.Fork(t.Context(), b.World.ID)
	must(t, err)
	defer f.Release()
	list := make([]byte, 1024)
	n, err := unix.Llistxattr(filepath.Join(f.Lowers()[0], "f"), list)
	must(t, err)
	if got := string(list[:n]); got != "user.kept\x00" {
		t.Errorf("attributes %q, want user.kept alone", got)
	}
}

func TestWorldThatCannotBeIndexedIsNotListed(t *testing.T) {
	t.Parallel()
	root := filepath.Join(t.TempDir(), "store")
	s, err := overlay.Open(root, overlay.Options{})
	must(t, err)
	defer s.Close()
	// A directory in the index's place fails its rename, as a full disk fails its write.
	must(t, os.MkdirAll(filepath.Join(root, "worlds/index.json/x"), 0o700))
	if b, err := s.Build(t.Context(), overlay.Recipe{Dir: tree(t, map[string]string{"f": "1"})}, nil); err == nil {
		t.Errorf("Build() = %+v, want an error", b)
	}
	if list, err := s.List(t.Context()); err != nil || len(list) > 0 {
		t.Errorf("List() = %v, %v, want no world", list, err)
	}
}

func BenchmarkCaptureWithPack(b *testing.B) {
	for _, n := range []int{1, 100, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s, err := overlay.Open(filepath.Join(b.TempDir(), "store"), overlay.Options{})
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			upper, world := b.TempDir(), b.TempDir()
			built, err := s.Build(b.Context(), overlay.Recipe{Dir: world}, nil)
			if err != nil {
				b.Fatal(err)
			}
			f, err := s.Fork(b.Context(), built.World.ID)
			if err != nil {
				b.Fatal(err)
			}
			defer f.Release()
			for i := range n {
				p := filepath.Join(upper, fmt.Sprintf("d%d", i%50))
				_ = os.MkdirAll(p, 0o755)
				_ = os.WriteFile(filepath.Join(p, fmt.Sprint(i)), bytes.Repeat([]byte{byte(i)}, 4096), 0o644)
			}
			dir, err := os.Open(upper)
			if err != nil {
				b.Fatal(err)
			}
			defer dir.Close()
			pack := filepath.Join(b.TempDir(), "pack")
			b.ResetTimer()
			for b.Loop() {
				if _, err := f.Capture(b.Context(), overlay.CaptureInput{Upper: dir, Pack: pack}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkTrackOfOneFile(b *testing.B) {
	for _, n := range []int{1, 1000} {
		b.Run(fmt.Sprintf("of %d", n), func(b *testing.B) {
			f := benchFork(b, 0)
			upper := b.TempDir()
			for i := range n {
				if err := os.WriteFile(filepath.Join(upper, fmt.Sprint(i)), []byte("1"), 0o644); err != nil {
					b.Fatal(err)
				}
			}
			dir, err := os.Open(upper)
			if err != nil {
				b.Fatal(err)
			}
			defer dir.Close()
			tr := f.Track(dir, 0)
			if _, _, err := tr.Changes(b.Context(), n); err != nil {
				b.Fatal(err)
			}
			for i := 0; b.Loop(); i++ {
				if err := os.Truncate(filepath.Join(upper, "0"), int64(i)); err != nil {
					b.Fatal(err)
				}
				if got, _, err := tr.Changes(b.Context(), n); err != nil || len(got) != 1 {
					b.Fatal(got, err)
				}
			}
		})
	}
}

// benchFork forks a world of so many files.
func benchFork(b *testing.B, files int) *overlay.Fork {
	b.Helper()
	s, id := benchWorld(b, files)
	f, err := s.Fork(b.Context(), id)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(f.Release)
	return f
}

func benchWorld(b *testing.B, files int) (*overlay.Store, string) {
	b.Helper()
	dir := b.TempDir()
	for i := range files {
		in := filepath.Join(dir, fmt.Sprintf("d%d", i%100))
		if err := errors.Join(os.MkdirAll(in, 0o755), os.WriteFile(filepath.Join(in, fmt.Sprint(i)), []byte("text"), 0o644)); err != nil {
			b.Fatal(err)
		}
	}
	s, err := overlay.Open(filepath.Join(b.TempDir(), "store"), overlay.Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = s.Close() })
	built, err := s.Build(b.Context(), overlay.Recipe{Dir: dir}, nil)
	if err != nil {
		b.Fatal(err)
	}
	return s, built.World.ID
}
