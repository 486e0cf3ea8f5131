package overlay_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/paddock-run/paddock/internal/need"
	"github.com/paddock-run/paddock/overlay"
)

// testWorld makes a world of files and forks it.
func testWorld(t *testing.T, files map[string]string) *overlay.Fork {
	t.Helper()
	s := openStore(t, overlay.Options{})
	b, err := s.Build(t.Context(), overlay.Recipe{Dir: tree(t, files)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	f, err := s.Fork(t.Context(), b.World.ID)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Release)
	return f
}

// tree writes files; a name with a slash at its end is a directory, a text that begins
// with -> a symlink.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		p := filepath.Join(dir, name)
		must(t, os.MkdirAll(filepath.Dir(p), 0o755))
		target, link := strings.CutPrefix(text, "->")
		switch {
		case strings.HasSuffix(name, "/"):
			must(t, os.MkdirAll(p, 0o755))
		case link:
			must(t, os.Symlink(target, p))
		default:
			must(t, os.WriteFile(p, []byte(text), 0o644))
		}
	}
	return dir
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// mounted runs a shell script in a root that overlayfs makes of lowers and upper, in a
// mount namespace of its own.
func mounted(t *testing.T, lowers []string, upper, script string) string {
	t.Helper()
	need.Overlay(t)
	base := t.TempDir()
	at, work := filepath.Join(base, "at"), upper+"-work"
	must(t, os.MkdirAll(at, 0o755))
	must(t, os.MkdirAll(work, 0o755))
	options := "redirect_dir=nofollow,metacopy=off,index=off,lowerdir=" + strings.Join(lowers, ":")
	if upper != "" {
		options += ",upperdir=" + upper + ",workdir=" + work
	}
	cmd := exec.CommandContext(t.Context(), "unshare", "-m", "sh", "-ec",
		`mount -t overlay -o "$1" overlay "$2"; cd "$2"; eval "$3"`, "sh", options, at, script)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("script in overlay: %v\n%s", err, out)
	}
	return string(out)
}

func capture(t *testing.T, f *overlay.Fork, upper string, in overlay.CaptureInput) overlay.Capture {
	t.Helper()
	dir, err := os.Open(upper)
	must(t, err)
	defer dir.Close()
	in.Upper = dir
	c, err := f.Capture(t.Context(), in)
	if err != nil {
		t.Fatalf("Capture: %v", err)
	}
	return c
}

// brief is a line for each change.
func brief(c overlay.Capture) []string {
	out := []string{}
	for _, ch := range c.Changes {
		line := fmt.Sprintf("%s %s %s", ch.Kind, ch.Type, ch.Path)
		if ch.Target != "" {
			line += " -> " + ch.Target
		}
		if ch.LinkedTo != "" {
			line += " = " + ch.LinkedTo
		}
		if ch.Opaque {
			line += " opaque"
		}
		out = append(out, strings.Join(strings.Fields(line), " "))
	}
	return out
}

var captureWorld = map[string]string{
	"d/a": "a", "d/b": "b", "d/sub/c": "c", "keep/x": "x", "file": "file", "link": "->file", "becomes": "file",
	"tree/1": "1", "tree/2": "2", "tree/in/3": "3",
}

func TestCaptureOfARealOverlay(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, script string
		want         []string
	}{
		{"nothing", `true`, []string{}},
		{"read only", `cat d/a keep/x >/dev/null`, []string{}},
		{"touched and changed back", `touch file; chmod 600 d/a; chmod 644 d/a; echo -n x >keep/x`, []string{}},
		{"created beside", `echo hi >keep/new; mkdir -p e/f`, []string{"created dir /e", "created dir /e/f", "created file /keep/new"}},
		{"modified", `echo more >>file; chmod 755 d/a`, []string{"modified file /d/a", "modified file /file"}},
		{"deleted", `rm d/a; rm -r tree`, []string{"deleted /d/a", "deleted /tree"}},
		{"renamed", `mv file moved`, []string{"deleted /file", "created file /moved"}},
		{"directory made anew", `rm -r tree; mkdir tree; echo 1 >tree/new; echo -n 2 >tree/2`, []string{
			"modified dir /tree opaque", "deleted /tree/1", "deleted /tree/in", "created file /tree/new",
		}},
		{"nested in one made anew", `rm -r tree; mkdir -p tree/in; echo n >tree/in/n`, []string{
			"modified dir /tree opaque", "deleted /tree/1", "deleted /tree/2", "deleted /tree/in/3", "created file /tree/in/n",
		}},
		{"types", `rm becomes; mkdir becomes; touch becomes/x; rm -r d; ln -s /etc/shadow d; mkfifo p; rm link; ln -s d link`, []string{
			"type_changed dir /becomes", "created file /becomes/x", "type_changed symlink /d -> /etc/shadow", "modified symlink /link -> d", "created fifo /p",
		}},
		{"hard links", `echo 1 >h1; ln h1 keep/h2; ln h1 a0`, []string{"created file /a0", "created file /h1 = /a0", "created file /keep/h2 = /a0"}},
		{"skeleton", `echo mine >etc/hosts; touch tmp/t`, []string{"modified file /etc/hosts", "created file /tmp/t"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := testWorld(t, captureWorld)
			upper := t.TempDir()
			mounted(t, f.Lowers(), upper, c.script)
			pack := filepath.Join(t.TempDir(), "pack")
			got := capture(t, f, upper, overlay.CaptureInput{Pack: pack})
			if diff := cmp.Diff(c.want, brief(got)); diff != "" {
				t.Errorf("changes (-want +got):\n%s", diff)
			}
			restored(t, f, got, pack, upper)
		})
	}
}

