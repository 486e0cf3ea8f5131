package runner

import (
	"context"
	"fmt"
	"slices"
)

// transitions is the one table of which state may follow which.
//
//	queued -> starting -> setup -> live <-> paused
//	   \         \          \       \        /
//	    +---------+----------+---> ending --+--> ended -> scoring -> done
//
// An attempt that never started has nothing to stop, but takes the same way: one path to
// the end is one path to get right. Scoring may fall back to ended when the daemon is
// closed in the midst of it: the score is then pending.
var transitions = map[State][]State{
	"":        {Queued},
	Queued:    {Starting, Stopping},
	Starting:  {SettingUp, Live, Stopping},
	SettingUp: {Live, Stopping},
	Live:      {Paused, Stopping},
	Paused:    {Live, Stopping},
	Stopping:  {Ended, Done},
	Ended:     {Scoring, Done},
	Scoring:   {Done, Ended},
	Done:      nil,
}

// retryable says that a new attempt may be made after this end by `retries`: only where
// the agent cannot have caused it. resumed says that the run was resumed since.
func retryable(end *End, resumed bool) bool {
	if end == nil {
		return false
	}
	switch end.Cause {
	case Platform, WorldBad:
		return true
	case Operator:
		return end.Status == Cancelled
	case Client:
		return end.Status == Errored || (end.Status == Expired && resumed)
	case Agent, GraderBy:
		return false
	}
	return false
}

// to changes the state, journals the change, and returns for the caller to act. Only the
// attempt's own goroutine calls it, so changes are journalled in order. set may be nil.
func (a *attempt) to(ctx context.Context, next State, d Durability, set func(*Attempt)) error {
	a.mu.Lock()
	from := a.rec.State
	if !slices.Contains(transitions[from], next) {
		a.mu.Unlock()
		return fmt.Errorf("attempt %d of %s: %s may not follow %s", a.n, a.key.ID, next, from)
	}
	a.rec.State = next
	if set != nil {
		set(&a.rec)
	}
	rec := a.rec
	a.mu.Unlock()
	if err := a.r.cfg.Record.UpdateAttempt(ctx, a.key, rec, d); err != nil {
		return fmt.Errorf("record %s: %w", next, err)
	}
	return nil
}
