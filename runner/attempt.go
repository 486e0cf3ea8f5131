package runner

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/paddock-run/paddock/overlay"
	"github.com/paddock-run/paddock/policies"
	"github.com/paddock-run/paddock/sandbox"
)

// attempt is one attempt in memory, from create until everything of it is released. Its
// goroutine (run) alone changes its state; others ask through end and commands.
type attempt struct {
	r      *Runner
	key    Key
	n      int
	plan   Plan
	world  overlay.World
	policy *policies.Policy
	log    *slog.Logger
	ticket *ticket

	// ready is closed when the attempt is live or will never be; stop when its end is
	// asked; over when all is recorded and released.
	ready, stop, over chan struct{}
	commands          chan command
	// leaseMoved wakes the goroutine after another lease took over.
	leaseMoved chan struct{}

	// Set by run before ready is closed.
	fork    Fork
	sb      Sandbox
	sandbox string // its name
	ids     sandbox.IDMap
	tracker Tracker
	journal Journal
	dir     string
	workdir string
	program *program // of a spec with one
	// doors serve what the sandbox reaches; nil where it reaches nothing.
	doors     *doors
	exchanges *exchangeLog

	agent, wall *clock
	paused      *clock
	// serial is held by a call that is not parallel, writing by who writes the journal.
	serial, writing chan struct{}
	outputTotal     atomic.Int64
	// unrecorded: the end could not be put on record yet. The attempt's goroutine alone uses it.
	unrecorded bool
	// unkept: the attempt itself could not be put on record, so nothing of it is.
	unkept  atomic.Bool
	breakAt int64 // the call before which the fault switch acts, -1 for never

	mu       sync.Mutex
	rec      Attempt
	lease    lease
	creators int // creates that wait until it is ready
	endAsked *End
	// answer and payload are what finish gave.
	answer    json.RawMessage
	payload   []byte
	calls     map[int64]*callEntry
	calledOff map[int64]struct{} // numbers whose calls were cancelled before they came
	ledger    ledger
	nextSeq   int64
	// messages were said to the program, the first as call firstMessage.
	messages     int64
	firstMessage int64
	inflight     map[*inflightCall]struct{}
	idle         chan struct{} // closed while nothing is in flight
	sessions     map[string]*session
	users        map[string]resolved
	// lookedUp: users were looked up in the sandbox's files.
	lookedUp bool
}

// command is a request to the attempt's goroutine.
type command struct {
	do   func(context.Context) error
	done chan error
}

type callEntry struct {
	body   [sha256.Size]byte
	cancel context.CancelCauseFunc
	done   chan struct{}
	offset int64
	err    error
}

func (r *Runner) newAttempt(key Key, n int, plan Plan, world overlay.World, pol *policies.Policy, l lease, gen int64) *attempt {
	idle := make(chan struct{})
	close(idle)
	start, _ := startDigest(&plan)
	a := &attempt{
		r: r, key: key, n: n, plan: plan, world: world, policy: pol, lease: l,
		log:   r.cfg.Log.With(slog.String("run", key.Run), slog.String("episode", key.ID), slog.Int("attempt", n)),
		ready: make(chan struct{}), stop: make(chan struct{}), over: make(chan struct{}),
		commands: make(chan command), leaseMoved: make(chan struct{}, 1),
		agent: newClock(seconds(plan.Budgets.AgentS)), wall: newClock(seconds(plan.Budgets.WallS)), paused: newClock(0),
		serial: make(chan struct{}, 1), writing: make(chan struct{}, 1), breakAt: r.faultMoment(key, n),
		calls: map[int64]*callEntry{}, calledOff: map[int64]struct{}{}, ledger: newLedger(), inflight: map[*inflightCall]struct{}{}, idle: idle,
		sessions: map[string]*session{}, users: map[string]resolved{},
	}
	a.workdir = workdirOf(world)
	info := r.cfg.Launcher.Info()
	a.rec = Attempt{
		Launcher: &LauncherUsed{Name: info.Name, Runtime: info.Runtime, UserNS: info.UserNS},
		N:        n, State: Queued, Generation: gen, SpecDigest: plan.Digest,
		SampleSeed: plan.SampleSeed, Digests: Digests{Start: start}, Created: time.Now().UTC(),
	}
	return a
}

// faultMoment is the call before which the fault switch kills this attempt's sandbox.
func (r *Runner) faultMoment(key Key, n int) int64 {
	f := r.cfg.Faults
	if f == nil || n != 1 {
		return -1
	}
	// Half of the draws fall on the first calls of short episodes; those that never come
	// so far fail at their end.
	rng := rand.New(rand.NewPCG(uint64(f.Seed), uint64(seedOf(key.Run, key.ID))))
	if rng.Float64() >= f.Share {
		return -1
	}
	return rng.Int64N(4)
}