// restored makes the capture again and compares what programs would see.
func restored(t *testing.T, f *overlay.Fork, c overlay.Capture, pack, upper string) {
	t.Helper()
	again := t.TempDir()
	dir, err := os.Open(again)
	must(t, err)
	defer dir.Close()
	if err := f.Restore(t.Context(), c, pack, dir, 0); err != nil {
		t.Fatalf("Restore: %v", err)
	}
	const look = `find . -printf '%P %y %m %U:%G %l\n' | sort; find . -type f -exec sha256sum {} + | sort`
	empty := t.TempDir()
	want := mounted(t, append([]string{upper}, f.Lowers()...), empty, look)
	got := mounted(t, append([]string{again}, f.Lowers()...), t.TempDir(), look)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the restored tree (-want +got):\n%s", diff)
	}
	second := capture(t, f, again, overlay.CaptureInput{})
	if second.State != c.State || second.StateFull != c.StateFull {
		t.Errorf("state of the restored tree %s, want %s: %v", second.StateFull, c.StateFull, brief(second))
	}
}

func TestDeletingOneByOneIsTheSameStateAsAllAtOnce(t *testing.T) {
	t.Parallel()
	f := testWorld(t, captureWorld)
	var states []string
	for _, script := range []string{`rm -r tree/*`, `rm -r tree; mkdir tree`} {
		upper := t.TempDir()
		mounted(t, f.Lowers(), upper, script)
		states = append(states, capture(t, f, upper, overlay.CaptureInput{}).State)
	}
	if states[0] != states[1] {
		t.Errorf("states %q differ", states)
	}
}

func TestCachesAreInTheFullStateOnly(t *testing.T) {
	t.Parallel()
	f := testWorld(t, captureWorld)
	with, without := tree(t, map[string]string{"n": "n", "k/__pycache__/m.pyc": "1"}), tree(t, map[string]string{"n": "n", "k/": ""})
	a, b := capture(t, f, with, overlay.CaptureInput{}), capture(t, f, without, overlay.CaptureInput{})
	if a.State != b.State {
		t.Errorf("State() %s and %s, want equal", a.State, b.State)
	}
	if a.StateFull == b.StateFull {
		t.Error("StateFull is equal, want other")
	}
}

