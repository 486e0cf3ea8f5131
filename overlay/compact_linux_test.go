package overlay_test

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/paddock-run/paddock/internal/mount"
	"github.com/paddock-run/paddock/internal/need"
	"github.com/paddock-run/paddock/overlay"
)

// apart runs do on a thread with a mount namespace of its own.
func apart(t *testing.T, do func() error) {
	t.Helper()
	failed := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		if err := mount.PrivateNamespace(); err != nil {
			failed <- err
			return
		}
		failed <- do()
	}()
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
}

// overlaid mounts directories, the topmost first, below an upper one unless that is empty, and
// shows the root to do.
func overlaid(at string, lowers []string, upper string, do func(root string) error) error {
	options := "redirect_dir=nofollow,metacopy=off,index=off,xino=off,lowerdir=" + strings.Join(lowers, ":")
	if upper != "" {
		options += ",upperdir=" + upper + ",workdir=" + upper + "-work"
	}
	if err := unix.Mount("overlay", at, "overlay", 0, options); err != nil {
		return fmt.Errorf("mount %s: %w", options, err)
	}
	defer func() { _ = unix.Unmount(at, unix.MNT_DETACH) }()
	return do(at)
}

// lookOf is all that a program could see of a tree, a line for each path, with times or
// without.
func lookOf(root string, times bool) ([]string, error) {
	var lines []string
	first := map[uint64]string{}
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == root {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(p, &st); err != nil {
			return err
		}
		rel := p[len(root):]
		line := fmt.Sprintf("%s %o %d:%d", rel, st.Mode, st.Uid, st.Gid)
		if times {
			line += fmt.Sprintf(" %d.%09d", st.Mtim.Sec, st.Mtim.Nsec)
		}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			text, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			if first[st.Ino] == "" {
				first[st.Ino] = rel
			}
			line += fmt.Sprintf(" %x = %s", sha256.Sum256(text), first[st.Ino])
		case unix.S_IFLNK:
			target, err := os.Readlink(p)
			if err != nil {
				return err
			}
			line += " -> " + target
		}
		value := make([]byte, 64)
		if n, err := unix.Lgetxattr(p, "user.note", value); err == nil {
			line += " " + string(value[:n])
		}
		lines = append(lines, line)
		return nil
	})
	return lines, err
}

// mess changes a tree in ways drawn at random. What does not work out is left.
func mess(rng *rand.Rand, root string) {
	place := func() string {
		p := root
		for range 1 + rng.IntN(3) {
			p += "/" + string(rune('a'+rng.IntN(4)))
		}
		return p
	}
	modes := []uint32{0o600, 0o644, 0o755, 0o711, 0o4755, 0o2775, 0o1777}
	for range 30 {
		p, q := place(), place()
		switch rng.IntN(12) {
		case 0, 1:
			_ = os.MkdirAll(p, 0o755)
		case 2, 3, 4:
			_ = os.WriteFile(p, fmt.Appendf(nil, "%d", rng.IntN(5)), 0o644)
		case 5:
			_ = os.RemoveAll(p)
		case 6: // a directory anew hides what was in the old one
			_ = os.RemoveAll(p)
			_ = os.MkdirAll(p, 0o755)
		case 7:
			_ = os.Link(p, q)
		case 8:
			_ = os.Symlink("../"+filepath.Base(q), p)
		case 9:
			_ = os.Rename(p, q)
		case 10:
			_ = unix.Mkfifo(p+".fifo", 0o640) // a name that nothing above opens, which would wait
		case 11:
			_ = unix.Lsetxattr(p, "user.note", fmt.Appendf(nil, "%d", rng.IntN(9)), 0)
		}
		if rng.IntN(3) == 0 {
			_ = os.Lchown(q, rng.IntN(3), rng.IntN(3))
			if info, err := os.Lstat(q); err == nil && info.Mode()&fs.ModeSymlink == 0 {
				_ = unix.Fchmodat(unix.AT_FDCWD, q, modes[rng.IntN(len(modes))], 0)
			}
			_ = os.Chtimes(q, time.Time{}, time.Unix(int64(1e9+rng.IntN(1e6)), 5))
		}
	}
}

