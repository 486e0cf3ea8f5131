// Package runner owns the life of episodes: create, calls, capture, scores, batches. It
// decides outcomes and rewards; it knows launchers, worlds and the record only through
// the interfaces in deps.go and record.go.
package runner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/google/uuid"

	"github.com/paddock-run/paddock/overlay"
	"github.com/paddock-run/paddock/policies"
	"github.com/paddock-run/paddock/sandbox"
)

// Config is what a Runner works with; all fields but Sockets, Egress, Log and Faults are needed.
type Config struct {
	// Root is the store's directory; the runner writes only below Root/run.
	Root     string
	Launcher Launcher
	Worlds   Worlds
	Record   Record
	Policies *policies.Set
	Host     policies.Host
	IDs      *sandbox.IDPool
	Sockets  EpisodeSockets
	// Egress serves proxies and endpoints; without it specs that need one are refused.
	Egress Egress
	Log    *slog.Logger
	// Faults, when set, fails a share of first attempts on purpose.
	Faults *Faults
	// MaxQueue bounds the episodes that wait for capacity; 0 is DefaultMaxQueue.
	MaxQueue int
	// Stock says what is made ahead of need.
	Stock Stock
}

// EpisodeSockets makes sockets that reach one episode only; the daemon implements it.
type EpisodeSockets interface {
	// Open makes a socket that uid may connect to.
	Open(ctx context.Context, key Key, uid uint32) (path string, closeSocket func() error, err error)
}

// Faults is the fault switch: it kills the sandboxes of a share of first attempts from
// outside, at a moment drawn from the seed.
type Faults struct {
	Share float64
	Seed  uint32
}

// Runner runs episodes. Its methods may be called from any goroutine.
type Runner struct {
	cfg       Config
	ctx       context.Context //nolint:containedctx // bounds the attempts' goroutines, which the Runner owns; Close cancels it
	cancel    context.CancelCauseFunc
	admission *admission
	leases    leases
	weights   weightOrder
	rescoring gate
	health    worldHealth
	ready     readiness
	captures  gate // of big uppers
	stock     *stock
	apps      Apps
	trials    trialQueue
	names     string
	started   atomic.Int64
	users     worldUsers
	wg        sync.WaitGroup

	// holding is held while it is decided who holds a world.
	holding sync.Mutex

	mu       sync.Mutex
	draining bool
	live     map[Key]*attempt
	locked   map[Key]chan struct{}
	runs     map[Key]Run
	// sandboxes are the names of those that are there, or are just starting or ending.
	sandboxes map[string]bool
	batches   map[string]*liveBatch
}

// New returns a Runner, after it has put the record in order: attempts that a crash left
// live become interrupted.
func New(ctx context.Context, cfg Config) (*Runner, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if err := checkPolicies(cfg.Policies); err != nil {
		return nil, err
	}
	own, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	r := &Runner{
		cfg: cfg, ctx: own, cancel: cancel, admission: newAdmission(cfg.Host, cfg.MaxQueue),
		leases: leases{conns: map[string]*connLease{}}, rescoring: newGate(2 * int(cfg.Host.CPUs)),
		captures: newGate(bigCaptures), weights: weightOrder{runs: map[Key]*usedWeights{}},
		trials: newTrialQueue(cfg.Host),
		health: worldHealth{failed: map[worldOf]int{}},
		names:  strings.ReplaceAll(uuid.NewString(), "-", "")[:8],
		live:   map[Key]*attempt{}, locked: map[Key]chan struct{}{}, runs: map[Key]Run{},
		batches: map[string]*liveBatch{}, sandboxes: map[string]bool{},
	}
	r.ready = readiness{r: r, shelves: map[string]*readyShelf{}}
	if err := errors.Join(r.sweepScratch(), r.reconcile(ctx)); err != nil {
		cancel(err)
		return nil, err
	}
	r.stock = newStock(r, cfg.Stock)
	return r, nil
}

// sandboxName is unique over restarts too, so that a new sandbox never meets what one of
// an earlier daemon left.
func (r *Runner) sandboxName() string {
	name := fmt.Sprintf("e-%s-%d", r.names, r.started.Add(1))
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sandboxes[name] = true
	return name
}

// sandboxGone says that a sandbox is no more, as far as the runner knows: one that is there
// all the same is a stray.
func (r *Runner) sandboxGone(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.sandboxes, name)
}

// Sandboxes are the names of the sandboxes that the runner has.
func (r *Runner) Sandboxes() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Sorted(maps.Keys(r.sandboxes))
}