func TestCaptureOfAHostileUpper(t *testing.T) {
	t.Parallel()
	const host = 400000
	f := testWorld(t, map[string]string{"old": "old", "gone": "gone"})
	upper := t.TempDir()
	at := func(name string) string { return filepath.Join(upper, name) }
	must(t, os.Symlink("/etc/shadow", at("shadow")))
	must(t, unix.Mkfifo(at("fifo"), 0o600))
	must(t, unix.Mknod(at("dev"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 5))))
	must(t, unix.Mknod(at("gone"), unix.S_IFCHR, 0))
	must(t, unix.Mknod(at("never"), unix.S_IFCHR, 0))
	must(t, unix.Mknod(at("sock"), unix.S_IFSOCK|0o600, 0))
	must(t, os.WriteFile(at("new\nline \xff\xfe"), []byte("odd"), 0o644))
	must(t, os.WriteFile(at("suid"), []byte("s"), 0o755))
	sparse, err := os.OpenFile(at("huge"), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o644)
	must(t, err)
	must(t, sparse.Truncate(50<<30))
	_, err = sparse.WriteAt([]byte("end"), 49<<30)
	must(t, err)
	must(t, sparse.Close())
	must(t, filepath.WalkDir(upper, func(p string, _ os.DirEntry, _ error) error { return os.Lchown(p, host, host) }))
	must(t, os.Lchown(at("suid"), host+1000, host+65536))
	must(t, unix.Chmod(at("suid"), 0o4755))
	must(t, unix.Setxattr(at("suid"), "user.note", []byte{0, 1}, 0))
	must(t, unix.Setxattr(at("suid"), "user.overlay.opaque", []byte("y"), 0))

	begin := time.Now()
	c := capture(t, f, upper, overlay.CaptureInput{HostID: host, Pack: filepath.Join(t.TempDir(), "pack")})
	if took := time.Since(begin); took > 2*time.Second {
		t.Errorf("took %v", took)
	}
	want := []string{
		"created char /dev", // over the skeleton's directory
		"created fifo /fifo", "deleted /gone", "created file /huge", "created file /new line \xff\xfe", "created symlink /shadow -> /etc/shadow",
		"created socket /sock", "created file /suid",
	}
	want[0] = "type_changed char /dev"
	if diff := cmp.Diff(want, brief(c)); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
	if c.Rescorable {
		t.Error("rescorable, though 50 GiB were not kept")
	}
	i := slices.IndexFunc(c.Changes, func(ch overlay.Change) bool { return ch.Path == "/suid" })
	wantSUID := overlay.Change{
		Path: "/suid", Kind: overlay.Created, Type: "file", Mode: 0o4755, UID: 1000, GID: 65534, Size: 1,
		SHA256: "043a718774c572bd8a25adbeb1bfcd5c0256ae11cecf9f9c3f925d0e52beaf89", Xattrs: map[string][]byte{"user.note": {0, 1}},
	}
	if diff := cmp.Diff(wantSUID, c.Changes[i], cmpopts.IgnoreFields(overlay.Change{}, "Offset", "ModTime")); diff != "" {
		t.Errorf("suid (-want +got):\n%s", diff)
	}
	text, err := json.Marshal(c)
	must(t, err)
	var back overlay.Capture
	must(t, json.Unmarshal(text, &back))
	if diff := cmp.Diff(c, back); diff != "" {
		t.Errorf("after JSON (-want +got):\n%s", diff)
	}
}

func TestSparseDigestIsOfContentNotOfHoles(t *testing.T) {
	t.Parallel()
	f := testWorld(t, map[string]string{"f": "f"})
	digest := func(write func(*os.File) error) string {
		upper := t.TempDir()
		file, err := os.OpenFile(filepath.Join(upper, "big"), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o644)
		must(t, err)
		must(t, file.Truncate(5<<30))
		must(t, write(file))
		must(t, file.Close())
		return capture(t, f, upper, overlay.CaptureInput{}).Changes[0].SHA256
	}
	at := func(text string, off int64) func(*os.File) error {
		return func(f *os.File) error { _, err := f.WriteAt([]byte(text), off); return err }
	}
	hole := digest(func(*os.File) error { return nil })
	zeros := digest(at(strings.Repeat("\x00", 100_000), 12345))
	data := digest(at("data", 4<<30))
	if hole != zeros || hole == data || !strings.HasPrefix(hole, "sparse:") {
		t.Errorf("digests: hole %s, zeros %s, data %s", hole, zeros, data)
	}
}

func TestBoundsOfACaptureAreVisible(t *testing.T) {
	t.Parallel()
	f := testWorld(t, map[string]string{"f": "f"})
	upper := tree(t, map[string]string{"a": "12345", "b": "1234567890", "c": "1"})
	pack := filepath.Join(t.TempDir(), "pack")
	c := capture(t, f, upper, overlay.CaptureInput{Pack: pack, MaxBytes: 8})
	if c.Rescorable || c.Stored != 6 || c.Bytes != 16 || c.Changes[1].Offset != -1 || c.Changes[1].SHA256 == "" {
		t.Errorf("with 8 bytes: %+v", c)
	}
	if data, err := os.ReadFile(pack); err != nil || string(data) != "123451" {
		t.Errorf("pack = %q, %v", data, err)
	}
	c = capture(t, f, upper, overlay.CaptureInput{Pack: filepath.Join(t.TempDir(), "pack"), MaxEntries: 2})
	if !c.Truncated || c.Rescorable || len(c.Changes) != 2 {
		t.Errorf("with 2 entries: %+v", c)
	}
	deep := t.TempDir()
	p := deep
	for range 40 {
		p += "/" + strings.Repeat("d", 80)
	}
	must(t, os.MkdirAll(p, 0o755))
	dir, err := unix.Open(p, unix.O_PATH, 0)
	must(t, err)
	for range 600 {
		must(t, unix.Mkdirat(dir, "e", 0o755))
		next, err := unix.Openat(dir, "e", unix.O_PATH, 0)
		must(t, err)
		must(t, unix.Close(dir))
		dir = next
	}
	must(t, unix.Close(dir))
	if c := capture(t, f, deep, overlay.CaptureInput{}); !c.Truncated {
		t.Error("a tree of 640 levels is not called truncated")
	}
}

