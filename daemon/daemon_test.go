package daemon

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/paddock-run/paddock/api"
	"github.com/paddock-run/paddock/policies"
	"github.com/paddock-run/paddock/runner"
	"github.com/paddock-run/paddock/runner/app"
	"github.com/paddock-run/paddock/runner/dataset"
	"github.com/paddock-run/paddock/runner/judge"
	"github.com/paddock-run/paddock/runner/record"
	"github.com/paddock-run/paddock/runner/simulator"
)

// front is a server on a real socket.
type front struct {
	*Server
	socket string
	client *api.Client
}

// socketDir is a directory whose name leaves room for a socket's in the kernel's bound.
func socketDir(tb testing.TB) string {
	tb.Helper()
	dir, err := os.MkdirTemp("", "pd") //nolint:usetesting // TempDir's names are too long for a socket
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func serve(tb testing.TB, change func(*Config)) *front {
	tb.Helper()
	set, err := policies.Load()
	if err != nil {
		tb.Fatal(err)
	}
	cfg := Config{
		Policies: set, Socket: SocketOptions{Path: filepath.Join(socketDir(tb), "s")}, Version: "test",
		Log: slog.New(slog.DiscardHandler),
	}
	if change != nil {
		change(&cfg)
	}
	if cfg.Runner == nil {
		rec, err := record.Open(tb.Context(), tb.TempDir())
		if err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(func() {
			if err := rec.Close(); err != nil {
				tb.Error(err)
			}
		})
		cfg.Runner, err = runner.New(tb.Context(), runner.Config{Policies: set, Record: rec, Worlds: &oneWorld{}})
		if err != nil {
			tb.Fatal(err)
		}
		cfg.Apps = openApps(tb, cfg.Runner, rec)
	}
	cfg.Judge, cfg.JudgeWorld = judge.New(cfg.Runner, cfg.Log), world
	if cfg.Datasets, err = dataset.Open(tb.TempDir()); err != nil {
		tb.Fatal(err)
	}
	if cfg.Simulators, err = simulator.New(cfg.Runner, simulator.Options{Dir: tb.TempDir()}); err != nil {
		tb.Fatal(err)
	}
	s, err := New(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	s.undeclared = func(operation string, kind api.Kind) {
		tb.Errorf("%s answered %s, which the table does not say", operation, kind)
	}
	if err := s.Listen(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := s.Serve(); err != nil {
			tb.Error(err)
		}
	})
	f := &front{Server: s, socket: cfg.Socket.Path, client: api.NewClient(cfg.Socket.Path)}
	tb.Cleanup(func() {
		f.client.Close()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), 10*time.Second)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			tb.Errorf("Shutdown() = %v", err)
		}
		wg.Wait()
	})
	return f
}

// openApps is a service of apps, which is closed before its runner.
func openApps(tb testing.TB, run *runner.Runner, journal app.Journal) *app.Service {
	tb.Helper()
	apps, err := app.Open(tb.Context(), run, journal, tb.TempDir(), slog.New(slog.DiscardHandler))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := apps.Close(context.WithoutCancel(tb.Context())); err != nil {
			tb.Errorf("close apps: %v", err)
		}
	})
	return apps
}

// raw sends a request as it is written and reads the answer, whose body it closes.
func (f *front) raw(tb testing.TB, method, path, media, body string, headers ...string) (answer, []byte) {
	tb.Helper()
	var d net.Dialer
	conn, err := d.DialContext(tb.Context(), "unix", f.socket)
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	host := "paddock"
	var extra strings.Builder
	for _, h := range headers {
		if after, ok := strings.CutPrefix(h, "Host: "); ok {
			host = after
			continue
		}
		extra.WriteString(h + "\r\n")
	}
	if media != "" {
		extra.WriteString("Content-Type: " + media + "\r\n")
	}
	fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: %s\r\n%sContent-Length: %d\r\nConnection: close\r\n\r\n%s", method, path, host, extra.String(), len(body), body)
	return readAnswer(tb, conn)
}

// answer is the head of an answer that was read whole.
type answer struct {
	StatusCode int
	Header     http.Header
}

func readAnswer(tb testing.TB, conn net.Conn) (answer, []byte) {
	tb.Helper()
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		tb.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header}, text
}

