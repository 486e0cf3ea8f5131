package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"maps"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"github.com/paddock-run/paddock/api"
	"github.com/paddock-run/paddock/internal/need"
)

// The addresses of the fake internet, all of them in a namespace of the test's alone. up is
// the daemon's own, of its host's side of the cable.
const (
	upAddress  = "203.0.113.1"
	dnsAddress = "203.0.113.53"
	indexAddr  = "203.0.113.10"
	filesAddr  = "203.0.113.11"
	evilAddr   = "203.0.113.12"
	evil6      = "2001:db8::12"
	metadata   = "169.254.169.254"
	intranet   = "10.9.9.9"
)

// zone is what the fake name server answers, one list after another; the last stays.
var zone = map[string][]string{
	"index.test.": {indexAddr}, "files.test.": {filesAddr}, "evil.test.": {evilAddr},
	"rebind.listed.test.": {indexAddr, "127.0.0.1"}, "meta.listed.test.": {metadata}, "inner.listed.test.": {intranet},
	"loop.listed.test.": {"127.0.0.1"}, "own.listed.test.": {upAddress},
}

// internet is a namespace with web servers, a name server, and a metadata service.
type internet struct {
	wheel []byte
	ca    []byte

	mu      sync.Mutex
	zone    map[string][]string
	asked   []string // of the name server
	reached []string // of the web servers
}

func (n *internet) note(list *[]string, text string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	*list = append(*list, text)
}

func (n *internet) have(list *[]string) []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(*list)
}

// run runs programs of the thread's own namespaces.
func inNamespace(tb testing.TB, lines ...string) {
	tb.Helper()
	for _, line := range lines {
		words := strings.Fields(line)
		if out, err := exec.CommandContext(tb.Context(), words[0], words[1:]...).CombinedOutput(); err != nil {
			tb.Fatalf("%s: %v\n%s", line, err, out)
		}
	}
}

// newInternet puts the calling goroutine's thread, for good, into namespaces that see the
// fake internet and nothing else, with its name server in place of the host's.
func newInternet(t *testing.T) *internet {
	t.Helper()
	need.Command(t, "ip", "iproute2")
	n := &internet{zone: maps.Clone(zone)}
	n.wheel = makeWheel(t)
	cert := n.makeCA(t)
	// Neither thread is unlocked: both end with their goroutines, in their namespaces.
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET | unix.CLONE_NEWNS); err != nil {
		t.Fatal(err)
	}
	resolv := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(resolv, []byte("nameserver "+dnsAddress+"\n"), 0o644); err != nil { //nolint:gosec // as the host's
		t.Fatal(err)
	}
	inNamespace(t, "mount --make-rprivate /", "mount --bind "+resolv+" /etc/resolv.conf", "ip link set lo up")
	host := fmt.Sprintf("/proc/%d/task/%d/ns/net", os.Getpid(), unix.Gettid())
	ready, done := make(chan string), make(chan struct{})
	go func() {
		runtime.LockOSThread()
		defer close(done)
		ready <- n.serve(t, host, cert)
	}()
	failed := <-ready
	<-done // its sockets go on
	if failed != "" {
		t.Fatal(failed)
	}
	inNamespace(t, "ip addr add "+upAddress+"/24 dev up0", "ip link set up0 up", "ip -6 addr add 2001:db8::1/64 dev up0 nodad",
		"ip route add default via "+evilAddr, "ip route add "+metadata+"/32 via "+evilAddr, "ip route add "+intranet+"/32 via "+evilAddr)
	return n
}

