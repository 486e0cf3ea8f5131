package runner_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/paddock-run/paddock/runner"
	"github.com/paddock-run/paddock/sandbox"
)

func TestReadManifestNamesLineAndField(t *testing.T) {
	t.Parallel()
	good := `{"id":"a","world":"w","agent":{"calls":[{"tool":"exec","shell":"true"}]}}`
	for _, c := range []struct{ name, text, field string }{
		{"no JSON", good + "\nnope", "line 2"},
		{"unknown field", `{"id":"a","world":"w","colour":1,"agent":{"calls":[]}}`, "line 1: colour"},
		{"wrong type", good + "\n\n" + `{"id":"a","world":"w","retries":"two","agent":{"calls":[]}}`, "line 3: EpisodeSpec/retries"},
		{"no world", `{"id":"a","agent":{"calls":[]}}`, "line 1: world"},
		{"no id", `{"world":"w","agent":{"calls":[]}}`, "line 1: id"},
		{"no agent", `{"id":"a","world":"w"}`, "line 1: agent"},
		{"two agents", `{"id":"a","world":"w","agent":{"calls":[],"host":["/bin/true"]}}`, "line 1: agent"},
		{"call without tool", `{"id":"a","world":"w","agent":{"calls":[{"shell":"true"}]}}`, "line 1: agent/calls/0/tool"},
		{"call without path", `{"id":"a","world":"w","agent":{"calls":[{"tool":"read_file"}]}}`, "line 1: agent/calls/0/path"},
		{"command without argv", `{"id":"a","world":"w","agent":{"command":{}}}`, "line 1: agent/command/argv"},
		{"relative host program", `{"id":"a","world":"w","agent":{"host":["sh"]}}`, "line 1: agent/host"},
		{"two objects", good + good, "line 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, err := runner.ReadManifest(strings.NewReader(c.text))
			if e := wantKind(t, err, runner.KindBadRequest); e != nil && e.Field != c.field {
				t.Errorf("field = %q, want %q (%s)", e.Field, c.field, e.Detail)
			}
		})
	}
	got, err := runner.ReadManifest(strings.NewReader(good + "\n\n" + strings.Replace(good, `"a"`, `"b"`, 1) + "\n"))
	if err != nil || len(got) != 2 || got[1].ID != "b" || len(got[1].Agent.Calls) != 1 {
		t.Errorf("ReadManifest = %+v, %v; want two episodes", got, err)
	}
}

// patience is how long a test waits for what must come: hosts of tests may be slow.
const patience = 2 * time.Minute

// graderOf puts a grader that is one script.
func (b *bench) graderOf(script string) []runner.WeightedGrader {
	b.t.Helper()
	d, err := b.PutGrader(b.t.Context(), runner.GraderSpec{Command: []string{"/bin/sh", "-c", script}, Policy: "default"})
	if err != nil {
		b.t.Fatal(err)
	}
	return []runner.WeightedGrader{{Grader: d}}
}

// sayMark gives the verdict that the agent wrote into the file mark: never a good grader.
const sayMark = `cat /workdir/dir/mark >&3`

func mark(reward string) string { return `echo '{"reward": ` + reward + `}' > mark` }

const sayOne = `echo '{"reward": 1}' >&3`

func shellAgent(scripts ...string) runner.AgentSpec {
	a := runner.AgentSpec{Calls: []runner.CallSpec{}}
	for _, s := range scripts {
		a.Calls = append(a.Calls, runner.CallSpec{Tool: "exec", Shell: s})
	}
	return a
}

func (b *bench) line(id, group string, agent runner.AgentSpec, graders []runner.WeightedGrader, change ...func(*runner.EpisodeSpec)) runner.BatchEpisode {
	s := b.spec(id, change...)
	s.Group, s.Graders = group, graders
	return runner.BatchEpisode{EpisodeSpec: s, Agent: agent}
}

// follow reads all results until the batch no longer runs.
func (b *bench) follow(id string, after int64) []runner.BatchResult {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), patience)
	defer cancel()
	var got []runner.BatchResult
	if err := b.Results(ctx, owner, id, after, true, func(r runner.BatchResult) error {
		got = append(got, r)
		return nil
	}); err != nil {
		b.t.Fatalf("Results: %v", err)
	}
	return got
}

