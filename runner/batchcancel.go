package runner

import (
	"context"
	"fmt"
)

// BatchCancel says what of a batch to cancel: at most one of Prefix, Group, Weights and
// WeightsBefore is set; none is the whole batch, which then is cancelled itself.
type BatchCancel struct {
	Reason string
	// Prefix is of the lines' ids, Group a group's name, Weights those of the lines.
	Prefix  string
	Group   string
	Weights string
	// WeightsBefore takes lines made by weights whose first use in the run came before that
	// of these. Weights that were not used yet come after all others. Lines without weights
	// stay.
	WeightsBefore string
	Generation    int64 // 0 is not checked
}

// CancelBatch cancels a batch or some of its lines: what is live of them ends as cancelled
// (client, null), and so does what was not started, unless the batch itself is cancelled: a
// resume begins that. It returns once all is over, with how many lines were cancelled.
func (r *Runner) CancelBatch(ctx context.Context, owner, id string, spec BatchCancel) (Batch, int, error) {
	which, err := spec.selector()
	if err != nil {
		return Batch{}, 0, err
	}
	n := 0
	if which == "" {
		n, err = r.cancelWhole(ctx, owner, id, &spec)
	} else {
		n, err = r.cancelLines(ctx, owner, id, which, &spec)
	}
	if err != nil {
		return Batch{}, n, err
	}
	b, err := r.Batch(ctx, owner, id)
	return b, n, err
}

// selector names the one field that says which lines; "" is all.
func (c *BatchCancel) selector() (string, error) {
	which := ""
	for _, f := range []struct{ name, value string }{
		{"prefix", c.Prefix}, {"group", c.Group}, {"weights", c.Weights}, {"weights_before", c.WeightsBefore},
	} {
		if f.value == "" {
			continue
		}
		if which != "" {
			return "", badField(f.name, "%s is set too; give one of prefix, group, weights and weights_before", which)
		}
		which = f.name
	}
	return which, nil
}

func (r *Runner) cancelWhole(ctx context.Context, owner, id string, spec *BatchCancel) (n int, err error) {
	var over <-chan struct{}
	err = r.changeBatch(ctx, owner, id, spec.Generation, func(b *liveBatch) error {
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, m := range b.book.members {
			if m.state != ended && !m.replaced {
				n++
			}
		}
		if b.stop != nil {
			b.reason, over = cut(spec.Reason), b.over
			b.stop(errBatchCancelled)
			return nil
		}
		if b.kept.Batch.State == BatchDone {
			return nil
		}
		next := b.kept
		next.Batch.State, next.Batch.Error = BatchCancelled, cut(spec.Reason)
		return r.saveBatch(ctx, &next)
	})
	if err != nil || over == nil {
		return n, err
	}
	select {
	case <-over:
		return n, nil
	case <-ctx.Done():
		return n, context.Cause(ctx)
	}
}

func (r *Runner) cancelLines(ctx context.Context, owner, id, which string, spec *BatchCancel) (n int, err error) {
	var b *liveBatch
	var stopping []*member
	err = r.changeBatch(ctx, owner, id, spec.Generation, func(live *liveBatch) error {
		b = live
		before, err := r.weightsBefore(ctx, owner, b.kept.Batch.Run, spec.WeightsBefore)
		if err != nil {
			return err
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		found := false
		end := End{Status: Cancelled, Cause: Client, Step: "cancel", Reason: cut(spec.Reason)}
		err = b.togetherLocked(ctx, func() error {
			for _, m := range b.book.members {
				if m.replaced || !spec.takes(m, before) {
					continue
				}
				found = true
				if m.state == ended {
					continue
				}
				n++
				if m.state == playing {
					stopping = append(stopping, m)
				}
				if err := b.endLocked(ctx, m, end); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		if !found && which != "weights_before" {
			return &Error{Kind: KindNotFound, Field: which, Detail: fmt.Sprintf("no line of batch %q is meant by it", id)}
		}
		return nil
	})
	if err != nil {
		return n, err
	}
	return n, b.wait(ctx, stopping)
}

func (c *BatchCancel) takes(m *member, before map[string]bool) bool {
	switch {
	case c.Prefix != "":
		return Under(m.id, c.Prefix)
	case c.Group != "":
		return m.group.name == c.Group
	case c.Weights != "":
		return m.weights == c.Weights
	}
	return before[m.weights]
}

// wait returns once none of the lines is playing, or the batch is over.
func (b *liveBatch) wait(ctx context.Context, lines []*member) error {
	for {
		more := b.changed()
		b.mu.Lock()
		left := 0
		for _, m := range lines {
			if m.state == playing {
				left++
			}
		}
		b.mu.Unlock()
		if left == 0 || stopped(b.over) {
			return nil
		}
		select {
		case <-more:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
