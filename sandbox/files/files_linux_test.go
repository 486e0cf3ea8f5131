package files

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paddock-run/paddock/internal/need"
	"github.com/paddock-run/paddock/policies"
	"github.com/paddock-run/paddock/runner"
	"github.com/paddock-run/paddock/sandbox"
)

var _ runner.Files = (*Tree)(nil)

// testIDs is the map of the test trees.
var testIDs = sandbox.IDMap{HostID: 300000, Size: sandbox.IDRangeSize}

var (
	root = sandbox.User{}
	user = sandbox.User{UID: 1000, GID: 1000}
)

// fixture is a tree, and the way by which the test reaches it as host root.
type fixture struct {
	*Tree
	dir string
}

// newFixture returns an empty tree on a tmpfs whose top belongs to the sandbox's root.
func newFixture(tb testing.TB) fixture {
	tb.Helper()
	need.Root(tb)
	return fixtureAt(tb, need.Tmpfs(tb))
}

func fixtureAt(tb testing.TB, dir string) fixture {
	tb.Helper()
	if err := errors.Join(os.Chmod(dir, 0o755), os.Chown(dir, int(testIDs.HostID), int(testIDs.HostID))); err != nil {
		tb.Fatal(err)
	}
	f, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = f.Close() })
	return fixture{New(f, testIDs), dir}
}

// overlayFixture is a tree on an overlay with one lower layer, mounted nowhere.
func overlayFixture(tb testing.TB, lower func(dir string)) fixture {
	tb.Helper()
	need.Root(tb)
	base := need.Tmpfs(tb)
	for _, d := range []string{"lower", "upper", "workdir"} {
		if err := os.Mkdir(filepath.Join(base, d), 0o755); err != nil {
			tb.Fatal(err)
		}
	}
	shift := func(d string) { chownTree(tb, d, testIDs.HostID) }
	lower(filepath.Join(base, "lower"))
	shift(filepath.Join(base, "lower"))
	shift(filepath.Join(base, "upper"))
	fd := detached(tb, "overlay", map[string]string{
		"lowerdir": filepath.Join(base, "lower"), "upperdir": filepath.Join(base, "upper"), "workdir": filepath.Join(base, "workdir"),
		"redirect_dir": "nofollow", "metacopy": "off", "index": "off",
	})
	return fixture{New(fd, testIDs), fmt.Sprintf("/proc/self/fd/%d", fd.Fd())}
}

// detached makes a mount that is attached nowhere and so gone with its descriptor.
func detached(tb testing.TB, fstype string, options map[string]string) *os.File {
	tb.Helper()
	fs, err := unix.Fsopen(fstype, unix.FSOPEN_CLOEXEC)
	if err != nil {
		tb.Fatal(err)
	}
	defer closeFD(fs)
	for k, v := range options {
		if err := unix.FsconfigSetString(fs, k, v); err != nil {
			tb.Fatalf("%s: %s=%s: %v", fstype, k, v, err)
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		tb.Fatal(err)
	}
	mnt, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
	if err != nil {
		tb.Fatal(err)
	}
	f := os.NewFile(uintptr(mnt), fstype)
	tb.Cleanup(func() { _ = f.Close() })
	return f
}

func chownTree(tb testing.TB, dir string, by uint32) {
	tb.Helper()
	err := filepath.WalkDir(dir, func(p string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(p, &st); err != nil {
			return err
		}
		if err := os.Lchown(p, int(st.Uid+by), int(st.Gid+by)); err != nil || st.Mode&unix.S_IFMT == unix.S_IFLNK {
			return err
		}
		return unix.Chmod(p, st.Mode&0o7777) // chown drops set-id bits
	})
	if err != nil {
		tb.Fatal(err)
	}
}

// put makes a file or directory (with a trailing slash) from outside, owner as inside.
func (f fixture) put(tb testing.TB, name, content string, mode uint32, uid uint32) {
	tb.Helper()
	p := filepath.Join(f.dir, name)
	var err error
	if strings.HasSuffix(name, "/") {
		err = os.Mkdir(p, 0o700)
	} else {
		err = os.WriteFile(p, []byte(content), 0o600)
	}
	host := int(testIDs.HostID + uid)
	if err := errors.Join(err, os.Lchown(p, host, host), unix.Chmod(p, mode)); err != nil {
		tb.Fatal(err)
	}
}

// hostStat is what is really there.
func (f fixture) hostStat(tb testing.TB, name string) unix.Stat_t {
	tb.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(filepath.Join(f.dir, name), &st); err != nil {
		tb.Fatal(err)
	}
	return st
}

func (f fixture) read(as sandbox.User, name string) (string, error) {
	var b bytes.Buffer
	_, err := f.Read(context.Background(), as, name, &b, 0, -1)
	return b.String(), err
}

func (f fixture) write(as sandbox.User, name, content string) error {
	_, err := f.Write(context.Background(), as, name, strings.NewReader(content), 0)
	return err
}

// residue lists temporary names that were left behind.
func (f fixture) residue(tb testing.TB) []string {
	tb.Helper()
	var left []string
	err := filepath.WalkDir(f.dir+"/", func(p string, _ os.DirEntry, err error) error {
		if strings.HasPrefix(filepath.Base(p), ".paddock-") {
			left = append(left, p)
		}
		return err
	})
	if err != nil {
		tb.Fatal(err)
	}
	return left
}

func kindOf(err error) string {
	if err == nil {
		return ""
	}
	if e, ok := errors.AsType[*sandbox.FileError](err); ok {
		return e.Kind
	}
	return "no FileError: " + err.Error()
}

func wantKind(tb testing.TB, what string, err error, want string) {
	tb.Helper()
	if got := kindOf(err); got != want {
		tb.Errorf("%s = %v (kind %q), want kind %q", what, err, got, want)
	}
}

// within fails the test if f takes longer than anything here may.
func within(tb testing.TB, d time.Duration, what string, f func()) {
	tb.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(d):
		tb.Fatalf("%s: hangs", what)
	}
}

