package runner

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
)

// CreateBatch starts a batch. It is refused whole when one of its lines is wrong.
func (r *Runner) CreateBatch(ctx context.Context, owner string, spec BatchSpec) (Batch, error) {
	if err := checkBatch(&spec); err != nil {
		return Batch{}, err
	}
	digest, err := digestOf(spec)
	if err != nil {
		return Batch{}, badField("episodes", "%v", err)
	}
	if spec.ID == "" {
		spec.ID = "b-" + uuid.NewString()[:13]
	}
	unlock, err := r.lockBatch(ctx, owner, spec.ID)
	if err != nil {
		return Batch{}, err
	}
	defer unlock()
	if err := r.fence(ctx, Key{Owner: owner, Run: spec.Run}, spec.Generation); err != nil {
		return Batch{}, err
	}
	if kept, err := r.loadBatch(ctx, owner, spec.ID); err == nil {
		if kept.Digest != digest {
			return Batch{}, &Error{Kind: KindSpecConflict, Field: "id", Detail: "the batch is known with another spec"}
		}
		return r.Batch(ctx, owner, spec.ID)
	} else if KindOf(err) != KindNotFound {
		return Batch{}, err
	}
	if spec.Generation == 0 {
		if _, err := r.OpenRun(ctx, owner, RunSpec{Name: spec.Run, Seed: spec.Seed, Resume: "auto"}); err != nil {
			return Batch{}, err
		}
	}
	lines, err := r.newLines(ctx, owner, spec.Run, spec.Episodes)
	if err != nil {
		return Batch{}, err
	}
	if err := r.noteLines(ctx, owner, spec.Run, lines); err != nil {
		return Batch{}, err
	}
	spec.Episodes = nil
	kept := keptBatch{Spec: spec, Digest: digest, Batch: Batch{
		ID: spec.ID, Owner: owner, Run: spec.Run, State: BatchRunning, Sealed: !spec.Open, Created: time.Now().UTC(),
	}}
	kept.Batch.rules(&spec)
	if _, err := r.putLines(ctx, &kept, lines); err != nil {
		return Batch{}, err
	}
	kept.Lines = len(lines)
	return r.startBatch(ctx, kept)
}

// rules tells a batch's effective rules.
func (b *Batch) rules(s *BatchSpec) {
	b.Parallel, b.DeadlineS, b.GroupSize, b.Take, b.OnVoid, b.MinValid = s.Parallel, s.DeadlineS, s.GroupSize, s.Take, s.OnVoid, s.MinValid
	if b.MinValid == 0 {
		b.MinValid = DefaultMinValid
	}
}

// startBatch keeps a batch and sets it going. The batch is locked.
func (r *Runner) startBatch(ctx context.Context, kept keptBatch) (Batch, error) {
	if err := r.saveBatch(ctx, &kept); err != nil {
		return Batch{}, err
	}
	if err := r.runBatch(ctx, kept); err != nil {
		return Batch{}, err
	}
	return r.Batch(ctx, kept.Batch.Owner, kept.Batch.ID)
}

// newLines are lines as they are kept, after each was looked through.
func (r *Runner) newLines(ctx context.Context, owner, run string, episodes []BatchEpisode) ([]keptLine, error) {
	lines := make([]keptLine, 0, len(episodes))
	for i := range episodes {
		e := &episodes[i]
		plan, _, _, _, err := r.resolve(ctx, Key{Owner: owner, Run: run, ID: e.ID}, e.EpisodeSpec)
		if err != nil {
			return nil, inLine(i, err)
		}
		digest, err := digestOf([]any{plan.Digest, e.Agent})
		if err != nil {
			return nil, inLine(i, badField("agent", "%v", err))
		}
		lines = append(lines, keptLine{Line: *e, Digest: digest})
	}
	return lines, nil
}

// noteLines remembers the weights of lines that are taken as used.
func (r *Runner) noteLines(ctx context.Context, owner, run string, lines []keptLine) error {
	for i := range lines {
		if err := r.noteWeights(ctx, owner, run, lines[i].Line.Weights); err != nil {
			return err
		}
	}
	return nil
}

// Added is what came of adding lines: Known ones had been added before.
type Added struct {
	Added int
	Known int
	Batch Batch
}