// Drain refuses new episodes and waits until the live ones have ended, or ctx is done. It does
// not wait for those that serve others, which these may still need.
func (r *Runner) Drain(ctx context.Context) error {
	r.mu.Lock()
	r.draining = true
	r.mu.Unlock()
	r.ready.close()
	if err := r.stopBatches(ctx); err != nil {
		return fmt.Errorf("stop batches: %w", err)
	}
	return r.wait(ctx, false)
}

// wait returns once no attempt is left, of those that serve others only where they count.
func (r *Runner) wait(ctx context.Context, services bool) error {
	for {
		var one *attempt
		r.mu.Lock()
		for _, a := range r.live {
			if services || !a.plan.Spec.Service {
				one = a
				break
			}
		}
		r.mu.Unlock()
		if one == nil {
			return nil
		}
		select {
		case <-one.over:
		case <-ctx.Done():
			return fmt.Errorf("episodes are still live: %w", context.Cause(ctx))
		}
	}
}

// Close ends every live episode (cancelled by the operator) and waits for that. It does
// not close the launcher or the record.
func (r *Runner) Close(ctx context.Context) error {
	r.mu.Lock()
	r.draining = true
	var all []*attempt
	for _, a := range r.live {
		all = append(all, a)
	}
	for _, b := range r.batches {
		b.stop(errClosed)
	}
	r.mu.Unlock()
	r.ready.close()
	for _, a := range all {
		a.ask(End{Status: Cancelled, Cause: Operator, Step: "drain", Evidence: []string{"the daemon was closed"}})
	}
	err := r.wait(ctx, true)
	r.cancel(errClosed)
	if err == nil {
		r.wg.Wait()
	}
	return err
}

// Get returns an episode. Looking never renews a lease.
func (r *Runner) Get(ctx context.Context, key Key) (Episode, error) {
	a := r.liveOf(key) // before the record: what ends in between is whole there
	plan, all, err := r.cfg.Record.Attempts(ctx, key)
	if err != nil {
		return Episode{}, err
	}
	return r.view(key, plan, all, a), nil
}

// episodeOf is Get for who has an attempt in hand; a first attempt is all there is of its
// episode, so the record need not be asked.
func (r *Runner) episodeOf(ctx context.Context, a *attempt) (Episode, error) {
	if a.n > 1 {
		return r.Get(ctx, a.key)
	}
	a.mu.Lock()
	rec := a.rec
	a.mu.Unlock()
	return r.view(a.key, a.plan, []Attempt{rec}, a), nil
}

// view joins what is recorded of an episode with what is in memory.
func (r *Runner) view(key Key, plan Plan, all []Attempt, a *attempt) Episode {
	ep := Episode{Key: key, Plan: plan, Attempts: all}
	last := ep.Last()
	if a != nil && a.n == last.N && !stopped(a.over) {
		a.mu.Lock()
		*last = a.rec
		ep.Lease = a.lease.state()
		last.Clocks.AgentS, last.Clocks.WallS = a.agent.elapsed().Seconds(), a.wall.elapsed().Seconds()
		a.mu.Unlock()
		last.Output = a.outputTotal.Load()
		ep.QueuePosition = r.admission.position(a.ticket)
	}
	ep.State = last.State
	ep.Reward, ep.Valid = last.Reward, last.Valid
	for i := range all {
		if all[i].Valid && !all[i].Superseded {
			ep.Reward, ep.Valid = all[i].Reward, true
			break
		}
	}
	return ep
}

// MaxList bounds one page of List.
const MaxList = 1000

// List lists episodes of a run by prefix, in order of id.
func (r *Runner) List(ctx context.Context, owner, run, prefix, after string, max int) (eps []Episode, more bool, err error) {
	if max <= 0 || max > MaxList {
		max = MaxList
	}
	if run == "" {
		run = DefaultRun
	}
	keys, more, err := r.cfg.Record.List(ctx, owner, run, prefix, after, max)
	if err != nil {
		return nil, false, fmt.Errorf("list episodes: %w", err)
	}
	for _, key := range keys {
		ep, err := r.Get(ctx, key)
		if KindOf(err) == KindNotFound {
			continue // deleted meanwhile
		}
		if err != nil {
			return nil, false, err
		}
		eps = append(eps, ep)
	}
	return eps, more, nil
}

// Cancel ends the live attempts at and below a prefix; "" is the whole run.
func (r *Runner) Cancel(ctx context.Context, owner, run, prefix, reason string) (n int, err error) {
	if run == "" {
		run = DefaultRun
	}
	var asked []*attempt
	r.mu.Lock()
	for key, a := range r.live {
		if key.Owner == owner && key.Run == run && Under(key.ID, prefix) {
			asked = append(asked, a)
		}
	}
	r.mu.Unlock()
	for _, a := range asked {
		if a.ask(End{Status: Cancelled, Cause: Client, Reason: cut(reason)}) {
			n++
		}
	}
	for _, a := range asked {
		select {
		case <-a.over:
		case <-ctx.Done():
			return n, context.Cause(ctx)
		}
	}
	return n, nil
}