// F01, F13.
func TestBytesSurviveUnchanged(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var all []byte
	for range 1000 {
		for b := range 256 {
			all = append(all, byte(b))
		}
	}
	for name, content := range map[string]string{"/bin": string(all), "/crlf": "a\r\nb\r\n", "/lf": "a\nb", "/empty": ""} {
		if err := f.write(root, name, content); err != nil {
			t.Fatal(err)
		}
		if got, err := f.read(root, name); err != nil || sha256.Sum256([]byte(got)) != sha256.Sum256([]byte(content)) {
			t.Errorf("%s: read %d bytes, %v; wrote %d", name, len(got), err, len(content))
		}
	}
}

func TestReadTakesAPart(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.put(t, "f", "0123456789", 0o644, 0)
	for _, c := range []struct {
		off, max int64
		want     string
	}{{0, -1, "0123456789"}, {3, 2, "34"}, {8, 10, "89"}, {10, -1, ""}, {1 << 40, 5, ""}, {0, 0, ""}} {
		var b bytes.Buffer
		info, err := f.Read(t.Context(), root, "/f", &b, c.off, c.max)
		if err != nil || b.String() != c.want || info.Size != 10 || info.Name != "f" {
			t.Errorf("Read(%d, %d) = %q, %+v, %v, want %q", c.off, c.max, b.String(), info, err, c.want)
		}
	}
	_, err := f.Read(t.Context(), root, "/f", io.Discard, -1, 1)
	wantKind(t, "negative offset", err, "io")
}