// ask asks for the attempt's end. The first to ask is heard; it reports whether that was
// this one.
func (a *attempt) ask(end End) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.askLocked(end)
}

func (a *attempt) askLocked(end End) bool {
	if a.endAsked != nil {
		return false
	}
	a.endAsked = &end
	close(a.stop)
	return true
}

func (a *attempt) state() State {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.rec.State
}

// run takes the attempt from queued to done. ctx is the runner's: it is not cancelled
// before every attempt is over.
func (a *attempt) run(ctx context.Context) {
	readyOnce := sync.OnceFunc(func() { close(a.ready) })
	defer readyOnce()
	end := a.begin(ctx)
	if end == nil {
		a.wall.start()
		readyOnce()
		a.watch(ctx)
	} else {
		a.ask(*end)
	}
	a.finish(ctx)
}

// begin brings the attempt to live; otherwise it says why not.
func (a *attempt) begin(ctx context.Context) *End {
	queued := time.Now()
	admitted := a.waitAdmission(ctx)
	a.mu.Lock()
	a.rec.Clocks.QueueS = time.Since(queued).Seconds()
	a.mu.Unlock()
	if admitted != nil {
		return admitted
	}
	// Others may have found out while this one was in the queue.
	if err := a.r.health.check(a.key.Owner, a.plan.World); err != nil {
		return &End{Status: Errored, Cause: WorldBad, Step: "setup", Evidence: []string{err.Error()}}
	}
	started := time.Now()
	if err := a.to(ctx, Starting, Lazy, nil); err != nil {
		return &End{Status: Errored, Cause: Platform, Step: "host_disk", Evidence: []string{err.Error()}}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, seconds(a.plan.Budgets.SetupS), errSetup)
	defer cancel()
	if end := a.ensureApps(ctx); end != nil {
		return end
	}
	if err := a.start(ctx); err != nil {
		a.log.Warn("episode did not start", slog.Any("error", err))
		end := storageEnd("start", err)
		return &end
	}
	a.mu.Lock()
	a.rec.Clocks.StartS = time.Since(started).Seconds()
	a.mu.Unlock()
	setup := time.Now()
	var end *End
	if a.program == nil { // else both were done ahead
		if end = a.setUp(ctx); end == nil {
			end = a.startProgram(ctx)
		}
	}
	a.r.health.note(a.key.Owner, a.plan.World, end)
	if end != nil {
		return end
	}
	err := a.to(ctx, Live, Lazy, func(rec *Attempt) {
		rec.IDs = a.ids
		rec.Ready = time.Now().UTC()
		rec.Clocks.SetupS = time.Since(setup).Seconds()
	})
	if err != nil {
		return &End{Status: Errored, Cause: Platform, Step: "host_disk", Evidence: []string{err.Error()}}
	}
	return nil
}

func (a *attempt) waitAdmission(ctx context.Context) *End {
	if !stopped(a.ticket.admitted) {
		a.r.ready.giveWay()
	}
	if b := seconds(a.plan.Budgets.QueueS); b > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, b)
		defer cancel()
	}
	for !stopped(a.ticket.admitted) {
		timer, conn := a.leaseWaits()
		select {
		case <-a.ticket.admitted:
		case <-a.stop:
		case <-ctx.Done():
			a.ask(End{
				Status: Errored, Cause: Platform, Step: "queue",
				Limit: &LimitHit{Name: "queue_s", Value: a.plan.Budgets.QueueS, Measured: a.plan.Budgets.QueueS},
			})
		case <-conn: // who is not there any more holds up nobody
			a.ask(connectionEnd())
		case <-timer.C:
			a.ttlPassed()
		case <-a.leaseMoved:
		}
		timer.Stop()
		if stopped(a.stop) {
			a.mu.Lock()
			defer a.mu.Unlock()
			return a.endAsked
		}
	}
	return nil
}

func connectionEnd() End {
	return End{Status: Expired, Cause: Client, Evidence: []string{"the client's connection closed and its grace passed"}}
}

// watch waits for whatever ends a live attempt and serves commands meanwhile.
func (a *attempt) watch(ctx context.Context) {
	for {
		timer, conn := a.leaseWaits()
		select {
		case <-a.stop:
		case <-a.sb.Done():
			a.ask(fateEnd(a.sb.Fate()))
		case <-a.wall.fired:
			a.ask(timeoutEnd("wall_s", a.plan.Budgets.WallS, a.wall.elapsed()))
		case <-a.agent.fired:
			a.ask(timeoutEnd("agent_s", a.plan.Budgets.AgentS, a.agent.elapsed()))
		case <-conn:
			a.ask(connectionEnd())
		case <-timer.C:
			a.ttlPassed()
		case <-a.leaseMoved:
		case c := <-a.commands:
			c.done <- c.do(ctx)
		}
		timer.Stop()
		select {
		case <-a.stop:
			return
		default:
		}
	}
}

