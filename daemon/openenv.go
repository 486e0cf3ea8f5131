package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"time"

	"github.com/coder/websocket"

	"github.com/paddock-run/paddock/api"
	"github.com/paddock-run/paddock/runner"
)

// This file serves worlds, simulators and apps as an OpenEnv server does (openenv 0.10): a
// WebSocket is one environment, which is reset and stepped by messages and ends with it; the
// same over HTTP makes an environment for each request. docs/openenv.md has what an action and
// an observation are.

const (
	openEnvPath = "/openenv/{kind}/{name}"
	// openEnvVersion is the version of the API that the document of a view says.
	openEnvVersion = "1.0.0"
	maxOpenEnvBody = callBody
)

// openEnv is one environment.
type openEnv interface {
	// reset begins an episode, after the end of the one before.
	reset(ctx context.Context, in openEnvReset) (openEnvStep, error)
	step(ctx context.Context, action map[string]json.RawMessage) (openEnvStep, error)
	// state is the running episode's id and the number of its steps.
	state() (episode string, steps int64)
	// close ends what is open because the client is gone, or done.
	close(ctx context.Context) error
}

// openEnvReset are the parameters of a reset. What else a client sends is not used, as with
// OpenEnv's own server.
type openEnvReset struct {
	Seed    *int64          `json:"seed"`
	Episode string          `json:"episode_id"`
	Options json.RawMessage `json:"options"`
}

// openEnvStep is the answer to a reset or step.
type openEnvStep struct {
	Observation map[string]any `json:"observation"`
	Reward      *float64       `json:"reward"`
	Done        bool           `json:"done"`
	Metadata    map[string]any `json:"metadata,omitempty"`
}

// openEnvSchemas are JSON schemas of a view's actions and observations.
type openEnvSchemas struct{ action, observation map[string]any }

// The codes of OpenEnv's errors.
const (
	openEnvInvalid   = "VALIDATION_ERROR"
	openEnvExecution = "EXECUTION_ERROR"
	openEnvCapacity  = "CAPACITY_REACHED"
	openEnvFactory   = "FACTORY_ERROR"
)

func openEnvRoutes() []route {
	missing := may(api.UnknownWorld, api.UnknownApp, api.NotFound)
	live := may(api.UnknownPolicy, api.UnknownUser, api.RefusedByPolicy, api.Fenced, api.SpecConflict, api.AttemptsExhausted, api.OverCapacity, api.EpisodeEnded,
		api.EpisodeDeleted, api.Superseded, api.InUse, api.WrongState, api.WorldUnhealthy, api.Corrupt, api.UnknownTool, api.AppDown, api.AppBroken,
		api.SessionLost, api.Unsupported, api.CallConflict, api.CallCancelled)
	step := reflect.TypeFor[api.OpenEnvStep]()
	return []route{
		typed("GET", openEnvPath+"/health", "openEnvHealth", "OpenEnv: whether the environment is there", (*Server).openEnvHealth, draining, missing),
		typed("GET", openEnvPath+"/metadata", "openEnvMetadata", "OpenEnv: what the environment is", (*Server).openEnvMetadata, draining, missing),
		typed("GET", openEnvPath+"/schema", "openEnvSchema", "OpenEnv: schemas of actions, observations and state", (*Server).openEnvSchema, draining, missing),
		typed("GET", openEnvPath+"/state", "openEnvState", "OpenEnv: the state of an environment that was just made", (*Server).openEnvState, draining, missing),
		raw("GET", openEnvPath+"/openapi.json", "openEnvDocument", "OpenEnv: the document of this environment", (*Server).openEnvDocument, draining, missing, gives(nil, api.MediaJSON)),
		raw("POST", openEnvPath+"/reset", "openEnvReset", "OpenEnv: reset an environment that ends with the answer", (*Server).openEnvResetOnce, missing, live,
			takes(nil, api.MediaJSON), gives(step, api.MediaJSON)),
		raw("POST", openEnvPath+"/step", "openEnvStep", "OpenEnv: one step of an environment that ends with the answer", (*Server).openEnvStepOnce, missing, live, body(maxOpenEnvBody),
			takes(nil, api.MediaJSON), gives(step, api.MediaJSON)),
		raw("POST", openEnvPath+"/mcp", "openEnvMCP", "OpenEnv: JSON-RPC of tools, of an environment that ends with the answer", (*Server).openEnvMCP, missing, body(maxOpenEnvBody),
			takes(nil, api.MediaJSON), gives(nil, api.MediaJSON)),
		raw("GET", openEnvPath+"/ws", "openEnvSocket", "OpenEnv: a WebSocket, which is one environment", (*Server).openEnvSocket, missing,
			status(http.StatusSwitchingProtocols)),
	}
}

