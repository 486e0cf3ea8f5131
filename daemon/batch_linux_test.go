package daemon

import (
	"fmt"
	"slices"
	"testing"

	"github.com/paddock-run/paddock/api"
)

// verdict is a grader that gives 1 where the answer file says yes.
func verdict() api.GraderSpec {
	return api.GraderSpec{
		Files:   map[string]api.GraderFile{"grade.sh": {Bytes: []byte(`[ "$(cat /tmp/answer)" = yes ] && r=1 || r=0; echo "{\"reward\": $r}" >&"$PADDOCK_VERDICT_FD"`), Mode: 0o755}},
		Command: []string{"sh", "/grader/grade.sh"},
	}
}

func (f *front) grader(tb testing.TB, spec api.GraderSpec) string {
	tb.Helper()
	digest, err := f.client.PutGrader(tb.Context(), spec)
	if err != nil {
		tb.Fatal(err)
	}
	return digest
}

func TestGradersAreKeptByTheirContent(t *testing.T) {
	t.Parallel()
	f := serveEpisodes(t)
	digest := f.grader(t, verdict())
	if again := f.grader(t, verdict()); again != digest {
		t.Errorf("the same grader is %s and %s", digest, again)
	}
	g, err := f.client.Grader(t.Context(), digest)
	if err != nil || g.Command[0] != "sh" || string(g.Files["grade.sh"].Bytes) == "" {
		t.Errorf("Grader() = %+v, %v", g, err)
	}
	_, err = f.client.Grader(t.Context(), "sha256:none")
	wantKind(t, err, api.UnknownGrader)
	_, err = f.client.PutGrader(t.Context(), api.GraderSpec{})
	wantKind(t, err, api.BadRequest)
	_, err = f.client.Create(t.Context(), api.EpisodeSpec{ID: "e", World: world, Graders: []api.WeightedGrader{{Grader: "sha256:none"}}})
	wantKind(t, err, api.UnknownGrader)
}

func TestFinishScores(t *testing.T) {
	t.Parallel()
	f := serveEpisodes(t)
	digest := f.grader(t, verdict())
	for id, want := range map[string]float64{"yes": 1, "no": 0} {
		c, err := f.client.Create(t.Context(), api.EpisodeSpec{ID: id, World: world, Graders: []api.WeightedGrader{{Grader: digest}}})
		if err != nil {
			t.Fatal(err)
		}
		f.mustCall(t, c.Episode.Key(), sh("echo "+id+" > /tmp/answer"))
		ep, err := f.client.Finish(t.Context(), c.Episode.Key(), api.FinishSpec{})
		if err != nil || ep.Reward == nil || *ep.Reward != want || !ep.Valid || len(ep.Last().Scores) != 1 {
			t.Errorf("%s: %+v, %v", id, ep.Last(), err)
		}
	}
}

func TestClientsRewardIsKeptAsItsOwn(t *testing.T) {
	t.Parallel()
	f := serveEpisodes(t)
	k := f.create(t, "e")
	if _, err := f.client.Finish(t.Context(), k, api.FinishSpec{}); err != nil {
		t.Fatal(err)
	}
	reward := 0.25
	ep, err := f.client.WriteReward(t.Context(), k, api.RewardSpec{Name: "mine", Reward: &reward})
	if err != nil || ep.Reward == nil || *ep.Reward != reward || ep.Last().Scores[0].Source != "client" {
		t.Errorf("WriteReward() = %+v, %v", ep.Last(), err)
	}
}

func TestBatchRunsAManifestAndStreamsResults(t *testing.T) {
	t.Parallel()
	f := serveEpisodes(t)
	digest := f.grader(t, verdict())
	spec := api.BatchSpec{ID: "b", Run: "batch"}
	for i := range 6 {
		answer := []string{"yes", "no"}[i%2]
		spec.Episodes = append(spec.Episodes, api.BatchEpisode{
			EpisodeSpec: api.EpisodeSpec{
				ID: fmt.Sprintf("g%d/s%d", i/2, i%2), Group: fmt.Sprintf("g%d", i/2), World: world,
				Graders: []api.WeightedGrader{{Grader: digest}}, Limits: api.Limits{Memory: 64 << 20, Disk: 16 << 20},
			},
			Agent: api.AgentSpec{Calls: []api.CallSpec{sh("echo " + answer + " > /tmp/answer")}},
		})
	}
	b, err := f.client.CreateBatch(t.Context(), spec)
	if err != nil || b.ID != "b" || b.Total != 6 {
		t.Fatalf("CreateBatch() = %+v, %v", b, err)
	}
	var seqs []int64
	rewards := 0.0
	err = f.client.Results(t.Context(), "b", 0, true, func(r api.BatchResult) error {
		seqs = append(seqs, r.Seq)
		if r.Reward == nil {
			t.Errorf("%s: no reward: %+v", r.ID, r)
			return nil
		}
		rewards += *r.Reward
		return nil
	})
	if err != nil || len(seqs) != 6 || !slices.IsSorted(seqs) || rewards != 3 {
		t.Errorf("results: seqs %v, rewards %v, %v", seqs, rewards, err)
	}
	var later []int64
	err = f.client.Results(t.Context(), "b", seqs[3], false, func(r api.BatchResult) error {
		later = append(later, r.Seq)
		return nil
	})
	if err != nil || !slices.Equal(later, seqs[4:]) {
		t.Errorf("after %d: %v, %v", seqs[3], later, err)
	}
	b, err = f.client.Batch(t.Context(), "b")
	if err != nil || b.State != "done" || b.Valid != 6 || len(b.Groups) != 3 {
		t.Fatalf("Batch() = %+v, %v", b, err)
	}
	for _, g := range b.Groups {
		if g.Mean == nil || *g.Mean != 0.5 || !g.Spread || !g.Complete || g.IsVoid {
			t.Errorf("group = %+v", g)
		}
	}
	if again, err := f.client.CreateBatch(t.Context(), spec); err != nil || again.ID != "b" {
		t.Errorf("asked again: %+v, %v", again, err)
	}
}

func TestBadBatchesAreRefusedWhole(t *testing.T) {
	t.Parallel()
	f := serveEpisodes(t)
	good := api.BatchEpisode{EpisodeSpec: api.EpisodeSpec{ID: "good", World: world}, Agent: api.AgentSpec{Calls: []api.CallSpec{sh("true")}}}
	for name, c := range map[string]struct {
		bad  api.BatchEpisode
		kind api.Kind
	}{
		"no agent":      {api.BatchEpisode{EpisodeSpec: api.EpisodeSpec{ID: "x", World: world}}, api.BadRequest},
		"id twice":      {good, api.BadRequest},
		"unknown world": {api.BatchEpisode{EpisodeSpec: api.EpisodeSpec{ID: "x", World: "atlantis"}, Agent: good.Agent}, api.UnknownWorld},
	} {
		_, err := f.client.CreateBatch(t.Context(), api.BatchSpec{Run: "r", Episodes: []api.BatchEpisode{good, c.bad}})
		p := wantKind(t, err, c.kind)
		if p.Detail == "" {
			t.Errorf("%s: %+v", name, p)
		}
	}
	_, err := f.client.CreateBatch(t.Context(), api.BatchSpec{})
	wantKind(t, err, api.BadRequest)
	all, err := f.client.Batches(t.Context())
	if err != nil || len(all) != 0 {
		t.Errorf("something was made: %+v, %v", all, err)
	}
	_, err = f.client.Batch(t.Context(), "none")
	wantKind(t, err, api.NotFound)
	wantKind(t, f.client.Results(t.Context(), "none", 0, false, nil), api.NotFound)
}
