package main

import (
	"encoding/json"
	"testing"
)

// Every result of a hostile batch, and of the ordinary calls beside it, is typed, and nothing
// is left. `paddock bench hostile` makes more of them and prints the times.
func TestHostileBatchBesideOrdinaryEpisodes(t *testing.T) {
	t.Setenv(asPaddock, "1") // the daemon of the bench is this binary, run again
	h := newHost(t)
	code, out, errs := h.paddock(t, nil, "bench", "hostile", "--json", "--cgroup-parent", h.cgroup,
		"--episodes", "18", "--at-once", "6", "--ordinary", "5", "--idle", "1s")
	var report hostileReport
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		t.Fatalf("%v: %s%s", err, out, errs)
	}
	if code != 0 || report.Strays != 0 || len(report.Wrong) > 0 {
		t.Errorf("exit code %d, %d strays, wrong: %q", code, report.Strays, report.Wrong)
	}
	made := 0
	for _, n := range report.Hostile {
		made += n
	}
	if made != 18 || report.Beside.N == 0 || report.Idle.N == 0 {
		t.Errorf("%d hostile episodes, %d and %d ordinary calls; want 18 and some", made, report.Idle.N, report.Beside.N)
	}
}
