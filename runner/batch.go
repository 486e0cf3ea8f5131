package runner

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/google/uuid"
)

// AgentSpec says who acts in an episode of a batch. Exactly one of Calls, Command and
// Host is set.
type AgentSpec struct {
	// Calls are made one after another; then the episode is finished.
	Calls []CallSpec `json:"calls,omitempty"`
	// Command is run inside the sandbox; its exit is the agent's end.
	Command *CallSpec `json:"command,omitempty"`
	// Host is a program of the host that is run for each episode, as a user of its own,
	// with a socket that reaches that episode only.
	Host []string `json:"host,omitempty"`
}

// BatchEpisode is one line of a manifest.
type BatchEpisode struct {
	EpisodeSpec
	Agent AgentSpec `json:"agent"`
}

// BatchSpec asks for a batch.
type BatchSpec struct {
	// Run is the run of all its episodes; it is opened when it is new.
	Run  string `json:"run"`
	Seed uint32 `json:"seed"`
	// Parallel bounds the episodes under way at once; 0 is a default for the host.
	Parallel int            `json:"parallel,omitempty"`
	Episodes []BatchEpisode `json:"episodes"`
}

// BatchState is where a batch is.
type BatchState string

// The states of a batch.
const (
	BatchRunning     BatchState = "running"
	BatchInterrupted BatchState = "interrupted"
	BatchCancelled   BatchState = "cancelled"
	BatchDone        BatchState = "done"
)

// Batch is many episodes.
type Batch struct {
	ID    string     `json:"id"`
	Owner string     `json:"owner"`
	Run   string     `json:"run"`
	State BatchState `json:"state"`
	// Of is the batch whose end states this one scores again; empty otherwise.
	Of      string    `json:"of,omitempty"`
	Created time.Time `json:"created"`
	// Total episodes, Done results, Valid rewards and Void results without.
	Total  int            `json:"total"`
	Done   int            `json:"done"`
	Valid  int            `json:"valid"`
	Void   int            `json:"void"`
	Causes map[string]int `json:"causes,omitempty"`
	Groups []BatchGroup   `json:"groups,omitempty"`
	Error  string         `json:"error,omitempty"`
}

// BatchGroup is what came of one group; mean and deviation are over valid members only.
type BatchGroup struct {
	Group  string   `json:"group"`
	Wanted int      `json:"wanted"`
	Done   int      `json:"done"`
	Valid  int      `json:"valid"`
	Void   int      `json:"void"`
	Mean   *float64 `json:"mean"`
	Std    *float64 `json:"std"`
	// Spread says that not all valid rewards are equal.
	Spread bool `json:"spread"`
}

// BatchResult is one episode's result in a batch.
type BatchResult struct {
	Seq     int64         `json:"seq"`
	Run     string        `json:"run"`
	ID      string        `json:"id"`
	Group   string        `json:"group,omitempty"`
	Task    string        `json:"task,omitempty"`
	Attempt int           `json:"attempt"`
	Status  Status        `json:"status"`
	Cause   Cause         `json:"cause"`
	Step    string        `json:"step,omitempty"`
	Reward  *float64      `json:"reward"`
	Valid   bool          `json:"valid"`
	Scores  []ScoreResult `json:"scores,omitempty"`
	Digests Digests       `json:"digests"`
	// Evidence says why there is no reward.
	Evidence []string `json:"evidence,omitempty"`
}

const (
	batchesKept = "batches"
	resultsKept = "batch_results"
	maxBatch    = 1_000_000
	maxParallel = 4096
	resultsPage = 500
)

// keptBatch is what is recorded of a batch.
type keptBatch struct {
	Batch Batch     `json:"batch"`
	Spec  BatchSpec `json:"spec"`
	// Graders are those of a batch that scores again.
	Graders []WeightedGrader `json:"graders,omitempty"`
}

func batchKey(owner, id string) string { return owner + "/" + id }

func resultKey(owner, id string, seq int64) string { return fmt.Sprintf("%s/%s/%012d", owner, id, seq) }

// CreateBatch starts a batch. It is refused whole when one of its lines is wrong.
func (r *Runner) CreateBatch(ctx context.Context, owner string, spec BatchSpec) (Batch, error) {
	if len(spec.Episodes) == 0 || len(spec.Episodes) > maxBatch {
		return Batch{}, badField("episodes", "has %d lines, must have 1 to %d", len(spec.Episodes), maxBatch)
	}
	if spec.Parallel < 0 || spec.Parallel > maxParallel {
		return Batch{}, badField("parallel", "%d is not in 0 to %d", spec.Parallel, maxParallel)
	}
	spec.Run = orText(spec.Run, DefaultRun)
	if _, err := r.OpenRun(ctx, owner, RunSpec{Name: spec.Run, Seed: spec.Seed, Resume: "auto"}); err != nil {
		return Batch{}, err
	}
	known := map[string]bool{}
	for i := range spec.Episodes {
		e := &spec.Episodes[i]
		if err := r.checkLine(ctx, owner, spec.Run, e); err != nil {
			return Batch{}, inLine(i, err)
		}
		if known[e.ID] {
			return Batch{}, inLine(i, badField("id", "%q is there twice", e.ID))
		}
		known[e.ID] = true
	}
	kept := keptBatch{Spec: spec, Batch: Batch{
		ID: "b-" + uuid.NewString()[:13], Owner: owner, Run: spec.Run, State: BatchRunning, Created: time.Now().UTC(), Total: len(spec.Episodes),
	}}
	return r.startBatch(ctx, kept)
}

