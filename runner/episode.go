package runner

import (
	"encoding/json"
	"io"
	"time"

	"github.com/paddock-run/paddock/internal/egress"
	"github.com/paddock-run/paddock/overlay"
	"github.com/paddock-run/paddock/sandbox"
)

// State is where an attempt is in its life; transitions has the table.
type State string

// The states of an attempt.
const (
	Queued    State = "queued"
	Starting  State = "starting"
	SettingUp State = "setup"
	Live      State = "live"
	Paused    State = "paused"
	Stopping  State = "ending"
	// Ended has an End; scores are still to come.
	Ended   State = "ended"
	Scoring State = "scoring"
	Done    State = "done"
)

// Plan is what a spec became: everything that decides the result, fixed at create.
type Plan struct {
	Spec EpisodeSpec `json:"spec"`
	// Digest is the spec digest.
	Digest string `json:"digest"`
	// World is the world's id, whatever name the spec used.
	World      string `json:"world"`
	Policy     string `json:"policy"`
	PolicyHash string `json:"policy_hash"`
	// Limits, Requests and Budgets are the effective ones, all set; Clamped names the
	// limits that were lowered to the host's.
	Limits   Limits   `json:"limits"`
	Requests Requests `json:"requests"`
	Budgets  Budgets  `json:"budgets"`
	Clamped  []string `json:"clamped,omitempty"`
	// DiskOn is what the writable layer stands on: tmpfs, project, loop, btrfs or none. Not
	// in the digest.
	DiskOn string `json:"disk_on,omitempty"`
	// Env is the pinned environment of calls, KEY=value, sorted.
	Env        []string `json:"env"`
	EnvSeed    uint32   `json:"env_seed"`
	SampleSeed uint32   `json:"sample_seed"`
	// Network is what the sandbox reaches.
	Network PlanNetwork `json:"network,omitzero"`
}

// Episode is one episode with all its attempts.
type Episode struct {
	Key Key `json:"key"`
	// Plan is the last attempt's.
	Plan  Plan  `json:"plan"`
	State State `json:"state"`
	// QueuePosition is 1 for the next to start, 0 when not queued.
	QueuePosition int        `json:"queue_position,omitempty"`
	Lease         LeaseState `json:"lease"`
	// Attempts are all attempts, the first first.
	Attempts []Attempt `json:"attempts"`
	// Reward is that of the first complete attempt, else of the last; nil is none.
	Reward *float64 `json:"reward"`
	Valid  bool     `json:"valid"`
}

// Last is the latest attempt.
func (e *Episode) Last() *Attempt {
	if len(e.Attempts) == 0 {
		return nil
	}
	return &e.Attempts[len(e.Attempts)-1]
}

// LeaseState is the effective lease.
type LeaseState struct {
	Kind string `json:"kind"`
	// Deadline is when it ends unless renewed; zero for none.
	Deadline time.Time `json:"deadline,omitzero"`
}

// Attempt is one try at an episode, kept for ever and never overwritten.
type Attempt struct {
	N          int    `json:"n"`
	State      State  `json:"state"`
	Generation int64  `json:"generation"`
	SpecDigest string `json:"spec_digest"`
	SampleSeed uint32 `json:"sample_seed"`

	End    *End          `json:"end,omitempty"`
	Scores []ScoreResult `json:"scores,omitempty"`
	Reward *float64      `json:"reward"`
	Valid  bool          `json:"valid"`
	// Superseded: another attempt counts instead of this one.
	Superseded bool `json:"superseded,omitempty"`

	Digests Digests         `json:"digests"`
	Clocks  Clocks          `json:"clocks"`
	Usage   sandbox.Usage   `json:"usage"`
	Calls   int64           `json:"calls"`
	Output  int64           `json:"output_bytes"`
	Capture *CaptureSummary `json:"capture,omitempty"`
	Answer  json.RawMessage `json:"answer,omitempty"`
	Payload *PayloadSummary `json:"payload,omitempty"`
	// Network is what was asked for, Exchanges what the endpoints carried; nil is nothing.
	Network   *NetworkSummary   `json:"network,omitempty"`
	Exchanges *ExchangesSummary `json:"exchanges,omitempty"`
	// Launcher is who started the sandbox; nil in records from before there was a choice.
	Launcher *LauncherUsed `json:"launcher,omitempty"`
	IDs      sandbox.IDMap `json:"ids"`
	Created  time.Time     `json:"created"`
	Ready    time.Time     `json:"ready,omitzero"`
	EndedAt  time.Time     `json:"ended_at,omitzero"`
	DoneAt   time.Time     `json:"done_at,omitzero"`
	// Notes are things that people should know: a dropped torn record, a failed clean-up.
	Notes []string `json:"notes,omitempty"`
}

