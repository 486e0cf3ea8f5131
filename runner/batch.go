package runner

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
)

// AgentSpec says who acts in an episode of a batch. Exactly one of Calls, Command and
// Host is set.
type AgentSpec struct {
	// Calls are made one after another; then the episode is finished.
	Calls []CallSpec `json:"calls,omitempty"`
	// Command is run inside the sandbox; its exit is the agent's end: 0 is ok, all else failed.
	Command *CallSpec `json:"command,omitempty"`
	// Host is a program of the host, run once for each attempt as a user of its own with a
	// socket that reaches this episode only (PADDOCK_SOCKET). It finds the episode's input
	// on its stdin, and in PADDOCK_INPUT where it is short.
	Host []string `json:"host,omitempty"`
	// Answer is what the episode is finished with, for calls and command.
	Answer json.RawMessage `json:"answer,omitempty"`
}

// BatchEpisode is one line of a manifest.
type BatchEpisode struct {
	EpisodeSpec
	Agent AgentSpec `json:"agent"`
}

// BatchSpec asks for a batch.
type BatchSpec struct {
	// ID may be chosen by the caller: to ask again with the same spec is to ask for the
	// same batch.
	ID string `json:"id,omitempty"`
	// Run is the run of all its episodes; it is opened when it is new, with Seed.
	Run  string `json:"run,omitempty"`
	Seed uint32 `json:"seed,omitempty"`
	// Parallel bounds the episodes under way at once; 0 is a default for the host.
	Parallel int `json:"parallel,omitempty"`
	// DeadlineS bounds the batch from its start or last resume; when it passes, what has
	// not ended is cancelled. 0 is none.
	DeadlineS float64 `json:"deadline_s,omitempty"`
	// OnVoid is "drop" (default) or "void_group": whether one void member voids its group.
	// A group with less than MinValid (default 2, at most its size) valid members is void.
	OnVoid   string         `json:"on_void,omitempty"`
	MinValid int            `json:"min_valid,omitempty"`
	Episodes []BatchEpisode `json:"episodes"`
}

// BatchState is where a batch is.
type BatchState string

// The states of a batch. All but running and done may be resumed.
const (
	BatchRunning     BatchState = "running"
	BatchInterrupted BatchState = "interrupted"
	BatchCancelled   BatchState = "cancelled"
	// BatchDegraded: the platform fails too often in one step, and retries would be burnt.
	BatchDegraded BatchState = "degraded"
	// BatchGraderBroken: a grader cannot judge an untouched world.
	BatchGraderBroken BatchState = "grader_broken"
	BatchDone         BatchState = "done"
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
	Total int `json:"total"`
	Done  int `json:"done"`
	Valid int `json:"valid"`
	Void  int `json:"void"`
	// Causes counts results by "status/cause" of what decided them.
	Causes map[string]int `json:"causes,omitempty"`
	Groups []BatchGroup   `json:"groups,omitempty"`
	// Error says why it does not run, where that is not its end.
	Error string `json:"error,omitempty"`
	// Seq is the last result's.
	Seq int64 `json:"seq"`
}

// BatchGroup is what came of one group; Mean and Std are over valid members only.
type BatchGroup struct {
	Group  string `json:"group"`
	Wanted int    `json:"wanted"`
	Done   int    `json:"done"`
	Valid  int    `json:"valid"`
	Void   int    `json:"void"`
	// Rewards are the members' in order of the manifest, null for void and missing ones.
	Rewards []*float64 `json:"rewards"`
	Mean    *float64   `json:"mean"`
	// Std is the population's deviation (divided by the number of valid members).
	Std *float64 `json:"std"`
	// Spread says that not all valid rewards are equal.
	Spread bool           `json:"spread"`
	Causes map[string]int `json:"causes,omitempty"`
	// Complete says that every member has a result; IsVoid that it has too few valid ones.
	Complete bool `json:"complete"`
	IsVoid   bool `json:"is_void"`
}