// serve makes the internet's namespace of its own thread and opens its sockets. It says what
// went wrong.
func (n *internet) serve(t *testing.T, host string, cert tls.Certificate) string {
	t.Helper()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return err.Error()
	}
	lines := []string{"ip link set lo up", "ip link add net0 type veth peer name up0 netns " + host, "ip link set net0 up", "ip -6 addr add " + evil6 + "/64 dev net0 nodad"}
	for _, a := range []string{dnsAddress, indexAddr, filesAddr, evilAddr} {
		lines = append(lines, "ip addr add "+a+"/24 dev net0")
	}
	for _, a := range []string{metadata, intranet} {
		lines = append(lines, "ip addr add "+a+"/32 dev net0")
	}
	for _, line := range lines {
		words := strings.Fields(line)
		if out, err := exec.CommandContext(t.Context(), words[0], words[1:]...).CombinedOutput(); err != nil {
			return fmt.Sprintf("%s: %v\n%s", line, err, out)
		}
	}
	var lc net.ListenConfig
	plain, err := lc.Listen(t.Context(), "tcp", ":80")
	if err != nil {
		return err.Error()
	}
	secure, err := lc.Listen(t.Context(), "tcp", ":443")
	if err != nil {
		return err.Error()
	}
	names, err := lc.ListenPacket(t.Context(), "udp", dnsAddress+":53")
	if err != nil {
		return err.Error()
	}
	srv := &http.Server{Handler: http.HandlerFunc(n.web), ReadHeaderTimeout: time.Minute, TLSConfig: &tls.Config{Certificates: []tls.Certificate{cert}}, ErrorLog: nil}
	go func() { _ = srv.Serve(plain) }()
	go func() { _ = srv.ServeTLS(secure, "", "") }()
	go n.names(names)
	t.Cleanup(func() { _, _, _ = srv.Close(), names.Close(), secure.Close() })
	return ""
}

// web is all web servers.
func (n *internet) web(w http.ResponseWriter, r *http.Request) {
	at := r.Context().Value(http.LocalAddrContextKey).(net.Addr).String()
	n.note(&n.reached, at+" "+r.Host+r.URL.Path)
	switch {
	case r.Host == "index.test" && r.URL.Path == "/simple/tinypkg/":
		_, _ = fmt.Fprintf(w, `<a href="https://files.test/tinypkg-1.0-py3-none-any.whl#sha256=%x">tinypkg-1.0-py3-none-any.whl</a>`, sha256.Sum256(n.wheel))
	case r.Host == "index.test" && strings.HasPrefix(r.URL.Path, "/to/"):
		http.Redirect(w, r, "http://"+strings.TrimPrefix(r.URL.Path, "/to/")+"/", http.StatusFound)
	case r.Host == "files.test" && r.TLS != nil && strings.HasSuffix(r.URL.Path, ".whl"):
		_, _ = w.Write(n.wheel)
	default:
		_, _ = io.WriteString(w, "reached")
	}
}

// names is the name server.
func (n *internet) names(c net.PacketConn) {
	buf := make([]byte, 1500)
	for {
		size, from, err := c.ReadFrom(buf)
		if err != nil {
			return
		}
		var m dnsmessage.Message
		if m.Unpack(buf[:size]) != nil || len(m.Questions) != 1 {
			continue
		}
		q := m.Questions[0]
		name := strings.ToLower(q.Name.String())
		answer := dnsmessage.Message{Header: dnsmessage.Header{ID: m.ID, Response: true, RecursionDesired: true, RecursionAvailable: true}, Questions: m.Questions}
		if q.Type == dnsmessage.TypeA {
			n.note(&n.asked, name)
			n.mu.Lock()
			list := n.zone[name]
			if len(list) > 1 {
				n.zone[name] = list[1:]
			}
			n.mu.Unlock()
			if len(list) > 0 {
				answer.Answers = []dnsmessage.Resource{{
					Header: dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET, TTL: 0},
					Body:   &dnsmessage.AResource{A: netip.MustParseAddr(list[0]).As4()},
				}}
			} else {
				answer.RCode = dnsmessage.RCodeNameError
			}
		} else if len(n.zone[name]) == 0 {
			answer.RCode = dnsmessage.RCodeNameError
		}
		if b, err := answer.Pack(); err == nil {
			_, _ = c.WriteTo(b, from)
		}
	}
}

