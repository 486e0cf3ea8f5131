package native_test

import (
	"os/exec"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/paddock-run/paddock/internal/golden"
	"github.com/paddock-run/paddock/internal/need"
)

// probeGolden holds what a probe found in a sandbox against its policy's table.
func probeGolden(t *testing.T, probe, file, got string) {
	t.Helper()
	golden.Update(t, file, []byte(got))
	if d := cmp.Diff(need.ProbeTable(t, probe, file), got); d != "" {
		t.Errorf("%s differs (-want +got):\n%s", file, d)
	}
}

func buildProbe(t *testing.T, to string) {
	t.Helper()
	cc := need.Command(t, "gcc", "gcc")
	if out, err := exec.CommandContext(t.Context(), cc, "-static", "-O1", "-o", to, "testdata/probe.c").CombinedOutput(); err != nil {
		t.Fatalf("build probe: %v\n%s", err, out)
	}
}