// AddToBatch adds lines to an open batch, all of them or none. A line that is there
// already, the same in everything that decides its result, is known and stays as it is;
// another one under its id is a spec_conflict, unless its OnConflict is "supersede". Lines
// of a batch that does not run are taken up when it is resumed. Generation is the driver's;
// 0 is not checked.
func (r *Runner) AddToBatch(ctx context.Context, owner, id string, generation int64, episodes []BatchEpisode) (Added, error) {
	var added Added
	err := r.changeBatch(ctx, owner, id, generation, func(b *liveBatch) error {
		if err := checkLines(&b.kept.Spec, episodes); err != nil {
			return err
		}
		lines, err := r.newLines(ctx, owner, b.kept.Batch.Run, episodes)
		if err != nil {
			return err
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		fresh, err := b.freshLocked(ctx, lines)
		if err != nil {
			return err
		}
		added.Added, added.Known = len(fresh), len(lines)-len(fresh)
		if len(fresh) == 0 {
			return nil
		}
		if err := b.takesLocked(len(fresh)); err != nil {
			return err
		}
		if err := r.noteLines(ctx, owner, b.kept.Batch.Run, fresh); err != nil {
			return err
		}
		return b.enterLocked(ctx, fresh)
	})
	if err != nil {
		return Added{}, err
	}
	added.Batch, err = r.Batch(ctx, owner, id)
	return added, err
}

// changeBatch locks a batch and lets change act on it, running or not.
func (r *Runner) changeBatch(ctx context.Context, owner, id string, generation int64, change func(*liveBatch) error) error {
	unlock, err := r.lockBatch(ctx, owner, id)
	if err != nil {
		return err
	}
	defer unlock()
	for {
		live := r.liveBatch(owner, id)
		if live == nil {
			break
		}
		if err := r.fence(ctx, Key{Owner: owner, Run: live.kept.Batch.Run}, generation); err != nil {
			return err
		}
		if !live.ending() {
			return change(live)
		}
		select {
		case <-live.over:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	kept, err := r.loadBatch(ctx, owner, id)
	if err != nil {
		return err
	}
	if err := r.fence(ctx, Key{Owner: owner, Run: kept.Batch.Run}, generation); err != nil {
		return err
	}
	b, err := r.openBatch(ctx, kept)
	if err != nil {
		return err
	}
	return change(b)
}

// ending says that a batch takes nothing any more: its end is being recorded.
func (b *liveBatch) ending() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.finished
}

// freshLocked are the lines that are not there yet.
func (b *liveBatch) freshLocked(ctx context.Context, lines []keptLine) ([]keptLine, error) {
	var fresh []keptLine
	for i := range lines {
		line := &lines[i]
		m := b.book.byID[line.Line.ID]
		supersede := line.Line.OnConflict == "supersede"
		switch {
		case m != nil && m.digest == line.Digest:
			continue
		case m != nil && !supersede:
			return nil, inLine(i, b.conflictLocked(ctx, m, line))
		case m == nil:
			if err := b.r.unclaimed(ctx, b.key(&line.Line), line.Line.EpisodeSpec); err != nil {
				return nil, inLine(i, err)
			}
			if g := b.book.byName[groupName(&line.Line)]; g != nil && g.seq != 0 {
				return nil, inLine(i, &Error{Kind: KindNotLive, Field: "group", Detail: fmt.Sprintf(
					"group %q is complete; add a group's lines at once, or give the batch a group_size", g.name)})
			}
		}
		fresh = append(fresh, *line)
	}
	return fresh, nil
}

// conflictLocked says where a line differs from the one that has its id.
func (b *liveBatch) conflictLocked(ctx context.Context, m *member, line *keptLine) error {
	conflict := &Error{Kind: KindSpecConflict, Field: "id", Detail: fmt.Sprintf("%q is in the batch with another spec", m.id)}
	old, err := b.lineLocked(ctx, m)
	if err != nil {
		return err
	}
	key := b.key(&line.Line)
	oldPlan, _, _, _, err := b.r.resolve(ctx, key, old.Line.EpisodeSpec)
	if err != nil {
		return conflict //nolint:nilerr // what it named is gone, so there is nothing to compare
	}
	plan, _, _, _, err := b.r.resolve(ctx, key, line.Line.EpisodeSpec)
	if err != nil {
		return err
	}
	conflict.Diffs = planDiffs(&oldPlan, &plan)
	if len(conflict.Diffs) == 0 {
		conflict.Diffs = []Diff{{Pointer: "/agent", Old: mustTree(old.Line.Agent), New: mustTree(line.Line.Agent)}}
	}
	return conflict
}

// unclaimed says that no episode of the run has the id with another spec.
func (r *Runner) unclaimed(ctx context.Context, key Key, spec EpisodeSpec) error {
	if spec.OnConflict == "supersede" {
		return nil
	}
	old, _, err := r.cfg.Record.Attempts(ctx, key)
	if KindOf(err) == KindNotFound {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look up episode: %w", err)
	}
	plan, _, _, _, err := r.resolve(ctx, key, spec)
	if err != nil {
		return err
	}
	if old.Digest != plan.Digest {
		return &Error{
			Kind: KindSpecConflict, Field: "id", Detail: fmt.Sprintf("%q is known in the run with another spec", key.ID),
			Diffs: planDiffs(&old, &plan),
		}
	}
	return nil
}

// takesLocked says whether n more lines may be added.
func (b *liveBatch) takesLocked(n int) error {
	refuse := func(format string, args ...any) error {
		return &Error{Kind: KindNotLive, Field: "episodes", Detail: fmt.Sprintf(format, args...)}
	}
	switch {
	case b.book.sealed:
		return refuse("batch %q is sealed", b.kept.Batch.ID)
	case b.kept.Batch.State == BatchCancelled:
		return refuse("batch %q is cancelled; resume it first", b.kept.Batch.ID)
	case len(b.book.members)+n > MaxLines:
		return badField("episodes", "batch %q would have more than %d lines", b.kept.Batch.ID, MaxLines)
	}
	return nil
}

// SealBatch says that no more lines will be added: the batch is done when each line has its
// result. To seal twice is to ask again.
func (r *Runner) SealBatch(ctx context.Context, owner, id string, generation int64) (Batch, error) {
	err := r.changeBatch(ctx, owner, id, generation, func(b *liveBatch) error {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.book.sealed {
			return nil
		}
		next := b.kept
		next.Batch.Sealed = true
		if err := r.saveBatch(ctx, &next); err != nil {
			return err
		}
		b.kept.Batch.Sealed, b.book.sealed = true, true
		b.toldLocked()
		return b.decideAllLocked(ctx)
	})
	if err != nil {
		return Batch{}, err
	}
	return r.Batch(ctx, owner, id)
}

// ResumeBatch goes on with a batch that does not run: what has a reward, or ended in a way
// that is not tried again, is done; the rest is made or scored. A running or finished one
// stays as it is.
func (r *Runner) ResumeBatch(ctx context.Context, owner, id string, generation int64) (Batch, error) {
	unlock, err := r.lockBatch(ctx, owner, id)
	if err != nil {
		return Batch{}, err
	}
	defer unlock()
	kept, err := r.loadBatch(ctx, owner, id)
	if err != nil {
		return Batch{}, err
	}
	if err := r.fence(ctx, Key{Owner: owner, Run: kept.Batch.Run}, generation); err != nil {
		return Batch{}, err
	}
	if live := r.liveBatch(owner, id); live != nil && live.ending() {
		select {
		case <-live.over:
		case <-ctx.Done():
			return Batch{}, context.Cause(ctx)
		}
		if kept, err = r.loadBatch(ctx, owner, id); err != nil {
			return Batch{}, err
		}
	}
	if r.liveBatch(owner, id) != nil || kept.Batch.State == BatchDone {
		return r.Batch(ctx, owner, id)
	}
	kept.Batch.State, kept.Batch.Error = BatchRunning, ""
	return r.startBatch(ctx, kept)
}

// Batch returns a batch with its counts and groups.
func (r *Runner) Batch(ctx context.Context, owner, id string) (Batch, error) {
	live := r.liveBatch(owner, id) // before the record: what ends in between is whole there
	if live != nil {
		return live.summary(), nil
	}
	kept, err := r.loadBatch(ctx, owner, id)
	if err != nil {
		return Batch{}, err
	}
	k, err := r.loadBook(ctx, &kept)
	if err != nil {
		return Batch{}, err
	}
	b := kept.stopped()
	k.count(&b)
	return b, nil
}

// stopped is the header of a batch that does not run.
func (k *keptBatch) stopped() Batch {
	b := k.Batch
	if b.State == BatchRunning {
		b.State = BatchInterrupted
	}
	return b
}

func (b *liveBatch) summary() Batch {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.kept.Batch
	b.book.count(&s)
	for _, d := range b.drivers {
		if d.reading() {
			s.Clients++
		}
	}
	return s
}

// Batches lists an owner's batches in order of creation, without their groups.
func (r *Runner) Batches(ctx context.Context, owner string) ([]Batch, error) {
	var all []Batch
	for after := ""; ; {
		docs, err := r.cfg.Record.Documents(ctx, batchDocuments, owner+"/", after, resultsPage)
		if err != nil {
			return nil, fmt.Errorf("list batches: %w", err)
		}
		for _, d := range docs {
			kept, err := decodeDoc[keptBatch](batchDocuments, d.Doc)
			if err != nil {
				return nil, err
			}
			b := kept.Batch
			if b.State != BatchDone || r.liveBatch(owner, b.ID) != nil { // its counts may be behind
				if b, err = r.Batch(ctx, owner, b.ID); err != nil {
					return nil, err
				}
			}
			b.Groups, b.MoreGroups = nil, false
			all = append(all, b)
			after = d.Key
		}
		if len(docs) < resultsPage {
			break
		}
	}
	slices.SortFunc(all, func(a, b Batch) int { return a.Created.Compare(b.Created) })
	return all, nil
}