// makeCA is a certificate of files.test that vouches for itself.
func (n *internet) makeCA(tb testing.TB) tls.Certificate {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	form := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "files.test"}, DNSNames: []string{"files.test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, form, form, &key.PublicKey, key)
	if err != nil {
		tb.Fatal(err)
	}
	n.ca = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// makeWheel is a package of one module.
func makeWheel(tb testing.TB) []byte {
	tb.Helper()
	files := [][2]string{
		{"tinypkg/__init__.py", "answer = 42\n"},
		{"tinypkg-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tinypkg\nVersion: 1.0\n"},
		{"tinypkg-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"},
	}
	record := ""
	for _, f := range files {
		sum := sha256.Sum256([]byte(f[1]))
		record += fmt.Sprintf("%s,sha256=%s,%d\n", f[0], base64.RawURLEncoding.EncodeToString(sum[:]), len(f[1]))
	}
	files = append(files, [2]string{"tinypkg-1.0.dist-info/RECORD", record + "tinypkg-1.0.dist-info/RECORD,,\n"})
	var buf bytes.Buffer
	z := zip.NewWriter(&buf)
	for _, f := range files {
		w, err := z.Create(f[0])
		if err == nil {
			_, err = io.WriteString(w, f[1])
		}
		if err != nil {
			tb.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		tb.Fatal(err)
	}
	return buf.Bytes()
}

// pipWheel is pip itself, as Debian's python3-pip-whl has it.
func pipWheel(tb testing.TB) []byte {
	tb.Helper()
	found, err := filepath.Glob("/usr/share/python-wheels/pip-*.whl")
	if err != nil || len(found) == 0 {
		tb.Fatal("need pip's wheel: run `scripts/setup.sh test`, or apt-get install python3-pip-whl")
	}
	b, err := os.ReadFile(found[0])
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// put writes files into an episode.
func (h host) put(tb testing.TB, id, dir string, files map[string][]byte) {
	tb.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for name, b := range files {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(b)), Typeflag: tar.TypeReg}); err != nil {
			tb.Fatal(err)
		}
		if _, err := w.Write(b); err != nil {
			tb.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	if code, _, errs := h.paddock(tb, &buf, "episode", "put", id, dir); code != 0 {
		tb.Fatalf("put: %s", errs)
	}
}

// asksAll tries every destination it is given through the proxy and says what came back,
// then what it reaches without.
const asksAll = `
import socket, sys
def proxy(text):
    c = socket.create_connection(("127.0.0.1", 3128), 30)
    c.sendall(text.encode("latin-1"))
    c.shutdown(socket.SHUT_WR)
    got = b""
    while True:
        b = c.recv(65536)
        if not b: break
        got += b
    line = got.split(b"\r\n")[0].decode()
    verdict = [h for h in got.decode("latin-1").split("\r\n") if h.startswith("Paddock-Verdict")]
    return line.split(" ")[1] + " " + (verdict[0].split(": ")[1] if verdict else "served")
for to in sys.argv[1:]:
    kind, at = to.split("=", 1)
    if kind == "connect":
        print(to, proxy("CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n" % (at, at)))
    else:
        host = at.split("/")[0]
        print(to, proxy("GET http://%s HTTP/1.1\r\nHost: %s\r\n\r\n" % (at if "/" in at else at + "/", host)))
for family, at in ((socket.AF_INET, ("203.0.113.12", 80)), (socket.AF_INET6, ("2001:db8::12", 80)), (socket.AF_INET, ("169.254.169.254", 80)), (socket.AF_INET, ("203.0.113.1", 80))):
    try:
        socket.socket(family).connect(at); print("direct", at[0], "reached")
    except OSError as e: print("direct", at[0], e.strerror)
try:
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("203.0.113.53", 53)); print("udp sent")
except OSError as e: print("udp", e.strerror)
try: socket.getaddrinfo("index.test", 80); print("dns found")
except OSError as e: print("dns refused")
`

// TestPipInstallsThroughTheProxy: an episode with an allow list installs a package from an
// index of a fake internet by pip, over HTTP and TLS; everything else that it asks for is
// refused and in the record. The daemon is the real one, with the kernel's own network,
// resolver and addresses; only the cable leads to a namespace of the test.
func TestPipInstallsThroughTheProxy(t *testing.T) {
	h := newHost(t)
	d := h.serve(t)
	h.debian(t, "py")
	d.stop(t)
	pip := pipWheel(t)
	n := newInternet(t)
	own, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", ":80") // a service of the host's
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = own.Close() })
	for _, at := range []string{indexAddr + ":80", evilAddr + ":80", "[" + evil6 + "]:80", metadata + ":80", intranet + ":80", "127.0.0.1:80"} {
		c, err := (&net.Dialer{Timeout: 10 * time.Second}).DialContext(t.Context(), "tcp", at)
		if err != nil {
			t.Fatalf("from the daemon's host: %v", err)
		}
		_ = c.Close()
	}
	d = h.serve(t)
	h.must(t, "episode", "create", "py", "--id", "net", "--allow", "index.test:80", "--allow", "files.test:443", "--allow", "*.listed.test")
	h.put(t, "net", "/tmp", map[string][]byte{"pip.whl": pip, "ca.pem": n.ca, "asks.py": []byte(asksAll)})
	out := h.must(t, "episode", "call", "net", "--", "sh", "-c",
		`PYTHONPATH=/tmp/pip.whl python3 -m pip install --no-cache-dir --disable-pip-version-check --root-user-action=ignore --index-url http://index.test/simple/ --trusted-host index.test --cert /tmp/ca.pem --target /tmp/lib tinypkg >/tmp/log 2>&1 || cat /tmp/log; PYTHONPATH=/tmp/lib python3 -c 'import tinypkg; print(tinypkg.answer)'`)
	if out != "42\n" {
		t.Fatalf("pip: %s", out)
	}
	asked := len(n.have(&n.asked))
	want := map[string]string{
		"get=index.test/": "200 served", "get=rebind.listed.test": "200 served", "get=rebind.listed.test/again": "403 address_refused",
		"get=index.test/to/evil.test": "302 served", "get=evil.test": "403 host_refused", "connect=evil.test:443": "403 host_refused",
		"connect=" + evilAddr + ":80": "403 host_refused", "get=" + metadata + "/latest/meta-data/": "403 host_refused",
		"connect=[" + evil6 + "]:80": "403 host_refused", "connect=[::ffff:127.0.0.1]:80": "403 host_refused", "connect=127.0.0.1:80": "403 host_refused",
		"get=meta.listed.test": "403 address_refused", "connect=inner.listed.test:443": "403 address_refused", "connect=loop.listed.test:80": "403 address_refused",
		"get=own.listed.test": "403 address_refused", "connect=index.test:22": "403 port_refused", "connect=none.listed.test:443": "502 unresolved",
		"connect=2130706433:80": "400 bad_request", "get=index.test@evil.test": "400 bad_request",
	}
	order := slices.Sorted(maps.Keys(want)) // rebind.listed.test before its second time
	got := h.must(t, append([]string{"episode", "call", "net", "--", "python3", "/tmp/asks.py"}, order...)...)
	var expect strings.Builder
	for _, to := range order {
		fmt.Fprintf(&expect, "%s %s\n", to, want[to])
	}
	for _, a := range []string{evilAddr, evil6, metadata, upAddress} {
		fmt.Fprintf(&expect, "direct %s Network is unreachable\n", a)
	}
	expect.WriteString("udp Network is unreachable\ndns refused\n")
	if got != expect.String() {
		t.Errorf("asked for everything:\n%s\nwant\n%s", got, expect.String())
	}
	h.checkRecord(t, "net")
	// Names that are not on the list were never looked up, and nothing beside was reached.
	for _, name := range n.have(&n.asked)[asked:] {
		if name == "evil.test." || !strings.HasSuffix(name, ".test.") {
			t.Errorf("the name server was asked for %s", name)
		}
	}
	for _, r := range n.have(&n.reached) {
		if !strings.HasPrefix(r, indexAddr+":80 ") && !strings.HasPrefix(r, filesAddr+":443 ") {
			t.Errorf("reached: %s", r)
		}
	}
	h.must(t, "episode", "rm", "net")
	d.stop(t)
	h.noStrays(t)
}

