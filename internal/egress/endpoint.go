package egress

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync/atomic"
	"syscall"
	"time"
)

// Endpoint is a fixed door: whatever connects to its listener is carried to one target, and
// can reach no other.
type Endpoint struct {
	// Name is what the sandbox knows it by.
	Name string
	// Raw carries bytes as they are; otherwise the endpoint speaks HTTP, and what passes is
	// recorded.
	Raw bool
	// UID is the user of the host with whose rights a unix socket is connected to: that of
	// the client who named it.
	UID uint32
	// Record gets every exchange when it is over; nil records nothing. It is called from
	// many goroutines.
	Record func(Exchange)
	// Down is called when nobody is there at the target, though it was tried again for as
	// long as Patience: its port is closed, its socket or name does not exist. That is no
	// program's doing. It is called, too, when a request was answered 5xx, or not at all, and
	// so was every one of the daemon's own for as long (doubt). A target that only takes no
	// connection in time is Busy, for which a flood is enough, and Down is not called. Nil is
	// nobody.
	Down func(detail string)
	// App connects to a served app of the client's; without it there is none.
	App func(ctx context.Context, name string) (net.Conn, error)
	// Patience is unset DefaultPatience.
	Patience time.Duration
	// Doubt is shared by the endpoints of one sandbox; nil is one of its own.
	Doubt *Doubt
}

// DefaultPatience is how long a target that takes no connection is tried again: as long as
// a server may need that is just starting anew.
const DefaultPatience = 10 * time.Second

// EndpointLimits bound an endpoint of a sandbox. Answers of a model may be long in coming.
var EndpointLimits = Limits{
	Requests: 1 << 20, PerSecond: 100, Connections: 8, BytesUp: 16 << 30, BytesDown: 64 << 30, HeadBytes: 64 << 10,
	Idle: 30 * time.Minute, Life: 2 * time.Hour,
}

// Door is a served endpoint.
type Door struct {
	*server
	host   *Host
	e      Endpoint
	to     atomic.Pointer[Target]
	ledger *Ledger
	keep   keeper
	doubt  *Doubt
	// sure is when the target last answered that it works; guarded by doubt.
	sure time.Time
}

// Endpoint serves l, which is the endpoint's from now on, until Close.
func (h *Host) Endpoint(l net.Listener, e Endpoint, to Target, ledger *Ledger) *Door {
	if e.Patience == 0 {
		e.Patience = DefaultPatience
	}
	if e.Doubt == nil {
		e.Doubt = &Doubt{}
	}
	d := &Door{host: h, e: e, ledger: ledger, doubt: e.Doubt, keep: keeper{max: maxKept, of: &h.bodies}}
	d.to.Store(&to)
	ready := make(chan struct{})
	d.server = serve(l, EndpointLimits, func(ctx context.Context, c net.Conn) {
		<-ready
		if e.Raw {
			d.carry(ctx, c)
		} else {
			d.exchange(ctx, c)
		}
	})
	close(ready)
	return d
}

// Lead makes later connections go to another target, as after a server was started anew.
func (d *Door) Lead(to Target) { d.to.Store(&to) }

// reach connects to the target and puts that on the ledger. Where it cannot, the client is
// told so and nil returned.
func (d *Door) reach(ctx context.Context, seen *Seen, cut func()) (*metered, Target, *refusal) {
	out, to, err := d.connect(ctx)
	seen.Endpoint, seen.Host, seen.Count, seen.Verdict = d.e.Name, to.String(), 1, Carried
	if err == nil {
		d.ledger.add(*seen)
		return d.budget.meter(ctx, out, func() { _ = out.Close(); cut() }), to, nil
	}
	no := refuse(Busy, "the endpoint %s takes no connection: %v", d.e.Name, err)
	if absent(err) {
		no = refuse(Down, "the endpoint %s is down: %v", d.e.Name, err)
	}
	seen.Verdict = no.verdict
	d.ledger.add(*seen)
	// A sandbox that ends while its request waits is no sign that the target is down.
	if no.verdict == Down && d.e.Down != nil && ctx.Err() == nil {
		d.e.Down(fmt.Sprintf("%s leads to %s: %v", d.e.Name, to, err))
	}
	return nil, to, no
}

// absences are what the kernel says where nobody serves a target, whatever a sandbox does.
var absences = []error{
	syscall.ECONNREFUSED, syscall.ENOENT, syscall.ENOTDIR, syscall.EACCES, syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.EHOSTDOWN,
	errOwnSocket,
}

// absent tells a target that is not there from one that has no time, or a host that has no
// room: a sandbox can fill a queue, a table of descriptors or of ports.
func absent(err error) bool {
	if dns, ok := errors.AsType[*net.DNSError](err); ok {
		return dns.IsNotFound
	}
	return slices.ContainsFunc(absences, func(a error) bool { return errors.Is(err, a) })
}

