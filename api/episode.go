package api

import (
	"encoding/json"
	"time"
)

// RunSpec opens a run: a name space of episode ids.
type RunSpec struct {
	Name   string `json:"name"`
	Seed   uint32 `json:"seed,omitempty"`
	Resume string `json:"resume,omitempty" doc:"new (default: a known name is refused), resume or auto"`
}

// Run is a name space of episode ids.
type Run struct {
	Owner      string    `json:"owner"`
	Name       string    `json:"name"`
	Seed       uint32    `json:"seed"`
	Generation int64     `json:"generation" doc:"send it as Paddock-Generation; an older one is refused as fenced"`
	Created    time.Time `json:"created"`
}

// Runs is a list of runs.
type Runs struct {
	Runs []Run `json:"runs"`
}

// EpisodeSpec asks for one episode.
type EpisodeSpec struct {
	Run     string            `json:"run,omitempty" doc:"the path's run; may be left out"`
	ID      string            `json:"id,omitempty" doc:"up to 8 segments joined by /; made up in the run default"`
	Group   string            `json:"group,omitempty"`
	Task    string            `json:"task,omitempty"`
	World   string            `json:"world"`
	Weights string            `json:"weights,omitempty"`
	Input   json.RawMessage   `json:"input,omitempty"`
	Policy  string            `json:"policy,omitempty"`
	Env     map[string]string `json:"env,omitempty"`

	Limits    Limits           `json:"limits,omitzero"`
	Requests  Requests         `json:"requests,omitzero"`
	Budgets   Budgets          `json:"budgets,omitzero"`
	Leftovers string           `json:"leftovers,omitempty" doc:"keep (default) or kill"`
	Tools     []Tool           `json:"tools,omitempty" doc:"beside the world's own"`
	Graders   []WeightedGrader `json:"graders,omitempty"`

	Network   NetworkSpec             `json:"network,omitzero" doc:"hosts beside the policy's own, where it has a network"`
	Endpoints map[string]EndpointSpec `json:"endpoints,omitempty" doc:"ports of the sandbox's loopback that lead to services, under any policy"`

	EnvSeed    *uint32 `json:"env_seed,omitempty"`
	SampleSeed *uint32 `json:"sample_seed,omitempty"`
	RetrySeed  string  `json:"retry_seed,omitempty" doc:"same (default) or fresh"`

	Labels     map[string]string `json:"labels,omitempty"`
	Retries    int               `json:"retries,omitempty"`
	Priority   int               `json:"priority,omitempty"`
	Lease      Lease             `json:"lease,omitzero"`
	OnConflict string            `json:"on_conflict,omitempty" doc:"supersede keeps what another spec made as history"`
	Attempt    string            `json:"attempt,omitempty" doc:"next starts anew after an end that is kept otherwise"`
}

// WeightedGrader is a grader's digest and its weight in the reward.
type WeightedGrader struct {
	Grader string   `json:"grader"`
	Weight *float64 `json:"weight,omitempty" doc:"the first of a list weighs 1 unless set, the others 0"`
}

// Graders is a list of graders to score with.
type Graders struct {
	Attempt int              `json:"attempt,omitempty"`
	Graders []WeightedGrader `json:"graders"`
}

// Limits bound one episode; unset is the policy's default. What is above the host's is
// lowered to it, and the episode's effective limits say so.
type Limits struct {
	CPUs        float64 `json:"cpus,omitempty"`
	Memory      Size    `json:"memory,omitempty"`
	Disk        Size    `json:"disk,omitempty"`
	Inodes      int64   `json:"inodes,omitempty"`
	Pids        int64   `json:"pids,omitempty"`
	CPUSeconds  float64 `json:"cpu_s,omitempty" doc:"ends the episode"`
	OutputTotal Size    `json:"output_total,omitempty" doc:"ends the episode"`
	Calls       int64   `json:"calls,omitempty" doc:"ends the episode"`
}

