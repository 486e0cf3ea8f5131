package runner

import (
	"context"
	"fmt"
	"time"
)

// OpenRun makes or resumes a run. Resuming raises its generation, which fences the
// driver before.
func (r *Runner) OpenRun(ctx context.Context, owner string, spec RunSpec) (Run, error) {
	if !segment.MatchString(spec.Name) {
		return Run{}, badField("name", "%q is not [A-Za-z0-9][A-Za-z0-9._:@=+~-]{0,127}", spec.Name)
	}
	if spec.Name == DefaultRun {
		return r.runOf(ctx, owner, DefaultRun)
	}
	unlock, err := r.lockKey(ctx, Key{Owner: owner, Run: spec.Name})
	if err != nil {
		return Run{}, err
	}
	defer unlock()
	run, err := r.cfg.Record.Run(ctx, owner, spec.Name)
	known := err == nil
	if err != nil && KindOf(err) != KindNotFound {
		return Run{}, fmt.Errorf("look up run: %w", err)
	}
	switch spec.Resume {
	case "", "new":
		if known {
			return Run{}, &Error{Kind: KindRunExists, Field: "name", Detail: fmt.Sprintf("run %q is known; ask to resume it or take another name", spec.Name)}
		}
	case "resume":
		if !known {
			return Run{}, notFound("no run %q to resume", spec.Name)
		}
	case "auto":
	default:
		return Run{}, badField("resume", "%q is not one of new, resume, auto", spec.Resume)
	}
	if known {
		run.Generation++
	} else {
		run = Run{Owner: owner, Name: spec.Name, Seed: spec.Seed, Generation: 1, Created: time.Now().UTC()}
	}
	if err := r.cfg.Record.SaveRun(ctx, run); err != nil {
		return Run{}, fmt.Errorf("record run: %w", err)
	}
	r.mu.Lock()
	r.runs[Key{Owner: owner, Run: spec.Name}] = run
	r.mu.Unlock()
	return run, nil
}

// Runs lists an owner's runs.
func (r *Runner) Runs(ctx context.Context, owner string) ([]Run, error) {
	return r.cfg.Record.Runs(ctx, owner)
}

// runOf finds a run. The default run is there for everybody.
func (r *Runner) runOf(ctx context.Context, owner, name string) (Run, error) {
	key := Key{Owner: owner, Run: name}
	r.mu.Lock()
	run, ok := r.runs[key]
	r.mu.Unlock()
	if ok {
		return run, nil
	}
	run, err := r.cfg.Record.Run(ctx, owner, name)
	if KindOf(err) == KindNotFound && name == DefaultRun {
		run = Run{Owner: owner, Name: DefaultRun, Generation: 1, Created: time.Now().UTC()}
		err = r.cfg.Record.SaveRun(ctx, run)
	}
	if err != nil {
		if KindOf(err) == KindNotFound {
			return Run{}, notFound("no run %q", name)
		}
		return Run{}, fmt.Errorf("look up run: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if kept, ok := r.runs[key]; ok { // a resume came in between
		return kept, nil
	}
	r.runs[key] = run
	return run, nil
}

// fence refuses a driver that another one of its run came after. 0 is not checked.
func (r *Runner) fence(ctx context.Context, key Key, generation int64) error {
	if generation == 0 || key.Run == DefaultRun {
		return nil
	}
	run, err := r.runOf(ctx, key.Owner, key.Run)
	if err != nil {
		return err
	}
	if generation != run.Generation {
		return &Error{Kind: KindFenced, Detail: fmt.Sprintf("the run was resumed: its generation is %d, not %d", run.Generation, generation)}
	}
	return nil
}