// problemOf reads a problem document and checks its form.
func problemOf(tb testing.TB, resp answer, body []byte) api.Error {
	tb.Helper()
	var p api.Error
	if err := json.Unmarshal(body, &p); err != nil {
		tb.Fatalf("the answer is no problem document: %v\n%s", err, body)
	}
	if got := resp.Header.Get("Content-Type"); got != api.MediaProblem {
		tb.Errorf("Content-Type = %q, want %q", got, api.MediaProblem)
	}
	if p.Status != resp.StatusCode || p.Type != "urn:paddock:error:"+string(p.Kind) || p.Title == "" || p.Detail == "" {
		tb.Errorf("problem = %+v with status %d: not filled", p, resp.StatusCode)
	}
	return p
}

func TestBadRequestsAreRefusedByName(t *testing.T) {
	t.Parallel()
	f := serve(t, nil)
	const create, calls = "/v1/runs/r/episodes", "/v1/runs/r/episodes/e/calls"
	for _, c := range []struct {
		name, method, path, media, body string
		status                          int
		kind                            api.Kind
		field, detail                   string
	}{
		{"malformed", "POST", create, api.MediaJSON, `{"world": `, 400, api.BadRequest, "/world", "malformed JSON"},
		{"unknown field", "POST", create, api.MediaJSON, `{"world": "w", "wolrd": 1}`, 400, api.UnknownField, "/wolrd", `unknown field "wolrd"`},
		{"nested unknown field", "POST", create, api.MediaJSON, `{"limits": {"ram": 1}}`, 400, api.UnknownField, "/limits/ram", `"ram"`},
		{"other case", "POST", create, api.MediaJSON, `{"World": "w"}`, 400, api.UnknownField, "/World", `"World"`},
		{"field twice", "POST", create, api.MediaJSON, `{"world": "a", "world": "b"}`, 400, api.BadRequest, "/world", "twice"},
		{"trailing data", "POST", create, api.MediaJSON, `{"world": "w"} {}`, 400, api.BadRequest, "", "malformed JSON"},
		{"no UTF-8", "POST", create, api.MediaJSON, "{\"world\": \"\xff\"}", 400, api.BadRequest, "/world", "UTF-8"},
		{"too deep", "POST", create, api.MediaJSON, `{"input": ` + strings.Repeat("[", 100) + strings.Repeat("]", 100) + `}`, 400, api.BadRequest, "", "deeper"},
		{"number for text", "POST", create, api.MediaJSON, `{"world": 1}`, 400, api.BadRequest, "/world", "want a text, got a number"},
		{"text for number", "POST", create, api.MediaJSON, `{"retries": "x"}`, 400, api.BadRequest, "/retries", "want a whole number"},
		{"negative seed", "POST", create, api.MediaJSON, `{"env_seed": -1}`, 400, api.BadRequest, "/env_seed", "4294967295"},
		{"bad size", "POST", create, api.MediaJSON, `{"limits": {"memory": "2 parsecs"}}`, 400, api.BadRequest, "/limits/memory", "parsecs"},
		{"bad base64", "POST", calls, api.MediaJSON, `{"tool": "exec", "stdin": "%%"}`, 400, api.BadRequest, "/stdin", "base64"},
		{"list for object", "POST", create, api.MediaJSON, `[]`, 400, api.BadRequest, "", "want an object"},
		{"other run", "POST", create, api.MediaJSON, `{"run": "other", "world": "w"}`, 400, api.BadRequest, "/run", `"other"`},
		{"form", "POST", create, "application/x-www-form-urlencoded", `a=b`, 415, api.UnsupportedMedia, "Content-Type", "x-www-form"},
		{"too large", "POST", "/v1/runs", api.MediaJSON, `{"name": "` + strings.Repeat("x", smallBody) + `"}`, 413, api.TooLarge, "", "1048576"},
		{"raw without header", "POST", calls, api.MediaBytes, "x", 400, api.BadRequest, api.HeaderCall, api.HeaderCall},
		{"body where none is", "GET", "/v1/worlds", api.MediaJSON, "{}", 400, api.BadRequest, "", "no body"},
		{"unknown parameter", "GET", create + "?prefx=a", "", "", 400, api.UnknownField, "prefx", `"prefx"`},
		{"parameter twice", "GET", create + "?max=1&max=2", "", "", 400, api.BadRequest, "max", "twice"},
		{"no number", "GET", create + "?max=many", "", "", 400, api.BadRequest, "max", "max=many"},
		{"number out of range", "GET", create + "?max=0", "", "", 400, api.BadRequest, "max", "from 1 to"},
		{"no flag", "GET", "/v1/batches/b/results?follow=maybe", "", "", 400, api.BadRequest, "follow", "true or false"},
		{"no route", "GET", "/v2/worlds", "", "", 404, api.RouteNotFound, "", "/v2/worlds"},
		{"id not encoded", "GET", "/v1/runs/r/episodes/a/b", "", "", 404, api.RouteNotFound, "", ""},
		{"empty segment", "GET", "/v1/runs//episodes", "", "", 400, api.BadRequest, "path", "a segment is empty"},
		{"dots", "GET", "/v1/runs/r/episodes/..", "", "", 400, api.BadRequest, "path", ".."},
		{"no method", "PATCH", "/v1/worlds", "", "", 405, api.MethodNotAllowed, "", "GET, POST"},
		{"unknown policy", "GET", "/v1/policies/lax", "", "", 404, api.UnknownPolicy, "", `"lax"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			resp, body := f.raw(t, c.method, c.path, c.media, c.body)
			p := problemOf(t, resp, body)
			if p.Status != c.status || p.Kind != c.kind || p.Field != c.field || !strings.Contains(p.Detail, c.detail) {
				t.Errorf("answer = %s\nwant status %d, kind %s, field %q, detail with %q", body, c.status, c.kind, c.field, c.detail)
			}
		})
	}
}

func TestGenerationMustBeANumber(t *testing.T) {
	t.Parallel()
	f := serve(t, nil)
	resp, body := f.raw(t, "POST", "/v1/runs/r/episodes", api.MediaJSON, `{"world":"w"}`, api.HeaderGeneration+": new")
	if p := problemOf(t, resp, body); p.Kind != api.BadRequest || p.Field != api.HeaderGeneration {
		t.Errorf("answer = %s", body)
	}
}

func TestForeignHostsAndOriginsAreRefused(t *testing.T) {
	t.Parallel()
	f := serve(t, nil)
	for _, h := range []string{"Host: evil.example", "Origin: http://localhost", "Host: localhost:80"} {
		resp, body := f.raw(t, "GET", "/v1/worlds", "", "", h)
		if p := problemOf(t, resp, body); p.Kind != api.ForeignOrigin || p.Status != http.StatusForbidden {
			t.Errorf("%s: answer = %s", h, body)
		}
	}
	if resp, body := f.raw(t, "GET", "/healthz", "", "", "Host: localhost"); resp.StatusCode != http.StatusOK {
		t.Errorf("Host localhost: %s", body)
	}
}

func TestUnknownErrorsAreBugsWithAnIncident(t *testing.T) {
	t.Parallel()
	var log safeBuffer
	f := serve(t, func(c *Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	f.routes = append(f.routes[:0:0], typed("GET", "/v1/fail", "fail", "", func(*Server, *request, empty) (empty, error) { return empty{}, io.ErrNoProgress }),
		typed("GET", "/v1/panic", "panic", "", func(*Server, *request, empty) (empty, error) { panic("boom") }))
	f.http.Handler = f.mux(f.routes, nil)
	for _, path := range []string{"/v1/fail", "/v1/panic"} {
		resp, body := f.raw(t, "GET", path, "", "")
		p := problemOf(t, resp, body)
		if p.Kind != api.Internal || p.Incident == "" || !strings.Contains(log.String(), p.Incident) {
			t.Errorf("%s: answer = %s, log:\n%s", path, body, log.String())
		}
		if strings.Contains(string(body), "boom") || strings.Contains(string(body), "multiple Read") {
			t.Errorf("%s: the answer tells of the daemon's inside: %s", path, body)
		}
	}
}

type safeBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func TestDocumentCoversEveryRouteAndNothingElse(t *testing.T) {
	t.Parallel()
	f := serve(t, nil)
	resp, body := f.raw(t, "GET", "/openapi.json", "", "")
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("status %d: %s", resp.StatusCode, body)
	}
	var doc struct {
		OpenAPI string
		Paths   map[string]map[string]struct {
			OperationID string `json:"operationId"`
			RequestBody any    `json:"requestBody"`
			Responses   map[string]any
		}
		Components struct{ Schemas map[string]any }
	}
	if err := json.Unmarshal(body, &doc); err != nil {
		t.Fatal(err)
	}
	if doc.OpenAPI != "3.1.0" {
		t.Errorf("openapi = %q", doc.OpenAPI)
	}
	ids := map[string]bool{}
	for _, r := range routes() {
		op, ok := doc.Paths[r.Path][strings.ToLower(r.Method)]
		if !ok || op.OperationID != r.ID {
			t.Errorf("%s %s: not in the document", r.Method, r.Path)
		}
		if ids[r.ID] {
			t.Errorf("two routes are called %s", r.ID)
		}
		ids[r.ID] = true
		if (op.RequestBody != nil) != (len(r.RequestMedia) > 0) {
			t.Errorf("%s: request body in the document: %v", r.ID, op.RequestBody != nil)
		}
		for _, k := range append(common, r.kinds...) {
			if _, ok := op.Responses[fmt.Sprint(statusOf(k))]; !ok {
				t.Errorf("%s: no response %d for %s", r.ID, statusOf(k), k)
			}
		}
	}
	for path, item := range doc.Paths {
		for method, op := range item {
			if !ids[op.OperationID] {
				t.Errorf("%s %s is in the document and not in the table", method, path)
			}
		}
	}
	// Every reference leads somewhere.
	for _, part := range strings.Split(string(body), `"#/components/schemas/`)[1:] {
		name, _, _ := strings.Cut(part, `"`)
		if doc.Components.Schemas[name] == nil {
			t.Errorf("reference to %s, which is not there", name)
		}
	}
}

func TestEveryStatusOfAKindIsChosen(t *testing.T) {
	t.Parallel()
	for _, r := range routes() {
		for _, k := range append(common, r.kinds...) {
			if s := statusOf(k); s == http.StatusInternalServerError && k != api.Internal {
				t.Errorf("%s: kind %s has no status", r.ID, k)
			}
		}
	}
}

func TestSocketIsClosedToOthersFromItsFirstMoment(t *testing.T) {
	t.Parallel()
	f := serve(t, nil)
	info, err := os.Stat(f.socket)
	if err != nil {
		t.Fatal(err)
	}
	if got := info.Mode(); got != os.ModeSocket|socketMode {
		t.Errorf("mode = %v, want srw-rw----", got)
	}
	if left, err := filepath.Glob(filepath.Join(filepath.Dir(f.socket), ".p*")); err != nil || len(left) > 0 {
		t.Errorf("left beside the socket: %v, %v", left, err)
	}
}

func TestSecondDaemonOnTheSameSocketIsRefused(t *testing.T) {
	t.Parallel()
	f := serve(t, nil)
	other, err := New(f.cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Listen(t.Context()); err == nil || !strings.Contains(err.Error(), "another daemon") {
		t.Errorf("Listen() = %v, want another daemon", err)
	}
	if _, err := f.client.Version(t.Context()); err != nil {
		t.Errorf("the first daemon: %v", err)
	}
}

func TestSocketOfADeadDaemonIsReplaced(t *testing.T) {
	t.Parallel()
	path := filepath.Join(socketDir(t), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	f := serve(t, func(c *Config) { c.Socket.Path = path })
	if _, err := f.client.Version(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestSomethingElseAtTheSocketsPathIsLeftAlone(t *testing.T) {
	t.Parallel()
	path := filepath.Join(socketDir(t), "s")
	if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := (ownedSocket{path: path, uid: -1, gid: -1, mode: socketMode}).listen(t.Context()); err == nil {
		t.Error("listen() = nil, want an error")
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "mine" {
		t.Errorf("the file is now %q, %v", b, err)
	}
}

func TestConnectionsOverTheCapAreToldWhy(t *testing.T) {
	t.Parallel()
	f := serve(t, func(c *Config) { c.MaxConns = 3 })
	var d net.Dialer
	for range 3 {
		conn, err := d.DialContext(t.Context(), "unix", f.socket)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		// The connection counts once it was accepted, which an answer proves.
		fmt.Fprint(conn, "GET /healthz HTTP/1.1\r\nHost: paddock\r\n\r\n")
		readAnswer(t, conn)
	}
	conn, err := d.DialContext(t.Context(), "unix", f.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	resp, body := readAnswer(t, conn)
	if p := problemOf(t, resp, body); p.Kind != api.TooManyConns || resp.Header.Get("Retry-After") == "" {
		t.Errorf("answer = %s", body)
	}
}

func TestHealthAndVersionWhileDraining(t *testing.T) {
	t.Parallel()
	f := serve(t, nil)
	v, err := f.client.Version(t.Context())
	if err != nil || v.Version != "test" || v.API != api.Version || v.PID != os.Getpid() {
		t.Errorf("Version() = %+v, %v", v, err)
	}
	f.Drain()
	if resp, body := f.raw(t, "GET", "/healthz", "", ""); resp.StatusCode != http.StatusServiceUnavailable || !strings.Contains(string(body), "draining") {
		t.Errorf("health = %d %s", resp.StatusCode, body)
	}
	resp, body := f.raw(t, "POST", "/v1/runs", api.MediaJSON, `{"name":"x"}`)
	if p := problemOf(t, resp, body); p.Kind != api.Draining || p.Status != http.StatusServiceUnavailable {
		t.Errorf("answer = %s", body)
	}
	if _, err := f.client.Version(t.Context()); err != nil {
		t.Errorf("looking while draining: %v", err)
	}
}

func TestMetricsCountRequestsAndErrors(t *testing.T) {
	t.Parallel()
	f := serve(t, nil)
	f.raw(t, "GET", "/v1/policies/lax", "", "")
	_, body := f.raw(t, "GET", "/metrics", "", "")
	for _, want := range []string{
		`paddock_http_requests_total{operation="getPolicy",status="404"} 1`,
		`paddock_http_errors_total{kind="unknown_policy",operation="getPolicy"} 1`, "paddock_episodes_live 0", "go_goroutines", "process_resident_memory_bytes",
	} {
		if !strings.Contains(string(body), want) {
			t.Errorf("metrics lack %s", want)
		}
	}
}

func TestPoliciesAreShownWithTheirSpec(t *testing.T) {
	t.Parallel()
	f := serve(t, nil)
	all, err := f.client.Policies(t.Context())
	if err != nil || len(all) < 2 {
		t.Fatalf("Policies() = %+v, %v", all, err)
	}
	p, err := f.client.Policy(t.Context(), "strict")
	if err != nil || p.Name != "strict" || p.Spec["linux"] == nil || !strings.HasPrefix(p.Hash, "sha256:") {
		t.Errorf("Policy(strict) = %+v, %v", p, err)
	}
}

func TestLeaseIsHeldUntilTheServerStops(t *testing.T) {
	t.Parallel()
	f := serve(t, nil)
	lease, err := f.client.OpenLease(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if lease.GraceS != runner.LeaseGrace.Seconds() {
		t.Errorf("grace = %v", lease.GraceS)
	}
	// Shutdown, in the clean-up, must not wait for the lease's end by the client.
}

// TestIDsArePercentEncoded proves that an id with slashes arrives whole.
func TestIDsArePercentEncoded(t *testing.T) {
	t.Parallel()
	f := serve(t, nil)
	var got runner.Key
	f.routes = []route{typed("GET", episodePath, "get", "", func(_ *Server, q *request, _ empty) (empty, error) {
		var err error
		got, err = q.key()
		return empty{}, err
	})}
	f.http.Handler = f.mux(f.routes, nil)
	for _, id := range []string{"it00042/task-17/s3", "a b", "ü?#%2f"} {
		if _, err := f.client.Episode(t.Context(), api.Key{Run: "r/1", ID: id}); err != nil {
			t.Errorf("%q: %v", id, err)
		}
		if want := (runner.Key{Owner: fmt.Sprint(os.Getuid()), Run: "r/1", ID: id}); got != want {
			t.Errorf("key = %+v, want %+v (%s)", got, want, url.PathEscape(id))
		}
	}
}