func (b *bench) batch(spec runner.BatchSpec) runner.Batch {
	b.t.Helper()
	made, err := b.CreateBatch(b.t.Context(), owner, spec)
	if err != nil {
		b.t.Fatalf("CreateBatch: %v", err)
	}
	return made
}

func (b *bench) batchNow(id string) runner.Batch {
	b.t.Helper()
	now, err := b.Batch(b.t.Context(), owner, id)
	if err != nil {
		b.t.Fatal(err)
	}
	return now
}

func TestBatchCompletesGroupsInOrderAndCountsThem(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	g := b.graderOf(sayMark)
	var spec runner.BatchSpec
	spec.Parallel = 1
	for _, id := range []string{"g1/a", "g2/a", "g1/b", "g2/b"} { // lines of groups are mixed
		reward := "1"
		if id == "g1/b" {
			reward = "0"
		}
		spec.Episodes = append(spec.Episodes, b.line(id, id[:2], shellAgent(mark(reward)), g))
	}
	made := b.batch(spec)
	got := b.follow(made.ID, 0)
	var ids []string
	for i, r := range got {
		ids = append(ids, r.ID)
		if r.Seq != int64(i+1) || !r.Valid {
			t.Errorf("result %d = seq %d valid %v %+v", i, r.Seq, r.Valid, r.Scores)
		}
	}
	if want := []string{"g1/a", "g1/b", "g2/a", "g2/b"}; !slices.Equal(ids, want) {
		t.Errorf("order of completion %q, want %q", ids, want)
	}
	if rest := b.follow(made.ID, 2); len(rest) != 2 || rest[0].Seq != 3 {
		t.Errorf("after 2 came %d results", len(rest))
	}
	now := b.batchNow(made.ID)
	if now.State != runner.BatchDone || now.Done != 4 || now.Valid != 4 || now.Void != 0 || len(now.Groups) != 2 {
		t.Fatalf("batch = %+v", now)
	}
	g1, g2 := now.Groups[0], now.Groups[1]
	if *g1.Mean != 0.5 || *g1.Std != 0.5 || !g1.Spread || !g1.Complete || g1.IsVoid {
		t.Errorf("group g1 = %+v", g1)
	}
	if *g2.Mean != 1 || *g2.Std != 0 || g2.Spread {
		t.Errorf("group g2 = %+v", g2)
	}
}

// B02: done stays done, honest failures included; exactly what the platform lost is made
// again, with its attempt numbers kept.
func TestResumeMakesExactlyWhatThePlatformLost(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	g := b.graderOf(sayOne)
	spec := runner.BatchSpec{Parallel: 1}
	for i := range 10 {
		agent := shellAgent("true")
		switch i {
		case 3, 6:
			agent = runner.AgentSpec{Command: &runner.CallSpec{Shell: "exit 3"}}
		case 8, 9:
			agent = shellAgent("echo waits > f", "sleep 1000")
		}
		spec.Episodes = append(spec.Episodes, b.line(fmt.Sprintf("e%d", i), "g", agent, g))
	}
	made := b.batch(spec)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	n, enough := 0, errors.New("enough")
	if err := b.Results(ctx, owner, made.ID, 0, true, func(runner.BatchResult) error {
		if n++; n == 8 {
			return enough
		}
		return nil
	}); !errors.Is(err, enough) {
		t.Fatalf("Results = %v", err)
	}
	b.waitLive(b.key("e8"), 1)
	if err := b.Close(ctx); err != nil {
		t.Fatal(err)
	}
	b.restart()
	if now := b.batchNow(made.ID); now.State != runner.BatchInterrupted || now.Done != 8 {
		t.Fatalf("after the stop: %s with %d done", now.State, now.Done)
	}
	if _, err := b.ResumeBatch(t.Context(), owner, made.ID, 0); err != nil {
		t.Fatal(err)
	}
	b.waitLive(b.key("e8"), 2)
	if _, _, err := b.CancelBatch(t.Context(), owner, made.ID, runner.BatchCancel{Reason: "enough seen"}); err != nil {
		t.Fatal(err)
	}
	for i := range 8 {
		ep, err := b.Get(t.Context(), b.key(fmt.Sprintf("e%d", i)))
		if err != nil || len(ep.Attempts) != 1 || !ep.Valid {
			t.Errorf("e%d has %d attempts, valid %v, %v; want 1, true", i, len(ep.Attempts), ep.Valid, err)
		}
	}
	ep, err := b.Get(t.Context(), b.key("e8"))
	if err != nil || len(ep.Attempts) != 2 {
		t.Errorf("e8 has %d attempts, %v; want the one that was cut short and another", len(ep.Attempts), err)
	}
	if ep, err := b.Get(t.Context(), b.key("e3")); err != nil || ep.Last().End.Status != runner.Failed {
		t.Errorf("e3 ended %+v, %v; want failed", ep.Last(), err)
	}
}

