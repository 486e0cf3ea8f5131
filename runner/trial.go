package runner

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/paddock-run/paddock/policies"
	"github.com/paddock-run/paddock/sandbox"
)

// Bounds of a trial.
const (
	// MaxTrialFiles bounds the files of one trial, MaxTrialBytes what they come to, stdin
	// included.
	MaxTrialFiles = 10_000
	MaxTrialBytes = 64 << 20
	// MaxTrialOutput bounds, and is by default, what stdout and stderr may each have.
	MaxTrialOutput = 64 << 20
	// MaxTrialSaid bounds what is kept of a trial's descriptor 3.
	MaxTrialSaid = 16 << 20
	// maxTrialQueue bounds the trials that wait for their turn.
	maxTrialQueue = 20_000
	// trialsPerCPU is how many trials run at once for each CPU of the host: more than one,
	// since part of each is waiting for the kernel to make and unmake its sandbox.
	trialsPerCPU = 16
)

// Ground is what trials run on: a world, and what was prepared on it. It pins the world
// until Close. Its methods may be called from any goroutine.
type Ground struct {
	r      *Runner
	fork   Fork
	policy *policies.Policy
	layer  *Prepared // nil is none

	mu     sync.Mutex
	closed bool
}

// Prepared is what one trial left, sealed as a layer on its world. It pins nothing: it
// stays good for as long as a world of that id is there. Remove is the owner's to call,
// when no Ground stands on it.
type Prepared struct {
	world string
	bytes int64
	dir   *scratchDir
}

// Bytes is what the files of it come to.
func (p *Prepared) Bytes() int64 { return p.bytes }

// World is the id of the world that it was prepared on.
func (p *Prepared) World() string { return p.world }

// Remove deletes it.
func (p *Prepared) Remove() { p.dir.remove() }

// TrialSpec is one program that runs in a sandbox of its own, which is thrown away
// afterwards. Nothing of a trial is on record: what it is for keeps what it needs.
type TrialSpec struct {
	// Files are written before the program starts, in Dir unless their path is absolute.
	Files map[string]GraderFile
	// Dir is the working directory, made when it is not there; clean, absolute, not /.
	Dir  string
	Argv []string
	// Env adds to the policy's and the world's environment.
	Env   map[string]string
	Stdin []byte
	// Limits are CPUs, MemoryBytes, DiskBytes, Inodes and Pids as of an episode, CPUSeconds
	// of the program, and OutputBytes of stdout and of stderr, each; 0 is the default.
	// Calls is not read.
	Limits Limits
	// WallS bounds the program's wall time, in seconds; 0 is DefaultCallS.
	WallS float64
	// Fetch are files to read back, in Dir unless absolute. What is no regular file in the
	// end, or is too large, is not in the result.
	Fetch []string
	// Said asks for what the program writes to descriptor 3.
	Said bool
	// Patience bounds the wait for a turn; when it passes, the trial is refused as
	// KindOverCapacity. 0 is no bound.
	Patience time.Duration
	// Drop are absolute paths that Prepare removes before it seals.
	Drop []string
}

// TrialResult is how a trial ended: always a value, whatever the program did.
type TrialResult struct {
	Exit sandbox.Exit
	// Limits are the effective ones, all set but for CPUSeconds.
	Limits Limits
	WallS  float64
	Stdout []byte
	Stderr []byte
	// Flooded: a stream passed its limit, which ended the program; it holds the beginning.
	Flooded bool
	Said    []byte
	Fetched map[string][]byte
	// NoSpace: the files of the trial did not fit its disk, so that nothing was run.
	NoSpace bool
}

// OK says whether the program exited by itself with code 0, within its limits.
func (t *TrialResult) OK() bool {
	return !t.NoSpace && !t.Flooded && t.Exit.Code != nil && *t.Exit.Code == 0
}

// GroundSpec says what to run trials on.
type GroundSpec struct {
	World string
	// Policy is DefaultPolicy unless set.
	Policy string
	// On is a layer prepared on this world, nil for none.
	On *Prepared
}

