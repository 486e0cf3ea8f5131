package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"

	"github.com/google/uuid"

	"github.com/paddock-run/paddock/api"
	"github.com/paddock-run/paddock/runner"
	"github.com/paddock-run/paddock/runner/app"
)

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
	out.Observation["body"] = strings.ToValidUTF8(string(text), "\uFFFD")
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
