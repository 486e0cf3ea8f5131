package native_test

import (
	"flag"
	"os"
	"os/exec"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/paddock-run/paddock/internal/need"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// probeGolden holds what a probe found in a sandbox against its policy's table.
func probeGolden(t *testing.T, probe, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
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