// Under says whether id is prefix or below it; a prefix that ends in "/" and the empty one
// take everything that starts so.
func Under(id, prefix string) bool {
	return prefix == "" || id == prefix || strings.HasPrefix(id, strings.TrimSuffix(prefix, "/")+"/")
}

// Pause freezes an episode and its clocks.
func (r *Runner) Pause(ctx context.Context, key Key) (Episode, error) {
	return r.steer(ctx, key, (*attempt).pause)
}

// Resume lets a paused episode go on.
func (r *Runner) Resume(ctx context.Context, key Key) (Episode, error) {
	return r.steer(ctx, key, (*attempt).resume)
}

// KeepAlive renews a ttl lease.
func (r *Runner) KeepAlive(ctx context.Context, key Key) (Episode, error) {
	return r.steer(ctx, key, func(a *attempt, _ context.Context) error {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.lease.renew()
		return nil
	})
}

func (r *Runner) steer(ctx context.Context, key Key, do func(*attempt, context.Context) error) (Episode, error) {
	a, err := r.liveAttempt(ctx, key, 0)
	if err != nil {
		return Episode{}, err
	}
	if err := a.asked(ctx, func(ctx context.Context) error { return do(a, ctx) }); err != nil {
		return Episode{}, err
	}
	return r.Get(ctx, key)
}

// Delete removes an episode and everything kept of it; a live one is cancelled first.
func (r *Runner) Delete(ctx context.Context, key Key) error {
	unlock, err := r.lockKey(ctx, key)
	if err != nil {
		return err
	}
	defer unlock()
	if a := r.liveOf(key); a != nil {
		a.ask(End{Status: Cancelled, Cause: Client, Reason: "deleted", discard: true})
		select {
		case <-a.over:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return r.cfg.Record.DeleteEpisode(ctx, key)
}

// Changes returns what an attempt changed; attempt 0 is the last. Of a live one it is read
// now, with its processes held still meanwhile, and keeps no bytes.
func (r *Runner) Changes(ctx context.Context, key Key, attempt int) (overlay.Capture, error) {
	if a := r.liveOf(key); a != nil && (attempt == 0 || attempt == a.n) {
		c, err := a.changesNow(ctx)
		if KindOf(err) != KindEpisodeEnded {
			return c, err
		}
		select { // its capture is the answer
		case <-a.over:
		case <-ctx.Done():
			return overlay.Capture{}, context.Cause(ctx)
		}
	}
	at, err := r.attemptOf(ctx, key, attempt)
	if err != nil {
		return overlay.Capture{}, err
	}
	dir, err := r.cfg.Record.Dir(key, at.N)
	if err != nil {
		return overlay.Capture{}, fmt.Errorf("attempt's directory: %w", err)
	}
	return loadCapture(dir)
}

func (a *attempt) changesNow(ctx context.Context) (c overlay.Capture, err error) {
	select {
	case <-a.ready:
	case <-ctx.Done():
		return c, context.Cause(ctx)
	}
	err = a.asked(ctx, func(ctx context.Context) error {
		return a.heldStill(ctx, func() error {
			var err error
			c, err = a.fork.Capture(ctx, overlay.CaptureInput{Upper: a.sb.Upper(), HostID: a.ids.HostID})
			return err
		})
	})
	return c, err
}

// Trajectory reads the journal of an attempt's calls; attempt 0 is the last. A torn last
// record, which a crash leaves, is dropped with a note in the log.
func (r *Runner) Trajectory(ctx context.Context, key Key, attempt int) (io.ReadCloser, error) {
	at, err := r.attemptOf(ctx, key, attempt)
	if err != nil {
		return nil, err
	}
	rd, note, err := r.cfg.Record.Trajectory(ctx, key, at.N)
	if note != "" {
		r.cfg.Log.Warn("trajectory", slog.String("episode", key.ID), slog.Int("attempt", at.N), slog.String("note", note))
	}
	return rd, err
}

// Payload returns what finish was given; attempt 0 is the last.
func (r *Runner) Payload(ctx context.Context, key Key, attempt int) ([]byte, error) {
	at, err := r.attemptOf(ctx, key, attempt)
	if err != nil {
		return nil, err
	}
	return r.cfg.Record.Payload(ctx, key, at.N)
}