// view is what a path names, checked that it is there.
func (s *Server) view(q *request) (openEnvView, error) {
	v := openEnvView{s: s, owner: q.owner(), kind: q.PathValue("kind"), name: q.PathValue("name"), route: q.route.ID}
	return v, v.find(q.Context())
}

func (s *Server) openEnvHealth(q *request, _ empty) (api.OpenEnvHealth, error) {
	if _, err := s.view(q); err != nil {
		return api.OpenEnvHealth{}, err
	}
	return api.OpenEnvHealth{Status: "healthy"}, nil
}

func (s *Server) openEnvMetadata(q *request, _ empty) (api.OpenEnvMetadata, error) {
	v, err := s.view(q)
	if err != nil {
		return api.OpenEnvMetadata{}, err
	}
	return api.OpenEnvMetadata{Name: v.name, Description: v.description(), Version: s.cfg.Version}, nil
}

func (s *Server) openEnvSchema(q *request, _ empty) (api.OpenEnvSchema, error) {
	v, err := s.view(q)
	if err != nil {
		return api.OpenEnvSchema{}, err
	}
	all := v.schemas()
	return api.OpenEnvSchema{Action: all.action, Observation: all.observation, State: stateSchema}, nil
}

var stateSchema = map[string]any{"type": "object", "properties": map[string]any{
	"episode_id": map[string]any{"type": []string{"string", "null"}}, "step_count": map[string]any{"type": "integer", "minimum": 0},
}}

func (s *Server) openEnvState(q *request, _ empty) (api.OpenEnvState, error) {
	_, err := s.view(q)
	return api.OpenEnvState{}, err
}

// openEnvDocument is what OpenEnv's validator reads: the version and the paths.
func (s *Server) openEnvDocument(q *request) error {
	v, err := s.view(q)
	if err != nil {
		return err
	}
	paths := map[string]any{}
	for path, method := range map[string]string{
		"/health": "get", "/metadata": "get", "/schema": "get", "/state": "get", "/reset": "post", "/step": "post", "/mcp": "post",
	} {
		paths[path] = map[string]any{method: map[string]any{"responses": map[string]any{"200": map[string]any{"description": "OK"}}}}
	}
	return q.answer(map[string]any{
		"openapi": "3.1.0", "info": map[string]any{"title": v.name, "version": openEnvVersion, "description": v.description()}, "paths": paths,
	})
}

// once makes an environment, does one thing with it, and ends it.
func (s *Server) once(q *request, do func(context.Context, openEnv) (openEnvStep, error)) error {
	v, err := s.view(q)
	if err != nil {
		return err
	}
	env := v.open()
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(q.Context()), abandonPatience)
		defer cancel()
		v.closed(env.close(ctx))
	}()
	out, err := do(q.Context(), env)
	if err != nil {
		return err
	}
	return q.answer(out)
}

func (s *Server) openEnvResetOnce(q *request) error {
	var in openEnvReset
	if err := looseBody(q, &in); err != nil {
		return err
	}
	return s.once(q, func(ctx context.Context, env openEnv) (openEnvStep, error) { return env.reset(ctx, in) })
}

func (s *Server) openEnvStepOnce(q *request) error {
	var in struct {
		Action map[string]json.RawMessage `json:"action"`
	}
	if err := looseBody(q, &in); err != nil {
		return err
	}
	if in.Action == nil {
		return &api.Error{Kind: api.BadRequest, Field: "/action", Detail: "the action is missing, or is no object"}
	}
	return s.once(q, func(ctx context.Context, env openEnv) (openEnvStep, error) {
		if _, err := env.reset(ctx, openEnvReset{}); err != nil {
			return openEnvStep{}, err
		}
		return env.step(ctx, in.Action)
	})
}

