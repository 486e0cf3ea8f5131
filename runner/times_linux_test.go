package runner_test

import (
	"testing"

	"github.com/paddock-run/paddock/runner"
)

// Times that no calendar has are the agent's to set. They void neither a call that looks at
// them nor the capture, and the end state can be made again.
func TestTimesOfNoCalendarAreCapturedAndScored(t *testing.T) {
	t.Parallel()
	b := newRealBench(t)
	key := b.live("far")
	r := b.sh(key, "cd /tmp; for s in 253402300800 99999999999999 -9999999999999; do touch t$s && touch -d @$s t$s || exit 1; done")
	if r.Code == nil || *r.Code != 0 {
		t.Fatalf("touch: %+v %s", r.Code, r.Stderr.Head)
	}
	for _, c := range []runner.CallSpec{{Tool: "stat", Path: "/tmp/t99999999999999"}, {Tool: "list_dir", Path: "/tmp"}} {
		if r := b.call(key, c); r.Error != nil {
			t.Errorf("%s: %+v", c.Tool, r.Error)
		}
	}
	ep := b.finish(key)
	at := ep.Last()
	wantEnd(t, *at, runner.OK, runner.Agent, "")
	if at.Capture == nil || !at.Capture.Rescorable || at.Capture.Changes != 3 {
		t.Errorf("capture = %+v, want the three files and their bytes", at.Capture)
	}
}
