package egress

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// headTimeout bounds how long a request's head may take to come.
const headTimeout = 15 * time.Second

// proxy is one listener under one set of rules.
type proxy struct {
	*server
	host   *Host
	rules  Rules
	ledger *Ledger
}

// Proxy serves l, which is the proxy's from now on, until Close. What is asked for is in the
// ledger. A secret that the host has not is an *UnknownSecretError.
func (h *Host) Proxy(l net.Listener, rules Rules, ledger *Ledger) (io.Closer, error) {
	if err := h.Secrets.Check(rules.Secrets); err != nil {
		return nil, err
	}
	p := &proxy{host: h, rules: rules, ledger: ledger}
	ready := make(chan struct{})
	p.server = serve(l, rules.Limits, func(ctx context.Context, c net.Conn) {
		<-ready
		p.handle(ctx, c)
	})
	close(ready)
	return p, nil
}

// handle serves the one request of a connection.
func (p *proxy) handle(ctx context.Context, c net.Conn) {
	r, br, no := p.read(c, parseHead)
	if r == nil && no == nil {
		return
	}
	if over := p.budget.request(); over != nil {
		no = over
	}
	seen := Seen{Count: 1}
	if r != nil {
		seen.Host, seen.Port, seen.Method = r.target.host(), r.target.port, r.method
	}
	if no != nil {
		p.deny(c, seen, no)
		return
	}
	if r.connect {
		p.tunnel(ctx, c, br, r, seen)
	} else {
		p.forward(ctx, c, br, r, seen)
	}
}

// read reads a request's head. Neither a request nor a refusal means that none came.
func (s *server) read(c net.Conn, parse func([]byte) (*request, *refusal)) (*request, *bufio.Reader, *refusal) {
	br := bufio.NewReaderSize(c, 16<<10)
	_ = c.SetReadDeadline(time.Now().Add(headTimeout))
	head, err := readHead(br, s.budget.limits.HeadBytes)
	_ = c.SetReadDeadline(time.Time{})
	if no, bad := errors.AsType[*refusal](err); bad {
		return nil, br, no
	}
	if err != nil {
		return nil, br, nil
	}
	r, no := parse(head)
	return r, br, no
}

// deny answers a request that is not served, and puts it on the ledger.
func (p *proxy) deny(c net.Conn, seen Seen, no *refusal) {
	seen.Verdict = no.verdict
	p.ledger.add(seen)
	answerWith(c, no)
}

// answerWith sends a refusal as the whole answer.
func answerWith(c net.Conn, no *refusal) {
	_ = c.SetDeadline(time.Now().Add(lingerTime))
	if _, err := c.Write(no.answer()); err == nil {
		linger(c)
	}
}

const lingerTime = 5 * time.Second

// linger ends a connection whose request may still be on its way: closed at once, the
// kernel would reset it, and the answer would be lost.
func linger(c net.Conn) {
	_ = c.SetDeadline(time.Now().Add(lingerTime))
	if t, ok := c.(interface{ CloseWrite() error }); ok && t.CloseWrite() == nil {
		_, _ = io.CopyN(io.Discard, c, 256<<10)
	}
}

// reach judges a destination, connects to it, and puts it on the ledger. Where it is not
// reached, the client is told so and nil returned.
func (p *proxy) reach(ctx context.Context, c net.Conn, t target, seen *Seen, cut func()) *metered {
	to, no := p.host.judge(ctx, &p.rules, t)
	if no == nil {
		no = p.budget.bytes()
	}
	if no != nil {
		p.deny(c, *seen, no)
		return nil
	}
	out, at, no := p.host.dial(ctx, t, to)
	seen.Address = at.Addr().String()
	if no != nil {
		p.deny(c, *seen, no)
		return nil
	}
	seen.Verdict = Allowed
	p.ledger.add(*seen)
	return p.budget.meter(ctx, out, func() { _ = out.Close(); cut() })
}

// settle adds the bytes of a served request, and the bound that cut it off, if any.
func (p *proxy) settle(ctx context.Context, seen Seen, out *metered) {
	if errors.Is(context.Cause(ctx), errTime) {
		out.stop(errTime)
	}
	cut := seen
	seen.Count, seen.Up, seen.Down = 0, out.up.Load(), out.down.Load()
	p.ledger.add(seen)
	if no := out.refusal(nil); no != nil {
		cut.Verdict = no.verdict
		p.ledger.add(cut)
	}
}

// tunnel serves CONNECT.
func (p *proxy) tunnel(ctx context.Context, c net.Conn, br *bufio.Reader, r *request, seen Seen) {
	out := p.reach(ctx, c, r.target, &seen, func() { _ = c.Close() })
	if out == nil {
		return
	}
	defer p.settle(ctx, seen, out)
	defer func() { _ = out.Close() }()
	if _, err := io.WriteString(c, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		return
	}
	pipe(c, br, out)
}

// pipe carries both ways until both are done.
func pipe(c net.Conn, from io.Reader, out *metered) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, err := io.Copy(onlyWriter{out}, from)
		_ = out.CloseWrite()
		if err != nil {
			_ = out.Conn.Close()
		}
	}()
	_, err := io.Copy(c, onlyReader{out})
	if t, ok := c.(interface{ CloseWrite() error }); !ok || err != nil || t.CloseWrite() != nil {
		_ = c.Close()
	}
	<-done
}

