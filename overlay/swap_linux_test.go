package overlay_test

import (
	"archive/tar"
	"bufio"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paddock-run/paddock/overlay"
)

// swapperVariable makes this test binary, run again, the attacker of the directory it names.
const swapperVariable = "PADDOCK_OVERLAY_SWAPPER"

func TestMain(m *testing.M) {
	if dir := os.Getenv(swapperVariable); dir != "" {
		os.Exit(swap(dir))
	}
	os.Exit(m.Run())
}

// swapForms are what the attacker puts in each other's place.
var swapForms = []string{"file", "link", "dir", "out", "fifo", "deep"}

// swap exchanges what is at dir/at with one form after another until standard input ends. It
// prints how many exchanges the kernel made, once there are enough and at the end.
func swap(dir string) int {
	over := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(over)
	}()
	at := filepath.Join(dir, "at")
	for done, enough := 0, false; ; {
		for _, form := range swapForms {
			if unix.Renameat2(unix.AT_FDCWD, filepath.Join(dir, "side", form), unix.AT_FDCWD, at, unix.RENAME_EXCHANGE) == nil {
				done++
			}
		}
		if done >= wantSwaps && !enough {
			enough = true
			_, _ = fmt.Println(done)
		}
		select {
		case <-over:
			_, _ = fmt.Println(done)
			return 0
		default:
		}
	}
}

const (
	// wantSwaps and wantCaptures are the least that must happen at the same time.
	wantSwaps    = 100_000
	wantCaptures = 500
)

// X-F03: another process swaps a file, directories, links that lead out and a FIFO 100,000
// times while the tree is captured. What is captured was in the tree, every time.
func TestCaptureIsNeverLedToTheHostBySwaps(t *testing.T) {
	t.Parallel()
	f := testWorld(t, map[string]string{"f": "1"})
	host, upper := t.TempDir(), t.TempDir()
	targets := hostileForms(t, host, upper)
	attacker := exec.CommandContext(t.Context(), "/proc/self/exe")
	attacker.Env = append(os.Environ(), swapperVariable+"="+upper)
	attacker.Stderr = os.Stderr
	in, err := attacker.StdinPipe()
	must(t, err)
	out, err := attacker.StdoutPipe()
	must(t, err)
	must(t, attacker.Start())
	counted := bufio.NewReader(out)
	enough := make(chan struct{})
	go func() {
		defer close(enough)
		_, _ = counted.ReadString('\n')
	}()
	dir, err := os.Open(upper)
	must(t, err)
	defer dir.Close()
	contents := map[string]bool{"": true}
	for _, text := range inTree {
		contents[fmt.Sprintf("%x", sha256.Sum256([]byte(text)))] = true
	}
	whole := 0
	for began := time.Now(); (whole < wantCaptures || !closed(enough)) && time.Since(began) < 5*time.Minute; {
		pack := filepath.Join(t.TempDir(), "pack")
		c, err := f.Capture(t.Context(), overlay.CaptureInput{Upper: dir, Pack: pack})
		// A capture of a tree that moves may end in an error; it may not lead elsewhere.
		switch {
		case err == nil:
			whole++
		case !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EXDEV) && !errors.Is(err, io.ErrUnexpectedEOF):
			t.Fatal(err)
		}
		for _, ch := range c.Changes {
			if !contents[ch.SHA256] || (ch.Target != "" && !targets[ch.Target]) {
				t.Fatalf("%s is %q of %s, which was never in the tree", ch.Path, ch.Target, ch.SHA256)
			}
		}
		if kept, err := os.ReadFile(pack); err == nil && bytes.Contains(kept, []byte(secret)) {
			t.Fatal("the host's file is in a pack")
		}
	}
	must(t, in.Close())
	<-enough
	last, err := counted.ReadString('\n')
	must(t, err)
	must(t, attacker.Wait())
	swaps, err := strconv.Atoi(strings.TrimSpace(last))
	must(t, err)
	t.Logf("%d swaps beside %d whole captures", swaps, whole)
	if swaps < wantSwaps || whole < wantCaptures {
		t.Errorf("%d swaps beside %d whole captures, want at least %d and %d", swaps, whole, wantSwaps, wantCaptures)
	}
	_, err = f.Capture(t.Context(), overlay.CaptureInput{Upper: dir, Pack: filepath.Join(t.TempDir(), "pack")})
	must(t, err)
}

func closed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

const secret = "secret of the host"

// inTree are the contents of all files that the attacker has.
var inTree = []string{"agent's file", "agent's x", "agent's deep x", "at first"}

// hostileForms fills an upper and the host that it is after, and returns the links' targets.
func hostileForms(t *testing.T, host, upper string) map[string]bool {
	t.Helper()
	side := filepath.Join(upper, "side")
	must(t, os.MkdirAll(filepath.Join(side, "dir"), 0o755))
	must(t, os.MkdirAll(filepath.Join(side, "deep/dir"), 0o755))
	must(t, os.Mkdir(filepath.Join(host, "dir"), 0o755))
	for p, text := range map[string]string{
		filepath.Join(host, "x"): secret, filepath.Join(host, "dir/x"): secret,
		filepath.Join(side, "file"): inTree[0], filepath.Join(side, "dir/x"): inTree[1], filepath.Join(side, "deep/dir/x"): inTree[2],
		filepath.Join(upper, "at"): inTree[3],
	} {
		must(t, os.WriteFile(p, []byte(text), 0o600))
	}
	must(t, os.Symlink(filepath.Join(host, "x"), filepath.Join(side, "link")))
	must(t, os.Symlink(host, filepath.Join(side, "out")))
	must(t, unix.Mkfifo(filepath.Join(side, "fifo"), 0o600))
	return map[string]bool{host: true, filepath.Join(host, "x"): true}
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

// BenchmarkSealOfABranch is a branch of 100 new files of 4 KiB.
func BenchmarkSealOfABranch(b *testing.B) {
	s, id := benchWorld(b, 10)
	f, err := s.Fork(b.Context(), id)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Release()
	upper := b.TempDir()
	text := make([]byte, 4096)
	for i := range 100 {
		copy(text, fmt.Sprint(i))
		if err := os.WriteFile(filepath.Join(upper, fmt.Sprintf("f%d", i)), text, 0o644); err != nil {
			b.Fatal(err)
		}
	}
	dir, err := os.Open(upper)
	if err != nil {
		b.Fatal(err)
	}
	defer dir.Close()
	n := 0
	for b.Loop() {
		n++
		if err := os.WriteFile(filepath.Join(upper, "f0"), fmt.Append(nil, n), 0o644); err != nil { // another layer each time
			b.Fatal(err)
		}
		w, err := f.Seal(b.Context(), overlay.SealInput{Upper: dir, Recipe: "branch", Branch: true})
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if err := s.Remove(b.Context(), w.ID); err != nil { // the index is written as a whole
			b.Fatal(err)
		}
		b.StartTimer()
	}
}