// LauncherUsed says what an attempt's sandbox was held by.
type LauncherUsed struct {
	Name    string `json:"name"`
	Runtime string `json:"runtime,omitempty"`
	// UserNS is false where the sandbox's users were the host's.
	UserNS bool `json:"userns"`
}

// Digests are the four of semantics section 5, each "v1:sha256:...", compared alone.
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

// Created is the answer to Create. Kept says that nothing was started: the episode is a
// kept result, or an attempt that was live already.
type Created struct {
	Episode Episode
	Kept    bool
}

// FinishSpec ends the agent's phase well. Attempt 0 is the live one.
type FinishSpec struct {
	Attempt    int
	Generation int64 // 0 is not checked
	Answer     json.RawMessage
	Payload    []byte
}

// CallIO streams a call's input and output beside what the result keeps of it; each
// field may be nil.
type CallIO struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
}

// Output is what is kept of one stream: all of it in Head, or its beginning and its end
// with Dropped bytes missing between them.
type Output struct {
	Head []byte `json:"head,omitempty"`
	Tail []byte `json:"tail,omitempty"`
	// Bytes is the length of the whole stream, SHA256 (hex) is of all of it.
	Bytes   int64  `json:"bytes"`
	Dropped int64  `json:"dropped,omitempty"`
	SHA256  string `json:"sha256,omitempty"`
}

// CallError says why a call did nothing, or ended without an exit: a value that the
// agent may see, never a fault of the platform. Kind is a sandbox.FileError's or
// StartFailure's or UserError's, or no_shell, session_ended, session_unknown,
// session_exists, user_refused, too_large, timeout.
type CallError struct {
	Kind   string `json:"kind"`
	Path   Raw    `json:"path,omitempty"`
	Detail string `json:"detail,omitempty"`
}

// CallResult is the answer to one call.
type CallResult struct {
	Seq     int64  `json:"seq"`
	Attempt int    `json:"attempt"`
	Tool    string `json:"tool"`

	// Code is nil unless the program exited by itself.
	Code        *int       `json:"exit_code"`
	Signal      int        `json:"signal,omitempty"`
	Error       *CallError `json:"error,omitempty"`
	TimedOut    bool       `json:"timed_out,omitempty"`
	CPUTimedOut bool       `json:"cpu_timed_out,omitempty"`
	OOM         bool       `json:"oom,omitempty"`
	PidsLimit   bool       `json:"pids_limit,omitempty"`
	OutputHeld  bool       `json:"output_held,omitempty"`
	Leftover    int        `json:"leftover,omitempty"`
	// Limit is the bound that fired, with what was measured.
	Limit *LimitHit `json:"limit,omitempty"`

	Stdout Output `json:"stdout"`
	Stderr Output `json:"stderr"`

	// Info, Entries, More answer the file tools; Content is a read file's bytes.
	Info    *FileInfo  `json:"info,omitempty"`
	Entries []FileInfo `json:"entries,omitempty"`
	More    bool       `json:"more,omitempty"`
	Content []byte     `json:"content,omitempty"`
	// Count is the number of entries unpacked by upload.
	Count int64 `json:"count,omitempty"`
	// Session is the session's name.
	Session string `json:"session,omitempty"`

	Usage sandbox.Usage `json:"usage"`
	// Changes are the paths that changed since the call before; MoreChanges says that
	// there were more than are listed.
	Changes     []FileChange `json:"changes,omitempty"`
	MoreChanges bool         `json:"more_changes,omitempty"`
	// Network is what was asked for since the call before, by this call or by what ran beside
	// it; MoreNetwork counts what is not listed.
	Network     []egress.Seen `json:"network,omitempty"`
	MoreNetwork int64         `json:"more_network,omitempty"`
	// Hints say which of the policy's refusals is likely behind a failure.
	Hints []string `json:"hints,omitempty"`

	Started time.Time     `json:"started"`
	Took    time.Duration `json:"took"`
	// Kept: this is the kept answer to an earlier request with the same number.
	Kept bool `json:"-"`
	// End is set when this call ended the episode.
	End *End `json:"end,omitempty"`
}

// FileInfo is sandbox.FileInfo in a form that survives JSON.
type FileInfo struct {
	Name    Raw              `json:"name"`
	Type    sandbox.FileType `json:"type"`
	Mode    uint32           `json:"mode"`
	UID     uint32           `json:"uid"`
	GID     uint32           `json:"gid"`
	Size    int64            `json:"size"`
	ModTime time.Time        `json:"mod_time"`
	Target  Raw              `json:"target,omitempty"`
}

// FileChange is one path that a call changed.
type FileChange struct {
	Path Raw                `json:"path"`
	Kind overlay.ChangeKind `json:"kind"`
	Type string             `json:"type,omitempty"`
	Size int64              `json:"size,omitempty"`
}
