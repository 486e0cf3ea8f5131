// Package simulator makes environments of worlds that carry a simulator: a program that
// is reset, stepped and closed. Every environment is an episode of the runner's, so its
// isolation, limits, record, seeds and outcome are those of any other.
//
// The program speaks lines of JSON on stdin and stdout (docs/simulators.md). It is one of
// the world's own, or a shim that comes with paddock and serves a Gymnasium environment.
// It is made ahead of need: runner.KeepReady holds sandboxes in which it waits.
//
//	Open (spec)  -> Simulator: what the program said of its spaces, by the spec's digest
//	Make         -> Env: one episode with its program
//	Reset, Step  -> each a message to the program, checked, on record
//	  a fault    -> the messages since the last seeded reset are said again in another
//	                sandbox: the same fault is the world's way, none is the platform's
//	Snapshot     -> the program's state, as bytes that are kept and not looked into
//	Restore      -> the state put back, in any environment of the same world and program;
//	                rewards and counts are then those of the way that led to the state
//	Close        -> the episode's end, and the sum of its rewards as a score
package simulator

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed" // the shim
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/paddock-run/paddock/runner"
)

//go:embed state.py
var stateShim string

//go:embed shim.py
var serverShim string

// Defaults of a Spec. The agent's clock of an environment runs while it is stepped, for
// much longer altogether than that of other episodes; its sandbox does next to nothing
// between two steps. Many that are started at once import together, so there is time.
const (
	DefaultReady  = 4
	DefaultStepS  = 10
	DefaultResetS = 60
	DefaultAgentS = 3600
	DefaultSetupS = 300
	DefaultCPUs   = 0.01
	// DefaultMaxSnapshot is at most what one answer may have.
	DefaultMaxSnapshot = 8 << 20
)

const (
	maxSimulators = 1024 // of one owner
	maxName       = 256
)

// Spec describes a kind of environment. Exactly one of Env and Command is set.
type Spec struct {
	World string `json:"world"`
	// Env is the id of a Gymnasium environment that the world's python3 can make, Kwargs
	// a JSON object of further arguments of gymnasium.make.
	Env    string          `json:"env,omitempty"`
	Kwargs json.RawMessage `json:"kwargs,omitempty"`
	// Command is a program of the world that speaks the protocol itself.
	Command []string `json:"command,omitempty"`

	Policy string            `json:"policy,omitempty"`
	Vars   map[string]string `json:"vars,omitempty"` // of the program's environment
	User   string            `json:"user,omitempty"`
	Cwd    string            `json:"cwd,omitempty"`

	Limits   runner.Limits   `json:"limits,omitzero"`
	Requests runner.Requests `json:"requests,omitzero"`
	Budgets  runner.Budgets  `json:"budgets,omitzero"`
	// StepS and ResetS bound one step and one reset, in seconds.
	StepS  float64 `json:"step_s,omitempty"`
	ResetS float64 `json:"reset_s,omitempty"`
	// MaxMessage bounds one answer of the program, in bytes.
	MaxMessage int64 `json:"max_message,omitempty"`
	// MaxSnapshot bounds one snapshot, in bytes; at most MaxMessage.
	MaxSnapshot int64 `json:"max_snapshot,omitempty"`
	// Record is what the trajectory keeps of steps: "all" (default), "actions" (answers as
	// length and hash alone), or "ends" (only resets and the steps that end a rollout).
	Record string `json:"record,omitempty"`
	// AllowNaN lets observations hold numbers that are not finite; rewards never may.
	AllowNaN bool `json:"allow_nan,omitempty"`
	// CrashReward is what a fault of the world's own adds to the rewards so far.
	CrashReward float64 `json:"crash_reward,omitempty"`
}

// Simulator is a Spec that was found to work.
type Simulator struct {
	ID   string
	Spec Spec
	// Hello is what the program said of itself: protocol, observation_space, action_space,
	// metadata, spec.
	Hello json.RawMessage
	// Ready is how many sandboxes are kept ready, Made how many were when it was asked.
	Ready, Made int
}

