package daemon

import (
	"context"
	"sync"
	"testing"

	"github.com/paddock-run/paddock/api"
)

func clientLine(id, group, weights string, graders ...api.WeightedGrader) api.BatchEpisode {
	return api.BatchEpisode{
		EpisodeSpec: api.EpisodeSpec{
			ID: id, Group: group, World: world, Weights: weights, Graders: graders,
			Limits: api.Limits{Memory: 64 << 20, Disk: 16 << 20},
		},
		Agent: api.AgentSpec{Client: true},
	}
}

// A whole turn of a trainer: it opens the run and a queue, adds a group, plays what it is
// asked, writes its own rewards, takes the group, and cancels what its new weights made
// stale.
func TestTrainerDrivesAQueue(t *testing.T) {
	t.Parallel()
	f := serveEpisodes(t)
	run, err := f.client.OpenRun(t.Context(), api.RunSpec{Name: "exp", Resume: "auto"})
	if err != nil {
		t.Fatal(err)
	}
	c := f.client.WithGeneration(run.Generation)
	q, err := c.CreateBatch(t.Context(), api.BatchSpec{ID: "q", Run: "exp", Open: true, OnVoid: "refill:1"})
	if err != nil || q.Sealed || q.State != "running" || q.OnVoid != "refill:1" || q.MinValid != 2 {
		t.Fatalf("CreateBatch() = %+v, %v", q, err)
	}
	if again, err := f.client.OpenRun(t.Context(), api.RunSpec{Name: "exp", Resume: "new"}); err == nil {
		t.Fatalf("the run is unknown: %+v", again)
	}
	half := 0.5
	graders := []api.WeightedGrader{{Grader: f.grader(t, verdict())}, {Grader: "client:length", Weight: &half}}
	added, err := c.AddToBatch(t.Context(), "q", clientLine("i1/a", "i1", "v1", graders...), clientLine("i1/b", "i1", "v1", graders...))
	if err != nil || added.Added != 2 {
		t.Fatalf("AddToBatch() = %+v, %v", added, err)
	}
	work, stop := context.WithCancel(t.Context())
	var working sync.WaitGroup
	working.Go(func() { drive(work, t, c, "q") })
	var group api.GroupResult
	err = c.GroupResults(t.Context(), "q", 0, true, func(g api.GroupResult) error {
		group = g
		return context.Canceled
	})
	if group.Valid != 2 || group.Void != 1 || group.Refills != 1 || len(group.Results) != 3 {
		t.Fatalf("group = %+v, %v; want two valid and a refill for the first", group, err)
	}
	if group.Rewards[0] != nil || *group.Rewards[1] != 0.5*0.25 || *group.Rewards[2] != 1+0.5*0.25 || *group.Mean != 0.625 || *group.Std != 0.5 {
		t.Errorf("group = %+v, %v; want the sums of both graders", group, err)
	}
	stop()
	working.Wait()
	if _, err := c.AddToBatch(t.Context(), "q", clientLine("i2/a", "i2", "v2"), clientLine("i2/b", "i2", "v3")); err != nil {
		t.Fatal(err)
	}
	cancelled, err := c.CancelBatch(t.Context(), "q", api.BatchCancel{WeightsBefore: "v3", Reason: "stale"})
	if err != nil || cancelled.Cancelled != 1 || cancelled.Causes["cancelled/client"] != 1 {
		t.Errorf("CancelBatch() = %+v, %v; want one line", cancelled, err)
	}
	refusals(t, f, c)
	if b, err := c.SealBatch(t.Context(), "q"); err != nil || !b.Sealed {
		t.Errorf("SealBatch() = %+v, %v", b, err)
	}
	_, err = c.AddToBatch(t.Context(), "q", clientLine("i3/a", "i3", "v3"))
	wantKind(t, err, api.WrongState)
	if b, err := c.CancelBatch(t.Context(), "q", api.BatchCancel{}); err != nil || b.State != "cancelled" || b.Cancelled != 1 {
		t.Errorf("cancel of the whole: %+v, %v", b, err)
	}
	if _, err := f.client.OpenRun(t.Context(), api.RunSpec{Name: "exp", Resume: "resume"}); err != nil {
		t.Fatal(err)
	}
	_, err = c.ResumeBatch(t.Context(), "q")
	wantKind(t, err, api.Fenced)
}

