package daemon

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"strings"

	"github.com/google/uuid"

	"github.com/paddock-run/paddock/api"
	"github.com/paddock-run/paddock/overlay"
	"github.com/paddock-run/paddock/runner"
	"github.com/paddock-run/paddock/runner/app"
	"github.com/paddock-run/paddock/runner/simulator"
)

// openEnvView is a world, simulator or app as an environment.
type openEnvView struct {
	s                        *Server
	owner, kind, name, route string
	world                    overlay.World
	sim                      simulator.Simulator
}

func (v *openEnvView) find(ctx context.Context) (err error) {
	switch v.kind {
	case "worlds":
		v.world, err = v.s.run.World(ctx, v.owner, v.name)
	case "simulators":
		v.sim, err = v.s.sims.Get(ctx, v.owner, v.name)
	case "apps":
		_, err = v.s.cfg.Apps.Get(v.owner, v.name)
	default:
		err = &api.Error{Kind: api.NotFound, Field: "kind", Detail: fmt.Sprintf("%.64q is not worlds, simulators or apps", v.kind)}
	}
	return err
}

func (v openEnvView) description() string {
	switch v.kind {
	case "worlds":
		return "world " + v.world.ID + ", stepped by calls of its tools"
	case "simulators":
		return "simulator " + v.name + " of world " + v.sim.Spec.World
	}
	return "app " + v.name + ", stepped by requests of one session"
}

func (v openEnvView) open() openEnv {
	switch v.kind {
	case "worlds":
		return &worldEnv{v: v}
	case "simulators":
		return &simEnv{v: v}
	}
	return &appEnv{v: v}
}

func (v openEnvView) closed(err error) {
	if err != nil {
		v.s.log.Warn("end of an OpenEnv environment", slog.String("kind", v.kind), slog.String("name", v.name), slog.Any("error", err))
	}
}

func (v openEnvView) schemas() openEnvSchemas {
	properties := func(kv ...any) map[string]any {
		p := map[string]any{"metadata": map[string]any{"type": "object"}}
		for i := 0; i < len(kv); i += 2 {
			p[fmt.Sprint(kv[i])] = kv[i+1]
		}
		return map[string]any{"type": "object", "properties": p}
	}
	text, object, number := map[string]any{"type": "string"}, map[string]any{"type": "object"}, map[string]any{"type": []string{"integer", "null"}}
	switch v.kind {
	case "worlds":
		return openEnvSchemas{
			properties("command", text, "type", map[string]any{"enum": []string{"call_tool", "list_tools"}}, "tool_name", text, "arguments", object, "answer", map[string]any{}),
			properties("stdout", text, "stderr", text, "exit_code", number, "error", object, "tools", map[string]any{"type": "array"}),
		}
	case "simulators":
		var hello struct {
			Action      map[string]any `json:"action_space"`
			Observation map[string]any `json:"observation_space"`
		}
		_ = json.Unmarshal(v.sim.Hello, &hello) // it was read when the simulator was opened
		return openEnvSchemas{properties("action", hello.Action), properties("observation", hello.Observation, "info", object)}
	}
	return openEnvSchemas{
		properties("method", text, "path", text, "headers", object, "body", text, "json", map[string]any{}),
		properties("status", number, "headers", object, "body", text, "json", map[string]any{}),
	}
}

func badAction(format string, args ...any) error {
	return &api.Error{Kind: api.BadRequest, Field: "action", Detail: fmt.Sprintf(format, args...)}
}

func needsReset() error { return badAction("a reset must come first") }

// field reads one field of an action, which may be left out.
func field(action map[string]json.RawMessage, name string, out any) error {
	raw, ok := action[name]
	if !ok || string(raw) == "null" {
		return nil
	}
	if err := json.Unmarshal(raw, out); err != nil {
		return badAction("%s: %v", name, err)
	}
	return nil
}

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

// simEnv steps a simulator.
type simEnv struct {
	v     openEnvView
	env   *simulator.Env
	id    string
	steps int64
}

func (e *simEnv) state() (string, int64) { return e.id, e.steps }

func (e *simEnv) reset(ctx context.Context, in openEnvReset) (openEnvStep, error) {
	if e.env != nil && in.Episode != "" && in.Episode != e.id {
		if err := e.close(ctx); err != nil {
			return openEnvStep{}, err
		}
	}
	if e.env == nil {
		env, err := e.v.s.sims.Make(ctx, e.v.owner, e.v.name, simulator.EnvSpec{ID: in.Episode, Labels: map[string]string{"by": "openenv"}})
		if err != nil {
			return openEnvStep{}, err
		}
		key, _, _ := env.Key()
		e.env, e.id = env, key.ID
	}
	e.steps = 0
	res, err := e.env.Reset(ctx, in.Seed, in.Options)
	return e.observed(res, err, true)
}

func (e *simEnv) step(ctx context.Context, action map[string]json.RawMessage) (openEnvStep, error) {
	if e.env == nil {
		return openEnvStep{}, needsReset()
	}
	raw, ok := action["action"]
	if !ok {
		return openEnvStep{}, badAction("want the field action")
	}
	res, err := e.env.Step(ctx, compact(raw))
	return e.observed(res, err, false)
}

