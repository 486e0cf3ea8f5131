package egress

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
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/paddock-run/paddock/internal/need"
)

// door is an endpoint with what it recorded.
type door struct {
	*Door
	addr   string
	ledger *Ledger

	mu   sync.Mutex
	all  []Exchange
	down []string
}

func (d *door) exchanges() []Exchange {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]Exchange{}, d.all...)
}

func (d *door) downs() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]string{}, d.down...)
}

func newDoor(t *testing.T, target string, change ...func(*Endpoint)) *door {
	t.Helper()
	to, err := ParseTarget(target)
	if err != nil {
		t.Fatal(err)
	}
	l := listen(t)
	d := &door{addr: l.Addr().String(), ledger: NewLedger()}
	e := Endpoint{
		Name: "model", UID: uint32(os.Geteuid()), Patience: 50 * time.Millisecond,
		Record: func(x Exchange) { d.mu.Lock(); defer d.mu.Unlock(); d.all = append(d.all, x) },
		Down:   func(s string) { d.mu.Lock(); defer d.mu.Unlock(); d.down = append(d.down, s) },
	}
	for _, c := range change {
		c(&e)
	}
	h := NewHost(nil, nil)
	h.foreign = true
	d.Door = h.Endpoint(l, e, to, d.ledger)
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return d
}

func (d *door) post(t *testing.T, path, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+d.addr+path, strings.NewReader(body))
	if err != nil {
		t.Error(err)
		return 0, ""
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return resp.StatusCode, string(b) + " and then " + err.Error()
	}
	return resp.StatusCode, string(b)
}

// socketServer serves on a unix socket.
func socketServer(t *testing.T, path string, h http.HandlerFunc) {
	t.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(func() { _ = srv.Close() })
}

const completionAnswer = `{"model": "tiny", "prompt_token_ids": [1, 2], "choices": [{"index": 0, "message": {"content": "hi"},
	"token_ids": [7, 8], "finish_reason": "stop", "logprobs": {"content": [{"token": "h", "logprob": -0.5}, {"token": "i", "logprob": -0.25}]}}]}`

func TestEndpointCarriesAndRecords(t *testing.T) {
	d := newDoor(t, web(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		if string(b) != `{"prompt": "x"}` || r.URL.Path != "/v1/chat/completions" {
			t.Errorf("the service got %s %q", r.URL, b)
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, completionAnswer)
	}))
	if status, body := d.post(t, "/v1/chat/completions?a=b", `{"prompt": "x"}`); status != http.StatusOK || body != completionAnswer {
		t.Errorf("answer %d %q", status, body)
	}
	waitFor(t, func() bool { return len(d.exchanges()) == 1 })
	x := d.exchanges()[0]
	if x.Endpoint != "model" || x.Method != http.MethodPost || x.Path != "/v1/chat/completions?a=b" || x.Status != 200 || x.Error != "" ||
		string(x.Request.JSON) != `{"prompt":"x"}` || x.Answer.Bytes != int64(len(completionAnswer)) || x.Answer.SHA256 == "" {
		t.Errorf("recorded %+v", x)
	}
	want := `{"model":"tiny","prompt_token_ids":[1,2],"choices":[{"index":0,"token_ids":[7,8],"tokens":["h","i"],"logprobs":[-0.5,-0.25],"finish_reason":"stop"}]}`
	if got, _ := json.Marshal(x.Completion); string(got) != want {
		t.Errorf("tokens %s, want %s", got, want)
	}
	all, _ := d.ledger.All()
	if len(all) != 1 || all[0].Endpoint != "model" || all[0].Verdict != Carried || all[0].Count != 1 {
		t.Errorf("ledger %+v", all)
	}
}

// TestStreamsPassAtOnce: the first event is here while the answer still goes on, and the
// tokens of all of them are joined.
func TestStreamsPassAtOnce(t *testing.T) {
	first := make(chan struct{})
	d := newDoor(t, web(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		_, _ = io.WriteString(w, `data: {"choices": [{"index": 0, "token_ids": [5], "logprobs": {"tokens": ["a"], "token_logprobs": [null]}}]}`+"\n\n")
		w.(http.Flusher).Flush()
		select {
		case <-first:
		case <-time.After(20 * time.Second):
			t.Error("the first event did not arrive")
		}
		_, _ = io.WriteString(w, `data: {"choices": [{"index": 0, "token_ids": [6], "finish_reason": "length", "logprobs": {"tokens": ["b"], "token_logprobs": [-1.5]}}]}`+"\n\ndata: [DONE]\n\n")
	}))
	resp, err := http.Get("http://" + d.addr + "/")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	br := bufio.NewReader(resp.Body)
	if line, err := br.ReadString('\n'); !strings.Contains(line, `"a"`) || err != nil {
		t.Fatalf("first %q, %v", line, err)
	}
	close(first)
	if rest, err := io.ReadAll(br); !strings.HasSuffix(string(rest), "[DONE]\n\n") || err != nil {
		t.Errorf("rest %q, %v", rest, err)
	}
	waitFor(t, func() bool { return len(d.exchanges()) == 1 })
	x := d.exchanges()[0]
	want := `{"choices":[{"index":0,"token_ids":[5,6],"tokens":["a","b"],"logprobs":[0,-1.5],"finish_reason":"length"}]}`
	if got, _ := json.Marshal(x.Completion); string(got) != want || len(x.Answer.Events) != 2 {
		t.Errorf("tokens %s of %d events, want %s", got, len(x.Answer.Events), want)
	}
}

