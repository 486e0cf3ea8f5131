package api

import "time"

// AgentSpec says who acts in an episode of a batch; exactly one field is set.
type AgentSpec struct {
	Calls   []CallSpec `json:"calls,omitempty" doc:"made one after another; then the episode is finished"`
	Command *CallSpec  `json:"command,omitempty" doc:"an exec inside the sandbox whose exit is the agent's end"`
	Host    []string   `json:"host,omitempty" doc:"a program of the host, run for each episode as a user of its own with a socket that reaches that episode only"`
}

// BatchEpisode is one line of a manifest.
type BatchEpisode struct {
	EpisodeSpec
	Agent AgentSpec `json:"agent"`
}

// BatchSpec asks for a batch.
type BatchSpec struct {
	Run      string         `json:"run,omitempty" doc:"opened when it is new"`
	Seed     uint32         `json:"seed,omitempty" doc:"of the run, when it is new"`
	Parallel int            `json:"parallel,omitempty" doc:"episodes under way at once; unset is a default for the host"`
	Episodes []BatchEpisode `json:"episodes"`
}

// Batch is many episodes.
type Batch struct {
	ID      string         `json:"id"`
	Owner   string         `json:"owner"`
	Run     string         `json:"run"`
	State   string         `json:"state" doc:"running, interrupted, cancelled or done"`
	Of      string         `json:"of,omitempty" doc:"the batch whose end states this one scores again"`
	Created time.Time      `json:"created"`
	Total   int            `json:"total"`
	Done    int            `json:"done"`
	Valid   int            `json:"valid"`
	Void    int            `json:"void"`
	Causes  map[string]int `json:"causes,omitempty" doc:"results by status/cause"`
	Groups  []BatchGroup   `json:"groups,omitempty"`
	Error   string         `json:"error,omitempty"`
}

// BatchGroup is what came of one group; mean and std are over its valid members only.
type BatchGroup struct {
	Group  string   `json:"group"`
	Wanted int      `json:"wanted"`
	Done   int      `json:"done"`
	Valid  int      `json:"valid"`
	Void   int      `json:"void"`
	Mean   *float64 `json:"mean"`
	Std    *float64 `json:"std"`
	Spread bool     `json:"spread" doc:"not all valid rewards are equal"`
}

// Batches is a list of batches.
type Batches struct {
	Batches []Batch `json:"batches"`
}

// BatchResult is one episode's result in a batch.
type BatchResult struct {
	Seq      int64    `json:"seq"`
	Run      string   `json:"run"`
	ID       string   `json:"id"`
	Group    string   `json:"group,omitempty"`
	Task     string   `json:"task,omitempty"`
	Attempt  int      `json:"attempt"`
	Status   string   `json:"status"`
	Cause    string   `json:"cause"`
	Step     string   `json:"step,omitempty"`
	Reward   *float64 `json:"reward"`
	Valid    bool     `json:"valid"`
	Scores   []Score  `json:"scores,omitempty"`
	Digests  Digests  `json:"digests"`
	Evidence []string `json:"evidence,omitempty" doc:"why there is no reward"`
}
