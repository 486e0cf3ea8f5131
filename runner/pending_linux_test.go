package runner_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/paddock-run/paddock/runner"
)

// crashBeforeScores puts the record into the state in which a daemon leaves it that dies
// between the end of the agent's phase and the scores.
func (b *bench) crashBeforeScores(key runner.Key) {
	b.t.Helper()
	ctx := b.t.Context()
	ep, err := b.Get(ctx, key)
	if err != nil {
		b.t.Fatal(err)
	}
	at := last(ep)
	at.State, at.Scores, at.Reward, at.Valid = runner.Scoring, nil, nil, false
	if err := b.cfg.Record.UpdateAttempt(ctx, key, at, runner.Written); err != nil {
		b.t.Fatal(err)
	}
	if err := b.cfg.Record.DeleteDocuments(ctx, "score_cache", ""); err != nil {
		b.t.Fatal(err)
	}
}

func TestScoresThatADeadDaemonLeftAreMade(t *testing.T) {
	t.Parallel()
	b := newRealBench(t)
	graded := func(s *runner.EpisodeSpec) { s.Graders = b.hiddenGrader() }
	solved, idle, lost := b.live("solved", graded), b.live("idle", graded), b.live("lost", graded)
	b.sh(solved, solve)
	for _, key := range []runner.Key{solved, idle, lost} {
		b.finish(key)
	}
	if err := b.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, key := range []runner.Key{solved, idle, lost} {
		b.crashBeforeScores(key)
	}
	dir, err := b.cfg.Record.Dir(lost, 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "capture.json")); err != nil {
		t.Fatal(err)
	}
	b.restart()
	wantReward(t, b.ended(solved), 1)
	wantReward(t, b.ended(idle), 0)
	at := b.ended(lost)
	if at.Reward != nil || len(at.Scores) != 1 || at.Scores[0].Cause != runner.Platform || at.Scores[0].Weight != 1 {
		t.Errorf("an end state that is gone: reward %v, scores %+v; want the platform's null", at.Reward, at.Scores)
	}
	wantEnd(t, at, runner.OK, runner.Agent, "")
}
