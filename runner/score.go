package runner

import (
	"context"
	"os"

	"github.com/paddock-run/paddock/overlay"
	"github.com/paddock-run/paddock/sandbox"
)

// EndState is what an ended attempt left, for graders. It is valid until scoreAttempt
// returns.
type EndState struct {
	Key     Key
	Plan    Plan
	Attempt Attempt // with End, Answer, Digests
	// Fork pins the world; Upper is the agent's whole upper directory, with owners
	// shifted by IDs.HostID. No process of the agent is left.
	Fork    Fork
	Upper   *os.File
	IDs     sandbox.IDMap
	Capture overlay.Capture
	// Dir is the attempt's directory: trajectory.jsonl is there and whole.
	Dir string
}

// scoreAttempt grades an end state with graders, in their order, and returns one result
// for each. It never changes the record: attachScores does.
func (r *Runner) scoreAttempt(ctx context.Context, in EndState, graders []WeightedGrader) []ScoreResult {
	return nil
}

// PutGrader keeps a grader and returns its digest.
func (r *Runner) PutGrader(ctx context.Context, spec GraderSpec) (digest string, err error) {
	return "", errStub
}

// Grader returns a grader by digest.
func (r *Runner) Grader(ctx context.Context, digest string) (GraderSpec, error) {
	return GraderSpec{}, errStub
}

// Score grades an ended attempt's kept end state; attempt 0 is the last.
func (r *Runner) Score(ctx context.Context, key Key, attempt int, graders []WeightedGrader) (Episode, error) {
	return Episode{}, errStub
}

// WriteReward keeps a reward that the client itself computed.
func (r *Runner) WriteReward(ctx context.Context, key Key, attempt int, name string, reward *float64, metrics map[string]float64) (Episode, error) {
	return Episode{}, errStub
}
