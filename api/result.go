package api

import (
	"encoding/json"
	"time"
)

// Episode is one episode with all its attempts.
type Episode struct {
	Owner   string `json:"owner"`
	Run     string `json:"run"`
	ID      string `json:"id"`
	Group   string `json:"group,omitempty"`
	Task    string `json:"task,omitempty"`
	Weights string `json:"weights,omitempty"`
	// World is the world's id, whatever name the spec used.
	World      string `json:"world"`
	Policy     string `json:"policy"`
	PolicyHash string `json:"policy_hash"`
	SpecDigest string `json:"spec_digest"`
	// Effective are the limits in force; Clamped names those lowered to the host's.
	Effective  Effective         `json:"effective"`
	Clamped    []string          `json:"clamped,omitempty"`
	Env        []string          `json:"env,omitempty"`
	EnvSeed    uint32            `json:"env_seed"`
	SampleSeed uint32            `json:"sample_seed"`
	Labels     map[string]string `json:"labels,omitempty"`
	Input      json.RawMessage   `json:"input,omitempty"`
	// BranchOf is set in an episode that was forked from another.
	BranchOf *BranchOf `json:"branch_of,omitempty"`

	State         string     `json:"state" doc:"queued, starting, setup, live, paused, ending, ended, scoring or done"`
	QueuePosition int        `json:"queue_position,omitempty" doc:"1 is the next to start"`
	Lease         LeaseState `json:"lease"`
	Attempts      []Attempt  `json:"attempts"`
	// Reward is that of the first complete attempt, else of the last.
	Reward *float64 `json:"reward"`
	Valid  bool     `json:"valid"`
}

// Last is the latest attempt, nil where there is none.
func (e *Episode) Last() *Attempt {
	if len(e.Attempts) == 0 {
		return nil
	}
	return &e.Attempts[len(e.Attempts)-1]
}

// Effective are the limits, requests and budgets in force, all set.
type Effective struct {
	Limits   Limits   `json:"limits"`
	Requests Requests `json:"requests"`
	Budgets  Budgets  `json:"budgets"`
	// DiskOn is what holds the files that the episode writes.
	DiskOn string `json:"disk_on" doc:"tmpfs (in memory, part of the memory budget), project, loop, btrfs or none (no limit)"`
	// Network is what the sandbox reaches.
	Network EffectiveNetwork `json:"network,omitzero"`
}

// LeaseState is the lease in force.
type LeaseState struct {
	Kind     string    `json:"kind"`
	Deadline time.Time `json:"deadline,omitzero"`
}

// Attempt is one try at an episode, kept and never overwritten.
type Attempt struct {
	N          int    `json:"n"`
	State      string `json:"state"`
	Generation int64  `json:"generation"`
	SpecDigest string `json:"spec_digest"`
	SampleSeed uint32 `json:"sample_seed"`
	// End is null while the attempt is live.
	End        *End     `json:"end"`
	Scores     []Score  `json:"scores,omitempty"`
	Reward     *float64 `json:"reward"`
	Valid      bool     `json:"valid"`
	Superseded bool     `json:"superseded,omitempty" doc:"another attempt counts instead"`

	Digests     Digests           `json:"digests"`
	Clocks      Clocks            `json:"clocks"`
	Usage       Usage             `json:"usage"`
	Calls       int64             `json:"calls"`
	OutputBytes int64             `json:"output_bytes"`
	Capture     *CaptureSummary   `json:"capture,omitempty"`
	Answer      json.RawMessage   `json:"answer,omitempty"`
	Payload     *PayloadSummary   `json:"payload,omitempty"`
	Network     *NetworkSummary   `json:"network,omitempty" doc:"what was asked for"`
	Exchanges   *ExchangesSummary `json:"exchanges,omitempty" doc:"what the endpoints carried"`
	Launcher    *LauncherUsed     `json:"launcher,omitempty" doc:"who started the sandbox"`
	Created     time.Time         `json:"created"`
	Ready       time.Time         `json:"ready,omitzero"`
	EndedAt     time.Time         `json:"ended_at,omitzero"`
	DoneAt      time.Time         `json:"done_at,omitzero"`
	Notes       []string          `json:"notes,omitempty"`
}

// LauncherUsed says what an attempt's sandbox was held by.
type LauncherUsed struct {
	Name    string `json:"name"`
	Runtime string `json:"runtime,omitempty"`
	UserNS  bool   `json:"userns" doc:"false: the sandbox's users were the host's, of a range of its own and without capabilities"`
}

// Digests are the four digests of an attempt, each compared alone.
type Digests struct {
	Start        string `json:"start,omitempty"`
	Actions      string `json:"actions,omitempty"`
	Observations string `json:"observations,omitempty"`
	State        string `json:"state,omitempty"`
	StateFull    string `json:"state_full,omitempty"`
}

// Clocks are seconds per clock.
type Clocks struct {
	QueueS  float64 `json:"queue_s"`
	StartS  float64 `json:"start_s"`
	SetupS  float64 `json:"setup_s"`
	AgentS  float64 `json:"agent_s"`
	WallS   float64 `json:"wall_s"`
	PausedS float64 `json:"paused_s"`
	EndS    float64 `json:"end_s"`
	ScoreS  float64 `json:"score_s"`
}

// CaptureSummary is a capture without its list of changes.
type CaptureSummary struct {
	Changes    int     `json:"changes"`
	Bytes      int64   `json:"bytes"`
	Stored     int64   `json:"stored"`
	Rescorable bool    `json:"rescorable"`
	Truncated  bool    `json:"truncated,omitempty"`
	Seconds    float64 `json:"seconds"`
}

