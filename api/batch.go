package api

import (
	"encoding/json"
	"time"
)

// AgentSpec says who acts in an episode of a batch: exactly one of Calls, Command, Host.
type AgentSpec struct {
	Calls   []CallSpec      `json:"calls,omitempty" doc:"made one after another; then the episode is finished"`
	Command *CallSpec       `json:"command,omitempty" doc:"run inside the sandbox; its exit is the agent's end"`
	Host    []string        `json:"host,omitempty" doc:"a program of the host, run as a user of its own, with a socket (PADDOCK_SOCKET) that reaches this episode alone"`
	Answer  json.RawMessage `json:"answer,omitempty" doc:"what the episode is finished with, for calls and command"`
}

// BatchEpisode is one line of a manifest: an episode and who acts in it.
type BatchEpisode struct {
	EpisodeSpec
	Agent AgentSpec `json:"agent"`
}

// BatchSpec asks for a batch.
type BatchSpec struct {
	ID        string         `json:"id,omitempty" doc:"to ask again with the same spec is to ask for the same batch"`
	Run       string         `json:"run,omitempty" doc:"the run of all its episodes; opened when it is new"`
	Seed      uint32         `json:"seed,omitempty"`
	Parallel  int            `json:"parallel,omitempty" doc:"episodes under way at once; a default for the host when unset"`
	DeadlineS float64        `json:"deadline_s,omitempty"`
	OnVoid    string         `json:"on_void,omitempty" doc:"drop (default) or void_group"`
	MinValid  int            `json:"min_valid,omitempty" doc:"below it a group is void; 2 by default"`
	Episodes  []BatchEpisode `json:"episodes"`
}

// Batch is many episodes.
type Batch struct {
	ID      string         `json:"id"`
	Owner   string         `json:"owner"`
	Run     string         `json:"run"`
	State   string         `json:"state" doc:"running, interrupted, cancelled, degraded, grader_broken or done"`
	Of      string         `json:"of,omitempty" doc:"the batch whose end states this one scores again"`
	Created time.Time      `json:"created"`
	Total   int            `json:"total"`
	Done    int            `json:"done"`
	Valid   int            `json:"valid"`
	Void    int            `json:"void"`
	Causes  map[string]int `json:"causes,omitempty" doc:"results by status/cause"`
	Groups  []Group        `json:"groups,omitempty"`
	Error   string         `json:"error,omitempty" doc:"why it does not run, where that is not its end"`
	Seq     int64          `json:"seq" doc:"the last result's"`
}

// Group is what came of one group; mean and std are over valid members only.
type Group struct {
	Group    string         `json:"group"`
	Wanted   int            `json:"wanted"`
	Done     int            `json:"done"`
	Valid    int            `json:"valid"`
	Void     int            `json:"void"`
	Rewards  []*float64     `json:"rewards" doc:"in order of the manifest; null for void and missing ones"`
	Mean     *float64       `json:"mean"`
	Std      *float64       `json:"std"`
	Spread   bool           `json:"spread" doc:"not all valid rewards are equal"`
	Causes   map[string]int `json:"causes,omitempty"`
	Complete bool           `json:"complete"`
	IsVoid   bool           `json:"is_void"`
}

// Batches is a list of batches.
type Batches struct {
	Batches []Batch `json:"batches"`
}

// BatchResult is one episode's result in a batch. It may come again with the same (ID,
// Attempt) after a resume.
type BatchResult struct {
	Seq      int64           `json:"seq"`
	Run      string          `json:"run"`
	ID       string          `json:"id"`
	Group    string          `json:"group,omitempty"`
	Task     string          `json:"task,omitempty"`
	Weights  string          `json:"weights,omitempty"`
	Attempt  int             `json:"attempt" doc:"0 for an episode that never began"`
	Status   string          `json:"status"`
	Cause    string          `json:"cause"`
	Step     string          `json:"step,omitempty"`
	Flags    []string        `json:"flags,omitempty"`
	Reason   string          `json:"reason,omitempty"`
	Reward   *float64        `json:"reward"`
	Valid    bool            `json:"valid"`
	Scores   []Score         `json:"scores,omitempty"`
	Digests  Digests         `json:"digests"`
	Clocks   Clocks          `json:"clocks"`
	Calls    int64           `json:"calls"`
	Answer   json.RawMessage `json:"answer,omitempty"`
	Payload  *PayloadSummary `json:"payload,omitempty"`
	Evidence []string        `json:"evidence,omitempty"`
	At       time.Time       `json:"at"`
}
