package disk_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paddock-run/paddock/internal/need"
	"github.com/paddock-run/paddock/sandbox/disk"
)

// open makes a backend in a directory of its own below parent.
func open(tb testing.TB, kind disk.Kind, parent string) disk.Backend {
	tb.Helper()
	need.Root(tb)
	dir := filepath.Join(parent, "disk")
	b, err := disk.Open(tb.Context(), kind, disk.Config{Dir: dir})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := b.Close(); err != nil {
			tb.Errorf("Close: %v", err)
		}
		left, err := os.ReadDir(dir)
		if err != nil || len(left) > 0 {
			tb.Errorf("left on the disk: %v, %v", left, err)
		}
	})
	return b
}

func volume(tb testing.TB, b disk.Backend, name string, size disk.Size) *disk.Volume {
	tb.Helper()
	v, err := b.New(tb.Context(), name, size)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := v.Close(); err != nil {
			tb.Errorf("Close of %s: %v", name, err)
		}
	})
	return v
}

func in(v *disk.Volume, name string) string {
	return fmt.Sprintf("/proc/self/fd/%d/%s", v.Mount().Fd(), name)
}

// write fills a file until the volume is full or most bytes are in, and says how many are.
// It has the rights that an overlay of a sandbox has.
func write(tb testing.TB, v *disk.Volume, name string, most int64) (n int64, err error) {
	tb.Helper()
	failed := disk.WithoutResource(func() error {
		n, err = fill(v, name, most)
		return nil
	})
	return n, errors.Join(failed, err)
}

