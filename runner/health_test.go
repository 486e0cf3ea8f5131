package runner_test

import (
	"testing"

	"github.com/paddock-run/paddock/overlay"
	"github.com/paddock-run/paddock/runner"
)

func TestWorldWhoseSetupFailsIsQuarantined(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	recipe := overlay.Recipe{Busybox: true, Config: overlay.Config{Setup: []string{"sh", "-c", "exit 1"}}}
	build := func() string {
		t.Helper()
		built, err := b.BuildWorld(t.Context(), root, recipe, nil)
		if err != nil {
			t.Fatal(err)
		}
		return built.World.ID
	}
	failing := build()
	use := func(s *runner.EpisodeSpec) { s.World = failing }
	fail := func(id string) {
		t.Helper()
		wantEnd(t, last(b.create(b.spec(id, use)).Episode), runner.Errored, runner.WorldBad, "setup")
	}
	for _, id := range []string{"a", "b", "c"} {
		fail(id)
	}
	_, err := b.Create(t.Context(), owner, 0, b.spec("d", use))
	wantKind(t, err, runner.KindWorldUnhealthy)
	_, err = b.Get(t.Context(), b.key("d"))
	wantKind(t, err, runner.KindNotFound)
	if _, err := b.Create(t.Context(), owner, 0, b.spec("a", use)); runner.KindOf(err) != runner.KindAttemptsExhausted {
		t.Errorf("create of a known id = %v, want what is kept of it", err)
	}
	b.finish(b.live("neighbour"))
	if _, err := b.Create(t.Context(), "1001", 0, b.spec("a", use)); err != nil {
		t.Errorf("another owner: %v, want its own count", err)
	}
	build()
	fail("d")
}

func TestSetupThatSucceedsResetsTheCount(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	built, err := b.BuildWorld(t.Context(), root, overlay.Recipe{
		Busybox: true, Config: overlay.Config{Setup: []string{"sleep", "0.2"}},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"a", "b", "ok", "c", "d"} {
		c := b.create(b.spec(id, func(s *runner.EpisodeSpec) {
			if s.World = built.World.ID; id != "ok" {
				s.Budgets.SetupS = 0.05
			}
		}))
		if live := c.Episode.State == runner.Live; live != (id == "ok") {
			t.Errorf("%s: state %s, end %+v", id, c.Episode.State, c.Episode.Last().End)
		}
	}
}