func TestTrackerTellsEachChangeOnce(t *testing.T) {
	t.Parallel()
	f := testWorld(t, captureWorld)
	upper := t.TempDir()
	dir, err := os.Open(upper)
	must(t, err)
	defer dir.Close()
	tr := f.Track(dir, 0)
	for _, c := range []struct {
		script string
		want   []string
	}{
		{`echo 1 >keep/new; rm d/a`, []string{"deleted /d/a", "created file /keep/new"}},
		{`true`, []string{}},
		{`echo 22 >keep/new; mkdir n; mv file n/f`, []string{"deleted /file", "modified file /keep/new", "created dir /n", "created file /n/f"}},
		{`rm keep/new; echo -n a >d/a`, []string{"created file /d/a", "deleted /keep/new"}},
		{`rm n/f; chmod 700 n`, []string{"modified dir /n", "deleted /n/f"}},
		{`mkdir -p m/in tree/in/deep; echo 1 >m/in/x; echo 1 >tree/in/deep/x; echo 2 >tree/in/3`, []string{
			"created dir /m", "created dir /m/in", "created file /m/in/x", "modified file /tree/in/3", "created dir /tree/in/deep", "created file /tree/in/deep/x",
		}},
		{`rm -r m; echo 1 >m; rm -r tree; mkdir o; rm link; mkdir link`, []string{
			"type_changed dir /link", "modified file /m", "deleted /m/in", "deleted /m/in/x", "created dir /o", "deleted /tree", "deleted /tree/in",
			"deleted /tree/in/3", "deleted /tree/in/deep", "deleted /tree/in/deep/x",
		}},
	} {
		mounted(t, f.Lowers(), upper, c.script)
		changes, more, err := tr.Changes(t.Context(), 100)
		if err != nil || more {
			t.Fatal(more, err)
		}
		if diff := cmp.Diff(c.want, brief(overlay.Capture{Changes: changes})); diff != "" {
			t.Errorf("after %s (-want +got):\n%s", c.script, diff)
		}
	}
}

func TestAnAgentCannotBreakItsCapture(t *testing.T) {
	t.Parallel()
	f := testWorld(t, map[string]string{"f": "f", "d/x": "x"})
	for name, c := range map[string]struct {
		make      func(t *testing.T, upper string)
		truncated bool
	}{
		"more attribute names than can be listed": {func(t *testing.T, upper string) {
			t.Helper()
			p := filepath.Join(upper, "f")
			must(t, os.WriteFile(p, nil, 0o644))
			for i := range 300 {
				must(t, unix.Setxattr(p, fmt.Sprintf("user.%0245d", i), nil, 0))
			}
		}, false},
		"large attributes": {func(t *testing.T, upper string) {
			t.Helper()
			for i := range 300 {
				p := filepath.Join(upper, fmt.Sprint(i))
				must(t, os.WriteFile(p, nil, 0o644))
				must(t, unix.Setxattr(p, "user.x", make([]byte, 60<<10), 0))
			}
		}, false},
		"long paths": {func(t *testing.T, upper string) {
			t.Helper()
			dir, err := unix.Open(upper, unix.O_PATH, 0)
			must(t, err)
			for range 17 {
				name := strings.Repeat("d", 250)
				must(t, unix.Mkdirat(dir, name, 0o755))
				next, err := unix.Openat(dir, name, unix.O_PATH, 0)
				must(t, err)
				must(t, unix.Close(dir))
				dir = next
			}
			must(t, unix.Close(dir))
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			upper := t.TempDir()
			c.make(t, upper)
			got := capture(t, f, upper, overlay.CaptureInput{Pack: filepath.Join(t.TempDir(), "pack")})
			if got.Rescorable || got.Truncated != c.truncated {
				t.Errorf("rescorable %v truncated %v, want false and %v", got.Rescorable, got.Truncated, c.truncated)
			}
			dir, err := os.Open(upper)
			must(t, err)
			defer dir.Close()
			if _, _, err := f.Track(dir, 0).Changes(t.Context(), 10); err != nil {
				t.Errorf("Changes() = %v", err)
			}
		})
	}
}