// waitLive waits until attempt n is live.
func (b *bench) waitLive(key runner.Key, n int) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), patience)
	defer cancel()
	for {
		ep, err := b.Get(ctx, key)
		if err == nil && ep.State == runner.Live && len(ep.Attempts) == n {
			return
		}
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			b.t.Fatalf("attempt %d of %s is not live: %+v, %v", n, key.ID, ep.Attempts, err)
		}
	}
}

func TestBatchRetriesWhatTheFaultSwitchKills(t *testing.T) {
	t.Parallel()
	b := newBench(t, func(c *runner.Config) { c.Faults = &runner.Faults{Share: 0.5, Seed: 1} })
	g := b.graderOf(sayOne)
	var spec runner.BatchSpec
	for i := range 24 {
		spec.Episodes = append(spec.Episodes, b.line(fmt.Sprintf("e%d", i), "g", shellAgent("true", "true"), g, func(s *runner.EpisodeSpec) { s.Retries = 2 }))
	}
	made := b.batch(spec)
	retried := 0
	for _, r := range b.follow(made.ID, 0) {
		ep, err := b.Get(t.Context(), b.key(r.ID))
		if err != nil || !r.Valid || r.Attempt != len(ep.Attempts) {
			t.Errorf("%s: attempt %d of %d, valid %v, %v", r.ID, r.Attempt, len(ep.Attempts), r.Valid, err)
		}
		if len(ep.Attempts) > 1 {
			retried++
			if end := ep.Attempts[0].End; end.Cause != runner.Platform || ep.Attempts[0].Reward != nil {
				t.Errorf("%s: first attempt ended %+v with reward %v", r.ID, end, ep.Attempts[0].Reward)
			}
		}
	}
	if now := b.batchNow(made.ID); now.State != runner.BatchDone || now.Valid != 24 || retried < 6 || retried > 18 {
		t.Errorf("batch %s with %d valid, %d retried; want done, 24, about 12", now.State, now.Valid, retried)
	}
}

func TestBatchPausesAsDegraded(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.launcher.Fail(errors.New("no cgroup"))
	var spec runner.BatchSpec
	spec.Parallel = 2
	for i := range 40 {
		spec.Episodes = append(spec.Episodes, b.line(fmt.Sprintf("e%d", i), "", shellAgent("true"), nil))
	}
	made := b.batch(spec)
	got := b.follow(made.ID, 0)
	now := b.batchNow(made.ID)
	if now.State != runner.BatchDegraded || !strings.Contains(now.Error, `"start"`) || len(got) > 15 {
		t.Errorf("batch %s (%s) with %d results, want degraded in start after about 10", now.State, now.Error, len(got))
	}
	b.launcher.Fail(nil)
	if _, err := b.ResumeBatch(t.Context(), owner, made.ID, 0); err != nil {
		t.Fatal(err)
	}
	b.follow(made.ID, int64(len(got)))
	if now := b.batchNow(made.ID); now.State != runner.BatchDone || now.Done != 40 {
		t.Errorf("after the resume: %s with %d done", now.State, now.Done)
	}
}

func TestBatchStopsAtABrokenGrader(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	g := b.graderOf("exit 1") // says nothing, on the untouched world neither
	var spec runner.BatchSpec
	spec.Parallel = 1
	for i := range 10 {
		spec.Episodes = append(spec.Episodes, b.line(fmt.Sprintf("e%d", i), "", shellAgent("echo "+fmt.Sprint(i)+" > f"), g))
	}
	made := b.batch(spec)
	got := b.follow(made.ID, 0)
	for _, r := range got {
		if r.Reward != nil || r.Scores[0].Cause != runner.GraderBy {
			t.Errorf("%s: reward %v, score %+v", r.ID, r.Reward, r.Scores[0])
		}
	}
	if now := b.batchNow(made.ID); now.State != runner.BatchGraderBroken || len(got) != 3 {
		t.Errorf("batch %s after %d results, want grader_broken after 3", now.State, len(got))
	}
}

