package daemon

import (
	"context"
	"encoding/json"

	"github.com/paddock-run/paddock/runner/dataset"
)

// problems are one tenant's data sets and what scores by them: their answers and tests are
// nobody else's to read, name or remove.
type problems struct {
	store  *dataset.Store
	scorer *dataset.Scorer
}

func (s *Server) problemsOf(owner string) (problems, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p, ok := s.problems[owner]; ok {
		return p, nil
	}
	store := s.cfg.Datasets
	if owner != rootTenant {
		var err error
		if store, err = store.Of(owner); err != nil {
			return problems{}, err
		}
	}
	p := problems{store: store}
	p.scorer = dataset.NewScorer(store, func(ctx context.Context, tests json.RawMessage, code string) (*float64, string, error) {
		return s.runTests(ctx, owner, tests, code)
	})
	s.problems[owner] = p
	return p, nil
}
