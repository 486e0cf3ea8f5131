package runner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"time"
)

var (
	errBatchCancelled = errors.New("the batch was cancelled")
	errBatchDeadline  = errors.New("the batch's deadline passed")
	// errPutBack says that a line has to wait for a client again.
	errPutBack = errors.New("no client is there")
)

// stopError is the cause with which one line is stopped while it is playing.
type stopError struct{ end End }

// Error is the end's step.
func (s stopError) Error() string { return "the line was stopped: " + s.end.Step }

// liveBatch is a batch that is being run.
//
// Its dispatcher takes lines in order, groups one after another, and a line keeps its place
// until it has its result, retries included: so groups complete one after another. Lines
// that need a client are passed over while none is there. What stops a batch early lets the
// lines under way end first, unless it was cancelled, its deadline passed or the daemon is
// closed.
type liveBatch struct {
	r    *Runner
	log  *slog.Logger
	stop context.CancelCauseFunc
	over chan struct{}
	wake chan struct{} // the dispatcher should look again

	mu   sync.Mutex
	kept keptBatch
	book *book
	todo []*member // lines still to be taken, in order of their groups
	// byDaemon and byClient lines are under way.
	byDaemon, byClient int
	drivers            map[string]*driver // by lease
	rewards            map[string]*awaited
	news               chan struct{} // closed and made anew at whatever others wait for
	reason             string        // of a cancel
	halt               error         // nothing more is started
	finished           bool          // no line is taken any more
	recent             []attemptSeen
	broken             map[string]int // grader -> spoiled scorings in a row
	taking, foreseen   lineChunk      // where lines are taken, and where the stock is told of
	together           bool           // what is kept is synced at the end
}

func (r *Runner) liveBatch(owner, id string) *liveBatch {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.batches[batchKey(owner, id)]
}

// lockBatch serves what changes one batch one after another.
func (r *Runner) lockBatch(ctx context.Context, owner, id string) (unlock func(), err error) {
	return r.lockKey(ctx, Key{Owner: owner, Run: "\x00batch", ID: id})
}

// openBatch reads a batch, ready to be changed or to be run.
func (r *Runner) openBatch(ctx context.Context, kept keptBatch) (*liveBatch, error) {
	k, err := r.loadBook(ctx, &kept)
	if err != nil {
		return nil, err
	}
	b := &liveBatch{
		r: r, kept: kept, book: k, over: make(chan struct{}), wake: make(chan struct{}, 1), news: make(chan struct{}),
		drivers: map[string]*driver{}, rewards: map[string]*awaited{}, broken: map[string]int{},
		log: r.cfg.Log.With(slog.String("batch", kept.Batch.ID)),
	}
	k.spec = &b.kept.Spec
	for _, m := range k.members {
		if !m.replaced && m.state == waiting {
			b.todo = append(b.todo, m)
		}
	}
	slices.SortStableFunc(b.todo, compareMembers)
	return b, nil
}

// compareMembers orders lines by their groups, and within a group by their numbers.
func compareMembers(x, y *member) int {
	if x.group != y.group {
		return x.group.order - y.group.order
	}
	return x.n - y.n
}