// Requests are what admission reserves.
type Requests struct {
	CPUs   float64 `json:"cpus,omitempty"`
	Memory Size    `json:"memory,omitempty"`
}

// Budgets are the clocks, in seconds; unset is the default.
type Budgets struct {
	QueueS float64 `json:"queue_s,omitempty"`
	SetupS float64 `json:"setup_s,omitempty"`
	AgentS float64 `json:"agent_s,omitempty"`
	CallS  float64 `json:"call_s,omitempty"`
	WallS  float64 `json:"wall_s,omitempty"`
	ScoreS float64 `json:"score_s,omitempty"`
}

// Lease says who owns an episode's life.
type Lease struct {
	Kind string  `json:"kind,omitempty" doc:"ttl (default), connection or daemon"`
	Conn string  `json:"conn,omitempty" doc:"the lease connection's id"`
	TTLS float64 `json:"ttl_s,omitempty"`
}

// LimitHit is a bound that fired.
type LimitHit struct {
	Name     string  `json:"name"`
	Value    float64 `json:"value"`
	Measured float64 `json:"measured"`
}

// End is how an attempt's agent phase ended.
type End struct {
	Status   string    `json:"status" doc:"ok, failed, timeout, oom, limit, cancelled, expired, interrupted or error"`
	Cause    string    `json:"cause" doc:"agent, client, world, grader, platform or operator"`
	Step     string    `json:"step,omitempty"`
	Limit    *LimitHit `json:"limit,omitempty"`
	Evidence []string  `json:"evidence,omitempty"`
	Flags    []string  `json:"flags,omitempty"`
	Reason   string    `json:"reason,omitempty"`
}

// Score is what one grader said about one end state.
type Score struct {
	Grader   string             `json:"grader"`
	Status   string             `json:"status"`
	Cause    string             `json:"cause"`
	Step     string             `json:"step,omitempty"`
	Reward   *float64           `json:"reward"`
	Metrics  map[string]float64 `json:"metrics,omitempty"`
	Reason   string             `json:"reason,omitempty"`
	Evidence []string           `json:"evidence,omitempty"`
	Flags    []string           `json:"flags,omitempty"`
	Source   string             `json:"source,omitempty"`
	Weight   float64            `json:"weight"`
	Tries    int                `json:"tries"`
	Seconds  float64            `json:"seconds"`
	Network  *NetworkSummary    `json:"network,omitempty"`
	Stdout   string             `json:"stdout,omitempty"`
	Stderr   string             `json:"stderr,omitempty"`
}

// FinishSpec ends an attempt. The payload comes base64 in JSON, or raw as the body with
// the rest in the header Paddock-Finish.
type FinishSpec struct {
	Attempt int             `json:"attempt,omitempty"`
	Answer  json.RawMessage `json:"answer,omitempty"`
	Payload []byte          `json:"payload,omitempty"`
}

// Reason is the client's own words of an abort or cancel.
type Reason struct {
	Reason string `json:"reason,omitempty"`
}

