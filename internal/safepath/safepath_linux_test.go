package safepath

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// testTree makes a tree beside a secret and opens it.
func testTree(t *testing.T) (dir string, root int) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "tree")
	link := func(target, name string) error { return os.Symlink(target, filepath.Join(dir, name)) }
	if err := errors.Join(
		os.MkdirAll(filepath.Join(dir, "a/b"), 0o755),
		os.WriteFile(filepath.Join(dir, "a/b/f"), []byte("inside"), 0o644),
		os.WriteFile(filepath.Join(dir, "../secret"), []byte("outside"), 0o644),
		link("a/b/f", "rel"), link("/a/b/f", "abs"), link("../secret", "up"), link("/proc/self/root", "magic"),
		link("one", "two"), link("two", "one"), link("/a/b/new", "fresh"), link("fresh", "fresher"), link("b", "a/toB"),
		link(filepath.Join(dir, "../secret"), "host"), link("toB/new", "a/viaB"),
	); err != nil {
		t.Fatal(err)
	}
	root, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeFD(root) })
	return dir, root
}

func TestOpenStaysInTheTree(t *testing.T) {
	t.Parallel()
	_, root := testTree(t)
	for _, c := range []struct {
		path            string
		inRoot, beneath error
	}{
		{"a/b/f", nil, nil},
		{"/a/b/f", nil, unix.EXDEV},
		{"a/../a/b/f", nil, nil},
		{"../../../a/b/f", nil, unix.EXDEV},
		{"rel", nil, nil},
		{"abs", nil, unix.EXDEV},
		{"up", unix.ENOENT, unix.EXDEV},
		{"host", unix.ENOENT, unix.EXDEV},
		{"magic", unix.ENOENT, unix.EXDEV},
		{"one", unix.ELOOP, unix.ELOOP},
		{"a/b/f/x", unix.ENOTDIR, unix.ENOTDIR},
		{strings.Repeat("x", 5000), unix.ENAMETOOLONG, unix.ENAMETOOLONG},
	} {
		for name, r := range map[string]Root{"in root": InRoot(root), "beneath": Beneath(root)} {
			want := c.inRoot
			if name == "beneath" {
				want = c.beneath
			}
			fd, err := r.Open(c.path, unix.O_PATH)
			if !errors.Is(err, want) {
				t.Errorf("%s: Open(%.20q) = %v, want %v", name, c.path, err, want)
			}
			if err == nil {
				closeFD(fd)
			}
		}
	}
}

func TestOtherMountsAndMagicLinksAreNotReached(t *testing.T) {
	t.Parallel()
	root, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer closeFD(root)
	for _, path := range []string{"/proc/version", "/proc", "/dev/null", "/proc/self/root/etc"} {
		if fd, err := InRoot(root).Open(path, unix.O_PATH); !errors.Is(err, unix.EXDEV) {
			t.Errorf("Open(%q) = %d, %v, want EXDEV", path, fd, err)
		}
	}
	proc, err := unix.Open("/proc", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer closeFD(proc)
	if fd, err := InRoot(proc).Open("self/root", unix.O_PATH); !errors.Is(err, unix.ELOOP) {
		t.Errorf("Open() of a magic link = %d, %v, want ELOOP", fd, err)
	}
}

func TestPathsWithoutMeaningAreInvalid(t *testing.T) {
	t.Parallel()
	_, root := testTree(t)
	r := InRoot(root)
	for _, path := range []string{"", "a\x00b"} {
		if _, err := r.Open(path, unix.O_PATH); !isInvalid(err) {
			t.Errorf("Open(%q) = %v, want an *InvalidError", path, err)
		}
	}
	for _, path := range []string{"", "/", "//", ".", "..", "a/..", "a/.", "a/../", "a\x00b"} {
		if _, _, err := r.Parent(path); !isInvalid(err) {
			t.Errorf("Parent(%q) = %v, want an *InvalidError", path, err)
		}
	}
	for _, name := range []string{"", ".", "..", "a/b", "/", "a\x00"} {
		if _, err := Child(root, name, unix.O_PATH); !isInvalid(err) {
			t.Errorf("Child(%q) = %v, want an *InvalidError", name, err)
		}
	}
}

func isInvalid(err error) bool {
	_, ok := errors.AsType[*InvalidError](err)
	return ok
}

func TestParentAndTarget(t *testing.T) {
	t.Parallel()
	dir, root := testTree(t)
	r := InRoot(root)
	for _, c := range []struct {
		path           string
		parent, target string // the directory in the tree, and the base
	}{
		{"/a/b/f", "/a/b f", "/a/b f"},
		{"a/b/f/", "/a/b f", "/a/b f"},
		{"/a/b/none", "/a/b none", "/a/b none"},
		{"/rel", "/ rel", "/a/b f"},
		{"/abs", "/ abs", "/a/b f"},
		{"/fresh", "/ fresh", "/a/b new"},
		{"/fresher", "/ fresher", "/a/b new"},
		{"/a/viaB", "/a viaB", "/a/b new"},
		{"/a/toB/../viaB", "/a viaB", "/a/b new"},
		{"/up", "/ up", "/ secret"},
		{"/one", "/ one", "ELOOP"},
	} {
		for name, f := range map[string]func(string) (int, string, error){"Parent": r.Parent, "Target": r.Target} {
			want := c.parent
			if name == "Target" {
				want = c.target
			}
			fd, base, err := f(c.path)
			if err != nil {
				if !errors.Is(err, unix.ELOOP) || want != "ELOOP" {
					t.Errorf("%s(%q) = %v, want %q", name, c.path, err, want)
				}
				continue
			}
			at, err := os.Readlink(ProcPath(fd))
			closeFD(fd)
			if err != nil {
				t.Fatal(err)
			}
			if got := "/" + strings.TrimPrefix(strings.TrimPrefix(at, dir), "/") + " " + base; got != want {
				t.Errorf("%s(%q) = %q, want %q", name, c.path, got, want)
			}
		}
	}
}

func TestChildFollowsNothing(t *testing.T) {
	t.Parallel()
	_, root := testTree(t)
	if fd, err := Child(root, "rel", unix.O_RDONLY); !errors.Is(err, unix.ELOOP) {
		t.Errorf("Child() of a link = %d, %v, want ELOOP", fd, err)
	}
	fd, err := Child(root, "rel", unix.O_PATH)
	if err != nil {
		t.Fatal(err)
	}
	defer closeFD(fd)
	if target, err := Readlink(fd, ""); err != nil || target != "a/b/f" {
		t.Errorf("Readlink() = %q, %v", target, err)
	}
}

func TestReopenReadsWhatWasResolved(t *testing.T) {
	t.Parallel()
	dir, root := testTree(t)
	fd, err := InRoot(root).Open("/abs", unix.O_PATH)
	if err != nil {
		t.Fatal(err)
	}
	defer closeFD(fd)
	// What the path leads to now is another file; the descriptor is still the first.
	if err := os.Rename(filepath.Join(dir, "up"), filepath.Join(dir, "a/b/f")); err != nil {
		t.Fatal(err)
	}
	file, err := Reopen(fd, unix.O_RDONLY)
	if err != nil {
		t.Fatal(err)
	}
	defer closeFD(file)
	buf := make([]byte, 10)
	if n, err := unix.Read(file, buf); err != nil || string(buf[:n]) != "inside" {
		t.Errorf("read %q, %v", buf[:n], err)
	}
}
