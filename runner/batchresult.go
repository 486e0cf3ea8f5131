package runner

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
)

// addLocked keeps a line's result before anybody sees it, and does what follows for its
// group. mu is held over the writes, so that results are seen in the order of their
// numbers.
func (b *liveBatch) addLocked(ctx context.Context, m *member, res *BatchResult) error {
	res.Seq, res.Line, res.At = b.book.seq+1, m.n, time.Now().UTC()
	key := numberedKey(b.kept.Batch.Owner, b.kept.Batch.ID, res.Seq)
	if err := b.putLocked(ctx, resultDocuments, key, res); err != nil {
		return err
	}
	b.book.settle(res)
	b.countBrokenLocked(res)
	b.toldLocked()
	return b.groupLocked(ctx, m.group)
}

// putLocked keeps a document of the batch.
func (b *liveBatch) putLocked(ctx context.Context, collection, key string, v any) error {
	d := Synced
	if b.together {
		d = Written
	}
	return b.r.putJSON(ctx, collection, key, v, d)
}

// togetherLocked does what keeps many documents, and syncs them as one. Nobody sees any of
// them before: who reads asks for the last seq first, and so waits for mu.
func (b *liveBatch) togetherLocked(ctx context.Context, do func() error) error {
	if b.together {
		return do()
	}
	b.together = true
	err := do()
	b.together = false
	return errors.Join(err, b.r.saveBatch(ctx, &b.kept)) // the sync of one write is that of all before it
}

// groupLocked refills a group, or keeps that it is complete and cancels what it has too
// many.
func (b *liveBatch) groupLocked(ctx context.Context, g *groupBook) error {
	if g.seq != 0 {
		return nil
	}
	if err := b.refillLocked(ctx, g); err != nil {
		return err
	}
	counted, complete := b.book.decide(g)
	if !complete || len(g.members) == 0 {
		return nil
	}
	kept := keptGroup{Seq: b.book.groupSeq + 1, Group: g.name, Counted: []int{}}
	for _, m := range counted {
		kept.Counted = append(kept.Counted, m.n)
	}
	if err := b.putLocked(ctx, groupDocuments, numberedKey(b.kept.Batch.Owner, b.kept.Batch.ID, kept.Seq), kept); err != nil {
		return err
	}
	b.book.complete(&kept)
	b.toldLocked()
	return b.surplusLocked(ctx, g)
}

// surplusLocked ends the members of a complete group that have no result yet.
func (b *liveBatch) surplusLocked(ctx context.Context, g *groupBook) error {
	surplus := End{Status: Cancelled, Cause: Client, Step: stepSurplus, Reason: "the group was complete without it"}
	for _, m := range g.members {
		if err := b.endLocked(ctx, m, surplus); err != nil {
			return err
		}
	}
	return nil
}

// decideAllLocked looks at every group again, as after a seal.
func (b *liveBatch) decideAllLocked(ctx context.Context) error {
	return b.togetherLocked(ctx, func() error {
		for _, g := range b.book.groups {
			if err := b.groupLocked(ctx, g); err != nil {
				return err
			}
		}
		return nil
	})
}

// endLocked ends a line that has no result yet: a waiting one gets it now, one that is
// playing when it has come to its end.
func (b *liveBatch) endLocked(ctx context.Context, m *member, end End) error {
	switch m.state {
	case waiting:
		b.unqueueLocked(m)
		return b.dropLocked(ctx, m, end)
	case playing:
		m.cancel(stopError{end})
	case ended:
	}
	return nil
}

// dropLocked gives a line that is not played a result.
func (b *liveBatch) dropLocked(ctx context.Context, m *member, end End) error {
	line, err := b.lineLocked(ctx, m)
	if err != nil {
		return err
	}
	return b.addLocked(ctx, m, b.unmade(&line.Line, line.RefillOf, end))
}

// unmade is the result of a line whose episode never began.
func (b *liveBatch) unmade(line *BatchEpisode, refillOf string, end End) *BatchResult {
	return &BatchResult{
		Run: b.kept.Batch.Run, ID: line.ID, Group: line.Group, Task: line.Task, Weights: line.Weights, RefillOf: refillOf,
		Status: end.Status, Cause: end.Cause, Step: end.Step, Reason: end.Reason, Evidence: end.Evidence,
	}
}

// refillLocked makes new members for a group's void ones, as far as it lacks them.
func (b *liveBatch) refillLocked(ctx context.Context, g *groupBook) error {
	lost := b.book.lacking(g)
	if len(lost) == 0 {
		return nil
	}
	var lines []keptLine
	for _, m := range lost {
		kept, err := b.lineLocked(ctx, m)
		if err != nil {
			return err
		}
		line := kept.Line
		line.Group = g.name // a line that was its own group shares its seed with the new one
		root := m.id
		if m.refillOf != "" {
			root = m.refillOf
		}
		line.ID = b.refillID(root, lines)
		lines = append(lines, keptLine{Line: line, RefillOf: root, Digest: kept.Digest})
	}
	return b.enterLocked(ctx, lines)
}