// Ground pins a world, to run trials on it.
func (r *Runner) Ground(ctx context.Context, spec GroundSpec) (*Ground, error) {
	if spec.World == "" {
		return nil, badField("world", "is missing")
	}
	name := spec.Policy
	if name == "" {
		name = DefaultPolicy
	}
	pol, err := r.policy(name)
	if err != nil {
		return nil, err
	}
	world, err := r.cfg.Worlds.World(ctx, spec.World)
	if err != nil {
		return nil, worldErr(err)
	}
	if spec.On != nil && spec.On.world != world.ID {
		return nil, fmt.Errorf("a layer prepared on world %s does not go on %s", spec.On.world, world.ID)
	}
	fork, err := r.cfg.Worlds.Fork(ctx, world.ID)
	if err != nil {
		return nil, worldErr(err)
	}
	return &Ground{r: r, fork: fork, policy: pol, layer: spec.On}, nil
}

// World is the world's id.
func (g *Ground) World() string { return g.fork.World().ID }

// Close lets go of the world; it may be called again. No trial may be running.
func (g *Ground) Close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closed {
		g.closed = true
		g.fork.Release()
	}
}

// Try runs one trial in a fresh fork. An error is a refused spec (*Error), a full queue, or
// paddock's own failure, which was tried again first; it never says anything about the program.
func (g *Ground) Try(ctx context.Context, spec TrialSpec) (TrialResult, error) {
	res, _, err := g.run(ctx, spec, false)
	return res, err
}

// Prepare runs one trial and, when it is OK, seals what it left as a layer for other
// grounds; else the layer is nil. It works on a bare world alone.
func (g *Ground) Prepare(ctx context.Context, spec TrialSpec) (TrialResult, *Prepared, error) {
	if g.layer != nil {
		return TrialResult{}, nil, errors.New("prepare: there is a prepared layer already")
	}
	return g.run(ctx, spec, true)
}

func (g *Ground) run(ctx context.Context, spec TrialSpec, seal bool) (TrialResult, *Prepared, error) {
	t := &trial{g: g, spec: spec, seal: seal}
	if err := t.check(); err != nil {
		return TrialResult{}, nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(g.r.ctx, func() { cancel(errClosed) }) //nolint:contextcheck // the runner's end is the trial's too
	defer stop()
	turn, err := g.r.trials.enter(ctx, g.r, spec.Patience)
	if err != nil {
		return TrialResult{}, nil, err
	}
	defer turn.done()
	var failed error
	for range maxPlatformTries {
		res, prepared, err := t.once(ctx, turn)
		if err == nil {
			return res, prepared, nil
		}
		if failed = err; ctx.Err() != nil {
			return TrialResult{}, nil, context.Cause(ctx)
		}
	}
	return TrialResult{}, nil, failed
}

// trialQueue hands out turns to trials, so that the wall clock of one is not spent waiting
// for all the others.
type trialQueue struct {
	gate    gate
	waiting atomic.Int64
}

func newTrialQueue(host policies.Host) trialQueue {
	return trialQueue{gate: newGate(trialsPerCPU * int(max(1, host.CPUs)))}
}

// turn is a place among the running trials. It is given back by the last of the trial and
// of the clearing away behind it.
type turn struct {
	r      *Runner
	ticket *ticket
	holds  atomic.Int64
	leave  func()
}

func (q *trialQueue) enter(ctx context.Context, r *Runner, patience time.Duration) (*turn, error) {
	if patience > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, patience, &Error{
			Kind: KindOverCapacity, Detail: fmt.Sprintf("no turn came within %v", patience), RetryAfter: time.Second,
		})
		defer cancel()
	}
	if q.waiting.Add(1) > maxTrialQueue {
		q.waiting.Add(-1)
		return nil, &Error{Kind: KindOverCapacity, Detail: "the queue of trials is full", RetryAfter: 5 * time.Second}
	}
	defer q.waiting.Add(-1)
	leave, err := q.gate.acquire(ctx)
	if err != nil {
		return nil, err
	}
	ticket, err := r.admission.enter(requestsOf(Requests{}, r.cfg.Host), 0)
	if err != nil {
		leave()
		return nil, err
	}
	if !ticket.wait(ctx) {
		r.admission.leave(ticket)
		leave()
		return nil, context.Cause(ctx)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.draining {
		r.admission.leave(ticket)
		leave()
		return nil, &Error{Kind: KindDraining, Detail: "the daemon is shutting down", RetryAfter: 10 * time.Second}
	}
	r.wg.Add(1)
	t := &turn{r: r, ticket: ticket, leave: leave}
	t.holds.Store(1)
	return t, nil
}

func (t *turn) hold() { t.holds.Add(1) }

func (t *turn) done() {
	if t.holds.Add(-1) == 0 {
		t.r.admission.leave(t.ticket)
		t.leave()
		t.r.wg.Done()
	}
}
