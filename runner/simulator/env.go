package simulator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"github.com/paddock-run/paddock/runner"
)

// EnvSpec asks for one environment, which is one episode.
type EnvSpec struct {
	Run, ID, Group, Task, Weights string
	Generation                    int64
	EnvSeed                       *uint32
	Graders                       []runner.WeightedGrader
	Labels                        map[string]string
	Retries                       int
}

// Env is one environment. Its methods may be called from any goroutine; they are served
// one after another.
type Env struct {
	s       *Service
	o       *opened
	key     runner.Key
	attempt int
	spec    runner.EpisodeSpec
	kind    kind
	seed    uint32

	mu    sync.Mutex
	said  said
	begun bool // there was a reset, or a restore
	// These are of the way that led here: a restore sets them back.
	rollouts, steps       int64
	total                 float64
	terminated, truncated bool // the rollout has ended: a reset must be next

	restores int64
	ended    *Ended
}

// Ended is how an environment's episode ended.
type Ended struct {
	End runner.End
	// Reward is the episode's; nil is none.
	Reward *float64
	Valid  bool
}

// Result is the answer to a reset or a step: an observation, an Error, or how the episode
// Ended. What the agent or the world did is never a Go error.
type Result struct {
	Observation, Info     json.RawMessage
	Reward                float64
	Terminated, Truncated bool
	// Frames are the lengths of the raw parts of Raw.
	Frames []int64
	Raw    []byte
	// Error: nothing was done (bad_action, needs_reset, snapshot_unsupported,
	// snapshot_too_large, bad_snapshot), or what the fault was.
	Error *runner.CallError
	Ended *Ended

	seq   int64  // of the call
	state []byte // of a snapshot
}

// Make makes an environment of an open simulator. An id that is known is refused.
func (s *Service) Make(ctx context.Context, owner, sim string, spec EnvSpec) (*Env, error) {
	o, err := s.get(owner, sim)
	if err != nil {
		return nil, err
	}
	es := o.Spec.episode()
	es.Run, es.ID, es.Group, es.Task, es.Weights = spec.Run, spec.ID, spec.Group, spec.Task, spec.Weights
	es.EnvSeed, es.Graders, es.Labels, es.Retries = spec.EnvSeed, spec.Graders, spec.Labels, spec.Retries
	es.Lease = runner.LeaseSpec{Kind: "daemon"} // whoever made it ends it
	made, err := s.run.Create(ctx, owner, spec.Generation, es)
	if err != nil {
		return nil, err
	}
	ep := &made.Episode
	last := ep.Last()
	if last.End != nil {
		return nil, &runner.Error{Kind: runner.KindEpisodeEnded, Detail: "the environment's episode has ended", End: last.End}
	}
	if made.Kept {
		return nil, &runner.Error{Kind: runner.KindInUse, Field: "id", Detail: fmt.Sprintf("environment %q is live already", ep.Key.ID)}
	}
	return &Env{s: s, o: o, key: ep.Key, attempt: last.N, spec: ep.Plan.Spec, kind: kindOf(&o.Spec, ep.Plan.World), seed: ep.Plan.EnvSeed}, nil
}

// Key is the environment's episode.
func (e *Env) Key() (key runner.Key, attempt int, seed uint32) { return e.key, e.attempt, e.seed }

// Reset begins a rollout. Without a seed the first is the episode's; later ones leave the
// environment's generators as they are. Options is a JSON object or nothing.
func (e *Env) Reset(ctx context.Context, seed *int64, options json.RawMessage) (Result, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ended != nil {
		return Result{Ended: e.ended}, nil
	}
	body := []byte(`{`)
	if seed == nil && !e.begun {
		first := int64(e.seed)
		seed = &first
	}
	if seed != nil {
		if *seed < 0 {
			return Result{}, bad("seed", "%d is negative", *seed)
		}
		body = append(body, `"seed":`...)
		body = strconv.AppendInt(body, *seed, 10)
	}
	if len(options) > 0 && string(options) != "null" {
		if options[0] != '{' || !json.Valid(options) {
			return Result{}, bad("options", "is not a JSON object")
		}
		if len(body) > 1 {
			body = append(body, ',')
		}
		body = append(append(body, `"options":`...), options...)
	}
	if seed != nil {
		if err := e.forget(); err != nil {
			return Result{}, err
		}
	}
	res, err := e.say(ctx, message{op: "reset", body: append(body, '}')})
	if err == nil && res.Error == nil && res.Ended == nil {
		e.begun, e.terminated, e.truncated = true, false, false
		e.rollouts++
	}
	return res, err
}

