package native_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/paddock-run/paddock/sandbox"
)

// idleClass says whether a sandbox's cgroup of CPU time is SCHED_IDLE.
func (l launcher) idleClass(t *testing.T, name string) bool {
	t.Helper()
	for _, hierarchy := range []string{"", "cpu"} {
		text, err := os.ReadFile(filepath.Join("/sys/fs/cgroup", hierarchy, l.parent, name, "cpu.idle"))
		if err == nil {
			return strings.TrimSpace(string(text)) == "1"
		}
	}
	t.Fatal("need cpu.idle: Linux 5.15")
	return false
}

func (l launcher) becomes(t *testing.T, name string, idle bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); l.idleClass(t, name) != idle; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s stays idle %v, want %v", name, !idle, idle)
		}
	}
}

// What computes without end yields to the others; the next call is an ordinary one again.
func TestSandboxThatComputesWithoutEndYields(t *testing.T) {
	l := newLauncher(t)
	spec := specOf("default", small)(t, "hog")
	s, err := l.Launcher.Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	spin := script("while :; do :; done")
	spin.Timeout = time.Minute
	p, err := s.Start(t.Context(), spin)
	if err != nil {
		t.Fatal(err)
	}
	l.becomes(t, "hog", true)
	p.Kill()
	if e := p.Wait(); e.Signal == 0 && !e.TimedOut {
		t.Errorf("killed: %+v", e)
	}
	l.becomes(t, "hog", false)
	mustWork(t, s)
	if l.idleClass(t, "hog") {
		t.Error("a short call is taken for a hog")
	}
	// A leftover that computes is one, too, and a call beside it does not change that.
	stay := script("while :; do :; done & exit 0")
	stay.Leftovers = sandbox.KeepLeftovers
	if r := run(t, s, stay); r.Leftover == 0 {
		t.Fatalf("nothing is left over: %+v", r.Exit)
	}
	l.becomes(t, "hog", true)
	mustWork(t, s)
	if !l.idleClass(t, "hog") {
		t.Error("a call beside a hog made it none")
	}
}

// A sandbox that sleeps in its call is no hog.
func TestSandboxThatWaitsIsNoHog(t *testing.T) {
	l := newLauncher(t)
	s, err := l.Launcher.Start(t.Context(), specOf("default", small)(t, "calm"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	if r := run(t, s, script("sleep 0.5")); code(r) != 0 {
		t.Errorf("%+v", r.Exit)
	}
	if l.idleClass(t, "calm") {
		t.Error("a sandbox that waits is taken for a hog")
	}
}

// Many that begin to compute at one time get little CPU each, and yield all the same.
func TestManySandboxesThatComputeYield(t *testing.T) {
	l := newLauncher(t)
	const many = 8
	spin := script("while :; do :; done")
	spin.Timeout = time.Minute
	for i := range many {
		name := "hog-" + strconv.Itoa(i)
		s, err := l.Launcher.Start(t.Context(), specOf("default", small)(t, name))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		if _, err := s.Start(t.Context(), spin); err != nil {
			t.Fatal(err)
		}
	}
	for i := range many {
		l.becomes(t, "hog-"+strconv.Itoa(i), true)
	}
}