// TestADownTargetIsTheClients: it is tried again first, and said to whom it concerns; an
// answer of 500 to one request is an answer.
func TestADownTargetIsTheClients(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "s")
	d := newDoor(t, "unix:"+path)
	status, body := d.post(t, "/", "x")
	if status != http.StatusBadGateway || !strings.Contains(body, "endpoint_down") {
		t.Errorf("answer %d %q", status, body)
	}
	if all := d.downs(); len(all) != 1 || !strings.Contains(all[0], "model leads to unix:"+path) {
		t.Errorf("down: %q", all)
	}
	if x := d.exchanges(); len(x) != 1 || x[0].Status != 0 || !strings.Contains(x[0].Error, "endpoint_down") {
		t.Errorf("recorded %+v", x)
	}
	socketServer(t, path, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			http.Error(w, "overloaded", http.StatusInternalServerError)
		}
	})
	if status, body := d.post(t, "/", "x"); status != http.StatusInternalServerError || body != "overloaded\n" {
		t.Errorf("an answer of 500: %d %q", status, body)
	}
	if all := d.downs(); len(all) != 1 {
		t.Errorf("down: %q", all)
	}
}

// TestAFloodIsNoDownTarget: a queue that is full, a host out of ports or descriptors, is what
// an agent can bring about, and then its sample would be void.
func TestAFloodIsNoDownTarget(t *testing.T) {
	for _, c := range []struct {
		err  error
		want Verdict
	}{
		{os.ErrDeadlineExceeded, Busy},
		{&net.OpError{Op: "dial", Err: os.NewSyscallError("connect", unix.ETIMEDOUT)}, Busy},
		{&net.OpError{Op: "dial", Err: os.NewSyscallError("connect", unix.EAGAIN)}, Busy},
		{&net.OpError{Op: "dial", Err: os.NewSyscallError("connect", unix.EADDRNOTAVAIL)}, Busy},
		{&net.OpError{Op: "dial", Err: os.NewSyscallError("socket", unix.EMFILE)}, Busy},
		{&net.DNSError{Err: "i/o timeout", IsTimeout: true}, Busy},
		{&net.DNSError{Err: "no such host", IsNotFound: true}, Down},
		{&net.OpError{Op: "dial", Err: os.NewSyscallError("connect", unix.ECONNREFUSED)}, Down},
		{&net.OpError{Op: "dial", Err: os.NewSyscallError("connect", unix.EHOSTUNREACH)}, Down},
	} {
		d := newDoor(t, "some.test:80")
		d.host.Dialer = dialFunc(func(context.Context, string, string) (net.Conn, error) { return nil, c.err })
		status, body := d.post(t, "/", "x")
		all, _ := d.ledger.All()
		if (len(d.downs()) == 1) != (c.want == Down) || status/100 != 5 || !strings.Contains(body, string(c.want)) || len(all) != 1 || all[0].Verdict != c.want {
			t.Errorf("%v: down %q, answer %d %q, ledger %+v", c.err, d.downs(), status, body, all)
		}
	}
}

func TestATargetThatStartsAnewIsWaitedFor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	d := newDoor(t, "unix:"+path, func(e *Endpoint) { e.Patience = time.Minute })
	done := make(chan string)
	go func() {
		_, body := d.post(t, "/", "x")
		done <- body
	}()
	select {
	case body := <-done:
		t.Fatalf("answered without a service: %q", body)
	case <-time.After(50 * time.Millisecond):
	}
	socketServer(t, path, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "here") })
	if body := <-done; body != "here" {
		t.Errorf("answer %q", body)
	}
	other := web(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "there") })
	to, err := ParseTarget(other)
	if err != nil {
		t.Fatal(err)
	}
	d.Lead(to)
	if _, body := d.post(t, "/", "x"); body != "there" || len(d.downs()) != 0 {
		t.Errorf("led elsewhere: %q, down %q", body, d.downs())
	}
}

