package daemon

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/paddock-run/paddock/api"
)

const (
	aliceToken = "alice-0123456789-0123456789-0123456789"
	bobToken   = "bob-9876543210-9876543210-9876543210-98"
)

// secrets are the files of a listener for other hosts.
type secrets struct {
	dir, cert, key, tokens string
}

// newSecrets makes a certificate for 127.0.0.1 and trainer.test, and tokens for alice and bob.
func newSecrets(tb testing.TB) secrets {
	tb.Helper()
	dir := tb.TempDir()
	s := secrets{dir: dir, cert: filepath.Join(dir, "cert.pem"), key: filepath.Join(dir, "key.pem"), tokens: filepath.Join(dir, "tokens")}
	s.certify(tb, x509.Certificate{DNSNames: []string{"trainer.test"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}})
	s.write(tb, s.tokens, "# tokens\nalice "+aliceToken+"\n\nbob "+bobToken+"\n")
	return s
}

func (s secrets) certify(tb testing.TB, template x509.Certificate) {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	template.IsCA, template.BasicConstraintsValid = true, true
	cert, err := x509.CreateCertificate(rand.Reader, &template, &template, key.Public(), key)
	if err != nil {
		tb.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		tb.Fatal(err)
	}
	s.write(tb, s.cert, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})))
	s.write(tb, s.key, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})))
}

// write replaces a file, as those who rotate secrets do.
func (s secrets) write(tb testing.TB, file, text string) {
	tb.Helper()
	if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		tb.Fatal(err)
	}
}

func (s secrets) options() RemoteOptions {
	return RemoteOptions{Address: "127.0.0.1:0", CertFile: s.cert, KeyFile: s.key, TokenFile: s.tokens}
}

// client is one of another host that has this token.
func (s secrets) client(tb testing.TB, f *front, token string) *api.Client {
	tb.Helper()
	file := filepath.Join(s.dir, "token-of-a-client")
	s.write(tb, file, token)
	c := api.Connect(api.Target{Host: f.RemoteAddr().String(), TokenFile: file, CAFile: s.cert})
	tb.Cleanup(c.Close)
	return c
}

func serveRemote(tb testing.TB) (*front, secrets) {
	tb.Helper()
	s := newSecrets(tb)
	return serve(tb, func(c *Config) { c.Remote = s.options() }), s
}

func TestTokensMapToTenants(t *testing.T) {
	t.Parallel()
	f, s := serveRemote(t)
	alice, bob := s.client(t, f, "alice "+aliceToken+"\n"), s.client(t, f, bobToken)
	run, err := alice.OpenRun(t.Context(), api.RunSpec{Name: "exp"})
	if err != nil || run.Owner != "alice" {
		t.Fatalf("OpenRun() = %+v, %v; want alice's", run, err)
	}
	for name, c := range map[string]*api.Client{"bob": bob, "root of the host": f.client} {
		if runs, err := c.Runs(t.Context()); err != nil || len(runs) != 0 {
			t.Errorf("%s sees alice's runs: %+v, %v", name, runs, err)
		}
	}
	if _, err := bob.OpenRun(t.Context(), api.RunSpec{Name: "exp"}); err != nil {
		t.Errorf("bob's own run of that name: %v", err)
	}
	if c, err := bob.Capacity(t.Context()); err != nil || c.Sandboxes != nil {
		t.Errorf("bob sees the names of everybody's sandboxes: %+v, %v", c, err)
	}
}

// ask sends one request over TLS as it is, and reads the problem of its answer.
func (s secrets) ask(tb testing.TB, f *front, method, path, body string, headers ...string) (int, api.Kind, http.Header) {
	tb.Helper()
	pool := x509.NewCertPool()
	text, err := os.ReadFile(s.cert)
	if err != nil || !pool.AppendCertsFromPEM(text) {
		tb.Fatal("no certificate", err)
	}
	d := tls.Dialer{Config: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS13}}
	conn, err := d.DialContext(tb.Context(), "tcp", f.RemoteAddr().String())
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	host, media := "127.0.0.1", api.MediaJSON
	var extra strings.Builder
	for _, h := range headers {
		if after, ok := strings.CutPrefix(h, "Host: "); ok {
			host = after
			continue
		}
		if after, ok := strings.CutPrefix(h, "Content-Type: "); ok {
			media = after
			continue
		}
		extra.WriteString(h + "\r\n")
	}
	fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: %s\r\n%sContent-Type: %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s",
		method, path, host, extra.String(), media, len(body), body)
	a, got := readAnswer(tb, conn)
	return a.StatusCode, kindOf(tb, got), a.Header
}

// kindOf is the kind of a problem, or "" of a body that is none.
func kindOf(tb testing.TB, body []byte) api.Kind {
	tb.Helper()
	var p struct {
		Kind api.Kind `json:"kind"`
	}
	if err := json.Unmarshal(body, &p); err != nil {
		tb.Fatalf("%v: %s", err, body)
	}
	return p.Kind
}