// looseBody reads a body whose further fields are not used.
func looseBody(q *request, out any) error {
	if err := checkMedia(q.Request, api.MediaJSON); err != nil {
		return err
	}
	q.Body = http.MaxBytesReader(q.w, q.Body, q.route.maxBody)
	err := json.NewDecoder(q.Body).Decode(out)
	if big, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return &api.Error{Kind: api.TooLarge, Detail: fmt.Sprintf("the body has more than %d bytes", big.Limit)}
	}
	if err != nil && q.ContentLength != 0 {
		return &api.Error{Kind: api.BadRequest, Detail: "the body is no JSON object: " + err.Error()}
	}
	return nil
}

// openEnvSocket serves one environment until its client closes the connection.
func (s *Server) openEnvSocket(q *request) error {
	v, err := s.view(q)
	if err != nil {
		return err
	}
	c, err := websocket.Accept(q.w, q.Request, nil)
	if err != nil { // it has answered
		q.began = true
		return nil //nolint:nilerr // a request that is no upgrade has its answer
	}
	q.began = true
	c.SetReadLimit(maxOpenEnvBody)
	ctx, stop := s.untilEnding(context.WithoutCancel(q.Context()))
	defer stop()
	env := v.open()
	v.converse(ctx, c, env)
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), abandonPatience)
	defer cancel()
	v.closed(env.close(end))
	_ = c.Close(websocket.StatusNormalClosure, "")
	return nil
}

// openEnvMessage is what a client sends.
type openEnvMessage struct {
	Type string          `json:"type"`
	Data json.RawMessage `json:"data"`
}

// converse answers message after message. While one is worked on, the next is read already: so
// it is seen when the client goes.
func (v openEnvView) converse(ctx context.Context, c *websocket.Conn, env openEnv) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(errConnClosed)
	in := make(chan []byte)
	go func() {
		defer close(in)
		for {
			_, text, err := c.Read(ctx)
			if err != nil {
				cancel(errConnClosed)
				return
			}
			select {
			case in <- text:
			case <-ctx.Done():
				return
			}
		}
	}()
	for text := range in {
		reply := v.answer(ctx, env, text)
		if reply == nil {
			return
		}
		raw, err := json.Marshal(reply)
		if err != nil {
			raw, _ = json.Marshal(openEnvError(openEnvExecution, "the answer does not encode: "+err.Error())) //nolint:errchkjson // two texts
		}
		wctx, done := context.WithTimeout(ctx, writeTimeout)
		err = c.Write(wctx, websocket.MessageText, raw)
		done()
		if err != nil {
			return
		}
	}
}

func openEnvError(code, message string) map[string]any {
	return map[string]any{"type": "error", "data": map[string]any{"message": message, "code": code}}
}

// answer is the answer to one message; nil is that the client is done.
func (v openEnvView) answer(ctx context.Context, env openEnv, text []byte) map[string]any {
	var m openEnvMessage
	if err := json.Unmarshal(text, &m); err != nil {
		return openEnvError("INVALID_JSON", "Invalid JSON: "+err.Error())
	}
	observed := func(out openEnvStep, err error) map[string]any {
		if err != nil {
			return v.failure(err)
		}
		return map[string]any{"type": "observation", "data": out}
	}
	switch m.Type {
	case "reset":
		var in openEnvReset
		if len(m.Data) > 0 {
			if err := json.Unmarshal(m.Data, &in); err != nil {
				return openEnvError(openEnvInvalid, "Invalid message: "+err.Error())
			}
		}
		return observed(env.reset(ctx, in))
	case "step":
		var action map[string]json.RawMessage
		if err := json.Unmarshal(m.Data, &action); err != nil || action == nil {
			return openEnvError(openEnvInvalid, "Invalid message: data is no object")
		}
		return observed(env.step(ctx, action))
	case "state":
		episode, steps := env.state()
		state := map[string]any{"episode_id": nil, "step_count": steps}
		if episode != "" {
			state["episode_id"] = episode
		}
		return map[string]any{"type": "state", "data": state}
	case "mcp":
		return map[string]any{"type": "mcp", "data": v.rpc(ctx, env, m.Data)}
	case "close":
		return nil
	}
	return openEnvError("UNKNOWN_TYPE", fmt.Sprintf("Unknown message type: %.64q", m.Type))
}