// BatchResult is one episode's result in a batch. It may come again with the same (ID,
// Attempt) after a resume.
type BatchResult struct {
	Seq     int64  `json:"seq"`
	Run     string `json:"run"`
	ID      string `json:"id"`
	Group   string `json:"group,omitempty"`
	Task    string `json:"task,omitempty"`
	Weights string `json:"weights,omitempty"`
	// Attempt is 0 for an episode that never began.
	Attempt int      `json:"attempt"`
	Status  Status   `json:"status"`
	Cause   Cause    `json:"cause"`
	Step    string   `json:"step,omitempty"`
	Flags   []string `json:"flags,omitempty"`
	// Reason is the client's text of an abort or cancel.
	Reason  string          `json:"reason,omitempty"`
	Reward  *float64        `json:"reward"`
	Valid   bool            `json:"valid"`
	Scores  []ScoreResult   `json:"scores,omitempty"`
	Digests Digests         `json:"digests"`
	Clocks  Clocks          `json:"clocks"`
	Calls   int64           `json:"calls"`
	Answer  json.RawMessage `json:"answer,omitempty"`
	Payload *PayloadSummary `json:"payload,omitempty"`
	// Evidence says why there is no reward.
	Evidence []string  `json:"evidence,omitempty"`
	At       time.Time `json:"at"`
}

const (
	batchDocuments  = "batches"
	resultDocuments = "batch_results"
	// MaxBatch bounds the episodes of a batch.
	MaxBatch    = 100_000
	maxParallel = 4096
	resultsPage = 500
)

// keptBatch is what is recorded of a batch.
type keptBatch struct {
	Batch  Batch     `json:"batch"`
	Spec   BatchSpec `json:"spec"`
	Digest string    `json:"digest"`
	// Graders are those of a batch that scores again.
	Graders []WeightedGrader `json:"graders,omitempty"`
}

func batchKey(owner, id string) string { return owner + "/" + id }

func resultKey(owner, id string, seq int64) string {
	return fmt.Sprintf("%s/%s/%012d", owner, id, seq)
}

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
	} else if kept, err := r.loadBatch(ctx, owner, spec.ID); err == nil {
		if kept.Digest != digest {
			return Batch{}, &Error{Kind: KindSpecConflict, Field: "id", Detail: "the batch is known with another spec"}
		}
		return r.Batch(ctx, owner, spec.ID)
	}
	if _, err := r.OpenRun(ctx, owner, RunSpec{Name: spec.Run, Seed: spec.Seed, Resume: "auto"}); err != nil {
		return Batch{}, err
	}
	for i := range spec.Episodes {
		e := &spec.Episodes[i]
		if _, _, _, _, err := r.resolve(ctx, Key{Owner: owner, Run: spec.Run, ID: e.ID}, e.EpisodeSpec); err != nil {
			return Batch{}, inLine(i, err)
		}
	}
	return r.startBatch(ctx, keptBatch{Spec: spec, Digest: digest, Batch: Batch{
		ID: spec.ID, Owner: owner, Run: spec.Run, State: BatchRunning, Created: time.Now().UTC(), Total: len(spec.Episodes),
	}})
}

// startBatch keeps a batch and sets it going.
func (r *Runner) startBatch(ctx context.Context, kept keptBatch) (Batch, error) {
	if err := r.saveBatch(ctx, kept); err != nil {
		return Batch{}, err
	}
	if err := r.runBatch(kept); err != nil { //nolint:contextcheck // a batch outlives the request that made it
		return Batch{}, err
	}
	return r.Batch(ctx, kept.Batch.Owner, kept.Batch.ID)
}

func (r *Runner) saveBatch(ctx context.Context, kept keptBatch) error {
	doc, err := json.Marshal(kept)
	if err == nil {
		err = r.cfg.Record.PutDocument(ctx, batchDocuments, batchKey(kept.Batch.Owner, kept.Batch.ID), doc, Synced)
	}
	if err != nil {
		return fmt.Errorf("record batch: %w", err)
	}
	return nil
}