func TestBatchDeadlineCancelsTheRest(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	g := b.graderOf(sayOne)
	spec := runner.BatchSpec{Parallel: 1, DeadlineS: 0.3, Episodes: []runner.BatchEpisode{
		b.line("a", "g", shellAgent("true"), g), b.line("b", "g", shellAgent("sleep 1000"), g), b.line("c", "g", shellAgent("true"), g),
	}}
	made := b.batch(spec)
	got := b.follow(made.ID, 0)
	now := b.batchNow(made.ID)
	if now.State != runner.BatchDone || len(got) != 3 || now.Valid != 1 || now.Causes["cancelled/client"] != 2 {
		t.Errorf("batch %+v with %d results, want one valid and two cancelled by the client", now, len(got))
	}
	if grp := now.Groups[0]; !grp.Complete || !grp.IsVoid || *grp.Mean != 1 {
		t.Errorf("group = %+v, want complete and void with mean 1 over the valid one", grp)
	}
}

func TestScoreBatchRunsNoAgent(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	spec := runner.BatchSpec{Episodes: []runner.BatchEpisode{
		b.line("a", "g", shellAgent(mark("0.25")), b.graderOf(sayOne)), b.line("b", "g", shellAgent(mark("0.75")), b.graderOf(sayOne)),
	}}
	made := b.batch(spec)
	b.follow(made.ID, 0)
	again, err := b.ScoreBatch(t.Context(), owner, made.ID, b.graderOf(sayMark))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range b.follow(again.ID, 0) {
		want := map[string]float64{"a": 0.25, "b": 0.75}[r.ID]
		if r.Reward == nil || math.Abs(*r.Reward-want) > 1e-9 {
			t.Errorf("%s: reward %v, want %v: %+v", r.ID, r.Reward, want, r.Scores)
		}
		ep, err := b.Get(t.Context(), b.key(r.ID))
		if err != nil || len(ep.Attempts) != 1 || *ep.Reward != 1 || ep.Last().Calls != 1 {
			t.Errorf("%s: %d attempts, reward %v, %d calls, %v; want it untouched", r.ID, len(ep.Attempts), ep.Reward, ep.Last().Calls, err)
		}
	}
	if now := b.batchNow(again.ID); now.State != runner.BatchDone || now.Of != made.ID || now.Valid != 2 {
		t.Errorf("batch = %+v", now)
	}
}

// B05: the first complete attempt counts, whatever comes after.
func TestLateAttemptDoesNotReplaceTheFirstComplete(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	g := b.graderOf(sayOne)
	graded := func(s *runner.EpisodeSpec) { s.Retries, s.Graders = 1, g }
	b.lose(graded)
	b.finish(b.live("e", graded))
	key := b.key("e")
	one := 0.5
	if _, err := b.WriteReward(t.Context(), key, runner.RewardSpec{Attempt: 1, Name: "late", Reward: &one}); err != nil {
		t.Fatal(err)
	}
	ep, err := b.Get(t.Context(), key)
	if err != nil || *ep.Reward != 1 || ep.Attempts[0].Reward != nil {
		t.Errorf("reward %v, first attempt's %v, %v; want 1 and null", ep.Reward, ep.Attempts[0].Reward, err)
	}
	_, err = b.Call(t.Context(), key, runner.CallSpec{Tool: "exec", Shell: "true", Attempt: 1}, runner.CallIO{})
	wantKind(t, err, runner.KindSuperseded)
}

func TestBatchIsRefusedWholeWithTheLineNamed(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ok := b.line("a", "", shellAgent("true"), nil)
	for field, change := range map[string]func(*runner.BatchEpisode){
		"episodes/1/world":     func(e *runner.BatchEpisode) { e.World = "nowhere" },
		"episodes/1/policy":    func(e *runner.BatchEpisode) { e.Policy = "nope" },
		"episodes/1/id":        func(e *runner.BatchEpisode) { e.ID = "a" },
		"episodes/1/graders/0": func(e *runner.BatchEpisode) { e.Graders = []runner.WeightedGrader{{Grader: "sha256:00"}} },
		"episodes/1/run":       func(e *runner.BatchEpisode) { e.Run = "other" },
	} {
		bad := b.line("b", "", shellAgent("true"), nil)
		change(&bad)
		_, err := b.CreateBatch(t.Context(), owner, runner.BatchSpec{Episodes: []runner.BatchEpisode{ok, bad}})
		if e, isErr := errors.AsType[*runner.Error](err); !isErr || e.Field != field {
			t.Errorf("error %v, want field %s", err, field)
		}
	}
	if all, err := b.Batches(t.Context(), owner); err != nil || len(all) != 0 {
		t.Errorf("%d batches were made, %v", len(all), err)
	}
}