// leaseWaits returns what tells that the lease has ended.
func (a *attempt) leaseWaits() (*time.Timer, <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	const never = 1000 * time.Hour
	timer := time.NewTimer(never)
	if a.lease.ttl > 0 {
		timer.Reset(max(0, time.Until(a.lease.deadline)))
	}
	if a.lease.conn != nil {
		return timer, a.lease.conn.ended
	}
	return timer, nil
}

// awaitReady waits for who asked for the attempt until it is ready.
func (a *attempt) awaitReady(ctx context.Context) error {
	a.mu.Lock()
	a.creators++
	a.mu.Unlock()
	var err error
	select {
	case <-a.ready:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.creators--; err != nil && a.creators == 0 {
		a.lease.cut(LeaseGrace)
		a.leaseChanged()
	}
	return err
}

// leaseChanged wakes the attempt's goroutine to look at its lease again.
func (a *attempt) leaseChanged() {
	select {
	case a.leaseMoved <- struct{}{}:
	default:
	}
}

// ttlPassed ends the attempt unless the deadline moved, or a call or a create that waits
// for it keeps it alive.
func (a *attempt) ttlPassed() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.lease.ttl == 0 || time.Until(a.lease.deadline) > 0 {
		return
	}
	if len(a.inflight) > 0 || a.creators > 0 {
		a.lease.renew()
		return
	}
	a.askLocked(End{Status: Expired, Cause: Client, Evidence: []string{"the lease's time to live passed without a call or keepalive"}})
}

func timeoutEnd(name string, budget float64, used time.Duration) End {
	return End{Status: Timeout, Cause: Agent, Limit: &LimitHit{Name: name, Value: budget, Measured: used.Seconds()}}
}

// fateEnd says what a sandbox's death means: the agent's doing unless there is evidence
// from outside.
func fateEnd(f sandbox.Fate) End {
	ev := []string{string(f.Kind)}
	if f.Evidence != "" {
		ev = append(ev, f.Evidence)
	}
	switch f.Kind {
	case sandbox.LauncherDied:
		return End{Status: Interrupted, Cause: Platform, Step: "launcher", Evidence: ev}
	case sandbox.Killed:
		return End{Status: Errored, Cause: Platform, Step: "killed_outside", Evidence: ev}
	case sandbox.HostOOM:
		return hostMemoryEnd(ev)
	case sandbox.GuestOOM:
		return End{Status: OOM, Cause: Agent, Evidence: ev}
	case sandbox.Stopped, sandbox.GuestDied, sandbox.GuestBroke:
	}
	return End{Status: Failed, Cause: Agent, Flags: []string{"unexplained"}, Evidence: ev}
}

// hostMemoryEnd is the end after the host's OOM killer struck an episode that was under its
// own limit.
func hostMemoryEnd(evidence []string) End {
	return End{Status: Errored, Cause: Platform, Step: "host_memory", Evidence: evidence}
}

// storageEnd is the end after the record or the store could not be written.
func storageEnd(step string, err error) End {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EIO) {
		step = "host_disk"
	}
	return End{Status: Errored, Cause: Platform, Step: step, Evidence: []string{err.Error()}}
}

// asked runs do on the attempt's goroutine, or says that the attempt has ended.
func (a *attempt) asked(ctx context.Context, do func(context.Context) error) error {
	c := command{do: do, done: make(chan error, 1)}
	select {
	case a.commands <- c:
		return <-c.done
	case <-a.stop:
		return a.endedError()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (a *attempt) endedError() *Error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return &Error{Kind: KindEpisodeEnded, Detail: fmt.Sprintf("attempt %d has ended", a.n), End: a.endAsked}
}

func (a *attempt) pause(ctx context.Context) error {
	if a.state() == Paused {
		return nil
	}
	if err := a.sb.Freeze(ctx, true); err != nil {
		return fmt.Errorf("freeze: %w", err)
	}
	a.wall.stop()
	a.agent.stop()
	a.paused.start()
	a.mu.Lock()
	for c := range a.inflight {
		c.clock.stop()
	}
	a.mu.Unlock()
	return a.to(ctx, Paused, Lazy, nil)
}

func (a *attempt) resume(ctx context.Context) error {
	if a.state() == Live {
		return nil
	}
	if err := a.to(ctx, Live, Lazy, nil); err != nil {
		return err
	}
	a.wall.start()
	a.paused.stop()
	a.mu.Lock()
	if len(a.inflight) > 0 {
		a.agent.start()
	}
	for c := range a.inflight {
		c.clock.start()
	}
	a.mu.Unlock()
	if err := a.sb.Freeze(ctx, false); err != nil {
		return fmt.Errorf("thaw: %w", err)
	}
	return nil
}