// drive plays and scores what a queue asks: the first line is given up, the refill for it
// answers well, others do not.
func drive(ctx context.Context, t *testing.T, c *api.Client, queue string) {
	t.Helper()
	var plays sync.WaitGroup
	defer plays.Wait()
	_ = c.Work(ctx, queue, "", 0, func(w api.Work) error {
		plays.Go(func() {
			var err error
			key := api.Key{Run: w.Episode.Run, ID: w.ID}
			switch {
			case w.Kind == "score":
				quarter := 0.25
				err = c.RewardInBatch(ctx, queue, api.BatchReward{ID: w.ID, RewardSpec: api.RewardSpec{Attempt: w.Attempt, Name: w.Graders[0], Reward: &quarter}})
			case w.ID == "i1/a":
				_, err = c.Abort(ctx, key, "inference is down")
			default:
				answer := "no"
				if w.RefillOf == "i1/a" {
					answer = "yes"
				}
				if _, err = c.Call(ctx, key, sh("echo "+answer+" > /tmp/answer")); err == nil {
					_, err = c.Finish(ctx, key, api.FinishSpec{Attempt: w.Attempt})
				}
			}
			if err != nil && ctx.Err() == nil {
				t.Errorf("%s of %s: %v", w.Kind, w.ID, err)
			}
		})
		return nil
	})
}

// refusals are what a queue answers to wrong requests: a kind, the field, and nothing done.
func refusals(t *testing.T, f *front, c *api.Client) {
	t.Helper()
	before, err := c.Batch(t.Context(), "q")
	if err != nil {
		t.Fatal(err)
	}
	add := func(lines ...api.BatchEpisode) error {
		_, err := c.AddToBatch(t.Context(), "q", lines...)
		return err
	}
	cancel := func(spec api.BatchCancel) error {
		_, err := c.CancelBatch(t.Context(), "q", spec)
		return err
	}
	one := 1.0
	for _, r := range []struct {
		kind  api.Kind
		field string
		err   error
	}{
		{api.BadRequest, "/episodes", add()},
		{api.UnknownWorld, "", add(clientLine("x", "", ""), api.BatchEpisode{EpisodeSpec: api.EpisodeSpec{ID: "y", World: "nowhere"}, Agent: api.AgentSpec{Client: true}})},
		{api.SpecConflict, "/episodes/0/id", add(clientLine("i2/b", "i2", "v2"))},
		{api.WrongState, "/episodes/0/group", add(clientLine("i1/c", "i1", "v1"))},
		{api.NotFound, "/group", cancel(api.BatchCancel{Group: "nope"})},
		{api.BadRequest, "/weights", cancel(api.BatchCancel{Group: "i2", Weights: "v3"})},
		{api.BadRequest, "/lease", c.Work(t.Context(), "q", "none", 0, nil)},
		{api.NotFound, "", c.RewardInBatch(t.Context(), "q", api.BatchReward{ID: "nope", RewardSpec: api.RewardSpec{Name: "n", Reward: &one}})},
		{api.NotFound, "", c.Work(t.Context(), "none", "", 0, nil)},
	} {
		if p := wantKind(t, r.err, r.kind); p != nil && r.field != "" && p.Field != r.field {
			t.Errorf("%s: field %q, want %q (%s)", r.kind, p.Field, r.field, p.Detail)
		}
	}
	conflict := wantKind(t, add(clientLine("i2/b", "i2", "v2")), api.SpecConflict)
	if len(conflict.Pointers) == 0 || conflict.Pointers[0].Pointer != "/weights" {
		t.Errorf("conflict = %+v, want it to point at the weights", conflict)
	}
	resp, body := f.raw(t, "POST", "/v1/batches/q/episodes", api.MediaJSON, `{"episodes":[],"colour":1}`)
	if p := problemOf(t, resp, body); p.Kind != api.UnknownField || p.Field != "/colour" {
		t.Errorf("an unknown field: %+v", p)
	}
	if after, err := c.Batch(t.Context(), "q"); err != nil || after.Total != before.Total || after.Done != before.Done {
		t.Errorf("after the refusals: %+v, %v; want it as before", after, err)
	}
}

// Programs of this host are for its own users, by whatever route they come.
func TestHostAgentsAreNotAddedFromOtherHosts(t *testing.T) {
	t.Parallel()
	s := newSecrets(t)
	f := serveEpisodes(t, func(c *Config) { c.Remote = s.options() })
	alice := s.client(t, f, aliceToken)
	if _, err := alice.CreateBatch(t.Context(), api.BatchSpec{ID: "q", Open: true}); err != nil {
		t.Fatal(err)
	}
	line := api.BatchEpisode{EpisodeSpec: api.EpisodeSpec{ID: "e", World: world}, Agent: api.AgentSpec{Host: []string{"/bin/true"}}}
	_, err := alice.AddToBatch(t.Context(), "q", clientLine("good", "", ""), line)
	if p := wantKind(t, err, api.PermissionDenied); p != nil && p.Field != "/episodes/1/agent/host" {
		t.Errorf("field %q", p.Field)
	}
	_, err = alice.CreateBatch(t.Context(), api.BatchSpec{ID: "b", Episodes: []api.BatchEpisode{line}})
	wantKind(t, err, api.PermissionDenied)
	if b, err := alice.Batch(t.Context(), "q"); err != nil || b.Total != 0 {
		t.Errorf("batch = %+v, %v; want no line", b, err)
	}
}
