package main

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/paddock-run/paddock/api"
)

// get asks for a path of the daemon's socket.
func (h host) get(tb testing.TB, path string) (status int, body string) {
	tb.Helper()
	t := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", h.socket)
	}}
	req, err := http.NewRequestWithContext(tb.Context(), http.MethodGet, "http://paddock"+path, nil)
	if err != nil {
		tb.Fatal(err)
	}
	resp, err := t.RoundTrip(req)
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		tb.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// An app outlives the daemon: after kill -9 and a new start it is there as it was deployed,
// and nothing of its old replicas is left.
func TestAppsFromTheCommandLineAndAfterKill9(t *testing.T) {
	h := newHost(t)
	d := h.serve(t)
	h.must(t, "world", "build", "--busybox", "--name", "box")
	deploy := []string{"app", "deploy", "web", "box", "--port", "8000", "--replicas", "2", "--sessions", "none", "--wait", "--", "httpd", "-f", "-v", "-p", "127.0.0.1:8000", "-h", "/etc"}
	if out := h.must(t, deploy...); out != "/apps/web/\n" {
		t.Errorf("deploy printed %q", out)
	}
	if status, body := h.get(t, "/apps/web/passwd"); status != http.StatusOK || !strings.Contains(body, "root") {
		t.Errorf("the app answers %d %q", status, body)
	}
	if out := h.must(t, "app", "ls"); !strings.Contains(out, "web   running  2 of 2") {
		t.Errorf("ls printed\n%s", out)
	}
	d.kill()
	d = h.serve(t)
	if status, body := h.get(t, "/apps/web/passwd"); status != http.StatusOK || !strings.Contains(body, "root") {
		t.Errorf("after kill -9 the app answers %d %q", status, body)
	}
	h.must(t, deploy...)
	if out := h.must(t, "audit", "--root", h.root, "--cgroup-parent", h.cgroup); !strings.Contains(out, "audit: 0 strays") {
		t.Errorf("audit printed\n%s", out)
	}
	h.must(t, "app", "update", "web", "--wait", "--", "httpd", "-f", "-p", "127.0.0.1:8000", "-h", "/bin")
	if status, _ := h.get(t, "/apps/web/busybox"); status != http.StatusOK {
		t.Errorf("after the update the app answers %d", status)
	}
	h.must(t, "app", "scale", "web", "1")
	var one api.App
	if err := json.Unmarshal([]byte(h.must(t, "app", "show", "web", "--json")), &one); err != nil || one.Revision != 2 || one.Wanted != 1 || one.Spec.Port != 8000 {
		t.Errorf("show printed %+v, %v", one, err)
	}
	if out := h.must(t, "app", "logs", "web", "-n", "3"); strings.Count(out, "\n") != 3 || !strings.Contains(out, "paddock") {
		t.Errorf("logs printed\n%s", out)
	}
	h.must(t, "app", "rm", "web")
	if status, body := h.get(t, "/apps/web/"); status != http.StatusNotFound || !strings.Contains(body, `"unknown_app"`) {
		t.Errorf("after rm: %d %s", status, body)
	}
	d.stop(t)
}
