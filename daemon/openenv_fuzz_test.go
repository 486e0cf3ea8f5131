package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/paddock-run/paddock/overlay"
	"github.com/paddock-run/paddock/policies"
	"github.com/paddock-run/paddock/runner"
	"github.com/paddock-run/paddock/runner/fake"
	"github.com/paddock-run/paddock/runner/record"
	"github.com/paddock-run/paddock/runner/simulator"
	"github.com/paddock-run/paddock/sandbox"
)

// Bounds of a fuzzed conversation, which is to be about what messages mean.
const (
	fuzzedMessages = 12
	fuzzedBytes    = 1 << 13
)

// FuzzOpenEnvMessages says lines as messages to an environment of each kind: every one has an
// answer in OpenEnv's form, or is the last, and nothing is left of the conversation.
func FuzzOpenEnvMessages(f *testing.F) {
	for _, seed := range []string{
		`{"type":"reset","data":{"seed":7,"episode_id":"e1","options":{"a":1}}}
{"type":"step","data":{"command":"echo hello"}}
{"type":"state"}
{"type":"step","data":{"answer":{"n":42}}}
{"type":"step","data":{"command":"true"}}`,
		`{"type":"reset"}
{"type":"step","data":{"type":"list_tools"}}
{"type":"step","data":{"type":"call_tool","tool_name":"exec","arguments":{"argv":["cat"],"stdin":"aGk="}}}
{"type":"step","data":{"tool_name":"write_file","arguments":{"path":"/a","content":"eA=="}}}
{"type":"step","data":{"tool_name":"args","arguments":[1,2]}}
{"type":"close"}
{"type":"state"}`,
		`{"type":"mcp","data":{"jsonrpc":"2.0","id":1,"method":"tools/list"}}
{"type":"mcp","data":{"jsonrpc":"2.0","id":"x","method":"tools/call","params":{"name":"exec","arguments":{"shell":"exit 3"}}}}
{"type":"mcp","data":{"jsonrpc":"1.0","method":"tools/list"}}
{"type":"mcp","data":{"jsonrpc":"2.0","id":{"a":[]},"method":"tools/call","params":{"name":"none"}}}`,
		`{"type":"step","data":{"method":"POST","path":"/move?x=1","headers":{"A":"b"},"json":{"reward":0.5,"done":true}}}
{"type":"step","data":{"path":"no"}}
{"type":"step","data":{"method":"A B","path":"/"}}
{"type":"step","data":{"path":"/","body":"plain","headers":{"\n":"x"}}}`,
		`{"type":"step","data":{"action":{"$array":"<f8","shape":[2],"b64":"AAAAAAAA8D8AAAAAAAD4fw=="}}}
{"$array":"|u1","shape":[2,0,3],"frame":0}
{"$array":"<f4","shape":[1e9,1e9],"b64":""}
{"a":[{"$array":"<i8","shape":[],"b64":"AQAAAAAAAAA="}],"$float":"nan"}`,
		"{\"type\":\"step\",\"data\":null}\n{\"type\":\"reset\",\"data\":[]}\n{\"type\":7}\nhello\n\n{\"type\":\"dance\xff\"}\n{\"type\":\"reset\",\"data\":{\"seed\":-1}}\n{\"type\":\"reset\",\"data\":{\"episode_id\":\"/\"}}",
	} {
		for kind := range byte(3) {
			f.Add(kind, []byte(seed))
		}
	}
	front := serveFake(f)
	f.Fuzz(func(t *testing.T, kind byte, conversation []byte) {
		v := openEnvView{s: front.Server, owner: rootTenant, kind: []string{"worlds", "simulators", "apps"}[kind%3], name: "base"}
		if v.kind == "worlds" {
			if err := v.find(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		front.converse(t, v, conversation[:min(len(conversation), fuzzedBytes)])
	})
}

// serveFake is a server on sandboxes and worlds in memory.
func serveFake(tb testing.TB) *front {
	tb.Helper()
	return serve(tb, func(c *Config) {
		rec, err := record.Open(tb.Context(), tb.TempDir())
		if err != nil {
			tb.Fatal(err)
		}
		pool, err := sandbox.NewIDPool(300000*2, 64)
		if err != nil {
			tb.Fatal(err)
		}
		worlds := fake.NewWorlds(tb.TempDir())
		r, err := runner.New(tb.Context(), runner.Config{
			Root: tb.TempDir(), Launcher: fake.NewLauncher(tb.TempDir()), Worlds: worlds, Record: rec, Policies: c.Policies, IDs: pool, Log: c.Log,
			Host: policies.Host{CPUs: 64, MemoryBytes: 64 << 30},
		})
		if err != nil {
			tb.Fatal(err)
		}
		c.Runner = r
		tb.Cleanup(func() {
			if err := r.Close(context.WithoutCancel(tb.Context())); err != nil {
				tb.Error(err)
			}
			if err := rec.Close(); err != nil {
				tb.Error(err)
			}
		})
		c.Apps = openApps(tb, r, rec)
		recipe := overlay.Recipe{Busybox: true, Name: "base", Config: overlay.Config{Tools: []overlay.Tool{{Name: "args", Command: []string{"cat"}}}}}
		if _, err := r.BuildWorld(tb.Context(), rootTenant, recipe, nil); err != nil {
			tb.Fatal(err)
		}
	})
}

// converse says lines to an environment until one is the last.
func (f *front) converse(t *testing.T, v openEnvView, conversation []byte) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	env := v.open()
	if app, ok := env.(*appEnv); ok { // as after a reset, with an app that says what it was told
		app.session, app.http.Transport = "s", echo{}
	}
	var episodes []string
	lines := bytes.SplitN(conversation, []byte("\n"), fuzzedMessages+1)
	for _, text := range lines[:min(len(lines), fuzzedMessages)] {
		reply := v.answer(ctx, env, text)
		if reply == nil {
			var m openEnvMessage
			if err := json.Unmarshal(text, &m); err != nil || m.Type != "close" {
				t.Errorf("%q ends the conversation", text)
			}
			break
		}
		checkOpenEnv(t, text, reply)
		if id, _ := env.state(); id != "" && v.kind == "worlds" && !slices.Contains(episodes, id) {
			episodes = append(episodes, id)
		}
		if sim, ok := env.(*simEnv); ok {
			checkObserved(t, sim, text)
		}
	}
	if err := env.close(t.Context()); err != nil {
		t.Errorf("close: %v", err)
	}
	for _, id := range episodes {
		key := runner.Key{Owner: v.owner, Run: runner.DefaultRun, ID: id}
		if ep, err := f.run.Get(t.Context(), key); err != nil || ep.Last().End == nil {
			t.Errorf("episode %q was left live: %+v, %v", id, ep.Last(), err)
		}
		if err := f.run.Delete(t.Context(), key); err != nil {
			t.Error(err)
		}
	}
}

// checkOpenEnv holds an answer against OpenEnv's form.
func checkOpenEnv(t *testing.T, text []byte, reply map[string]any) {
	t.Helper()
	raw, err := json.Marshal(reply)
	if err != nil {
		t.Errorf("the answer to %q does not encode: %v", text, err)
		return
	}
	var got struct {
		Type string
		Data struct {
			Code, Message, JSONRPC string
			Observation            map[string]any
			Result, Error          json.RawMessage
			StepCount              *int `json:"step_count"`
		}
	}
	if err := json.Unmarshal(raw, &got); err != nil {
		t.Errorf("the answer %s to %q: %v", raw, text, err)
		return
	}
	codes := []string{openEnvInvalid, openEnvExecution, openEnvCapacity, openEnvFactory, "INVALID_JSON", "UNKNOWN_TYPE"}
	good := false
	switch d := got.Data; got.Type {
	case "observation":
		good = d.Observation != nil
	case "state":
		good = d.StepCount != nil && *d.StepCount >= 0
	case "mcp":
		good = d.JSONRPC == "2.0" && (len(d.Result) > 0) != (len(d.Error) > 0)
	case "error":
		good = slices.Contains(codes, d.Code) && d.Message != ""
	}
	if !good {
		t.Errorf("the answer %s to %q is none of OpenEnv's", raw, text)
	}
}

// checkObserved has a simulator say the text, too: its words are no more to be trusted.
func checkObserved(t *testing.T, sim *simEnv, text []byte) {
	t.Helper()
	if !json.Valid(text) {
		return // is refused before it gets here
	}
	raw := text[:min(len(text), 16)]
	res := simulator.Result{Observation: text, Info: text, Frames: []int64{int64(len(raw))}, Raw: raw}
	out, err := sim.observed(res, nil, false)
	if err != nil {
		return
	}
	if _, err := json.Marshal(out); err != nil {
		t.Errorf("the observation %q does not encode: %v", text, err)
	}
}

// echo answers a request with its body.
type echo struct{}

func (echo) RoundTrip(req *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(body)), Request: req}, nil
}
