package app

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/paddock-run/paddock/runner"
)

const (
	// tick is how often a control loop looks when nobody wakes it.
	tick = time.Second
	// firstBackOff is doubled by each failure in a row, to mostBackOff.
	firstBackOff = 200 * time.Millisecond
	mostBackOff  = time.Minute
	// steadyAfter is how long a replica must be ready until the failures before it count no
	// more.
	steadyAfter = time.Minute
	// failingAfter is after how many failures in a row requests no longer wait.
	failingAfter = 3
	// maxAge is when a replica is replaced by another, before the longest call ends it.
	maxAge = (maxSeconds - 24*3600) * time.Second
)

// app is one app in memory. Its control loop alone starts replicas and has them drain.
type app struct {
	s    *Service
	key  Key
	logs *logFile
	kick chan struct{}
	ctx  context.Context //nolint:containedctx // the life of the app, which its end cancels
	stop context.CancelCauseFunc
	over chan struct{}
	wg   sync.WaitGroup // of the replicas

	mu       sync.Mutex
	rec      record
	replicas []*replica
	sessions map[string]*session
	live     int // of the sessions, those that are not lost
	inFlight int
	waiting  int
	// changed is closed, and another put in its place, when a replica becomes ready or fails.
	changed  chan struct{}
	lastUsed time.Time
	idle     bool
	want     int
	lowSince time.Time
	failures int // in a row
	nextTry  time.Time
	restarts int64
	failure  string
	failedAt time.Time
}

func newApp(s *Service, key Key, rec record, logs *logFile) *app {
	ctx, stop := context.WithCancelCause(s.ctx)
	return &app{
		s: s, key: key, rec: rec, logs: logs, kick: make(chan struct{}, 1), ctx: ctx, stop: stop, over: make(chan struct{}),
		sessions: map[string]*session{}, changed: make(chan struct{}), lastUsed: time.Now(), want: rec.Spec.Scale.Min,
	}
}

func (a *app) recorded() record {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.rec
}

// change journals what the app is to be, then makes it so.
func (a *app) change(ctx context.Context, rec record) (App, error) {
	if err := a.s.save(ctx, a.key, rec); err != nil {
		return App{}, err
	}
	a.mu.Lock()
	if rec.Revision != a.rec.Revision { // another program may do better
		a.failures, a.nextTry = 0, time.Time{}
	}
	a.rec = rec
	a.lowSince = time.Time{}
	a.want = min(max(a.want, rec.Spec.Scale.Min), rec.Spec.Scale.Max)
	a.lastUsed = time.Now()
	a.mu.Unlock()
	a.wake()
	return a.view(), nil
}

func (a *app) wake() {
	select {
	case a.kick <- struct{}{}:
	default:
	}
}

// end stops the app and returns when nothing of it runs.
func (a *app) end(why error) {
	a.stop(why)
	<-a.over
}

// control brings what there is to what is wanted, until the app's end.
func (a *app) control() {
	defer close(a.over)
	timer := time.NewTicker(tick)
	defer timer.Stop()
	for a.ctx.Err() == nil {
		next := a.settle(time.Now())
		var soon <-chan time.Time
		if next > 0 {
			soon = time.After(next)
		}
		select {
		case <-a.ctx.Done():
		case <-a.kick:
		case <-timer.C:
		case <-soon:
		}
	}
	a.wg.Wait() // the replicas end with the app's context
}

// settle does what is to be done now and says when at the latest to look again; 0 is the next
// tick.
func (a *app) settle(now time.Time) (next time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.expireLocked(now)
	want := a.wantLocked(now)
	fresh, old := a.servingLocked(now)
	a.steadyLocked(now)
	if missing := want - len(fresh); missing > 0 {
		if len(old) > 0 { // one more than wanted at a time
			missing = min(missing, want+1-len(fresh)-len(old))
		}
		if wait := a.nextTry.Sub(now); wait > 0 {
			next = wait
		} else {
			for range missing {
				a.startLocked()
			}
		}
	}
	a.drainLocked(now, want, fresh, old)
	a.stopDrainedLocked(now)
	return next
}

// servingLocked are the replicas that are not to stop: those of this revision, and others.
func (a *app) servingLocked(now time.Time) (fresh, old []*replica) {
	for _, r := range a.replicas {
		switch {
		case r.state != Starting && r.state != Ready:
		case r.revision == a.rec.Revision && now.Sub(r.since) < maxAge:
			fresh = append(fresh, r)
		default:
			old = append(old, r)
		}
	}
	return fresh, old
}

// wantLocked is how many replicas there are to be.
func (a *app) wantLocked(now time.Time) int {
	scale := a.rec.Spec.Scale
	if idle := a.rec.Spec.IdleS; idle > 0 && a.inFlight+a.live+a.waiting == 0 && now.Sub(a.lastUsed) > seconds(idle) && !a.startingLocked() {
		a.idle = true
	}
	if a.idle {
		a.want = scale.Min // when it wakes
		return 0
	}
	load := a.inFlight
	if a.rec.Spec.Sessions == Sticky {
		load = max(load, a.live)
	}
	need := min(max((load+scale.Target-1)/scale.Target, scale.Min), scale.Max)
	switch {
	case need >= a.want:
		a.want, a.lowSince = need, time.Time{}
	case a.want > scale.Max:
		a.want = scale.Max
	case a.lowSince.IsZero():
		a.lowSince = now
	case now.Sub(a.lowSince) >= seconds(scale.DownS):
		a.want, a.lowSince = need, time.Time{}
	}
	return a.want
}

