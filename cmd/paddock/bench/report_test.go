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
	b, err := json.Marshal(r.Ratios)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"episode_vs_docker":null,"episode_vs_docker_run":null,"exec_http_vs_host":null,"exec_vs_docker_exec":null,"fork_2g_vs_10m":1.5}`
	if string(b) != want {
		t.Errorf("ratios = %s, want %s", b, want)
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
