package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"

	"github.com/paddock-run/paddock/api"
	"github.com/paddock-run/paddock/overlay"
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

// maxPlainNumbers bounds the numbers of one array that are told as a list.
const maxPlainNumbers = 1 << 22

const maxPlainDims = 32

// maxAppAnswer bounds what an observation has of an app's answer.
const maxAppAnswer = 16 << 20
