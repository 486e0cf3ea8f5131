package runner

import (
	"encoding/json"
	"time"
)

// AgentSpec says who acts in an episode of a batch. Exactly one of Calls, Command, Host
// and Client is set.
type AgentSpec struct {
	// Calls are made one after another; then the episode is finished.
	Calls []CallSpec `json:"calls,omitempty"`
	// Command is run inside the sandbox; its exit is the agent's end: 0 is ok, all else failed.
	Command *CallSpec `json:"command,omitempty"`
	// Host is a program of the host, run once for each attempt as a user of its own with a
	// socket that reaches this episode only (PADDOCK_SOCKET). It finds the episode's input
	// on its stdin, and in PADDOCK_INPUT where it is short.
	Host []string `json:"host,omitempty"`
	// Client says that a client plays the episode, as it learns from the batch's work: it
	// makes the calls and finishes it. While nobody reads work, such lines wait.
	Client bool `json:"client,omitempty"`
	// Answer is what the episode is finished with, for calls and command.
	Answer json.RawMessage `json:"answer,omitempty"`
}

// BatchEpisode is one line of a batch.
type BatchEpisode struct {
	EpisodeSpec
	Agent AgentSpec `json:"agent"`
}

// BatchSpec asks for a batch: many episodes in groups. An open one is a queue: lines are
// added until it is sealed. One that is not open is sealed at birth.
type BatchSpec struct {
	// ID may be chosen by the caller: to ask again with the same spec is to ask for the
	// same batch.
	ID string `json:"id,omitempty"`
	// Run is the run of all its episodes. A driver that has opened it gives its Generation;
	// else the run is opened here, with Seed when it is new, which fences who had it before.
	Run        string `json:"run,omitempty"`
	Seed       uint32 `json:"seed,omitempty"`
	Generation int64  `json:"-"`
	Open       bool   `json:"open,omitempty"`
	// Parallel bounds the episodes under way at once; 0 is a default for the host, and
	// 4096 for lines that wait for a client.
	Parallel int `json:"parallel,omitempty"`
	// DeadlineS bounds the batch from its start or last resume; when it passes, the batch is
	// sealed and what has not ended is cancelled. 0 is none.
	DeadlineS float64 `json:"deadline_s,omitempty"`
	// GroupSize is how many valid members make a group complete; what it has beyond them is
	// surplus. 0: a group is complete when each of its lines has a result.
	GroupSize int `json:"group_size,omitempty"`
	// Take says which valid members count when there may be more than GroupSize: "started"
	// (default), by order of start, so that none is left out for being slow; or "finished",
	// by order of end, which prefers short episodes.
	Take string `json:"take,omitempty"`
	// OnVoid is what a void member does: "drop" (default), its group goes on without it;
	// "refill:K", up to K of a group's void members are replaced by new ones with new ids;
	// "void_group". A group with less than MinValid (default 2, at most what it wants) valid
	// members is void.
	OnVoid   string         `json:"on_void,omitempty"`
	MinValid int            `json:"min_valid,omitempty"`
	Episodes []BatchEpisode `json:"episodes,omitempty"`
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
	// BatchDone: it is sealed and each line has its result.
	BatchDone BatchState = "done"
)

// Batch is many episodes.
type Batch struct {
	ID    string     `json:"id"`
	Owner string     `json:"owner"`
	Run   string     `json:"run"`
	State BatchState `json:"state"`
	// Sealed says that no line may be added.
	Sealed bool `json:"sealed"`
	// Of is the batch whose end states this one scores again; empty otherwise.
	Of      string    `json:"of,omitempty"`
	Created time.Time `json:"created"`
	// Parallel to MinValid are the effective ones of its spec; Parallel 0 is the default.
	Parallel  int     `json:"parallel"`
	DeadlineS float64 `json:"deadline_s,omitempty"`
	GroupSize int     `json:"group_size,omitempty"`
	Take      string  `json:"take,omitempty"`
	OnVoid    string  `json:"on_void"`
	MinValid  int     `json:"min_valid"`
	// Total lines, Done results, Valid rewards, Void results without. Surplus members were
	// cancelled because their group was complete; they are done, and not void.
	Total   int `json:"total"`
	Done    int `json:"done"`
	Valid   int `json:"valid"`
	Void    int `json:"void"`
	Surplus int `json:"surplus,omitempty"`
	// Playing lines are under way, and Clients read the batch's work.
	Playing int `json:"playing,omitempty"`
	Clients int `json:"clients,omitempty"`
	// Causes counts results by "status/cause" of what decided them.
	Causes map[string]int `json:"causes,omitempty"`
	// Groups are the latest MaxGroups ones, in order of their first lines; MoreGroups says
	// that there are others.
	Groups     []BatchGroup `json:"groups,omitempty"`
	MoreGroups bool         `json:"more_groups,omitempty"`
	// Error says why it does not run, where that is not its end.
	Error string `json:"error,omitempty"`
	// Seq is the last result's, GroupSeq the last complete group's.
	Seq      int64 `json:"seq"`
	GroupSeq int64 `json:"group_seq"`
}

// BatchResult is one line's result. It may come again with the same (ID, Attempt) after a
// resume.
type BatchResult struct {
	Seq int64 `json:"seq"`
	// Line is the line's number in its batch, from 0.
	Line    int    `json:"line"`
	Run     string `json:"run"`
	ID      string `json:"id"`
	Group   string `json:"group,omitempty"`
	Task    string `json:"task,omitempty"`
	Weights string `json:"weights,omitempty"`
	// RefillOf is the id of the void member that this one was made for.
	RefillOf string `json:"refill_of,omitempty"`
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

// Bounds of batches.
const (
	// MaxBatch bounds the lines of one request.
	MaxBatch = 100_000
	// MaxLines bounds the lines of a batch, refills included.
	MaxLines = 1_000_000
	// MaxGroups bounds the groups that a look at a batch tells.
	MaxGroups = 1000
	// MaxGroupSize bounds a group's size, MaxRefill its refills.
	MaxGroupSize = 4096
	MaxRefill    = 1000
	// maxBatches bounds the batches that run at once.
	maxBatches  = 256
	maxParallel = 4096
)
