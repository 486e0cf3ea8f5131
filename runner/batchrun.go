package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// liveBatch is a batch that is being run.
type liveBatch struct {
	r    *Runner
	kept keptBatch
	log  *slog.Logger
	stop context.CancelCauseFunc
	over chan struct{}

	mu        sync.Mutex
	seq       int64
	news      chan struct{} // closed and made anew at each result
	cancelled string
}

func (r *Runner) liveBatch(owner, id string) *liveBatch {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.batches[batchKey(owner, id)]
}

// changed is closed at the next result, or at the end.
func (b *liveBatch) changed() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.news
}

var errBatchCancelled = errors.New("the batch was cancelled")

func (b *liveBatch) cancel(reason string) {
	b.mu.Lock()
	b.cancelled = orText(reason, "cancelled")
	b.mu.Unlock()
	b.stop(errBatchCancelled)
}

// runBatch sets a kept batch going.
func (r *Runner) runBatch(kept keptBatch) error {
	ctx, stop := context.WithCancelCause(r.ctx)
	b := &liveBatch{
		r: r, kept: kept, stop: stop, over: make(chan struct{}), news: make(chan struct{}),
		log: r.cfg.Log.With(slog.String("batch", kept.Batch.ID)),
	}
	key := batchKey(kept.Batch.Owner, kept.Batch.ID)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.draining {
		stop(nil)
		return &Error{Kind: KindDraining, Detail: "the daemon is shutting down", RetryAfter: 10 * time.Second}
	}
	if r.batches[key] != nil {
		stop(nil)
		return nil
	}
	if r.batches == nil {
		r.batches = map[string]*liveBatch{}
	}
	r.batches[key] = b
	r.wg.Add(1)
	go func() {
		defer r.wg.Done()
		defer stop(nil)
		b.run(ctx)
		r.mu.Lock()
		delete(r.batches, key)
		r.mu.Unlock()
		b.mu.Lock()
		close(b.news)
		b.mu.Unlock()
		close(b.over)
	}()
	return nil
}

// run makes every result that is still to come. Lines are taken in order, so that groups
// are finished one after another.
func (b *liveBatch) run(ctx context.Context) {
	owner, id := b.kept.Batch.Owner, b.kept.Batch.ID
	done, err := b.r.resultsOf(ctx, owner, id)
	if err == nil {
		for _, res := range done {
			b.seq = max(b.seq, res.Seq)
		}
		err = b.runLines(ctx, done)
	}
	// The end is recorded though the batch was cancelled.
	ctx = context.WithoutCancel(ctx)
	kept := b.kept
	b.mu.Lock()
	cancelled := b.cancelled
	b.mu.Unlock()
	switch {
	case cancelled != "":
		kept.Batch.State, kept.Batch.Error = BatchCancelled, cancelled
	case err != nil:
		b.log.Error("batch", slog.Any("error", err))
		kept.Batch.State, kept.Batch.Error = BatchInterrupted, err.Error()
	default:
		kept.Batch.State = BatchDone
	}
	if err := b.r.saveBatch(ctx, kept); err != nil {
		b.log.Error("batch", slog.Any("error", err))
	}
}

func (b *liveBatch) runLines(ctx context.Context, done map[string]BatchResult) error {
	workers, ctx := errgroup.WithContext(ctx)
	workers.SetLimit(b.parallel())
	for i := range b.kept.Spec.Episodes {
		line := &b.kept.Spec.Episodes[i]
		if res, ok := done[line.ID]; ok && res.Reward != nil {
			continue
		}
		if ctx.Err() != nil {
			break
		}
		workers.Go(func() error {
			res, err := b.line(ctx, line)
			if err != nil {
				return fmt.Errorf("episode %s: %w", line.ID, err)
			}
			return b.add(ctx, res)
		})
	}
	if err := workers.Wait(); err != nil {
		return err
	}
	return context.Cause(ctx)
}

// parallel is how many episodes are under way at once; admission bounds them further.
func (b *liveBatch) parallel() int {
	if n := b.kept.Spec.Parallel; n > 0 {
		return n
	}
	return max(4, 2*runtime.NumCPU())
}

// add keeps a result before anybody sees it.
func (b *liveBatch) add(ctx context.Context, res BatchResult) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	res.Seq = b.seq + 1
	doc, err := json.Marshal(res)
	if err != nil {
		return err
	}
	// Held over the write, so that results are seen in the order of their numbers.
	key := resultKey(b.kept.Batch.Owner, b.kept.Batch.ID, res.Seq)
	if err := b.r.cfg.Record.PutDocument(context.WithoutCancel(ctx), resultsKept, key, doc, Synced); err != nil {
		return fmt.Errorf("keep result: %w", err)
	}
	b.seq = res.Seq
	close(b.news)
	b.news = make(chan struct{})
	return nil
}

