package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"math"

	"github.com/paddock-run/paddock/api"
	"github.com/paddock-run/paddock/runner"
)

// worldEnv steps a world: each step is a call, each reset an episode.
type worldEnv struct {
	v       openEnvView
	key     runner.Key
	attempt int
	steps   int64
	over    bool
}

func (e *worldEnv) state() (string, int64) { return e.key.ID, e.steps }

func (e *worldEnv) reset(ctx context.Context, in openEnvReset) (openEnvStep, error) {
	if err := e.close(ctx); err != nil {
		return openEnvStep{}, err
	}
	spec := runner.EpisodeSpec{World: e.v.world.ID, ID: in.Episode, Lease: runner.LeaseSpec{Kind: "daemon"}, Labels: map[string]string{"by": "openenv"}}
	if in.Seed != nil {
		if *in.Seed < 0 || *in.Seed > math.MaxUint32 {
			return openEnvStep{}, badAction("the seed %d is not in 0 to %d", *in.Seed, uint32(math.MaxUint32))
		}
		seed := uint32(*in.Seed)
		spec.EnvSeed = &seed
	}
	made, err := e.v.s.run.Create(ctx, e.v.owner, 0, spec)
	if err != nil {
		return openEnvStep{}, err
	}
	last := made.Episode.Last()
	if last.End != nil {
		return openEnvStep{}, &runner.Error{Kind: runner.KindEpisodeEnded, Detail: "the episode has ended", End: last.End}
	}
	if made.Kept {
		return openEnvStep{}, &runner.Error{Kind: runner.KindInUse, Field: "episode_id", Detail: fmt.Sprintf("episode %q is live already", made.Episode.Key.ID)}
	}
	e.key, e.attempt, e.steps, e.over = made.Episode.Key, last.N, 0, false
	return openEnvStep{Observation: map[string]any{"tools": e.tools()}}, nil
}

func (e *worldEnv) step(ctx context.Context, action map[string]json.RawMessage) (openEnvStep, error) {
	var kind, command, tool string
	for name, out := range map[string]*string{"type": &kind, "command": &command, "tool_name": &tool} {
		if err := field(action, name, out); err != nil {
			return openEnvStep{}, err
		}
	}
	answer, finish := action["answer"]
	switch {
	case kind == "list_tools":
		return openEnvStep{Observation: map[string]any{"tools": e.tools()}}, nil
	case e.key.ID == "" || e.over:
		return openEnvStep{}, needsReset()
	case finish:
		return e.finish(ctx, answer)
	case kind == "call_tool" || tool != "":
		return e.call(ctx, tool, action["arguments"])
	case command != "":
		return e.make(ctx, runner.CallSpec{Tool: "exec", Shell: command})
	}
	return openEnvStep{}, badAction("want one of command, tool_name with arguments, answer")
}

// finish ends the episode; its reward, from the graders of its spec, is the step's.
func (e *worldEnv) finish(ctx context.Context, answer json.RawMessage) (openEnvStep, error) {
	ep, err := e.v.s.run.Finish(ctx, e.key, runner.FinishSpec{Attempt: e.attempt, Answer: answer})
	if err != nil {
		return openEnvStep{}, err
	}
	return e.ended(ep), nil
}

func (e *worldEnv) ended(ep runner.Episode) openEnvStep {
	e.over = true
	last := ep.Last()
	return openEnvStep{
		Observation: map[string]any{}, Reward: last.Reward, Done: true,
		Metadata: map[string]any{"status": last.End.Status, "cause": last.End.Cause, "valid": last.Valid},
	}
}

// tools are the world's own, and those that every world has.
func (e *worldEnv) tools() []map[string]any {
	list := []map[string]any{{
		"name": "exec", "description": "Run a program or a line of the shell",
		"input_schema": map[string]any{"type": "object", "properties": map[string]any{
			"shell": map[string]any{"type": "string"}, "argv": map[string]any{"type": "array", "items": map[string]any{"type": "string"}},
			"timeout_s": map[string]any{"type": "number"},
		}},
	}, {
		"name": "read_file", "description": "The bytes of a file, in base64",
		"input_schema": map[string]any{"type": "object", "properties": map[string]any{"path": map[string]any{"type": "string"}}, "required": []string{"path"}},
	}}
	for _, t := range e.v.world.Config.Tools {
		schema := map[string]any{"type": "object"}
		if len(t.Parameters) > 0 {
			_ = json.Unmarshal(t.Parameters, &schema) // it was checked with the world
		}
		list = append(list, map[string]any{"name": t.Name, "description": t.Description, "input_schema": schema})
	}
	return list
}

// call calls a tool; one of an environment that was not reset begins an episode for it.
func (e *worldEnv) call(ctx context.Context, tool string, args json.RawMessage) (openEnvStep, error) {
	if tool == "" {
		return openEnvStep{}, badAction("tool_name is missing")
	}
	if e.key.ID == "" || e.over {
		if _, err := e.reset(ctx, openEnvReset{}); err != nil {
			return openEnvStep{}, err
		}
	}
	for _, t := range e.v.world.Config.Tools {
		if t.Name == tool {
			return e.make(ctx, runner.CallSpec{Tool: tool, Args: compact(args)})
		}
	}
	var in api.CallSpec
	if len(args) > 0 {
		if err := decode(args, &in); err != nil {
			return openEnvStep{}, err
		}
	}
	in.Tool, in.Attempt = tool, 0
	return e.make(ctx, callSpec(in, 0))
}

func (e *worldEnv) make(ctx context.Context, spec runner.CallSpec) (openEnvStep, error) {
	spec.Attempt = e.attempt
	res, err := e.v.s.run.Call(ctx, e.key, spec, runner.CallIO{})
	if runner.KindOf(err) == runner.KindEpisodeEnded { // by a limit of its own, or an operator
		ep, err := e.v.s.run.AwaitEnd(ctx, e.key)
		if err != nil {
			return openEnvStep{}, err
		}
		return e.ended(ep), nil
	}
	if err != nil {
		return openEnvStep{}, err
	}
	e.steps++
	wire := wireResult(res)
	out := openEnvStep{Observation: map[string]any{"stdout": wire.Stdout + wire.StdoutTail, "stderr": wire.Stderr + wire.StderrTail, "exit_code": wire.ExitCode}}
	for name, v := range map[string]any{"signal": wire.Signal, "timed_out": wire.TimedOut, "oom": wire.OOM, "stdout_dropped": wire.StdoutDropped, "stderr_dropped": wire.StderrDropped} {
		if v != 0 && v != false && v != int64(0) {
			out.Observation[name] = v
		}
	}
	if wire.Fault != nil {
		out.Observation["error"] = wire.Fault
	}
	if res.Content != nil {
		out.Observation["content"] = res.Content
	}
	if res.End == nil {
		return out, nil
	}
	ep, err := e.v.s.run.AwaitEnd(ctx, e.key)
	if err != nil {
		return openEnvStep{}, err
	}
	end := e.ended(ep)
	end.Observation = out.Observation
	return end, nil
}

func (e *worldEnv) close(ctx context.Context) error {
	if e.key.ID == "" || e.over {
		return nil
	}
	e.over = true
	_, err := e.v.s.run.EndAs(ctx, e.key, runner.FinishSpec{Attempt: e.attempt}, gone())
	if kind := runner.KindOf(err); kind == runner.KindEpisodeEnded || kind == runner.KindNotFound || kind == runner.KindSuperseded {
		return nil
	}
	return err
}
