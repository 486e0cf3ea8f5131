package api

import (
	"encoding/json"
	"time"
)

// AgentSpec says who acts in an episode of a batch: exactly one of Calls, Command, Host,
// Client.
type AgentSpec struct {
	Calls   []CallSpec      `json:"calls,omitempty" doc:"made one after another; then the episode is finished"`
	Command *CallSpec       `json:"command,omitempty" doc:"run inside the sandbox; its exit is the agent's end"`
	Host    []string        `json:"host,omitempty" doc:"a program of the host, run as a user of its own, with a socket (PADDOCK_SOCKET) that reaches this episode alone"`
	Client  bool            `json:"client,omitempty" doc:"whoever reads the batch's work plays the episode; until somebody does, the line waits"`
	Answer  json.RawMessage `json:"answer,omitempty" doc:"what the episode is finished with, for calls and command"`
}

// BatchEpisode is one line of a batch: an episode and who acts in it.
type BatchEpisode struct {
	EpisodeSpec
	Agent AgentSpec `json:"agent"`
}

// BatchSpec asks for a batch.
type BatchSpec struct {
	ID        string         `json:"id,omitempty" doc:"to ask again with the same spec is to ask for the same batch"`
	Run       string         `json:"run,omitempty" doc:"the run of all its episodes; without the generation header it is opened, which fences its earlier driver"`
	Seed      uint32         `json:"seed,omitempty" doc:"of a run that is new"`
	Open      bool           `json:"open,omitempty" doc:"a queue: lines may be added until it is sealed"`
	Parallel  int            `json:"parallel,omitempty" doc:"episodes under way at once; when unset a default for the host, and 4096 for lines that need a client"`
	DeadlineS float64        `json:"deadline_s,omitempty" doc:"from its start or last resume; then it is sealed and the rest is cancelled"`
	GroupSize int            `json:"group_size,omitempty" doc:"a group is complete with so many valid members, and those beyond are surplus; unset: with a result of each line"`
	Take      string         `json:"take,omitempty" doc:"which valid members count, with group_size: started (default; the first by order of start) or finished (the first to end; prefers short episodes)"`
	OnVoid    string         `json:"on_void,omitempty" doc:"drop (default), refill:K (at most K new members for a group's void ones) or void_group"`
	MinValid  int            `json:"min_valid,omitempty" doc:"below it a group is void; 2 by default"`
	Episodes  []BatchEpisode `json:"episodes,omitempty" doc:"at least one, unless it is open"`
}

// BatchLines are lines to add to an open batch.
type BatchLines struct {
	Episodes []BatchEpisode `json:"episodes"`
}

// BatchAdded is what came of adding lines.
type BatchAdded struct {
	Added int   `json:"added"`
	Known int   `json:"known" doc:"lines that had been added before and stay as they are"`
	Batch Batch `json:"batch"`
}

// BatchCancel says what of a batch to cancel. At most one of Prefix, Group, Weights and
// WeightsBefore is set; none is the whole batch.
type BatchCancel struct {
	Reason        string `json:"reason,omitempty"`
	Prefix        string `json:"prefix,omitempty" doc:"lines whose ids are it or below it"`
	Group         string `json:"group,omitempty"`
	Weights       string `json:"weights,omitempty"`
	WeightsBefore string `json:"weights_before,omitempty" doc:"lines made by weights that the run first used before these; before those it has not used yet come all"`
}

// BatchCancelled is a batch after a cancel.
type BatchCancelled struct {
	Batch
	Cancelled int `json:"cancelled" doc:"lines that had no result yet"`
}

// BatchReward is a reward that the client found for an episode of a batch.
type BatchReward struct {
	ID string `json:"id" doc:"the episode's"`
	RewardSpec
}

// Work is what a batch asks a client to do: to play an episode's live attempt to its end
// (kind play), or to write rewards of an ended one (kind score). A reader that comes back
// is asked again what it has not done; (kind, id, attempt) is the key.
type Work struct {
	Kind     string   `json:"kind" doc:"play or score"`
	ID       string   `json:"id" doc:"the episode's"`
	Attempt  int      `json:"attempt"`
	RefillOf string   `json:"refill_of,omitempty" doc:"the id of the line in whose place this one was made"`
	Graders  []string `json:"graders,omitempty" doc:"of kind score: names of the client's graders whose rewards are missing"`
	Episode  Episode  `json:"episode"`
}

