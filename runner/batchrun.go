package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"time"
)

// Rules of when a batch stops by itself.
const (
	// A batch is degraded when, within degradedWindow, more than degradedShare of its
	// attempts and at least degradedLeast of them were null with one platform step.
	degradedWindow = time.Minute
	degradedShare  = 0.2
	degradedLeast  = 10
	// brokenAfter is how many scorings in a row a broken grader may spoil.
	brokenAfter = 3
	// scoreRetries is how often a score that the platform spoiled is made again.
	scoreRetries = 2
)

var (
	errBatchCancelled = errors.New("the batch was cancelled")
	errBatchDeadline  = errors.New("the batch's deadline passed")
	errDegraded       = errors.New("degraded")
	errGraderBroken   = errors.New("grader_broken")
)

// liveBatch is a batch that is being run.
//
// Workers take lines in order, groups one after another, and hold a line until it has its
// result, retries included: so groups complete one after another and a retry keeps its
// place. What stops a batch early lets the lines under way end first, unless it was
// cancelled, its deadline passed or the daemon is closed.
type liveBatch struct {
	r    *Runner
	kept keptBatch
	log  *slog.Logger
	stop context.CancelCauseFunc
	over chan struct{}

	mu     sync.Mutex
	lines  []*BatchEpisode // still to be taken
	seq    int64
	news   chan struct{} // closed and made anew at each result
	reason string        // of a cancel
	halt   error         // nothing more is started
	recent []attemptSeen
	broken map[string]int // grader -> spoiled scorings in a row
}