// CancelSpec cancels every live episode of a run whose id has the prefix.
type CancelSpec struct {
	Prefix string `json:"prefix,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// ForkSpec asks for episodes that go on from a live one's files.
type ForkSpec struct {
	// IDs name the new episodes, in the same run.
	IDs []string `json:"ids" doc:"1 to 256"`
	// Attempt is the live one's; unset is whichever is live.
	Attempt int `json:"attempt,omitempty"`
}

// Forked is the answer to a ForkSpec.
type Forked struct {
	// World is the sealed state that the new episodes stand on.
	World    string    `json:"world"`
	Episodes []Created `json:"episodes"`
}

// BranchOf says from which moment of which episode of the same run another one goes on.
type BranchOf struct {
	ID      string `json:"id"`
	Attempt int    `json:"attempt"`
	Calls   int64  `json:"calls" doc:"how many had been recorded"`
}

// Cancelled says how many episodes were cancelled.
type Cancelled struct {
	Cancelled int `json:"cancelled"`
}

// RewardSpec is a reward that the client itself gives.
type RewardSpec struct {
	Attempt int                `json:"attempt,omitempty"`
	Name    string             `json:"name"`
	Reward  *float64           `json:"reward"`
	Metrics map[string]float64 `json:"metrics,omitempty"`
	Reason  string             `json:"reason,omitempty" doc:"a text that is kept beside it"`
}

// Change is one path that differs from the world.
type Change struct {
	Path        string            `json:"path"`
	PathB64     []byte            `json:"path_b64,omitempty"`
	Kind        string            `json:"kind" doc:"created, modified, deleted or type_changed"`
	Type        string            `json:"type,omitempty" doc:"file, dir, symlink, fifo, socket, char or block"`
	Mode        uint32            `json:"mode,omitempty"`
	UID         uint32            `json:"uid"`
	GID         uint32            `json:"gid"`
	Size        int64             `json:"size,omitempty"`
	SHA256      string            `json:"sha256,omitempty"`
	Target      string            `json:"target,omitempty"`
	TargetB64   []byte            `json:"target_b64,omitempty"`
	Opaque      bool              `json:"opaque,omitempty"`
	LinkedTo    string            `json:"linked_to,omitempty"`
	LinkedToB64 []byte            `json:"linked_to_b64,omitempty"`
	Rdev        uint64            `json:"rdev,omitempty"`
	Xattrs      map[string][]byte `json:"xattrs,omitempty"`
}

// Capture is what an attempt changed.
type Capture struct {
	Changes    []Change `json:"changes"`
	State      string   `json:"state"`
	StateFull  string   `json:"state_full"`
	Bytes      int64    `json:"bytes"`
	Stored     int64    `json:"stored"`
	Rescorable bool     `json:"rescorable"`
	Truncated  bool     `json:"truncated,omitempty"`
	TookS      float64  `json:"took_s"`
}

// GraderSpec is a grader: files, command and limits, content-addressed.
type GraderSpec struct {
	Files       map[string]GraderFile `json:"files"`
	Dir         string                `json:"dir,omitempty" doc:"/grader by default"`
	Command     []string              `json:"command"`
	Env         map[string]string     `json:"env,omitempty"`
	User        string                `json:"user,omitempty"`
	Policy      string                `json:"policy,omitempty" doc:"strict by default"`
	Limits      Limits                `json:"limits,omitzero"`
	Network     NetworkSpec           `json:"network,omitzero" doc:"the agent's hosts are not the grader's"`
	Verdict     string                `json:"verdict,omitempty" doc:"json (default) or exit_code"`
	Mode        string                `json:"mode,omitempty" doc:"fresh (default) or boot"`
	Boot        [][]string            `json:"boot,omitempty"`
	RewardRange *[2]float64           `json:"reward_range,omitempty" doc:"[0, 1] by default"`
	OnNoVerdict *float64              `json:"on_no_verdict,omitempty" doc:"0 by default"`
	Protected   []string              `json:"protected,omitempty"`
	OnTamper    string                `json:"on_tamper,omitempty" doc:"report (default) or zero"`
	Keep        []string              `json:"keep,omitempty" doc:"directories of the end state that the grader gets, all else being the world's; unset is all of it"`
}

// GraderFile is one file of a grader.
type GraderFile struct {
	Bytes []byte `json:"bytes"`
	Mode  uint32 `json:"mode,omitempty"`
}

// GraderRef names a grader by its content.
type GraderRef struct {
	Grader string `json:"grader"`
}

// LeaseEvent is one line of a lease connection: the first names the lease. The lease
// lives as long as the connection is held open, and a grace longer.
type LeaseEvent struct {
	Lease  string  `json:"lease"`
	GraceS float64 `json:"grace_s"`
}