func (a *app) startingLocked() bool {
	return slices.ContainsFunc(a.replicas, func(r *replica) bool { return r.state == Starting })
}

// steadyLocked forgets failures once a replica has been ready for long.
func (a *app) steadyLocked(now time.Time) {
	if a.failures > 0 && slices.ContainsFunc(a.replicas, func(r *replica) bool { return r.state == Ready && now.Sub(r.readyAt) > steadyAfter }) {
		a.failures = 0
	}
}

func (a *app) startLocked() {
	r := newReplica(a)
	a.replicas = append(a.replicas, r)
	a.wg.Go(func() { a.ended(r, r.live()) })
}

// drainLocked has the replicas drain that are too many: those of an old revision as soon as
// enough others are ready, and of this one those with the fewest sessions.
func (a *app) drainLocked(now time.Time, want int, fresh, old []*replica) {
	ready := 0
	for _, r := range fresh {
		if r.state == Ready {
			ready++
		}
	}
	byLoad := func(x, y *replica) int { return x.rank() - y.rank() }
	slices.SortStableFunc(old, byLoad)
	for _, r := range old {
		if left := readyOf(old) + ready; r.state == Ready && left <= want && want > 0 {
			break // others must become ready first
		}
		a.drainOneLocked(now, r)
	}
	slices.SortStableFunc(fresh, byLoad)
	for len(fresh) > want {
		a.drainOneLocked(now, fresh[0])
		fresh = fresh[1:]
	}
}

func readyOf(all []*replica) (n int) {
	for _, r := range all {
		if r.state == Ready {
			n++
		}
	}
	return n
}

func (a *app) drainOneLocked(now time.Time, r *replica) {
	a.wake() // to look whether it has drained, and what may be started in its place
	if r.state == Starting {
		r.state = Stopping
		r.stop(errNotWanted)
		return
	}
	r.state, r.drainBy = Draining, now.Add(seconds(a.rec.Spec.DrainS))
}

// stopDrainedLocked stops replicas that drain once they serve nobody, or their time is over.
func (a *app) stopDrainedLocked(now time.Time) {
	for _, r := range a.replicas {
		if r.state != Draining {
			continue
		}
		why := errNotWanted
		if r.inFlight+r.sessions > 0 {
			if now.Before(r.drainBy) {
				continue
			}
			why = fmt.Errorf("%w: its sessions had drain_s to end", errNotWanted)
		}
		r.state = Stopping
		r.stop(why)
	}
}

// ended takes a replica out, once nothing of it is left.
func (a *app) ended(r *replica, failure string) {
	a.mu.Lock()
	a.replicas = slices.DeleteFunc(a.replicas, func(o *replica) bool { return o == r })
	if failure != "" {
		a.restarts++
		a.failures++
		a.failure, a.failedAt = r.id+": "+failure, time.Now().UTC()
		wait := mostBackOff
		if a.failures < 16 {
			wait = min(mostBackOff, firstBackOff<<(a.failures-1))
		}
		a.nextTry = time.Now().Add(wait)
	}
	a.announceLocked()
	a.mu.Unlock()
	a.wake()
	if failure != "" {
		a.logs.note(r.id, "failed: "+failure)
		a.s.log.Warn("app's replica failed", slog.String("app", a.key.Name), slog.String("replica", r.id), slog.String("failure", failure))
	} else {
		a.logs.note(r.id, "stopped")
	}
	if err := a.s.forgetEpisodes(context.WithoutCancel(a.ctx), a.key, keptEpisodes); err != nil {
		a.s.log.Warn("forget replicas", slog.String("app", a.key.Name), slog.Any("error", err))
	}
}

// announceLocked wakes the requests that wait for a replica.
func (a *app) announceLocked() {
	close(a.changed)
	a.changed = make(chan struct{})
}

// view is the app as it is now.
func (a *app) view() App {
	a.mu.Lock()
	defer a.mu.Unlock()
	v := App{
		Name: a.key.Name, Spec: a.rec.Spec, Revision: a.rec.Revision, Created: a.rec.Created, Updated: a.rec.Updated, Wanted: a.want,
		Sessions: a.live, InFlight: a.inFlight, Restarts: a.restarts, Failure: a.failure, FailureAt: a.failedAt, Replicas: []Replica{},
	}
	ready, old := 0, 0
	for _, r := range a.replicas {
		if r.revision != a.rec.Revision {
			old++
		} else if r.state == Ready {
			ready++
		}
		v.Replicas = append(v.Replicas, Replica{
			ID: r.id, Revision: r.revision, State: r.state, Episode: r.key.ID, Since: r.since, Sessions: r.sessions, InFlight: r.inFlight,
		})
	}
	switch {
	case a.idle:
		v.State, v.Wanted = "idle", 0
	case a.failures >= failingAfter && ready == 0:
		v.State = "failing"
	case old > 0:
		v.State = "updating"
	case ready == 0:
		v.State = "starting"
	default:
		v.State = "running"
	}
	return v
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// downLocked is why no replica can take a request, and when to ask again.
func (a *app) downLocked() error {
	e := &runner.Error{Kind: runner.KindAppDown, Detail: fmt.Sprintf("no replica of app %q is ready", a.key.Name), RetryAfter: time.Second}
	if a.failure != "" && a.failures > 0 {
		e.Detail += "; the last failure: " + a.failure
		e.RetryAfter = max(time.Second, time.Until(a.nextTry).Round(time.Second))
	}
	return e
}
