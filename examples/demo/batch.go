package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/paddock-run/paddock/api"
)

// prior is what every agent believes: letters are likelier to hold a secret.
var prior = Prior{"letter": 3, "ledger": 2, "log": 1}

// runBatch starts the batch, or goes on with the one that was interrupted, and uses its
// results as they complete.
func (l *loop) runBatch(ctx context.Context) (id string, err error) {
	journal, err := openNotes(filepath.Join(l.Dir, "completed.jsonl"))
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, journal.Close()) }()
	batch, err := l.openBatch(ctx)
	if err != nil {
		return "", err
	}
	fmt.Fprintf(l.Out, "batch %s: %d episodes in %d groups, %d completed before\n", batch.ID, Episodes, Episodes/groupSize, len(journal.byID))
	done := map[string]bool{}
	err = l.Client.Results(ctx, batch.ID, 0, true, func(r api.BatchResult) error {
		done[r.ID] = true
		if l.Progress != nil {
			l.Progress(len(done), Episodes)
		}
		return l.use(ctx, journal, r)
	})
	if err != nil {
		return "", err
	}
	if len(done) != Episodes {
		return "", fmt.Errorf("batch %s gave results of %d episodes, want %d", batch.ID, len(done), Episodes)
	}
	return batch.ID, nil
}

// use does with a result what a trainer does: takes its payload and its reward.
func (l *loop) use(ctx context.Context, journal *notes, r api.BatchResult) error {
	if r.Reward == nil {
		return nil // the checks say why
	}
	var payload bytes.Buffer
	if err := l.Client.Payload(ctx, api.Key{Run: runName, ID: r.ID}, r.Attempt, &payload); err != nil {
		return fmt.Errorf("payload of %s: %w", r.ID, err)
	}
	return journal.add(note{ID: r.ID, Attempt: r.Attempt, Reward: *r.Reward, Payload: hash(payload.Bytes())})
}

func (l *loop) openBatch(ctx context.Context) (api.Batch, error) {
	if l.Resume {
		batches, err := l.Client.Batches(ctx)
		if err != nil {
			return api.Batch{}, err
		}
		for _, b := range batches {
			if b.Run == runName && b.Of == "" {
				return l.Client.ResumeBatch(ctx, b.ID)
			}
		}
		// It was killed before the batch was made.
	}
	spec, err := l.manifest(runName)
	if err != nil {
		return api.Batch{}, err
	}
	return l.Client.CreateBatch(ctx, spec)
}

// rescore scores every end state with the second grader, and proves that no agent ran:
// attempts and calls on record are the same as before.
func (l *loop) rescore(ctx context.Context, batch string, all []seen) error {
	again, err := l.Client.ScoreBatch(ctx, batch, api.Graders{Graders: []api.WeightedGrader{{Grader: l.graders["tidy"]}}})
	if err != nil {
		return fmt.Errorf("score again: %w", err)
	}
	byID := map[string]api.BatchResult{}
	err = l.Client.Results(ctx, again.ID, 0, true, func(r api.BatchResult) error {
		byID[r.ID] = r
		return nil
	})
	if err != nil {
		return fmt.Errorf("score again: %w", err)
	}
	var faults []error
	for _, s := range all {
		faults = append(faults, l.checkAgain(ctx, s, byID))
	}
	if err := errors.Join(faults...); err != nil {
		return fmt.Errorf("score again: %w", err)
	}
	fmt.Fprintf(l.Out, "\nscored again: %d end states with grader %.19s, no agent ran\n", len(byID), l.graders["tidy"])
	return nil
}

func (l *loop) checkAgain(ctx context.Context, s seen, byID map[string]api.BatchResult) error {
	r, ok := byID[s.id]
	if !ok || r.Reward == nil {
		return fmt.Errorf("episode %s: no score by the second grader: %+v", s.id, r)
	}
	want := 1.0
	if s.left("/workdir/scratch.tmp") {
		want = 0
	}
	if *r.Reward != want {
		return fmt.Errorf("episode %s: second grader gave %v, want %v", s.id, *r.Reward, want)
	}
	ep, err := l.Client.Episode(ctx, api.Key{Run: runName, ID: s.id})
	if err != nil {
		return err
	}
	if len(ep.Attempts) != len(s.attempts) || ep.Last().Calls != s.last.Calls || ep.Last().Digests != s.last.Digests {
		return fmt.Errorf("episode %s: its attempts are not what they were before the second scoring", s.id)
	}
	return nil
}

// again runs one episode from its id in a new run: start, actions and state must be equal.
func (l *loop) again(ctx context.Context, all []seen) error {
	s := pick(all)
	i := 0
	for episodeID(i) != s.id {
		i++
	}
	spec, err := l.manifest(rerunName)
	if err != nil {
		return fmt.Errorf("run again: %w", err)
	}
	spec.Episodes = spec.Episodes[i : i+1]
	batch, err := l.Client.CreateBatch(ctx, spec)
	if err != nil {
		return fmt.Errorf("run again: %w", err)
	}
	if err := l.Client.Results(ctx, batch.ID, 0, true, func(api.BatchResult) error { return nil }); err != nil {
		return fmt.Errorf("run again: %w", err)
	}
	second, err := l.inspectOne(ctx, rerunName, s.id)
	if err != nil {
		return fmt.Errorf("run again: %w", err)
	}
	var faults []error
	was, is := s.last.Digests, second.last.Digests
	for _, d := range []struct{ name, was, is string }{{"start", was.Start, is.Start}, {"actions", was.Actions, is.Actions}, {"state", was.State, is.State}} {
		if d.was != d.is || d.was == "" {
			faults = append(faults, fmt.Errorf("run again: %s: %s digest %q, was %q", s.id, d.name, d.is, d.was))
		}
	}
	if !bytes.Equal(s.payload, second.payload) {
		faults = append(faults, fmt.Errorf("run again: %s: the payload differs", s.id))
	}
	if err := errors.Join(faults...); err != nil {
		return err
	}
	fmt.Fprintf(l.Out, "run again: %s in run %s: start, actions and state digests equal (state %.19s)\n", s.id, rerunName, is.State)
	return nil
}

// pick takes the episode that did the most.
func pick(all []seen) seen {
	best := all[0]
	for _, s := range all {
		if len(s.calls) > len(best.calls) {
			best = s
		}
	}
	return best
}
