package bench

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/paddock-run/paddock/internal/timing"
)

func row(ms int) Row {
	return Row{Summary: timing.Sample{time.Duration(ms) * time.Millisecond}.Summarize()}
}

func TestRatiosAreNullWhereThePeerIsAbsent(t *testing.T) {
	t.Parallel()
	r := Report{Rows: map[string]Row{"episode": row(5), "create_2g": row(3), "create_10m": row(2)}}
	r.computeRatios()
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var got struct{ Ratios map[string]*float64 }
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{
		"episode_vs_docker", "episode8_vs_docker", "acquire_vs_docker_start", "exec_vs_docker_exec", "exec_vs_host",
		"episode8_vs_gojudge", "exec8_vs_gojudge", "branch_vs_docker", "idle_mib", "capture_10k_ms", "exec_2000_vs_0", "live_max", "burst1000_p99_s",
		"trace_vs_docker", "trace_vs_bare",
	} {
		if v, ok := got.Ratios[name]; !ok || v != nil {
			t.Errorf("%s: %v in the JSON %v, want null", name, v, ok)
		}
	}
	if v := got.Ratios["fork_2g_vs_10m"]; v == nil || *v != 1.5 {
		t.Errorf("fork_2g_vs_10m = %v, want 1.5", v)
	}
}

func TestFiguresStandBesideTheRatios(t *testing.T) {
	t.Parallel()
	r := Report{Figures: map[string]float64{"idle_mib": 0.5, "docker_idle_mib": 5}}
	r.computeRatios()
	if v := r.Ratios["idle_vs_docker"]; v == nil || *v != 10 {
		t.Errorf("idle_vs_docker = %v, want 10", v)
	}
	if got := r.Markdown(); !strings.Contains(got, "| `idle_mib` | 0.50 |") {
		t.Errorf("Markdown() has no idle_mib:\n%s", got)
	}
}

func TestRatiosAreTimesFasterThanDocker(t *testing.T) {
	t.Parallel()
	r := Report{Rows: map[string]Row{"episode": row(5), "docker_episode": row(200)}}
	r.computeRatios()
	if got := r.Ratios["episode_vs_docker"]; got == nil || *got != 40 {
		t.Errorf("episode_vs_docker = %v, want 40", got)
	}
}

func TestNoRatioIsQuotedWhenRefused(t *testing.T) {
	t.Parallel()
	r := Report{Refused: "move the store", Rows: map[string]Row{"create_2g": row(3), "create_10m": row(2)}}
	r.computeRatios()
	for name, v := range r.Ratios {
		if v != nil {
			t.Errorf("%s = %v, want null", name, *v)
		}
	}
	if got := r.Markdown(); !strings.Contains(got, "move the store") {
		t.Errorf("Markdown() does not say why:\n%s", got)
	}
}
