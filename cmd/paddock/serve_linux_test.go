package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/paddock-run/paddock/api"
	"github.com/paddock-run/paddock/internal/need"
	"github.com/paddock-run/paddock/sandbox/native"
)

// asPaddock makes this test binary, run again, paddock itself.
const asPaddock = "PADDOCK_TEST_MAIN"

// asThreads makes it say whether goroutines run on the process's first thread.
const asThreads = "PADDOCK_TEST_THREADS"

func TestMain(m *testing.M) {
	if os.Getenv(asThreads) != "" {
		fmt.Print(sharesFirstThread())
		os.Exit(0)
	}
	if os.Getenv(asPaddock) != "" {
		ctx, stop := signalContext(context.Background())
		code := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
		stop()
		os.Exit(code)
	}
	os.Exit(m.Run())
}

// sharesFirstThread says whether a goroutine beside the main one gets the first thread.
func sharesFirstThread() bool {
	on := make(chan bool)
	for range 1000 {
		go func() { on <- syscall.Gettid() == os.Getpid() }()
		if <-on {
			return true
		}
	}
	return false
}

// Threads that enter a sandbox's namespaces, or become a user, are never the daemon's first,
// by which /proc shows the whole process. Any other process shares it.
func TestADaemonsFirstThreadIsItsMainGoroutines(t *testing.T) {
	t.Parallel()
	for set, want := range map[string]string{privateEnv + "=$$": "false", "UNRELATED=$$": "true"} {
		cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", set+` exec "$0"`, os.Args[0])
		cmd.Env = append(os.Environ(), asThreads+"=1", "GOMAXPROCS=1")
		out, err := cmd.CombinedOutput()
		if err != nil || string(out) != want {
			t.Errorf("with %s other goroutines run on the first thread: %s, %v, want %s", set, out, err, want)
		}
	}
}

// host is where a daemon of a test lives; daemons come and go on it.
type host struct {
	root, socket, cgroup string
}

func newHost(tb testing.TB) host {
	tb.Helper()
	need.Root(tb)
	need.Overlay(tb)
	dir, err := os.MkdirTemp("", "pd") //nolint:usetesting // TempDir's names are too long for a socket
	if err != nil {
		tb.Fatal(err)
	}
	h := host{root: filepath.Join(dir, "root"), socket: filepath.Join(dir, "s"), cgroup: "paddock-test/" + filepath.Base(dir)}
	tb.Cleanup(func() {
		// A daemon that was killed leaves its cgroups to the next one, which never comes.
		if err := native.RemoveCgroups(h.cgroup); err != nil {
			tb.Error(err)
		}
		_ = os.RemoveAll(dir)
	})
	return h
}

// lockedBuffer is a buffer for several goroutines.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// live is a running daemon.
type live struct {
	cmd  *exec.Cmd
	log  *lockedBuffer
	done chan error
}

// serve starts a daemon and returns when it says that it is ready.
func (h host) serve(tb testing.TB, flags ...string) *live {
	tb.Helper()
	args := append([]string{"serve", "--root", h.root, "--socket", h.socket, "--cgroup-parent", h.cgroup}, flags...)
	d := &live{cmd: exec.CommandContext(context.WithoutCancel(tb.Context()), "/proc/self/exe", args...), log: &lockedBuffer{}, done: make(chan error, 1)}
	d.cmd.Env = append(os.Environ(), asPaddock+"=1")
	out, err := d.cmd.StderrPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := d.cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	ready := make(chan struct{})
	go func() {
		lines := bufio.NewScanner(out)
		once := sync.OnceFunc(func() { close(ready) })
		for lines.Scan() {
			fmt.Fprintln(d.log, lines.Text())
			if strings.Contains(lines.Text(), "msg=ready") {
				once()
			}
		}
		d.done <- d.cmd.Wait()
	}()
	tb.Cleanup(func() { d.kill() })
	select {
	case <-ready:
	case err := <-d.done:
		d.done <- err
		tb.Fatalf("serve ended: %v\n%s", err, d.log)
	case <-time.After(20 * time.Second):
		tb.Fatalf("serve is not ready after 20 s:\n%s", d.log)
	}
	return d
}