// What the kernel lets a file say of its time, JSON and a tar have to say, too.
func TestTimesOfNoCalendarAreTheNearestThatOneHas(t *testing.T) {
	t.Parallel()
	f := testWorld(t, nil)
	upper := t.TempDir()
	want := map[string]int{"/early": 1, "/late": 9999, "/now": 2026}
	for name, sec := range map[string]int64{"early": -1 << 62, "late": 1 << 62, "now": 1790000000} {
		p := filepath.Join(upper, name)
		must(t, os.WriteFile(p, nil, 0o644))
		must(t, unix.UtimesNanoAt(unix.AT_FDCWD, p, []unix.Timespec{{Sec: sec}, {Sec: sec}}, 0))
		var st unix.Stat_t
		must(t, unix.Lstat(p, &st))
		if st.Mtim.Sec != sec { // a file system such as ext4 has nearer bounds of its own
			want["/"+name] = time.Unix(st.Mtim.Sec, 0).UTC().Year()
		}
	}
	text, err := json.Marshal(capture(t, f, upper, overlay.CaptureInput{}))
	must(t, err)
	var got overlay.Capture
	must(t, json.Unmarshal(text, &got))
	if len(got.Changes) != len(want) {
		t.Errorf("%d changes, want %d", len(got.Changes), len(want))
	}
	for _, c := range got.Changes {
		if c.ModTime.Year() != want[c.Path] {
			t.Errorf("%s is of %s, want the year %d", c.Path, c.ModTime, want[c.Path])
		}
	}
}

// What is beyond the limit is not told, but known: it is told when it changes later.
func TestTrackerTellsSoMuchAndNoMore(t *testing.T) {
	t.Parallel()
	f := testWorld(t, map[string]string{"49": "f"})
	upper := t.TempDir()
	for i := 10; i < 60; i++ {
		must(t, os.WriteFile(filepath.Join(upper, fmt.Sprint(i)), nil, 0o644))
	}
	dir, err := os.Open(upper)
	must(t, err)
	defer dir.Close()
	tr := f.Track(dir, 0)
	for i, c := range []struct {
		change func()
		want   string
		more   bool
	}{
		{func() {}, "created /10, created /11, created /12, created /13", true},
		{func() { must(t, os.WriteFile(filepath.Join(upper, "49"), []byte("1"), 0o644)) }, "modified /49", false},
		{func() { must(t, os.Remove(filepath.Join(upper, "58"))) }, "deleted /58", false},
		{func() {}, "", false},
	} {
		c.change()
		got, more, err := tr.Changes(t.Context(), 4)
		must(t, err)
		var told []string
		for _, g := range got {
			told = append(told, string(g.Kind)+" "+g.Path)
		}
		if s := strings.Join(told, ", "); s != c.want || more != c.more {
			t.Errorf("look %d: %s, more %v; want %s, more %v", i, s, more, c.want, c.more)
		}
	}
}

func TestTrackerLooksAtSoMuchAndNoMore(t *testing.T) {
	t.Parallel()
	f := testWorld(t, map[string]string{"f": "f"})
	upper := t.TempDir()
	must(t, os.Mkdir(filepath.Join(upper, "a"), 0o755))
	for i := range 20_000 {
		must(t, unix.Mknod(filepath.Join(upper, "a", fmt.Sprint(i)), unix.S_IFREG|0o644, 0))
	}
	dir, err := os.Open(upper)
	must(t, err)
	defer dir.Close()
	tr := f.Track(dir, 0)
	for _, c := range []struct {
		change func()
		want   int
		more   bool
	}{
		{func() {}, 20_000, true},
		{func() { must(t, os.WriteFile(filepath.Join(upper, "a/7"), []byte("1"), 0o644)) }, 1, true},
		{func() { must(t, os.Remove(filepath.Join(upper, "a/7"))) }, 2, false}, // and the one not reached before
		{func() { must(t, os.RemoveAll(filepath.Join(upper, "a"))) }, 20_000, false},
		{func() {}, 0, false},
	} {
		c.change()
		got, more, err := tr.Changes(t.Context(), 100_000)
		if err != nil || len(got) != c.want || more != c.more {
			t.Errorf("%d changes, more %v, %v; want %d, %v", len(got), more, err, c.want, c.more)
		}
	}
}