// checkRecord holds that every destination is in the episode's record with its verdict.
func (h host) checkRecord(t *testing.T, id string) {
	t.Helper()
	h.must(t, "episode", "finish", id)
	var ep api.Episode
	if err := json.Unmarshal([]byte(h.must(t, "episode", "show", id, "--json")), &ep); err != nil {
		t.Fatal(err)
	}
	n := ep.Last().Network
	if n == nil {
		t.Fatal("the attempt has no network")
	}
	have := map[string]string{}
	for _, s := range n.Seen {
		have[fmt.Sprintf("%s:%d %s", s.Host, s.Port, s.Verdict)] = s.Address
	}
	for key, address := range map[string]string{
		"index.test:80 allowed": indexAddr, "files.test:443 allowed": filesAddr, "rebind.listed.test:80 allowed": indexAddr, "rebind.listed.test:80 address_refused": "",
		"evil.test:80 host_refused": "", "evil.test:443 host_refused": "", evilAddr + ":80 host_refused": "", metadata + ":80 host_refused": "",
		evil6 + ":80 host_refused": "", "127.0.0.1:80 host_refused": "", "meta.listed.test:80 address_refused": "", "inner.listed.test:443 address_refused": "",
		"loop.listed.test:80 address_refused": "", "own.listed.test:80 address_refused": "", "index.test:22 port_refused": "", "none.listed.test:443 unresolved": "",
		":0 bad_request": "",
	} {
		if got, ok := have[key]; !ok || got != address {
			t.Errorf("the record has %q for %q, %v", got, key, ok)
		}
	}
	calls := h.must(t, "episode", "calls", id)
	if !strings.Contains(calls, `"address_refused"`) || !strings.Contains(calls, metadata) || !strings.Contains(calls, `"allowed"`) {
		t.Error("the trajectory does not have the destinations")
	}
}