func TestRemoteRequestsThatAreRefusedSayWhy(t *testing.T) {
	t.Parallel()
	f, s := serveRemote(t)
	good := "Authorization: Bearer " + aliceToken
	for _, c := range []struct {
		name, method, path, body string
		headers                  []string
		status                   int
		kind                     api.Kind
	}{
		{"a good one", "GET", "/v1/version", "", []string{good}, 200, ""},
		{"under the certificate's other name", "GET", "/v1/version", "", []string{good, "Host: trainer.test:7443"}, 200, ""},
		{"the scheme in another case", "GET", "/v1/version", "", []string{"Authorization: bearer " + aliceToken}, 200, ""},
		{"no token", "GET", "/v1/version", "", nil, 401, api.Unauthenticated},
		{"no token, not even for health", "GET", "/healthz", "", nil, 401, api.Unauthenticated},
		{"a wrong token", "GET", "/v1/version", "", []string{good + "x"}, 401, api.Unauthenticated},
		{"the start of a token", "GET", "/v1/version", "", []string{good[:len(good)-1]}, 401, api.Unauthenticated},
		{"another scheme", "GET", "/v1/version", "", []string{"Authorization: Basic " + aliceToken}, 401, api.Unauthenticated},
		{"an empty token", "GET", "/v1/version", "", []string{"Authorization: Bearer "}, 401, api.Unauthenticated},
		{"a name as token", "GET", "/v1/version", "", []string{"Authorization: Bearer alice"}, 401, api.Unauthenticated},
		{"a browser", "GET", "/v1/version", "", []string{good, "Origin: https://127.0.0.1"}, 403, api.ForeignOrigin},
		{"a browser's preflight", "OPTIONS", "/v1/runs", "", []string{"Origin: https://evil.test", "Access-Control-Request-Method: POST"}, 403, api.ForeignOrigin},
		{"a foreign host", "GET", "/v1/version", "", []string{good, "Host: evil.test"}, 403, api.ForeignOrigin},
		{"the socket's host", "GET", "/v1/version", "", []string{good, "Host: paddock"}, 403, api.ForeignOrigin},
		{"another address", "GET", "/v1/version", "", []string{good, "Host: 10.0.0.1"}, 403, api.ForeignOrigin},
		{"a directory of the host", "POST", "/v1/worlds", `{"dir":"/etc"}`, []string{good}, 403, api.PermissionDenied},
		{"an archive of the host", "POST", "/v1/imports", `{"path":"/etc/shadow"}`, []string{good}, 403, api.PermissionDenied},
		{"a tar of the host", "POST", "/v1/worlds", `{"tar":"/etc/shadow"}`, []string{good}, 403, api.PermissionDenied},
		{
			"a program of the host", "POST", "/v1/batches", `{"id":"b","episodes":[{"id":"e","world":"` + world + `","agent":{"host":["/bin/id"]}}]}`,
			[]string{good},
			403, api.PermissionDenied,
		},
	} {
		status, kind, h := s.ask(t, f, c.method, c.path, c.body, c.headers...)
		if status != c.status || kind != c.kind {
			t.Errorf("%s: %d %q, want %d %q", c.name, status, kind, c.status, c.kind)
		}
		if c.status == 401 && h.Get("WWW-Authenticate") == "" {
			t.Errorf("%s: no WWW-Authenticate", c.name)
		}
	}
}

func TestRemoteClientSaysWhatIsWrongWithItsTarget(t *testing.T) {
	t.Parallel()
	f, s := serveRemote(t)
	here := f.RemoteAddr().String()
	s.write(t, filepath.Join(s.dir, "alice"), aliceToken)
	s.write(t, filepath.Join(s.dir, "wrong"), strings.Repeat("x", 40))
	other := newSecrets(t)
	free, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := free.Addr().String()
	_ = free.Close()
	token := filepath.Join(s.dir, "alice")
	for _, c := range []struct {
		name   string
		target api.Target
		kind   api.Kind
		want   string
	}{
		{"an unknown authority", api.Target{Host: here, TokenFile: token, CAFile: other.cert}, api.Unavailable, "not trusted"},
		{"nobody there", api.Target{Host: nobody, TokenFile: token, CAFile: s.cert}, api.Unavailable, "refused"},
		{"no port", api.Target{Host: "127.0.0.1", TokenFile: token}, api.BadRequest, "HOST:PORT"},
		{"no token file", api.Target{Host: here, TokenFile: filepath.Join(s.dir, "none")}, api.Unauthenticated, "no such file"},
		{"a wrong token", api.Target{Host: here, TokenFile: filepath.Join(s.dir, "wrong"), CAFile: s.cert}, api.Unauthenticated, "not one of"},
		{"no certificates", api.Target{Host: here, TokenFile: token, CAFile: token}, api.BadRequest, "there are none"},
		{"two daemons", api.Target{Host: here, Socket: f.socket}, api.BadRequest, "one daemon"},
	} {
		client := api.Connect(c.target)
		_, err := client.Version(t.Context())
		wantKind(t, err, c.kind)
		if err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q in it", c.name, err, c.want)
		}
		client.Close()
	}
}

// A token that is taken away is refused from the next request on, a new one let in, and a
// file that is broken changes nothing.
func TestTokensAndCertificateAreReadAgain(t *testing.T) {
	t.Parallel()
	f, s := serveRemote(t)
	const carolToken = "carol-0123456789-0123456789-0123456789"
	alice, carol := s.client(t, f, aliceToken), s.client(t, f, carolToken)
	version := func(c *api.Client) error {
		_, err := c.Version(t.Context())
		return err
	}
	if err := version(alice); err != nil {
		t.Fatal(err)
	}
	wantKind(t, version(carol), api.Unauthenticated)
	s.write(t, s.tokens, "carol "+carolToken+"\n")
	wantKind(t, version(alice), api.Unauthenticated)
	if err := version(carol); err != nil {
		t.Error(err)
	}
	s.write(t, s.tokens, "nonsense\n")
	if err := version(carol); err != nil {
		t.Errorf("with a broken file: %v", err)
	}
	s.certify(t, x509.Certificate{DNSNames: []string{"trainer.test"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}})
	if err := version(s.client(t, f, carolToken)); err != nil {
		t.Errorf("with a new certificate: %v", err)
	}
}

func TestRemoteListenerIsRefusedWhereItWouldBeOpen(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spoil func(tb testing.TB, s secrets, o *RemoteOptions)
		want  string
	}{
		"no tokens":          {func(_ testing.TB, _ secrets, o *RemoteOptions) { o.TokenFile = "" }, "takes a certificate"},
		"no TLS":             {func(_ testing.TB, _ secrets, o *RemoteOptions) { o.CertFile, o.KeyFile = "", "" }, "takes a certificate"},
		"an open token file": {func(_ testing.TB, s secrets, _ *RemoteOptions) { _ = os.Chmod(s.tokens, 0o644) }, "others may read"},
		"an open key":        {func(_ testing.TB, s secrets, _ *RemoteOptions) { _ = os.Chmod(s.key, 0o640) }, "others may read"},
		"a short token":      {func(tb testing.TB, s secrets, _ *RemoteOptions) { tb.Helper(); s.write(tb, s.tokens, "alice secret\n") }, "6 characters, want 32"},
		"an empty file":      {func(tb testing.TB, s secrets, _ *RemoteOptions) { tb.Helper(); s.write(tb, s.tokens, "# none\n") }, "no token in it"},
		"a token of root":    {func(tb testing.TB, s secrets, _ *RemoteOptions) { tb.Helper(); s.write(tb, s.tokens, "0 "+aliceToken) }, "root"},
		"one token of two": {func(tb testing.TB, s secrets, _ *RemoteOptions) {
			tb.Helper()
			s.write(tb, s.tokens, "a "+aliceToken+"\nb "+aliceToken)
		}, "line 2: the token is an earlier line's too"},
		"a certificate of nobody": {func(tb testing.TB, s secrets, _ *RemoteOptions) { tb.Helper(); s.certify(tb, x509.Certificate{}) }, "names no host"},
	} {
		s := newSecrets(t)
		o := s.options()
		c.spoil(t, s, &o)
		if _, err := newRemote(o, nil); err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), aliceToken) {
			t.Errorf("%s: newRemote() = %v, want an error with %q and without a token", name, err, c.want)
		}
	}
}

// Connections without a token are few, short and nobody's: beside a thousand and more that
// say nothing, clients of the socket are answered.
func TestSilentStrangersEndAndLeaveRoom(t *testing.T) {
	t.Parallel()
	f, s := serveRemote(t)
	var d net.Dialer
	var silent []net.Conn
	for range maxStrangersOfHost + 20 {
		conn, err := d.DialContext(t.Context(), "tcp", f.RemoteAddr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		silent = append(silent, conn)
	}
	if _, err := f.client.Version(t.Context()); err != nil {
		t.Errorf("a client of the socket: %v", err)
	}
	for i, conn := range silent {
		_ = conn.SetReadDeadline(time.Now().Add(30 * time.Second))
		if _, err := conn.Read(make([]byte, 1)); err == nil || os.IsTimeout(err) {
			t.Fatalf("stranger %d: %v, want the connection closed", i, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for {
		_, err := s.client(t, f, aliceToken).Version(ctx)
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("when they are gone: %v", err)
		}
	}
}

// FuzzTokens feeds token files of any form: what is accepted has a tenant's name and a
// token that nobody guesses.
func FuzzTokens(f *testing.F) {
	f.Add([]byte("# c\nalice " + aliceToken + "\r\n1000 " + bobToken))
	f.Add([]byte("0 " + aliceToken))
	f.Add([]byte("a\tb c"))
	f.Fuzz(func(t *testing.T, data []byte) {
		all, err := parseTokens(data)
		if err != nil {
			for w := range strings.FieldsSeq(string(data)) {
				if len(w) >= minToken && strings.Contains(err.Error(), w) {
					t.Errorf("the error tells the token: %v", err)
				}
			}
			return
		}
		if len(all) == 0 {
			t.Error("no tokens, and no error")
		}
		for _, name := range all {
			if CheckTenant(name) != nil || name == rootTenant {
				t.Errorf("tenant %q", name)
			}
		}
	})
}
