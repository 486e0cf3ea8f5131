package app

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"strings"

	"github.com/paddock-run/paddock/runner"
)

// Defaults of a Spec, in seconds where they are times.
const (
	DefaultStartS       = 60
	DefaultHealthS      = 10
	DefaultHealthLimitS = 5
	DefaultSessionIdleS = 600
	DefaultDrainS       = 300
	DefaultAnswerS      = 300
	DefaultMaxInFlight  = 256
	DefaultTarget       = 16
	DefaultDownS        = 60
	DefaultCPUs         = 0.05
)

const (
	maxSeconds = 30 * 24 * 3600
	maxText    = 1024
	maxTarget  = 1 << 20
)

var appName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,62}$`)

// Sticky and None are what Spec.Sessions may be.
const (
	Sticky = "sticky"
	None   = "none"
)

// Spec describes an app.
type Spec struct {
	World string `json:"world"`
	// Command is what each replica runs; empty is the world's entrypoint and command. The
	// variable PORT in its environment is Port.
	Command []string          `json:"command,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
	User    string            `json:"user,omitempty"`
	Cwd     string            `json:"cwd,omitempty"`
	// Port is the one of 127.0.0.1 on which it listens, for HTTP/1.1.
	Port   uint16 `json:"port"`
	Health Health `json:"health"`
	// StartS is how long a replica may take to become ready, and a request may wait for one.
	StartS float64 `json:"start_s"`

	Policy   string             `json:"policy,omitempty"`
	Limits   runner.Limits      `json:"limits,omitzero"`
	Requests runner.Requests    `json:"requests,omitzero"`
	Network  runner.NetworkSpec `json:"network,omitzero"`

	// Sessions is Sticky (default): requests of a session go to one replica; or None: each
	// goes to the replica with the least to do.
	Sessions string `json:"sessions"`
	// SessionIdleS is how long a session lasts without a request.
	SessionIdleS float64 `json:"session_idle_s"`
	// DrainS bounds how long a replica that is to stop waits for its sessions to end.
	DrainS float64 `json:"drain_s"`
	// IdleS is after how long without a request or session all replicas are stopped, until
	// the next request; 0 is never.
	IdleS float64 `json:"idle_s,omitempty"`
	// AnswerS bounds the time to the head of an answer.
	AnswerS float64 `json:"answer_s"`
	// MaxInFlight bounds the requests that one replica has at a time.
	MaxInFlight int `json:"max_in_flight"`

	Scale Scale `json:"scale"`
}

// Health is how a replica is found to be well. Without a Path it takes connections; else GET
// Path answers with a status of 200 to 399.
type Health struct {
	Path      string  `json:"path,omitempty"`
	IntervalS float64 `json:"interval_s"`
	TimeoutS  float64 `json:"timeout_s"`
}

// Scale is how many replicas there are: at least Min, and so many that each has about Target
// sessions (requests, where there are no sessions), up to Max.
type Scale struct {
	Min int `json:"min"`
	Max int `json:"max"`
	// Target is the load of one replica.
	Target int `json:"target"`
	// DownS is for how long less must do before a replica is stopped.
	DownS float64 `json:"down_s"`
}

func bad(field, format string, args ...any) error {
	return &runner.Error{Kind: runner.KindBadRequest, Field: field, Detail: fmt.Sprintf(format, args...)}
}

// complete checks what is the app's own of a spec and fills in the defaults.
func (s *Spec) complete() error {
	if s.World == "" {
		return bad("world", "is missing")
	}
	if s.Port == 0 {
		return bad("port", "is missing")
	}
	if s.Sessions == "" {
		s.Sessions = Sticky
	}
	if s.Sessions != Sticky && s.Sessions != None {
		return bad("sessions", "%q is not sticky or none", s.Sessions)
	}
	if p := s.Health.Path; len(p) > maxText || p != "" && (!strings.HasPrefix(p, "/") || strings.ContainsAny(p, " \r\n\x00")) {
		return bad("health/path", "%.64q is not the path of a URL", p)
	}
	if s.MaxInFlight == 0 {
		s.MaxInFlight = DefaultMaxInFlight
	}
	if s.MaxInFlight < 0 || s.MaxInFlight > 4096 {
		return bad("max_in_flight", "%d is not in 1 to 4096", s.MaxInFlight)
	}
	for _, d := range []struct {
		field string
		v     *float64
		def   float64
	}{
		{"start_s", &s.StartS, DefaultStartS},
		{"health/interval_s", &s.Health.IntervalS, DefaultHealthS},
		{"health/timeout_s", &s.Health.TimeoutS, DefaultHealthLimitS},
		{"session_idle_s", &s.SessionIdleS, DefaultSessionIdleS},
		{"drain_s", &s.DrainS, DefaultDrainS},
		{"idle_s", &s.IdleS, 0},
		{"answer_s", &s.AnswerS, DefaultAnswerS},
		{"requests/cpus", &s.Requests.CPUs, DefaultCPUs},
	} {
		if *d.v == 0 {
			*d.v = d.def
		}
		if !(*d.v >= 0 && *d.v <= maxSeconds) {
			return bad(d.field, "%v is not in 0 to %d", *d.v, int(maxSeconds))
		}
	}
	return s.Scale.complete()
}

func (s *Scale) complete() error {
	if s.Min == 0 {
		s.Min = 1
	}
	if s.Max == 0 {
		s.Max = s.Min
	}
	if s.Target == 0 {
		s.Target = DefaultTarget
	}
	if s.DownS == 0 {
		s.DownS = DefaultDownS
	}
	switch {
	case s.Min < 1 || s.Min > MaxReplicas:
		return bad("scale/min", "%d is not in 1 to %d", s.Min, MaxReplicas)
	case s.Max < s.Min || s.Max > MaxReplicas:
		return bad("scale/max", "%d is not in %d (scale/min) to %d", s.Max, s.Min, MaxReplicas)
	case s.Target < 1 || s.Target > maxTarget:
		return bad("scale/target", "%d is not in 1 to %d", s.Target, maxTarget)
	case !(s.DownS > 0 && s.DownS <= maxSeconds):
		return bad("scale/down_s", "%v is not in 0 to %d", s.DownS, int(maxSeconds))
	}
	return nil
}

// same says whether replicas of one spec would be those of the other: all but the scale.
func (s *Spec) same(other *Spec) bool {
	a, b := *s, *other
	a.Scale, b.Scale = Scale{}, Scale{}
	one, errA := json.Marshal(a)
	two, errB := json.Marshal(b)
	return errA == nil && errB == nil && bytes.Equal(one, two)
}

// episode is what a replica's episode has.
func (s *Spec) episode(id string) runner.EpisodeSpec {
	return runner.EpisodeSpec{
		Run: runName, ID: id, World: s.World, Policy: s.Policy, Limits: s.Limits, Requests: s.Requests, Network: s.Network,
		Budgets: runner.Budgets{QueueS: s.StartS, SetupS: s.StartS, AgentS: maxSeconds, CallS: maxSeconds},
		Lease:   runner.LeaseSpec{Kind: "daemon"}, Service: true,
	}
}

// call is what a replica's program is started by.
func (s *Spec) call() runner.CallSpec {
	env := map[string]string{"PORT": fmt.Sprint(s.Port)}
	maps.Copy(env, s.Env)
	return runner.CallSpec{
		Tool: "exec", Argv: s.Command, Env: env, User: s.User, Cwd: s.Cwd, Parallel: true, TimeoutS: maxSeconds, Leftovers: "kill",
	}
}
