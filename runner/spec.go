package runner

import (
	"encoding/json"
	"time"

	"github.com/paddock-run/paddock/overlay"
)

// DefaultRun is the run of requests that name none.
const DefaultRun = "default"

// Key names an episode: ids live in a run, runs belong to an owner (a host uid, as text).
type Key struct {
	Owner string
	Run   string
	ID    string
}

// RunSpec asks for a run (a name space with an owner and a generation).
type RunSpec struct {
	Name string `json:"name"`
	Seed uint32 `json:"seed"`
	// Resume is "new" (default: 409 run_exists on a known name), "resume" or "auto".
	Resume string `json:"resume"`
}

// Run is a name space of episode ids.
type Run struct {
	Owner string `json:"owner"`
	Name  string `json:"name"`
	Seed  uint32 `json:"seed"`
	// Generation fences earlier drivers: requests that carry a lower one get ErrFenced.
	Generation int64     `json:"generation"`
	Created    time.Time `json:"created"`
}

// EpisodeSpec asks for one episode. The zero value of a field is its default.
type EpisodeSpec struct {
	Run     string            `json:"run,omitempty"`
	ID      string            `json:"id,omitempty"`
	Group   string            `json:"group,omitempty"`
	Task    string            `json:"task,omitempty"`
	World   string            `json:"world"`
	Weights string            `json:"weights,omitempty"`
	Input   json.RawMessage   `json:"input,omitempty"`
	Policy  string            `json:"policy,omitempty"`
	Env     map[string]string `json:"env,omitempty"`

	Limits   Limits   `json:"limits,omitzero"`
	Requests Requests `json:"requests,omitzero"`
	Budgets  Budgets  `json:"budgets,omitzero"`
	// Leftovers is the default of calls: "keep" or "kill".
	Leftovers string           `json:"leftovers,omitempty"`
	Tools     []overlay.Tool   `json:"tools,omitempty"` // beside the world's own
	Graders   []WeightedGrader `json:"graders,omitempty"`
	// Prepare, when set, is a program that the episode starts with.
	Prepare *ProgramSpec `json:"prepare,omitempty"`

	// Network are hosts beside the policy's, Endpoints ports inside that lead to services of
	// the client's, under any policy.
	Network   NetworkSpec             `json:"network,omitzero"`
	Endpoints map[string]EndpointSpec `json:"endpoints,omitempty"`

	EnvSeed    *uint32 `json:"env_seed,omitempty"`
	SampleSeed *uint32 `json:"sample_seed,omitempty"`
	RetrySeed  string  `json:"retry_seed,omitempty"` // "same" or "fresh"

	// Not in the spec digest:

	Labels   map[string]string `json:"labels,omitempty"`
	Retries  int               `json:"retries,omitempty"`
	Priority int               `json:"priority,omitempty"`
	Lease    LeaseSpec         `json:"lease,omitzero"`
	// OnConflict "supersede" keeps an attempt made by another spec as history and starts anew.
	OnConflict string `json:"on_conflict,omitempty"`
	// Attempt "next" starts a new attempt after an end that is kept otherwise.
	Attempt string `json:"attempt,omitempty"`
	// Service says that the episode serves others until it is told to stop, so that a drain
	// does not wait for it.
	Service bool `json:"service,omitempty"`
	// BranchOf is set by Branch alone.
	BranchOf *BranchOf `json:"branch_of,omitempty"`
}

// WeightedGrader is a grader's digest and its weight; the first of a list weighs 1
// unless set, the others 0.
type WeightedGrader struct {
	Grader string   `json:"grader"`
	Weight *float64 `json:"weight,omitempty"`
}

// Limits bound one episode; 0 means the policy's default. Above the host's they are
// clamped, and Effective says so.
type Limits struct {
	CPUs        float64 `json:"cpus,omitempty"`
	MemoryBytes int64   `json:"memory,omitempty"`
	DiskBytes   int64   `json:"disk,omitempty"`
	Inodes      int64   `json:"inodes,omitempty"`
	Pids        int64   `json:"pids,omitempty"`
	// CPUSeconds, OutputBytes, Calls end the episode with status limit when set.
	CPUSeconds  float64 `json:"cpu_s,omitempty"`
	OutputBytes int64   `json:"output_total,omitempty"`
	Calls       int64   `json:"calls,omitempty"`
}

// Requests are what admission reserves.
type Requests struct {
	CPUs        float64 `json:"cpus,omitempty"`
	MemoryBytes int64   `json:"memory,omitempty"`
}

// Budgets are the clocks of semantics section 7, in seconds; 0 means the default there.
type Budgets struct {
	QueueS float64 `json:"queue_s,omitempty"`
	SetupS float64 `json:"setup_s,omitempty"`
	AgentS float64 `json:"agent_s,omitempty"`
	CallS  float64 `json:"call_s,omitempty"`
	WallS  float64 `json:"wall_s,omitempty"`
	ScoreS float64 `json:"score_s,omitempty"`
}

