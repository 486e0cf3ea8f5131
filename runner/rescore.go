package runner

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"path/filepath"
	"slices"
)

// Score grades an ended attempt's kept end state; attempt 0 is the last. Scores of graders
// beside those that made its reward are kept with weight 0. An attempt whose
// agent's phase ended with no reward is not scored: it comes back as it is.
func (r *Runner) Score(ctx context.Context, key Key, attempt int, graders []WeightedGrader) (Episode, error) {
	if len(graders) == 0 {
		return Episode{}, badField("graders", "is missing")
	}
	if len(graders) > maxGraders {
		return Episode{}, badField("graders", "has %d, at most %d are allowed", len(graders), maxGraders)
	}
	if err := r.checkGraders(ctx, graders); err != nil {
		return Episode{}, err
	}
	at, err := r.attemptOf(ctx, key, attempt)
	if err != nil {
		return Episode{}, err
	}
	if at.End == nil {
		return Episode{}, &Error{Kind: KindNotLive, Detail: "the attempt has not ended"}
	}
	if at.End.Cause != Agent {
		return r.Get(ctx, key)
	}
	scores, err := r.rescore(ctx, key, at, graders)
	if err != nil {
		return Episode{}, err
	}
	for i := range scores {
		if counts(at.Scores, scores[i].Grader) {
			scores[i].Weight = 0
		}
	}
	return r.attachScores(ctx, key, at.N, scores)
}

// counts says that the attempt has scores with a weight, and none of them is grader's: a
// later grader's score is kept beside them and never changes the reward.
func counts(scores []ScoreResult, grader string) bool {
	weighted := false
	for _, s := range scores {
		if s.Weight != 0 {
			if s.Grader == grader {
				return false
			}
			weighted = true
		}
	}
	return weighted
}

// rescore makes the kept end state again and grades it.
func (r *Runner) rescore(ctx context.Context, key Key, at Attempt, graders []WeightedGrader) ([]ScoreResult, error) {
	if !slices.ContainsFunc(graders, func(g WeightedGrader) bool { return !isClientGrader(g.Grader) }) {
		return r.scoreAttempt(ctx, EndState{}, graders), nil // none of them needs the end state
	}
	release, err := r.rescoring.acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	plan, err := r.cfg.Record.Plan(ctx, key, at.N)
	if err != nil {
		return nil, err
	}
	dir, err := r.cfg.Record.Dir(key, at.N)
	if err != nil {
		return nil, fmt.Errorf("attempt's directory: %w", err)
	}
	capture, err := loadCapture(dir)
	if err != nil {
		return nil, err
	}
	if !capture.Rescorable {
		return nil, &Error{Kind: KindNotRescorable, Detail: "the capture does not hold the whole end state"}
	}
	fork, err := r.cfg.Worlds.Fork(ctx, plan.World)
	if err != nil {
		return nil, worldErr(err)
	}
	defer fork.Release()
	ids, err := r.cfg.IDs.Acquire()
	if err != nil {
		return nil, fmt.Errorf("user ids: %w", err)
	}
	defer r.cfg.IDs.Release(ids)
	upper, err := r.scratch("restore")
	if err != nil {
		return nil, err
	}
	defer upper.remove()
	if err := fork.Restore(ctx, capture, filepath.Join(dir, packFile), upper.dir, ids.HostID); err != nil {
		return nil, fmt.Errorf("restore end state: %w", err)
	}
	in := EndState{Key: key, Plan: plan, Attempt: at, Fork: fork, Upper: upper.dir, IDs: ids, Capture: capture, Dir: dir}
	return r.scoreAttempt(ctx, in, graders), nil
}

// scoreLeft makes the scores that a dead daemon left to be made, one after another. One
// that cannot be made is the platform's null: nothing stays pending but what the daemon's
// end cuts short again.
func (r *Runner) scoreLeft(ctx context.Context, pending []Stored) {
	for _, s := range pending {
		at, err := r.attemptOf(ctx, s.Key, s.Attempt.N)
		if err != nil || at.State != Ended {
			continue // deleted, or scored by who asked for it meanwhile
		}
		plan, err := r.cfg.Record.Plan(ctx, s.Key, at.N)
		if err != nil {
			r.cfg.Log.Error("pending score", slog.String("episode", s.Key.ID), slog.Any("error", err))
			continue
		}
		scores, err := r.rescore(ctx, s.Key, at, plan.Spec.Graders)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			weights := weigh(plan.Spec.Graders)
			for i, g := range plan.Spec.Graders {
				one := platformScore("restore", err)
				one.Grader, one.Weight = g.Grader, weights[i]
				scores = append(scores, one)
			}
		}
		if _, err := r.attachScores(ctx, s.Key, at.N, scores); err != nil && KindOf(err) != KindNotFound {
			r.cfg.Log.Error("pending score", slog.String("episode", s.Key.ID), slog.Any("error", err))
		}
	}
}

// WriteReward keeps a reward that the client itself found. A name that the spec declares as
// "client:NAME" among its graders counts as it says there; another one with weight 1 where
// the spec has no graders and no other name was written before it, else with 0.
func (r *Runner) WriteReward(ctx context.Context, key Key, spec RewardSpec) (Episode, error) {
	s, err := clientScore(&spec)
	if err != nil {
		return Episode{}, err
	}
	return r.WriteScore(ctx, key, spec.Attempt, s)
}

// WriteScore keeps a score that no grader of the runner's made, with the weight that
// WriteReward's has.
func (r *Runner) WriteScore(ctx context.Context, key Key, attempt int, s ScoreResult) (Episode, error) {
	at, err := r.attemptOf(ctx, key, attempt)
	if err != nil {
		return Episode{}, err
	}
	plan, err := r.cfg.Record.Plan(ctx, key, at.N)
	if err != nil {
		return Episode{}, err
	}
	graders := plan.Spec.Graders
	switch i := slices.IndexFunc(graders, func(g WeightedGrader) bool { return g.Grader == s.Grader }); {
	case i >= 0:
		s.Weight = weigh(graders)[i]
	case len(graders) == 0 && !counts(at.Scores, s.Grader):
		s.Weight = 1
	}
	ep, err := r.attachScores(ctx, key, at.N, []ScoreResult{s})
	if err == nil {
		r.rewarded(key, at.N, s)
	}
	return ep, err
}

func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }
