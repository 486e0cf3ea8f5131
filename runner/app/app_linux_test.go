package app_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/paddock-run/paddock/internal/need"
	"github.com/paddock-run/paddock/overlay"
	"github.com/paddock-run/paddock/overlay/image"
	"github.com/paddock-run/paddock/policies"
	"github.com/paddock-run/paddock/runner"
	"github.com/paddock-run/paddock/runner/app"
	"github.com/paddock-run/paddock/runner/record"
	"github.com/paddock-run/paddock/sandbox"
	"github.com/paddock-run/paddock/sandbox/native"
)

const owner = "1000"

// patience is how long anything here may take before a test calls it hung.
const patience = 30 * time.Second

type realLauncher struct{ *native.Launcher }

func (l realLauncher) Start(ctx context.Context, spec sandbox.Spec) (runner.Sandbox, error) {
	s, err := l.Launcher.Start(ctx, spec)
	if err != nil {
		return nil, err
	}
	return realSandbox{s}, nil
}

type realSandbox struct{ *native.Sandbox }

func (s realSandbox) Files() runner.Files { return s.Sandbox.Files() }

type realStore struct{ image.Worlds }

func (s realStore) Fork(ctx context.Context, id string) (runner.Fork, error) {
	f, err := s.Worlds.Fork(ctx, id)
	if err != nil {
		return nil, err
	}
	return realFork{f}, nil
}

type realFork struct{ *overlay.Fork }

func (f realFork) Track(upper *os.File, hostID uint32) runner.Tracker {
	return f.Fork.Track(upper, hostID)
}

// served is the binary of testdata/served, built once.
var served = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "served")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	cmd := exec.Command("go", "build", "-o", dir+"/served", "./testdata/served")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("go build: %w\n%s", err, out)
	}
	return os.ReadFile(dir + "/served")
})

var benches atomic.Int64

// bench is a service on real sandboxes, store and record, whose world "game" has the served
// binary.
type bench struct {
	*app.Service
	t    *testing.T
	run  *runner.Runner
	rec  *record.Record
	root string
	http *httptest.Server
}

func newBench(t *testing.T) *bench {
	t.Helper()
	need.Root(t)
	need.Overlay(t)
	need.Busybox(t)
	root := need.Tmpfs(t)
	set, err := policies.Load()
	if err != nil {
		t.Fatal(err)
	}
	store, err := overlay.Open(root, overlay.Options{})
	if err != nil {
		t.Fatal(err)
	}
	rec, err := record.Open(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(root, "run", "launcher")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := native.New(native.Config{Dir: dir, CgroupParent: fmt.Sprintf("paddock-app-%d-%d", os.Getpid(), benches.Add(1))})
	if err != nil {
		t.Fatal(err)
	}
	ids, err := sandbox.HostIDPool(64)
	if err != nil {
		t.Fatal(err)
	}
	r, err := runner.New(t.Context(), runner.Config{
		Root: root, Launcher: realLauncher{l}, Worlds: realStore{image.Worlds{Store: store}}, Record: rec, Policies: set, IDs: ids,
		Host: policies.Host{CPUs: 16, MemoryBytes: 64 << 30},
	})
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, run: r, rec: rec, root: root}
	b.open()
	b.http = httptest.NewServer(http.HandlerFunc(b.serve))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		b.http.Close()
		if err := errors.Join(b.Close(ctx), r.Close(ctx), l.Close(), rec.Close(), store.Close()); err != nil {
			t.Errorf("close: %v", err)
		}
		if free := ids.Free(); free != 64 {
			t.Errorf("%d of 64 id ranges are free", free)
		}
	})
	b.world()
	return b
}

// open begins a service, as a daemon's start does.
func (b *bench) open() {
	b.t.Helper()
	s, err := app.Open(b.t.Context(), b.run, b.rec, filepath.Join(b.root, "apps"), slog.New(slog.DiscardHandler))
	if err != nil {
		b.t.Fatal(err)
	}
	b.Service = s
}

func (b *bench) world() {
	b.t.Helper()
	if _, err := b.run.BuildWorld(b.t.Context(), owner, overlay.Recipe{Busybox: true, Name: "box"}, nil); err != nil {
		b.t.Fatal(err)
	}
	binary, err := served()
	if err != nil {
		b.t.Fatal(err)
	}
	dir := b.t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "served"), binary, 0o755); err != nil {
		b.t.Fatal(err)
	}
	if _, err := b.run.BuildWorld(b.t.Context(), owner, overlay.Recipe{Base: "box", Dir: dir, Into: "/bin", Name: "game"}, nil); err != nil {
		b.t.Fatal(err)
	}
}

// serve proxies /NAME/... and answers refusals as KIND: DETAIL with status 599.
func (b *bench) serve(w http.ResponseWriter, q *http.Request) {
	name, _, _ := strings.Cut(q.URL.Path[1:], "/")
	refuse := func(w http.ResponseWriter, err error) {
		w.Header().Set(app.HeaderError, runner.KindOf(err))
		w.WriteHeader(599)
		_, _ = fmt.Fprintf(w, "%v", err)
	}
	if err := b.Proxy(w, q, app.Caller{Owner: owner, Name: name, Prefix: "/" + name, Refuse: refuse}); err != nil {
		refuse(w, err)
	}
}

func game(change ...func(*app.Spec)) app.Spec {
	s := app.Spec{World: "game", Command: []string{"served"}, Port: 8000, Health: app.Health{Path: "/healthz"}, SessionIdleS: 60, DrainS: 20}
	for _, c := range change {
		c(&s)
	}
	return s
}

func (b *bench) deploy(name string, change ...func(*app.Spec)) {
	b.t.Helper()
	if _, err := b.Deploy(b.t.Context(), owner, name, game(change...)); err != nil {
		b.t.Fatal(err)
	}
}

// until waits for the app shop to be as asked.
func (b *bench) until(what string, ok func(app.App) bool) app.App {
	b.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		a, err := b.Get(owner, "shop")
		if err != nil {
			b.t.Fatal(err)
		}
		if ok(a) {
			return a
		}
		if time.Now().After(deadline) {
			b.t.Fatalf("the app did not come to %s: %+v", what, a)
		}
		<-time.After(5 * time.Millisecond)
	}
}

func ready(n int) func(app.App) bool {
	return func(a app.App) bool {
		ok := 0
		for _, r := range a.Replicas {
			if r.State == app.Ready && r.Revision == a.Revision {
				ok++
			}
		}
		return ok == n && len(a.Replicas) == n
	}
}

// answer is what came of a request; kind is that of a refusal.
type answer struct {
	text, kind, replica, session string
	status                       int
	header                       http.Header
}

func (b *bench) ask(path, session string) (answer, error) {
	req, err := http.NewRequestWithContext(b.t.Context(), http.MethodGet, b.http.URL+path, nil)
	if err != nil {
		return answer{}, err
	}
	if session != "" {
		req.Header.Set(app.HeaderSession, session)
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	h := resp.Header
	return answer{string(body), h.Get(app.HeaderError), h.Get(app.HeaderReplica), h.Get(app.HeaderSession), resp.StatusCode, h}, err
}

func (b *bench) get(path, session string) answer {
	b.t.Helper()
	a, err := b.ask(path, session)
	if err != nil {
		b.t.Fatal(err)
	}
	return a
}

func TestAnAppKeepsItsStateBetweenTheCallsOfASession(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.deploy("shop")
	b.until("one ready replica", ready(1))
	for i, want := range []string{"2", "4", "6"} {
		if a := b.get("/shop/add?n=2", "one"); a.text != want || a.session != "one" {
			t.Errorf("call %d = %+v, want %s", i, a, want)
		}
	}
	if a := b.get("/shop/add?n=1", "two"); a.text != "1" {
		t.Errorf("another session = %+v, want a score of its own", a)
	}
	first := b.get("/shop/add?n=5", "")
	cookie := first.header.Get("Set-Cookie")
	if first.text != "5" || !strings.HasPrefix(cookie, app.CookieSession+"=s-") || !strings.Contains(cookie, "Path=/shop") {
		t.Fatalf("without a session = %+v", first)
	}
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, b.http.URL+"/shop/add?n=5", nil)
	req.AddCookie(&http.Cookie{Name: app.CookieSession, Value: first.session})
	req.AddCookie(&http.Cookie{Name: "mine", Value: "kept"})
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if text, _ := io.ReadAll(resp.Body); string(text) != "10" || resp.Header.Get("Set-Cookie") != "" {
		t.Errorf("with the cookie = %s, %v; want 10 and no other cookie", text, resp.Header)
	}
}

func TestWhatTheAppGetsAndWhatItMayNotSay(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.deploy("shop")
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodPut, b.http.URL+"/shop/request/a%2Fb?x=1;y=%zz", strings.NewReader("body"))
	req.Header = http.Header{"Authorization": {"Bearer secret"}, "Cookie": {app.CookieSession + "=x; mine=kept"}, app.HeaderSession: {"s"}}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusNotFound { // the mux of the app has no such path: it came whole
		t.Errorf("an escaped path = %s", resp.Status)
	}
	req.URL.Path, req.URL.RawPath = "/shop/request", ""
	req.Body, req.ContentLength = nil, 0
	if resp, err = http.DefaultTransport.RoundTrip(req); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	raw, _ := io.ReadAll(resp.Body)
	text := string(raw)
	if !strings.HasPrefix(text, "PUT /request?x=1;y=%zz\n") {
		t.Errorf("the app got %q, want the query as it was", text)
	}
	for _, secret := range []string{"Bearer", app.CookieSession} {
		if strings.Contains(text, secret) {
			t.Errorf("the app was told %q:\n%s", secret, text)
		}
	}
	for _, want := range []string{"Cookie: mine=kept", "X-Forwarded-Prefix: /shop", "Paddock-Session: s\r"} {
		if !strings.Contains(text, want) {
			t.Errorf("the app was not told %q:\n%s", want, text)
		}
	}
	for status, kind := range map[string]string{"000": "app_broken", "001": "app_broken", "099": "app_broken", "999": ""} {
		if a := b.get("/shop/status?"+status, "s"); a.kind != kind {
			t.Errorf("an app that answers status %s = %+v, want kind %q", status, a, kind)
		}
	}
	if a := b.get("/shop/lie", "s"); a.kind != "" || a.header.Get("Location") != "/shop/who" {
		t.Errorf("an app that speaks for the daemon = %+v", a)
	}
}

func TestStreamsAndUpgradesPass(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.deploy("shop")
	began := time.Now()
	resp, err := http.Get(b.http.URL + "/shop/events")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	in := bufio.NewReader(resp.Body)
	first, err := in.ReadString('\n')
	early := time.Since(began)
	rest, _ := io.ReadAll(in)
	if err != nil || first != "data: 0\n" || strings.Count(string(rest), "data:") != 2 {
		t.Errorf("events = %q, %q, %v", first, rest, err)
	}
	if all := time.Since(began); early > all-50*time.Millisecond {
		t.Errorf("the first event came after %v of %v: it was held back", early, all)
	}
	c, err := net.Dial("tcp", b.http.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	_, _ = io.WriteString(c, "GET /shop/echo HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	answer := bufio.NewReader(c)
	up, err := http.ReadResponse(answer, nil)
	if err == nil {
		defer func() { _ = up.Body.Close() }()
	}
	if err != nil || up.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("upgrade = %+v, %v", up, err)
	}
	for range 3 {
		_, _ = io.WriteString(c, "hello\n")
		if line, err := answer.ReadString('\n'); line != "hello\n" {
			t.Fatalf("echo = %q, %v", line, err)
		}
	}
}

// An app with three replicas serves 200 sessions at once, each with a state of its own.
// An answer may begin before the proxy has seen that the request's body ends.
func TestAnswersInPartsToRequestsWithBodiesAreWhole(t *testing.T) {
	b := newBench(t)
	b.deploy("shop")
	b.until("ready", ready(1))
	var wg sync.WaitGroup
	for way := range 60 {
		wg.Go(func() {
			for i := range 40 {
				want := fmt.Sprintf("%d of %d", i, way)
				resp, err := b.http.Client().Post(b.http.URL+"/shop/parts", "text/plain", strings.NewReader(want))
				if err != nil {
					t.Error(err)
					return
				}
				got, err := io.ReadAll(resp.Body)
				if err = errors.Join(err, resp.Body.Close()); err != nil || string(got) != want {
					t.Errorf("%d %q, %v; want %q", resp.StatusCode, got, err, want)
					return
				}
			}
		})
	}
	wg.Wait()
}

func TestThreeReplicasServe200SessionsAtOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.deploy("shop", func(s *app.Spec) { s.Scale.Min = 3 })
	b.until("three ready replicas", ready(3))
	const sessions, calls = 200, 10
	var wg sync.WaitGroup
	var open atomic.Int64 // sessions that have begun; all do before one ends
	all := make(chan struct{})
	by := make([]string, sessions)
	for i := range sessions {
		wg.Go(func() {
			id := fmt.Sprintf("rollout-%d", i)
			for n := 1; n <= calls; n++ {
				a, err := b.ask("/shop/add?n=1", id)
				if err != nil || a.text != fmt.Sprint(n) {
					t.Errorf("%s, call %d = %+v, %v", id, n, a, err)
				}
				if by[i] == "" {
					by[i] = a.replica
					if open.Add(1) == sessions {
						close(all)
					}
					select {
					case <-all:
					case <-time.After(patience):
						t.Errorf("%s: only %d sessions are open", id, open.Load())
						return
					}
				}
				if a.replica != by[i] {
					t.Errorf("%s: replica %s, then %s", id, by[i], a.replica)
				}
			}
		})
	}
	wg.Wait()
	share := map[string]int{}
	for _, r := range by {
		share[r]++
	}
	for r, n := range share {
		if n < 50 {
			t.Errorf("replica %s has %d of %d sessions", r, n, sessions)
		}
	}
	a, _ := b.Get(owner, "shop")
	for begun := time.Now(); a.InFlight != 0 && time.Since(begun) < patience; a, _ = b.Get(owner, "shop") {
		time.Sleep(time.Millisecond) // an answer is in flight until a moment after it was read
	}
	if len(share) != 3 || a.Sessions != sessions || a.InFlight != 0 {
		t.Errorf("shares %v, app %+v", share, a)
	}
}

// programs are the host's process ids of the served binary in a replica's sandbox, which a
// replica tells by its own word for itself.
func programs(t *testing.T) map[int]string {
	t.Helper()
	all := map[int]string{}
	dirs, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range dirs {
		env, err := os.ReadFile(name)
		exe, _ := os.Readlink(filepath.Dir(name) + "/exe")
		if err != nil || !strings.HasSuffix(exe, "/served") {
			continue
		}
		for v := range strings.SplitSeq(string(env), "\x00") {
			if word, ok := strings.CutPrefix(v, "NAME="); ok {
				var pid int
				_, _ = fmt.Sscanf(name, "/proc/%d/", &pid)
				all[pid] = word
			}
		}
	}
	return all
}

// kill -9 of a replica's program loses the sessions of that replica, each with a typed error,
// and no other; another replica comes in its place.
func TestKillingAReplicaLosesItsOwnSessionsAlone(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	mine := fmt.Sprintf("kill-%d", time.Now().UnixNano())
	b.deploy("shop", func(s *app.Spec) { s.Scale.Min = 3; s.Env = map[string]string{"NAME": mine} })
	b.until("three ready replicas", ready(3))
	on := map[string][]string{} // sessions by replica
	for i := range 30 {
		id := fmt.Sprintf("s%d", i)
		a := b.get("/shop/add?n=7", id)
		on[a.replica] = append(on[a.replica], id)
	}
	if len(on) != 3 {
		t.Fatalf("sessions are on %v", on)
	}
	slow := make(chan answer, 30)
	var wg sync.WaitGroup
	for _, ids := range on { // requests under way at every replica
		wg.Go(func() {
			a, err := b.ask("/shop/slow?for=2s", ids[0])
			if err != nil {
				t.Error(err)
			}
			slow <- a
		})
	}
	b.until("three requests under way", func(a app.App) bool { return a.InFlight == 3 })
	killed := 0
	for pid, word := range programs(t) {
		if word == mine && killed == 0 {
			killed = pid
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
	}
	if killed == 0 {
		t.Fatal("no program of a replica was found")
	}
	wg.Wait()
	close(slow)
	broken := 0
	for a := range slow {
		if a.kind == runner.KindSessionLost {
			broken++
		} else if a.text != "done" {
			t.Errorf("a request under way = %+v", a)
		}
	}
	if broken != 1 {
		t.Errorf("%d requests under way broke, want that of the replica that was killed", broken)
	}
	a := b.until("three replicas again", func(a app.App) bool { return a.Restarts == 1 && ready(3)(a) })
	if !strings.Contains(a.Failure, "signal 9") {
		t.Errorf("failure %q, want one that says signal 9", a.Failure)
	}
	lost := 0
	for replica, ids := range on {
		gone := ""
		for _, id := range ids {
			a := b.get("/shop/add?n=7", id)
			switch {
			case a.kind == runner.KindSessionLost && gone != "no":
				gone = "yes"
			case a.text == "14" && a.replica == replica && gone != "yes":
				gone = "no"
			default:
				t.Errorf("session %s of %s = %+v", id, replica, a)
			}
		}
		if gone == "yes" {
			lost++
		}
	}
	if lost != 1 {
		t.Errorf("%d replicas' sessions are lost, want 1", lost)
	}
	if a := b.get("/shop/add?n=1", "new"); a.text != "1" {
		t.Errorf("a new session = %+v", a)
	}
}

// A rolling update drops nothing: sessions that are open end where they began, requests under
// way are answered, and new sessions are served all the time.
func TestARollingUpdateDropsNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.deploy("shop", func(s *app.Spec) { s.Scale.Min = 3; s.Env = map[string]string{"NAME": "old"} })
	b.until("three ready replicas", ready(3))
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var served atomic.Int64
	for w := range 12 {
		wg.Go(func() {
			for round := 0; ; round++ {
				select {
				case <-stop:
					return
				default:
				}
				id := fmt.Sprintf("w%d-%d", w, round)
				replica := ""
				for n := 1; n <= 5; n++ {
					a, err := b.ask("/shop/add?n=1", id)
					if err != nil || a.text != fmt.Sprint(n) || replica != "" && a.replica != replica {
						t.Errorf("%s, call %d = %+v, %v (on %s before)", id, n, a, err, replica)
						return
					}
					replica = a.replica
					served.Add(1)
				}
				if err := b.End(owner, "shop", id); err != nil {
					t.Error(err)
				}
			}
		})
	}
	slow := make(chan answer, 1)
	go func() {
		a, _ := b.ask("/shop/slow?for=1500ms", "slow")
		slow <- a
	}()
	b.until("the slow request", func(a app.App) bool { return a.InFlight > 0 && a.Sessions > 0 })
	if _, err := b.Update(t.Context(), owner, "shop", game(func(s *app.Spec) { s.Scale.Min = 3; s.Env = map[string]string{"NAME": "new"} })); err != nil {
		t.Fatal(err)
	}
	if a := <-slow; a.text != "done" {
		t.Errorf("the request under way = %+v", a)
	}
	if err := b.End(owner, "shop", "slow"); err != nil {
		t.Fatal(err)
	}
	a := b.until("three replicas of revision 2", func(a app.App) bool { return a.Revision == 2 && ready(3)(a) })
	close(stop)
	wg.Wait()
	if a.State != "running" || a.Restarts != 0 {
		t.Errorf("app %+v", a)
	}
	if a := b.get("/shop/who", "later"); !strings.HasPrefix(a.text, "new ") {
		t.Errorf("after the update %+v answers", a)
	}
	t.Logf("%d requests were served meanwhile", served.Load())
}

// A revision that does not get ready takes nothing away from the one before.
func TestAnUpdateThatFailsLeavesTheOldServing(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.deploy("shop")
	b.until("a ready replica", ready(1))
	b.get("/shop/add?n=3", "s")
	bad := game(func(s *app.Spec) { s.Command = []string{"sh", "-c", "echo no; exit 7"} })
	if _, err := b.Update(t.Context(), owner, "shop", bad); err != nil {
		t.Fatal(err)
	}
	a := b.until("failures", func(a app.App) bool { return a.Restarts >= 3 })
	if !strings.Contains(a.Failure, "status 7") || a.State != "failing" {
		t.Errorf("app %+v", a)
	}
	if a := b.get("/shop/add?n=4", "s"); a.text != "7" {
		t.Errorf("the session of before = %+v", a)
	}
	if a := b.get("/shop/add?n=1", "t"); a.text != "1" {
		t.Errorf("a new session = %+v", a)
	}
	var words []string
	err := b.Logs(t.Context(), owner, "shop", app.LogQuery{}, func(l app.Line) error {
		if l.Stream == "stdout" {
			words = append(words, l.Text)
		}
		return nil
	})
	if err != nil || len(words) < 4 || words[0] != "serving on 8000" || words[1] != "no" {
		t.Errorf("log %q, %v", words, err)
	}
	if _, err := b.Update(t.Context(), owner, "shop", game()); err != nil {
		t.Fatal(err)
	}
	b.until("running again", func(a app.App) bool { return a.Revision == 3 && ready(1)(a) || len(a.Replicas) == 2 })
}

// A program that ends is started again, ever more patiently, and requests do not wait for one
// that never comes.
func TestAProgramThatNeverStartsIsTypedAndTriedLessAndLess(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.deploy("shop", func(s *app.Spec) { s.Command = []string{"false"} })
	if a := b.get("/shop/who", "s"); a.kind != runner.KindAppDown || !strings.Contains(a.text, "status 1") {
		t.Errorf("a request = %+v, want app_down that says why", a)
	}
	b.until("failing", func(a app.App) bool { return a.State == "failing" })
	began := time.Now()
	n := b.until("more", func(a app.App) bool { return a.Restarts >= 5 }).Restarts
	if took := time.Since(began); took < 500*time.Millisecond {
		t.Errorf("%d starts in a row, the last in %v: there is no back-off", n, took)
	}
	eps, _, err := b.run.List(t.Context(), owner, "apps", "shop", "", 0)
	if err != nil || len(eps) > 6 {
		t.Errorf("%d episodes are kept of replicas that ended (%v)", len(eps), err)
	}
	b.deploy("none", func(s *app.Spec) { s.Command = []string{"no-such-program"} })
	if a := b.get("/none/who", "s"); a.kind != runner.KindAppDown || !strings.Contains(a.text, "command_not_found") {
		t.Errorf("a request = %+v", a)
	}
	if a := b.get("/nobody/who", "s"); a.kind != runner.KindUnknownApp {
		t.Errorf("no such app = %+v", a)
	}
}