// attemptSeen is one attempt's end for the rule of degraded; step is empty unless it was
// the platform's fault.
type attemptSeen struct {
	at   time.Time
	step string
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

func (b *liveBatch) cancel(reason string) {
	b.mu.Lock()
	b.reason = reason
	b.mu.Unlock()
	b.stop(errBatchCancelled)
}

// runBatch sets a kept batch going; one that runs already is left alone.
func (r *Runner) runBatch(kept keptBatch) error {
	ctx, stop := context.WithCancelCause(r.ctx)
	key := batchKey(kept.Batch.Owner, kept.Batch.ID)
	b := &liveBatch{
		r: r, kept: kept, stop: stop, over: make(chan struct{}), news: make(chan struct{}), broken: map[string]int{},
		log: r.cfg.Log.With(slog.String("batch", kept.Batch.ID)),
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.draining {
		stop(errClosed)
		return &Error{Kind: KindDraining, Detail: "the daemon is shutting down", RetryAfter: 10 * time.Second}
	}
	if r.batches[key] != nil {
		stop(nil)
		return nil
	}
	r.batches[key] = b
	r.wg.Go(func() {
		defer stop(nil)
		b.run(ctx)
		r.mu.Lock()
		delete(r.batches, key)
		r.mu.Unlock()
		b.mu.Lock()
		close(b.news) // for good: who asks for it from now on must not wait for more
		b.mu.Unlock()
		close(b.over)
	})
	return nil
}

// stopBatches ends all batches as interrupted and waits for them. Episodes that a batch
// has under way are cancelled by the operator and made again on resume.
func (r *Runner) stopBatches(ctx context.Context) error {
	r.mu.Lock()
	var all []*liveBatch
	for _, b := range r.batches {
		all = append(all, b)
	}
	r.mu.Unlock()
	for _, b := range all {
		b.stop(errClosed)
	}
	for _, b := range all {
		select {
		case <-b.over:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// run makes every result that is still to come and records how the batch ended.
func (b *liveBatch) run(ctx context.Context) {
	if d := seconds(b.kept.Spec.DeadlineS); d > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, d, errBatchDeadline)
		defer cancel()
	}
	err := b.prepare(ctx)
	if err == nil {
		var workers sync.WaitGroup
		for range b.parallel() {
			workers.Go(func() { b.work(ctx) })
		}
		workers.Wait()
		b.mu.Lock()
		err = b.halt
		b.mu.Unlock()
	}
	if err == nil {
		err = context.Cause(ctx)
	}
	late := context.WithoutCancel(ctx) // the end is recorded though the batch was stopped
	if errors.Is(err, errBatchDeadline) {
		err = b.dropRest(late)
	}
	kept := b.kept
	kept.Batch.State, kept.Batch.Error = b.endState(err)
	if err := b.r.saveBatch(late, kept); err != nil {
		b.log.Error("batch", slog.Any("error", err))
	}
	b.log.Info("batch ended", slog.String("state", string(kept.Batch.State)), slog.String("reason", kept.Batch.Error))
}

func (b *liveBatch) endState(err error) (BatchState, string) {
	switch {
	case err == nil:
		return BatchDone, ""
	case errors.Is(err, errBatchCancelled):
		return BatchCancelled, b.reason
	case errors.Is(err, errDegraded):
		return BatchDegraded, err.Error()
	case errors.Is(err, errGraderBroken):
		return BatchGraderBroken, err.Error()
	}
	return BatchInterrupted, err.Error()
}

// prepare finds out what is still to be done, groups one after another.
func (b *liveBatch) prepare(ctx context.Context) error {
	results, err := b.r.resultsOf(ctx, b.kept.Batch.Owner, b.kept.Batch.ID)
	if err != nil {
		return err
	}
	for _, res := range results {
		b.seq = max(b.seq, res.Seq)
	}
	order := map[string]int{}
	for i := range b.kept.Spec.Episodes {
		e := &b.kept.Spec.Episodes[i]
		if _, ok := order[groupName(e)]; !ok {
			order[groupName(e)] = len(order)
		}
		if res, ok := results[e.ID]; ok && b.settled(ctx, e, &res) {
			continue
		}
		b.lines = append(b.lines, e)
	}
	slices.SortStableFunc(b.lines, func(x, y *BatchEpisode) int { return order[groupName(x)] - order[groupName(y)] })
	return nil
}

// settled says that a result of before a resume stands: it has a reward, or ended in a way
// that is not tried again.
func (b *liveBatch) settled(ctx context.Context, line *BatchEpisode, res *BatchResult) bool {
	if res.Reward != nil {
		return true
	}
	if b.kept.Batch.Of != "" {
		return !scorePending(res.Cause, res.Scores)
	}
	ep, err := b.r.Get(ctx, b.key(line))
	if err != nil {
		return false
	}
	last := ep.Last()
	return last.N == res.Attempt && last.State == Done && !scorePending(last.End.Cause, last.Scores) && !b.again(&ep, line)
}

// scorePending says that the platform or the client's judge spoiled a score: it alone is
// made again.
func scorePending(end Cause, scores []ScoreResult) bool {
	return end == Agent && slices.ContainsFunc(scores, func(s ScoreResult) bool { return s.Cause == Platform })
}

func (b *liveBatch) key(line *BatchEpisode) Key {
	return Key{Owner: b.kept.Batch.Owner, Run: b.kept.Batch.Run, ID: line.ID}
}

// parallel is how many episodes are under way at once; admission bounds them further.
func (b *liveBatch) parallel() int {
	n := b.kept.Spec.Parallel
	if n == 0 {
		n = max(4, 2*runtime.NumCPU())
	}
	return min(n, max(1, len(b.lines)))
}

// work takes lines until there are none or the batch is stopped.
func (b *liveBatch) work(ctx context.Context) {
	for ctx.Err() == nil {
		b.mu.Lock()
		if b.halt != nil || len(b.lines) == 0 {
			b.mu.Unlock()
			return
		}
		line := b.lines[0]
		b.lines = b.lines[1:]
		b.mu.Unlock()
		res, err := b.line(ctx, line)
		if err == nil && res != nil {
			err = b.add(context.WithoutCancel(ctx), *res)
		}
		if err != nil {
			b.haltWith(fmt.Errorf("episode %s: %w", line.ID, err))
			return
		}
	}
}

func (b *liveBatch) haltWith(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.halt == nil {
		b.halt = err
	}
}

func (b *liveBatch) halted() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.halt
}

// add keeps a result before anybody sees it.
func (b *liveBatch) add(ctx context.Context, res BatchResult) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	res.Seq, res.At = b.seq+1, time.Now().UTC()
	doc, err := json.Marshal(res)
	if err != nil {
		return fmt.Errorf("encode result: %w", err)
	}
	// Held over the write, so that results are seen in the order of their numbers.
	key := resultKey(b.kept.Batch.Owner, b.kept.Batch.ID, res.Seq)
	if err := b.r.cfg.Record.PutDocument(ctx, resultDocuments, key, doc, Synced); err != nil {
		return fmt.Errorf("record result: %w", err)
	}
	b.seq = res.Seq
	b.countBrokenLocked(&res)
	close(b.news)
	b.news = make(chan struct{})
	return nil
}

// countBrokenLocked stops the batch after brokenAfter scorings in a row that a grader
// spoiled which cannot judge the untouched world either.
func (b *liveBatch) countBrokenLocked(res *BatchResult) {
	for _, s := range res.Scores {
		if s.Cause != GraderBy || !slices.Contains(s.Flags, "no_verdict") {
			b.broken[s.Grader] = 0
			continue
		}
		if b.broken[s.Grader]++; b.broken[s.Grader] >= brokenAfter && b.halt == nil {
			b.halt = fmt.Errorf("%w: %s gave no verdict %d times in a row, on the untouched world neither", errGraderBroken, s.Grader, brokenAfter)
		}
	}
}

// seen counts an attempt for the rule of degraded. What the fault switch does was asked for.
func (b *liveBatch) seen(end *End) {
	one := attemptSeen{at: time.Now()}
	if end != nil && end.Cause == Platform && end.Status != Interrupted && (b.r.cfg.Faults == nil || end.Step != "killed_outside") {
		one.step = end.Step
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.recent = append(b.recent, one)
	for len(b.recent) > 0 && one.at.Sub(b.recent[0].at) > degradedWindow {
		b.recent = b.recent[1:]
	}
	if step, n := degradedStep(b.recent); n > 0 && b.halt == nil {
		b.halt = fmt.Errorf("%w: %d of the last %d attempts ended by the platform's fault in step %q", errDegraded, n, len(b.recent), step)
	}
}

// degradedStep names the step in which too many attempts failed; n 0 is none.
func degradedStep(recent []attemptSeen) (step string, n int) {
	count := map[string]int{}
	for _, s := range recent {
		if s.step == "" {
			continue
		}
		if count[s.step]++; count[s.step] > n {
			step, n = s.step, count[s.step]
		}
	}
	if n < degradedLeast || float64(n) <= degradedShare*float64(len(recent)) {
		return "", 0
	}
	return step, n
}

// line makes one line's result; nil is none: the batch was stopped before it came to it.
func (b *liveBatch) line(ctx context.Context, line *BatchEpisode) (*BatchResult, error) {
	if b.kept.Batch.Of != "" {
		return b.rescoreLine(ctx, line)
	}
	for tried := 0; ; tried++ {
		if ctx.Err() != nil || (tried > 0 && b.halted() != nil) {
			return b.stoppedLine(ctx, line)
		}
		ep, err := b.attempt(ctx, line)
		if err != nil {
			return b.refused(ctx, line, err)
		}
		last := ep.Last()
		b.seen(last.End)
		if ep, err = b.scoreLine(ctx, line, ep); err != nil {
			return nil, err
		}
		if ctx.Err() == nil && b.again(&ep, line) {
			if b.backOff(ctx, tried) {
				continue
			}
		}
		return b.stoppedOr(ctx, line, &ep), nil
	}
}

// again says that another attempt may be made. Attempts that the daemon's own end cut
// short do not count against retries.
func (b *liveBatch) again(ep *Episode, line *BatchEpisode) bool {
	last := ep.Last()
	if ep.Valid || !retryable(last.End, true) {
		return false
	}
	counted := 0
	for i := range ep.Attempts {
		if at := &ep.Attempts[i]; at.SpecDigest == last.SpecDigest && !cutShort(at.End) {
			counted++
		}
	}
	return cutShort(last.End) || counted <= line.Retries
}

// cutShort says that an attempt ended with the daemon, by its death or its stop.
func cutShort(end *End) bool {
	return end != nil && (end.Status == Interrupted && end.Cause == Platform && end.Step != "launcher" ||
		end.Status == Cancelled && end.Cause == Operator)
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
func (b *liveBatch) attempt(ctx context.Context, line *BatchEpisode) (Episode, error) {
	key := b.key(line)
	spec := line.EpisodeSpec
	if old, err := b.r.Get(ctx, key); err == nil && b.again(&old, line) && b.r.liveOf(key) == nil {
		spec.Attempt = "next" // retries are counted here
	}
	created, err := b.create(ctx, key, spec)
	if err != nil {
		return Episode{}, err
	}
	if a := b.r.liveOf(key); a != nil {
		b.r.act(ctx, a, &line.Agent, func() End { return b.stopEnd(ctx) })
		return b.r.Get(context.WithoutCancel(ctx), key)
	}
	return created.Episode, nil
}

// create waits while the queue of episodes is full.
func (b *liveBatch) create(ctx context.Context, key Key, spec EpisodeSpec) (Created, error) {
	for tried := 0; ; tried++ {
		created, err := b.r.Create(ctx, key.Owner, 0, spec)
		if KindOf(err) != KindOverCapacity || !b.backOff(ctx, tried) {
			return created, err
		}
	}
}

// refused turns an episode that was not made into a result, unless the daemon is at fault.
func (b *liveBatch) refused(ctx context.Context, line *BatchEpisode, err error) (*BatchResult, error) {
	switch KindOf(err) {
	case "", KindDraining, KindRecordDamaged:
		if ctx.Err() != nil {
			return b.stoppedLine(ctx, line)
		}
		return nil, err
	case KindAttemptsExhausted:
		ep, gerr := b.r.Get(ctx, b.key(line))
		if gerr != nil {
			return nil, gerr
		}
		res := resultOf(line, &ep)
		return &res, nil
	}
	if KindOf(err) == KindWorldUnhealthy {
		return b.unmade(line, End{Status: Errored, Cause: WorldBad, Step: "setup", Evidence: []string{err.Error()}}), nil
	}
	return b.unmade(line, End{Status: Errored, Cause: Client, Step: "create", Evidence: []string{err.Error()}}), nil
}

// unmade is the result of a line whose episode never began.
func (b *liveBatch) unmade(line *BatchEpisode, end End) *BatchResult {
	return &BatchResult{
		Run: b.kept.Batch.Run, ID: line.ID, Group: line.Group, Task: line.Task, Weights: line.Weights,
		Status: end.Status, Cause: end.Cause, Step: end.Step, Reason: end.Reason, Evidence: end.Evidence,
	}
}

// stoppedLine is a line that the batch's stop came before: nothing, but a cancelled result
// after a deadline.
func (b *liveBatch) stoppedLine(ctx context.Context, line *BatchEpisode) (*BatchResult, error) {
	if errors.Is(context.Cause(ctx), errBatchDeadline) {
		return b.unmade(line, b.stopEnd(ctx)), nil
	}
	return nil, nil //nolint:nilnil // documented: no result
}

// stoppedOr is the result of an attempt, or none of one that a resume will make again.
func (b *liveBatch) stoppedOr(ctx context.Context, line *BatchEpisode, ep *Episode) *BatchResult {
	if ep.Last().End == nil || (!ep.Valid && cutShort(ep.Last().End) && ctx.Err() != nil) {
		return nil
	}
	res := resultOf(line, ep)
	return &res
}

// stopEnd is the end of attempts that the batch's stop cuts short.
func (b *liveBatch) stopEnd(ctx context.Context) End {
	cause := context.Cause(ctx)
	switch {
	case errors.Is(cause, errBatchCancelled):
		b.mu.Lock()
		defer b.mu.Unlock()
		return End{Status: Cancelled, Cause: Client, Step: "batch", Reason: b.reason}
	case errors.Is(cause, errBatchDeadline):
		return End{Status: Cancelled, Cause: Client, Step: "deadline", Reason: errBatchDeadline.Error()}
	}
	return End{Status: Cancelled, Cause: Operator, Step: "drain", Evidence: []string{"the daemon was stopped"}}
}

// dropRest gives every line that the deadline came before a result.
func (b *liveBatch) dropRest(ctx context.Context) error {
	b.mu.Lock()
	rest := b.lines
	b.lines = nil
	b.mu.Unlock()
	for _, line := range rest {
		end := End{Status: Cancelled, Cause: Client, Step: "deadline", Reason: errBatchDeadline.Error()}
		if err := b.add(ctx, *b.unmade(line, end)); err != nil {
			return err
		}
	}
	return nil
}

// scoreLine makes scores that are pending: the daemon died before them, or the platform
// spoiled them. No agent runs.
func (b *liveBatch) scoreLine(ctx context.Context, line *BatchEpisode, ep Episode) (Episode, error) {
	for tried := range scoreRetries {
		last := ep.Last()
		pending := last.State == Ended && last.End != nil && last.End.Cause == Agent && len(line.Graders) > 0
		if ctx.Err() != nil || (!pending && (last.End == nil || !scorePending(last.End.Cause, last.Scores))) {
			return ep, nil
		}
		again, err := b.r.Score(ctx, b.key(line), last.N, line.Graders)
		switch {
		case KindOf(err) == KindNotRescorable:
			return ep, nil
		case err != nil && ctx.Err() != nil:
			return ep, nil
		case err != nil:
			return ep, err
		}
		if ep = again; !b.backOff(ctx, tried) {
			return ep, nil
		}
	}
	return ep, nil
}

// rescoreLine scores a kept end state with the batch's own graders. The attempt's record
// stays as it is: the scores are this batch's.
func (b *liveBatch) rescoreLine(ctx context.Context, line *BatchEpisode) (*BatchResult, error) {
	ep, err := b.r.Get(ctx, b.key(line))
	if KindOf(err) == KindNotFound {
		return b.unmade(line, End{Status: Errored, Cause: Client, Step: "score", Evidence: []string{err.Error()}}), nil
	}
	if err != nil {
		return nil, err
	}
	at := counted(&ep)
	res := resultOf(line, &ep)
	res.Reward, res.Valid, res.Scores = nil, false, nil
	if at.End == nil || at.End.Cause != Agent {
		return &res, nil
	}
	for tried := 0; ; tried++ {
		scores, err := b.r.rescore(ctx, ep.Key, *at, b.kept.Graders)
		switch {
		case ctx.Err() != nil:
			return nil, nil //nolint:nilnil // documented: no result
		case KindOf(err) == KindNotRescorable, KindOf(err) == KindNotFound:
			res.Status, res.Cause, res.Step = Errored, Platform, "score"
			res.Evidence = append(res.Evidence, err.Error())
			return &res, nil
		case err != nil:
			return nil, err
		}
		if res.Scores = scores; scorePending(at.End.Cause, scores) && tried < scoreRetries && b.backOff(ctx, tried) {
			continue
		}
		res.Reward = Reward(*at.End, scores)
		res.Valid = res.Reward != nil
		return &res, nil
	}
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
func resultOf(line *BatchEpisode, ep *Episode) BatchResult {
	at := counted(ep)
	res := BatchResult{
		Run: ep.Key.Run, ID: ep.Key.ID, Group: line.Group, Task: line.Task, Weights: line.Weights, Attempt: at.N,
		Reward: at.Reward, Valid: at.Valid, Scores: at.Scores, Digests: at.Digests, Clocks: at.Clocks, Calls: at.Calls,
		Answer: at.Answer, Payload: at.Payload,
	}
	if at.End != nil {
		res.Status, res.Cause, res.Step = at.End.Status, at.End.Cause, at.End.Step
		res.Flags, res.Reason, res.Evidence = at.End.Flags, at.End.Reason, at.End.Evidence
	}
	return res
}
