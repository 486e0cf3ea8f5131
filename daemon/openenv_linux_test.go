package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/coder/websocket/wsjson"

	"github.com/paddock-run/paddock/api"
	"github.com/paddock-run/paddock/internal/need"
)

// oe is a WebSocket of an OpenEnv view.
type oe struct {
	t *testing.T
	c *websocket.Conn
}

func (f *front) openenv(t *testing.T, view string) oe {
	t.Helper()
	h := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", f.socket)
	}}}
	c, resp, err := websocket.Dial(t.Context(), "ws://paddock/openenv/"+view+"/ws", &websocket.DialOptions{HTTPClient: h})
	if err != nil {
		t.Fatal(err)
	}
	if resp.Body != nil {
		_ = resp.Body.Close()
	}
	t.Cleanup(func() { _ = c.CloseNow() })
	return oe{t, c}
}

type oeReply struct {
	Type string
	Data struct {
		Observation   map[string]any
		Reward        *float64
		Done          bool
		Metadata      map[string]any
		Code, Message string
		EpisodeID     string `json:"episode_id"`
		StepCount     int    `json:"step_count"`
		Result        map[string]any
		Error         map[string]any
	}
}

func (o oe) say(text string) oeReply {
	o.t.Helper()
	if err := o.c.Write(o.t.Context(), websocket.MessageText, []byte(text)); err != nil {
		o.t.Fatal(err)
	}
	var r oeReply
	if err := wsjson.Read(o.t.Context(), o.c, &r); err != nil {
		o.t.Fatal(err)
	}
	return r
}

func TestOpenEnvStepsAWorld(t *testing.T) {
	t.Parallel()
	f := serveEpisodes(t)
	o := f.openenv(t, "worlds/"+world)
	for text, code := range map[string]string{
		`{"type":"step","data":{"command":"true"}}`: "VALIDATION_ERROR", `{"type":"dance"}`: "UNKNOWN_TYPE", `{"type":`: "INVALID_JSON",
		`{"type":"step","data":[]}`: "VALIDATION_ERROR", `{"type":"reset","data":{"seed":"x"}}`: "VALIDATION_ERROR", `{"type":"reset","data":{"seed":-1}}`: "VALIDATION_ERROR",
		`{"type":"reset","data":{"episode_id":"/"}}`: "VALIDATION_ERROR",
	} {
		if r := o.say(text); r.Type != "error" || r.Data.Code != code {
			t.Errorf("%s = %+v, want %s", text, r, code)
		}
	}
	if r := o.say(`{"type":"reset","data":{"seed":7,"episode_id":"oe/1","unknown":true}}`); r.Type != "observation" || r.Data.Done || len(r.Data.Observation["tools"].([]any)) < 2 {
		t.Errorf("reset = %+v", r)
	}
	if r := o.say(`{"type":"step","data":{"command":"echo $PADDOCK_SEED; exit 3"}}`); r.Data.Observation["stdout"] != "7\n" || r.Data.Observation["exit_code"] != 3.0 {
		t.Errorf("command = %+v", r)
	}
	if r := o.say(`{"type":"step","data":{"type":"call_tool","tool_name":"exec","arguments":{"argv":["cat","/none"]},"metadata":{}}}`); r.Data.Observation["exit_code"] != 1.0 {
		t.Errorf("call_tool = %+v", r)
	}
	if r := o.say(`{"type":"step","data":{"type":"call_tool","tool_name":"exec","arguments":{"argw":1}}}`); r.Data.Code != "VALIDATION_ERROR" {
		t.Errorf("an argument that there is not = %+v", r)
	}
	if r := o.say(`{"type":"mcp","data":{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"name":"exec","arguments":{"shell":"echo hi"}}}}`); r.Type != "mcp" || r.Data.Result["isError"] != false || !strings.Contains(fmt.Sprint(r.Data.Result), "hi") {
		t.Errorf("tools/call = %+v", r)
	}
	if r := o.say(`{"type":"state"}`); r.Data.EpisodeID != "oe/1" || r.Data.StepCount != 3 {
		t.Errorf("state = %+v", r)
	}
	if r := o.say(`{"type":"step","data":{"answer":{"x":1}}}`); !r.Data.Done || r.Data.Metadata["status"] != "ok" {
		t.Errorf("answer = %+v", r)
	}
	o.say(`{"type":"reset","data":{"episode_id":"oe/2"}}`)
	_ = o.c.CloseNow() // as a client that is killed
	for deadline := time.Now().Add(20 * time.Second); ; <-time.After(10 * time.Millisecond) {
		ep, err := f.client.Episode(t.Context(), api.Key{ID: "oe/2"})
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("the episode of a client that went away = %+v, %v", ep, err)
		}
		if end := ep.Attempts[0].End; end != nil {
			if end.Status != "expired" || end.Cause != "client" {
				t.Errorf("it ended as %+v", end)
			}
			break
		}
	}
}

