package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/paddock-run/paddock/api"
	"github.com/paddock-run/paddock/internal/need"
)

// asProgram makes this test binary be paddock itself: a daemon that can be killed.
const asProgram = "PADDOCK_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		ctx, stop := signalContext(context.Background())
		code := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
		stop()
		os.Exit(code)
	}
	os.Exit(m.Run())
}

// host is a store with the daemon that serves it.
type host struct {
	tb             testing.TB
	store, socket  string
	parent, logged string
	daemon         *exec.Cmd
}

func newHost(tb testing.TB) *host {
	tb.Helper()
	need.Overlay(tb)
	need.Busybox(tb)
	dir, err := os.MkdirTemp("", "pd") //nolint:usetesting // a short path: it holds a socket
	if err != nil {
		tb.Fatal(err)
	}
	parent := "paddock-" + filepath.Base(dir)
	tb.Cleanup(func() {
		_ = os.RemoveAll(dir)
		// The daemon removes what it made below the parent, which others may share.
		shared, _ := filepath.Glob("/sys/fs/cgroup/*/" + parent)
		for _, d := range append(shared, "/sys/fs/cgroup/"+parent) {
			_ = os.Remove(d)
		}
	})
	return &host{
		tb: tb, store: filepath.Join(dir, "store"), socket: filepath.Join(dir, "s"),
		parent: parent, logged: filepath.Join(dir, "log"),
	}
}

// serve starts a daemon and waits until it answers.
func (h *host) serve() {
	h.tb.Helper()
	log, err := os.OpenFile(h.logged, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		h.tb.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	h.daemon = exec.CommandContext(context.WithoutCancel(h.tb.Context()), "/proc/self/exe", "serve", "--root", h.store, "--socket", h.socket, "--cgroup-parent", h.parent)
	h.daemon.Env = append(os.Environ(), asProgram+"=1")
	h.daemon.Stdout, h.daemon.Stderr = log, log
	if err := h.daemon.Start(); err != nil {
		h.tb.Fatal(err)
	}
	h.tb.Cleanup(func() { _ = h.daemon.Process.Kill() })
	client := api.NewClient(h.socket)
	defer client.Close()
	ctx, cancel := context.WithTimeoutCause(h.tb.Context(), 30*time.Second, errors.New("the daemon does not answer"))
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := client.Version(ctx); err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			text, _ := os.ReadFile(h.logged)
			h.tb.Fatalf("%v; its log:\n%s", context.Cause(ctx), text)
		}
	}
}

// end sends a signal to the daemon and waits until it is gone.
func (h *host) end(signal syscall.Signal) {
	h.tb.Helper()
	if err := h.daemon.Process.Signal(signal); err != nil {
		h.tb.Fatal(err)
	}
	err := h.daemon.Wait()
	if signal == syscall.SIGTERM && err != nil {
		text, _ := os.ReadFile(h.logged)
		h.tb.Errorf("daemon ended: %v; its log:\n%s", err, text)
	}
}

// does runs a command line that must succeed.
func (h *host) does(args ...string) string {
	h.tb.Helper()
	code, out, errs := line(h.tb, append([]string{"--socket", h.socket}, args...)...)
	if code != 0 {
		h.tb.Fatalf("%v: exit code %d\n%s%s", args, code, out, errs)
	}
	return out
}

// strays are the kinds of strays that audit finds.
func (h *host) strays() map[string]int {
	h.tb.Helper()
	_, out, errs := line(h.tb, "audit", "--root", h.store, "--cgroup-parent", h.parent, "--json")
	var report auditReport
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		h.tb.Fatalf("audit: %v\n%s%s", err, out, errs)
	}
	found := map[string]int{}
	for _, s := range report.Strays {
		h.tb.Logf("stray %s %s: %s", s.Kind, s.Where, s.Detail)
		found[string(s.Kind)]++
	}
	return found
}

func TestKilledDaemonLeavesNothingAfterTheNextStart(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.serve()
	h.does("world", "build", "--busybox", "--name", "box")
	if out := h.does("run", "box", "--", "sh", "-c", "id -u; hostname >/dev/null && echo ran"); out != "0\nran\n" {
		t.Fatalf("run printed %q", out)
	}
	h.does("episode", "create", "box", "--id", "live")
	h.does("episode", "call", "live", "--", "sh", "-c", "echo 42 >/answer; sleep 1000 & echo up")
	if found := h.strays(); len(found) != 0 {
		t.Errorf("strays beside a live episode: %v", found)
	}

	h.end(syscall.SIGKILL)
	if found := h.strays(); found["cgroup"] == 0 {
		t.Errorf("audit after SIGKILL sees %v, want at least the cgroups of the dead daemon", found)
	}

	h.serve()
	if found := h.strays(); len(found) != 0 {
		t.Errorf("strays after the next start: %v", found)
	}
	if out := h.does("episode", "show", "live", "--json"); !strings.Contains(out, `"status": "interrupted"`) || !strings.Contains(out, `"cause": "platform"`) {
		t.Errorf("the episode that lived is not interrupted by the platform:\n%s", out)
	}
	if out := h.does("run", "box", "--", "echo", "again"); out != "again\n" {
		t.Errorf("run printed %q", out)
	}

	h.end(syscall.SIGTERM)
	if found := h.strays(); len(found) != 0 {
		t.Errorf("strays after a graceful end: %v", found)
	}
}
