package runner

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"
)

// line makes one line's result; nil is none: the batch was stopped before it came to it.
func (b *liveBatch) line(ctx context.Context, line *playable) (*BatchResult, error) {
	if b.kept.Batch.Of != "" {
		return b.rescoreLine(ctx, line)
	}
	for tried := 0; ; tried++ {
		if ctx.Err() != nil || (tried > 0 && b.halted() != nil) {
			return b.stoppedLine(ctx, line), nil
		}
		ep, err := b.attempt(ctx, line)
		if errors.Is(err, errPutBack) {
			if ctx.Err() != nil {
				return b.stoppedLine(ctx, line), nil
			}
			return nil, err
		}
		if err != nil {
			return b.refused(ctx, line, err)
		}
		b.seen(ep.Last().End)
		if ep, err = b.scoreLine(ctx, line, ep); errors.Is(err, errPutBack) && ctx.Err() != nil {
			return b.stoppedOr(ctx, line, &ep), nil
		}
		if err != nil {
			return nil, err
		}
		if ctx.Err() == nil && b.again(&ep, &line.BatchEpisode) && b.backOff(ctx, tried) {
			continue
		}
		return b.stoppedOr(ctx, line, &ep), nil
	}
}

// again says that another attempt may be made. Attempts that the end of the daemon or of
// the client cut short do not count against retries.
func (b *liveBatch) again(ep *Episode, line *BatchEpisode) bool {
	last := ep.Last()
	if ep.Valid || !retryable(last.End, true) {
		return false
	}
	counted := 0
	for i := range ep.Attempts {
		if at := &ep.Attempts[i]; at.SpecDigest == last.SpecDigest && !cutShort(at.End, line) {
			counted++
		}
	}
	return cutShort(last.End, line) || counted <= line.Retries
}

// cutShort says that an attempt ended with the daemon, by its death or its stop, or with
// the client that played it.
func cutShort(end *End, line *BatchEpisode) bool {
	if end == nil {
		return false
	}
	switch end.Status { //nolint:exhaustive // the other ends are somebody's doing
	case Interrupted:
		return end.Cause == Platform && end.Step != "launcher"
	case Cancelled:
		return end.Cause == Operator
	case Expired:
		return line.Agent.Client
	default:
		return false
	}
}

// backOff waits a little longer after each attempt, with jitter; false is stopped.
func (b *liveBatch) backOff(ctx context.Context, tried int) bool {
	const base = 20 * time.Millisecond
	wait := base << min(tried, 8)
	timer := time.NewTimer(wait/2 + rand.N(wait))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// attempt makes one attempt, or finds what is kept of the id, and returns the episode once
// the attempt is over.
func (b *liveBatch) attempt(ctx context.Context, line *playable) (Episode, error) {
	key := b.key(&line.BatchEpisode)
	spec := line.EpisodeSpec
	if old, err := b.r.Get(ctx, key); err == nil && b.again(&old, &line.BatchEpisode) && b.r.liveOf(key) == nil {
		spec.Attempt = "next" // retries are counted here
	}
	if line.Agent.Client {
		return b.hand(ctx, line, key, spec)
	}
	a, created, err := b.place(ctx, key, spec)
	if err != nil {
		return Episode{}, err
	}
	if a == nil {
		return created.Episode, nil
	}
	b.r.act(ctx, a, &line.Agent, func() End { return b.stopEnd(ctx) })
	return b.r.Get(context.WithoutCancel(ctx), key)
}

// place starts or finds the attempt; it waits while the queue of episodes is full.
func (b *liveBatch) place(ctx context.Context, key Key, spec EpisodeSpec) (*attempt, Created, error) {
	for tried := 0; ; tried++ {
		a, created, err := b.r.place(ctx, key, spec)
		if KindOf(err) != KindOverCapacity || !b.backOff(ctx, tried) {
			return a, created, err
		}
	}
}

// refused turns an episode that was not made into a result, unless the daemon is at fault.
func (b *liveBatch) refused(ctx context.Context, line *playable, err error) (*BatchResult, error) {
	switch KindOf(err) {
	case "", KindDraining, KindRecordDamaged:
		if ctx.Err() != nil {
			return b.stoppedLine(ctx, line), nil
		}
		return nil, err
	case KindAttemptsExhausted:
		ep, gerr := b.r.Get(ctx, b.key(&line.BatchEpisode))
		if gerr != nil {
			return nil, gerr
		}
		res := resultOf(line, &ep)
		return &res, nil
	case KindWorldUnhealthy:
		return b.unmade(&line.BatchEpisode, line.refillOf, End{Status: Errored, Cause: WorldBad, Step: "setup", Evidence: []string{err.Error()}}), nil
	}
	return b.unmade(&line.BatchEpisode, line.refillOf, End{Status: Errored, Cause: Client, Step: "create", Evidence: []string{err.Error()}}), nil
}

// stoppedLine is a line that a stop came before: nothing, but a cancelled result after a
// deadline or where it was this very line that was stopped.
func (b *liveBatch) stoppedLine(ctx context.Context, line *playable) *BatchResult {
	_, alone := errors.AsType[stopError](context.Cause(ctx))
	if alone || errors.Is(context.Cause(ctx), errBatchDeadline) {
		return b.unmade(&line.BatchEpisode, line.refillOf, b.stopEnd(ctx))
	}
	return nil
}

// stoppedOr is the result of an attempt, or none of one that a resume will make again.
func (b *liveBatch) stoppedOr(ctx context.Context, line *playable, ep *Episode) *BatchResult {
	last := ep.Last()
	undecided := !ep.Valid && (cutShort(last.End, &line.BatchEpisode) ||
		(last.End != nil && last.End.Cause == Agent && len(judgePending(line.Graders, last.Scores)) > 0))
	if last.End == nil || (undecided && ctx.Err() != nil) {
		return b.stoppedLine(ctx, line)
	}
	res := resultOf(line, ep)
	return &res
}

// counted is the attempt that counts: the first complete one, else the last.
func counted(ep *Episode) *Attempt {
	for i := range ep.Attempts {
		if ep.Attempts[i].Valid && !ep.Attempts[i].Superseded {
			return &ep.Attempts[i]
		}
	}
	return ep.Last()
}

// resultOf is what a batch says of an episode.
func resultOf(line *playable, ep *Episode) BatchResult {
	at := counted(ep)
	res := BatchResult{
		Run: ep.Key.Run, ID: ep.Key.ID, Group: line.Group, Task: line.Task, Weights: line.Weights, RefillOf: line.refillOf, Attempt: at.N,
		Reward: at.Reward, Valid: at.Valid, Scores: slices.Clone(at.Scores), Digests: at.Digests, Clocks: at.Clocks, Calls: at.Calls,
		Answer: at.Answer, Payload: at.Payload,
	}
	if at.End != nil {
		res.Status, res.Cause, res.Step = at.End.Status, at.End.Cause, at.End.Step
		res.Flags, res.Reason, res.Evidence = at.End.Flags, at.End.Reason, at.End.Evidence
	}
	return res
}
