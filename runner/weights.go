package runner

import (
	"context"
	"fmt"
	"slices"
	"sync"
)

const weightsDocuments = "run_weights"

// maxWeights bounds the weights whose order is known for one run.
const maxWeights = 100_000

// weightOrder remembers in which order a run's weights were first used.
type weightOrder struct {
	mu   sync.Mutex
	runs map[Key]*usedWeights
}

type usedWeights struct {
	list []string
	at   map[string]int
}

// noteWeights remembers weights as used, unless they were before.
func (r *Runner) noteWeights(ctx context.Context, owner, run, weights string) error {
	if weights == "" {
		return nil
	}
	r.weights.mu.Lock()
	defer r.weights.mu.Unlock()
	used, err := r.usedLocked(ctx, Key{Owner: owner, Run: run})
	if err != nil {
		return err
	}
	if _, known := used.at[weights]; known {
		return nil
	}
	if len(used.list) >= maxWeights {
		return badField("weights", "run %q has used %d weights", run, maxWeights)
	}
	list := append(slices.Clip(used.list), weights)
	if err := r.putJSON(ctx, weightsDocuments, batchKey(owner, run), list, Synced); err != nil {
		return err
	}
	used.at[weights] = len(used.list)
	used.list = list
	return nil
}

// weightsBefore are the weights that a run used before others; before those that it has not
// used yet come all.
func (r *Runner) weightsBefore(ctx context.Context, owner, run, weights string) (map[string]bool, error) {
	before := map[string]bool{}
	if weights == "" {
		return before, nil
	}
	r.weights.mu.Lock()
	defer r.weights.mu.Unlock()
	used, err := r.usedLocked(ctx, Key{Owner: owner, Run: run})
	if err != nil {
		return nil, err
	}
	end, known := used.at[weights]
	if !known {
		end = len(used.list)
	}
	for _, w := range used.list[:end] {
		before[w] = true
	}
	return before, nil
}

// usedLocked reads a run's weights once. mu is held over that: it happens once a run.
func (r *Runner) usedLocked(ctx context.Context, key Key) (*usedWeights, error) {
	if used := r.weights.runs[key]; used != nil {
		return used, nil
	}
	used := &usedWeights{at: map[string]int{}}
	doc, err := r.cfg.Record.Document(ctx, weightsDocuments, batchKey(key.Owner, key.Run))
	if err != nil && KindOf(err) != KindNotFound {
		return nil, fmt.Errorf("look up weights: %w", err)
	}
	if err == nil {
		if used.list, err = decodeDoc[[]string](weightsDocuments, doc); err != nil {
			return nil, err
		}
	}
	for i, w := range used.list {
		used.at[w] = i
	}
	r.weights.runs[key] = used
	return used, nil
}