func (e *simEnv) observed(res simulator.Result, err error, first bool) (openEnvStep, error) {
	if err != nil {
		return openEnvStep{}, err
	}
	if res.Error != nil && res.Ended == nil {
		return openEnvStep{}, badAction("%s: %s", res.Error.Kind, res.Error.Detail)
	}
	out := openEnvStep{Observation: map[string]any{}}
	if res.Ended != nil {
		e.env = nil // the next reset makes another
		out.Reward, out.Done = &res.Reward, true
		out.Metadata = map[string]any{"status": res.Ended.End.Status, "cause": res.Ended.End.Cause, "valid": res.Ended.Valid}
		if res.Error != nil {
			out.Metadata["error"] = res.Error.Kind + ": " + res.Error.Detail
		}
		return out, nil
	}
	for name, raw := range map[string]json.RawMessage{"observation": res.Observation, "info": res.Info} {
		if len(raw) == 0 {
			continue
		}
		var v any
		if err := json.Unmarshal(raw, &v); err != nil {
			return openEnvStep{}, err
		}
		if out.Observation[name], err = plainValue(v, res.Frames, res.Raw); err != nil {
			return openEnvStep{}, err
		}
	}
	if !first {
		e.steps++
		out.Reward, out.Done = &res.Reward, res.Terminated || res.Truncated
		out.Metadata = map[string]any{"terminated": res.Terminated, "truncated": res.Truncated}
	}
	return out, nil
}

func (e *simEnv) close(ctx context.Context) error {
	if e.env == nil {
		return nil
	}
	env := e.env
	e.env = nil
	_, err := env.Close(ctx)
	return err
}

// maxPlainNumbers bounds the numbers of one array that are told as a list.
const maxPlainNumbers = 1 << 22

const maxPlainDims = 32

// plainValue makes the arrays of a value lists, which any client can read.
func plainValue(v any, frames []int64, raw []byte) (any, error) {
	switch v := v.(type) {
	case []any:
		for i := range v {
			var err error
			if v[i], err = plainValue(v[i], frames, raw); err != nil {
				return nil, err
			}
		}
	case map[string]any:
		if dtype, ok := v["$array"].(string); ok {
			return plainArray(dtype, v, frames, raw)
		}
		for k := range v {
			var err error
			if v[k], err = plainValue(v[k], frames, raw); err != nil {
				return nil, err
			}
		}
	}
	return v, nil
}

func plainArray(dtype string, v map[string]any, frames []int64, raw []byte) (any, error) {
	var data []byte
	if text, ok := v["b64"].(string); ok {
		var err error
		if data, err = base64.StdEncoding.DecodeString(text); err != nil {
			return nil, err
		}
	} else if n, ok := v["frame"].(float64); ok {
		var from int64
		for i, length := range frames {
			if i == int(n) {
				data = raw[from : from+length]
			}
			from += length
		}
	}
	dims, _ := v["shape"].([]any)
	shape := make([]int, len(dims))
	for i, d := range dims {
		n, _ := d.(float64)
		shape[i] = int(n)
	}
	size, number := numberOf(dtype)
	if size == 0 || !fits(shape, size, len(data)) {
		return nil, &api.Error{Kind: api.TooLarge, Detail: fmt.Sprintf("an array %.16s %.8v of %d bytes is not told as a list", dtype, shape, len(data))}
	}
	return nested(shape, func() any {
		if len(data) < size {
			return nil
		}
		n := number(data)
		data = data[size:]
		return n
	}), nil
}

// fits says whether an array's shape is that of its bytes, and has no more places than are
// told. Only observations were held against their space; what else a program says is hostile.
func fits(shape []int, size, have int) bool {
	if len(shape) > maxPlainDims {
		return false
	}
	places, numbers := 1, 1
	for _, d := range shape {
		if d < 0 || d > maxPlainNumbers {
			return false
		}
		places *= max(d, 1)
		numbers *= d
		if places > maxPlainNumbers {
			return false
		}
	}
	return numbers*size == have
}

func nested(shape []int, next func() any) any {
	if len(shape) == 0 {
		return next()
	}
	list := make([]any, 0, min(shape[0], maxPlainNumbers))
	for range shape[0] {
		list = append(list, nested(shape[1:], next))
	}
	return list
}