// Service makes environments. Its methods may be called from any goroutine.
type Service struct {
	run     *runner.Runner
	shelves *shelves
	trials  *trials

	mu   sync.Mutex
	sims map[string]map[string]*opened // by owner and id
}

// Options are a Service's.
type Options struct {
	// Dir is a directory for snapshots; what is in it goes.
	Dir string
	// SnapshotBytes bounds the snapshots of each owner; 0 is DefaultSnapshotBytes.
	SnapshotBytes int64
}

// opened is a Simulator with what its answers are held against.
type opened struct {
	Simulator
	observation, action *space
	snapshots           offer
}

// New returns a Service on a runner.
func New(run *runner.Runner, o Options) (*Service, error) {
	shelves, err := openShelves(o.Dir, o.SnapshotBytes)
	if err != nil {
		return nil, fmt.Errorf("snapshots: %w", err)
	}
	return &Service{run: run, shelves: shelves, trials: &trials{all: map[trialKey]*tried{}}, sims: map[string]map[string]*opened{}}, nil
}

// Open makes sure that environments like spec can be made and keeps ready sandboxes for
// them, of the default number when ready is negative. The same spec has the same id;
// opening it again takes up its ready sandboxes anew. A program that does not get ready,
// or says nothing sensible, is a *runner.Error of kind prepare_failed.
func (s *Service) Open(ctx context.Context, owner string, spec Spec, ready int) (Simulator, error) {
	if ready < 0 {
		ready = DefaultReady
	}
	if err := spec.complete(); err != nil {
		return Simulator{}, err
	}
	id, err := spec.id()
	if err != nil {
		return Simulator{}, err
	}
	got, err := s.run.KeepReady(ctx, owner, spec.episode(), ready)
	if err != nil {
		return Simulator{}, err
	}
	o := &opened{Simulator: Simulator{ID: id, Spec: spec, Hello: json.RawMessage(got.Hello.Line), Ready: got.Wanted, Made: got.Made}}
	if err := o.read(); err != nil {
		return Simulator{}, &runner.Error{Kind: runner.KindPrepareFailed, Detail: fmt.Sprintf("the program's first message %.256q: %v", got.Hello.Line, err)}
	}
	s.trials.forgetFaults(owner, id)
	s.mu.Lock()
	defer s.mu.Unlock()
	mine := s.sims[owner]
	if mine == nil {
		mine = map[string]*opened{}
		s.sims[owner] = mine
	}
	if mine[id] == nil && len(mine) >= maxSimulators {
		return Simulator{}, &runner.Error{Kind: runner.KindTooLarge, Detail: fmt.Sprintf("one user has at most %d simulators open", maxSimulators)}
	}
	mine[id] = o
	return o.Simulator, nil
}

// Get returns an open simulator by its id, with how many of its sandboxes are ready now.
func (s *Service) Get(ctx context.Context, owner, id string) (Simulator, error) {
	o, err := s.get(owner, id)
	if err != nil {
		return Simulator{}, err
	}
	m := o.Simulator
	if m.Made, err = s.run.CountReady(ctx, owner, m.Spec.episode()); err != nil {
		return Simulator{}, err
	}
	return m, nil
}

func (s *Service) get(owner, id string) (*opened, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.sims[owner][id]; o != nil {
		return o, nil
	}
	return nil, &runner.Error{Kind: runner.KindNotFound, Field: "simulator", Detail: fmt.Sprintf("no simulator %q is open; a new start of the daemon forgets them", id)}
}

// read takes the program's first message.
func (o *opened) read() error {
	var hello struct {
		Protocol    string          `json:"protocol"`
		Observation json.RawMessage `json:"observation_space"`
		Action      json.RawMessage `json:"action_space"`
		Snapshots   json.RawMessage `json:"snapshots"`
	}
	if err := json.Unmarshal(o.Hello, &hello); err != nil {
		return err
	}
	if hello.Protocol != "paddock-simulator/1" {
		return fmt.Errorf("protocol is %.64q, not paddock-simulator/1", hello.Protocol)
	}
	var err error
	if o.observation, err = readSpace(hello.Observation); err != nil {
		return fmt.Errorf("observation_space: %w", err)
	}
	if o.action, err = readSpace(hello.Action); err != nil {
		return fmt.Errorf("action_space: %w", err)
	}
	o.snapshots, err = readOffer(hello.Snapshots)
	return err
}

