package native_test

import (
	"os"
	"testing"
	"time"

	"github.com/paddock-run/paddock/sandbox"
)

// X-P12: a leftover of the same user stops whatever it sees, also a child of PID 1 that is
// not yet its program. Each call keeps to its timeout and PID 1 goes on.
func TestStopStormHoldsUpNoOtherCall(t *testing.T) {
	s := start(t, newLauncher(t), "default", small)
	if r := run(t, s, script("(sleep 0.2; while :; do kill -STOP -1; done) >/dev/null 2>&1 & echo on")); r.out != "on\n" {
		t.Fatalf("storm did not start: %q %q", r.out, r.err)
	}
	for i := range 20 {
		cmd := sandbox.Command{Argv: []string{"/bin/true"}, Dir: "/", Timeout: 100 * time.Millisecond}
		if r := run(t, s, cmd); r.took > 3*time.Second || (code(r) != 0 && !r.TimedOut) {
			t.Fatalf("call %d: code %d signal %d after %s, want 0 or a timeout", i, code(r), r.Signal, r.took)
		}
	}
}

// A sandbox whose calls each leave a process that holds their output cannot use up the
// daemon's descriptors.
func TestHeldOutputsAreBounded(t *testing.T) {
	limits := small
	limits.Pids = 256
	s := start(t, newLauncher(t), "default", limits)
	before := descriptors(t)
	for i := range 100 {
		if r := run(t, s, script("sleep 100 & exit 0")); code(r) != 0 || !r.OutputHeld {
			t.Fatalf("call %d: code %d held %v err %q", i, code(r), r.OutputHeld, r.err)
		}
	}
	if grown := descriptors(t) - before; grown > 80 {
		t.Errorf("100 calls with held outputs keep %d descriptors", grown)
	}
	mustWork(t, s)
}

func descriptors(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}