// Step takes one step. A malformed action is an Error and nothing is done.
func (e *Env) Step(ctx context.Context, action json.RawMessage) (Result, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ended != nil {
		return Result{Ended: e.ended}, nil
	}
	if !e.begun || e.terminated || e.truncated {
		return Result{Error: needsReset()}, nil
	}
	if err := e.o.action.check(action, frames{}, false, false); err != nil {
		return Result{Error: &runner.CallError{Kind: "bad_action", Detail: "the action " + err.Error()}}, nil
	}
	body := make([]byte, 0, len(action)+16)
	body = append(append(append(body, `{"action":`...), action...), '}')
	res, err := e.say(ctx, message{op: "step", body: body})
	if err == nil && res.Error == nil && res.Ended == nil {
		e.steps++
		e.total += res.Reward
		e.terminated, e.truncated = res.Terminated, res.Truncated
	}
	return res, err
}

// Render returns the environment's picture as the Result's Observation.
func (e *Env) Render(ctx context.Context) (Result, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ended != nil {
		return Result{Ended: e.ended}, nil
	}
	return e.say(ctx, message{op: "render", body: []byte(`{}`)})
}

// Close ends the environment well: its episode ends as ok, and the sum of its rewards is
// its score. Closing again is to ask again for the outcome.
func (e *Env) Close(ctx context.Context) (Ended, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ended == nil {
		if err := e.end(ctx, runner.End{Status: runner.OK, Cause: runner.Agent}, 0); err != nil {
			return Ended{}, err
		}
	}
	return *e.ended, nil
}

// Abandon ends the environment because its client is gone.
func (e *Env) Abandon(ctx context.Context, why string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ended != nil {
		return nil
	}
	err := e.end(ctx, runner.End{Status: runner.Expired, Cause: runner.Client, Evidence: []string{why}}, 0)
	return errors.Join(err, e.forget()) // nobody asks again, whatever became of the end
}

// say says one message and settles what came of it.
func (e *Env) say(ctx context.Context, m message) (Result, error) {
	msg, err := e.tell(m)
	if err != nil {
		return Result{}, err
	}
	msg.Attempt, msg.Keep = e.attempt, e.keeping
	e.said.keep(m)
	reply, err := e.s.run.Message(ctx, e.key, msg)
	if runner.KindOf(err) == runner.KindEpisodeEnded { // a limit, an operator, the sandbox's death
		return e.endedElsewhere(ctx)
	}
	if err != nil {
		return Result{}, err
	}
	res, fault := e.read(m.op, &reply)
	if fault == nil {
		if res.Error != nil { // the program did nothing
			e.said.takeBack()
		}
		res.seq = reply.Result.Seq
		return res, nil
	}
	if reply.Result.End != nil { // this call passed a limit that ends the episode
		return e.endedElsewhere(ctx)
	}
	end, err := e.settle(ctx, m.op, fault, &reply)
	if err != nil {
		return Result{}, err
	}
	crash := 0.0
	if end.Cause == runner.Agent {
		crash = e.o.Spec.CrashReward
	}
	if err := e.end(ctx, end, crash); err != nil {
		return Result{}, err
	}
	return Result{Error: fault, Reward: crash, Ended: e.ended}, nil
}

// keeping is what the trajectory keeps of a message.
func (e *Env) keeping(reply runner.Reply) runner.Keeping {
	if reply.Result.Error != nil {
		return runner.KeepAll
	}
	switch reply.Result.Tool {
	case "step":
	case "snapshot":
		return runner.KeepRequest
	default:
		return runner.KeepAll
	}
	switch e.o.Spec.Record {
	case "actions":
		return runner.KeepRequest
	case "ends":
		res, fault := e.read("step", &reply)
		if fault == nil && !res.Terminated && !res.Truncated {
			return runner.KeepNothing
		}
	}
	return runner.KeepAll
}

