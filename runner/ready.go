package runner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/paddock-run/paddock/overlay"
	"github.com/paddock-run/paddock/policies"
)

// readyIdle is how long a shelf is kept full after it was last used.
const readyIdle = 5 * time.Minute

// MaxReady bounds the sandboxes that one KeepReady may ask for.
const MaxReady = 1024

// Ready is what KeepReady has made.
type Ready struct {
	// Hello is what the program said when it was ready, in the first sandbox that was made.
	Hello Frame
	// Wanted is how many sandboxes are kept, Made how many are there now.
	Wanted, Made int
}

// readiness holds sandboxes that were made ahead: world mounted, program started and
// ready, no episode yet. A sandbox is handed to one episode and never comes back, so an
// episode from the shelf has met no other, and its program has been told nothing.
type readiness struct {
	r *Runner

	mu      sync.Mutex
	closed  bool
	shelves map[string]*readyShelf
}

// readyShelf is the sandboxes of one kind, with one program.
type readyShelf struct {
	all         *readiness
	name, world string
	// made are episodes that were not born: attempts without a key or record, which hold a
	// sandbox.
	made   []*attempt
	want   int
	making bool
	used   time.Time
	idle   *time.Timer
	model  func() *attempt
	hello  Frame
}

// KeepReady keeps n sandboxes ready for episodes like spec, whose Prepare must be set, and
// returns when one was made, whose program's first message is in the answer. They are
// remade as episodes take them, given up for other episodes when the host is full, and let
// go when none was taken for five minutes; to call it again takes them up anew. With n = 0
// one is made and thrown away. A program that does not get ready is prepare_failed.
//
// A world with a set-up of its own, which may look at the seed, is not prepared ahead.
func (r *Runner) KeepReady(ctx context.Context, owner string, spec EpisodeSpec, n int) (Ready, error) {
	if n < 0 || n > MaxReady {
		return Ready{}, badField("ready", "%d is not in 0 to %d", n, MaxReady)
	}
	plan, world, pol, name, err := r.readyPlan(ctx, owner, spec)
	if err != nil {
		return Ready{}, err
	}
	if len(world.Config.Setup) > 0 {
		n = 0
	}
	model := func() *attempt {
		return r.newAttempt(Key{Owner: owner}, 0, plan, world, pol, lease{}, 0)
	}
	s := r.ready.shelf(name, world.ID, n, model)
	if s == nil {
		return Ready{}, errDraining()
	}
	hello, err := s.first(ctx)
	if err != nil {
		return Ready{}, err
	}
	s.fill()
	r.ready.mu.Lock()
	defer r.ready.mu.Unlock()
	return Ready{Hello: hello, Wanted: s.want, Made: len(s.made)}, nil
}

// CountReady is how many sandboxes are ready for episodes like spec. Looking keeps none.
func (r *Runner) CountReady(ctx context.Context, owner string, spec EpisodeSpec) (int, error) {
	_, _, _, name, err := r.readyPlan(ctx, owner, spec)
	if err != nil {
		return 0, err
	}
	r.ready.mu.Lock()
	defer r.ready.mu.Unlock()
	if s := r.ready.shelves[name]; s != nil {
		return len(s.made), nil
	}
	return 0, nil
}

// readyPlan is what sandboxes for episodes like spec are made from, and their shelf.
func (r *Runner) readyPlan(ctx context.Context, owner string, spec EpisodeSpec) (Plan, overlay.World, *policies.Policy, string, error) {
	fail := func(err error) (Plan, overlay.World, *policies.Policy, string, error) {
		return Plan{}, overlay.World{}, nil, "", err
	}
	if spec.Run == "" {
		spec.Run = DefaultRun
	}
	if spec.ID == "" {
		spec.ID = "ready"
	}
	if err := checkSpec(&spec); err != nil {
		return fail(err)
	}
	if spec.Prepare == nil {
		return fail(badField("prepare", "is missing"))
	}
	plan, world, pol, _, err := r.resolve(ctx, Key{Owner: owner, Run: spec.Run, ID: spec.ID}, spec)
	if err != nil {
		return fail(err)
	}
	name, err := shelfName(owner, &plan, pol, world)
	if err != nil {
		return fail(err)
	}
	return plan, world, pol, name, nil
}