func TestBatchIDIsAnIdempotencyKey(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	spec := runner.BatchSpec{ID: "mine", Episodes: []runner.BatchEpisode{b.line("a", "", shellAgent("true"), nil)}}
	first, again := b.batch(spec), b.batch(spec)
	if first.ID != "mine" || again.Created != first.Created {
		t.Errorf("batches %+v and %+v, want one", first, again)
	}
	b.follow("mine", 0)
	spec.Episodes[0].Weights = "v2"
	_, err := b.CreateBatch(t.Context(), owner, spec)
	wantKind(t, err, runner.KindSpecConflict)
}

// S12: a scoring that the platform spoils is null, never 0, and is made again alone.
func TestPlatformFaultInScoringIsNullAndScoredLater(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	g := b.graderOf(sayOne)
	key := b.live("e", func(s *runner.EpisodeSpec) { s.Graders = g })
	b.launcher.Fail(errors.New("no cgroup"))
	at := last(b.finish(key))
	if at.Reward != nil || at.Scores[0].Cause != runner.Platform || at.End.Cause != runner.Agent {
		t.Errorf("reward %v, score %+v", at.Reward, at.Scores[0])
	}
	b.launcher.Fail(nil)
	made := b.batch(runner.BatchSpec{Episodes: []runner.BatchEpisode{b.line("e", "", shellAgent("true"), g)}})
	got := b.follow(made.ID, 0)
	if len(got) != 1 || got[0].Reward == nil || *got[0].Reward != 1 || got[0].Attempt != 1 {
		t.Errorf("results = %+v, want attempt 1 with reward 1", got)
	}
}

// S12: a scoring sandbox that is killed from outside is tried again, on the same end state.
func TestKilledScoringIsMadeAgain(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	g := b.graderOf(`sleep 0.3; echo '{"reward": 1}' >&3`)
	key := b.live("e", func(s *runner.EpisodeSpec) { s.Graders = g })
	agents := b.launcher.Live()
	done := make(chan runner.Attempt, 1)
	go func() {
		ep, err := b.Finish(t.Context(), key, runner.FinishSpec{})
		if err != nil {
			t.Error(err)
		}
		done <- last(ep)
	}()
	for killed := false; !killed; {
		for _, s := range b.launcher.Live() {
			if !slices.Contains(agents, s) {
				s.Die(sandbox.Fate{Kind: sandbox.Killed})
				killed = true
			}
		}
		select {
		case <-time.After(time.Millisecond):
		case <-t.Context().Done():
			t.Fatal("no scoring sandbox came")
		}
	}
	at := <-done
	if at.Reward == nil || *at.Reward != 1 || at.Scores[0].Tries != 2 || at.N != 1 {
		t.Errorf("reward %v after %d tries: %+v; want 1 after 2", at.Reward, at.Scores[0].Tries, at.Scores)
	}
}

func TestClientsRewardIsKept(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	key := b.live("e")
	b.finish(key)
	r := 0.5
	ep, err := b.WriteReward(t.Context(), key, runner.RewardSpec{Name: "judge", Reward: &r, Metrics: map[string]float64{"turns": 3}})
	if err != nil || ep.Reward == nil || *ep.Reward != 0.5 || ep.Last().Scores[0].Source != "client" {
		t.Fatalf("WriteReward = %+v, %v", ep, err)
	}
	nan := math.NaN()
	_, err = b.WriteReward(t.Context(), key, runner.RewardSpec{Name: "judge", Reward: &nan})
	wantKind(t, err, runner.KindBadRequest)
	ep, err = b.WriteReward(t.Context(), key, runner.RewardSpec{Name: "judge"})
	if err != nil || ep.Valid || ep.Last().Scores[0].Cause != runner.Client {
		t.Errorf("a judge that failed gives %+v, %v; want null by the client", ep.Last().Scores, err)
	}
}
