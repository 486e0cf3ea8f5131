package runner

import "github.com/paddock-run/paddock/sandbox"

// Status is what happened.
type Status string

// The statuses of an end or a score.
const (
	OK          Status = "ok"
	Failed      Status = "failed"
	Timeout     Status = "timeout"
	OOM         Status = "oom"
	Limit       Status = "limit"
	Cancelled   Status = "cancelled"
	Expired     Status = "expired"
	Interrupted Status = "interrupted"
	Errored     Status = "error"
)

// Cause is who made it happen.
type Cause string

// The causes. A limit is no cause: a limit is what fired, the cause is who made it fire.
const (
	Agent    Cause = "agent"
	Client   Cause = "client"
	WorldBad Cause = "world"
	GraderBy Cause = "grader"
	Platform Cause = "platform"
	Operator Cause = "operator"
)

// LimitHit is a bound that fired.
type LimitHit struct {
	Name     string  `json:"name"`
	Value    float64 `json:"value"`
	Measured float64 `json:"measured"`
}

// End is how an attempt's agent phase ended. A value, never a Go error.
type End struct {
	Status   Status    `json:"status"`
	Cause    Cause     `json:"cause"`
	Step     string    `json:"step,omitempty"`
	Limit    *LimitHit `json:"limit,omitempty"`
	Evidence []string  `json:"evidence,omitempty"`
	// Flags: unexplained, starved, world_fault, unreplayed.
	Flags []string `json:"flags,omitempty"`
	// Reason is the client's own text of an abort or cancel.
	Reason string `json:"reason,omitempty"`
	// Exit is set when the agent was one command.
	Exit *sandbox.Exit `json:"-"`
	// discard says that nobody will ask for what was left.
	discard bool
}

// ScoreResult is what one grader said about one end state.
type ScoreResult struct {
	Grader   string             `json:"grader"` // digest; or "client:NAME"
	Status   Status             `json:"status"`
	Cause    Cause              `json:"cause"`
	Step     string             `json:"step,omitempty"`
	Reward   *float64           `json:"reward"`
	Metrics  map[string]float64 `json:"metrics,omitempty"`
	Reason   string             `json:"reason,omitempty"`
	Evidence []string           `json:"evidence,omitempty"`
	// Flags: no_verdict, tampered, trust_shared, cached.
	Flags   []string `json:"flags,omitempty"`
	Source  string   `json:"source,omitempty"` // "client" when a client wrote it, "simulator" of a simulator's rewards
	Weight  float64  `json:"weight"`
	Tries   int      `json:"tries"`
	Seconds float64  `json:"seconds"`
	// Network is what the grader's sandbox asked for.
	Network *NetworkSummary `json:"network,omitempty"`
	// Stdout and Stderr are the grader's own output, head and tail, for people.
	Stdout string `json:"stdout,omitempty"`
	Stderr string `json:"stderr,omitempty"`
}

// Reward derives an attempt's reward (semantics section 3): a number exactly when the
// agent's phase and every weighted score ended by the agent's doing.
func Reward(end End, scores []ScoreResult) *float64 {
	if end.Cause != Agent {
		return nil
	}
	var sum float64
	weighted := false
	for _, s := range scores {
		if s.Weight == 0 {
			continue
		}
		if s.Cause != Agent || s.Reward == nil {
			return nil
		}
		weighted = true
		sum += s.Weight * *s.Reward
	}
	if !weighted {
		return nil
	}
	return &sum
}
