package runner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/paddock-run/paddock/overlay"
	"github.com/paddock-run/paddock/policies"
)

// Create makes an episode or finds it, as the table in semantics section 4 says.
// Generation is that of the driver's run; 0 is not checked. It returns when the episode
// is live or has ended. When ctx ends first, the episode goes on under its lease, but one
// of kind ttl is then cut to LeaseGrace unless somebody else waits or comes: nobody else
// knows of the episode.
func (r *Runner) Create(ctx context.Context, owner string, generation int64, spec EpisodeSpec) (Created, error) {
	if spec.Run == "" {
		spec.Run = DefaultRun
	}
	if spec.ID == "" {
		if spec.Run != DefaultRun {
			return Created{}, badField("id", "is missing; only the run %q makes one up", DefaultRun)
		}
		spec.ID = "ep-" + uuid.NewString()
	}
	if err := checkSpec(&spec); err != nil {
		return Created{}, err
	}
	key := Key{Owner: owner, Run: spec.Run, ID: spec.ID}
	if err := r.fence(ctx, key, generation); err != nil {
		return Created{}, err
	}
	a, created, err := r.place(ctx, key, spec)
	if err != nil || a == nil {
		return created, err
	}
	if err := a.awaitReady(ctx); err != nil {
		return Created{}, err
	}
	if stopped(a.stop) { // it ended before it was ready: the outcome is the answer
		select {
		case <-a.over:
		case <-ctx.Done():
			return Created{}, context.Cause(ctx)
		}
	}
	created.Episode, err = r.episodeOf(ctx, a)
	return created, err
}

// place finds or starts the attempt that answers a create. A nil attempt means that the
// answer is complete.
func (r *Runner) place(ctx context.Context, key Key, spec EpisodeSpec) (*attempt, Created, error) {
	plan, world, pol, run, err := r.resolve(ctx, key, spec)
	if err != nil {
		return nil, Created{}, err
	}
	for {
		unlock, err := r.lockKey(ctx, key)
		if err != nil {
			return nil, Created{}, err
		}
		a, created, wait, err := r.placeLocked(ctx, key, run, plan, world, pol)
		unlock()
		if wait == nil {
			return a, created, err
		}
		select { // an attempt that is being superseded must be over first
		case <-wait:
		case <-ctx.Done():
			return nil, Created{}, context.Cause(ctx)
		}
	}
}

// resolve looks up what a spec names and fixes the plan.
func (r *Runner) resolve(ctx context.Context, key Key, spec EpisodeSpec) (Plan, overlay.World, *policies.Policy, Run, error) {
	fail := func(err error) (Plan, overlay.World, *policies.Policy, Run, error) {
		return Plan{}, overlay.World{}, nil, Run{}, err
	}
	run, err := r.runOf(ctx, key.Owner, key.Run)
	if err != nil {
		return fail(err)
	}
	name := spec.Policy
	if name == "" {
		name = DefaultPolicy
	}
	pol, err := r.policy(name)
	if err != nil {
		return fail(err)
	}
	world, err := r.resolveWorld(ctx, key.Owner, spec.World)
	if err != nil {
		return fail(worldErr(err))
	}
	if err := r.checkGraders(ctx, spec.Graders); err != nil {
		return fail(err)
	}
	if err := r.checkApps(key.Owner, spec.Endpoints); err != nil {
		return fail(err)
	}
	plan, err := makePlan(&spec, run, world, pol, r.cfg.Host)
	if err != nil {
		return fail(err)
	}
	if err := r.checkNetwork(&plan.Network); err != nil {
		return fail(err)
	}
	return plan, world, pol, run, nil
}

// policy is the policy of a name, if this daemon's launcher can hold it.
func (r *Runner) policy(name string) (*policies.Policy, error) {
	pol, err := r.cfg.Policies.Get(name)
	if err != nil {
		return nil, &Error{Kind: KindUnknownPolicy, Field: "policy", Detail: err.Error()}
	}
	if info := r.cfg.Launcher.Info(); pol.Runtime() != "" && !strings.HasPrefix(info.Runtime, pol.Runtime()+" ") {
		return nil, info.Lacks("the policy " + name + ", which wants " + pol.Runtime())
	}
	return pol, nil
}