// TestAnEndOfTheSandboxIsNoDownTarget: who closes the endpoint while it tries is not told
// that the target is down.
func TestAnEndOfTheSandboxIsNoDownTarget(t *testing.T) {
	var tries atomic.Int64
	d := newDoor(t, "nobody.test:80", func(e *Endpoint) { e.Patience = time.Hour })
	d.host.Dialer = dialFunc(func(context.Context, string, string) (net.Conn, error) {
		tries.Add(1)
		return nil, errors.New("refused")
	})
	go d.post(t, "/", "x")
	waitFor(t, func() bool { return tries.Load() > 1 })
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if all := d.downs(); len(all) != 0 {
		t.Errorf("down: %q", all)
	}
}

type dialFunc func(context.Context, string, string) (net.Conn, error)

func (f dialFunc) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return f(ctx, network, address)
}

func TestBrokenAnswersAreSeen(t *testing.T) {
	d := newDoor(t, web(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/none" {
			panic(http.ErrAbortHandler)
		}
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, "half")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}))
	if status, body := d.post(t, "/none", "x"); status != http.StatusBadGateway || !strings.Contains(body, "endpoint_broken") {
		t.Errorf("no answer: %d %q", status, body)
	}
	if status, body := d.post(t, "/half", "x"); status != http.StatusOK || body != "half and then unexpected EOF" {
		t.Errorf("half an answer: %d %q", status, body)
	}
	waitFor(t, func() bool { return len(d.exchanges()) == 2 })
	for _, x := range d.exchanges() {
		if !strings.Contains(x.Error, "endpoint_broken") {
			t.Errorf("recorded %+v", x)
		}
	}
	if len(d.downs()) != 0 {
		t.Errorf("down: %q", d.downs())
	}
}

func TestWhatIsRecordedIsBounded(t *testing.T) {
	d := newDoor(t, web(t, func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		_, _ = fmt.Fprint(w, n)
	}))
	big := strings.Repeat("a", maxBody+1)
	if _, body := d.post(t, "/", big); body != fmt.Sprint(maxBody+1) {
		t.Errorf("answer %q", body)
	}
	waitFor(t, func() bool { return len(d.exchanges()) == 1 })
	if x := d.exchanges()[0]; !x.Request.Truncated || x.Request.Bytes != maxBody+1 || x.Request.Text != "" || x.Answer.Truncated {
		t.Errorf("recorded %d bytes, truncated %v", x.Request.Bytes, x.Request.Truncated)
	}
	if d.keep.used != 0 || d.host.bodies.used != 0 {
		t.Errorf("%d bytes are still taken, %d of the host", d.keep.used, d.host.bodies.used)
	}
	if _, body := d.post(t, "/", "\xff\xfe"); body != "2" {
		t.Errorf("answer %q", body)
	}
	waitFor(t, func() bool { return len(d.exchanges()) == 2 })
	if x := d.exchanges()[1]; string(x.Request.Base64) != "\xff\xfe" || string(x.Answer.JSON) != "2" {
		t.Errorf("recorded %+v", x)
	}
}

// TestBodiesOfAllEndpointsAreBoundedTogether: many sandboxes that each hold a few large
// bodies take no more of the daemon's memory than the host's share, and are carried all the
// same.
func TestBodiesOfAllEndpointsAreBoundedTogether(t *testing.T) {
	d := newDoor(t, web(t, func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		_, _ = fmt.Fprint(w, n)
	}))
	d.host.bodies.max = 1000
	for i, size := range []int{900, 1100} {
		if _, body := d.post(t, "/", strings.Repeat("a", size)); body != fmt.Sprint(size) {
			t.Errorf("answer %q", body)
		}
		waitFor(t, func() bool { return len(d.exchanges()) == i+1 })
		if x := d.exchanges()[i]; x.Request.Truncated != (size > 1000) || x.Request.Bytes != int64(size) {
			t.Errorf("%d bytes: recorded %d, truncated %v", size, x.Request.Bytes, x.Request.Truncated)
		}
	}
	if d.host.bodies.used != 0 {
		t.Errorf("%d bytes are still taken", d.host.bodies.used)
	}
}

func TestAnEndpointReadsAsStrictlyAsTheProxy(t *testing.T) {
	d := newDoor(t, web(t, func(_ http.ResponseWriter, r *http.Request) { t.Errorf("carried %s", r.URL) }))
	s := &scene{addr: d.addr}
	for _, text := range []string{
		"GET http://evil.test/ HTTP/1.1\r\nHost: x\r\n\r\n", "GET //evil.test/ HTTP/1.1\r\nHost: x\r\n\r\n", "CONNECT evil.test:443 HTTP/1.1\r\nHost: x\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
		"GET / HTTP/1.1\nHost: x\n\n",
	} {
		if got := s.raw(t, text); !strings.HasPrefix(got, "HTTP/1.1 400 ") {
			t.Errorf("%q: %q", text, got)
		}
	}
}