func inLine(i int, err error) error {
	if e, ok := err.(*Error); ok { //nolint:errorlint // made here, wrapped by nobody
		e.Field = fmt.Sprintf("episodes/%d/%s", i, e.Field)
	}
	return err
}

// checkLine checks one line and everything that it names.
func (r *Runner) checkLine(ctx context.Context, owner, run string, e *BatchEpisode) error {
	if e.Run != "" && e.Run != run {
		return badField("run", "%q is not the batch's, %q", e.Run, run)
	}
	e.Run = run
	e.Lease = LeaseSpec{Kind: "daemon"}
	if err := checkSpec(&e.EpisodeSpec); err != nil {
		return err
	}
	kinds := 0
	for _, set := range []bool{len(e.Agent.Calls) > 0, e.Agent.Command != nil, len(e.Agent.Host) > 0} {
		if set {
			kinds++
		}
	}
	if kinds != 1 {
		return badField("agent", "has %d of calls, command and host, must have one", kinds)
	}
	_, _, _, _, err := r.resolve(ctx, Key{Owner: owner, Run: run, ID: e.ID}, e.EpisodeSpec)
	return err
}

// startBatch keeps a batch and sets it going.
func (r *Runner) startBatch(ctx context.Context, kept keptBatch) (Batch, error) {
	if err := r.saveBatch(ctx, kept); err != nil {
		return Batch{}, err
	}
	if err := r.runBatch(kept); err != nil {
		return Batch{}, err
	}
	return r.Batch(ctx, kept.Batch.Owner, kept.Batch.ID)
}

func (r *Runner) saveBatch(ctx context.Context, kept keptBatch) error {
	doc, err := json.Marshal(kept)
	if err == nil {
		err = r.cfg.Record.PutDocument(ctx, batchesKept, batchKey(kept.Batch.Owner, kept.Batch.ID), doc, Synced)
	}
	if err != nil {
		return fmt.Errorf("keep batch: %w", err)
	}
	return nil
}

func (r *Runner) loadBatch(ctx context.Context, owner, id string) (keptBatch, error) {
	doc, err := r.cfg.Record.Document(ctx, batchesKept, batchKey(owner, id))
	if err != nil {
		if KindOf(err) == KindNotFound {
			err = notFound("no batch %q", id)
		}
		return keptBatch{}, err
	}
	return decodeBatch(doc)
}

func decodeBatch(doc json.RawMessage) (keptBatch, error) {
	var kept keptBatch
	if err := json.Unmarshal(doc, &kept); err != nil {
		return keptBatch{}, &Error{Kind: KindRecordDamaged, Detail: "batch: " + err.Error()}
	}
	return kept, nil
}

// ResumeBatch goes on with a batch that was interrupted or cancelled: what has a result
// with a reward is done, the rest is made or scored. A running or finished one stays as
// it is.
func (r *Runner) ResumeBatch(ctx context.Context, owner, id string) (Batch, error) {
	kept, err := r.loadBatch(ctx, owner, id)
	if err != nil {
		return Batch{}, err
	}
	if r.liveBatch(owner, id) != nil || kept.Batch.State == BatchDone {
		return r.Batch(ctx, owner, id)
	}
	kept.Batch.State, kept.Batch.Error = BatchRunning, ""
	return r.startBatch(ctx, kept)
}

// Batch returns a batch with its counts and groups.
func (r *Runner) Batch(ctx context.Context, owner, id string) (Batch, error) {
	kept, err := r.loadBatch(ctx, owner, id)
	if err != nil {
		return Batch{}, err
	}
	results, err := r.resultsOf(ctx, owner, id)
	if err != nil {
		return Batch{}, err
	}
	return r.summary(kept, results), nil
}

