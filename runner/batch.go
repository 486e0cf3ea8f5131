package runner

import "context"

// BatchSpec asks for a batch.
type BatchSpec struct{}

// Batch is many episodes.
type Batch struct{}

// BatchResult is one episode's result in a batch.
type BatchResult struct{}

// CreateBatch starts a batch.
func (r *Runner) CreateBatch(ctx context.Context, owner string, spec BatchSpec) (Batch, error) {
	return Batch{}, errStub
}

// ResumeBatch continues a batch that was interrupted.
func (r *Runner) ResumeBatch(ctx context.Context, owner, id string) (Batch, error) {
	return Batch{}, errStub
}

// Batch returns a batch.
func (r *Runner) Batch(ctx context.Context, owner, id string) (Batch, error) {
	return Batch{}, errStub
}

// Batches lists an owner's batches.
func (r *Runner) Batches(ctx context.Context, owner string) ([]Batch, error) { return nil, errStub }

// CancelBatch ends a batch.
func (r *Runner) CancelBatch(ctx context.Context, owner, id, reason string) (Batch, error) {
	return Batch{}, errStub
}

// Results yields results in order of completion, after a sequence number.
func (r *Runner) Results(ctx context.Context, owner, id string, after int64, follow bool, yield func(BatchResult) error) error {
	return errStub
}

// ScoreBatch scores a finished batch's end states again, as a new batch; no agent runs.
func (r *Runner) ScoreBatch(ctx context.Context, owner, id string, graders []WeightedGrader) (Batch, error) {
	return Batch{}, errStub
}
