package api

import (
	"encoding/json"
	"time"
)

// SimulatorSpec describes a kind of environment that is reset and stepped. Exactly one of
// env and command is set.
type SimulatorSpec struct {
	World   string          `json:"world"`
	Env     string          `json:"env,omitempty" doc:"the id of a Gymnasium environment that the world's python3 can make"`
	Kwargs  json.RawMessage `json:"kwargs,omitempty" doc:"an object: further arguments of gymnasium.make"`
	Command []string        `json:"command,omitempty" doc:"a program of the world that speaks the simulators' protocol itself"`

	Policy string            `json:"policy,omitempty"`
	Vars   map[string]string `json:"vars,omitempty" doc:"of the program's environment"`
	User   string            `json:"user,omitempty"`
	Cwd    string            `json:"cwd,omitempty"`

	Limits      Limits   `json:"limits,omitzero"`
	Requests    Requests `json:"requests,omitzero"`
	Budgets     Budgets  `json:"budgets,omitzero"`
	StepS       float64  `json:"step_s,omitempty" doc:"bounds one step; 10 unless set"`
	ResetS      float64  `json:"reset_s,omitempty" doc:"bounds one reset; 60 unless set"`
	MaxMessage  Size     `json:"max_message,omitempty" doc:"bounds one answer of the program; 16MiB unless set"`
	MaxSnapshot Size     `json:"max_snapshot,omitempty" doc:"bounds one snapshot; 8MiB unless set, and at most max_message"`

	Record      string  `json:"record,omitempty" doc:"what the trajectory keeps of steps: all (default), actions (answers as length and hash) or ends (resets and last steps)"`
	AllowNaN    bool    `json:"allow_nan,omitempty" doc:"observations may hold numbers that are not finite"`
	CrashReward float64 `json:"crash_reward,omitempty" doc:"what a fault of the world's own adds to the rewards so far"`

	Ready *int `json:"ready,omitempty" doc:"how many sandboxes are kept in which the program waits; 4 unless set"`
}

// Simulator is a kind of environment that was found to work.
type Simulator struct {
	ID   string        `json:"id"`
	Spec SimulatorSpec `json:"spec" doc:"with the defaults filled in"`
	// Hello is what the program said of itself.
	Hello json.RawMessage `json:"hello" doc:"what the program said of itself: observation_space and action_space as JSON schemas, metadata, spec"`
	Made  int             `json:"made" doc:"how many sandboxes are ready now"`
}

// EnvsProtocol is what a connection to a simulator's environments is upgraded to.
const EnvsProtocol = "paddock-envs/1"

// EnvRequest is one line that the client sends on such a connection. Lines for different
// environments are served beside each other, those for one in order.
type EnvRequest struct {
	Env int    `json:"env" doc:"the client's number for the environment, from 0"`
	Op  string `json:"op" doc:"make, reset, step, render, snapshot, restore or close"`

	Make     *EnvSpec        `json:"make,omitempty"`
	Seed     *int64          `json:"seed,omitempty" doc:"of a reset"`
	Options  json.RawMessage `json:"options,omitempty" doc:"of a reset: an object"`
	Action   json.RawMessage `json:"action,omitempty" doc:"of a step"`
	Snapshot string          `json:"snapshot,omitempty" doc:"of a restore: a snapshot's id"`
}

// EnvSpec asks for one environment: one episode.
type EnvSpec struct {
	Run        string            `json:"run,omitempty"`
	ID         string            `json:"id,omitempty" doc:"the episode's; made up in the run default"`
	Group      string            `json:"group,omitempty"`
	Task       string            `json:"task,omitempty"`
	Weights    string            `json:"weights,omitempty"`
	EnvSeed    *uint32           `json:"env_seed,omitempty"`
	Graders    []WeightedGrader  `json:"graders,omitempty"`
	Labels     map[string]string `json:"labels,omitempty"`
	Retries    int               `json:"retries,omitempty"`
	Generation int64             `json:"generation,omitempty"`
}

// EnvReply is one line that the daemon answers with, one for each request. After it come
// the raw bytes whose lengths frames has. A reset, step, render or restore has an
// observation unless it has a fault or the environment has ended.
type EnvReply struct {
	Env int    `json:"env"`
	Op  string `json:"op"`

	Observation json.RawMessage `json:"observation,omitempty"`
	Reward      *float64        `json:"reward,omitempty"`
	Terminated  *bool           `json:"terminated,omitempty"`
	Truncated   *bool           `json:"truncated,omitempty"`
	Info        json.RawMessage `json:"info,omitempty"`
	Frames      []int64         `json:"frames,omitempty"`

	Fault *CallFault `json:"fault,omitempty" doc:"why nothing was done (bad_action, needs_reset, snapshot_unsupported, snapshot_too_large, bad_snapshot), or what the simulator did"`
	Ended *EnvEnded  `json:"ended,omitempty" doc:"the environment's episode has ended"`
	// Episode is the answer to make.
	Episode *EnvEpisode `json:"episode,omitempty"`
	// Snapshot is the answer to snapshot.
	Snapshot *Snapshot `json:"snapshot,omitempty"`
	// Problem is a refused request; nothing was done.
	Problem *Error `json:"problem,omitempty"`
}

// Snapshot is a state of an environment, kept to be put into any environment of the same
// world and program. Its bytes are the program's and are given to nobody else.
type Snapshot struct {
	ID      string     `json:"id"`
	Episode EnvEpisode `json:"episode" doc:"that was in the state"`
	Seq     int64      `json:"seq" doc:"of the call that took it"`
	Bytes   Size       `json:"bytes"`
	SHA256  string     `json:"sha256"`

	Rollouts   int64   `json:"rollouts" doc:"these are of the way that led to the state; a restore sets them"`
	Steps      int64   `json:"steps"`
	Return     float64 `json:"return" doc:"the sum of the rewards"`
	Terminated bool    `json:"terminated" doc:"the rollout was over: a reset must be next"`
	Truncated  bool    `json:"truncated"`

	Created time.Time `json:"created"`
}

// Snapshots are a tenant's snapshots in order of their ids, and what all of them take.
type Snapshots struct {
	Snapshots []Snapshot `json:"snapshots"`
	More      bool       `json:"more" doc:"ask again with after set to the last id"`
	Bytes     Size       `json:"bytes" doc:"of all; the longest unused give way to new ones"`
	MaxBytes  Size       `json:"max_bytes"`
	Count     int64      `json:"count"`
	MaxCount  int64      `json:"max_count"`
}

// EnvEnded is how an environment's episode ended.
type EnvEnded struct {
	End    End      `json:"end"`
	Reward *float64 `json:"reward"`
	Valid  bool     `json:"valid"`
}

// EnvEpisode names an environment's episode.
type EnvEpisode struct {
	Run     string `json:"run"`
	ID      string `json:"id"`
	Attempt int    `json:"attempt"`
	EnvSeed uint32 `json:"env_seed"`
}