// Batches lists an owner's batches, without their groups.
func (r *Runner) Batches(ctx context.Context, owner string) ([]Batch, error) {
	var all []Batch
	after := ""
	for {
		docs, err := r.cfg.Record.Documents(ctx, batchesKept, owner+"/", after, resultsPage)
		if err != nil {
			return nil, fmt.Errorf("list batches: %w", err)
		}
		for _, d := range docs {
			kept, err := decodeBatch(d.Doc)
			if err != nil {
				return nil, err
			}
			results, err := r.resultsOf(ctx, owner, kept.Batch.ID)
			if err != nil {
				return nil, err
			}
			b := r.summary(kept, results)
			b.Groups = nil
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

// resultsOf are a batch's results so far, the last one of each episode, by id.
func (r *Runner) resultsOf(ctx context.Context, owner, id string) (map[string]BatchResult, error) {
	byID := map[string]BatchResult{}
	err := r.readResults(ctx, owner, id, 0, func(b BatchResult) error {
		byID[b.ID] = b
		return nil
	})
	return byID, err
}

// readResults yields what is kept after a sequence number.
func (r *Runner) readResults(ctx context.Context, owner, id string, after int64, yield func(BatchResult) error) error {
	for {
		docs, err := r.cfg.Record.Documents(ctx, resultsKept, batchKey(owner, id)+"/", resultKey(owner, id, after), resultsPage)
		if err != nil {
			return fmt.Errorf("read results: %w", err)
		}
		for _, d := range docs {
			var one BatchResult
			if err := json.Unmarshal(d.Doc, &one); err != nil {
				return &Error{Kind: KindRecordDamaged, Detail: "batch result: " + err.Error()}
			}
			if err := yield(one); err != nil {
				return err
			}
			after = one.Seq
		}
		if len(docs) < resultsPage {
			return nil
		}
	}
}

// summary counts results.
func (r *Runner) summary(kept keptBatch, results map[string]BatchResult) Batch {
	b := kept.Batch
	if b.State == BatchRunning && r.liveBatch(b.Owner, b.ID) == nil {
		b.State = BatchInterrupted
	}
	b.Causes = map[string]int{}
	groups := map[string]*BatchGroup{}
	rewards := map[string][]float64{}
	var order []string
	for i := range kept.Spec.Episodes {
		e := &kept.Spec.Episodes[i]
		name := orText(e.Group, e.ID)
		g := groups[name]
		if g == nil {
			g = &BatchGroup{Group: name}
			groups[name] = g
			order = append(order, name)
		}
		g.Wanted++
		res, ok := results[e.ID]
		if !ok {
			continue
		}
		b.Done++
		g.Done++
		b.Causes[string(res.Status)+"/"+string(res.Cause)]++
		if res.Reward == nil {
			b.Void++
			g.Void++
			continue
		}
		b.Valid++
		g.Valid++
		rewards[name] = append(rewards[name], *res.Reward)
	}
	for _, name := range order {
		g := groups[name]
		g.Mean, g.Std, g.Spread = spread(rewards[name])
		b.Groups = append(b.Groups, *g)
	}
	return b
}

// spread is mean and deviation of valid rewards; nil where there are none.
func spread(rewards []float64) (mean, std *float64, differ bool) {
	if len(rewards) == 0 {
		return nil, nil, false
	}
	var sum, square float64
	for _, x := range rewards {
		sum += x
	}
	m := sum / float64(len(rewards))
	for _, x := range rewards {
		square += (x - m) * (x - m)
		differ = differ || x != rewards[0]
	}
	s := math.Sqrt(square / float64(len(rewards)))
	return &m, &s, differ
}

// ScoreBatch scores a finished batch's end states again, as a new batch; no agent runs.
func (r *Runner) ScoreBatch(ctx context.Context, owner, id string, graders []WeightedGrader) (Batch, error) {
	kept, err := r.loadBatch(ctx, owner, id)
	if err != nil {
		return Batch{}, err
	}
	if len(graders) == 0 {
		return Batch{}, badField("graders", "is empty")
	}
	for i, g := range graders {
		if _, err := r.Grader(ctx, g.Grader); err != nil {
			if e, ok := err.(*Error); ok { //nolint:errorlint // as made by Grader
				e.Field = fmt.Sprintf("graders/%d", i)
			}
			return Batch{}, err
		}
	}
	again := keptBatch{Spec: kept.Spec, Graders: graders, Batch: Batch{
		ID: "b-" + uuid.NewString()[:13], Owner: owner, Run: kept.Batch.Run, Of: id, State: BatchRunning, Created: time.Now().UTC(), Total: kept.Batch.Total,
	}}
	return r.startBatch(ctx, again)
}

// CancelBatch ends a batch: what is live of it is cancelled, what was not started stays so.
func (r *Runner) CancelBatch(ctx context.Context, owner, id, reason string) (Batch, error) {
	if _, err := r.loadBatch(ctx, owner, id); err != nil {
		return Batch{}, err
	}
	if b := r.liveBatch(owner, id); b != nil {
		b.cancel(cut(reason))
		select {
		case <-b.over:
		case <-ctx.Done():
			return Batch{}, context.Cause(ctx)
		}
	}
	return r.Batch(ctx, owner, id)
}

// Results yields results in order of completion, after a sequence number. With follow it
// waits for more until the batch is no longer running.
func (r *Runner) Results(ctx context.Context, owner, id string, after int64, follow bool, yield func(BatchResult) error) error {
	if _, err := r.loadBatch(ctx, owner, id); err != nil {
		return err
	}
	for {
		live := r.liveBatch(owner, id)
		var more <-chan struct{}
		if live != nil {
			more = live.changed()
		}
		err := r.readResults(ctx, owner, id, after, func(b BatchResult) error {
			after = b.Seq
			return yield(b)
		})
		if err != nil || !follow || live == nil {
			return err
		}
		select {
		case <-more:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func orText(s, other string) string {
	if s == "" {
		return other
	}
	return s
}
