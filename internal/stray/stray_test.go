package stray

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/paddock-run/paddock/internal/need"
)

// leftovers makes what a killed daemon leaves: a process in a cgroup of the store and in
// a mount namespace with a mount below the store, and a file in run/.
type leftovers struct {
	scope  Scope
	cgroup string
	pid    int
	remove func()
}

func leave(t *testing.T) leftovers {
	t.Helper()
	need.Root(t)
	h, err := Host{}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	if len(h.Cgroups) == 0 {
		t.Fatal("no cgroup hierarchy is mounted")
	}
	store := t.TempDir()
	scope := Scope{Store: store, Cgroup: fmt.Sprintf("paddock-stray-%d/0a1b2c3d", os.Getpid())}
	for _, dir := range []string{"run/launcher/stage", "run/sockets", "mnt"} {
		if err := os.MkdirAll(filepath.Join(store, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(store, "run/sockets/ep.sock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	// The last is the v2 tree where there is one, else any.
	cgroup := filepath.Join(h.Cgroups[len(h.Cgroups)-1], scope.Cgroup, "box-1")
	if err := os.MkdirAll(cgroup, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), need.Command(t, "unshare", "util-linux"), "--mount", "--propagation", "private",
		"sh", "-c", `mount -t tmpfs "a b" "$0/mnt" && echo $$ >"$1/cgroup.procs" && echo ready && exec sleep 1000`, store, cgroup)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	l := leftovers{scope: scope, cgroup: cgroup, pid: cmd.Process.Pid}
	l.remove = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = os.Remove(filepath.Join(store, "run/sockets/ep.sock"))
		for dir := cgroup; filepath.Base(dir) != "unified" && !slices.Contains(h.Cgroups, dir); dir = filepath.Dir(dir) {
			if err := os.Remove(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Errorf("remove cgroup: %v", err)
			}
		}
	}
	t.Cleanup(l.remove)
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("leftover process said %q, %v", line, err)
	}
	return l
}

func find(t *testing.T, scope Scope) map[Kind][]Stray {
	t.Helper()
	found, err := Host{}.Find(t.Context(), scope)
	if err != nil {
		t.Fatal(err)
	}
	byKind := map[Kind][]Stray{}
	for _, s := range found {
		byKind[s.Kind] = append(byKind[s.Kind], s)
	}
	return byKind
}

func TestFindSeesWhatAKilledDaemonLeftUntilItIsGone(t *testing.T) {
	l := leave(t)
	found := find(t, l.scope)
	pid := fmt.Sprintf("pid %d", l.pid)
	for kind, says := range map[Kind]string{
		Process:   pid,
		Cgroup:    l.cgroup,
		Mount:     l.scope.Store + "/mnt",
		Namespace: "mnt:[",
		Directory: l.scope.Store + "/run/sockets/ep.sock",
	} {
		if !slices.ContainsFunc(found[kind], func(s Stray) bool { return strings.Contains(s.Where, says) }) {
			t.Errorf("no %s naming %q in %v", kind, says, found[kind])
		}
	}
	l.remove()
	if left := find(t, l.scope); len(left) != 0 {
		t.Errorf("after removal Find() = %v, want nothing", left)
	}
}

func TestWhatALiveDaemonOwnsIsNoStray(t *testing.T) {
	l := leave(t)
	// This test's process plays the daemon: the leftover process is its child.
	l.scope.Live = Live{PID: os.Getpid(), Started: time.Now().Add(-time.Hour), Sandboxes: []string{"box-1"}}
	if found := find(t, l.scope); len(found) != 0 {
		t.Errorf("Find() = %v, want nothing", found)
	}
	l.scope.Live.Sandboxes = []string{}
	found := find(t, l.scope)
	if len(found[Process]) != 1 || len(found[Cgroup]) != 1 {
		t.Errorf("Find() = %v, want the process and the cgroup of the unknown sandbox", found)
	}
	l.scope.Live.Sandboxes = nil
	l.scope.Live.Started = time.Now().Add(time.Hour)
	if found := find(t, l.scope); len(found) != 1 || len(found[Directory]) != 1 {
		t.Errorf("Find() = %v, want only the file older than the daemon", found)
	}
}

func TestDaemonIsKnownByItsOpenStore(t *testing.T) {
	t.Parallel()
	store := t.TempDir()
	before := time.Now()
	// A process that was started as "NAME serve" and reads from a pipe of ours.
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "serve")
	cmd.Dir = t.TempDir()
	if err := os.WriteFile(filepath.Join(cmd.Dir, "serve"), []byte("exec 3>\"$STORE/lock\"; echo open; read x"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd.Env = []string{"STORE=" + store}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if live, err := (Host{}).Daemon(t.Context(), store); err != nil || live.PID != 0 {
		t.Fatalf("Daemon() = %+v, %v before there is one", live, err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	live, err := Host{}.Daemon(t.Context(), store)
	if err != nil || live.PID != cmd.Process.Pid {
		t.Errorf("Daemon() = %+v, %v, want process %d", live, err, cmd.Process.Pid)
	}
	if live.Started.After(time.Now()) || live.Started.Before(before.Add(-time.Minute)) {
		t.Errorf("started %v, want about %v", live.Started, before)
	}
	_ = in.Close()
	_ = cmd.Wait()
	if live, err := (Host{}).Daemon(t.Context(), store); err != nil || live.PID != 0 {
		t.Errorf("Daemon() = %+v, %v after its end", live, err)
	}
}

func TestConfirmForgetsWhatWentAway(t *testing.T) {
	t.Parallel()
	store := t.TempDir()
	if err := os.MkdirAll(filepath.Join(store, "tmp/a"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(store, "tmp/b"), 0o700); err != nil {
		t.Fatal(err)
	}
	looks := 0
	found, err := Confirm(t.Context(), Host{}, time.Millisecond, func(context.Context) (Scope, error) {
		if looks++; looks == 2 {
			return Scope{Store: store}, os.Remove(filepath.Join(store, "tmp/a"))
		}
		return Scope{Store: store}, nil
	})
	if err != nil || looks != 2 {
		t.Fatalf("Confirm looked %d times: %v", looks, err)
	}
	if len(found) != 1 || found[0].Where != filepath.Join(store, "tmp/b") {
		t.Errorf("Confirm() = %v, want tmp/b alone", found)
	}
}

func TestLoopDeviceOnTheStoreIsAStray(t *testing.T) {
	t.Parallel()
	block := t.TempDir()
	for loop, file := range map[string]string{"loop0": "/srv/store/img\n", "loop1": "/srv/storeroom/img\n", "loop2": "/srv/store/x (deleted)\n"} {
		dir := filepath.Join(block, loop, "loop")
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "backing_file"), []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	found, err := Host{Block: block}.Find(t.Context(), Scope{Store: "/srv/store"})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range found {
		got = append(got, s.Where)
	}
	if diff := cmp.Diff([]string{"/dev/loop0", "/dev/loop2"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestParseStatSurvivesHostileNames(t *testing.T) {
	t.Parallel()
	rest := " S 7 " + strings.Repeat("0 ", 17) + "4242 0 0\n"
	cases := map[string]struct {
		stat string
		want process
		ok   bool
	}{
		"plain":       {"12 (sh)" + rest, process{name: "sh", parent: 7, start: "4242"}, true},
		"parentheses": {"12 (a) R 1 (b)" + rest, process{name: "a) R 1 (b", parent: 7, start: "4242"}, true},
		"zombie":      {"12 (sh)" + strings.Replace(rest, "S", "Z", 1), process{}, false},
		"short":       {"12 (sh) S 7", process{}, false},
		"empty":       {"", process{}, false},
		"reversed":    {")(", process{}, false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, ok := parseStat(c.stat)
			if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(process{})); diff != "" || ok != c.ok {
				t.Errorf("parseStat() ok = %v, want %v; %s", ok, c.ok, diff)
			}
		})
	}
}

func TestMountBelongsToStore(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		line string
		want bool
	}{
		"below":            {"1 2 0:1 / /srv/store/run/x rw - tmpfs tmpfs rw", true},
		"the store's disk": {"1 2 0:1 / /srv/store rw - ext4 /dev/sdb rw", false},
		"a neighbour":      {"1 2 0:1 / /srv/storeroom rw - tmpfs tmpfs rw", false},
		"overlay upper":    {"1 2 0:1 / / rw shared:1 - overlay overlay rw,lowerdir=/srv/store/layers/a:/srv/store/layers/b,upperdir=/x", true},
		"foreign overlay":  {"1 2 0:1 / / rw - overlay overlay rw,lowerdir=/var/lib/docker/a", false},
		"escaped":          {`1 2 0:1 / /srv/store/a\040b rw - tmpfs a\134b rw`, true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mounts := parseMounts(c.line)
			if len(mounts) != 1 {
				t.Fatalf("parseMounts(%q) = %v", c.line, mounts)
			}
			if got := mounts[0].ofStore("/srv/store"); got != c.want {
				t.Errorf("ofStore() = %v, want %v", got, c.want)
			}
		})
	}
}

func TestUnescapeUndoesTheKernelsOctal(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{`a\040b`: "a b", `\134\011`: "\\\t", `\9`: `\9`, `\999`: `\999`, `a\`: `a\`} {
		if got := unescape(in); got != want {
			t.Errorf("unescape(%q) = %q, want %q", in, got, want)
		}
	}
}

func FuzzParseProcFiles(f *testing.F) {
	f.Add("12 (sh) S 7 0")
	f.Add(`1 2 0:1 / /a\040b rw shared:1 - tmpfs x rw`)
	f.Fuzz(func(t *testing.T, s string) {
		if p, ok := parseStat(s); ok && p.start == "" {
			t.Errorf("parseStat(%q) accepted a process without a start", s)
		}
		for _, m := range parseMounts(s) {
			if strings.Count(m.point, "\n") > strings.Count(s, "\n")+strings.Count(s, `\012`) {
				t.Errorf("parseMounts(%q) made up lines", s)
			}
		}
		parseCgroups(s)
	})
}

func TestTreeTakesGrandchildren(t *testing.T) {
	t.Parallel()
	all := map[int]process{}
	for pid, parent := range map[int]int{2: 1, 3: 2, 4: 3, 5: 1} {
		all[pid] = process{pid: pid, parent: parent}
	}
	var got []string
	for pid := range tree(all, 2) {
		got = append(got, strconv.Itoa(pid))
	}
	slices.Sort(got)
	if diff := cmp.Diff([]string{"2", "3", "4"}, got); diff != "" {
		t.Error(diff)
	}
	if n := len(tree(all, 0)); n != 0 {
		t.Errorf("tree without a root has %d processes", n)
	}
}
