package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/paddock-run/paddock/api"
	"github.com/paddock-run/paddock/internal/need"
)

// launchersHere are the flags of every launcher that continuous integration has.
func launchersHere(t *testing.T) map[string][]string {
	t.Helper()
	need.Command(t, "runc", "runc")
	return map[string][]string{
		"native": nil,
		"oci":    {"--launcher", "oci", "--runtime", "runc"},
		"docker": {"--launcher", "docker", "--docker-host", need.StartEngine(t)},
	}
}

// endState is what is compared of an episode.
type endState struct {
	Changes          string
	State, StateFull string
	Actions          string
	Reward           float64
}

// changing is an agent that does to its own files whatever there is to do.
var changing = []string{
	`mkdir -p new/deep && echo one >new/deep/file && chmod 0600 new/deep/file && umask 027 && echo two >new/two`,
	`echo more >>kept && chmod 4755 program && mv moved elsewhere && rm gone && rm -r tree && mkdir tree && echo again >tree/again`,
	`ln new/two hard && ln -s ../kept new/link && ln -sf nowhere dangling && mkfifo pipe && touch -d @86400 old`,
	`rm -r replaced && echo 'a file now' >replaced && rm other && mkdir other && head -c 300000 /dev/zero >other/large`,
	`dd if=/dev/zero of=sparse bs=1 count=1 seek=200000 2>/dev/null && printf 'a\nb' >'odd
name' && echo 42 >/tmp/answer && chmod 0500 new/deep`,
}

// The same calls, as an ordinary user, leave the same under every launcher: paths, kinds,
// modes, owners, contents and deletions.
func TestEndStatesAreEqualUnderEveryLauncher(t *testing.T) {
	archive := filepath.Join(t.TempDir(), "image.tar")
	if err := os.WriteFile(archive, dockerArchive(t, `"WorkingDir":"/home/agent/task"`, ownedLayer(t)), 0o600); err != nil {
		t.Fatal(err)
	}
	got := map[string]endState{}
	for name, flags := range launchersHere(t) {
		got[name] = playChanges(t, name, archive, flags)
	}
	if len(got["native"].Changes) == 0 || got["native"].Reward != 1 {
		t.Fatalf("nothing to compare: %+v", got["native"])
	}
	for name, state := range got {
		if d := cmp.Diff(got["native"], state); d != "" {
			t.Errorf("under %s the end state is another than under native:\n%s", name, d)
		}
	}
}

func playChanges(t *testing.T, launcher, archive string, flags []string) endState {
	t.Helper()
	h := newHost(t)
	d := h.serve(t, flags...)
	h.must(t, "world", "import", archive, "--name", "task")
	grader := strings.TrimSpace(h.must(t, "grader", "put", t.TempDir(), "--verdict", "exit_code", "--", "sh", "-c",
		`test "$(cat /tmp/answer)" = 42 && test -f /home/agent/task/elsewhere && test ! -e /home/agent/task/gone`))
	h.must(t, "episode", "create", "task", "--id", "e")
	for _, script := range changing {
		h.must(t, "episode", "call", "e", "--user", "1000:1000", "--", "sh", "-c", script)
	}
	h.must(t, "episode", "finish", "e")
	h.must(t, "score", "e", "--grader", grader)
	var e api.Episode
	if err := json.Unmarshal([]byte(h.must(t, "episode", "show", "e", "--json")), &e); err != nil {
		t.Fatal(err)
	}
	a := e.Last()
	if a.Launcher == nil || a.Launcher.Name != launcher || a.Launcher.UserNS != (launcher != "docker") {
		t.Errorf("%s: the attempt says that it was launched by %+v", launcher, a.Launcher)
	}
	out := endState{
		Changes: h.must(t, "episode", "diff", "e"), State: a.Digests.State, StateFull: a.Digests.StateFull, Actions: a.Digests.Actions,
	}
	if a.Reward != nil {
		out.Reward = *a.Reward
	}
	d.stop(t)
	h.noStrays(t)
	return out
}

