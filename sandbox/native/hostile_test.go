package native_test

import (
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