// kill is kill -9.
func (d *live) kill() {
	_ = d.cmd.Process.Kill()
	d.done <- <-d.done
}

// stop is what an administrator does.
func (d *live) stop(tb testing.TB) {
	tb.Helper()
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		tb.Fatal(err)
	}
	select {
	case err := <-d.done:
		d.done <- err
		if err != nil {
			tb.Errorf("serve ended with %v\n%s", err, d.log)
		}
	case <-time.After(40 * time.Second):
		tb.Fatalf("serve did not stop:\n%s", d.log)
	}
}

// paddock runs a command line against the host's daemon.
func (h host) paddock(tb testing.TB, in io.Reader, args ...string) (code int, out, errs string) {
	tb.Helper()
	var o, e bytes.Buffer
	code = run(tb.Context(), append([]string{"--socket", h.socket}, args...), in, &o, &e)
	return code, o.String(), e.String()
}

func (h host) must(tb testing.TB, args ...string) string {
	tb.Helper()
	code, out, errs := h.paddock(tb, nil, args...)
	if code != 0 {
		tb.Fatalf("%v: exit code %d: %s", args, code, errs)
	}
	return out
}

// noStrays asks the kernel what is left of the host's daemons.
func (h host) noStrays(tb testing.TB) {
	tb.Helper()
	code, out, errs := h.paddock(tb, nil, "audit", "--root", h.root, "--cgroup-parent", h.cgroup)
	if code != 0 {
		tb.Errorf("audit: exit code %d\n%s%s", code, out, errs)
	}
}