// line makes one line's result: an episode with its retries, or a score of a kept one.
func (b *liveBatch) line(ctx context.Context, line *BatchEpisode) (BatchResult, error) {
	key := Key{Owner: b.kept.Batch.Owner, Run: b.kept.Batch.Run, ID: line.ID}
	if b.kept.Batch.Of != "" {
		return b.again(ctx, key, line)
	}
	for {
		ep, err := b.attempt(ctx, key, line)
		if err != nil {
			if KindOf(err) != KindAttemptsExhausted {
				return BatchResult{}, err
			}
			if ep, err = b.r.Get(ctx, key); err != nil {
				return BatchResult{}, err
			}
			return result(line, &ep), nil
		}
		last := ep.Last()
		if last.End != nil && last.End.Cause == Operator {
			return BatchResult{}, fmt.Errorf("attempt %d was ended by the operator", last.N)
		}
		if last.State == Ended { // a crash left the score pending
			if ep, err = b.r.Score(ctx, key, last.N, line.Graders); err != nil {
				return BatchResult{}, err
			}
			last = ep.Last()
		}
		if ep.Valid || !retryable(last.End, true) || len(ep.Attempts) > line.Retries {
			return result(line, &ep), nil
		}
		if err := backOff(ctx, len(ep.Attempts)); err != nil {
			return BatchResult{}, err
		}
	}
}

// backOff waits a little longer after each attempt, with jitter.
func backOff(ctx context.Context, attempts int) error {
	const base = 20 * time.Millisecond
	wait := base << min(attempts, 8)
	timer := time.NewTimer(wait/2 + rand.N(wait/2))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// attempt makes one attempt, or finds what is kept of the id, and returns the episode
// once it has ended.
func (b *liveBatch) attempt(ctx context.Context, key Key, line *BatchEpisode) (Episode, error) {
	created, err := b.r.Create(ctx, key.Owner, 0, line.EpisodeSpec)
	if err != nil {
		return Episode{}, err
	}
	if last := created.Episode.Last(); last.End != nil && last.State != Scoring {
		return created.Episode, nil
	}
	if err := b.r.act(ctx, key, line.Agent); err != nil {
		return Episode{}, err
	}
	return b.r.Get(context.WithoutCancel(ctx), key)
}

// again scores a kept end state.
func (b *liveBatch) again(ctx context.Context, key Key, line *BatchEpisode) (BatchResult, error) {
	ep, err := b.r.Get(ctx, key)
	if err != nil {
		return BatchResult{}, err
	}
	counts := ep.Last()
	for i := range ep.Attempts {
		if ep.Attempts[i].Valid && !ep.Attempts[i].Superseded {
			counts = &ep.Attempts[i]
			break
		}
	}
	res := result(line, &ep)
	res.Reward, res.Valid, res.Scores = nil, false, nil
	if counts.End == nil || counts.End.Cause != Agent {
		return res, nil
	}
	scores, err := b.r.rescore(ctx, key, *counts, b.kept.Graders)
	if KindOf(err) == KindNotRescorable {
		res.Evidence = append(res.Evidence, err.Error())
		return res, nil
	}
	if err != nil {
		return BatchResult{}, err
	}
	res.Attempt, res.Scores = counts.N, scores
	res.Reward = Reward(*counts.End, scores)
	res.Valid = res.Reward != nil
	return res, nil
}

// result is what a batch says of an episode: its first complete attempt, else its last.
func result(line *BatchEpisode, ep *Episode) BatchResult {
	at := ep.Last()
	for i := range ep.Attempts {
		if ep.Attempts[i].Valid && !ep.Attempts[i].Superseded {
			at = &ep.Attempts[i]
			break
		}
	}
	res := BatchResult{
		Run: ep.Key.Run, ID: ep.Key.ID, Group: line.Group, Task: line.Task, Attempt: at.N, Reward: at.Reward, Valid: at.Valid,
		Scores: at.Scores, Digests: at.Digests,
	}
	if at.End != nil {
		res.Status, res.Cause, res.Step = at.End.Status, at.End.Cause, at.End.Step
		if !at.Valid {
			res.Evidence = at.End.Evidence
		}
	}
	return res
}
