package native

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/paddock-run/paddock/internal/mount"
	"github.com/paddock-run/paddock/internal/need"
)

// layer makes a writable layer in memory with so many files in it.
func layer(t *testing.T, n int) *os.File {
	t.Helper()
	m, err := mount.Tmpfs(64<<20, 1<<16, 0o700, mount.NoSUID)
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		if err := unix.Mknodat(int(m.Fd()), string(rune('a'+i%26))+strings.Repeat("x", i/26), unix.S_IFREG|0o600, 0); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

func TestUndertakerClosesWhatIsLarge(t *testing.T) {
	need.Root(t)
	tree, err := openTree(fmt.Sprintf("paddock-test-undertaker-%d", os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	if err := tree.make(); err != nil {
		t.Fatal(err)
	}
	u, err := newUndertaker(tree)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := u.close(); err != nil {
			t.Error(err)
		}
		if err := tree.removeParent(); err != nil {
			t.Error(err)
		}
	}()
	for _, dir := range u.dirs() {
		if procs := strings.Fields(read(dir, "cgroup.procs")); len(procs) != len(u.all) {
			t.Errorf("processes of %s: %v, want the undertaker's %d", dir, procs, len(u.all))
		}
	}
	for i, c := range []struct {
		files  int
		buried int64
	}{{10, 0}, {largeInodes + 1, 1}, {largeInodes + 1, 2}, {0, 2}} {
		m := layer(t, c.files)
		u.bury(m, []*os.File{m})
		if _, err := m.Stat(); err == nil {
			t.Errorf("layer %d is open", i)
		}
		if n := u.buried.Load(); n != c.buried {
			t.Errorf("after layer %d the undertaker has buried %d, want %d", i, n, c.buried)
		}
	}
	// What it can no longer take is closed all the same.
	for _, h := range u.all {
		if err := h.cmd.Process.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 * len(u.all) {
		m := layer(t, largeInodes+1)
		u.bury(m, []*os.File{m})
		if _, err := m.Stat(); err == nil {
			t.Error("without an undertaker a layer stays open")
		}
	}
}
