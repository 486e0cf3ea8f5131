package egress

import (
	"bufio"
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var testLimits = Limits{
	Requests: 1000, PerSecond: 10000, Connections: 16, BytesUp: 64 << 20, BytesDown: 64 << 20, HeadBytes: 32 << 10,
	Idle: time.Minute, Life: 5 * time.Minute,
}

// outside is an internet whose addresses are listeners of the loopback: a resolver and a
// dialer that note what they were asked.
type outside struct {
	mu      sync.Mutex
	names   map[string][][]netip.Addr // the answers, one after another; the last stays
	real    map[string]string
	lookups []string
	dialled []string
}

func (o *outside) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lookups = append(o.lookups, host)
	answers := o.names[host]
	if len(answers) == 0 {
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	if len(answers) > 1 {
		o.names[host] = answers[1:]
	}
	return answers[0], nil
}

func (o *outside) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	o.mu.Lock()
	o.dialled = append(o.dialled, address)
	to, ok := o.real[address]
	o.mu.Unlock()
	if !ok {
		return nil, errors.New("nobody there")
	}
	var d net.Dialer
	return d.DialContext(ctx, network, to)
}

func (o *outside) asked() (lookups, dialled []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]string{}, o.lookups...), append([]string{}, o.dialled...)
}

// at gives a name an address of the fake internet, and to its port a listener.
func (o *outside) at(name, address, listener string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	ap := netip.MustParseAddrPort(address)
	o.names[name] = [][]netip.Addr{{ap.Addr()}}
	o.real[ap.String()] = listener
}

func newOutside() *outside {
	return &outside{names: map[string][][]netip.Addr{}, real: map[string]string{}}
}

type scene struct {
	*outside
	host   *Host
	ledger *Ledger
	addr   string
}

func newScene(t *testing.T, rules Rules, change ...func(*Host)) *scene {
	t.Helper()
	s := &scene{outside: newOutside(), ledger: NewLedger()}
	s.host = &Host{Resolver: s.outside, Dialer: s.outside}
	for _, c := range change {
		c(s.host)
	}
	l := listen(t)
	s.addr = l.Addr().String()
	p, err := s.host.Proxy(l, rules, s.ledger)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// raw sends text as it is and returns the whole answer.
func (s *scene) raw(t *testing.T, text string) string {
	t.Helper()
	c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(c)
	if err != nil && len(b) == 0 {
		t.Fatal(err)
	}
	return string(b)
}

// client sends its requests through the proxy and follows redirects as clients do.
func (s *scene) client() *http.Client {
	u := &url.URL{Scheme: "http", Host: s.addr}
	return &http.Client{Transport: &http.Transport{Proxy: http.ProxyURL(u), DisableKeepAlives: true}, Timeout: time.Minute}
}

func (s *scene) get(t *testing.T, url string) (status int, body, verdict string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := s.client().Do(req)
	if err != nil {
		return 0, err.Error(), ""
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b), resp.Header.Get("Paddock-Verdict")
}

// verdicts are the ledger's lines as "HOST:PORT VERDICT".
func (s *scene) verdicts() []string {
	var out []string
	all, _ := s.ledger.All()
	for _, x := range all {
		out = append(out, fmt.Sprintf("%s:%d %s", x.Host, x.Port, x.Verdict))
	}
	return out
}

func web(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return srv.Listener.Addr().String()
}

func TestAllowedRequestsPass(t *testing.T) {
	s := newScene(t, rulesOf(t, "good.test:80"))
	s.at("good.test", "203.0.113.10:80", web(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		w.Header().Set("X-Host", r.Host)
		_, _ = fmt.Fprintf(w, "%s %s %s %q", r.Method, r.RequestURI, r.UserAgent(), b)
	}))
	status, body, _ := s.get(t, "http://good.test/a%2Fb?q=1%20+2&x")
	if status != http.StatusOK || !strings.HasPrefix(body, "GET /a%2Fb?q=1%20+2&x Go-http-client") {
		t.Errorf("GET = %d %q", status, body)
	}
	// A body of known length, a chunked one, and one that waits to be asked for.
	for _, head := range []string{
		"Content-Length: 5\r\n\r\nhello", "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
		"Content-Length: 5\r\nExpect: 100-continue\r\n\r\nhello",
	} {
		got := s.raw(t, "POST http://good.test/p HTTP/1.1\r\nHost: good.test\r\n"+head)
		if !strings.Contains(got, `POST /p  "hello"`) || !strings.Contains(got, "200 OK") {
			t.Errorf("%q: %q", head, got)
		}
	}
	waitFor(t, func() bool { all, _ := s.ledger.All(); return len(all) == 2 && all[0].Up > 0 && all[1].Up > 0 })
	seen, more := s.ledger.All()
	want := []Seen{
		{Host: "good.test", Port: 80, Address: "203.0.113.10", Method: "GET", Verdict: Allowed, Count: 1},
		{Host: "good.test", Port: 80, Address: "203.0.113.10", Method: "POST", Verdict: Allowed, Count: 3},
	}
	for i := range seen {
		if seen[i].Up == 0 || seen[i].Down == 0 {
			t.Errorf("no bytes counted: %+v", seen[i])
		}
		seen[i].Up, seen[i].Down = 0, 0
	}
	if fmt.Sprint(seen) != fmt.Sprint(want) || more != 0 {
		t.Errorf("ledger %+v more %d, want %+v", seen, more, want)
	}
}

func TestTunnelsCarryBothWays(t *testing.T) {
	s := newScene(t, rulesOf(t, "*.test:443"))
	l := listen(t)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		b, _ := io.ReadAll(c) // until the other side says that it is done
		_, _ = fmt.Fprintf(c, "heard %s", b)
		_ = c.Close()
	}()
	s.at("echo.test", "203.0.113.10:443", l.Addr().String())
	c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	// What comes right behind the head belongs to the tunnel.
	_, _ = io.WriteString(c, "CONNECT echo.test:443 HTTP/1.1\r\nHost: echo.test:443\r\n\r\nfirst ")
	br := bufio.NewReader(c)
	if line, err := br.ReadString('\n'); line != "HTTP/1.1 200 Connection established\r\n" || err != nil {
		t.Fatalf("CONNECT = %q, %v", line, err)
	}
	if line, err := br.ReadString('\n'); line != "\r\n" || err != nil {
		t.Fatalf("CONNECT goes on with %q, %v", line, err)
	}
	_, _ = io.WriteString(c, "second")
	_ = c.(*net.TCPConn).CloseWrite()
	if b, err := io.ReadAll(br); string(b) != "heard first second" || err != nil {
		t.Errorf("the tunnel says %q, %v", b, err)
	}
}

// TestEveryOtherDestinationIsRefused is the heart of the list: each destination is refused,
// nothing is dialled, names that are not listed are not even looked up, and the ledger has
// all of them.
func TestEveryOtherDestinationIsRefused(t *testing.T) {
	own := netip.MustParseAddr("198.51.100.77")
	s := newScene(t, rulesOf(t, "*.listed.test", "exact.test:8443"), func(h *Host) { h.Own = func() []netip.Addr { return []netip.Addr{own} } })
	for name, addr := range map[string]string{
		"loop": "127.0.0.1", "loop2": "127.255.0.9", "ten": "10.1.2.3", "docker": "172.17.0.1", "lan": "192.168.1.1", "metadata": "169.254.169.254",
		"cgnat": "100.64.0.1", "zero": "0.0.0.0", "multicast": "224.0.0.251", "broadcast": "255.255.255.255", "own": own.String(),
		"six": "::1", "mapped": "::ffff:127.0.0.1", "mapped2": "::ffff:169.254.169.254", "ula": "fd00::1", "local6": "fe80::1", "sixtofour": "2002:7f00:1::",
		"nat64": "64:ff9b::a9fe:a9fe", "multicast6": "ff02::1", "compat": "::127.0.0.1",
	} {
		s.names[name+".listed.test"] = [][]netip.Addr{{netip.MustParseAddr(addr)}}
		no := s.raw(t, fmt.Sprintf("CONNECT %s.listed.test:443 HTTP/1.1\r\nHost: %[1]s.listed.test:443\r\n\r\n", name))
		if !strings.HasPrefix(no, "HTTP/1.1 403 ") || !strings.Contains(no, "Paddock-Verdict: address_refused") {
			t.Errorf("a name that leads to %s: %q", addr, no)
		}
	}
	resolved, _ := s.asked()
	for target, want := range map[string]Verdict{
		"other.test:443": HostRefused, "listed.test:443": HostRefused, "evil.listed.test.other.test:443": HostRefused,
		"exact.test:443": PortRefused, "a.listed.test:22": PortRefused,
		"203.0.113.10:443": HostRefused, "127.0.0.1:443": HostRefused, "169.254.169.254:80": HostRefused, "[::1]:443": HostRefused,
		"[2001:db8::1]:443": HostRefused, "[::ffff:127.0.0.1]:443": HostRefused,
		"localhost:443": HostRefused,
		"127.1:443":     BadRequest, "0x7f.0.0.1:443": BadRequest, "0x7f000001:443": BadRequest, "017700000001:443": BadRequest, "2130706433:443": BadRequest,
		"127.0.0.1.:443": BadRequest, "[fe80::1%25lo]:443": BadRequest, "[fe80::1%lo]:443": BadRequest, "[127.0.0.1]:443": BadRequest,
		"a.listed.test": BadRequest, "a.listed.test:": BadRequest, "a.listed.test:0": BadRequest, "a.listed.test:https": BadRequest,
		"user@a.listed.test:443": BadRequest, "a.listed.test:443@other.test:443": BadRequest, "a.listed.test\x00.other.test:443": BadRequest,
		"bücher.listed.test:443": BadRequest, "http://a.listed.test/": BadRequest, "": BadRequest,
	} {
		no := s.raw(t, "CONNECT "+target+" HTTP/1.1\r\nHost: "+target+"\r\n\r\n")
		if !strings.Contains(no, "Paddock-Verdict: "+string(want)+"\r\n") {
			t.Errorf("CONNECT %q: %q, want %s", target, no, want)
		}
	}
	lookups, dialled := s.asked()
	if len(dialled) > 0 {
		t.Errorf("dialled %q", dialled)
	}
	if len(lookups) != len(resolved) {
		t.Errorf("looked up %q, which no entry covers", lookups[len(resolved):])
	}
	got := strings.Join(s.verdicts(), "\n")
	for _, want := range []string{"metadata.listed.test:443 address_refused", "other.test:443 host_refused", "127.0.0.1:443 host_refused", "exact.test:443 port_refused", "::1:443 host_refused"} {
		if !strings.Contains(got, want) {
			t.Errorf("the ledger lacks %q:\n%s", want, got)
		}
	}
}

// TestRebindingFindsNoSecondAnswer has a resolver that gives a good address first and the
// loopback's after that: a request is dialled where it was judged, and looked up once.
func TestRebindingFindsNoSecondAnswer(t *testing.T) {
	s := newScene(t, rulesOf(t, "rebind.test"))
	good, bad := netip.MustParseAddr("203.0.113.10"), netip.MustParseAddr("127.0.0.1")
	s.names["rebind.test"] = [][]netip.Addr{{good}, {bad}}
	s.real["203.0.113.10:80"] = web(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "good") })
	s.real["127.0.0.1:80"] = web(t, func(http.ResponseWriter, *http.Request) { t.Error("the loopback was reached") })
	if _, body, _ := s.get(t, "http://rebind.test/"); body != "good" {
		t.Errorf("first: %q", body)
	}
	if lookups, dialled := s.asked(); len(lookups) != 1 || fmt.Sprint(dialled) != "[203.0.113.10:80]" {
		t.Errorf("looked up %q, dialled %q: want one of each", lookups, dialled)
	}
	if status, _, verdict := s.get(t, "http://rebind.test/"); status != http.StatusForbidden || verdict != string(AddressRefused) {
		t.Errorf("second: %d %s, want it refused for its address", status, verdict)
	}
	// An answer of both is used for what is good of it.
	s.names["rebind.test"] = [][]netip.Addr{{bad, good}}
	if _, body, _ := s.get(t, "http://rebind.test/"); body != "good" {
		t.Errorf("third: %q", body)
	}
}

func TestRedirectsAreJudgedAnew(t *testing.T) {
	s := newScene(t, rulesOf(t, "a.test", "b.test"))
	var to atomic.Value
	to.Store("http://b.test/end")
	s.at("a.test", "203.0.113.10:80", web(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, to.Load().(string), http.StatusFound)
	}))
	s.at("b.test", "203.0.113.11:80", web(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "end") }))
	if _, body, _ := s.get(t, "http://a.test/"); body != "end" {
		t.Errorf("a redirect to an allowed host: %q", body)
	}
	for _, url := range []string{"http://169.254.169.254/latest/meta-data/", "http://evil.test/", "http://[::1]/", "http://b.test:22/"} {
		to.Store(url)
		if status, body, verdict := s.get(t, "http://a.test/"); status != http.StatusForbidden || verdict == "" {
			t.Errorf("a redirect to %s: %d %q", url, status, body)
		}
	}
	if _, dialled := s.asked(); len(dialled) != 2+4 {
		t.Errorf("dialled %q", dialled)
	}
}

func TestGrantedRanges(t *testing.T) {
	s := newScene(t, rulesOf(t, "db.test:80,5432", "10.1.0.0/16:80"))
	s.at("db.test", "10.1.2.3:80", web(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Host) }))
	for _, host := range []string{"db.test", "10.1.2.3"} {
		if _, body, _ := s.get(t, "http://"+host+"/"); body != host {
			t.Errorf("%s: %q", host, body)
		}
	}
	for target, want := range map[string]Verdict{"db.test:5432": AddressRefused, "10.2.0.1:80": HostRefused, "10.1.2.3:5432": PortRefused} {
		if no := s.raw(t, "CONNECT "+target+" HTTP/1.1\r\nHost: "+target+"\r\n\r\n"); !strings.Contains(no, "Paddock-Verdict: "+string(want)) {
			t.Errorf("%s: %q, want %s", target, no, want)
		}
	}
}

// TestAnyHostIsNoWayToTheHostItself: with Any every name is let through, and no name or
// address to what the ranges refuse or to the host's own.
func TestAnyHostIsNoWayToTheHostItself(t *testing.T) {
	rules := rulesOf(t, "10.1.0.0/16")
	rules.Any = true
	s := newScene(t, rules, func(h *Host) { h.Own = func() []netip.Addr { return []netip.Addr{netip.MustParseAddr("203.0.113.1")} } })
	answer := web(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Host) })
	s.at("a.test", "203.0.113.7:8080", answer)
	s.at("granted.test", "10.1.2.3:80", answer)
	for name, addr := range map[string]string{"own.test": "203.0.113.1:80", "loop.test": "127.0.0.1:80", "meta.test": "169.254.169.254:80", "inner.test": "10.2.0.1:80"} {
		s.at(name, addr, answer)
	}
	for _, host := range []string{"a.test:8080", "203.0.113.7:8080", "granted.test", "10.1.2.3"} {
		if status, body, _ := s.get(t, "http://"+host+"/"); body != host {
			t.Errorf("%s: %d %q, want it reached", host, status, body)
		}
	}
	_, before := s.asked()
	for _, host := range []string{"own.test", "loop.test", "meta.test", "inner.test", "203.0.113.1", "127.0.0.1", "169.254.169.254", "10.2.0.1", "[::1]"} {
		if status, body, verdict := s.get(t, "http://"+host+"/"); verdict != string(AddressRefused) {
			t.Errorf("%s: %d %q, verdict %q, want address_refused", host, status, body, verdict)
		}
	}
	if _, after := s.asked(); len(after) != len(before) {
		t.Errorf("dialled %q", after[len(before):])
	}
}

// TestAmbiguousRequestsAreRefused: nothing that two programs could read differently travels.
func TestAmbiguousRequestsAreRefused(t *testing.T) {
	s := newScene(t, rulesOf(t, "good.test"))
	s.at("good.test", "203.0.113.10:80", web(t, func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("it was forwarded: %v %v", r.RequestURI, r.Header)
	}))
	const line, host = "POST http://good.test/ HTTP/1.1\r\n", "Host: good.test\r\n"
	for name, text := range map[string]string{
		"TRACE":                 "TRACE http://good.test/ HTTP/1.1\r\n" + host + "\r\n",
		"track":                 "track http://good.test/ HTTP/1.1\r\n" + host + "\r\n",
		"length and coding":     line + host + "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"two lengths":           line + host + "Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcde",
		"two equal lengths":     line + host + "Content-Length: 4, 4\r\n\r\nabcd",
		"a signed length":       line + host + "Content-Length: +4\r\n\r\nabcd",
		"a negative length":     line + host + "Content-Length: -1\r\n\r\n",
		"an obscure coding":     line + host + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
		"two codings":           line + host + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
		"coding twice":          line + host + "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
		"coding with a tab":     line + host + "Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
		"coding in 1.0":         "POST http://good.test/ HTTP/1.0\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"blank before colon":    line + host + "Content-Length : 4\r\n\r\nabcd",
		"a folded line":         line + host + "X: a\r\n Content-Length: 4\r\n\r\nabcd",
		"bare LF":               line + host + "X: a\nContent-Length: 4\r\n\r\nabcd",
		"bare LF at the end":    line + host + "X: a\n\n",
		"bare CR":               line + host + "X: a\rContent-Length: 4\r\n\r\nabcd",
		"NUL":                   line + host + "X: a\x00b\r\n\r\n",
		"no name":               line + host + ": b\r\n\r\n",
		"no colon":              line + host + "nothing\r\n\r\n",
		"another host":          line + "Host: evil.test\r\n\r\n",
		"another port":          line + "Host: good.test:8080\r\n\r\n",
		"two hosts":             line + host + "Host: evil.test\r\n\r\n",
		"no host":               line + "\r\n",
		"a user":                "GET http://good.test@evil.test/ HTTP/1.1\r\n" + host + "\r\n",
		"a user before":         "GET http://evil.test@good.test/ HTTP/1.1\r\n" + host + "\r\n",
		"a backslash":           "GET http://good.test\\@evil.test/ HTTP/1.1\r\n" + host + "\r\n",
		"a fragment":            "GET http://good.test/#@evil.test/ HTTP/1.1\r\n" + host + "\r\n",
		"origin form":           "GET / HTTP/1.1\r\n" + host + "\r\n",
		"https":                 "GET https://good.test/ HTTP/1.1\r\n" + host + "\r\n",
		"ftp":                   "GET ftp://good.test/ HTTP/1.1\r\n" + host + "\r\n",
		"asterisk":              "OPTIONS * HTTP/1.1\r\n" + host + "\r\n",
		"an escaped host":       "GET http://good%2etest/ HTTP/1.1\r\n" + host + "\r\n",
		"a raw byte":            "GET http://good.test/\xff HTTP/1.1\r\n" + host + "\r\n",
		"two blanks":            "GET  http://good.test/ HTTP/1.1\r\n" + host + "\r\n",
		"a blank in the target": "GET http://good.test/ x HTTP/1.1\r\n" + host + "\r\n",
		"version 2":             "GET http://good.test/ HTTP/2.0\r\n" + host + "\r\n",
		"version 0.9":           "GET http://good.test/\r\n\r\n",
		"a version in disguise": "GET http://good.test/ HTTP/1.1x\r\n" + host + "\r\n",
		"no method":             " http://good.test/ HTTP/1.1\r\n" + host + "\r\n",
		"a method in brackets":  "GE(T http://good.test/ HTTP/1.1\r\n" + host + "\r\n",
		"an expectation":        line + host + "Expect: 200-ok\r\n\r\n",
		"CONNECT with a body":   "CONNECT good.test:80 HTTP/1.1\r\nHost: good.test\r\nContent-Length: 4\r\n\r\nabcd",
		"a large header":        line + host + "X: " + strings.Repeat("a", 40<<10) + "\r\n\r\n",
		"many headers":          line + host + strings.Repeat("X: a\r\n", 200) + "\r\n",
		"large headers":         line + host + strings.Repeat("X: "+strings.Repeat("a", 1000)+"\r\n", 40) + "\r\n",
		"a long target":         "GET http://good.test/" + strings.Repeat("a", 17<<10) + " HTTP/1.1\r\n" + host + "\r\n",
		"an empty line first":   "\r\n" + line + host + "\r\n",
		"TLS":                   "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
	} {
		if got := s.raw(t, text); !strings.HasPrefix(got, "HTTP/1.1 400 ") || !strings.Contains(got, "Paddock-Verdict: bad_request") || strings.Count(got, "HTTP/1.1 ") != 1 {
			t.Errorf("%s: %.300q", name, got)
		}
	}
}

// TestOneRequestAConnection: what comes behind a request is never a request of its own.
func TestOneRequestAConnection(t *testing.T) {
	s := newScene(t, rulesOf(t, "good.test"))
	var n atomic.Int64
	s.at("good.test", "203.0.113.10:80", web(t, func(w http.ResponseWriter, r *http.Request) {
		n.Add(1)
		b, _ := io.ReadAll(r.Body)
		_, _ = w.Write(b)
	}))
	got := s.raw(t, "POST http://good.test/ HTTP/1.1\r\nHost: good.test\r\nContent-Length: 2\r\n\r\nhiGET http://evil.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n")
	if n.Load() != 1 || strings.Count(got, "HTTP/1.1 ") != 1 || !strings.HasSuffix(got, "\r\n\r\nhi") || !strings.Contains(got, "Connection: close") {
		t.Errorf("%d requests, answer %q", n.Load(), got)
	}
	if v := s.verdicts(); len(v) != 1 {
		t.Errorf("ledger %q, want one line", v)
	}
}

func TestHeadersOfTheHopDoNotTravel(t *testing.T) {
	s := newScene(t, rulesOf(t, "good.test"))
	l := listen(t)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		r, err := http.ReadRequest(bufio.NewReader(c))
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = io.WriteString(c, "HTTP/1.1 200 Good\r\nConnection: X-Answer\r\nX-Answer: hop\r\nX-Kept: yes\r\nKeep-Alive: 5\r\n\r\n")
		for name := range r.Header {
			_, _ = fmt.Fprintln(c, name)
		}
		_ = c.Close()
	}()
	s.at("good.test", "203.0.113.10:80", l.Addr().String())
	got := s.raw(t, "GET http://good.test/ HTTP/1.1\r\nHost: good.test\r\nProxy-Authorization: Basic x\r\nConnection: X-Hop, Upgrade\r\nX-Hop: 1\r\nUpgrade: websocket\r\nTE: trailers\r\nX-End: 1\r\n\r\n")
	_, body, _ := strings.Cut(got, "\r\n\r\n")
	if strings.TrimSpace(body) != "X-End" && strings.TrimSpace(body) != "Connection\nX-End" && strings.TrimSpace(body) != "X-End\nConnection" {
		t.Errorf("the service saw the headers %q", body)
	}
	if strings.Contains(got, "X-Answer") || !strings.Contains(got, "X-Kept: yes") {
		t.Errorf("the client saw %q", got)
	}
}

func TestBudgetsCutOff(t *testing.T) {
	flood := func(w http.ResponseWriter, _ *http.Request) {
		buf := make([]byte, 64<<10)
		for range 64 {
			if _, err := w.Write(buf); err != nil {
				return
			}
		}
	}
	t.Run("requests", func(t *testing.T) {
		r := rulesOf(t, "good.test")
		r.Limits.Requests = 3
		s := newScene(t, r)
		s.at("good.test", "203.0.113.10:80", web(t, func(http.ResponseWriter, *http.Request) {}))
		for i := range 5 {
			status, _, verdict := s.get(t, "http://good.test/")
			if i < 3 && status != http.StatusOK || i >= 3 && (status != http.StatusTooManyRequests || verdict != string(BudgetRequests)) {
				t.Errorf("request %d: %d %s", i, status, verdict)
			}
		}
	})
	t.Run("bytes down", func(t *testing.T) {
		r := rulesOf(t, "good.test")
		r.Limits.BytesDown = 1 << 20
		s := newScene(t, r)
		s.at("good.test", "203.0.113.10:80", web(t, flood))
		if got := s.raw(t, "GET http://good.test/ HTTP/1.1\r\nHost: good.test\r\n\r\n"); len(got) > 1<<20+4096 || len(got) < 1<<19 {
			t.Errorf("%d bytes came, want about 1 MiB", len(got))
		}
		if status, _, verdict := s.get(t, "http://good.test/"); status != http.StatusTooManyRequests || verdict != string(BudgetBytes) {
			t.Errorf("after the budget: %d %s", status, verdict)
		}
		if v := strings.Join(s.verdicts(), ", "); !strings.Contains(v, "good.test:80 budget_bytes") {
			t.Errorf("ledger: %s", v)
		}
	})
	t.Run("bytes up", func(t *testing.T) {
		r := rulesOf(t, "good.test")
		r.Limits.BytesUp = 1 << 20
		s := newScene(t, r)
		var got atomic.Int64
		s.at("good.test", "203.0.113.10:80", web(t, func(_ http.ResponseWriter, r *http.Request) {
			n, _ := io.Copy(io.Discard, r.Body)
			got.Store(n)
		}))
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://good.test/", bytes.NewReader(make([]byte, 8<<20)))
		if resp, err := s.client().Do(req); err == nil {
			if resp.StatusCode != http.StatusTooManyRequests {
				t.Errorf("POST = %s", resp.Status)
			}
			_ = resp.Body.Close()
		}
		if n := got.Load(); n > 1<<20 {
			t.Errorf("%d bytes got out, want at most 1 MiB", n)
		}
	})
	t.Run("rate", func(t *testing.T) {
		b := newBudget(Limits{PerSecond: 10, Connections: 1})
		now := b.last
		for range 20 { // what comes at once
			if d := b.pace(now); d > 0 {
				t.Fatalf("the burst waits %s", d)
			}
		}
		if d := b.pace(now); d != 100*time.Millisecond {
			t.Errorf("the next waits %s, want 100ms", d)
		}
		if d := b.pace(now.Add(time.Hour)); d != 0 {
			t.Errorf("after an hour one waits %s", d)
		}
	})
	t.Run("silence", func(t *testing.T) {
		r := rulesOf(t, "good.test")
		r.Limits.Idle = 50 * time.Millisecond
		s := newScene(t, r)
		over := make(chan struct{})
		s.at("good.test", "203.0.113.10:80", web(t, func(_ http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
			close(over)
		}))
		got := s.raw(t, "CONNECT good.test:80 HTTP/1.1\r\nHost: good.test\r\n\r\nGET / HTTP/1.1\r\nHost: good.test\r\n\r\n")
		<-over
		if !strings.HasPrefix(got, "HTTP/1.1 200 ") {
			t.Errorf("%q", got)
		}
		waitFor(t, func() bool { return strings.Contains(strings.Join(s.verdicts(), ", "), "budget_time") })
	})
	t.Run("age", func(t *testing.T) {
		r := rulesOf(t, "good.test")
		r.Limits.Life = 50 * time.Millisecond
		s := newScene(t, r)
		s.at("good.test", "203.0.113.10:80", web(t, func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				_, _ = io.WriteString(w, "x")
				w.(http.Flusher).Flush()
			}
		}))
		s.raw(t, "GET http://good.test/ HTTP/1.1\r\nHost: good.test\r\n\r\n")
		waitFor(t, func() bool { return strings.Contains(strings.Join(s.verdicts(), ", "), "budget_time") })
	})
	t.Run("connections", func(t *testing.T) {
		r := rulesOf(t, "good.test")
		r.Limits.Connections = 2
		s := newScene(t, r)
		var now, most atomic.Int64
		s.at("good.test", "203.0.113.10:80", web(t, func(http.ResponseWriter, *http.Request) {
			most.Store(max(most.Load(), now.Add(1)))
			<-time.After(time.Millisecond)
			now.Add(-1)
		}))
		var wg sync.WaitGroup
		for range 12 {
			wg.Go(func() { s.get(t, "http://good.test/") })
		}
		wg.Wait()
		if most.Load() > 2 {
			t.Errorf("%d at once, want 2", most.Load())
		}
	})
}

func waitFor(t *testing.T, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal("it did not happen")
		}
	}
}

// TestCloseEndsEverything: a tunnel that is open, and a client that sends nothing.
func TestCloseEndsEverything(t *testing.T) {
	out := newOutside()
	h := &Host{Resolver: out, Dialer: out}
	l, far := listen(t), listen(t)
	t.Cleanup(func() { _ = far.Close() })
	out.at("good.test", "203.0.113.10:443", far.Addr().String())
	p, err := h.Proxy(l, rulesOf(t, "good.test"), NewLedger())
	if err != nil {
		t.Fatal(err)
	}
	silent, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	open, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = open.Close() }()
	_, _ = io.WriteString(open, "CONNECT good.test:443 HTTP/1.1\r\nHost: good.test\r\n\r\n")
	if line, err := bufio.NewReader(open).ReadString('\n'); !strings.Contains(line, "200") {
		t.Fatalf("%q, %v", line, err)
	}
	for range 2 {
		if err := p.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	for _, c := range []net.Conn{silent, open} {
		_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
		if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error("a connection outlived the proxy")
		}
	}
}

func TestLedgerIsBounded(t *testing.T) {
	l := NewLedger()
	for i := range 3 * MaxSeen {
		l.add(Seen{Host: fmt.Sprintf("h%d.test", i), Port: 443, Verdict: HostRefused, Count: 1})
	}
	l.add(Seen{Host: "h1.test", Port: 443, Verdict: HostRefused, Count: 1})
	all, more := l.All()
	if len(all) != MaxSeen || more != 2*MaxSeen || l.Refused() != 3*MaxSeen+1 {
		t.Errorf("%d listed, %d more, %d refused", len(all), more, l.Refused())
	}
	fresh, more := l.Fresh(10)
	if len(fresh) != 10 || more < 3*MaxSeen-10 {
		t.Errorf("%d fresh, %d more", len(fresh), more)
	}
	if fresh, more = l.Fresh(10); fresh != nil || more != 0 {
		t.Errorf("again: %d fresh, %d more", len(fresh), more)
	}
	l.add(Seen{Host: "a\x1b[2J" + strings.Repeat("é", 500), Method: "G\nT", Verdict: BadRequest, Count: 1})
	for _, s := range func() []Seen { s, _ := l.Fresh(10); return s }() {
		if len(s.Host) > maxHostText || strings.ContainsAny(s.Host+s.Method, "\x1b\né") {
			t.Errorf("the ledger keeps %q %q", s.Host, s.Method)
		}
	}
}

func TestSecretsStayOutside(t *testing.T) {
	const value = "Bearer hush-hush"
	dir := t.TempDir()
	file := filepath.Join(dir, "secrets.json")
	text := `{"secrets": [
		{"name": "plain", "hosts": ["plain.test:8080"], "header": "X-Key", "value": "` + value + `"},
		{"name": "tls", "hosts": ["example.com:443"], "header": "Authorization", "value": "` + value + `", "tls": true},
		{"name": "unused", "hosts": ["*:1"], "header": "X-Key", "value": "nobody asked"}]}`
	if _, err := parseSecrets([]byte(text)); err == nil {
		t.Error("a secret for every host is taken")
	}
	text = strings.Replace(text, `"*:1"`, `"plain.test"`, 1)
	if err := os.WriteFile(file, []byte(text), 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadSecrets(file); err == nil || strings.Contains(err.Error(), "hush") {
		t.Errorf("a file that others may read: %v", err)
	}
	if err := os.Chmod(file, 0o600); err != nil {
		t.Fatal(err)
	}
	secrets, err := ReadSecrets(file)
	if err != nil {
		t.Fatal(err)
	}
	show := func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprintf(w, "tls=%v %s key=%q auth=%q", r.TLS != nil, r.Host, r.Header["X-Key"], r.Header["Authorization"])
	}
	secure := httptest.NewTLSServer(http.HandlerFunc(show))
	t.Cleanup(secure.Close)
	rules := rulesOf(t, "plain.test:*", "example.com:443", "other.test")
	rules.Secrets = []string{"plain", "tls"}
	s := newScene(t, rules, func(h *Host) {
		h.Secrets, h.Roots = secrets, x509.NewCertPool()
		h.Roots.AddCert(secure.Certificate())
	})
	shown := web(t, show)
	s.at("plain.test", "203.0.113.10:8080", shown)
	s.real["203.0.113.10:80"] = shown
	s.at("other.test", "203.0.113.11:80", shown)
	s.at("example.com", "203.0.113.12:443", secure.Listener.Addr().String())
	for url, want := range map[string]string{
		"http://plain.test:8080/": `tls=false plain.test:8080 key=["` + value + `"] auth=[]`,
		"http://plain.test/":      `tls=false plain.test key=[] auth=[]`, // another port
		"http://other.test/":      `tls=false other.test key=[] auth=[]`,
		"http://example.com/v1":   `tls=true example.com key=[] auth=["` + value + `"]`,
	} {
		if _, body, _ := s.get(t, url); body != want {
			t.Errorf("%s: %s, want %s", url, body, want)
		}
	}
	// Nor does a service that implements TRACE tell it.
	if got := s.raw(t, "TRACE http://plain.test:8080/ HTTP/1.1\r\nHost: plain.test:8080\r\n\r\n"); strings.Contains(got, "hush") || !strings.HasPrefix(got, "HTTP/1.1 400 ") {
		t.Errorf("TRACE: %q", got)
	}
	// The agent's own header is replaced, not joined.
	if got := s.raw(t, "GET http://plain.test:8080/ HTTP/1.1\r\nHost: plain.test:8080\r\nx-key: mine\r\n\r\n"); strings.Contains(got, "mine") || !strings.Contains(got, value) {
		t.Errorf("with a header of its own: %q", got)
	}
	all, _ := s.ledger.All()
	if strings.Contains(fmt.Sprint(all), "hush") {
		t.Errorf("the ledger holds the secret: %v", all)
	}
	if _, err := s.host.Proxy(listen(t), Rules{Secrets: []string{"nosuch"}, Limits: testLimits}, NewLedger()); err == nil {
		t.Error("a secret that is not there is taken")
	}
	// A certificate for another name ends it.
	s.host.Roots = x509.NewCertPool()
	if status, body, _ := s.get(t, "http://example.com/"); status != http.StatusBadGateway || strings.Contains(body, "hush") {
		t.Errorf("with a certificate that nobody trusts: %d %q", status, body)
	}
}

// FuzzRequest: what is accepted goes out as one request that everybody reads alike.
func FuzzRequest(f *testing.F) {
	for _, s := range []string{
		"GET http://good.test/a?b HTTP/1.1\r\nHost: good.test\r\nX: y\r\n\r\n",
		"CONNECT good.test:443 HTTP/1.1\r\nHost: good.test:443\r\n\r\n",
		"POST http://[2001:db8::1]:8080/ HTTP/1.1\r\nHost: [2001:db8::1]:8080\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"POST http://good.test/ HTTP/1.0\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\nabc",
		"GET http://good.test HTTP/1.1\r\nHost: good.test:80\r\nConnection: x, close\r\n\r\n",
		"GET http://u@good.test/ HTTP/1.1\r\nHost: good.test\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		head, err := readHead(bufio.NewReaderSize(bytes.NewReader(in), 16<<10), 32<<10)
		if err != nil {
			return
		}
		r, no := parseHead(head)
		if no != nil {
			if statuses[no.verdict] == "" || strings.Count(string(no.answer()), "\r\n\r\n") < 1 {
				t.Errorf("a refusal without a status: %v", no)
			}
			return
		}
		if r.target.port == 0 || (r.target.name == "") == !r.target.addr.IsValid() {
			t.Fatalf("a target of nothing: %+v", r.target)
		}
		if r.connect {
			return
		}
		req := r.outgoing(t.Context(), injection{}, &body{br: bufio.NewReader(strings.NewReader("0\r\n\r\n")), r: &request{length: r.length}})
		if r.length > 0 {
			req.ContentLength, req.Body = 0, nil
		}
		var out bytes.Buffer
		if err := req.Write(&out); err != nil {
			t.Fatalf("%q does not go out: %v", in, err)
		}
		sent := out.String()
		br := bufio.NewReader(&out)
		got, err := http.ReadRequest(br)
		if err != nil {
			t.Fatalf("%q goes out as %q: %v", in, sent, err)
		}
		if _, err := io.Copy(io.Discard, got.Body); err != nil || br.Buffered() > 0 {
			t.Fatalf("%q goes out as %q, with %d bytes behind it (%v)", in, sent, br.Buffered(), err)
		}
		if got.Host != r.target.authority(80) || got.Method != r.method {
			t.Fatalf("%q goes out as %s to %q", in, got.Method, got.Host)
		}
	})
}