func (r *Runner) loadBatch(ctx context.Context, owner, id string) (keptBatch, error) {
	doc, err := r.cfg.Record.Document(ctx, batchDocuments, batchKey(owner, id))
	if KindOf(err) == KindNotFound {
		return keptBatch{}, notFound("no batch %q", id)
	}
	if err != nil {
		return keptBatch{}, fmt.Errorf("look up batch: %w", err)
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

// ResumeBatch goes on with a batch that does not run: what has a reward, or ended in a way
// that is not tried again, is done; the rest is made or scored. A running or finished one
// stays as it is.
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
	live := r.liveBatch(owner, id) != nil // before the record: what ends in between is whole there
	kept, err := r.loadBatch(ctx, owner, id)
	if err != nil {
		return Batch{}, err
	}
	results, err := r.resultsOf(ctx, owner, id)
	if err != nil {
		return Batch{}, err
	}
	return summary(&kept, results, live), nil
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
			kept, err := decodeBatch(d.Doc)
			if err != nil {
				return nil, err
			}
			b, err := r.Batch(ctx, owner, kept.Batch.ID)
			if err != nil {
				return nil, err
			}
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
		docs, err := r.cfg.Record.Documents(ctx, resultDocuments, batchKey(owner, id)+"/", resultKey(owner, id, after), resultsPage)
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

// Results yields results in order of completion, after a sequence number. With follow it
// waits for more until the batch no longer runs. A result is on disk before it is seen.
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
		err := r.readResults(ctx, owner, id, max(after, 0), func(b BatchResult) error {
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

// ScoreBatch scores a batch's end states again, as a new batch; no agent runs. Attempts
// whose agent's phase has no reward to give are not scored and come as they are.
func (r *Runner) ScoreBatch(ctx context.Context, owner, id string, graders []WeightedGrader) (Batch, error) {
	kept, err := r.loadBatch(ctx, owner, id)
	if err != nil {
		return Batch{}, err
	}
	if r.liveBatch(owner, id) != nil {
		return Batch{}, &Error{Kind: KindInUse, Detail: fmt.Sprintf("batch %q still runs", id)}
	}
	if len(graders) == 0 || len(graders) > maxGraders {
		return Batch{}, badField("graders", "has %d, must have 1 to %d", len(graders), maxGraders)
	}
	for i, g := range graders {
		if _, err := r.Grader(ctx, g.Grader); err != nil {
			if KindOf(err) == KindUnknownGrader {
				return Batch{}, &Error{Kind: KindUnknownGrader, Field: fmt.Sprintf("graders/%d", i), Detail: err.Error()}
			}
			return Batch{}, err
		}
	}
	again := keptBatch{Spec: kept.Spec, Graders: graders, Batch: Batch{
		ID: "b-" + uuid.NewString()[:13], Owner: owner, Run: kept.Batch.Run, Of: id,
		State: BatchRunning, Created: time.Now().UTC(), Total: kept.Batch.Total,
	}}
	again.Spec.ID = again.Batch.ID
	return r.startBatch(ctx, again)
}

// CancelBatch ends a batch: what is live of it is cancelled (client, null), what was not
// started stays so.
func (r *Runner) CancelBatch(ctx context.Context, owner, id, reason string) (Batch, error) {
	kept, err := r.loadBatch(ctx, owner, id)
	if err != nil {
		return Batch{}, err
	}
	if b := r.liveBatch(owner, id); b != nil {
		b.cancel(cut(reason))
		select {
		case <-b.over:
		case <-ctx.Done():
			return Batch{}, context.Cause(ctx)
		}
	} else if kept.Batch.State != BatchDone {
		kept.Batch.State, kept.Batch.Error = BatchCancelled, cut(reason)
		if err := r.saveBatch(ctx, kept); err != nil {
			return Batch{}, err
		}
	}
	return r.Batch(ctx, owner, id)
}