// connect tries the target, ever more patiently.
func (d *Door) connect(ctx context.Context) (net.Conn, Target, error) {
	deadline := time.Now().Add(d.e.Patience)
	wait := 10 * time.Millisecond
	for {
		to := *d.to.Load()
		dctx, cancel := context.WithTimeout(ctx, dialTimeout)
		c, err := d.dial(dctx, to)
		cancel()
		if err == nil || errors.Is(err, errOwnSocket) || errors.Is(err, errNoApps) || ctx.Err() != nil || time.Now().Add(wait).After(deadline) {
			return c, to, err
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
		wait = min(2*wait, time.Second)
	}
}

// errNoApps says that nothing here serves apps.
var errNoApps = errors.New("this daemon serves no apps")

func (d *Door) dial(ctx context.Context, to Target) (net.Conn, error) {
	switch name := to.App(); {
	case name == "":
		return d.host.connect(ctx, to, d.e.UID)
	case d.e.App == nil:
		return nil, errNoApps
	default:
		return d.e.App(ctx, name)
	}
}

// carry serves a raw endpoint.
func (d *Door) carry(ctx context.Context, c net.Conn) {
	var seen Seen
	x := &exchange{}
	d.doubt.enter(ctx, x, func(error) { _ = c.Close() })
	defer d.doubt.leave(x)
	out, _, no := d.reach(ctx, &seen, func() { _ = c.Close() })
	if no != nil {
		return
	}
	defer d.settle(&seen, out)
	defer func() { _ = out.Close() }()
	pipe(c, c, out)
}

func (d *Door) settle(seen *Seen, out *metered) {
	s := *seen
	s.Count, s.Up, s.Down = 0, out.up.Load(), out.down.Load()
	d.ledger.add(s)
}

// exchange serves the one request of a connection.
func (d *Door) exchange(ctx context.Context, c net.Conn) {
	r, br, no := d.read(c, parseOrigin)
	if r == nil && no == nil {
		return
	}
	if over := cmp.Or(d.budget.request(), d.budget.bytes()); over != nil {
		no = over
	}
	if no != nil {
		d.ledger.add(Seen{Endpoint: d.e.Name, Verdict: no.verdict, Count: 1})
		answerWith(c, no)
		return
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	x := newExchange(d.e.Name, r, &d.keep)
	d.doubt.enter(ctx, x, cancel)
	defer d.doubt.leave(x)
	seen := Seen{Method: r.method}
	out, to, no := d.reach(ctx, &seen, func() { cancel(errTime) })
	if no != nil {
		d.over(x, no)
		answerWith(c, no)
		return
	}
	defer d.settle(&seen, out)
	defer func() { _ = out.Close() }()
	no = d.trip(ctx, c, br, r, to, out, x)
	if no != nil {
		broken := seen
		broken.Verdict = no.verdict
		d.ledger.add(broken)
	}
	d.over(x, no)
	if no != nil && x.out.Status == 0 {
		answerWith(c, no)
	} else if r.length != 0 {
		linger(c)
	}
}

// trip makes the request and passes the answer on as it comes.
func (d *Door) trip(ctx context.Context, c net.Conn, br *bufio.Reader, r *request, to Target, out net.Conn, x *exchange) *refusal {
	trip := transport(out)
	defer trip.CloseIdleConnections()
	sent := &teeBody{ReadCloser: &body{c: c, br: br, r: r}, to: x.request}
	resp, err := trip.RoundTrip(r.rewrite(ctx, "http", to.hostHeader(), sent))
	if err != nil {
		return d.broken(ctx, x, "took the request and gave no answer", err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode >= http.StatusInternalServerError && takeWhole(resp) {
		if no := d.ask(x, fmt.Sprintf("answered %d", resp.StatusCode)); no != nil { //nolint:contextcheck // the door's: others wait for it, too
			return no
		}
	}
	x.out.Status, x.media = resp.StatusCode, resp.Header.Get("Content-Type")
	came := &teeBody{ReadCloser: resp.Body, to: x.answer}
	resp.Body = came
	if err := writeResponse(c, resp, r); err != nil && came.err != nil && !errors.Is(came.err, io.EOF) {
		return d.broken(ctx, x, "broke its answer off", came.err)
	}
	return nil
}

// maxFault bounds an answer of 5xx that is read before the target is asked about it.
const maxFault = 64 << 10

// takeWhole reads an answer to its end, so that its connection is no load on the target any
// more. It says whether it could; what it read is passed on in any case.
func takeWhole(resp *http.Response) bool {
	body := resp.Body
	b, err := io.ReadAll(io.LimitReader(body, maxFault+1))
	if err == nil && len(b) <= maxFault {
		_ = body.Close()
		resp.Body = io.NopCloser(bytes.NewReader(b))
		return true
	}
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(b), body), body}
	return false
}

// broken is of an answer that did not come, or not to its end.
func (d *Door) broken(ctx context.Context, x *exchange, how string, err error) *refusal {
	if ctx.Err() == nil { // it was not cut from here
		if no := d.ask(x, how); no != nil { //nolint:contextcheck // as above
			return no
		}
	}
	return refuse(Broken, "the endpoint %s %s: %v", d.e.Name, how, cmp.Or(context.Cause(ctx), err))
}

// teeBody keeps what is read through it.
type teeBody struct {
	io.ReadCloser
	to  *kept
	err error
}

func (t *teeBody) Read(p []byte) (int, error) {
	n, err := t.ReadCloser.Read(p)
	t.to.add(p[:n])
	if err != nil {
		t.err = err
	}
	return n, err
}

// over tells of an exchange that is over.
func (d *Door) over(x *exchange, no *refusal) {
	if d.e.Record == nil {
		x.drop()
		return
	}
	if no != nil {
		x.out.Error = no.Error()
	}
	d.e.Record(x.finish())
}