// Whatever is done in a chain of forks and wherever it is cut: the layers from there on as
// one look to overlayfs as they do one by one.
func TestMergedLayersLookAsTheChainDoes(t *testing.T) {
	t.Parallel()
	need.Overlay(t)
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 1))
		base := t.TempDir()
		dir := func(name string) string {
			p := filepath.Join(base, name)
			must(t, os.Mkdir(p, 0o755))
			return p
		}
		lowers := []string{dir("empty"), dir("bottom")}
		n, at := 2+rng.IntN(9), dir("at")
		for i := range n {
			upper := dir(fmt.Sprint(i))
			dir(fmt.Sprintf("%d-work", i))
			apart(t, func() error {
				return overlaid(at, lowers, upper, func(root string) error { mess(rng, root); return nil })
			})
			lowers = slices.Insert(lowers, 0, upper)
		}
		top := 2 + rng.IntN(n-1)
		into := dir("merged")
		written, found, err := overlay.MergeDirs(t.Context(), lowers[:top], lowers[top:], into)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if written != found {
			t.Errorf("seed %d: the digest is %s, of what lies there %s", seed, written, found)
		}
		var want, got []string
		apart(t, func() error {
			look := func(lines *[]string) func(string) error {
				return func(root string) (err error) { *lines, err = lookOf(root, true); return err }
			}
			if err := overlaid(at, lowers, "", look(&want)); err != nil {
				return err
			}
			return overlaid(at, append([]string{into}, lowers[top:]...), "", look(&got))
		})
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("seed %d, %d of %d layers merged (-chain +merged):\n%s", seed, top, n, diff)
		}
		if len(want) == 0 && n > 4 {
			t.Errorf("seed %d: nothing in the tree", seed)
		}
	}
}

// step seals a world of another one and what a step of a chain changes: a file of its own, one
// that all write, and the one of the step before gone.
func step(t *testing.T, s *overlay.Store, world string, n int, ahead bool) overlay.World {
	t.Helper()
	f, err := s.Fork(t.Context(), world)
	must(t, err)
	defer f.Release()
	if ahead {
		must(t, f.Compact(t.Context()))
	}
	upper := tree(t, map[string]string{fmt.Sprintf("d/own-%d", n): fmt.Sprint(n), "d/all": fmt.Sprint("all ", n)})
	must(t, os.Chtimes(filepath.Join(upper, "d"), time.Unix(1e9, 0), time.Unix(1e9, 0)))
	for _, p := range []string{fmt.Sprintf("d/own-%d", n), "d/all"} {
		must(t, os.Chtimes(filepath.Join(upper, p), time.Unix(1e9, 0), time.Unix(1e9, 0)))
	}
	if n%3 == 1 {
		must(t, unix.Mknod(filepath.Join(upper, fmt.Sprintf("d/own-%d", n-1)), unix.S_IFCHR, 0))
	}
	dir, err := os.Open(upper)
	must(t, err)
	defer dir.Close()
	w, err := f.Seal(t.Context(), overlay.SealInput{Upper: dir, Recipe: "branch", Branch: true})
	must(t, err)
	return w
}

