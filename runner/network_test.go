package runner_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/paddock-run/paddock/internal/egress"
	"github.com/paddock-run/paddock/runner"
)

// outside is an internet of one web server, which has the address of good.test.
type outside struct{ server string }

func (o outside) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	switch host {
	case "good.test", "other.test":
		return []netip.Addr{netip.MustParseAddr("203.0.113.10")}, nil
	case "inner.test":
		return []netip.Addr{netip.MustParseAddr("10.0.0.1")}, nil
	}
	return nil, errors.New("no such host")
}

func (o outside) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	if address == "203.0.113.10:80" {
		address = o.server
	}
	var d net.Dialer
	return d.DialContext(ctx, network, address)
}

// impatient tries a target that is down for a moment only.
type impatient struct{ *egress.Host }

func (i impatient) Endpoint(l net.Listener, e egress.Endpoint, to egress.Target, ledger *egress.Ledger) *egress.Door {
	e.Patience = time.Millisecond
	return i.Host.Endpoint(l, e, to, ledger)
}

func networked(t *testing.T) func(*runner.Config) {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprintf(w, "%s key=%s", r.Host, r.Header.Get("X-Key"))
	}))
	t.Cleanup(srv.Close)
	out := outside{srv.Listener.Addr().String()}
	entry, err := egress.ParseEntry("good.test")
	if err != nil {
		t.Fatal(err)
	}
	return func(c *runner.Config) {
		c.Egress = impatient{&egress.Host{Resolver: out, Dialer: out, Secrets: egress.Secrets{
			"key": {Name: "key", Hosts: []egress.Entry{entry}, Header: "X-Key", Value: "hush"},
		}}}
	}
}

func allowing(hosts ...string) func(*runner.EpisodeSpec) {
	return func(s *runner.EpisodeSpec) {
		s.Policy, s.Network.Allow = "networked-allowlist", hosts
	}
}

func leading(to string) func(*runner.EpisodeSpec) {
	return func(s *runner.EpisodeSpec) { s.Endpoints = map[string]runner.EndpointSpec{"model": {Target: to}} }
}

// get sends a GET by nc to a port inside.
func (b *bench) get(key runner.Key, port, target, host string) runner.CallResult {
	b.t.Helper()
	return b.call(key, runner.CallSpec{
		Tool: "exec", Argv: []string{"nc", "127.0.0.1", port}, Stdin: fmt.Appendf(nil, "GET %s HTTP/1.1\r\nHost: %s\r\n\r\n", target, host),
	})
}

func TestNetworkSpecsAreChecked(t *testing.T) {
	b := newBench(t, networked(t))
	for field, change := range map[string]func(*runner.EpisodeSpec){
		"network/allow":   func(s *runner.EpisodeSpec) { s.Network.Allow = []string{"good.test"} }, // the policy default
		"network/secrets": func(s *runner.EpisodeSpec) { s.Network.Secrets = []string{"key"} },
		"network/allow/1": allowing("good.test", "http://good.test"),
		"endpoints":       func(s *runner.EpisodeSpec) { s.Endpoints = map[string]runner.EndpointSpec{"Model": {Target: "h:1"}} },
		"endpoints/model/target": func(s *runner.EpisodeSpec) {
			s.Endpoints = map[string]runner.EndpointSpec{"model": {Target: "client"}}
		},
		"endpoints/model/health": func(s *runner.EpisodeSpec) {
			s.Endpoints = map[string]runner.EndpointSpec{"model": {Target: "h:1", Health: "health"}}
		},
		"endpoints/db/health": func(s *runner.EpisodeSpec) {
			s.Endpoints = map[string]runner.EndpointSpec{"db": {Target: "h:1", Raw: true, Health: "/"}}
		},
		"endpoints/model/port": func(s *runner.EpisodeSpec) {
			s.Policy, s.Endpoints = "networked-allowlist", map[string]runner.EndpointSpec{"model": {Target: "h:1", Port: 3128}}
		},
		"endpoints/b/port": func(s *runner.EpisodeSpec) {
			s.Endpoints = map[string]runner.EndpointSpec{"a": {Target: "h:1", Port: 80}, "b": {Target: "h:1", Port: 80}}
		},
	} {
		_, err := b.Create(t.Context(), owner, 0, b.spec("x", change))
		if e, ok := errors.AsType[*runner.Error](err); !ok || e.Kind != runner.KindBadRequest || e.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	_, err := b.Create(t.Context(), owner, 0, b.spec("x", allowing(), func(s *runner.EpisodeSpec) { s.Network.Secrets = []string{"nosuch"} }))
	if e, ok := errors.AsType[*runner.Error](err); !ok || e.Field != "network/secrets" || !strings.Contains(e.Detail, "nosuch") {
		t.Errorf("a secret that is not there: %v", err)
	}
	many := make([]string, egress.MaxEntries+1)
	for i := range many {
		many[i] = "good.test"
	}
	if _, err := b.Create(t.Context(), owner, 0, b.spec("x", allowing(many...))); runner.KindOf(err) != runner.KindBadRequest {
		t.Errorf("%d entries: %v", len(many), err)
	}
	without := newBench(t)
	for _, change := range []func(*runner.EpisodeSpec){allowing("good.test"), leading("127.0.0.1:1")} {
		if _, err := without.Create(t.Context(), owner, 0, without.spec("x", change)); runner.KindOf(err) != runner.KindBadRequest {
			t.Errorf("a daemon without a proxy: %v", err)
		}
	}
}

// TestEveryDestinationIsInTheRecord: in the call that asked, the trajectory, and the
// attempt; and a secret in none of them.
func TestEveryDestinationIsInTheRecord(t *testing.T) {
	b := newBench(t, networked(t))
	key := b.live("net", allowing("good.test", "inner.test:80"), func(s *runner.EpisodeSpec) { s.Network.Secrets = []string{"key"} })
	ep, err := b.Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range []string{"HTTP_PROXY=http://127.0.0.1:3128", "https_proxy=http://127.0.0.1:3128", "NO_PROXY=localhost,127.0.0.1,::1"} {
		if !slices.Contains(ep.Plan.Env, kv) {
			t.Errorf("the environment lacks %s: %q", kv, ep.Plan.Env)
		}
	}
	if want := []string{"good.test:80,443", "inner.test:80"}; !slices.Equal(ep.Plan.Network.Allow, want) {
		t.Errorf("effective list %q, want %q", ep.Plan.Network.Allow, want)
	}
	good := b.get(key, "3128", "http://good.test/", "good.test")
	if !strings.HasSuffix(string(good.Stdout.Head), "good.test key=hush") || len(good.Network) != 1 || good.Network[0].Verdict != egress.Allowed || len(good.Hints) != 0 {
		t.Errorf("allowed: %q, network %+v, hints %q", good.Stdout.Head, good.Network, good.Hints)
	}
	for target, want := range map[string]egress.Verdict{
		"evil.test": egress.HostRefused, "inner.test": egress.AddressRefused, "169.254.169.254": egress.HostRefused,
	} {
		res := b.get(key, "3128", "http://"+target+"/", target)
		var seen []egress.Seen
		for _, s := range res.Network {
			if s.Count > 0 {
				seen = append(seen, s)
			}
		}
		if !strings.Contains(string(res.Stdout.Head), "403 Forbidden") || len(seen) != 1 || seen[0].Host != target || seen[0].Verdict != want || len(res.Hints) != 1 {
			t.Errorf("%s: %q, network %+v, hints %q", target, res.Stdout.Head, res.Network, res.Hints)
		}
	}
	if res := b.call(key, runner.CallSpec{Tool: "exec", Argv: []string{"true"}}); len(res.Network) != 0 {
		t.Errorf("a call that asks for nothing has %+v", res.Network)
	}
	done, err := b.Finish(t.Context(), key, runner.FinishSpec{})
	if err != nil {
		t.Fatal(err)
	}
	n := done.Last().Network
	if n == nil || len(n.Seen) != 4 || n.Refused != 3 {
		t.Errorf("summary %+v", n)
	}
	rd, err := b.Trajectory(t.Context(), key, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rd.Close() }()
	text, err := io.ReadAll(rd)
	if err != nil {
		t.Fatal(err)
	}
	record, err := json.Marshal(done)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"evil.test"`, `"address_refused"`, `"169.254.169.254"`} {
		if !strings.Contains(string(text), want) || !strings.Contains(string(record), want) {
			t.Errorf("the record lacks %s", want)
		}
	}
	// What the service itself printed is in the output, as the docs say; nowhere else.
	if strings.Contains(string(record), "hush") {
		t.Error("the record holds the secret")
	}
}

// TestEndpointsWorkUnderAnyPolicy: the network is none, and the trainer's server is reached.
func TestEndpointsWorkUnderAnyPolicy(t *testing.T) {
	b := newBench(t, networked(t))
	first := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"choices": [{"index": 0, "token_ids": [1, 2]}]}`)
	}))
	t.Cleanup(first.Close)
	second := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/" { // what the daemon asks for itself works
			http.Error(w, "no", http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(second.Close)
	to := first.Listener.Addr().String()
	key := b.live("end", leading(to))
	ep, err := b.Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(ep.Plan.Env, "PADDOCK_ENDPOINT_MODEL=http://127.0.0.1:4301") || ep.Plan.Network.Proxy != "" {
		t.Errorf("plan %+v, environment %q", ep.Plan.Network, ep.Plan.Env)
	}
	if res := b.get(key, "4301", "/v1/completions", "x"); !strings.Contains(string(res.Stdout.Head), `"token_ids": [1, 2]`) || len(res.Network) == 0 || res.Network[0].Endpoint != "model" {
		t.Errorf("answer %q, network %+v", res.Stdout.Head, res.Network)
	}
	// The trainer's server starts anew elsewhere: the same spec, the same episode.
	again := b.create(b.spec("end", leading(second.Listener.Addr().String())))
	if !again.Kept || again.Episode.State != runner.Live {
		t.Errorf("asked again with another target: kept %v, %s", again.Kept, again.Episode.State)
	}
	if res := b.get(key, "4301", "/v1/completions", "x"); !strings.Contains(string(res.Stdout.Head), "503 Service Unavailable") {
		t.Errorf("led elsewhere: %q", res.Stdout.Head)
	}
	done, err := b.Finish(t.Context(), key, runner.FinishSpec{})
	if err != nil {
		t.Fatal(err)
	}
	// An answer of 503 is passed on and counted: it is not for the agent to void its sample so.
	if end := done.Last().End; end.Cause != runner.Agent || end.Status != runner.OK {
		t.Errorf("end %+v", end)
	}
	if x := done.Last().Exchanges; x == nil || x.Count != 2 || x.Broken != 1 || x.Dropped != 0 || x.Bytes == 0 {
		t.Errorf("exchanges %+v", x)
	}
	rd, err := b.Exchanges(t.Context(), key, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rd.Close() }()
	line, err := bufio.NewReader(rd).ReadBytes('\n')
	if err != nil {
		t.Fatal(err)
	}
	var x struct {
		Seq int64
		egress.Exchange
	}
	if err := json.Unmarshal(line, &x); err != nil || x.Seq != 1 || x.Status != 200 || x.Completion == nil || !slices.Equal(x.Completion.Choices[0].TokenIDs, []int64{1, 2}) {
		t.Errorf("first exchange %s, %v", line, err)
	}
}

// TestADownEndpointIsTheClients: null and retryable, with its neighbour, whose reward stays.
// One whose every answer is 5xx, also to the daemon, is as down as one where nobody listens.
func TestADownEndpointIsTheClients(t *testing.T) {
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := l.Addr().String()
	_ = l.Close()
	broken := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no upstream", http.StatusBadGateway) }))
	t.Cleanup(broken.Close)
	for name, target := range map[string]string{"nobody listens": nobody, "answers 502": broken.Listener.Addr().String()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			downIsTheClients(t, target, name == "nobody listens")
		})
	}
}

func downIsTheClients(t *testing.T, target string, absent bool) {
	t.Helper()
	b := newBench(t, networked(t))
	key, neighbour := b.live("down", leading(target)), b.live("up")
	_, err := b.Call(t.Context(), key, runner.CallSpec{
		Tool: "exec", Argv: []string{"nc", "127.0.0.1", "4301"}, Stdin: []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
	}, runner.CallIO{})
	if err != nil && runner.KindOf(err) != runner.KindEpisodeEnded {
		t.Errorf("call: %v", err)
	}
	_, err = b.Finish(t.Context(), key, runner.FinishSpec{})
	if runner.KindOf(err) != runner.KindEpisodeEnded {
		t.Errorf("finish of an episode whose endpoint is down: %v", err)
	}
	ep, err := b.Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	if end := ep.Last().End; end == nil || end.Status != runner.Errored || end.Cause != runner.Client || end.Step != "model" || !strings.Contains(strings.Join(end.Evidence, " "), target) {
		t.Errorf("end %+v, want the client's", end)
	}
	if ep.Valid {
		t.Error("it has a reward")
	}
	isDown := func(s egress.Seen) bool { return s.Verdict == egress.Down }
	if n := ep.Last().Network; n == nil || !slices.ContainsFunc(n.Seen, isDown) || n.Seen[0].Verdict != egress.Down && absent {
		t.Errorf("network %+v", n)
	}
	if done, err := b.Finish(t.Context(), neighbour, runner.FinishSpec{}); err != nil || done.Last().End.Cause != runner.Agent {
		t.Errorf("the neighbour: %+v, %v", done.Last().End, err)
	}
	// Asked again, it is tried again.
	if c, err := b.Create(t.Context(), owner, 0, b.spec("down", leading(target), func(s *runner.EpisodeSpec) { s.Retries = 1 })); err != nil || c.Episode.Last().N != 2 {
		t.Errorf("a retry: %+v, %v", c.Episode.State, err)
	}
}

func TestGrantsAreInTheSpecDigest(t *testing.T) {
	b := newBench(t, networked(t))
	b.live("d", allowing("good.test"))
	if c := b.create(b.spec("d", allowing("GOOD.test:443,80"))); !c.Kept {
		t.Error("the same list in other words is another spec")
	}
	_, err := b.Create(t.Context(), owner, 0, b.spec("d", allowing("good.test", "other.test")))
	if e, ok := errors.AsType[*runner.Error](err); !ok || e.Kind != runner.KindSpecConflict || len(e.Diffs) == 0 || e.Diffs[0].Pointer != "/network/allow" {
		t.Errorf("another list: %v", err)
	}
}

// TestAGraderHasItsOwnNetwork: the agent's hosts are not the grader's, nor the other way.
func TestAGraderHasItsOwnNetwork(t *testing.T) {
	b := newBench(t, networked(t))
	script := `nc 127.0.0.1 3128 other; nc 127.0.0.1 3128 good; echo '{"reward": 1}' >&3`
	ask := func(host string) runner.GraderFile {
		return runner.GraderFile{Bytes: fmt.Appendf(nil, "GET http://%s/ HTTP/1.1\r\nHost: %[1]s\r\n\r\n", host)}
	}
	g, err := b.PutGrader(t.Context(), runner.GraderSpec{
		Files: map[string]runner.GraderFile{"other": ask("other.test"), "good": ask("good.test")}, Command: []string{"sh", "-c", script}, Policy: "networked-allowlist",
		Network: runner.NetworkSpec{Allow: []string{"other.test"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.PutGrader(t.Context(), runner.GraderSpec{Command: []string{"true"}, Network: runner.NetworkSpec{Allow: []string{"other.test"}}}); runner.KindOf(err) != runner.KindBadRequest {
		t.Errorf("a grader under strict with a network: %v", err)
	}
	key := b.live("graded", allowing("good.test"), func(s *runner.EpisodeSpec) { s.Graders = []runner.WeightedGrader{{Grader: g}} })
	if res := b.get(key, "3128", "http://other.test/", "other.test"); !strings.Contains(string(res.Stdout.Head), "403 Forbidden") {
		t.Errorf("the agent reaches the grader's host: %q", res.Stdout.Head)
	}
	done, err := b.Finish(t.Context(), key, runner.FinishSpec{})
	if err != nil {
		t.Fatal(err)
	}
	if done.Reward == nil || *done.Reward != 1 {
		t.Fatalf("score %+v", done.Last().Scores)
	}
	s := done.Last().Scores[0]
	if strings.Count(s.Stdout, "200 OK") != 1 || strings.Count(s.Stdout, "403 Forbidden") != 1 || s.Network == nil || s.Network.Refused != 1 ||
		s.Network.Seen[0].Host != "good.test" || s.Network.Seen[0].Verdict != egress.HostRefused {
		t.Errorf("the grader: %q %+v", s.Stdout, s.Network)
	}
}