// F02, X-F15.
func TestOddNamesRoundTrip(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	names := []string{
		"🤣.txt", "a b", "-rf", "x\ny", "%2e%2e", "\xff\xfe", strings.Repeat("n", 255), " lead", "trail ", "...", "..x", "\x01", `"`, "'",
	}
	for _, n := range names {
		if err := f.write(user, "/"+n, n); err == nil {
			t.Fatalf("user 1000 writes into root's directory")
		}
		if err := f.write(root, "/"+n, n); err != nil {
			t.Fatalf("write %q: %v", n, err)
		}
	}
	entries, more, err := f.List(t.Context(), root, "/", 0)
	if err != nil || more {
		t.Fatal(entries, more, err)
	}
	want := slices.Sorted(slices.Values(names))
	for i, e := range entries {
		if e.Name != want[i] || e.Type != sandbox.RegularFile || e.Size != int64(len(want[i])) {
			t.Errorf("entry %d = %+v, want %q", i, e, want[i])
		}
	}
	var packed bytes.Buffer
	if err := f.Tar(t.Context(), root, "/", &packed); err != nil {
		t.Fatal(err)
	}
	g := newFixture(t)
	if n, err := g.Untar(t.Context(), root, "/", &packed, sandbox.TarLimits{}); err != nil || n != int64(len(names)) {
		t.Fatalf("Untar() = %d, %v", n, err)
	}
	for _, n := range names {
		if got, err := g.read(root, "/"+n); err != nil || got != n {
			t.Errorf("read %q after a download and an upload = %q, %v", n, got, err)
		}
		if info, err := g.Stat(t.Context(), root, "/"+n); err != nil || info.Name != n {
			t.Errorf("Stat(%q) = %+v, %v", n, info, err)
		}
		if err := g.Remove(t.Context(), root, "/"+n); err != nil {
			t.Errorf("Remove(%q) = %v", n, err)
		}
	}
	if left, err := os.ReadDir(g.dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// F04, F05, X-F02.
func TestErrorsAreTyped(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.put(t, "etc/", "", 0o755, 0)
	f.put(t, "file", "x", 0o644, 0)
	f.put(t, "secret", "x", 0o600, 0)
	f.put(t, "closed/", "", 0o700, 0)
	f.put(t, "closed/f", "x", 0o644, 0)
	f.put(t, "open/", "", 0o777, 0)
	for link, target := range map[string]string{"loop": "loop", "dangling": "/nowhere/x", "up": "../../../../secret"} {
		if err := os.Symlink(target, filepath.Join(f.dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	long := "/" + strings.Repeat("n", 256)
	deep := strings.Repeat("/d", 2100)
	for _, c := range []struct {
		as   sandbox.User
		path string
		// The kinds for read, write, list, stat, tar, remove; "-" is not tried.
		read, write, list, stat, tar, remove string
	}{
		{root, "/missing", "not_found", "-", "not_found", "not_found", "not_found", "not_found"},
		{root, "/missing/x", "not_found", "not_found", "not_found", "not_found", "not_found", "not_found"},
		{root, "/etc", "is_directory", "is_directory", "", "", "", "-"},
		{root, "/etc/", "is_directory", "is_directory", "", "", "", "-"},
		{root, "/etc/..", "is_directory", "invalid_path", "", "", "invalid_path", "invalid_path"},
		{root, "/etc/.", "is_directory", "invalid_path", "", "", "invalid_path", "invalid_path"},
		{root, "/", "is_directory", "is_directory", "", "", "-", "invalid_path"},
		{root, "/file/x", "not_a_directory", "not_a_directory", "not_a_directory", "not_a_directory", "not_a_directory", "not_a_directory"},
		{root, "/file/", "not_a_directory", "is_directory", "not_a_directory", "not_a_directory", "", "-"},
		{root, "/file", "", "-", "not_a_directory", "", "", "-"},
		{root, "/loop", "too_many_links", "too_many_links", "too_many_links", "", "", "-"},
		{root, "/dangling", "not_found", "not_found", "not_found", "", "", "-"},
		{user, "/secret", "permission_denied", "permission_denied", "not_a_directory", "", "permission_denied", "permission_denied"},
		{user, "/up", "permission_denied", "permission_denied", "not_a_directory", "", "", "permission_denied"},
		{user, "/closed", "is_directory", "is_directory", "permission_denied", "", "permission_denied", "permission_denied"},
		{user, "/closed/f", "permission_denied", "permission_denied", "permission_denied", "permission_denied", "permission_denied", "permission_denied"},
		{user, "/new", "-", "permission_denied", "-", "-", "-", "-"},
		{root, "etc", "invalid_path", "invalid_path", "invalid_path", "invalid_path", "invalid_path", "invalid_path"},
		{root, ".", "invalid_path", "invalid_path", "invalid_path", "invalid_path", "invalid_path", "invalid_path"},
		{root, "../../x", "invalid_path", "invalid_path", "invalid_path", "invalid_path", "invalid_path", "invalid_path"},
		{root, "", "invalid_path", "invalid_path", "invalid_path", "invalid_path", "invalid_path", "invalid_path"},
		{root, "/a\x00b", "invalid_path", "invalid_path", "invalid_path", "invalid_path", "invalid_path", "invalid_path"},
		{root, long, "name_too_long", "name_too_long", "name_too_long", "name_too_long", "name_too_long", "name_too_long"},
		{root, deep, "name_too_long", "name_too_long", "name_too_long", "name_too_long", "name_too_long", "name_too_long"},
		{sandbox.User{UID: 65536}, "/file", "permission_denied", "permission_denied", "permission_denied", "permission_denied", "permission_denied", "permission_denied"},
		{sandbox.User{UID: 1, Groups: []uint32{70000}}, "/file", "permission_denied", "permission_denied", "permission_denied", "permission_denied", "permission_denied", "permission_denied"},
	} {
		for op, want := range map[string]string{"read": c.read, "write": c.write, "list": c.list, "stat": c.stat, "tar": c.tar, "remove": c.remove} {
			if want == "-" {
				continue
			}
			var err error
			switch op {
			case "read":
				_, err = f.read(c.as, c.path)
			case "write":
				err = f.write(c.as, c.path, "new")
			case "list":
				_, _, err = f.List(t.Context(), c.as, c.path, 0)
			case "stat":
				_, err = f.Stat(t.Context(), c.as, c.path)
			case "tar":
				err = f.Tar(t.Context(), c.as, c.path, io.Discard)
			case "remove":
				err = f.Remove(t.Context(), c.as, c.path)
			}
			wantKind(t, fmt.Sprintf("%s %.40q as %d", op, c.path, c.as.UID), err, want)
			if e, ok := errors.AsType[*sandbox.FileError](err); ok && e.Path == "" && c.path != "" {
				t.Errorf("%s %.40q: the error names no path", op, c.path)
			}
		}
	}
}

// T9: the sandbox's root is an ordinary user of the host and root of its own tree.
func TestRootOfTheSandboxRulesItsOwnTreeOnly(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.put(t, "home/", "", 0o700, 1000)
	f.put(t, "home/private", "old", 0o600, 1000)
	f.put(t, "home/readonly", "old", 0o400, 1000)
	for _, name := range []string{"/home/private", "/home/readonly"} {
		before := f.hostStat(t, name)
		if err := f.write(root, name, "new"); err != nil {
			t.Fatalf("root writes %s: %v", name, err)
		}
		if got, err := f.read(root, name); err != nil || got != "new" {
			t.Errorf("root reads %s: %q, %v", name, got, err)
		}
		after := f.hostStat(t, name)
		if after.Uid != before.Uid || after.Gid != before.Gid || after.Mode != before.Mode {
			t.Errorf("%s: owner and mode %d:%d %o, want %d:%d %o", name, after.Uid, after.Gid, after.Mode, before.Uid, before.Gid, before.Mode)
		}
	}
	if err := f.write(root, "/home/made", "x"); err != nil {
		t.Fatal(err)
	}
	if st := f.hostStat(t, "home/made"); st.Uid != testIDs.HostID || st.Gid != testIDs.HostID || st.Mode&0o7777 != 0o644 {
		t.Errorf("a file that root made: %d:%d %o", st.Uid, st.Gid, st.Mode)
	}
	if err := f.write(user, "/home/mine", "x"); err != nil {
		t.Fatal(err)
	}
	if st := f.hostStat(t, "home/mine"); st.Uid != testIDs.HostID+1000 || st.Gid != testIDs.HostID+1000 {
		t.Errorf("a file that user 1000 made: %d:%d", st.Uid, st.Gid)
	}
	// Owned by nobody of the sandbox: its root has no power over it, as inside.
	foreign := filepath.Join(f.dir, "home/foreign")
	if err := os.WriteFile(foreign, []byte("host"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := f.read(root, "/home/foreign")
	wantKind(t, "read of a foreign file", err, "permission_denied")
	wantKind(t, "write of a foreign file", f.write(root, "/home/foreign", "x"), "permission_denied")
	if err := os.Mkdir(filepath.Join(f.dir, "foreign"), 0o755); err != nil {
		t.Fatal(err)
	}
	wantKind(t, "write into a foreign directory", f.write(root, "/foreign/x", "x"), "permission_denied")
	if info, err := f.Stat(t.Context(), root, "/home/foreign"); err != nil || info.UID != overflowID {
		t.Errorf("Stat() of a foreign file = %+v, %v", info, err)
	}
}

func TestGroupsOfTheUserCount(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.put(t, "shared/", "", 0o770, 50)
	member := sandbox.User{UID: 1000, GID: 1000, Groups: []uint32{50}}
	if err := f.write(member, "/shared/f", "x"); err != nil {
		t.Errorf("a member of the group writes: %v", err)
	}
	wantKind(t, "a stranger writes", f.write(user, "/shared/g", "x"), "permission_denied")
}

// The identity is one thread's, for one call.
func TestIdentityEndsWithTheCall(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.put(t, "f", "x", 0o600, 0)
	// Only CAP_DAC_OVERRIDE opens this, and only with no user's identity.
	f.put(t, "locked", "x", 0, 5)
	locked := filepath.Join(f.dir, "locked")
	err := f.as(user, func(*session) error {
		done := make(chan error)
		go func() {
			_, err := os.ReadFile(locked)
			done <- err
		}()
		if err := <-done; err != nil {
			return fmt.Errorf("another thread has lost its rights: %w", err)
		}
		if _, err := os.ReadFile(locked); err == nil {
			return errors.New("the thread still has the daemon's rights")
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	for range 50 {
		if _, err := f.read(root, "/f"); err != nil {
			t.Fatal(err)
		}
		_, err := f.read(user, "/f")
		wantKind(t, "read", err, "permission_denied")
		if _, err := os.ReadFile(locked); err != nil {
			t.Fatalf("after a call: %v", err)
		}
	}
}

// F09.
func TestOverwriteLeavesNoTail(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]fixture{
		"tmpfs": newFixture(t),
		"overlay": overlayFixture(t, func(dir string) {
			if err := os.WriteFile(filepath.Join(dir, "lower"), []byte("LOWER LOWER"), 0o640); err != nil {
				t.Fatal(err)
			}
		}),
	} {
		files := []string{"/f"}
		if name == "overlay" {
			files = append(files, "/lower")
		} else {
			f.put(t, "lower", "LOWER", 0o640, 0)
		}
		for _, file := range files {
			if file == "/f" {
				if err := f.write(root, file, "AAAAAAAAAA"); err != nil {
					t.Fatal(err)
				}
			}
			mode := f.hostStat(t, file).Mode
			held, err := os.Open(filepath.Join(f.dir, file))
			if err != nil {
				t.Fatal(err)
			}
			if err := f.write(root, file, "B"); err != nil {
				t.Fatalf("%s: %s: %v", name, file, err)
			}
			if got, err := f.read(root, file); err != nil || got != "B" {
				t.Errorf("%s: %s = %q, %v, want B", name, file, got, err)
			}
			if now := f.hostStat(t, file).Mode; now != mode {
				t.Errorf("%s: %s has mode %o, want %o", name, file, now, mode)
			}
			if left := f.residue(t); len(left) > 0 {
				t.Errorf("%s: left %v", name, left)
			}
			if err := held.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// F15.
func TestBrokenUploadLeavesTheOldFile(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.put(t, "f", "old", 0o644, 1000)
	f.put(t, "dir/", "", 0o777, 0)
	broken := errors.New("connection lost")
	half := io.MultiReader(io.LimitReader(zeros{}, 25<<20), iotest.ErrReader(broken))
	for _, name := range []string{"/f", "/dir/new"} {
		_, err := f.Write(t.Context(), root, name, half, 0)
		wantKind(t, "broken upload", err, "io")
		if !errors.Is(err, broken) {
			t.Errorf("%v does not carry the reader's error", err)
		}
	}
	if got, err := f.read(root, "/f"); err != nil || got != "old" {
		t.Errorf("/f = %q, %v, want old", got, err)
	}
	_, err := f.Stat(t.Context(), root, "/dir/new")
	wantKind(t, "the new file", err, "not_found")
	if left := f.residue(t); len(left) > 0 {
		t.Errorf("left %v", left)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(broken)
	_, err = f.Write(ctx, root, "/f", zeros{}, 0)
	if wantKind(t, "cancelled upload", err, "io"); !errors.Is(err, broken) {
		t.Errorf("%v does not carry the cause", err)
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// X-F22 (Judge0's fault), and what a write through a link must do instead.
func TestWriteThroughALinkStaysInside(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	outside := filepath.Join(t.TempDir(), "host")
	if err := os.WriteFile(outside, []byte("host"), 0o666); err != nil {
		t.Fatal(err)
	}
	f.put(t, "dir/", "", 0o755, 0)
	f.put(t, "dir/real", "old", 0o644, 0)
	for link, target := range map[string]string{
		"out": outside, "climb": strings.Repeat("../", 30) + outside[1:], "in": "dir/real", "abs": "/dir/real", "chain": "abs",
		"dir/rel": "../dir/real", "fresh": "/dir/fresh",
	} {
		if err := os.Symlink(target, filepath.Join(f.dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	for _, link := range []string{"/out", "/climb"} {
		// Such a path does not exist inside.
		wantKind(t, "write to "+link, f.write(root, link, "evil"), "not_found")
	}
	if got, err := os.ReadFile(outside); err != nil || string(got) != "host" {
		t.Fatalf("the host's file holds %q, %v", got, err)
	}
	for i, link := range []string{"/in", "/abs", "/chain", "/dir/rel"} {
		want := fmt.Sprint(i)
		if err := f.write(root, link, want); err != nil {
			t.Fatalf("write to %s: %v", link, err)
		}
		if got, err := f.read(root, "/dir/real"); err != nil || got != want {
			t.Errorf("through %s: %q, %v, want %q", link, got, err, want)
		}
		if info, err := f.Stat(t.Context(), root, link); err != nil || info.Type != sandbox.Symlink {
			t.Errorf("%s is no longer a link: %+v, %v", link, info, err)
		}
	}
	if err := f.write(root, "/fresh", "made"); err != nil {
		t.Fatal(err)
	}
	if got, err := f.read(root, "/dir/fresh"); err != nil || got != "made" {
		t.Errorf("a link to a new file: %q, %v", got, err)
	}
}

// X-F04, X-F05.
func TestSpecialFilesAreNeverOpened(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	p := func(name string) string { return filepath.Join(f.dir, name) }
	sock, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer closeFD(sock)
	if err := errors.Join(
		unix.Mkfifo(p("fifo"), 0o666),
		unix.Mknod(p("null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))),
		unix.Mknod(p("disk"), unix.S_IFBLK|0o666, int(unix.Mkdev(7, 0))),
		unix.Bind(sock, &unix.SockaddrUnix{Name: p("sock")}),
	); err != nil {
		t.Fatal(err)
	}
	chownTree(t, f.dir, 0)
	for name, want := range map[string]sandbox.FileType{
		"/fifo": sandbox.FIFO, "/null": sandbox.CharDevice, "/disk": sandbox.BlockDevice, "/sock": sandbox.Socket,
	} {
		within(t, 5*time.Second, name, func() {
			_, err := f.read(root, name)
			wantKind(t, "read "+name, err, "not_a_regular_file")
			wantKind(t, "write "+name, f.write(root, name, "x"), "not_a_regular_file")
			_, _, err = f.List(t.Context(), root, name, 0)
			wantKind(t, "list "+name, err, "not_a_directory")
			if info, err := f.Stat(t.Context(), root, name); err != nil || info.Type != want {
				t.Errorf("Stat(%s) = %+v, %v, want type %s", name, info, err, want)
			}
		})
	}
	within(t, 5*time.Second, "tar", func() {
		var packed bytes.Buffer
		if err := f.Tar(t.Context(), root, "/", &packed); err != nil {
			t.Fatal(err)
		}
		wantNames(t, packed.Bytes(), []string{"4 disk", "6 fifo", "3 null"})
	})
	if err := f.Remove(t.Context(), root, "/fifo"); err != nil {
		t.Error(err)
	}
}

func TestSparseFileIsReadInPart(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.put(t, "huge", "head", 0o644, 0)
	if err := os.Truncate(filepath.Join(f.dir, "huge"), 50<<30); err != nil {
		t.Fatal(err)
	}
	within(t, 10*time.Second, "read", func() {
		var b bytes.Buffer
		info, err := f.Read(t.Context(), root, "/huge", &b, 0, 1<<20)
		if err != nil || b.Len() != 1<<20 || !strings.HasPrefix(b.String(), "head\x00") || info.Size != 50<<30 {
			t.Errorf("Read() = %d bytes, %+v, %v", b.Len(), info, err)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		_, err = f.Read(ctx, root, "/huge", writerFunc(func(b []byte) (int, error) {
			cancel(errors.New("enough"))
			return len(b), nil
		}), 0, -1)
		wantKind(t, "cancelled read", err, "io")
	})
}

type writerFunc func([]byte) (int, error)

func (w writerFunc) Write(b []byte) (int, error) { return w(b) }

// X-F18.
func TestFullDiskIsTyped(t *testing.T) {
	t.Parallel()
	need.Root(t)
	fd := detached(t, "tmpfs", map[string]string{"size": "1m", "nr_inodes": "20"})
	f := fixtureAt(t, fmt.Sprintf("/proc/self/fd/%d", fd.Fd()))
	f.Tree = New(fd, testIDs)
	if err := f.write(root, "/f", "old"); err != nil {
		t.Fatal(err)
	}
	_, err := f.Write(t.Context(), root, "/f", io.LimitReader(zeros{}, 2<<20), 0)
	wantKind(t, "write of too much", err, "no_space")
	if got, err := f.read(root, "/f"); err != nil || got != "old" {
		t.Errorf("after a full disk: %q, %v, want old", got, err)
	}
	for i := range 30 {
		if err = f.write(root, fmt.Sprintf("/f%d", i), ""); err != nil {
			break
		}
	}
	wantKind(t, "one file too many", err, "no_space")
	if err := f.Remove(t.Context(), root, "/f1"); err != nil {
		t.Errorf("Remove() on a full disk = %v", err)
	}
}

func TestReadOnlyTreeIsWritableInItsDirectoriesOnly(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.put(t, "etc/", "", 0o777, 0)
	f.put(t, "tmp/", "", 0o777, 0)
	f.put(t, "workdir/", "", 0o777, 0)
	f.put(t, "workdir/sub/", "", 0o777, 0)
	f.put(t, "etc/f", "x", 0o666, 0)
	for link, target := range map[string]string{"workdir/out": "/etc", "workdir/outfile": "/etc/f", "etc/in": "/tmp"} {
		if err := os.Symlink(target, filepath.Join(f.dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	f.Tree = NewReadOnly(f.root, testIDs, []string{"/tmp", "/workdir", "/nosuch"})
	for path, want := range map[string]string{
		"/workdir/a": "", "/workdir/sub/a": "", "/tmp/a": "", "/etc/in/b": "",
		"/a": "read_only", "/etc/a": "read_only", "/etc/f": "read_only", "/workdir/out/a": "read_only",
		"/workdir/outfile": "read_only", "/workdir/../a": "read_only", "/workdir/sub/../../etc/a": "read_only",
	} {
		wantKind(t, "write "+path, f.write(root, path, "x"), want)
	}
	for path, want := range map[string]string{"/etc/f": "read_only", "/workdir": "read_only", "/workdir/sub": "", "/workdir/out": ""} {
		wantKind(t, "remove "+path, f.Remove(t.Context(), root, path), want)
	}
	for dir, want := range map[string]string{"/workdir/x": "", "/etc": "read_only", "/new/x": "read_only", "/": "read_only"} {
		_, err := f.Untar(t.Context(), root, dir, tarOf(t, entry{name: "d/f", body: "x"}), sandbox.TarLimits{})
		wantKind(t, "untar into "+dir, err, want)
	}
}

// The policies say in the spec what is writable; the tree keeps to it.
func TestTreeFollowsTheSpec(t *testing.T) {
	t.Parallel()
	set, err := policies.Load()
	if err != nil {
		t.Fatal(err)
	}
	for policy, kind := range map[string]string{"default": "", "strict": "read_only"} {
		p, err := set.Get(policy)
		if err != nil {
			t.Fatal(err)
		}
		spec, err := p.Spec(p.Defaults(), "h", "/workdir")
		if err != nil {
			t.Fatal(err)
		}
		f := newFixture(t)
		f.put(t, "workdir/", "", 0o755, 1000)
		f.put(t, "tmp/", "", 0o1777, 0)
		f.put(t, "home/", "", 0o755, 1000)
		f.Tree = ForSpec(f.root, testIDs, spec)
		for _, dir := range []string{"/workdir", "/tmp"} {
			wantKind(t, policy+": write into "+dir, f.write(user, dir+"/f", "x"), "")
		}
		wantKind(t, policy+": write into /home", f.write(user, "/home/f", "x"), kind)
	}
	f := newFixture(t)
	f.Tree = ForSpec(f.root, testIDs, nil)
	wantKind(t, "without a spec", f.write(root, "/f", "x"), "")
}

// E29: nothing has a new file open for writing once its name is there.
func TestWrittenProgramsCanBeRunAtOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for i := range 200 {
		name := fmt.Sprintf("/p%d", i%3)
		if _, err := f.Write(t.Context(), root, name, strings.NewReader("#!/bin/true\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		// O_RDWR|O_TRUNC would do harm; this is what execve asks of the file.
		fd, err := unix.Open(filepath.Join(f.dir, name), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		// A read lease can be had only while nobody has the file open for writing.
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_RDLCK); err != nil {
			t.Fatalf("round %d: %v", i, err)
		}
		closeFD(fd)
	}
}

func TestWriteWhereOnlyTheFileIsWritable(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.put(t, "dir/", "", 0o755, 0)
	f.put(t, "dir/open", "a long old content", 0o666, 0)
	f.put(t, "tmp/", "", 0o1777, 0)
	f.put(t, "tmp/open", "a long old content", 0o4666, 0)
	for _, name := range []string{"/dir/open", "/tmp/open"} {
		if err := f.write(user, name, "new"); err != nil {
			t.Fatalf("write %s: %v", name, err)
		}
		if got, err := f.read(user, name); err != nil || got != "new" {
			t.Errorf("%s = %q, %v, want new", name, got, err)
		}
		if st := f.hostStat(t, name); st.Uid != testIDs.HostID || st.Mode&0o7777 != 0o666 {
			t.Errorf("%s: owner %d, mode %o", name, st.Uid, st.Mode)
		}
	}
	if left := f.residue(t); len(left) > 0 {
		t.Errorf("left %v", left)
	}
}

func TestListIsBoundedAndSorted(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for i := range 500 {
		f.put(t, fmt.Sprintf("%03d", (i*7919)%500), "", 0o644, 0)
	}
	for _, max := range []int{1, 3, 499, 500, 501, 0, -1} {
		entries, more, err := f.List(t.Context(), root, "/", max)
		want := 500
		if max > 0 {
			want = min(max, 500)
		}
		if err != nil || len(entries) != want || more != (want < 500) {
			t.Fatalf("List(%d) = %d entries, more %v, %v", max, len(entries), more, err)
		}
		for i, e := range entries {
			if e.Name != fmt.Sprintf("%03d", i) {
				t.Fatalf("List(%d): entry %d is %q", max, i, e.Name)
			}
		}
	}
}

func TestRemoveRefusesWhatTheSandboxHasMountsOn(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, d := range []string{"proc/", "dev/", "sys/", "etc/", "workdir/", "workdir/proc/"} {
		f.put(t, d, "", 0o755, 0)
	}
	f.put(t, "etc/hosts", "x", 0o644, 0)
	if err := os.Symlink("/", filepath.Join(f.dir, "here")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"/proc", "//proc/", "/workdir/../dev", "/here/sys", "/etc"} {
		wantKind(t, "remove "+name, f.Remove(t.Context(), root, name), "busy")
		if _, err := os.Stat(filepath.Join(f.dir, filepath.Base(name))); err != nil {
			t.Errorf("%s is gone: %v", name, err)
		}
	}
	strict := NewReadOnly(f.root, testIDs, []string{"/", "/workdir"})
	wantKind(t, "remove the writable directory", strict.Remove(t.Context(), root, "/workdir"), "busy")
	// Below a directory of the agent's own these names are ordinary.
	if err := f.Remove(t.Context(), root, "/workdir/proc"); err != nil {
		t.Error(err)
	}
}

func TestRemoveFollowsNoLinkAndKnowsNoDepth(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.put(t, "keep/", "", 0o755, 0)
	f.put(t, "keep/f", "x", 0o644, 0)
	f.put(t, "tree/", "", 0o755, 0)
	if err := os.Symlink("/keep", filepath.Join(f.dir, "tree/link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../keep", filepath.Join(f.dir, "link")); err != nil {
		t.Fatal(err)
	}
	for i := range 300 {
		f.put(t, fmt.Sprintf("tree/f%d", i), "", 0o644, 0)
	}
	// Deeper than any path can name.
	dir, err := unix.Open(filepath.Join(f.dir, "tree"), unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range 3000 {
		err := unix.Mkdirat(dir, "d", 0o755)
		down, openErr := unix.Openat(dir, "d", unix.O_PATH|unix.O_CLOEXEC, 0)
		if err := errors.Join(err, openErr, unix.Fchownat(down, "", int(testIDs.HostID), int(testIDs.HostID), unix.AT_EMPTY_PATH)); err != nil {
			t.Fatal(err)
		}
		closeFD(dir)
		dir = down
	}
	closeFD(dir)
	wantKind(t, "tar of a very deep tree", f.Tar(t.Context(), root, "/tree", io.Discard), "too_large")
	wantKind(t, "remove as a stranger", f.Remove(t.Context(), user, "/tree"), "permission_denied")
	for _, name := range []string{"/tree", "/link"} {
		if err := f.Remove(t.Context(), root, name); err != nil {
			t.Fatal(err)
		}
	}
	left, err := os.ReadDir(f.dir)
	if err != nil || len(left) != 1 || left[0].Name() != "keep" {
		t.Errorf("left: %v, %v", left, err)
	}
	if got, err := f.read(root, "/keep/f"); err != nil || got != "x" {
		t.Errorf("what a link led to: %q, %v", got, err)
	}
}