func TestChainsOfBranchesStayShort(t *testing.T) {
	t.Parallel()
	need.Root(t)
	const steps = 100
	chain := func(ahead bool) (*overlay.Store, []overlay.World) {
		s := openStore(t, overlay.Options{})
		b, err := s.Build(t.Context(), overlay.Recipe{Dir: tree(t, map[string]string{"base": "b", "d/own-0": "0"})}, nil)
		must(t, err)
		worlds := []overlay.World{b.World}
		for n := range steps {
			worlds = append(worlds, step(t, s, worlds[n].ID, n+1, ahead && n%2 == 0))
		}
		return s, worlds
	}
	s, worlds := chain(false)
	for n, w := range worlds {
		if w.Branched > overlay.MaxChain || len(w.Layers) != w.Branched+1 || w.Layers[0] != worlds[0].Layers[0] {
			t.Fatalf("after %d branches: %d layers, %d of branches", n, len(w.Layers), w.Branched)
		}
	}
	_, again := chain(true)
	if got, want := again[steps].ID, worlds[steps].ID; got != want {
		t.Errorf("the same chain in another store, mergers made ahead, is %s, want %s", got, want)
	}
	last := worlds[steps]
	must(t, s.Verify(t.Context(), last.ID, nil))
	v, err := s.View(t.Context(), last.ID)
	must(t, err)
	defer v.Close()
	for n := range steps + 1 {
		want := "file"
		if n%3 == 0 && n < steps { // the next one took it away
			want = ""
		}
		if got, _, err := v.Kind(fmt.Sprintf("/d/own-%d", n)); got != want || err != nil {
			t.Errorf("own-%d of the last world is %q (%v), want %q", n, got, err, want)
		}
	}
	if got, err := v.ReadFile("/d/all", 100); string(got) != fmt.Sprint("all ", steps) || err != nil {
		t.Errorf("the file that all write says %q, %v", got, err)
	}
}

func TestSiblingsShareAMergerAndItGoesWithItsWorld(t *testing.T) {
	t.Parallel()
	need.Root(t)
	s := openStore(t, overlay.Options{})
	b, err := s.Build(t.Context(), overlay.Recipe{Dir: tree(t, map[string]string{"base": "b"})}, nil)
	must(t, err)
	w := b.World
	for n := range overlay.MaxChain {
		w = step(t, s, w.ID, 3*n+2, false)
	}
	if w.Branched != overlay.MaxChain {
		t.Fatalf("a chain of %d layers", w.Branched)
	}
	one, two := step(t, s, w.ID, 1000, false), step(t, s, w.ID, 2000, true)
	if n := len(one.Layers); n != len(two.Layers) || n > 3 || !slices.Equal(one.Layers[:n-1], two.Layers[:n-1]) {
		t.Errorf("siblings on %v and %v, want one merged layer below both", one.Layers, two.Layers)
	}
	all, err := s.List(t.Context())
	must(t, err)
	mergers := 0
	for _, o := range all {
		if o.Recipe == overlay.MergedRecipe {
			mergers++
		}
	}
	if mergers != 1 {
		t.Errorf("%d worlds of merged layers, want one for both", mergers)
	}
	// What stands on the merged layer keeps it; the world that it was made of takes the rest along.
	must(t, s.Remove(t.Context(), w.ID))
	must(t, s.Verify(t.Context(), one.ID, nil))
	if all, err = s.List(t.Context()); err != nil || slices.ContainsFunc(all, func(o overlay.World) bool { return o.Recipe == overlay.MergedRecipe }) {
		t.Errorf("List() = %v, %v: a merger outlived its world", all, err)
	}
	for _, o := range all {
		must(t, s.Remove(t.Context(), o.ID))
	}
	nothingLeft(t, s)
}