// lenient takes replies as encoding/json does, in half the time.
var lenient = jsonv2.JoinOptions(jsonv2.MatchCaseInsensitiveNames(true), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))

// read takes a reply apart. fault says that it is none that an environment may give.
func (e *Env) read(op string, reply *runner.Reply) (res Result, fault *runner.CallError) {
	if reply.Result.Error != nil {
		return res, reply.Result.Error
	}
	var r struct {
		Observation json.RawMessage   `json:"observation"`
		Reward      json.RawMessage   `json:"reward"`
		Terminated  *bool             `json:"terminated"`
		Truncated   *bool             `json:"truncated"`
		Info        json.RawMessage   `json:"info"`
		Snapshot    json.RawMessage   `json:"snapshot"`
		Error       *runner.CallError `json:"error"`
		Frames      []int64           `json:"frames"`
	}
	if err := jsonv2.Unmarshal(reply.Frame.Line, &r, lenient); err != nil {
		return res, &runner.CallError{Kind: "bad_reply", Detail: fmt.Sprintf("%.256q: %v", reply.Frame.Line, err)}
	}
	if r.Error != nil {
		if refuses(op, r.Error.Kind) {
			res.Error = r.Error
			return res, nil
		}
		return res, &runner.CallError{Kind: "crash", Detail: r.Error.Detail}
	}
	if !(frames{r.Frames, reply.Frame.Raw}).whole() {
		return res, &runner.CallError{Kind: "bad_reply", Detail: "frames does not say what follows"}
	}
	if op == "snapshot" {
		return e.readSnapshot(r.Snapshot, frames{r.Frames, reply.Frame.Raw})
	}
	res = Result{Observation: r.Observation, Info: r.Info, Frames: r.Frames, Raw: reply.Frame.Raw}
	raw := frames{r.Frames, reply.Frame.Raw}
	if err := carriedInfo(r.Info, raw); err != nil {
		return res, &runner.CallError{Kind: "bad_reply", Detail: "the info " + err.Error()}
	}
	if op == "render" {
		if err := carried(r.Observation, raw); err != nil {
			return res, &runner.CallError{Kind: "bad_reply", Detail: "the observation " + err.Error()}
		}
		return res, nil
	}
	if err := e.o.observation.observed(r.Observation, raw, e.o.Spec.AllowNaN); err != nil {
		kind := "bad_reply"
		if err.nan {
			kind = "not_finite"
		}
		return res, &runner.CallError{Kind: kind, Detail: "the observation " + err.Error()}
	}
	if op == "reset" || op == "restore" {
		return res, nil
	}
	if r.Terminated == nil || r.Truncated == nil || len(r.Reward) == 0 {
		return res, &runner.CallError{Kind: "bad_reply", Detail: "one of reward, terminated and truncated is missing"}
	}
	res.Terminated, res.Truncated = *r.Terminated, *r.Truncated
	reward, err := strconv.ParseFloat(string(r.Reward), 64)
	if err != nil || !finite(reward) {
		return res, &runner.CallError{Kind: "not_finite", Detail: fmt.Sprintf("the reward is %.64s", r.Reward)}
	}
	res.Reward = reward
	return res, nil
}

// settle says whose a fault is: the same messages are said once more in another sandbox.
func (e *Env) settle(ctx context.Context, op string, fault *runner.CallError, reply *runner.Reply) (runner.End, error) {
	evidence := []string{fmt.Sprintf("%s after %d steps: %s: %s", op, e.steps, fault.Kind, cut(fault.Detail))}
	if reply.Result.OOM {
		return runner.End{Status: runner.OOM, Cause: runner.Agent, Limit: reply.Result.Limit, Evidence: evidence}, nil
	}
	if !e.begun && op != "restore" { // no agent has had a say yet
		return runner.End{Status: runner.Errored, Cause: runner.WorldBad, Step: "setup", Evidence: evidence}, nil
	}
	world := runner.End{Status: runner.Failed, Cause: runner.Agent, Flags: []string{"world_fault"}, Evidence: evidence}
	if e.said.forgot {
		world.Flags = append(world.Flags, "unreplayed")
		return world, nil
	}
	again, err := e.replay(ctx)
	if ctx.Err() != nil {
		return runner.End{}, context.Cause(ctx)
	}
	switch {
	case err != nil:
		evidence = append(evidence, "replay: "+cut(err.Error()))
	case again == nil:
		evidence = append(evidence, "replay: no fault")
	case again.Kind == fault.Kind:
		world.Evidence = append(world.Evidence, "replay: the same")
		return world, nil
	default:
		evidence = append(evidence, fmt.Sprintf("replay: %s: %s", again.Kind, cut(again.Detail)))
	}
	return runner.End{Status: runner.Errored, Cause: runner.Platform, Step: "step", Evidence: evidence}, nil
}

