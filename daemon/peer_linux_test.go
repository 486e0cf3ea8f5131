package daemon

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/paddock-run/paddock/api"
	"github.com/paddock-run/paddock/internal/need"
	"github.com/paddock-run/paddock/runner"
)

// asUser makes this test binary, run again, a client that asks for the version.
const asUser = "PADDOCK_TEST_CLIENT"

func TestMain(m *testing.M) {
	if path := os.Getenv(asUser); path != "" {
		os.Exit(askVersion(path))
	}
	os.Exit(m.Run())
}

func askVersion(socket string) int {
	client := api.NewClient(socket)
	v, err := client.Version(context.Background())
	p, _ := errors.AsType[*api.Error](err)
	if err != nil && p == nil {
		p = &api.Error{Kind: "untyped", Detail: err.Error()}
	}
	var run api.Run
	if err == nil {
		// Whose runs these are, where the socket is not an episode's.
		run, _ = client.OpenRun(context.Background(), api.RunSpec{Name: "mine", Resume: "auto"})
	}
	_ = json.NewEncoder(os.Stdout).Encode(map[string]any{"version": v, "problem": p, "owner": run.Owner})
	return 0
}

type asked struct {
	Version api.VersionInfo
	Problem *api.Error
	Owner   string
}

// askAs asks for the version as another user.
func askAs(tb testing.TB, socket string, uid, gid uint32, groups ...uint32) asked {
	tb.Helper()
	// Through /proc, because the user may not walk to where the test binary lies.
	cmd := exec.CommandContext(tb.Context(), "/proc/self/exe")
	cmd.Env = []string{asUser + "=" + socket}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: gid, Groups: groups}}
	out, err := cmd.Output()
	if err != nil {
		tb.Fatalf("client as uid %d: %v", uid, err)
	}
	var a asked
	if err := json.Unmarshal(out, &a); err != nil {
		tb.Fatalf("client as uid %d: %v: %s", uid, err, out)
	}
	return a
}

// open lets every user reach the socket's file, so that the gate alone decides.
func (f *front) open(tb testing.TB) {
	tb.Helper()
	if err := os.Chmod(filepath.Dir(f.socket), 0o711); err != nil {
		tb.Fatal(err)
	}
}

func TestOthersAreToldByTheClientWhoMayConnect(t *testing.T) {
	t.Parallel()
	need.Root(t)
	f := serve(t, func(c *Config) { c.Socket.Group = "54321" })
	f.open(t)
	p := askAs(t, f.socket, 12345, 12345).Problem
	if p == nil || p.Kind != api.PermissionDenied || !strings.Contains(p.Detail, "12345") || !strings.Contains(p.Detail+p.Hint, "54321") || p.Hint == "" {
		t.Errorf("problem = %+v, want permission_denied that names the group", p)
	}
}

func TestMembersOfTheSocketsGroupAreLetIn(t *testing.T) {
	t.Parallel()
	need.Root(t)
	f := serve(t, func(c *Config) { c.Socket.Group = "54321" })
	f.open(t)
	for name, a := range map[string]asked{
		"main group":          askAs(t, f.socket, 12345, 54321),
		"supplementary group": askAs(t, f.socket, 12345, 12345, 7, 54321),
	} {
		if a.Problem != nil || a.Version.Version != "test" {
			t.Errorf("%s: %+v", name, a)
		}
	}
}

// A socket file that somebody opened wide does not open the daemon.
func TestThoseWhoConnectButAreNotLetInAreToldWhy(t *testing.T) {
	t.Parallel()
	need.Root(t)
	f := serve(t, func(c *Config) { c.Socket.Group = "54321" })
	f.open(t)
	if err := os.Chmod(f.socket, 0o666); err != nil {
		t.Fatal(err)
	}
	p := askAs(t, f.socket, 12345, 12345).Problem
	if p == nil || p.Kind != api.PermissionDenied || p.Status != http.StatusForbidden ||
		!strings.Contains(p.Detail, "uid 12345") || !strings.Contains(p.Detail, "usermod -aG") {
		t.Errorf("problem = %+v", p)
	}
}