// onlyReader and onlyWriter hide the ways by which io.Copy would pass the meter by.
type (
	onlyReader struct{ io.Reader }
	onlyWriter struct{ io.Writer }
)

// forward serves a plain request.
func (p *proxy) forward(ctx context.Context, c net.Conn, br *bufio.Reader, r *request, seen Seen) {
	in := p.host.Secrets.injected(p.rules.Secrets, &r.target)
	seen.Port = r.target.port
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	out := p.reach(ctx, c, r.target, &seen, func() { cancel(errTime) })
	if out == nil {
		return
	}
	defer p.settle(ctx, seen, out)
	defer func() { _ = out.Close() }()
	trip := transport(out)
	if in.tls {
		trip.TLSClientConfig = &tls.Config{ServerName: r.target.host(), RootCAs: p.host.Roots, MinVersion: tls.VersionTLS12}
	}
	defer trip.CloseIdleConnections()
	resp, err := trip.RoundTrip(r.outgoing(ctx, in, &body{c: c, br: br, r: r}))
	if err != nil {
		answerWith(c, out.refusal(refuse(Unreachable, "%s gave no whole answer", r.target.host())))
		return
	}
	defer func() { _ = resp.Body.Close() }()
	if writeResponse(c, resp, r) == nil && r.length != 0 {
		linger(c)
	}
}

// refusal is why the connection was cut off, or else.
func (m *metered) refusal(otherwise *refusal) *refusal {
	switch why := m.cause(); {
	case errors.Is(why, errBytes):
		return refuse(BudgetBytes, "%v", why)
	case errors.Is(why, errTime):
		return refuse(BudgetTime, "%v", why)
	}
	return otherwise
}

// transport makes one request over the connection that is there.
func transport(out net.Conn) *http.Transport {
	once := func(context.Context, string, string) (net.Conn, error) {
		if out == nil {
			return nil, errors.New("there is one connection alone")
		}
		c := out
		out = nil
		return c, nil
	}
	return &http.Transport{
		DialContext: once, DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: 256 << 10,
		TLSHandshakeTimeout: dialTimeout,
	}
}

// outgoing is the request as it goes out: made of what was understood.
func (r *request) outgoing(ctx context.Context, in injection, b *body) *http.Request {
	scheme, host := "http", r.target.authority(80)
	if in.tls {
		scheme, host = "https", r.target.authority(443)
	}
	req := r.rewrite(ctx, scheme, host, b)
	for _, s := range in.headers {
		req.Header.Set(s.Header, s.Value)
	}
	return req
}

// rewrite makes the request anew, to host.
func (r *request) rewrite(ctx context.Context, scheme, host string, b io.ReadCloser) *http.Request {
	u := r.url
	h := endToEnd(r.header)
	if _, ok := h["User-Agent"]; !ok {
		h["User-Agent"] = nil // or Go adds its own
	}
	req := (&http.Request{
		Method: r.method, URL: &url.URL{Scheme: scheme, Host: host, Path: u.Path, RawPath: u.RawPath, RawQuery: u.RawQuery, ForceQuery: u.ForceQuery},
		Host: host, Header: h, ContentLength: r.length, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}).WithContext(ctx)
	if r.length != 0 {
		req.Body = b
	}
	return req
}

// authority is HOST:PORT, without the port that goes without saying.
func (t target) authority(usual uint16) string {
	host := t.host()
	if t.addr.Is6() {
		host = "[" + host + "]"
	}
	if t.port == usual {
		return host
	}
	return host + ":" + strconv.Itoa(int(t.port))
}

// body is a request's body as it comes, which some clients send only when they are told to.
type body struct {
	c      net.Conn
	br     *bufio.Reader
	r      *request
	reader io.Reader
}

func (b *body) Read(p []byte) (int, error) {
	if b.reader == nil {
		if b.r.awaits {
			if _, err := io.WriteString(b.c, "HTTP/1.1 100 Continue\r\n\r\n"); err != nil {
				return 0, err
			}
		}
		b.reader = io.LimitReader(b.br, b.r.length)
		if b.r.length < 0 {
			b.reader = httputil.NewChunkedReader(b.br)
		}
	}
	n, err := b.reader.Read(p)
	return n, err
}

func (b *body) Close() error { return nil }

// writeResponse passes an answer on, as it comes.
func writeResponse(c net.Conn, resp *http.Response, r *request) error {
	resp.Header = endToEnd(resp.Header)
	resp.Proto, resp.ProtoMajor, resp.ProtoMinor = "HTTP/1.1", 1, 1
	resp.Close = true
	if r.http10 {
		resp.TransferEncoding = nil
	}
	if resp.StatusCode == http.StatusSwitchingProtocols {
		// It was not asked to: an Upgrade does not travel on.
		_, err := c.Write(refuse(Broken, "the service wants to speak another protocol").answer())
		return err
	}
	if _, after, ok := strings.Cut(resp.Status, " "); !ok || after == "" {
		resp.Status = ""
	}
	return resp.Write(c)
}