// refillID is the first free id of a refill: that of the member that was lost, "~" and a
// number.
func (b *liveBatch) refillID(root string, others []keptLine) string {
	for n := 1; ; n++ {
		id := fmt.Sprintf("%s~%d", root, n)
		taken := slices.ContainsFunc(others, func(o keptLine) bool { return o.Line.ID == id })
		if b.book.byID[id] == nil && !taken {
			return id
		}
	}
}

// enterLocked records lines and puts them where they are to be taken.
func (b *liveBatch) enterLocked(ctx context.Context, lines []keptLine) error {
	chunks, err := b.r.putLines(ctx, &b.kept, lines)
	if err != nil {
		return err
	}
	next := b.kept
	next.Lines += len(lines)
	if err := b.r.saveBatch(ctx, &next); err != nil {
		return err
	}
	first := b.kept.Lines
	b.kept.Lines = next.Lines
	b.taking, b.foreseen = lineChunk{}, lineChunk{}
	for i := range lines {
		if old := b.book.byID[lines[i].Line.ID]; old != nil {
			b.replaceLocked(old)
		}
		b.queueLocked(b.book.enter(first+i, chunks[i], &lines[i]))
	}
	b.toldLocked()
	return nil
}

// replaceLocked ends a line in whose place another one comes. It gets no result.
func (b *liveBatch) replaceLocked(old *member) {
	switch old.state {
	case waiting:
		b.unqueueLocked(old)
		old.state = ended
	case playing:
		old.cancel(stopError{End{Status: Cancelled, Cause: Client, Reason: "superseded by another spec"}})
	case ended:
	}
	old.replaced = true
}

// errSeen ends the reading of results at the last one that may be seen.
var errSeen = errors.New("seen")

func (b *liveBatch) lastSeq() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.book.seq
}

// Results yields results in order of completion, after a sequence number. With follow it
// waits for more until the batch no longer runs. A result is on disk before it is seen.
func (r *Runner) Results(ctx context.Context, owner, id string, after int64, follow bool, yield func(BatchResult) error) error {
	return r.followBatch(ctx, owner, id, follow, func(_ *keptBatch, live *liveBatch) error {
		last := int64(math.MaxInt64)
		if live != nil {
			last = live.lastSeq() // what is there beyond it may not survive yet
		}
		err := r.readResults(ctx, owner, id, max(after, 0), func(res *BatchResult) error {
			if res.Seq > last {
				return errSeen
			}
			after = res.Seq
			return yield(*res)
		})
		if errors.Is(err, errSeen) {
			return nil
		}
		return err
	})
}

// Groups yields complete groups in the order in which they were, after a group's seq. With
// follow it waits for more until the batch no longer runs. A group comes again with another
// seq when a resume gave one of its members another result.
func (r *Runner) Groups(ctx context.Context, owner, id string, after int64, follow bool, yield func(GroupResult) error) error {
	return r.followBatch(ctx, owner, id, follow, func(kept *keptBatch, live *liveBatch) error {
		groups, err := r.groupsAfter(ctx, kept, live, after)
		if err != nil {
			return err
		}
		for i := range groups {
			g, err := r.groupResult(ctx, kept, &groups[i])
			if err != nil {
				return err
			}
			if err := yield(g); err != nil {
				return err
			}
			after = g.Seq
		}
		return nil
	})
}

// followBatch calls read, and with follow again after each change until the batch no longer
// runs.
func (r *Runner) followBatch(ctx context.Context, owner, id string, follow bool, read func(*keptBatch, *liveBatch) error) error {
	for {
		live := r.liveBatch(owner, id) // before the record: what ends in between is whole there
		var more <-chan struct{}
		if live != nil {
			more = live.changed()
		}
		kept, err := r.loadBatch(ctx, owner, id)
		if err != nil {
			return err
		}
		if err := read(&kept, live); err != nil || !follow || live == nil {
			return err
		}
		select {
		case <-more:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// shownGroup is a complete group and where its results are.
type shownGroup struct {
	view BatchGroup
	seqs []int64
}

func (r *Runner) groupsAfter(ctx context.Context, kept *keptBatch, live *liveBatch, after int64) ([]shownGroup, error) {
	k := (*book)(nil)
	if live != nil {
		live.mu.Lock()
		defer live.mu.Unlock()
		k = live.book
	} else {
		var err error
		if k, err = r.loadBook(ctx, kept); err != nil {
			return nil, err
		}
	}
	var all []shownGroup
	for _, g := range k.groupsAfter(after) {
		s := shownGroup{view: k.view(g)}
		for _, m := range g.members {
			if g.counts(m) && m.state == ended {
				s.seqs = append(s.seqs, m.seq)
			}
		}
		all = append(all, s)
	}
	return all, nil
}

func (r *Runner) groupResult(ctx context.Context, kept *keptBatch, s *shownGroup) (GroupResult, error) {
	g := GroupResult{BatchGroup: s.view, Results: []BatchResult{}}
	for _, seq := range s.seqs {
		doc, err := r.cfg.Record.Document(ctx, resultDocuments, numberedKey(kept.Batch.Owner, kept.Batch.ID, seq))
		if err != nil {
			return g, fmt.Errorf("read result: %w", err)
		}
		res, err := decodeDoc[BatchResult](resultDocuments, doc)
		if err != nil {
			return g, err
		}
		g.Results = append(g.Results, res)
	}
	return g, nil
}