// placeLocked is the table of create; the key is locked. A non-nil wait asks to try
// again once it is closed.
func (r *Runner) placeLocked(ctx context.Context, key Key, run Run, plan Plan, world overlay.World, pol *policies.Policy) (_ *attempt, _ Created, wait <-chan struct{}, err error) {
	oldPlan, all, err := r.cfg.Record.Attempts(ctx, key)
	if KindOf(err) == KindNotFound {
		a, err := r.launch(ctx, key, run, 1, plan, world, pol)
		return a, Created{}, nil, err
	}
	if err != nil {
		return nil, Created{}, nil, fmt.Errorf("look up episode: %w", err)
	}
	spec := &plan.Spec
	live := r.liveOf(key)
	if oldPlan.Digest != plan.Digest {
		if spec.OnConflict != "supersede" {
			return nil, Created{}, nil, &Error{
				Kind: KindSpecConflict, Detail: "the id is known with another spec",
				Diffs: planDiffs(&oldPlan, &plan),
			}
		}
		if live != nil {
			live.ask(End{Status: Cancelled, Cause: Client, Reason: "superseded by another spec"})
			return nil, Created{}, live.over, nil
		}
		if err := r.supersede(ctx, key, all); err != nil {
			return nil, Created{}, nil, err
		}
		a, err := r.launch(ctx, key, run, len(all)+1, plan, world, pol)
		return a, Created{}, nil, err
	}
	if live != nil {
		if stopped(live.stop) { // it is on its way to an outcome, which is the answer
			return nil, Created{}, live.over, nil
		}
		if err := live.attach(key.Owner, spec.Lease, run.Generation); err != nil {
			return nil, Created{}, nil, err
		}
		live.lead(spec.Endpoints)
		return live, Created{Kept: true}, nil, nil
	}
	return r.placeEnded(ctx, key, run, all, plan, world, pol)
}

// placeEnded is the part of the table for an episode whose last attempt has ended.
func (r *Runner) placeEnded(ctx context.Context, key Key, run Run, all []Attempt, plan Plan, world overlay.World, pol *policies.Policy) (_ *attempt, _ Created, wait <-chan struct{}, err error) {
	last := &all[len(all)-1]
	spec := &plan.Spec
	resumed := run.Name == DefaultRun || run.Generation > last.Generation
	made := 0 // attempts of this very spec
	for i := range all {
		if all[i].SpecDigest == plan.Digest {
			made++
		}
	}
	void := last.End != nil && last.End.Cause != Agent
	switch {
	case retryable(last.End, resumed) && made > spec.Retries && spec.Attempt != "next":
		return nil, Created{}, nil, &Error{
			Kind: KindAttemptsExhausted, Attempts: all, End: last.End,
			Detail: fmt.Sprintf("%d attempts were made and retries is %d", made, spec.Retries),
		}
	case retryable(last.End, resumed), void && spec.Attempt == "next":
		a, err := r.launch(ctx, key, run, len(all)+1, plan, world, pol)
		return a, Created{}, nil, err
	}
	ep, err := r.Get(ctx, key)
	return nil, Created{Episode: ep, Kept: true}, nil, err
}

// supersede keeps attempts as history that counts no more.
func (r *Runner) supersede(ctx context.Context, key Key, all []Attempt) error {
	for _, at := range all {
		if at.Superseded {
			continue
		}
		at.Superseded = true
		if err := r.cfg.Record.UpdateAttempt(ctx, key, at, Written); err != nil {
			return fmt.Errorf("record supersede: %w", err)
		}
	}
	return nil
}

// launch puts a new attempt on record and sets it going.
func (r *Runner) launch(ctx context.Context, key Key, run Run, n int, plan Plan, world overlay.World, pol *policies.Policy) (*attempt, error) {
	if err := r.health.check(key.Owner, plan.World); err != nil {
		return nil, err
	}
	if err := r.noteWeights(ctx, key.Owner, key.Run, plan.Spec.Weights); err != nil {
		return nil, err
	}
	plan.SampleSeed = sampleSeed(&plan.Spec, run.Seed, key.ID, n)
	l, err := r.leaseOf(key.Owner, plan.Spec.Lease)
	if err != nil {
		return nil, err
	}
	a := r.newAttempt(key, n, plan, world, pol, l, run.Generation)
	if err := r.admit(a); err != nil {
		return nil, err
	}
	kept, err := r.cfg.Record.InsertAttempt(ctx, key, plan, a.rec)
	if err != nil {
		r.forget(a)
		a.unadmit()
		r.wg.Done()
		return nil, fmt.Errorf("record attempt: %w", err)
	}
	go func() {
		defer r.wg.Done()
		a.run(r.ctx)
	}()
	// Its sandbox is made meanwhile.
	if err := kept(); err != nil {
		a.unkept.Store(true)
		a.ask(End{Status: Errored, Cause: Platform, Step: "host_disk", Evidence: []string{err.Error()}, discard: true})
		<-a.over
		return nil, fmt.Errorf("record attempt: %w", err)
	}
	return a, nil
}