func TestOpenEnvStepsSimulatorsAndApps(t *testing.T) {
	t.Parallel()
	f := serveEpisodes(t)
	o := f.openenv(t, "simulators/"+f.openSim(t).ID)
	if r := o.say(`{"type":"reset","data":{"seed":1}}`); fmt.Sprint(r.Data.Observation["observation"]) != "[0]" || r.Data.Reward != nil {
		t.Errorf("reset = %+v", r)
	}
	for n := 1; n <= 2; n++ {
		if r := o.say(`{"type":"step","data":{"action":1}}`); fmt.Sprint(r.Data.Observation["observation"]) != fmt.Sprintf("[%d]", n) || *r.Data.Reward != 0.5 || r.Data.Done {
			t.Errorf("step %d = %+v", n, r)
		}
	}
	if r := o.say(`{"type":"step","data":{"action":13}}`); !r.Data.Done || *r.Data.Reward != -1 || r.Data.Metadata["status"] != "failed" {
		t.Errorf("a crash = %+v", r)
	}
	if _, err := f.client.DeployApp(t.Context(), webApp("web", func(s *api.AppSpec) { s.Sessions = "sticky" })); err != nil {
		t.Fatal(err)
	}
	o = f.openenv(t, "apps/web")
	o.say(`{"type":"reset","data":{}}`)
	if r := o.say(`{"type":"step","data":{"method":"POST","path":"/cgi-bin/env","json":{"a":1}}}`); r.Data.Observation["status"] != 200.0 || !strings.Contains(fmt.Sprint(r.Data.Observation["body"]), `{"a":1}`) {
		t.Errorf("a request = %+v", r)
	}
	if r := o.say(`{"type":"step","data":{"path":"x"}}`); r.Data.Code != "VALIDATION_ERROR" {
		t.Errorf("no path = %+v", r)
	}
	if r := o.say(`{"type":"mcp","data":{"jsonrpc":"2.0","id":1,"method":"tools/list"}}`); r.Data.Error["code"] != -32601.0 {
		t.Errorf("tools of an app = %+v", r)
	}
	for _, view := range []string{"worlds/none", "apps/none", "simulators/none", "dances/x"} {
		if status, p := f.problem(t, "/openenv/"+view+"/health"); status != http.StatusNotFound {
			t.Errorf("%s = %d %+v", view, status, p)
		}
	}
	a, body := f.raw(t, "POST", "/openenv/worlds/"+world+"/step", api.MediaJSON, `{"action":{"command":"echo hi"},"timeout_s":3}`)
	var step api.OpenEnvStep
	if err := json.Unmarshal(body, &step); err != nil || a.StatusCode != http.StatusOK || step.Observation["stdout"] != "hi\n" {
		t.Errorf("a step over HTTP = %d %s", a.StatusCode, body)
	}
}

// getAs asks as another user of this host and says what came of it.
func getAs(t *testing.T, uid uint32, url string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), need.Busybox(t), "wget", "-q", "-O", "-", url)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	out, _ := cmd.CombinedOutput()
	return string(out)
}

// Over the loopback port a client is who the kernel says, and reaches apps and views alone.
func TestTheAppsPortKnowsItsClients(t *testing.T) {
	t.Parallel()
	f := serveEpisodes(t)
	if _, err := f.ListenApps(t.Context(), "0.0.0.0:0"); err == nil {
		t.Error("a port of every address was opened")
	}
	p, err := f.ListenApps(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = p.Serve() }()
	t.Cleanup(func() { _ = p.Shutdown(context.WithoutCancel(t.Context())) })
	for path, want := range map[string]int{
		"/openenv/worlds/" + world + "/health": http.StatusOK, "/v1/apps": http.StatusNotFound, "/v1/version": http.StatusNotFound, "/apps/none/": http.StatusNotFound,
	} {
		resp, err := http.Get("http://" + p.Addr().String() + path)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%s = %s, want %d", path, resp.Status, want)
		}
	}
	for name, change := range map[string]func(*http.Request){
		"a page's": func(r *http.Request) { r.Header.Set("Origin", "http://evil.example") }, "another host's": func(r *http.Request) { r.Host = "evil.example" },
	} {
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+p.Addr().String()+"/openenv/worlds/"+world+"/health", nil)
		change(req)
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusForbidden {
			t.Errorf("%s request = %s", name, resp.Status)
		}
	}
	if got := getAs(t, 4321, "http://"+p.Addr().String()+"/openenv/worlds/"+world+"/health"); !strings.Contains(got, "403") {
		t.Errorf("uid 4321, whom the socket does not let in, got %s", got)
	}
}

func TestArraysBecomeListsOrAreRefused(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{"$array":"<f8","shape":[2],"b64":"AAAAAAAA8D8AAAAAAADwfw=="}`: "[1,null]", `{"a":[{"$array":"|u1","shape":[2,2],"frame":0}]}`: `{"a":[[[1,2],[3,4]]]}`,
		`{"$array":"<i2","shape":[],"b64":"//8="}`: "-1", `{"$array":"|b1","shape":[0,3],"b64":""}`: "[]", `7`: "7",
	} {
		var v any
		if err := json.Unmarshal([]byte(text), &v); err != nil {
			t.Fatal(err)
		}
		got, err := plainValue(v, []int64{4}, []byte{1, 2, 3, 4})
		if raw, _ := json.Marshal(got); err != nil || string(raw) != want {
			t.Errorf("%s = %s, %v; want %s", text, raw, err, want)
		}
	}
	for _, text := range []string{
		`{"$array":"<f8","shape":[1099511627776],"b64":""}`, `{"$array":"<f8","shape":[1099511627776,0],"b64":""}`, `{"$array":"<f8","shape":[4000000,0,4000000],"b64":""}`,
		`{"$array":"<f8","shape":[-1],"b64":""}`, `{"$array":"<f8","shape":[2],"b64":"AA=="}`, `{"$array":"<f8","shape":[1],"frame":7}`, `{"$array":"x","shape":[]}`,
		`{"$array":"<f8","shape":["a"],"b64":"AA=="}`, `{"$array":"|u1","shape":[1],"b64":"!"}`,
	} {
		var v any
		if err := json.Unmarshal([]byte(text), &v); err != nil {
			t.Fatal(err)
		}
		if got, err := plainValue(v, []int64{4}, []byte{1, 2, 3, 4}); err == nil {
			t.Errorf("%s = %v, want an error", text, got)
		}
	}
}