// LeaseSpec says who owns an episode's life: "connection" (Conn names a lease connection
// opened before), "ttl" (default) or "daemon".
type LeaseSpec struct {
	Kind string  `json:"kind,omitempty"`
	Conn string  `json:"conn,omitempty"`
	TTLS float64 `json:"ttl_s,omitempty"`
}

// GraderSpec is a grader: files + command + limits, content-addressed.
//
// It runs in a fresh sandbox at whose / is the end state, with an environment of its own.
// It reads $PADDOCK_INPUTS/{trajectory.jsonl,capture.json,answer.json,spec.json} and writes
// its verdict to the descriptor $PADDOCK_VERDICT_FD, the one channel there is. It must not
// hand that descriptor to the code under test. Code that runs as the grader's own user can
// still reach the grader's process (/proc/PID/fd, /proc/PID/mem): a grader of hostile code
// asks for policy "default", runs as root of its sandbox, and runs the code as another user.
type GraderSpec struct {
	// Files are put under Dir in the scoring fork; never in the agent's tree.
	Files map[string]GraderFile `json:"files"`
	// Dir is where the files go; "/grader" by default.
	Dir     string            `json:"dir,omitempty"`
	Command []string          `json:"command"`
	Env     map[string]string `json:"env,omitempty"`
	User    string            `json:"user,omitempty"`
	Policy  string            `json:"policy,omitempty"` // "strict" by default
	Limits  Limits            `json:"limits,omitzero"`
	// Network are hosts that the grader reaches, where its policy has a network: the agent's
	// are not the grader's.
	Network NetworkSpec `json:"network,omitzero"`
	// Verdict is "json" (default) or "exit_code".
	Verdict string `json:"verdict,omitempty"`
	// Mode is "fresh" (default) or "boot"; Boot are the start commands of boot.
	Mode string     `json:"mode,omitempty"`
	Boot [][]string `json:"boot,omitempty"`
	// RewardRange is the declared range of the reward; [0, 1] by default.
	RewardRange *[2]float64 `json:"reward_range,omitempty"`
	// OnNoVerdict is the reward when the agent's doing kept the grader from a verdict; 0.0 by default.
	OnNoVerdict *float64 `json:"on_no_verdict,omitempty"`
	// Protected are paths that the agent should not write, beside the grader's own program
	// and loader, which always count. OnTamper is "report" (default: flag tampered, the
	// number is kept) or "zero".
	Protected []string `json:"protected,omitempty"`
	OnTamper  string   `json:"on_tamper,omitempty"`
	// Keep are the directories of the end state that the grader gets; everything else in its
	// tree is the world's. Empty is the whole end state. An end state whose bytes there were
	// not all stored gives no verdict.
	Keep []string `json:"keep,omitempty"`
}

// GraderFile is one file of a grader.
type GraderFile struct {
	Bytes []byte `json:"bytes"` // base64 in JSON
	Mode  uint32 `json:"mode,omitempty"`
}

// CallSpec is one tool call. Exactly the fields that Tool uses may be set.
type CallSpec struct {
	// Tool is exec, read_file, write_file, list_dir, stat, remove, upload, download,
	// session_open, session, session_close, or the name of a tool of the world or spec.
	Tool string `json:"tool"`
	// Seq is the caller's idempotency key within the attempt; 0 lets the daemon number it.
	Seq     int64 `json:"seq,omitempty"`
	Attempt int   `json:"attempt,omitempty"` // 0 is the live one
	// Generation fences an earlier driver of the run; 0 is not checked.
	Generation int64  `json:"generation,omitempty"`
	Weights    string `json:"weights,omitempty"`
	// Parallel lets it run beside other calls; otherwise calls are served one after another.
	Parallel bool `json:"parallel,omitempty"`

	Argv      []string          `json:"argv,omitempty"`  // exec
	Shell     string            `json:"shell,omitempty"` // exec, session: command text
	Stdin     []byte            `json:"stdin,omitempty"` // base64 in JSON
	Cwd       string            `json:"cwd,omitempty"`
	Env       map[string]string `json:"env,omitempty"`
	User      string            `json:"user,omitempty"`
	TimeoutS  float64           `json:"timeout_s,omitempty"`
	CPUS      float64           `json:"cpu_s,omitempty"`
	MaxStdout int64             `json:"max_stdout,omitempty"`
	MaxStderr int64             `json:"max_stderr,omitempty"`
	Leftovers string            `json:"leftovers,omitempty"`
	PTY       *PTY              `json:"pty,omitempty"`
	Session   string            `json:"session,omitempty"`
	// Args are the arguments of a world's tool, handed to it as JSON on stdin.
	Args json.RawMessage `json:"args,omitempty"`

	Path    string `json:"path,omitempty"`
	Content []byte `json:"content,omitempty"` // write_file
	Mode    uint32 `json:"mode,omitempty"`
	Offset  int64  `json:"offset,omitempty"`
	Max     int64  `json:"max,omitempty"`
}

// PTY asks for a terminal.
type PTY struct {
	Rows uint16 `json:"rows"`
	Cols uint16 `json:"cols"`
}