func TestRawEndpoints(t *testing.T) {
	l := listen(t)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			b, _ := io.ReadAll(c)
			_, _ = fmt.Fprintf(c, "heard %q", b)
			_ = c.Close()
		}
	}()
	d := newDoor(t, l.Addr().String(), func(e *Endpoint) { e.Raw = true })
	c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", d.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	_, _ = io.WriteString(c, "\x00\x01 no HTTP\r\n\r\n")
	_ = c.(*net.TCPConn).CloseWrite()
	if b, err := io.ReadAll(c); string(b) != `heard "\x00\x01 no HTTP\r\n\r\n"` || err != nil {
		t.Errorf("answer %q, %v", b, err)
	}
}

// TestSocketsAreOpenedAsTheClient: the daemon is root and the client is not, so a socket
// that the client could not open is not opened for it, and the one who serves it sees the
// client.
func TestSocketsAreOpenedAsTheClient(t *testing.T) {
	need.Root(t)
	const client = 61234
	dir := t.TempDir()
	for d := dir; d != "/" && d != "/dev/shm" && d != "/tmp"; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil { //nolint:gosec // another user reaches the sockets in it
			t.Fatal(err)
		}
	}
	path := filepath.Join(dir, "s")
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	seen := make(chan uint32, 4)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			raw, err := c.(*net.UnixConn).SyscallConn()
			if err == nil {
				_ = raw.Control(func(fd uintptr) {
					if u, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
						seen <- u.Uid
					}
				})
			}
			_ = c.Close()
		}
	}()
	for mode, want := range map[os.FileMode]bool{0o600: false, 0o666: true} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		c, err := connectAs(t.Context(), path, client)
		if (err == nil) != want {
			t.Errorf("a socket of mode %04o: %v", mode, err)
		}
		if err == nil {
			_ = c.Close()
			if uid := <-seen; uid != client {
				t.Errorf("who serves it sees user %d, want %d", uid, client)
			}
		} else if !errors.Is(err, os.ErrPermission) {
			t.Errorf("a socket of mode %04o: %v, want a refused permission", mode, err)
		}
	}
	// The daemon's own threads are root's still.
	for range 50 {
		if _, err := os.ReadFile("/etc/shadow"); errors.Is(err, os.ErrPermission) || os.Geteuid() != 0 {
			t.Fatalf("this process is somebody else now: %v", err)
		}
	}
	// A target that is this process itself is refused at once: it would be served as root.
	d := newDoor(t, "unix:"+path, func(e *Endpoint) { e.Patience = time.Hour })
	d.host.foreign = false
	if status, body := d.post(t, "/", "x"); status != http.StatusBadGateway || !strings.Contains(body, "daemon's own") {
		t.Errorf("its own socket: %d %q", status, body)
	}
}

func TestTargets(t *testing.T) {
	for _, text := range []string{"unix:/run/x.sock", "127.0.0.1:8000", "[::1]:8000", "vllm.internal:80"} {
		if to, err := ParseTarget(text); err != nil || to.String() != text {
			t.Errorf("ParseTarget(%q) = %q, %v", text, to, err)
		}
	}
	for _, text := range []string{"", "unix:", "unix:x", "unix:/a/../b", "unix:/" + strings.Repeat("a", 107), "8000", ":8000", "host", "host:", "host:http", "http://host:80", "host:0", "u@host:80", "client"} {
		if to, err := ParseTarget(text); err == nil {
			t.Errorf("ParseTarget(%.40q) = %q, want an error", text, to)
		}
	}
}

func FuzzAnswer(f *testing.F) {
	f.Add([]byte(completionAnswer), "application/json")
	f.Add([]byte("data: {\"choices\": [{\"index\": 1, \"logprobs\": null}]}\n\ndata: [DONE]\n"), "text/event-stream")
	f.Add([]byte("{\"model\x8c\": \"tiny\"}"), "application/json")
	f.Add([]byte("\xff\x00"), "text/event-stream; charset=")
	f.Fuzz(func(t *testing.T, body []byte, media string) {
		k := &keeper{max: maxKept}
		x := &exchange{request: newKept(k), answer: newKept(k), media: media}
		x.request.add(body)
		x.answer.add(body)
		out := x.finish()
		if k.used != 0 {
			t.Errorf("%d bytes are still taken", k.used)
		}
		b, err := json.Marshal(out)
		if err != nil || !json.Valid(b) || !utf8.Valid(b) {
			t.Errorf("an exchange that is no JSON: %v", err)
		}
	})
}