func TestAForkStandsOnNoMoreLayersThanOverlayfsManagesWell(t *testing.T) {
	t.Parallel()
	need.Root(t)
	s := openStore(t, overlay.Options{})
	b, err := s.Build(t.Context(), overlay.Recipe{Dir: tree(t, map[string]string{"f0": "0"})}, nil)
	must(t, err)
	w := b.World
	for n := range 139 {
		b, err := s.Build(t.Context(), overlay.Recipe{Base: w.ID, Dir: tree(t, map[string]string{fmt.Sprintf("f%d", n+1): fmt.Sprint(n + 1)})}, nil)
		must(t, err)
		w = b.World
	}
	f, err := s.Fork(t.Context(), w.ID)
	must(t, err)
	defer f.Release()
	if f.World().ID != w.ID || len(f.World().Layers) != 140 {
		t.Errorf("a fork of world %s, %d layers; want the world's own %s, 140", f.World().ID, len(f.World().Layers), w.ID)
	}
	if n := len(f.Lowers()); n > 129 {
		t.Errorf("it stands on %d directories", n)
	}
	got := 0
	for n := range 140 {
		for _, l := range f.Lowers() {
			if text, err := os.ReadFile(filepath.Join(l, fmt.Sprintf("f%d", n))); err == nil && string(text) == fmt.Sprint(n) {
				got++
				break
			}
		}
	}
	if got != 140 {
		t.Errorf("%d of 140 files are there", got)
	}
	if err := s.Remove(t.Context(), w.ID); err == nil {
		t.Error("the world was removed under its fork")
	}
}

// What is sealed of whatever an overlay left has the digest of what lies in the store, and
// looks as the fork did.
func TestSealedLayersDigestIsThatOfItsTree(t *testing.T) {
	t.Parallel()
	need.Overlay(t)
	s := openStore(t, overlay.Options{})
	b, err := s.Build(t.Context(), overlay.Recipe{Dir: tree(t, map[string]string{"a/b/c": "c", "a/d": "d", "b/a/a": "a", "c": "->a", "d/": ""})}, nil)
	must(t, err)
	world := b.World.ID
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 2))
		f, err := s.Fork(t.Context(), world)
		must(t, err)
		defer f.Release()
		base := t.TempDir()
		at, upper := filepath.Join(base, "at"), filepath.Join(base, "upper")
		for _, dir := range []string{at, upper, upper + "-work"} {
			must(t, os.Mkdir(dir, 0o755))
		}
		var want, got []string
		apart(t, func() error {
			return overlaid(at, f.Lowers(), upper, func(root string) (err error) {
				mess(rng, root)
				want, err = lookOf(root, false)
				return err
			})
		})
		dir, err := os.Open(upper)
		must(t, err)
		w, err := f.Seal(t.Context(), overlay.SealInput{Upper: dir, Recipe: "branch", Branch: seed%2 == 0})
		must(t, err)
		must(t, dir.Close())
		if err := s.Verify(t.Context(), w.ID, nil); err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
		on, err := s.Fork(t.Context(), w.ID)
		must(t, err)
		apart(t, func() error {
			return overlaid(at, on.Lowers(), "", func(root string) (err error) { got, err = lookOf(root, false); return err })
		})
		on.Release()
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("seed %d (-fork +sealed):\n%s", seed, diff)
		}
		if world = w.ID; len(w.Layers) == 9 { // all names must fit in a page here
			world = b.World.ID
		}
	}
}

// A time that the upper's file system keeps and the store's may not: the digest is of what the
// store has.
func TestSealOfATimeThatTheStoreMayNotKeep(t *testing.T) {
	t.Parallel()
	s := openStore(t, overlay.Options{})
	b, err := s.Build(t.Context(), overlay.Recipe{Dir: tree(t, map[string]string{"old": "x"})}, nil)
	must(t, err)
	f, err := s.Fork(t.Context(), b.World.ID)
	must(t, err)
	defer f.Release()
	upper := need.Tmpfs(t)
	for name, at := range map[string]time.Time{"far": time.Unix(64060588799, 7), "past": time.Unix(-9e9, 0), "fine": time.Unix(1e9, 123456789)} {
		p := filepath.Join(upper, name)
		must(t, os.WriteFile(p, []byte(name), 0o644))
		must(t, os.Chtimes(p, at, at))
	}
	dir, err := os.Open(upper)
	must(t, err)
	defer dir.Close()
	w, err := f.Seal(t.Context(), overlay.SealInput{Upper: dir, Recipe: "branch"})
	must(t, err)
	must(t, s.Verify(t.Context(), w.ID, nil))
}