// shelfName covers everything that a ready sandbox is made from.
func shelfName(owner string, p *Plan, pol *policies.Policy, world overlay.World) (string, error) {
	l := p.Limits
	return digestOf(map[string]any{
		"owner": owner, "world": p.World, "policy": p.PolicyHash, "prepare": p.Spec.Prepare,
		"limits":   []any{l.CPUs, l.MemoryBytes, l.DiskBytes, l.Inodes, l.Pids},
		"requests": p.Requests, "listen": p.Network.ports(), "env": seedless(p, pol, world.Config.Env),
	})
}

// shelf finds or makes a shelf and sets what it is to hold; nil after the close.
func (all *readiness) shelf(name, world string, n int, model func() *attempt) *readyShelf {
	all.mu.Lock()
	defer all.mu.Unlock()
	if all.closed {
		return nil
	}
	s := all.shelves[name]
	if s == nil {
		s = &readyShelf{all: all, name: name, world: world}
		all.shelves[name] = s
	}
	s.model = model
	s.want = n
	s.usedLocked()
	return s
}

// usedLocked puts the end of the shelf off.
func (s *readyShelf) usedLocked() {
	s.used = time.Now()
	if s.idle == nil {
		s.idle = time.AfterFunc(readyIdle, s.expire)
	}
}

// expire empties a shelf that nobody has used for long.
func (s *readyShelf) expire() {
	s.all.mu.Lock()
	if left := readyIdle - time.Since(s.used); left > 0 && !s.all.closed {
		s.idle.Reset(left)
		s.all.mu.Unlock()
		return
	}
	s.idle, s.want = nil, 0
	if s.all.shelves[s.name] == s && !s.making {
		delete(s.all.shelves, s.name)
	}
	drop := s.made
	s.made = nil
	s.all.mu.Unlock()
	dropAll(drop)
}

// first returns the program's first message, from a sandbox that it makes when the shelf
// is empty.
func (s *readyShelf) first(ctx context.Context) (Frame, error) {
	s.all.mu.Lock()
	if len(s.made) > 0 {
		defer s.all.mu.Unlock()
		return s.hello, nil
	}
	if s.all.closed {
		s.all.mu.Unlock()
		return Frame{}, errDraining()
	}
	model := s.model
	s.all.r.wg.Add(1)
	s.all.mu.Unlock()
	defer s.all.r.wg.Done()
	a, err := s.all.raise(ctx, model())
	if err != nil {
		return Frame{}, err
	}
	hello := a.program.hello
	if !s.put(a, hello) {
		a.drop()
	}
	return hello, nil
}

// put adds a sandbox unless the shelf has enough, or an episode waits for its capacity.
func (s *readyShelf) put(a *attempt, hello Frame) bool {
	s.all.mu.Lock()
	defer s.all.mu.Unlock()
	s.hello = hello
	if s.all.closed || len(s.made) >= s.want || s.all.r.admission.busy() {
		return false
	}
	s.made = append(s.made, a)
	return true
}

// fill makes what the shelf lacks, in the background and one after another: what makes
// them takes CPU from the episodes.
func (s *readyShelf) fill() {
	s.all.mu.Lock()
	defer s.all.mu.Unlock()
	if s.making || s.all.closed || len(s.made) >= s.want {
		return
	}
	s.making = true
	s.all.r.wg.Go(func() {
		for s.one() {
		}
	})
}

// one makes one sandbox and says whether to go on.
func (s *readyShelf) one() bool {
	all := s.all
	all.mu.Lock()
	if all.closed || len(s.made) >= s.want {
		s.making = false
		all.mu.Unlock()
		return false
	}
	model := s.model
	all.mu.Unlock()
	a, err := all.raise(all.r.ctx, model())
	if err == nil && s.put(a, a.program.hello) {
		return true
	}
	if err == nil {
		a.drop()
	} else {
		all.r.cfg.Log.Warn("prepare ahead", slog.Any("error", err))
	}
	all.mu.Lock()
	defer all.mu.Unlock()
	s.making = false // the next use tries again
	return false
}