func bad(field, format string, args ...any) error {
	return &runner.Error{Kind: runner.KindBadRequest, Field: field, Detail: fmt.Sprintf(format, args...)}
}

// complete checks what is the simulator's own of a spec, and fills in the defaults. The
// rest is the runner's to check.
func (s *Spec) complete() error {
	if (s.Env == "") == (len(s.Command) == 0) {
		return bad("env", "exactly one of env and command must be set")
	}
	if len(s.Env) > maxName {
		return bad("env", "has %d bytes, at most %d are allowed", len(s.Env), maxName)
	}
	if len(s.Kwargs) > 0 {
		if s.Env == "" {
			return bad("kwargs", "is not used by a command")
		}
		var kwargs map[string]any
		if err := json.Unmarshal(s.Kwargs, &kwargs); err != nil || kwargs == nil {
			return bad("kwargs", "is not a JSON object")
		}
	}
	if s.Record == "" {
		s.Record = "all"
	}
	if all := []string{"all", "actions", "ends"}; !slices.Contains(all, s.Record) {
		return bad("record", "%q is not one of %q", s.Record, all)
	}
	if !finite(s.CrashReward) {
		return bad("crash_reward", "%v is not finite", s.CrashReward)
	}
	message := s.MaxMessage
	if message == 0 {
		message = runner.DefaultFrame
	}
	if s.MaxSnapshot == 0 {
		s.MaxSnapshot = min(DefaultMaxSnapshot, message)
	}
	if s.MaxSnapshot < 0 || (message > 0 && s.MaxSnapshot > message) {
		return bad("max_snapshot", "%d is not in 0 to max_message, which is %d", s.MaxSnapshot, message)
	}
	for _, d := range []struct {
		field string
		v     *float64
		def   float64
	}{{"step_s", &s.StepS, DefaultStepS}, {"reset_s", &s.ResetS, DefaultResetS}, {"budgets/agent_s", &s.Budgets.AgentS, DefaultAgentS}, {"budgets/setup_s", &s.Budgets.SetupS, DefaultSetupS}, {"requests/cpus", &s.Requests.CPUs, DefaultCPUs}} {
		if *d.v == 0 {
			*d.v = d.def
		}
		if !(*d.v > 0 && *d.v <= 30*24*3600) {
			return bad(d.field, "%v is not in 0 to 30 days", *d.v)
		}
	}
	return nil
}

// id names a completed spec by its contents.
func (s *Spec) id() (string, error) {
	raw, err := json.Marshal(s)
	if err != nil {
		return "", bad("kwargs", "%v", err)
	}
	sum := sha256.Sum256(raw)
	return "sim-" + hex.EncodeToString(sum[:8]), nil
}

// episode is what every environment's episode has.
func (s *Spec) episode() runner.EpisodeSpec {
	p := &runner.ProgramSpec{Argv: s.Command, Env: s.Vars, User: s.User, Cwd: s.Cwd, MaxMessage: s.MaxMessage}
	if s.Env != "" {
		kwargs := "{}"
		var one bytes.Buffer
		if len(s.Kwargs) > 0 && json.Compact(&one, s.Kwargs) == nil {
			kwargs = one.String()
		}
		p.Argv = []string{"python3", "-c", stateShim + serverShim, s.Env, kwargs}
		// What an import compiles would be the episode's change.
		p.Env = map[string]string{"PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
		maps.Copy(p.Env, s.Vars)
	}
	return runner.EpisodeSpec{
		World: s.World, Policy: s.Policy, Limits: s.Limits, Requests: s.Requests, Budgets: s.Budgets, Prepare: p,
	}
}
