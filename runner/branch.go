package runner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/paddock-run/paddock/overlay"
)

// MaxBranches bounds the episodes that one Branch makes.
const MaxBranches = 256

// BranchSpec asks for new episodes that go on from a live one's files.
type BranchSpec struct {
	// IDs name the new episodes, in the run of the old one.
	IDs []string
	// Attempt is the old one's; 0 is the live one.
	Attempt    int
	Generation int64
}

// Branch is what became of a BranchSpec.
type Branch struct {
	// World is the sealed state that the new episodes stand on.
	World    string
	Episodes []Created
}

// BranchOf says from which moment of which episode another one goes on.
type BranchOf struct {
	ID      string `json:"id"`
	Attempt int    `json:"attempt"`
	// Calls is how many calls had been recorded.
	Calls int64 `json:"calls"`
}

// Branch seals the files of a live episode as they are now, processes held still meanwhile,
// into a world of their own, and makes episodes on it with the old one's spec. The old one
// goes on. Only files are taken along: no process, no memory, and a world's set-up is not
// run again. Each new episode is like any other: it can be retried, scored and branched.
func (r *Runner) Branch(ctx context.Context, key Key, spec BranchSpec) (Branch, error) {
	if err := checkBranch(spec); err != nil {
		return Branch{}, err
	}
	if err := r.fence(ctx, key, spec.Generation); err != nil {
		return Branch{}, err
	}
	a, err := r.liveAttempt(ctx, key, spec.Attempt)
	if err != nil {
		return Branch{}, err
	}
	select {
	case <-a.ready:
	case <-ctx.Done():
		return Branch{}, context.Cause(ctx)
	}
	world, of, err := a.sealNow(ctx)
	if err != nil {
		return Branch{}, worldErr(err)
	}
	if err := r.hold(ctx, key.Owner, world); err != nil {
		return Branch{}, err
	}
	b := Branch{World: world.ID}
	for _, id := range spec.IDs {
		c, err := r.Create(ctx, key.Owner, spec.Generation, a.branchSpec(id, world.ID, of))
		if err != nil {
			return b, err
		}
		b.Episodes = append(b.Episodes, c)
	}
	if world.Branched >= overlay.MaxChain { // the next branch will need it
		r.wg.Go(func() { r.compactAhead(r.ctx, world.ID) })
	}
	return b, nil
}

// compactAhead merges a world's layers for the branches of the episodes that just began on
// it, which wait for it or make it themselves.
func (r *Runner) compactAhead(ctx context.Context, world string) {
	f, err := r.cfg.Worlds.Fork(ctx, world)
	if err == nil {
		err = f.Compact(ctx)
		f.Release()
	}
	if err != nil && ctx.Err() == nil {
		r.cfg.Log.Warn("merge layers ahead", slog.String("world", world), slog.Any("error", err))
	}
}

func checkBranch(spec BranchSpec) error {
	if n := len(spec.IDs); n == 0 || n > MaxBranches {
		return badField("ids", "has %d, must have 1 to %d", n, MaxBranches)
	}
	for i, id := range spec.IDs {
		if err := CheckID(fmt.Sprintf("ids/%d", i), id); err != nil {
			return err
		}
		if slices.Index(spec.IDs, id) != i {
			return badField(fmt.Sprintf("ids/%d", i), "%q is there twice", id)
		}
	}
	return nil
}

func (a *attempt) sealNow(ctx context.Context) (w overlay.World, of BranchOf, err error) {
	config := a.world.Config
	config.Setup = nil                          // its work is in the files
	if err := a.fork.Compact(ctx); err != nil { // now, and not while the processes are held still
		return w, of, err
	}
	err = a.asked(ctx, func(ctx context.Context) error {
		a.mu.Lock()
		of = BranchOf{ID: a.key.ID, Attempt: a.n, Calls: a.rec.Calls}
		a.mu.Unlock()
		return a.heldStill(ctx, func() error {
			var err error
			w, err = a.fork.Seal(ctx, overlay.SealInput{
				Upper: a.sb.Upper(), HostID: a.ids.HostID, Config: config, Recipe: "branch", Harmless: true, Branch: true,
			})
			return err
		})
	})
	return w, of, err
}

// heldStill freezes the episode's processes while do looks at its files. It is for the
// attempt's goroutine.
func (a *attempt) heldStill(ctx context.Context, do func() error) error {
	if a.state() == Paused {
		return do()
	}
	if err := a.sb.Freeze(ctx, true); err != nil {
		return fmt.Errorf("freeze: %w", err)
	}
	err := do()
	return errors.Join(err, a.sb.Freeze(context.WithoutCancel(ctx), false))
}

// branchSpec is the spec of an episode that goes on from this one. The environment's seed
// stays, since the files were made with it; the sample's is the new id's own.
func (a *attempt) branchSpec(id, world string, of BranchOf) EpisodeSpec {
	s := a.plan.Spec
	seed := a.plan.EnvSeed
	s.ID, s.World, s.EnvSeed, s.SampleSeed = id, world, &seed, nil
	s.OnConflict, s.Attempt, s.BranchOf = "", "", &of
	return s
}
