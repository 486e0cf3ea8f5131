package files

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/paddock-run/paddock/sandbox"
)

func runCommand(tb testing.TB, name string, args ...string) []byte {
	tb.Helper()
	out, err := exec.CommandContext(tb.Context(), name, args...).Output()
	if err != nil {
		tb.Fatal(err)
	}
	return out
}

const swaps = 10_000

// X-F03: a guest exchanges files, links, FIFOs and directories under the daemon's hands.
// Whatever a call answers comes from the tree, and what is outside stays as it was.
func TestRacingGuestNeverLeadsOutside(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const secret = "THE HOST'S SECRET"
	outside := t.TempDir()
	if err := errors.Join(
		os.WriteFile(filepath.Join(outside, "f"), []byte(secret), 0o666),
		os.Chmod(outside, 0o777),
	); err != nil {
		t.Fatal(err)
	}
	// dir is exchanged with links that lead out by every way there is; f in it, too.
	f.put(t, "dir/", "", 0o777, 0)
	f.put(t, "dir/f", "inside", 0o666, 0)
	for link, target := range map[string]string{"abs": outside, "up": strings.Repeat("../", 20) + outside[1:]} {
		if err := os.Symlink(target, filepath.Join(f.dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(
		os.Symlink(filepath.Join(outside, "f"), filepath.Join(f.dir, "dir/link")),
		unix.Mkfifo(filepath.Join(f.dir, "dir/fifo"), 0o666),
	); err != nil {
		t.Fatal(err)
	}
	chownTree(t, filepath.Join(f.dir, "dir/fifo"), testIDs.HostID)

	var stop atomic.Bool
	var inside, refused atomic.Int64
	var wg sync.WaitGroup
	wg.Go(func() {
		defer stop.Store(true)
		p := func(name string) string { return filepath.Join(f.dir, name) }
		for i := range swaps {
			pair := [][2]string{{"dir", "abs"}, {"dir", "up"}, {"dir/f", "dir/link"}, {"dir/f", "dir/fifo"}}[i%4]
			// There and back, so that each round begins alike. A write may have replaced a
			// name meanwhile; then there is nothing to exchange.
			for range 2 {
				_ = unix.Renameat2(unix.AT_FDCWD, p(pair[0]), unix.AT_FDCWD, p(pair[1]), unix.RENAME_EXCHANGE)
			}
		}
	})
	check := func(what string, content []byte, err error) {
		if bytes.Contains(content, []byte(secret)) {
			t.Errorf("%s: the host's file came back", what)
		}
		if e, ok := errors.AsType[*sandbox.FileError](err); err != nil && !ok {
			t.Errorf("%s: %v (%v) is no *FileError", what, err, e)
		}
	}
	for _, as := range []sandbox.User{root, user} {
		wg.Go(func() {
			for !stop.Load() {
				var b bytes.Buffer
				_, err := f.Read(t.Context(), as, "/dir/f", &b, 0, -1)
				check("read", b.Bytes(), err)
				if err != nil {
					refused.Add(1)
				} else if b.String() == "inside" {
					inside.Add(1)
				}
				b.Reset()
				err = f.Tar(t.Context(), as, "/dir", &b)
				check("tar", b.Bytes(), err)
				_, _, err = f.List(t.Context(), as, "/dir", 0)
				check("list", nil, err)
			}
		})
		wg.Go(func() {
			for !stop.Load() {
				check("write", nil, f.write(as, "/dir/f", "inside"))
				_, err := f.Untar(t.Context(), as, "/dir", tarOf(t, entry{name: "sub/g", body: "inside"}), sandbox.TarLimits{})
				check("untar", nil, err)
				check("remove", nil, f.Remove(t.Context(), as, "/dir/sub"))
			}
		})
	}
	wg.Wait()
	t.Logf("%d reads of what is inside, %d refused", inside.Load(), refused.Load())
	if inside.Load() == 0 || refused.Load() == 0 {
		t.Errorf("no race: %d reads of what is inside, %d refused", inside.Load(), refused.Load())
	}
	left, err := os.ReadDir(outside)
	if err != nil || len(left) != 1 {
		t.Errorf("outside there is %v, %v", left, err)
	}
	if got, err := os.ReadFile(filepath.Join(outside, "f")); err != nil || string(got) != secret {
		t.Errorf("the host's file holds %q, %v", got, err)
	}
}

func BenchmarkWrite(b *testing.B) {
	f := newFixture(b)
	for b.Loop() {
		if err := f.write(root, "/f", "content"); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRead(b *testing.B) {
	f := newFixture(b)
	f.put(b, "f", "content", 0o644, 0)
	for b.Loop() {
		if _, err := f.Read(b.Context(), user, "/f", io.Discard, 0, -1); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkUntarThousandFiles(b *testing.B) {
	f := newFixture(b)
	f.put(b, "tmp/", "", 0o777, 0)
	archive := thousandFiles(b)
	for b.Loop() {
		if _, err := f.Untar(b.Context(), user, "/tmp", bytes.NewReader(archive), sandbox.TarLimits{}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkTarThousandFiles(b *testing.B) {
	f := newFixture(b)
	f.put(b, "tmp/", "", 0o777, 0)
	if _, err := f.Untar(b.Context(), user, "/tmp", bytes.NewReader(thousandFiles(b)), sandbox.TarLimits{}); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if err := f.Tar(b.Context(), user, "/tmp", io.Discard); err != nil {
			b.Fatal(err)
		}
	}
}

func thousandFiles(tb testing.TB) []byte {
	tb.Helper()
	var entries []entry
	for i := range 1000 {
		entries = append(entries, entry{name: fmt.Sprintf("d%d/f%d", i%20, i), body: "some content"})
	}
	return tarOf(tb, entries...).Bytes()
}