// PayloadSummary tells of a payload without its bytes.
type PayloadSummary struct {
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
}

// Usage is what a call or an attempt has used.
type Usage struct {
	CPUS            float64 `json:"cpu_s"`
	WallS           float64 `json:"wall_s"`
	MemoryPeakBytes int64   `json:"memory_peak_bytes"`
	RunDelayS       float64 `json:"run_delay_s,omitempty"`
}

// Created is the answer to create.
type Created struct {
	Episode Episode `json:"episode"`
	Kept    bool    `json:"kept" doc:"nothing was started: this is what is kept of the id, or an attempt that was live already"`
}

// Episodes is a page of a list.
type Episodes struct {
	Episodes []Episode `json:"episodes"`
	More     bool      `json:"more" doc:"ask again with after set to the last id"`
}

// CallResult is the answer to one call: how the program ended is a value, never an HTTP
// error. Output that is longer than its bound is kept as head and tail. What read_file
// reads is its stdout.
type CallResult struct {
	Seq     int64  `json:"seq"`
	Attempt int    `json:"attempt"`
	Tool    string `json:"tool"`

	// ExitCode is null unless the program exited by itself.
	ExitCode    *int       `json:"exit_code"`
	Signal      int        `json:"signal,omitempty"`
	Fault       *CallFault `json:"fault,omitempty" doc:"why the call did nothing, or ended without an exit"`
	TimedOut    bool       `json:"timed_out,omitempty"`
	CPUTimedOut bool       `json:"cpu_timed_out,omitempty"`
	OOM         bool       `json:"oom,omitempty"`
	PidsLimit   bool       `json:"pids_limit,omitempty"`
	OutputHeld  bool       `json:"output_held,omitempty" doc:"a process that outlived the main one still has stdout or stderr open"`
	Leftover    int        `json:"leftover,omitempty"`
	Limit       *LimitHit  `json:"limit,omitempty"`

	Stdout        string `json:"stdout" doc:"all of it, or its beginning when something was dropped"`
	StdoutB64     []byte `json:"stdout_b64,omitempty" doc:"the same bytes, only where they are no UTF-8, or 4 KiB and more of which an eighth is control characters: stdout has U+FFFD in their place"`
	StdoutTail    string `json:"stdout_tail,omitempty" doc:"its end, when something was dropped"`
	StdoutTailB64 []byte `json:"stdout_tail_b64,omitempty"`
	StdoutBytes   int64  `json:"stdout_bytes" doc:"the whole stream's length"`
	StdoutDropped int64  `json:"stdout_dropped,omitempty" doc:"bytes missing between beginning and end"`
	StdoutSHA256  string `json:"stdout_sha256,omitempty" doc:"of the whole stream"`

	Stderr        string `json:"stderr"`
	StderrB64     []byte `json:"stderr_b64,omitempty"`
	StderrTail    string `json:"stderr_tail,omitempty"`
	StderrTailB64 []byte `json:"stderr_tail_b64,omitempty"`
	StderrBytes   int64  `json:"stderr_bytes"`
	StderrDropped int64  `json:"stderr_dropped,omitempty"`
	StderrSHA256  string `json:"stderr_sha256,omitempty"`

	Info    *FileInfo  `json:"info,omitempty"`
	Entries []FileInfo `json:"entries,omitempty"`
	More    bool       `json:"more,omitempty"`
	Count   int64      `json:"count,omitempty" doc:"entries that upload unpacked"`
	Session string     `json:"session,omitempty"`

	Usage       Usage         `json:"usage"`
	Changes     []Changed     `json:"changes,omitempty" doc:"paths that changed since the call before"`
	MoreChanges bool          `json:"more_changes,omitempty"`
	Network     []Destination `json:"network,omitempty" doc:"what was asked for since the call before"`
	MoreNetwork int64         `json:"more_network,omitempty" doc:"requests for destinations beyond those listed"`
	Hints       []string      `json:"hints,omitempty" doc:"which of the policy's refusals is likely behind a failure"`
	Started     time.Time     `json:"started"`
	TookS       float64       `json:"took_s"`
	Kept        bool          `json:"kept,omitempty" doc:"the kept answer to an earlier request with this number"`
	End         *End          `json:"end,omitempty" doc:"set when this call ended the episode"`
}

// StdoutRaw is the beginning of stdout (all of it, unless StdoutDropped is above 0) as the
// program wrote it.
func (r *CallResult) StdoutRaw() []byte { return Bytes(r.Stdout, r.StdoutB64) }

// StderrRaw is the same of stderr.
func (r *CallResult) StderrRaw() []byte { return Bytes(r.Stderr, r.StderrB64) }

// ContentRaw is what read_file read.
func (r *CallResult) ContentRaw() []byte { return r.StdoutRaw() }

// CallFault says why a call did nothing, or ended without an exit.
type CallFault struct {
	Kind    string `json:"kind" doc:"stable: not_found, permission_denied, command_not_found, cwd_not_found, user_not_found, ..."`
	Path    string `json:"path,omitempty"`
	PathB64 []byte `json:"path_b64,omitempty"`
	Detail  string `json:"detail,omitempty"`
}

// Changed is one path that a call changed.
type Changed struct {
	Path    string `json:"path"`
	PathB64 []byte `json:"path_b64,omitempty"`
	Kind    string `json:"kind"`
	Type    string `json:"type,omitempty"`
	Size    int64  `json:"size,omitempty"`
}