// service is a model server of the trainer's, on a port and on a unix socket.
func service(t *testing.T) (port, socket string, headers func() http.Header) {
	t.Helper()
	var mu sync.Mutex
	var last http.Header
	srv := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		last = r.Header.Clone()
		mu.Unlock()
		b, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"choices": [{"index": 0, "text": %q, "token_ids": [3, 4, 5]}]}`, b)
	})}
	t.Cleanup(func() { _ = srv.Close() })
	dir, err := os.MkdirTemp("", "pd") //nolint:usetesting // TempDir's names are too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	var lc net.ListenConfig
	tcp, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	unixSocket, err := lc.Listen(t.Context(), "unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range []net.Listener{tcp, unixSocket} {
		go func() { _ = srv.Serve(l) }()
	}
	return tcp.Addr().String(), filepath.Join(dir, "s"), func() http.Header {
		mu.Lock()
		defer mu.Unlock()
		return last
	}
}

func TestEndpointsOfARealDaemon(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	d := h.serve(t)
	h.must(t, "world", "build", "--busybox", "--name", "busybox")
	port, socket, _ := service(t)
	for _, policy := range []string{"default", "strict"} {
		out := h.must(t, "run", "busybox", "--policy", policy, "--id", policy, "--endpoint", "model="+port, "--endpoint", "side-car=unix:"+socket+",port=8001", "--", "sh", "-c",
			`wget -q -O - --post-data '{"prompt": "a"}' $PADDOCK_ENDPOINT_MODEL/v1/completions; echo; wget -q -O - --post-data b $PADDOCK_ENDPOINT_SIDE_CAR/; echo; echo $PADDOCK_ENDPOINT_SIDE_CAR; sed 1,2d /proc/net/dev | cut -d: -f1 | tr -d ' '`)
		want := `{"choices": [{"index": 0, "text": "{\"prompt\": \"a\"}", "token_ids": [3, 4, 5]}]}
{"choices": [{"index": 0, "text": "b", "token_ids": [3, 4, 5]}]}
http://127.0.0.1:8001
lo
`
		if out != want {
			t.Errorf("%s: %s\nwant %s", policy, out, want)
		}
		lines := strings.Split(strings.TrimSpace(h.must(t, "episode", "exchanges", policy)), "\n")
		if len(lines) != 2 {
			t.Fatalf("%s: exchanges %q", policy, lines)
		}
		var x struct {
			Seq        int
			Endpoint   string
			Request    struct{ JSON json.RawMessage }
			Completion struct {
				Choices []struct {
					TokenIDs []int `json:"token_ids"`
				}
			}
		}
		if err := json.Unmarshal([]byte(lines[0]), &x); err != nil || x.Seq != 1 || x.Endpoint != "model" || string(x.Request.JSON) != `{"prompt":"a"}` ||
			len(x.Completion.Choices) != 1 || !slices.Equal(x.Completion.Choices[0].TokenIDs, []int{3, 4, 5}) {
			t.Errorf("%s: exchange %s, %v", policy, lines[0], err)
		}
		if shown := h.must(t, "episode", "show", policy); !strings.Contains(shown, "exchanges") || !strings.Contains(shown, "carried") {
			t.Errorf("%s: shown as %s", policy, shown)
		}
	}
	// The daemon's own socket would make the agent a client, with root's rights.
	code, out, errs := h.paddock(t, nil, "run", "busybox", "--id", "own", "--endpoint", "d=unix:"+h.socket, "--", "sh", "-c", "wget -q -O - $PADDOCK_ENDPOINT_D/v1/episodes || sleep 100")
	if code == 0 || out != "" {
		t.Errorf("the daemon's own socket: exit code %d, %q %q", code, out, errs)
	}
	var ep api.Episode
	if err := json.Unmarshal([]byte(h.must(t, "episode", "show", "own", "--json")), &ep); err != nil {
		t.Fatal(err)
	}
	if end := ep.Last().End; end == nil || end.Cause != "client" || end.Step != "model" || ep.Valid {
		t.Errorf("the daemon's own socket: end %+v", end)
	}
	for _, wrong := range []string{"model", "model=h:1,fast", "model=h:1,port=0"} {
		if code, _, errs := h.paddock(t, nil, "run", "busybox", "--endpoint", wrong, "--", "true"); code != exitUsage || !strings.Contains(errs, "--endpoint") {
			t.Errorf("--endpoint %s: exit code %d, %s", wrong, code, errs)
		}
	}
	d.stop(t)
	h.noStrays(t)
}

// TestSecretsOfARealDaemon: the header is on the request that the service gets, and its
// value in nothing that a client, an agent or an operator's log shows.
func TestSecretsOfARealDaemon(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	port, _, headers := service(t)
	file := filepath.Join(t.TempDir(), "secrets.json")
	text := fmt.Sprintf(`{"secrets": [{"name": "judge", "hosts": [%q], "header": "Authorization", "value": "Bearer hush-hush"}]}`, port)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	d := h.serve(t, "--secrets", file)
	h.must(t, "world", "build", "--busybox", "--name", "busybox")
	ask := fmt.Sprintf(`env; cat /proc/*/environ; printf 'GET http://%s/ HTTP/1.1\r\nHost: %[1]s\r\nAuthorization: mine\r\n\r\n' | nc 127.0.0.1 3128`, port)
	out := h.must(t, "run", "busybox", "--id", "s", "--allow", port, "--secret", "judge", "--", "sh", "-c", ask)
	if !strings.Contains(out, "200 OK") || !slices.Equal(headers()["Authorization"], []string{"Bearer hush-hush"}) {
		t.Errorf("answer %q, the service got %q", out, headers()["Authorization"])
	}
	for what, text := range map[string]string{
		"output": out, "episode": h.must(t, "episode", "show", "s", "--json"), "trajectory": h.must(t, "episode", "calls", "s"), "log": d.log.String(),
	} {
		if strings.Contains(text, "hush") {
			t.Errorf("the secret is in the %s", what)
		}
	}
	if code, _, errs := h.paddock(t, nil, "run", "busybox", "--allow", port, "--secret", "other", "--", "true"); code == 0 || !strings.Contains(errs, `no secret "other"`) {
		t.Errorf("a secret that is not there: exit code %d, %s", code, errs)
	}
	if shown := h.must(t, "policy", "show", "networked-allowlist"); !strings.Contains(shown, "The one way out is a proxy for HTTP and CONNECT at 127.0.0.1:3128") {
		t.Errorf("policy show: %s", shown)
	}
	d.stop(t)
	h.noStrays(t)
}