// numberOf reads one number of an array's type.
func numberOf(dtype string) (size int, read func([]byte) any) {
	le := binary.LittleEndian
	finite := func(f float64) any {
		if math.IsNaN(f) || math.IsInf(f, 0) {
			return nil // JSON has no such number
		}
		return f
	}
	switch dtype {
	case "|b1":
		return 1, func(b []byte) any { return b[0] != 0 }
	case "|i1":
		return 1, func(b []byte) any { return int8(b[0]) } //nolint:gosec // its two's complement
	case "|u1":
		return 1, func(b []byte) any { return int(b[0]) }
	case "<i2":
		return 2, func(b []byte) any { return int16(le.Uint16(b)) } //nolint:gosec // its two's complement
	case "<u2":
		return 2, func(b []byte) any { return le.Uint16(b) }
	case "<i4":
		return 4, func(b []byte) any { return int32(le.Uint32(b)) } //nolint:gosec // its two's complement
	case "<u4":
		return 4, func(b []byte) any { return le.Uint32(b) }
	case "<i8":
		return 8, func(b []byte) any { return int64(le.Uint64(b)) } //nolint:gosec // its two's complement
	case "<u8":
		return 8, func(b []byte) any { return le.Uint64(b) }
	case "<f4":
		return 4, func(b []byte) any { return finite(float64(math.Float32frombits(le.Uint32(b)))) }
	case "<f8":
		return 8, func(b []byte) any { return finite(math.Float64frombits(le.Uint64(b))) }
	}
	return 0, nil
}

// maxAppAnswer bounds what an observation has of an app's answer.
const maxAppAnswer = 16 << 20

// appEnv steps an app: each step is a request, each reset a session.
type appEnv struct {
	v       openEnvView
	session string
	steps   int64
	http    http.Client
}

func (e *appEnv) state() (string, int64) { return e.session, e.steps }

func (e *appEnv) reset(ctx context.Context, in openEnvReset) (openEnvStep, error) {
	if err := e.close(ctx); err != nil {
		return openEnvStep{}, err
	}
	if err := e.v.s.cfg.Apps.Ensure(ctx, e.v.owner, e.v.name); err != nil {
		return openEnvStep{}, err
	}
	e.steps = 0
	if e.session = in.Episode; e.session == "" {
		e.session = "oe-" + uuid.NewString()
	}
	e.http = http.Client{
		Timeout:       openEnvCallPatience,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{DisableCompression: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return e.v.s.inner.Connect(ctx, e.v.owner, e.v.name, e.session)
		}},
	}
	return openEnvStep{Observation: map[string]any{}}, nil
}

func (e *appEnv) step(ctx context.Context, action map[string]json.RawMessage) (openEnvStep, error) {
	if e.session == "" {
		return openEnvStep{}, needsReset()
	}
	var in struct {
		method, path, body string
		headers            map[string]string
	}
	for name, out := range map[string]any{"method": &in.method, "path": &in.path, "body": &in.body, "headers": &in.headers} {
		if err := field(action, name, out); err != nil {
			return openEnvStep{}, err
		}
	}
	if in.method == "" {
		in.method = http.MethodGet
	}
	if !strings.HasPrefix(in.path, "/") {
		return openEnvStep{}, badAction("the path %.64q does not begin with /", in.path)
	}
	media := ""
	if raw, ok := action["json"]; ok {
		in.body, media = string(raw), api.MediaJSON
	}
	req, err := http.NewRequestWithContext(ctx, in.method, "http://localhost"+in.path, strings.NewReader(in.body))
	if err != nil {
		return openEnvStep{}, badAction("%v", err)
	}
	if media != "" {
		req.Header.Set("Content-Type", media)
	}
	for name, value := range in.headers {
		req.Header.Set(name, value)
	}
	return e.ask(req)
}

// ask makes the request. An answer that is a JSON object may say its reward and whether the
// game is over, in the fields reward and done.
func (e *appEnv) ask(req *http.Request) (openEnvStep, error) {
	resp, err := e.http.Do(req)
	if err != nil {
		return openEnvStep{}, &runner.Error{Kind: runner.KindAppBroken, Detail: err.Error()}
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAppAnswer+1))
	if err != nil {
		return openEnvStep{}, &runner.Error{Kind: runner.KindAppBroken, Detail: err.Error()}
	}
	if len(text) > maxAppAnswer {
		return openEnvStep{}, &api.Error{Kind: api.TooLarge, Detail: fmt.Sprintf("the app's answer has more than %d bytes", maxAppAnswer)}
	}
	if kind := resp.Header.Get(app.HeaderError); kind != "" {
		p := &api.Error{}
		if json.Unmarshal(text, p) == nil && p.Kind != "" {
			return openEnvStep{}, p
		}
	}
	e.steps++
	headers := map[string]string{}
	for name := range resp.Header {
		headers[name] = resp.Header.Get(name)
	}
	out := openEnvStep{Observation: map[string]any{"status": resp.StatusCode, "headers": headers}}
	out.Observation["body"], _ = api.Text(text)
	var object map[string]any
	d := json.NewDecoder(bytes.NewReader(text))
	if d.Decode(&object) == nil && object != nil && !d.More() {
		out.Observation["json"] = object
		if reward, ok := object["reward"].(float64); ok {
			out.Reward = &reward
		}
		out.Done, _ = object["done"].(bool)
	}
	return out, nil
}

func (e *appEnv) close(context.Context) error {
	if e.session == "" {
		return nil
	}
	e.http.CloseIdleConnections()
	e.v.s.inner.Release(e.v.owner, e.v.name, e.session)
	e.session = ""
	return nil
}