// runBatch sets a kept batch going; one that runs already is left alone. The batch is
// locked.
func (r *Runner) runBatch(ctx context.Context, kept keptBatch) error { //nolint:contextcheck // a batch outlives the request that made it
	if r.liveBatch(kept.Batch.Owner, kept.Batch.ID) != nil {
		return nil
	}
	b, err := r.openBatch(ctx, kept)
	if err != nil {
		return err
	}
	own, stop := context.WithCancelCause(r.ctx)
	b.stop = stop
	key := batchKey(kept.Batch.Owner, kept.Batch.ID)
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.draining:
		stop(errClosed)
		return &Error{Kind: KindDraining, Detail: "the daemon is shutting down", RetryAfter: 10 * time.Second}
	case len(r.batches) >= maxBatches:
		stop(nil)
		return &Error{Kind: KindOverCapacity, Detail: fmt.Sprintf("%d batches are running: seal or cancel one", maxBatches), RetryAfter: 5 * time.Second}
	}
	r.batches[key] = b
	r.wg.Go(func() {
		defer stop(nil)
		b.run(own)
		r.mu.Lock()
		delete(r.batches, key)
		r.mu.Unlock()
		b.mu.Lock()
		close(b.over)
		close(b.news) // for good: who asks for it from now on must not wait for more
		b.mu.Unlock()
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
		err = b.dispatch(ctx)
	}
	late := context.WithoutCancel(ctx) // the end is recorded though the batch was stopped
	if errors.Is(err, errBatchDeadline) {
		err = b.dropRest(late)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.finished = true
	b.kept.Batch.State, b.kept.Batch.Error = b.endStateLocked(err)
	b.book.count(&b.kept.Batch)
	b.kept.Batch.Groups = nil
	if err := b.r.saveBatch(late, &b.kept); err != nil {
		b.log.Error("batch", slog.Any("error", err))
	}
	b.log.Info("batch ended", slog.String("state", string(b.kept.Batch.State)), slog.String("reason", b.kept.Batch.Error))
}

func (b *liveBatch) endStateLocked(err error) (BatchState, string) {
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

// prepare takes back the results that do not stand after a resume, and does what a crash
// kept from being done after a result.
func (b *liveBatch) prepare(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, m := range b.book.members {
		if m.state != ended || m.replaced {
			continue
		}
		stands, err := b.standsLocked(ctx, m)
		if err != nil {
			return err
		}
		if !stands {
			b.book.unsettle(m)
			b.queueLocked(m)
		}
	}
	for _, g := range b.book.groups {
		if err := b.mendLocked(ctx, g); err != nil {
			return err
		}
	}
	return nil
}

// mendLocked does for a group what was left to do when the daemon died.
func (b *liveBatch) mendLocked(ctx context.Context, g *groupBook) error {
	left := slices.ContainsFunc(g.members, func(m *member) bool { return m.state != ended })
	if g.seq != 0 && left {
		if size := b.kept.Spec.GroupSize; size > 0 && len(g.counted) == size {
			return b.surplusLocked(ctx, g)
		}
		b.book.reopen(g) // a line was put in another's place
	}
	return b.groupLocked(ctx, g)
}

// standsLocked says that a result of before a resume stands: it has a reward, was cancelled
// by the client or ended otherwise in a way that is not tried again, or its group is
// complete without it.
func (b *liveBatch) standsLocked(ctx context.Context, m *member) (bool, error) {
	if !m.lost || (m.group.seq != 0 && b.kept.Spec.GroupSize > 0) {
		return true, nil
	}
	line, err := b.lineLocked(ctx, m)
	if err != nil {
		return false, err
	}
	if b.kept.Batch.Of != "" {
		doc, err := b.r.cfg.Record.Document(ctx, resultDocuments, numberedKey(b.kept.Batch.Owner, b.kept.Batch.ID, m.seq))
		if err != nil {
			return false, fmt.Errorf("read result: %w", err)
		}
		res, err := decodeDoc[BatchResult](resultDocuments, doc)
		return !scorePending(res.Cause, res.Scores) && len(judgePending(b.kept.Graders, res.Scores)) == 0, err
	}
	ep, err := b.r.Get(ctx, b.key(&line.Line))
	if KindOf(err) == KindNotFound {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	last := ep.Last()
	if last.N != m.attempt || last.State != Done || scorePending(last.End.Cause, last.Scores) {
		return false, nil
	}
	if last.End.Cause == Agent && len(judgePending(line.Line.Graders, last.Scores)) > 0 {
		return false, nil
	}
	return !b.again(&ep, &line.Line), nil
}

// queueLocked puts a line where it is to be taken.
func (b *liveBatch) queueLocked(m *member) {
	m.state, m.cancel = waiting, nil
	at, _ := slices.BinarySearchFunc(b.todo, m, compareMembers)
	b.todo = slices.Insert(b.todo, at, m)
}

func (b *liveBatch) unqueueLocked(m *member) {
	if at, found := slices.BinarySearchFunc(b.todo, m, compareMembers); found {
		b.todo = slices.Delete(b.todo, at, at+1)
	}
}

// lineLocked reads a line's spec.
func (b *liveBatch) lineLocked(ctx context.Context, m *member) (*keptLine, error) {
	return b.readLocked(ctx, m, &b.taking)
}

// lineChunk is lines that were read together. Neighbours are taken one after another, so
// each who goes through them keeps one.
type lineChunk struct {
	first int
	lines []keptLine // nil: none was read
}

func (b *liveBatch) readLocked(ctx context.Context, m *member, c *lineChunk) (*keptLine, error) {
	if c.lines == nil || c.first != m.chunk {
		lines, err := b.r.readChunk(ctx, &b.kept, m.chunk)
		if err != nil {
			return nil, err
		}
		*c = lineChunk{m.chunk, lines}
	}
	at := m.n - m.chunk
	if at >= len(c.lines) {
		return nil, &Error{Kind: KindRecordDamaged, Detail: fmt.Sprintf("line %d of batch %s is missing", m.n, b.kept.Batch.ID)}
	}
	line := c.lines[at] // a copy: the chunk is shared
	return &line, nil
}

// dispatch gives lines to workers until the batch is sealed and each has its result, or it
// is stopped.
func (b *liveBatch) dispatch(ctx context.Context) error {
	var workers sync.WaitGroup
	for {
		work, over := b.next(ctx)
		if over {
			break
		}
		if work != nil {
			workers.Go(work)
			continue
		}
		b.foresee(ctx)
		select {
		case <-b.wake:
		case <-ctx.Done():
		}
	}
	b.r.stock.expect(b.name(), nil)
	workers.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.finished = true
	if b.halt != nil {
		return b.halt
	}
	return context.Cause(ctx)
}

// next takes the next line that may be played now, and returns what plays it; over is no
// more for good.
func (b *liveBatch) next(ctx context.Context) (work func(), over bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.halt != nil || ctx.Err() != nil {
		return nil, true
	}
	if len(b.todo) == 0 && b.book.sealed && b.byDaemon+b.byClient == 0 {
		b.finished = true
		return nil, true
	}
	at, d := b.pickLocked()
	if at < 0 {
		return nil, false
	}
	m := b.todo[at]
	kept, err := b.lineLocked(ctx, m)
	if err != nil {
		b.halt = fmt.Errorf("line %d: %w", m.n, err)
		return nil, true
	}
	if at == 0 {
		b.todo = b.todo[1:] // the usual case, however many there are
	} else {
		b.todo = slices.Delete(b.todo, at, at+1)
	}
	m.state, m.ahead = playing, nil
	own, cancel := context.WithCancelCause(ctx)
	m.cancel = cancel
	if m.client {
		b.byClient++
	} else {
		b.byDaemon++
	}
	line := &playable{BatchEpisode: kept.Line, refillOf: kept.RefillOf}
	if m.client {
		line.driver = d
		d.load++
	}
	return func() { b.play(own, m, line) }, false
}

// playable is a line under way.
type playable struct {
	BatchEpisode
	refillOf string
	driver   *driver // the client that it was given to
}

// pickLocked finds the first line for which there is room, and a client where it needs one;
// -1 is none.
func (b *liveBatch) pickLocked() (at int, d *driver) {
	most := b.kept.Spec.Parallel
	if most > 0 && b.byDaemon+b.byClient >= most {
		return -1, nil
	}
	byDaemon := most > 0 || b.byDaemon < defaultParallel()
	if b.byClient < maxParallel {
		d = b.freeDriverLocked()
	}
	if !byDaemon && d == nil {
		return -1, nil
	}
	return slices.IndexFunc(b.todo, func(m *member) bool {
		if m.client {
			return d != nil
		}
		return byDaemon
	}), d
}

// defaultParallel is how many lines of a batch that says nothing may be under way, besides
// those that clients play.
func defaultParallel() int { return max(4, 2*runtime.NumCPU()) }

// play makes one line's result, or puts the line back. ctx is the line's own.
func (b *liveBatch) play(ctx context.Context, m *member, line *playable) {
	res, err := b.line(ctx, line)
	m.cancel(nil)
	late := context.WithoutCancel(ctx)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.unclaimLocked(line)
	if m.client {
		b.byClient--
	} else {
		b.byDaemon--
	}
	switch {
	case m.replaced:
		m.state = ended
	case errors.Is(err, errPutBack):
		b.queueLocked(m)
	case err == nil && res != nil:
		err = b.addLocked(late, m, res)
	default:
		m.state = waiting // the batch was stopped: a resume takes it up
	}
	if err != nil && !errors.Is(err, errPutBack) && b.halt == nil {
		b.halt = fmt.Errorf("episode %s: %w", line.ID, err)
	}
	b.toldLocked()
}

// toldLocked wakes everybody who waits for a change.
func (b *liveBatch) toldLocked() {
	if stopped(b.over) {
		return
	}
	close(b.news)
	b.news = make(chan struct{})
	b.poke()
}

func (b *liveBatch) poke() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

func (b *liveBatch) halted() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.halt
}

// changed is closed at the next change, or at the end.
func (b *liveBatch) changed() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.news
}

func (b *liveBatch) key(line *BatchEpisode) Key {
	return Key{Owner: b.kept.Batch.Owner, Run: b.kept.Batch.Run, ID: line.ID}
}

// dropRest seals a batch whose deadline passed and gives every line that has none a result.
func (b *liveBatch) dropRest(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.book.closing, b.book.sealed, b.kept.Batch.Sealed = true, true, true
	b.todo = nil
	var rest []*member
	for _, m := range b.book.members {
		if m.state == waiting && !m.replaced {
			rest = append(rest, m)
		}
	}
	slices.SortStableFunc(rest, compareMembers)
	return b.togetherLocked(ctx, func() error {
		for _, m := range rest {
			if m.state != waiting { // its group was complete meanwhile
				continue
			}
			if err := b.dropLocked(ctx, m, deadlineEnd()); err != nil {
				return err
			}
		}
		return b.decideAllLocked(ctx)
	})
}

func deadlineEnd() End {
	return End{Status: Cancelled, Cause: Client, Step: "deadline", Reason: errBatchDeadline.Error()}
}

// stopEnd is the end of attempts that a stop of the batch, or of their line, cuts short.
func (b *liveBatch) stopEnd(ctx context.Context) End {
	cause := context.Cause(ctx)
	if s, ok := errors.AsType[stopError](cause); ok {
		return s.end
	}
	switch {
	case errors.Is(cause, errBatchCancelled):
		b.mu.Lock()
		defer b.mu.Unlock()
		return End{Status: Cancelled, Cause: Client, Step: "batch", Reason: b.reason}
	case errors.Is(cause, errBatchDeadline):
		return deadlineEnd()
	}
	return End{Status: Cancelled, Cause: Operator, Step: "drain", Evidence: []string{"the daemon was stopped"}}
}
