package runner

import (
	"context"
	"fmt"
	"slices"
)

// Kinds of work.
const (
	// WorkPlay: play the episode's attempt, which is live, to its end.
	WorkPlay = "play"
	// WorkScore: the attempt has ended; write the rewards that it waits for.
	WorkScore = "score"
)

// Work is what a batch asks a client to do. It may come again, to a reader that came back,
// with the same (Kind, episode, attempt).
type Work struct {
	Kind    string
	Episode Episode
	Attempt int
	// RefillOf is the id of the line for which this one was made.
	RefillOf string
	// Graders are the names of the client's graders whose rewards are missing, of WorkScore.
	Graders []string
}

// WorkSpec says who reads work.
type WorkSpec struct {
	// Generation is the driver's; readers with an earlier one are fenced, and what they were
	// playing begins again. 0 is not checked.
	Generation int64
	// Lease is an open lease connection: attempts that are handed out live under it.
	Lease string
	// Most bounds what is handed out and not yet done; 0 leaves it to the batch.
	Most int
}

// driver is a client that reads a batch's work, known by its lease. liveBatch.mu guards it.
type driver struct {
	lease      string
	conn       *connLease
	generation int64
	most       int
	// load is how many lines it has; work what of them it was asked and has not done yet.
	load int
	work []*asked
	last int64
	// reader is closed when the present reader is to stop; nil while there is none.
	reader chan struct{}
	// fenced is closed when a later driver of the run came.
	fenced chan struct{}
}

type asked struct {
	n int64
	Work
}

func (d *driver) reading() bool { return d.reader != nil && !d.gone() }

// gone says that it will never do anything more.
func (d *driver) gone() bool { return stopped(d.conn.ended) || stopped(d.fenced) }

// freeDriverLocked is the client with the least to do that may be given more.
func (b *liveBatch) freeDriverLocked() *driver {
	var best *driver
	for lease, d := range b.drivers {
		if d.gone() {
			delete(b.drivers, lease)
			continue
		}
		if d.reader == nil || (d.most > 0 && d.load >= d.most) {
			continue
		}
		if best == nil || d.load < best.load {
			best = d
		}
	}
	return best
}

// claim makes sure that a line has a client that is there; false is none.
func (b *liveBatch) claim(line *playable) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if line.driver != nil && !line.driver.gone() {
		return true
	}
	b.unclaimLocked(line)
	if line.driver = b.freeDriverLocked(); line.driver == nil {
		return false
	}
	line.driver.load++
	return true
}

func (b *liveBatch) unclaimLocked(line *playable) {
	if line.driver != nil {
		line.driver.load--
		line.driver = nil
	}
}

// ask puts work before a client; done takes it back.
func (b *liveBatch) ask(d *driver, w Work) (done func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	d.last++
	one := &asked{n: d.last, Work: w}
	d.work = append(d.work, one)
	b.toldLocked()
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		d.work = slices.DeleteFunc(d.work, func(o *asked) bool { return o == one })
	}
}

// hand lets the line's client play an attempt and returns once that is over. errPutBack is
// that there is no client.
func (b *liveBatch) hand(ctx context.Context, line *playable, key Key, spec EpisodeSpec) (Episode, error) {
	if !b.claim(line) {
		return Episode{}, errPutBack
	}
	d := line.driver
	spec.Lease = LeaseSpec{Kind: "connection", Conn: d.lease}
	a, created, err := b.place(ctx, key, spec)
	if err != nil && d.gone() {
		return Episode{}, errPutBack
	}
	if err != nil {
		return Episode{}, err
	}
	if a == nil {
		return created.Episode, nil
	}
	if b.until(ctx, a, d, a.ready) && !stopped(a.stop) {
		ep, err := b.r.episodeOf(ctx, a)
		if err != nil {
			a.ask(End{Status: Errored, Cause: Platform, Step: "host_disk", Evidence: []string{err.Error()}})
		} else {
			done := b.ask(d, Work{Kind: WorkPlay, Episode: ep, Attempt: a.n, RefillOf: line.refillOf})
			defer done()
		}
	}
	b.until(ctx, a, d, a.over)
	<-a.over // an attempt that was asked to end does, within its own bounds
	return b.r.Get(context.WithoutCancel(ctx), key)
}