func cut(s string) string { return s[:min(len(s), 1024)] }

// replay says the messages again in a new sandbox and returns the first fault.
func (e *Env) replay(ctx context.Context) (*runner.CallError, error) {
	key, done, err := e.aside(ctx, "replay")
	if err != nil {
		return nil, err
	}
	defer done()
	for _, m := range e.said.messages {
		msg, err := e.tell(m)
		if err != nil {
			return nil, err
		}
		msg.Keep = keepNothing
		reply, err := e.s.run.Message(ctx, key, msg)
		if err != nil {
			return nil, err
		}
		if _, fault := e.read(m.op, &reply); fault != nil {
			return fault, nil
		}
	}
	return nil, nil //nolint:nilnil // documented: no fault
}

func keepNothing(runner.Reply) runner.Keeping { return runner.KeepNothing }

// patience is how long a message may take, in seconds.
func (e *Env) patience(op string) float64 {
	if op == "step" || op == "render" {
		return e.o.Spec.StepS
	}
	return e.o.Spec.ResetS
}

// aside makes another episode like the environment's, which done throws away.
func (e *Env) aside(ctx context.Context, why string) (key runner.Key, done func(), err error) {
	spec := e.spec
	spec.ID, spec.Graders = why+"-"+uuid.NewString(), nil
	spec.Labels = map[string]string{why + "_of": e.key.ID}
	made, err := e.s.run.Create(ctx, e.key.Owner, 0, spec)
	if err != nil {
		return runner.Key{}, nil, err
	}
	key = made.Episode.Key
	return key, func() { _ = e.s.run.Delete(context.WithoutCancel(ctx), key) }, nil
}

// end ends the episode and keeps its rewards as a score.
func (e *Env) end(ctx context.Context, end runner.End, crash float64) error {
	e.total += crash
	way := map[string]any{"rollouts": e.rollouts, "steps": e.steps, "return": e.total}
	if e.restores > 0 {
		way["restores"] = e.restores
	}
	answer, err := json.Marshal(way)
	if err != nil {
		return err
	}
	ep, err := e.s.run.EndAs(ctx, e.key, runner.FinishSpec{Attempt: e.attempt, Answer: answer}, end)
	if runner.KindOf(err) == runner.KindEpisodeEnded {
		_, err = e.endedElsewhere(ctx)
		return err
	}
	if err != nil {
		return err
	}
	return e.score(ctx, ep)
}

// endedElsewhere takes the end that the runner gave the episode.
func (e *Env) endedElsewhere(ctx context.Context) (Result, error) {
	ep, err := e.s.run.AwaitEnd(ctx, e.key)
	if err != nil {
		return Result{}, err
	}
	if err := e.score(ctx, ep); err != nil {
		return Result{}, err
	}
	return Result{Ended: e.ended}, nil
}

// score keeps the rewards of an episode that ended by the agent's doing.
func (e *Env) score(ctx context.Context, ep runner.Episode) error {
	last := ep.Last()
	if last.End.Cause == runner.Agent && (e.steps > 0 || last.End.Status != runner.OK) {
		total := e.total
		metrics := map[string]float64{"rollouts": float64(e.rollouts), "steps": float64(e.steps)}
		if e.restores > 0 {
			metrics["restores"] = float64(e.restores)
		}
		scored, err := e.s.run.WriteScore(ctx, e.key, e.attempt, runner.ScoreResult{
			Grader: "simulator", Source: "simulator", Status: runner.OK, Cause: runner.Agent, Reward: &total, Tries: 1,
			Metrics: metrics,
		})
		if err != nil {
			return err
		}
		ep = scored
	}
	last = ep.Last()
	e.ended = &Ended{End: *last.End, Reward: last.Reward, Valid: last.Valid}
	return e.forget()
}
