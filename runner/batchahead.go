package runner

import "context"

// maxForesight bounds the lines that a batch looks ahead.
const maxForesight = 64

// foresee tells the stock which sandboxes the next lines need: no more lines than may be
// under way at once. It is for the dispatcher, when no line can be started now.
func (b *liveBatch) foresee(ctx context.Context) {
	if b.r.cfg.Stock.Warm == 0 || b.kept.Batch.Of != "" {
		return
	}
	for m, line := range b.unforeseen(ctx) {
		e := b.r.expectationOf(ctx, b.key(&line), &line) // takes no lock of the batch's
		b.mu.Lock()
		m.ahead = &e
		b.mu.Unlock()
	}
	b.r.stock.expect(b.name(), b.expectations())
}

// unforeseen are the next lines that were not looked up yet.
func (b *liveBatch) unforeseen(ctx context.Context) map[*member]BatchEpisode {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := map[*member]BatchEpisode{}
	for _, m := range b.soonLocked() {
		if m.ahead != nil {
			continue
		}
		line, err := b.readLocked(ctx, m, &b.foreseen)
		if err != nil {
			break // whoever takes the line says so
		}
		all[m] = line.Line
	}
	return all
}

func (b *liveBatch) soonLocked() []*member {
	look := b.kept.Spec.Parallel
	if look == 0 {
		look = defaultParallel()
	}
	return b.todo[:min(look, maxForesight, len(b.todo))]
}

// expectations counts what the next lines need by its kind, in the order of the lines.
func (b *liveBatch) expectations() []expectation {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []expectation
	at := map[kind]int{}
	for _, m := range b.soonLocked() {
		if m.ahead == nil || m.ahead.n == 0 {
			continue
		}
		i, known := at[m.ahead.kind]
		if !known {
			at[m.ahead.kind] = len(all)
			all = append(all, *m.ahead)
			continue
		}
		all[i].n++
	}
	return all
}

// expectationOf is the sandbox that a line's episode will ask for; none where the line is
// refused, which its play will tell.
func (r *Runner) expectationOf(ctx context.Context, key Key, line *BatchEpisode) expectation {
	spec := line.EpisodeSpec
	spec.Run = key.Run
	plan, world, pol, _, err := r.resolve(ctx, key, spec)
	if err != nil {
		return expectation{}
	}
	k := plan.kind(workdirOf(world))
	return expectation{
		kind: k, n: 1, requests: plan.Requests,
		make: func(ctx context.Context, b box) (box, error) { return r.fill(ctx, k, pol, b) },
	}
}

func (b *liveBatch) name() string { return batchKey(b.kept.Batch.Owner, b.kept.Batch.ID) }
