package main

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
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

// builtPaddock is this program as a file that daemons and agents can be started from.
func builtPaddock(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "paddock")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", path, ".").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return path
}

// demoRoot is a directory that the agents' users may enter, with a name short enough for
// sockets.
func demoRoot(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp(tmpfsDir(), "pd") //nolint:usetesting // that one's parent is closed to other users
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// A test that failed midway leaves its daemon running.
		d := ownDaemon{dir: filepath.Join(dir, "d")}
		d.client = api.NewClient(d.socket())
		if v, err := d.client.Version(context.WithoutCancel(t.Context())); err == nil {
			d.pid = v.PID
			_ = d.stop(context.WithoutCancel(t.Context()))
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "d")
}

// journal is the demo's journal of completed episodes, whole lines only.
func journal(t *testing.T, root string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "completed.jsonl"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(string(text), "\n")
	return lines[:len(lines)-1]
}

func TestDemoGoesOnAfterAKill(t *testing.T) {
	need.Overlay(t)
	need.Busybox(t)
	paddock := builtPaddock(t)
	for _, victim := range []string{"daemon", "demo"} {
		t.Run(victim, func(t *testing.T) {
			root := demoRoot(t)
			before := killInMidDemo(t, paddock, root, victim)
			out, err := exec.CommandContext(t.Context(), paddock, "demo", "--root", root, "--resume").CombinedOutput()
			lines := strings.Split(strings.TrimSpace(string(out)), "\n")
			last := lines[len(lines)-1]
			if err != nil || !strings.HasPrefix(last, "demo ok: 64 episodes, 64 scored, ") || !strings.HasSuffix(last, " retried, rerun digest equal") {
				t.Fatalf("demo --resume: %v\n%s\nthe daemon's log:\n%s", err, out, lastLine(filepath.Join(root, "daemon.log")))
			}
			after := journal(t, root)
			if len(after) != 64 {
				t.Errorf("the journal has %d episodes, want 64, each once", len(after))
			}
			// Attempt, reward and payload of what had completed before are byte-equal.
			if got := strings.Join(after[:len(before)], ""); got != strings.Join(before, "") {
				t.Errorf("what had completed before the kill is changed:\n%s\nwas\n%s", got, strings.Join(before, ""))
			}
			audited, err := exec.CommandContext(t.Context(), paddock, "audit", "--root", filepath.Join(root, "store")).CombinedOutput()
			if err != nil || !bytes.Contains(audited, []byte("audit: 0 strays")) {
				t.Errorf("audit: %v\n%s", err, audited)
			}
		})
	}
}

// killInMidDemo starts a demo, kills the victim with SIGKILL once some episodes have
// completed, and returns the journal as it was then.
func killInMidDemo(t *testing.T, paddock, root, victim string) []string {
	t.Helper()
	var out bytes.Buffer
	cmd := exec.CommandContext(t.Context(), paddock, "demo", "--root", root)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	const some = 8
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for len(journal(t, root)) < some {
		select {
		case <-tick.C:
		case err := <-ended:
			t.Fatalf("demo ended before it was killed: %v\n%s", err, &out)
		}
	}
	pid := cmd.Process.Pid
	if victim == "daemon" {
		v, err := api.NewClient(filepath.Join(root, "paddock.sock")).Version(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		pid = v.PID
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil {
		t.Fatalf("demo succeeded though its %s was killed:\n%s", victim, &out)
	}
	before := journal(t, root)
	if len(before) >= 64 {
		t.Fatalf("all episodes had completed before the kill:\n%s", &out)
	}
	return before
}