func TestServeRunsCommandsAndLeavesNothing(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	d := h.serve(t)
	code, _, errs := h.paddock(t, nil, "run", "busybox", "--", "true")
	if code != exitPaddock || !strings.Contains(errs, "paddock world build --busybox") {
		t.Errorf("without a world: exit code %d, %s", code, errs)
	}
	h.must(t, "world", "build", "--busybox", "--name", "busybox")
	if out := h.must(t, "world", "build", "--busybox", "--name", "busybox"); !strings.Contains(out, "from the cache") {
		t.Errorf("the second build: %s", out)
	}
	for _, c := range []struct {
		argv      []string
		code      int
		out, errs string
	}{
		{[]string{"sh", "-c", "echo out; echo err >&2; exit 7"}, 7, "out\n", "err\n"},
		{[]string{"sh", "-c", "kill -9 $$"}, 137, "", ""},
		{[]string{"no-such-program"}, exitNotFound, "", "command_not_found"},
		{[]string{"/etc"}, exitNotRunnable, "", ""},
	} {
		code, out, errs := h.paddock(t, nil, append([]string{"run", "busybox", "--"}, c.argv...)...)
		if code != c.code || out != c.out || !strings.Contains(errs, c.errs) {
			t.Errorf("%v: exit code %d, out %q, errors %q", c.argv, code, out, errs)
		}
	}
	if code, _, _ := h.paddock(t, nil, "run", "busybox", "--timeout", "0.2", "--", "sleep", "100"); code != exitTimeout {
		t.Errorf("timeout: exit code %d", code)
	}
	if code, out, _ := h.paddock(t, strings.NewReader("in\xff"), "run", "busybox", "-i", "--", "cat"); code != 0 || out != "in\xff" {
		t.Errorf("stdin: exit code %d, out %q", code, out)
	}
	if out := h.must(t, "episode", "ls"); strings.Count(out, "\n") != 1 {
		t.Errorf("episodes are left: %s", out)
	}
	d.stop(t)
	h.noStrays(t)
	if _, err := os.Lstat(h.socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
}

// A live daemon knows its sandboxes by name, so that one it forgot is seen beside them.
func TestAuditSeesWhatALiveDaemonForgot(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	d := h.serve(t)
	h.must(t, "world", "build", "--busybox", "--name", "busybox")
	h.must(t, "episode", "create", "busybox", "--id", "e")
	h.noStrays(t)
	forgotten := native.Config{Dir: need.Tmpfs(t), CgroupParent: h.cgroup + "/" + storeHash(h.root) + "/e-forgotten"}
	l, err := native.New(forgotten)
	if err != nil {
		t.Fatal(err)
	}
	code, out, _ := h.paddock(t, nil, "audit", "--root", h.root, "--cgroup-parent", h.cgroup)
	if code != exitFailed || !strings.Contains(out, "e-forgotten") {
		t.Errorf("audit: exit code %d\n%s", code, out)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	h.noStrays(t)
	h.must(t, "episode", "rm", "e")
	d.stop(t)
	h.noStrays(t)
}

func TestEpisodeByTheCommandLine(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.serve(t)
	h.must(t, "world", "build", "--busybox", "--name", "busybox")
	if out := h.must(t, "episode", "create", "busybox", "--id", "e/1"); out != "e/1\n" {
		t.Errorf("create: %q", out)
	}
	h.must(t, "episode", "call", "e/1", "--", "sh", "-c", "echo hi > /tmp/a; rm /etc/passwd")
	if out := h.must(t, "episode", "call", "e/1", "--tool", "read_file", "--path", "/tmp/a"); out != "hi\n" {
		t.Errorf("read_file: %q", out)
	}
	h.must(t, "episode", "call", "e/1", "--tool", "session_open", "--session", "m")
	h.must(t, "episode", "call", "e/1", "--session", "m", "--", "cd /tmp; X=5")
	if out := h.must(t, "episode", "call", "e/1", "--session", "m", "--", "pwd; echo $X"); out != "/tmp\n5\n" {
		t.Errorf("session: %q", out)
	}
	h.must(t, "episode", "finish", "e/1", "--answer", "forty two")
	diff := h.must(t, "episode", "diff", "e/1")
	if !strings.Contains(diff, "/tmp/a") || !strings.Contains(diff, "/etc/passwd") {
		t.Errorf("diff: %s", diff)
	}
	var ep api.Episode
	if err := json.Unmarshal([]byte(h.must(t, "--json", "episode", "show", "e/1")), &ep); err != nil || string(ep.Last().Answer) != `"forty two"` {
		t.Errorf("show --json: %+v, %v", ep, err)
	}
	if out := h.must(t, "episode", "calls", "e/1"); strings.Count(out, "\n") != 5 {
		t.Errorf("calls: %s", out)
	}
	grader := filepath.Join(filepath.Dir(h.socket), "grader")
	if err := os.Mkdir(grader, 0o755); err != nil {
		t.Fatal(err)
	}
	script := `[ -f /tmp/a ] && r=1 || r=0; echo "{\"reward\": $r}" >&$PADDOCK_VERDICT_FD`
	if err := os.WriteFile(filepath.Join(grader, "g.sh"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	digest := strings.TrimSpace(h.must(t, "grader", "put", grader, "--", "sh", "/grader/g.sh"))
	if out := h.must(t, "score", "e/1", "--grader", digest); !strings.Contains(out, "reward 1") {
		t.Errorf("score: %s", out)
	}
	h.must(t, "episode", "rm", "e/1")
	if code, _, errs := h.paddock(t, nil, "episode", "show", "e/1"); code != exitFailed || !strings.Contains(errs, "not_found") {
		t.Errorf("after rm: exit code %d, %s", code, errs)
	}
}

func TestSecondDaemonOnTheSameStoreIsRefused(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.serve(t)
	other := exec.CommandContext(t.Context(), "/proc/self/exe", "serve", "--root", h.root, "--socket", h.socket+"2", "--cgroup-parent", h.cgroup+"2")
	other.Env = append(os.Environ(), asPaddock+"=1")
	out, err := other.CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != exitFailed || !strings.Contains(string(out), "another daemon") {
		t.Errorf("second daemon: %v, %s", err, out)
	}
	h.must(t, "version")
}

func TestKilledDaemonLeavesNothingAndItsEpisodesAreInterrupted(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	d := h.serve(t)
	h.must(t, "world", "build", "--busybox", "--name", "busybox")
	h.must(t, "episode", "create", "busybox", "--id", "e")
	h.must(t, "episode", "call", "e", "--", "sh", "-c", "sleep 1000 & echo kept > /tmp/x")
	d.kill()
	h.serve(t)
	h.noStrays(t)
	var ep api.Episode
	if err := json.Unmarshal([]byte(h.must(t, "--json", "episode", "show", "e")), &ep); err != nil {
		t.Fatal(err)
	}
	end := ep.Last().End
	if end == nil || end.Status != "interrupted" || end.Cause != "platform" || ep.Reward != nil {
		t.Errorf("after the crash: %+v", ep.Last())
	}
	// The call was answered, so it was recorded.
	if out := h.must(t, "episode", "calls", "e"); strings.Count(out, "\n") != 1 {
		t.Errorf("calls: %q", out)
	}
	if code, _, errs := h.paddock(t, nil, "episode", "call", "e", "--", "true"); code != exitPaddock || !strings.Contains(errs, "interrupted") {
		t.Errorf("call after the crash: exit code %d, %s", code, errs)
	}
}

func TestBatchGoesOnAfterTheDaemonWasKilled(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	d := h.serve(t)
	h.must(t, "world", "build", "--busybox", "--name", "busybox")
	manifest := filepath.Join(filepath.Dir(h.socket), "m.jsonl")
	var lines strings.Builder
	for i := range 8 {
		fmt.Fprintf(&lines, `{"id":"s%d","group":"g","world":"busybox","retries":1,"limits":{"memory":"64MiB","disk":"16MiB"},"agent":{"command":{"tool":"exec","argv":["sh","-c","sleep 0.3"]}}}`+"\n", i)
	}
	if err := os.WriteFile(manifest, []byte(lines.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	h.must(t, "batch", "run", manifest, "--id", "b", "--run", "r", "--parallel", "2", "-d")
	seen := 0
	err := api.NewClient(h.socket).Results(t.Context(), "b", 0, true, func(api.BatchResult) error {
		if seen++; seen == 3 {
			d.kill()
		}
		return nil
	})
	if err == nil {
		t.Error("following a batch of a killed daemon ended well")
	}
	h.serve(t)
	h.must(t, "batch", "resume", "b")
	results := map[string]int{}
	for line := range strings.Lines(h.must(t, "--json", "batch", "results", "b")) {
		var r api.BatchResult
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		if r.Status == "ok" {
			results[r.ID]++
		}
	}
	if len(results) != 8 {
		t.Errorf("results: %v, want each of 8 episodes ended well", results)
	}
	for id, n := range results {
		if n != 1 {
			t.Errorf("%s ended well %d times", id, n)
		}
	}
	h.noStrays(t)
}

// The fault switch fails first attempts as the platform's doing, which are retried and so
// have two attempts on record.
func TestInjectedFaultsAreRetriedAndNeverBecomeARewardOf0(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.serve(t, "--inject-faults", "1:7")
	h.must(t, "world", "build", "--busybox", "--name", "busybox")
	manifest := filepath.Join(filepath.Dir(h.socket), "m.jsonl")
	line := `{"id":"s","world":"busybox","retries":1,"agent":{"command":{"tool":"exec","argv":["sh","-c","for i in 1 2 3 4 5; do sleep 0.1; done"]}}}`
	if err := os.WriteFile(manifest, []byte(line), 0o600); err != nil {
		t.Fatal(err)
	}
	h.must(t, "batch", "run", manifest, "--id", "b", "--run", "r")
	var ep api.Episode
	if err := json.Unmarshal([]byte(h.must(t, "--json", "episode", "show", "s", "--run", "r")), &ep); err != nil {
		t.Fatal(err)
	}
	if len(ep.Attempts) != 2 || ep.Attempts[0].End.Cause != "platform" || ep.Attempts[0].Reward != nil || ep.Attempts[1].End.Status != "ok" {
		t.Errorf("attempts = %+v", ep.Attempts)
	}
}