func TestAReplicaThatIsUnwellIsReplaced(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.deploy("shop", func(s *app.Spec) { s.Health.IntervalS = 0.05 })
	b.until("a ready replica", ready(1))
	first := b.get("/shop/sick", "s").replica
	a := b.until("another replica", func(a app.App) bool { return ready(1)(a) && a.Replicas[0].ID != first })
	if !strings.Contains(a.Failure, "500") {
		t.Errorf("failure %q", a.Failure)
	}
	if a := b.get("/shop/who", "s"); a.kind != runner.KindSessionLost {
		t.Errorf("its session = %+v", a)
	}
}

// Replicas follow the load, up at once and down after a while.
func TestReplicasFollowTheLoad(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.deploy("shop", func(s *app.Spec) { s.Scale = app.Scale{Min: 1, Max: 3, Target: 4, DownS: 0.2}; s.SessionIdleS = 30 })
	b.until("one replica", ready(1))
	for i := range 12 {
		b.get("/shop/add?n=1", fmt.Sprintf("s%d", i))
	}
	b.until("three replicas", ready(3))
	for i := range 12 { // those of before are where they were
		if a := b.get("/shop/add?n=1", fmt.Sprintf("s%d", i)); a.text != "2" {
			t.Errorf("session %d = %+v", i, a)
		}
	}
	for i := range 12 {
		if err := b.End(owner, "shop", fmt.Sprintf("s%d", i)); err != nil {
			t.Fatal(err)
		}
	}
	b.until("one replica again", ready(1))
	if _, err := b.Scale(t.Context(), owner, "shop", app.Scale{Min: 2}); err != nil {
		t.Fatal(err)
	}
	a := b.until("two replicas", ready(2))
	if a.Revision != 1 || a.Restarts != 0 {
		t.Errorf("scaling made %+v", a)
	}
}

func TestAnIdleAppStopsAndStartsOnDemand(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.deploy("shop", func(s *app.Spec) { s.IdleS, s.SessionIdleS = 0.3, 0.2 })
	b.until("idle", func(a app.App) bool { return a.State == "idle" && len(a.Replicas) == 0 })
	if a := b.get("/shop/add?n=1", "s"); a.text != "1" {
		t.Errorf("the request that wakes it = %+v", a)
	}
	b.until("idle again", func(a app.App) bool { return a.State == "idle" && len(a.Replicas) == 0 })
	// A session that was idle for too long is lost, and says so: it is not begun anew.
	if a := b.get("/shop/add?n=1", "s"); a.kind != runner.KindSessionLost || !strings.Contains(a.text, "session_idle_s") {
		t.Errorf("the session of before = %+v", a)
	}
}

// A new daemon goes on with what the journal has, by the world that was deployed.
func TestAppsComeBackAsJournalled(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.deploy("shop", func(s *app.Spec) { s.Env = map[string]string{"NAME": "kept"} })
	b.deploy("gone")
	b.until("a ready replica", ready(1))
	if _, err := b.Scale(t.Context(), owner, "shop", app.Scale{Min: 2}); err != nil {
		t.Fatal(err)
	}
	given := b.get("/shop/add?n=1", "").session
	if err := b.Remove(t.Context(), owner, "gone"); err != nil {
		t.Fatal(err)
	}
	before, _ := b.Get(owner, "shop")
	if err := b.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := b.run.BuildWorld(t.Context(), owner, overlay.Recipe{Busybox: true, Name: "game"}, nil); err != nil {
		t.Fatal(err) // the name means another world now
	}
	b.open()
	if _, err := b.Get(owner, "gone"); runner.KindOf(err) != runner.KindUnknownApp {
		t.Errorf("the app that was removed: %v", err)
	}
	a := b.until("two ready replicas", ready(2))
	if a.Spec.World != before.Spec.World || a.Revision != 1 || !a.Created.Equal(before.Created) {
		t.Errorf("app %+v, before %+v", a, before)
	}
	if a := b.get("/shop/who", "s"); !strings.HasPrefix(a.text, "kept ") {
		t.Errorf("it answers %+v", a)
	}
	if a := b.get("/shop/add?n=1", given); a.kind != runner.KindSessionLost {
		t.Errorf("a session of before = %+v", a)
	}
	live, _, err := b.run.List(t.Context(), owner, "apps", "", "", 0)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, e := range live {
		if e.Last().End == nil {
			n++
		}
	}
	if n != 2 {
		t.Errorf("%d replicas have live episodes, want 2", n)
	}
}