// Batch is many episodes.
type Batch struct {
	ID         string         `json:"id"`
	Owner      string         `json:"owner"`
	Run        string         `json:"run"`
	State      string         `json:"state" doc:"running, interrupted, cancelled, degraded, grader_broken or done"`
	Sealed     bool           `json:"sealed" doc:"no line may be added"`
	Of         string         `json:"of,omitempty" doc:"the batch whose end states this one scores again"`
	Created    time.Time      `json:"created"`
	Parallel   int            `json:"parallel" doc:"0 is the default"`
	DeadlineS  float64        `json:"deadline_s,omitempty"`
	GroupSize  int            `json:"group_size,omitempty"`
	Take       string         `json:"take,omitempty"`
	OnVoid     string         `json:"on_void"`
	MinValid   int            `json:"min_valid"`
	Total      int            `json:"total"`
	Done       int            `json:"done"`
	Valid      int            `json:"valid"`
	Void       int            `json:"void"`
	Surplus    int            `json:"surplus,omitempty" doc:"cancelled because their groups were complete; not void"`
	Playing    int            `json:"playing,omitempty" doc:"lines under way"`
	Clients    int            `json:"clients,omitempty" doc:"readers of its work"`
	Causes     map[string]int `json:"causes,omitempty" doc:"results by status/cause"`
	Groups     []Group        `json:"groups,omitempty" doc:"the latest 1000"`
	MoreGroups bool           `json:"more_groups,omitempty" doc:"there are earlier ones"`
	Error      string         `json:"error,omitempty" doc:"why it does not run, where that is not its end"`
	Seq        int64          `json:"seq" doc:"the last result's"`
	GroupSeq   int64          `json:"group_seq" doc:"the last complete group's"`
}

// Group is what came of one group; mean and std are over the valid members that count.
type Group struct {
	Seq      int64          `json:"seq" doc:"its place among the complete groups; 0 until it is"`
	Group    string         `json:"group"`
	Wanted   int            `json:"wanted"`
	Done     int            `json:"done"`
	Valid    int            `json:"valid"`
	Void     int            `json:"void"`
	Surplus  int            `json:"surplus,omitempty" doc:"left out, with or without a reward"`
	Refills  int            `json:"refills,omitempty"`
	IDs      []string       `json:"ids" doc:"in order of the lines, without surplus ones"`
	Rewards  []*float64     `json:"rewards" doc:"of the ids; null for void and missing ones"`
	Mean     *float64       `json:"mean"`
	Std      *float64       `json:"std" doc:"of the population: divided by the number of valid members"`
	Spread   bool           `json:"spread" doc:"not all valid rewards are equal"`
	Causes   map[string]int `json:"causes,omitempty"`
	Complete bool           `json:"complete"`
	IsVoid   bool           `json:"is_void"`
	Biased   bool           `json:"biased,omitempty" doc:"members were left out because they ended later"`
}

// GroupResult is a complete group with the results of its ids. It comes again with another
// seq when a resume gave a member another result.
type GroupResult struct {
	Group
	Results []BatchResult `json:"results"`
}

// Batches is a list of batches.
type Batches struct {
	Batches []Batch `json:"batches"`
}

// BatchResult is one episode's result in a batch. It may come again with the same (ID,
// Attempt) after a resume.
type BatchResult struct {
	Seq      int64           `json:"seq"`
	Line     int             `json:"line" doc:"the line's number in the batch, from 0"`
	Run      string          `json:"run"`
	ID       string          `json:"id"`
	Group    string          `json:"group,omitempty"`
	Task     string          `json:"task,omitempty"`
	Weights  string          `json:"weights,omitempty"`
	RefillOf string          `json:"refill_of,omitempty" doc:"the id of the void member for which this one was made"`
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