func fill(v *disk.Volume, name string, most int64) (int64, error) {
	f, err := os.OpenFile(in(v, name), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	chunk := []byte(strings.Repeat("0123456789abcdef", 4<<10))
	var n int64
	for n < most {
		var m int
		m, err = f.Write(chunk[:min(int64(len(chunk)), most-n)])
		n += int64(m)
		if err == nil && n%(4<<20) == 0 {
			err = f.Sync()
		}
		if err != nil {
			return n, err
		}
	}
	return n, f.Sync()
}

// contract is what every kind keeps; full is what a write beyond the limit says.
func contract(t *testing.T, kind disk.Kind, parent string, full unix.Errno) {
	t.Helper()
	b := open(t, kind, parent)
	size := disk.Size{Bytes: 24 << 20, Inodes: 500}
	v := volume(t, b, "first", size)
	neighbour := volume(t, b, "neighbour", size)
	if names, err := os.ReadDir(in(v, "")); err != nil || len(names) > 0 {
		t.Fatalf("a new volume holds %v, %v; want nothing", names, err)
	}
	n, err := write(t, v, "bytes", 4*size.Bytes)
	if !errors.Is(err, full) || n < size.Bytes*9/10 || n > size.Bytes*11/10 {
		t.Errorf("%d bytes went in (%v), want %v at about %d", n, err, full, size.Bytes)
	}
	if n, err := write(t, neighbour, "bytes", size.Bytes/2); err != nil {
		t.Errorf("the neighbour wrote %d bytes: %v", n, err)
	}
	if err := os.Remove(in(v, "bytes")); err != nil {
		t.Fatal(err)
	}
	if kind != disk.Btrfs {
		files(t, v, size, full)
	}
	deep(t, neighbour, 300)
	if err := v.Close(); err != nil {
		t.Error(err)
	}
	// Room and name come back, and nothing of what was there does.
	for deadline := time.Now().Add(30 * time.Second); ; {
		again, err := b.New(t.Context(), "first", size)
		if err == nil {
			if names, err := os.ReadDir(in(again, "")); err != nil || len(names) > 0 {
				t.Errorf("a volume made anew holds %v, %v", names, err)
			}
			if n, err := write(t, again, "bytes", size.Bytes*9/10); err != nil {
				t.Errorf("a volume made anew took %d bytes: %v", n, err)
			}
			if err := again.Close(); err != nil {
				t.Error(err)
			}
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// files makes files until there are enough.
func files(t *testing.T, v *disk.Volume, size disk.Size, full unix.Errno) {
	t.Helper()
	made := int64(0)
	err := disk.WithoutResource(func() error {
		for ; made < 2*size.Inodes; made++ {
			f, err := os.OpenFile(in(v, fmt.Sprint("f", made)), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
			if err != nil {
				return err
			}
			_ = f.Close()
		}
		return nil
	})
	// Some round up to what fits into their tables.
	if !errors.Is(err, full) || made < size.Inodes-8 || made > size.Inodes*5/4 {
		t.Errorf("%d files went in (%v), want %v at about %d", made, err, full, size.Inodes)
	}
}

// deep makes a tree that no path names and no recursion should follow.
func deep(t *testing.T, v *disk.Volume, depth int) {
	t.Helper()
	at, err := unix.Openat(int(v.Mount().Fd()), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range depth {
		name := strings.Repeat("d", 200)
		if err := unix.Mkdirat(at, name, 0); err != nil {
			t.Fatal(err)
		}
		next, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		_ = unix.Close(at)
		if err != nil {
			t.Fatal(err)
		}
		at = next
	}
	_ = unix.Symlinkat("/etc", at, "link")
	_ = unix.Close(at)
}

func TestLoopKeepsItsLimits(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	t.Run("contract", func(t *testing.T) { contract(t, disk.Loop, dir, unix.ENOSPC) })
	wait(t, "loop devices", func() bool { return loops(t, dir) == 0 })
}

// loops counts the loop devices whose file lies below dir.
func loops(t *testing.T, dir string) int {
	t.Helper()
	all, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, f := range all {
		if text, err := os.ReadFile(f); err == nil && strings.HasPrefix(string(text), dir+"/") {
			n++
		}
	}
	return n
}

func wait(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !is(); {
		if time.Now().After(deadline) {
			t.Fatalf("%s are left", what)
		}
		time.Sleep(time.Millisecond)
	}
}

func TestBtrfsKeepsItsLimits(t *testing.T) {
	t.Parallel()
	need.Root(t)
	image, err := os.OpenFile(filepath.Join(t.TempDir(), "image"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer image.Close()
	if err := image.Truncate(1 << 30); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), need.Command(t, "mkfs.btrfs", "btrfs-progs"), "-q", image.Name()).CombinedOutput(); err != nil {
		t.Fatalf("mkfs.btrfs: %v\n%s", err, out)
	}
	m, err := disk.MountImage(image, "btrfs")
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	root := fmt.Sprintf("/proc/self/fd/%d", m.Fd())
	probe := func() error {
		for _, f := range disk.Probe(t.Context(), root) {
			if f.Kind == disk.Btrfs {
				return f.Err
			}
		}
		return nil
	}
	if err := probe(); err == nil || !strings.Contains(err.Error(), "btrfs quota enable") {
		t.Errorf("without quotas the probe says %v", err)
	}
	if out, err := exec.CommandContext(t.Context(), "btrfs", "quota", "enable", fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), m.Fd())).CombinedOutput(); err != nil {
		t.Fatalf("btrfs quota enable: %v\n%s", err, out)
	}
	if err := probe(); err != nil {
		t.Errorf("with quotas the probe says %v", err)
	}
	t.Run("contract", func(t *testing.T) { contract(t, disk.Btrfs, root, unix.EDQUOT) })
}

func TestManyVolumesAtOnce(t *testing.T) {
	t.Parallel()
	b := open(t, disk.Loop, t.TempDir())
	var wg sync.WaitGroup
	for i := range 12 {
		wg.Go(func() {
			v, err := b.New(t.Context(), fmt.Sprint("v", i), disk.Size{Bytes: 8 << 20, Inodes: 100 + int64(i%3)})
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := write(t, v, "f", 1<<20); err != nil {
				t.Error(err)
			}
			if err := v.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func TestNoMoreIsPromisedThanTheDiskHas(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b := open(t, disk.Loop, dir)
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	free := int64(st.Bavail) * st.Bsize
	first := volume(t, b, "first", disk.Size{Bytes: free * 6 / 10, Inodes: 100})
	_, err := b.New(t.Context(), "second", disk.Size{Bytes: free * 6 / 10, Inodes: 100})
	if !errors.Is(err, disk.ErrFull) || !errors.Is(err, unix.ENOSPC) {
		t.Errorf("a second volume: %v, want ErrFull", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	volume(t, b, "third", disk.Size{Bytes: free * 6 / 10, Inodes: 100})
}

func TestWithoutALimitNothingIsBounded(t *testing.T) {
	t.Parallel()
	b := open(t, disk.None, t.TempDir())
	v := volume(t, b, "v", disk.Size{Bytes: 1, Inodes: 1})
	if n, err := write(t, v, "f", 8<<20); err != nil {
		t.Errorf("%d bytes went in: %v", n, err)
	}
	deep(t, v, 5000)
	if err := os.Symlink("/", in(v, "root")); err != nil {
		t.Fatal(err)
	}
}

// What a daemon that was killed left is removed by the next.
func TestOpenRemovesWhatIsThere(t *testing.T) {
	t.Parallel()
	need.Root(t)
	dir := t.TempDir()
	kept := filepath.Join(t.TempDir(), "kept")
	if err := errors.Join(os.WriteFile(kept, nil, 0o600), os.MkdirAll(filepath.Join(dir, "e-1/upper/a/b"), 0o700), os.Symlink(kept, filepath.Join(dir, "link"))); err != nil {
		t.Fatal(err)
	}
	b, err := disk.Open(t.Context(), disk.None, disk.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	if _, err := os.Stat(kept); err != nil {
		t.Errorf("what a link named is gone: %v", err)
	}
}

func TestProbeSaysWhatWorksAndLeavesNothing(t *testing.T) {
	t.Parallel()
	need.Root(t)
	dir := t.TempDir()
	for _, f := range disk.Probe(t.Context(), dir) {
		t.Logf("%s: %v", f.Kind, f.Err)
		if f.Kind == disk.Loop && f.Err != nil {
			t.Errorf("loop: %v", f.Err)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	if _, err := disk.Open(t.Context(), "floppy", disk.Config{Dir: dir}); err == nil {
		t.Error("an unknown kind was opened")
	}
	if b, err := disk.Open(t.Context(), disk.Tmpfs, disk.Config{Dir: dir}); err != nil || b != nil {
		t.Errorf("tmpfs: %v, %v; want no disk", b, err)
	}
}

func BenchmarkLoopVolume(b *testing.B) {
	d := open(b, disk.Loop, b.TempDir())
	for i := 0; b.Loop(); i++ {
		v, err := d.New(b.Context(), fmt.Sprint(i), disk.Size{Bytes: 10 << 30, Inodes: 200000})
		if err != nil {
			b.Fatal(err)
		}
		if err := v.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