func TestSpecsThatMeanNothingAreRefusedByField(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for field, change := range map[string]func(*app.Spec){
		"world": func(s *app.Spec) { s.World = "" }, "port": func(s *app.Spec) { s.Port = 0 }, "command": func(s *app.Spec) { s.Command = nil },
		"command/1": func(s *app.Spec) { s.Command = []string{"a", "b\x00"} }, "cwd": func(s *app.Spec) { s.Cwd = "x" },
		"env": func(s *app.Spec) { s.Env = map[string]string{"a=b": "c"} }, "sessions": func(s *app.Spec) { s.Sessions = "some" },
		"health/path": func(s *app.Spec) { s.Health.Path = "x" }, "drain_s": func(s *app.Spec) { s.DrainS = -1 }, "scale/min": func(s *app.Spec) { s.Scale.Min = 65 },
		"scale/max": func(s *app.Spec) { s.Scale = app.Scale{Min: 3, Max: 2} }, "max_in_flight": func(s *app.Spec) { s.MaxInFlight = -1 },
		"limits/memory": func(s *app.Spec) { s.Limits.MemoryBytes = -1 }, "network/allow": func(s *app.Spec) { s.Network.Allow = []string{"example.org"} },
	} {
		_, err := b.Deploy(t.Context(), owner, "shop", game(change))
		if e, ok := errors.AsType[*runner.Error](err); !ok || e.Kind != runner.KindBadRequest || e.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	for _, name := range []string{"", "Shop", "a/b", "../x", strings.Repeat("a", 64)} {
		if _, err := b.Deploy(t.Context(), owner, name, game()); runner.KindOf(err) != runner.KindBadRequest {
			t.Errorf("name %q: %v", name, err)
		}
	}
	if all := b.List(owner); len(all) != 0 {
		t.Errorf("refused specs left %+v", all)
	}
	b.deploy("shop")
	b.deploy("shop")
	if _, err := b.Deploy(t.Context(), owner, "shop", game(func(s *app.Spec) { s.Port = 1 })); runner.KindOf(err) != runner.KindSpecConflict {
		t.Errorf("another spec: %v", err)
	}
	for _, o := range []string{"1001", "0"} {
		if _, err := b.Get(o, "shop"); runner.KindOf(err) != runner.KindUnknownApp {
			t.Errorf("tenant %s: %v", o, err)
		}
		if err := b.Proxy(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/who", nil), app.Caller{Owner: o, Name: "shop"}); runner.KindOf(err) != runner.KindUnknownApp {
			t.Errorf("tenant %s gets %v", o, err)
		}
	}
}

// Requests beyond what a replica may have are refused, not queued without end.
func TestAReplicaHasOnlySoManyRequests(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.deploy("shop", func(s *app.Spec) { s.MaxInFlight, s.Sessions = 2, app.None })
	b.until("a ready replica", ready(1))
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			if a, err := b.ask("/shop/slow?for=500ms", ""); err != nil || a.text != "done" || a.session != "" {
				t.Errorf("= %+v, %v", a, err)
			}
		})
	}
	b.until("two requests", func(a app.App) bool { return a.InFlight == 2 })
	if a := b.get("/shop/who", ""); a.kind != runner.KindOverCapacity {
		t.Errorf("the third = %+v", a)
	}
	wg.Wait()
	if a := b.get("/shop/who", ""); a.kind != "" {
		t.Errorf("afterwards = %+v", a)
	}
}
