package egress

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"
)

// Doubt is how the endpoints of a sandbox find out whose fault an answer of 5xx is, or one that
// did not come: the daemon itself asks the target, with a request of which no program wrote
// anything. As long as that fails, nothing of the sandbox's is carried to any of its endpoints,
// which may lead to one service, so that no flood, and no connection that is held, can be why.
// The zero value is ready, for one sandbox.
type Doubt struct {
	mu sync.Mutex
	// over is closed when a target has been asked, by the endpoint of; nil while nobody asks.
	// down is what came of it.
	over chan struct{}
	of   *Door
	down *refusal
	// cut ends what is under way.
	cut map[*exchange]context.CancelCauseFunc
}

const (
	// certain is how long an answer of the target is good for: a program that provokes 5xx
	// does not have it asked each time.
	certain = time.Second
	// healthTimeout is how long the target has for that answer.
	healthTimeout = 5 * time.Second
)

var errDoubt = errors.New("the target answers 5xx, and is asked by the daemon with nothing of the sandbox's under way")

// enter waits until nobody asks, and lets the exchange be cut from then on.
func (d *Doubt) enter(ctx context.Context, x *exchange, cut context.CancelCauseFunc) {
	for {
		d.mu.Lock()
		over := d.over
		if over == nil || ctx.Err() != nil {
			if d.cut == nil {
				d.cut = map[*exchange]context.CancelCauseFunc{}
			}
			d.cut[x] = cut
			d.mu.Unlock()
			return
		}
		d.mu.Unlock()
		select {
		case <-over:
		case <-ctx.Done():
		}
	}
}

func (d *Doubt) leave(x *exchange) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.cut, x)
}

// begin says whether the caller is to ask for its endpoint. Otherwise it was asked just now,
// and answered is what came of that.
func (d *Doubt) begin(of *Door) (mine bool, answered *refusal) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.over != nil {
		over, same := d.over, d.of == of
		d.mu.Unlock()
		<-over
		d.mu.Lock()
		if same {
			return false, d.down
		}
	}
	if time.Since(of.sure) < certain {
		return false, nil
	}
	d.over, d.of = make(chan struct{}), of
	return true, nil
}

func (d *Doubt) end(down *refusal) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.down = down; down == nil {
		d.of.sure = time.Now()
	}
	close(d.over)
	d.over = nil
}

// cutOthers ends the exchanges under way but for x, whose answer waits for what comes of this.
func (d *Doubt) cutOthers(x *exchange, why error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for other, cut := range d.cut {
		if other != x {
			cut(why)
		}
	}
}

// ask asks the target whether it works, and returns a refusal when it does not: when it
// answered nothing but 5xx for all of the patience, or was not there. Whoever else doubts
// meanwhile gets the same answer.
//
// A served app is not doubted: a request may have brought about whatever it answers, and its
// replicas are looked after elsewhere.
func (d *Door) ask(x *exchange, why string) *refusal {
	if d.to.Load().App() != "" {
		return nil
	}
	mine, answered := d.doubt.begin(d)
	if !mine {
		return answered
	}
	detail := d.fails(x)
	var no *refusal
	if detail != "" {
		no = refuse(Down, "the endpoint %s %s, and so it does when the daemon asks: %s", d.e.Name, why, detail)
	}
	d.doubt.end(no)
	if no != nil && d.e.Down != nil && d.ctx.Err() == nil {
		d.e.Down(fmt.Sprintf("%s leads to %s: it %s, and asked by the daemon: %s", d.e.Name, d.to.Load(), why, detail))
	}
	return no
}

// fails says how the target failed each time that it was asked, for as long as the patience;
// empty is that it works, or that nobody can tell: an answer that does not come in time may
// be what a program's earlier requests are still the reason for.
func (d *Door) fails(x *exchange) string {
	deadline := time.Now().Add(d.e.Patience)
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		failure := d.health()
		if failure == "" || d.ctx.Err() != nil {
			return ""
		}
		if time.Now().Add(wait).After(deadline) {
			return failure
		}
		d.doubt.cutOthers(x, errDoubt)
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-d.ctx.Done():
		}
		timer.Stop()
	}
}

// health makes one request of the daemon's own. It returns how the target fails, and nothing
// where it works or that cannot be told.
func (d *Door) health() string {
	ctx, cancel := context.WithTimeout(d.ctx, healthTimeout)
	defer cancel()
	to := *d.to.Load()
	out, err := d.host.connect(ctx, to, d.e.UID)
	if err != nil {
		if absent(err) {
			return err.Error()
		}
		return ""
	}
	defer func() { _ = out.Close() }()
	path := to.healthPath()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+to.hostHeader()+path, http.NoBody)
	if err != nil {
		return ""
	}
	req.Header.Set("User-Agent", "paddock")
	trip := transport(out)
	defer trip.CloseIdleConnections()
	resp, err := trip.RoundTrip(req)
	if err != nil {
		return ""
	}
	_ = resp.Body.Close()
	if resp.StatusCode < http.StatusInternalServerError {
		return ""
	}
	return fmt.Sprintf("GET %s is answered %d", path, resp.StatusCode)
}