// raise takes an attempt without an episode to where its program is ready. Capacity that
// is not there at once is left to the episodes.
func (all *readiness) raise(ctx context.Context, a *attempt) (*attempt, error) {
	t, err := all.r.admission.enter(a.plan.Requests, minPriority)
	if err != nil {
		return nil, err
	}
	a.ticket = t
	select {
	case <-t.admitted:
	default:
		all.r.admission.leave(t)
		return nil, &Error{Kind: KindOverCapacity, Detail: "the host is full", RetryAfter: 5 * time.Second}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, seconds(a.plan.Budgets.SetupS), errSetup)
	defer cancel()
	if err = a.takeBox(); err == nil {
		err = a.fillAhead(ctx)
	}
	if err != nil {
		a.drop()
		return nil, err
	}
	end := a.setUp(ctx)
	if end == nil {
		end = a.startProgram(ctx)
	}
	if end == nil {
		return a, nil
	}
	a.drop()
	if end.Cause == WorldBad {
		return nil, &Error{Kind: KindPrepareFailed, Detail: fmt.Sprintf("%s: %q", end.Step, end.Evidence)}
	}
	return nil, fmt.Errorf("prepare: %s: %q", end.Step, end.Evidence)
}

// fillAhead makes the sandbox. What was begun is finished whoever goes away, so that it can
// be ended.
func (a *attempt) fillAhead(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stockPatience)
	defer cancel()
	return a.fillBox(ctx)
}

// minPriority is behind every episode.
const minPriority = -1 << 31

// drop gives back everything that an attempt without an episode holds.
func (a *attempt) drop() {
	if a.program != nil {
		a.program.proc.Kill()
	}
	a.letGo()
	a.release()
}

func dropAll(list []*attempt) {
	for _, a := range list {
		a.drop()
	}
}

// take hands out a ready sandbox for an episode; nil where there is none.
func (all *readiness) take(owner string, plan *Plan, pol *policies.Policy, world overlay.World) *attempt {
	if plan.Spec.Prepare == nil {
		return nil
	}
	name, err := shelfName(owner, plan, pol, world)
	if err != nil {
		return nil
	}
	var dead []*attempt
	defer func() { dropAll(dead) }()
	all.mu.Lock()
	s := all.shelves[name]
	if s == nil {
		all.mu.Unlock()
		return nil
	}
	s.usedLocked()
	var got *attempt
	for got == nil && len(s.made) > 0 {
		one := s.made[0]
		s.made = slices.Delete(s.made, 0, 1)
		if _, gone := one.fate(); gone || one.program.gone() != nil {
			dead = append(dead, one)
			continue
		}
		got = one
	}
	all.mu.Unlock()
	s.fill()
	return got
}

// adopt takes over what an attempt without an episode has made.
func (a *attempt) adopt(made *attempt) {
	a.fork, a.ids, a.sb, a.sandbox, a.tracker = made.fork, made.ids, made.sb, made.sandbox, made.tracker
	a.program, a.users = made.program, made.users
	a.program.owner.Store(a)
}

// giveWay drops all that is ready, for episodes that wait for capacity.
func (all *readiness) giveWay() {
	all.mu.Lock()
	var drop []*attempt
	for _, s := range all.shelves {
		drop = append(drop, s.made...)
		s.made = nil
	}
	all.mu.Unlock()
	dropAll(drop)
}

// forget drops what is ready of a world: somebody wants to remove it.
func (all *readiness) forget(world string) {
	all.mu.Lock()
	var drop []*attempt
	for name, s := range all.shelves {
		if s.world == world {
			drop = append(drop, s.made...)
			s.made, s.want = nil, 0
			delete(all.shelves, name)
		}
	}
	all.mu.Unlock()
	dropAll(drop)
}

// close drops all that is ready; nothing is made any more.
func (all *readiness) close() {
	all.mu.Lock()
	all.closed = true
	for _, s := range all.shelves {
		if s.idle != nil {
			s.idle.Stop()
		}
	}
	all.mu.Unlock()
	all.giveWay()
}

func errDraining() *Error {
	return &Error{Kind: KindDraining, Detail: "the daemon is shutting down", RetryAfter: 10 * time.Second}
}

var errSetup = errors.New("setup budget passed")