// admit registers an attempt, unless the runner is closing or the queue is full.
func (r *Runner) admit(a *attempt) error {
	if made := r.ready.take(a.key.Owner, &a.plan, a.policy, a.world); made != nil {
		a.adopt(made)
		a.ticket = made.ticket // admitted already
	} else {
		t, err := r.admission.enter(a.plan.Requests, a.plan.Spec.Priority)
		if err != nil {
			return err
		}
		a.ticket = t
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.draining {
		a.unadmit()
		return &Error{Kind: KindDraining, Detail: "the daemon is shutting down", RetryAfter: 10 * time.Second}
	}
	r.live[a.key] = a
	r.wg.Add(1)
	return nil
}

// unadmit undoes admit for an attempt that is not set going.
func (a *attempt) unadmit() {
	if a.sb != nil {
		a.drop()
		return
	}
	a.r.admission.leave(a.ticket)
}

// attach hands a live attempt to whoever asks for it now: its lease and generation.
func (a *attempt) attach(owner string, s LeaseSpec, gen int64) error {
	l, err := a.r.leaseOf(owner, s)
	if err != nil {
		return err
	}
	a.mu.Lock()
	a.lease = l
	a.rec.Generation = gen
	a.mu.Unlock()
	a.leaseChanged()
	return nil
}

// lockKey serves creates and rescoring of one episode one after another.
func (r *Runner) lockKey(ctx context.Context, key Key) (unlock func(), err error) {
	for {
		r.mu.Lock()
		held, ok := r.locked[key]
		if !ok {
			mine := make(chan struct{})
			r.locked[key] = mine
			r.mu.Unlock()
			return func() {
				r.mu.Lock()
				delete(r.locked, key)
				r.mu.Unlock()
				close(mine)
			}, nil
		}
		r.mu.Unlock()
		select {
		case <-held:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func (r *Runner) liveOf(key Key) *attempt {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.live[key]
}

func (r *Runner) forget(a *attempt) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.live[a.key] == a {
		delete(r.live, a.key)
	}
}

// liveAttempt finds the attempt that a call or finish is for. n 0 is the live one.
func (r *Runner) liveAttempt(ctx context.Context, key Key, n int) (*attempt, error) {
	a := r.liveOf(key)
	if a != nil && (n == 0 || n == a.n) {
		return a, nil
	}
	_, all, err := r.cfg.Record.Attempts(ctx, key)
	if err != nil {
		return nil, err
	}
	last := all[len(all)-1]
	if n > last.N {
		return nil, notFound("no attempt %d of %q", n, key.ID)
	}
	if n != 0 && n < last.N {
		return nil, &Error{Kind: KindSuperseded, Detail: fmt.Sprintf("attempt %d was followed by attempt %d", n, last.N), End: all[n-1].End}
	}
	return nil, &Error{Kind: KindEpisodeEnded, Detail: fmt.Sprintf("attempt %d has ended", last.N), End: last.End}
}

// attemptOf is one attempt as recorded; n 0 is the last.
func (r *Runner) attemptOf(ctx context.Context, key Key, n int) (Attempt, error) {
	_, all, err := r.cfg.Record.Attempts(ctx, key)
	if err != nil {
		return Attempt{}, err
	}
	if n == 0 {
		return all[len(all)-1], nil
	}
	i := slices.IndexFunc(all, func(at Attempt) bool { return at.N == n })
	if i < 0 {
		return Attempt{}, notFound("no attempt %d of %q", n, key.ID)
	}
	return all[i], nil
}

// reconcile puts the record in order after a crash: what it calls unfinished is not
// running, whatever it says, for the sandboxes died with the daemon that held them.
func (r *Runner) reconcile(ctx context.Context) error {
	left, err := r.cfg.Record.Unfinished(ctx)
	if err != nil {
		return fmt.Errorf("look for unfinished episodes: %w", err)
	}
	var pending []Stored
	for _, s := range left {
		at := s.Attempt
		if at.End == nil {
			at.End = &End{
				Status: Interrupted, Cause: Platform, Step: string(at.State),
				Evidence: []string{"the daemon ended while the episode was " + string(at.State)},
			}
			at.State, at.EndedAt, at.DoneAt = Done, time.Now().UTC(), time.Now().UTC()
		} else if at.State = Ended; at.End.Cause != Agent || len(at.Scores) > 0 || !r.hasGraders(ctx, s.Key, at.N) {
			at.State = Done
		}
		if err := r.cfg.Record.UpdateAttempt(ctx, s.Key, at, Written); err != nil {
			return fmt.Errorf("record interrupted episode: %w", err)
		}
		if at.State == Ended {
			pending = append(pending, Stored{Key: s.Key, Attempt: at})
		}
		r.cfg.Log.Info("episode put in order", slog.String("run", s.Key.Run), slog.String("episode", s.Key.ID), slog.String("state", string(at.State)))
	}
	if len(pending) > 0 {
		r.wg.Go(func() { r.scoreLeft(r.ctx, pending) })
	}
	return nil
}

func (r *Runner) hasGraders(ctx context.Context, key Key, n int) bool {
	p, err := r.cfg.Record.Plan(ctx, key, n)
	return err == nil && len(p.Spec.Graders) > 0
}

func stopped(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

var errClosed = errors.New("runner is closed")