// until waits for what of an attempt. When the line is stopped or its client goes, it asks
// for the attempt's end and reports false.
func (b *liveBatch) until(ctx context.Context, a *attempt, d *driver, what <-chan struct{}) bool {
	select {
	case <-what:
		return true
	case <-a.over:
		return true
	case <-ctx.Done():
		a.ask(b.stopEnd(ctx))
	case <-d.conn.ended:
		a.ask(connectionEnd())
	case <-d.fenced:
		a.ask(End{Status: Expired, Cause: Client, Evidence: []string{"another driver has resumed the run"}})
	}
	return false
}

// Work yields what a running batch asks of the client until the batch no longer runs or ctx
// is done. First it yields again what the same lease was asked and has not done. begin is
// called once, when the reader is known to the batch, and returns what takes the work.
func (r *Runner) Work(ctx context.Context, owner, id string, spec WorkSpec, begin func() func(Work) error) error {
	b := r.liveBatch(owner, id)
	if b == nil {
		kept, err := r.loadBatch(ctx, owner, id)
		if err != nil || kept.Batch.State == BatchDone {
			return err
		}
		now := kept.stopped()
		return &Error{Kind: KindNotLive, Detail: fmt.Sprintf("batch %q is %s; resume it first", id, now.State)}
	}
	d, reader, err := b.attach(ctx, owner, spec)
	if err != nil {
		return err
	}
	defer b.detach(d, reader)
	yield := begin()
	for told := int64(0); ; {
		more, fresh, over := b.unread(d, told)
		for _, w := range fresh {
			if err := yield(w.Work); err != nil {
				return err
			}
			told = w.n
		}
		if over {
			return nil
		}
		select {
		case <-more:
		case <-reader:
			return &Error{Kind: KindSuperseded, Detail: "another reader with this lease took over"}
		case <-d.fenced:
			return &Error{Kind: KindFenced, Detail: "another driver has resumed the run"}
		case <-d.conn.ended:
			return badField("lease", "the lease connection %q has ended", d.lease)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// attach makes a reader of work known. It takes the place of one with the same lease and
// fences drivers of earlier generations.
func (b *liveBatch) attach(ctx context.Context, owner string, spec WorkSpec) (*driver, chan struct{}, error) {
	if spec.Most < 0 || spec.Most > maxParallel {
		return nil, nil, badField("most", "%d is not in 0 to %d", spec.Most, maxParallel)
	}
	conn, err := b.r.connLease(owner, spec.Lease)
	if err != nil {
		return nil, nil, badField("lease", "no lease connection %q is open", spec.Lease)
	}
	if err := b.r.fence(ctx, Key{Owner: owner, Run: b.kept.Batch.Run}, spec.Generation); err != nil {
		return nil, nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for lease, other := range b.drivers {
		if spec.Generation > 0 && other.generation > 0 && other.generation < spec.Generation {
			close(other.fenced)
			delete(b.drivers, lease)
		}
	}
	d := b.drivers[spec.Lease]
	if d == nil {
		d = &driver{lease: spec.Lease, conn: conn, fenced: make(chan struct{})}
		b.drivers[spec.Lease] = d
	}
	if d.reader != nil {
		close(d.reader)
	}
	d.reader, d.generation, d.most = make(chan struct{}), spec.Generation, spec.Most
	b.toldLocked()
	return d, d.reader, nil
}

func (b *liveBatch) detach(d *driver, reader chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if d.reader == reader {
		d.reader = nil
	}
}

// unread is the work that a reader was not told, and what is closed when there may be more.
func (b *liveBatch) unread(d *driver, told int64) (more <-chan struct{}, fresh []asked, over bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, w := range d.work {
		if w.n > told {
			fresh = append(fresh, *w)
		}
	}
	return b.news, fresh, stopped(b.over)
}