// failure is a refused request in OpenEnv's words.
func (v openEnvView) failure(err error) map[string]any {
	p := v.s.problem(v.route, err)
	code := openEnvExecution
	switch p.Kind { //nolint:exhaustive // all others failed in the doing
	case api.BadRequest, api.UnknownField, api.UnknownTool, api.TooLarge:
		code = openEnvInvalid
	case api.OverCapacity, api.TooManyConns:
		code = openEnvCapacity
	case api.UnknownWorld, api.UnknownPolicy, api.WorldUnhealthy, api.AppDown, api.PrepareFailed:
		code = openEnvFactory
	}
	reply := openEnvError(code, p.Error())
	if data, ok := reply["data"].(map[string]any); ok {
		data["kind"] = p.Kind
	}
	return reply
}

func (s *Server) openEnvMCP(q *request) error {
	v, err := s.view(q)
	if err != nil {
		return err
	}
	var in json.RawMessage
	if err := looseBody(q, &in); err != nil {
		return err
	}
	env := v.open()
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(q.Context()), abandonPatience)
		defer cancel()
		v.closed(env.close(ctx))
	}()
	return q.answer(v.rpc(q.Context(), env, in))
}

// The errors of JSON-RPC.
const (
	rpcInvalidRequest = -32600
	rpcNoMethod       = -32601
	rpcInvalidParams  = -32602
	rpcServerError    = -32000
)

// rpc answers a JSON-RPC request for tools.
func (v openEnvView) rpc(ctx context.Context, env openEnv, raw json.RawMessage) map[string]any {
	var in struct {
		Version string          `json:"jsonrpc"`
		ID      json.RawMessage `json:"id"`
		Method  string          `json:"method"`
		Params  struct {
			Name      string          `json:"name"`
			Arguments json.RawMessage `json:"arguments"`
		} `json:"params"`
	}
	reply := map[string]any{"jsonrpc": "2.0", "id": nil}
	fail := func(code int, message string) map[string]any {
		reply["error"] = map[string]any{"code": code, "message": message}
		return reply
	}
	if err := json.Unmarshal(raw, &in); err != nil || in.Version != "2.0" || in.Method == "" {
		return fail(rpcInvalidRequest, "not a request of JSON-RPC 2.0")
	}
	if len(in.ID) > 0 {
		reply["id"] = in.ID
	}
	tools, ok := env.(openEnvTools)
	if !ok {
		return fail(rpcNoMethod, "this environment has no tools; step it")
	}
	switch in.Method {
	case "tools/list":
		reply["result"] = map[string]any{"tools": tools.tools()}
	case "tools/call":
		res, err := tools.call(ctx, in.Params.Name, in.Params.Arguments)
		if err != nil {
			p := v.s.problem(v.route, err)
			if p.Kind == api.UnknownTool || p.Kind == api.BadRequest || p.Kind == api.UnknownField {
				return fail(rpcInvalidParams, p.Error())
			}
			return fail(rpcServerError, p.Error())
		}
		text, err := json.Marshal(res.Observation)
		if err != nil {
			return fail(rpcServerError, err.Error())
		}
		reply["result"] = map[string]any{"content": []any{map[string]any{"type": "text", "text": string(text)}}, "structuredContent": res.Observation, "isError": res.Observation["error"] != nil}
	default:
		return fail(rpcNoMethod, fmt.Sprintf("there is no method %.64q", in.Method))
	}
	return reply
}

// openEnvTools is an environment whose steps are calls of tools.
type openEnvTools interface {
	tools() []map[string]any
	call(ctx context.Context, tool string, args json.RawMessage) (openEnvStep, error)
}

// gone is the end of what a closed connection leaves.
func gone() runner.End {
	return runner.End{Status: runner.Expired, Cause: runner.Client, Evidence: []string{errConnClosed.Error()}}
}

const openEnvCallPatience = 5 * time.Minute