// ownedLayer is a world whose working directory, and what is in it, is uid 1000's.
func ownedLayer(t *testing.T) []byte {
	t.Helper()
	busybox, err := os.ReadFile(need.Busybox(t))
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	tw := tar.NewWriter(&out)
	add := func(h tar.Header, text string) {
		h.Size = int64(len(text))
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		if err := errors.Join(tw.WriteHeader(&h), second(tw.Write([]byte(text)))); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{"bin/", "dev/", "proc/", "sys/", "etc/", "home/"} {
		add(tar.Header{Typeflag: tar.TypeDir, Name: dir, Mode: 0o755}, "")
	}
	add(tar.Header{Typeflag: tar.TypeDir, Name: "tmp/", Mode: 0o1777}, "")
	add(tar.Header{Name: "etc/passwd"}, "root:x:0:0::/:/bin/sh\nagent:x:1000:1000::/home/agent:/bin/sh\n")
	add(tar.Header{Name: "bin/busybox", Mode: 0o755}, string(busybox))
	for applet := range strings.FieldsSeq("cat chmod dd echo head ln mkdir mkfifo mv printf rm sh test touch") {
		add(tar.Header{Typeflag: tar.TypeSymlink, Name: "bin/" + applet, Linkname: "busybox", Mode: 0o777}, "")
	}
	for _, dir := range []string{"", "task/", "task/tree/", "task/replaced/"} {
		add(tar.Header{Typeflag: tar.TypeDir, Name: "home/agent/" + dir, Mode: 0o755, Uid: 1000, Gid: 1000}, "")
	}
	for file := range strings.FieldsSeq("kept program moved gone old other tree/a tree/b replaced/a") {
		add(tar.Header{Name: "home/agent/task/" + file, Uid: 1000, Gid: 1000}, "of the world\n")
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// After kill -9 of the daemon the next start leaves nothing of it, whoever started its
// sandboxes.
func TestKilledDaemonLeavesNothingUnderAnyLauncher(t *testing.T) {
	for name, flags := range launchersHere(t) {
		h := newHost(t)
		d := h.serve(t, flags...)
		h.must(t, "world", "build", "--busybox", "--name", "busybox")
		h.must(t, "episode", "create", "busybox", "--id", "e")
		h.must(t, "episode", "call", "e", "--", "sh", "-c", "sleep 1000 & echo x >/tmp/x")
		d.kill()
		h.serve(t, flags...).stop(t)
		h.noStrays(t)
		var e api.Episode
		again := h.serve(t, flags...)
		if err := json.Unmarshal([]byte(h.must(t, "episode", "show", "e", "--json")), &e); err != nil {
			t.Fatal(err)
		}
		if end := e.Last().End; end == nil || end.Status != "interrupted" {
			t.Errorf("%s: the episode ended as %+v, want interrupted", name, end)
		}
		again.stop(t)
	}
}

func TestLaunchFlagsThatMakeNoSenseAreRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		o    launchOptions
		says string
	}{
		{launchOptions{name: "podman"}, "--launcher"},
		{launchOptions{name: "native", runtime: "runc"}, "--runtime"},
		{launchOptions{name: "docker", path: "/x"}, "--runtime-path"},
		{launchOptions{name: "oci", runtime: "lxc"}, "--runtime"},
		{launchOptions{name: "oci", engine: "unix:///x"}, "--docker-host"},
	} {
		if err := c.o.check(); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: %v, want an error about %s", c.o, err, c.says)
		}
	}
	o := launchOptions{name: "oci", runtime: "crun"}
	if err := o.check(); err != nil || strings.Join(o.args(), " ") != "--launcher oci --runtime crun" {
		t.Errorf("%+v: %v, args %v", o, err, o.args())
	}
}

// A policy that wants gVisor is refused by a daemon that has another launcher, and so are
// graders of it.
func TestPolicyOfAnotherRuntimeIsRefused(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.serve(t)
	h.must(t, "world", "build", "--busybox", "--name", "busybox")
	for _, args := range [][]string{
		{"run", "busybox", "--policy", "gvisor", "--", "true"},
		{"grader", "put", t.TempDir(), "--policy", "gvisor", "--", "true"},
	} {
		code, _, errs := h.paddock(t, nil, args...)
		if code == 0 || !strings.Contains(errs, "unsupported") || !strings.Contains(errs, "runsc") {
			t.Errorf("%v: exit code %d, %s; want unsupported, naming runsc", args, code, errs)
		}
	}
}