func TestEpisodeSocketReachesOneEpisodeForOneUser(t *testing.T) {
	t.Parallel()
	need.Root(t)
	dir := socketDir(t)
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	sockets, err := NewSockets(filepath.Join(dir, "run"))
	if err != nil {
		t.Fatal(err)
	}
	f := serve(t, func(c *Config) { c.Sockets = sockets })
	mine := runner.Key{Owner: "77", Run: "r", ID: "a/b"}
	path, closeSocket, err := sockets.Open(t.Context(), mine, 12345)
	if err != nil {
		t.Fatal(err)
	}
	one := &front{Server: f.Server, socket: path}
	for _, c := range []struct {
		method, path string
		status       int
		kind         api.Kind
	}{
		{"GET", "/v1/runs/r/episodes/other", http.StatusForbidden, api.PermissionDenied},
		{"POST", "/v1/runs/s/episodes/a%2Fb/finish", http.StatusForbidden, api.PermissionDenied},
		{"DELETE", "/v1/runs/r/episodes/a%2Fb", http.StatusMethodNotAllowed, api.MethodNotAllowed},
		{"GET", "/v1/worlds", http.StatusNotFound, api.RouteNotFound},
		{"POST", "/v1/leases", http.StatusNotFound, api.RouteNotFound},
		{"GET", "/v1/runs/r/episodes/a%2Fb/payload", http.StatusNotFound, api.RouteNotFound},
	} {
		resp, body := one.raw(t, c.method, c.path, "", "")
		if p := problemOf(t, resp, body); p.Status != c.status || p.Kind != c.kind {
			t.Errorf("%s %s: %s", c.method, c.path, body)
		}
	}
	if p := askAs(t, path, 54321, 54321).Problem; p == nil || p.Kind != api.PermissionDenied {
		t.Errorf("another user: %+v", p)
	}
	if p := askAs(t, path, 12345, 12345).Problem; p == nil || p.Kind != api.RouteNotFound {
		t.Errorf("the episode's user, asking for the version: %+v", p)
	}
	if err := closeSocket(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after close: %v", err)
	}
	if err := closeSocket(); err != nil {
		t.Errorf("second close: %v", err)
	}
}

// X-A03: connections that say nothing are dropped after the header timeout, and good
// clients are served beside them.
func TestSilentConnectionsAreDroppedAndDisturbNobody(t *testing.T) {
	t.Parallel()
	f := serve(t, nil)
	var d net.Dialer
	silent := make([]net.Conn, 200)
	for i := range silent {
		conn, err := d.DialContext(t.Context(), "unix", f.socket)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		fmt.Fprint(conn, "GET /healthz HTTP/1.1\r\nHost:")
		silent[i] = conn
	}
	began := time.Now()
	for range 50 {
		if _, err := f.client.Version(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if took := time.Since(began); took > 4*time.Second {
		t.Errorf("50 requests took %v beside silent connections", took)
	}
	for _, conn := range silent {
		_ = conn.SetReadDeadline(began.Add(3 * headerTimeout))
		// net/http closes without a word, or with 408 where it can.
		if _, err := io.ReadAll(bufio.NewReader(conn)); err != nil {
			if ne, ok := errors.AsType[net.Error](err); ok && ne.Timeout() {
				t.Fatal("a silent connection is still open after three header timeouts")
			}
		}
	}
}

func TestSocketsOfADeadDaemonAreSwept(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(socketDir(t), "sockets")
	if _, err := NewSockets(dir); err != nil {
		t.Fatal(err)
	}
	l, err := ownedSocket{path: filepath.Join(dir, "left.sock"), uid: -1, gid: -1, mode: 0o600}.listen(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil { // leaves the file, as a crash does
		t.Fatal(err)
	}
	if _, err := NewSockets(dir); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
