package egress

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// budget is what is left of a proxy's limits, for all its connections together.
type budget struct {
	limits   Limits
	requests atomic.Int64
	up, down atomic.Int64
	slots    chan struct{}
	mu       sync.Mutex
	credit   float64
	last     time.Time
}

func newBudget(l Limits) *budget {
	return &budget{limits: l, slots: make(chan struct{}, max(1, l.Connections)), credit: burst(l), last: time.Now()}
}

// burst is how many connections may come at once: those of two seconds.
func burst(l Limits) float64 { return max(1, 2*l.PerSecond) }

// wait returns when the next connection may be taken; false when ctx is done first.
func (b *budget) wait(ctx context.Context) bool {
	select {
	case b.slots <- struct{}{}:
	case <-ctx.Done():
		return false
	}
	d := b.pace(time.Now())
	if d <= 0 {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		b.done()
		return false
	}
}

// pace takes one connection's credit and says how long it takes to earn it.
func (b *budget) pace(now time.Time) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.credit = min(burst(b.limits), b.credit+now.Sub(b.last).Seconds()*b.limits.PerSecond)
	b.last = now
	b.credit--
	if b.credit >= 0 {
		return 0
	}
	return time.Duration(-b.credit / b.limits.PerSecond * float64(time.Second))
}

func (b *budget) done() { <-b.slots }

// request counts one more.
func (b *budget) request() *refusal {
	if b.requests.Add(1) > b.limits.Requests {
		return refuse(BudgetRequests, "the budget of %d requests is used up", b.limits.Requests)
	}
	return nil
}

// bytes says whether any are left to send and to receive.
func (b *budget) bytes() *refusal {
	if b.up.Load() >= b.limits.BytesUp || b.down.Load() >= b.limits.BytesDown {
		return refuse(BudgetBytes, "the budget of %d bytes sent and %d received is used up", b.limits.BytesUp, b.limits.BytesDown)
	}
	return nil
}

var (
	errBytes = errors.New("the budget of bytes is used up")
	errTime  = errors.New("the connection was silent or open for too long")
)

// metered is a connection out whose bytes count, and whose silence ends it.
type metered struct {
	net.Conn
	b        *budget
	up, down atomic.Int64
	idle     *time.Timer
	moved    atomic.Int64 // when bytes moved last, in nanoseconds
	// why is the first bound that was met.
	why atomic.Pointer[error]
}

// meter watches c. cut is called once where a bound of time is met.
func (b *budget) meter(ctx context.Context, c net.Conn, cut func()) *metered {
	m := &metered{Conn: c, b: b}
	m.moved.Store(time.Now().UnixNano())
	m.idle = time.AfterFunc(b.limits.Idle, func() { m.silent(cut) })
	context.AfterFunc(ctx, func() {
		if errors.Is(context.Cause(ctx), errTime) {
			m.stop(errTime)
		}
		cut()
	})
	return m
}

// silent cuts the connection unless bytes moved since the timer was set.
func (m *metered) silent(cut func()) {
	left := m.b.limits.Idle - time.Since(time.Unix(0, m.moved.Load()))
	if left > 0 {
		m.idle.Reset(left)
		return
	}
	m.stop(errTime)
	cut()
}

func (m *metered) stop(err error) { m.why.CompareAndSwap(nil, &err) }

func (m *metered) cause() error {
	if p := m.why.Load(); p != nil {
		return *p
	}
	return nil
}

func (m *metered) Read(p []byte) (int, error) {
	n, err := m.Conn.Read(p)
	m.moved.Store(time.Now().UnixNano())
	m.down.Add(int64(n))
	if m.b.down.Add(int64(n)) > m.b.limits.BytesDown {
		m.stop(errBytes)
		return 0, errBytes
	}
	return n, err
}

func (m *metered) Write(p []byte) (int, error) {
	if m.b.up.Add(int64(len(p))) > m.b.limits.BytesUp {
		m.stop(errBytes)
		return 0, errBytes
	}
	m.up.Add(int64(len(p))) // before: the answer may be here before Write returns
	n, err := m.Conn.Write(p)
	m.moved.Store(time.Now().UnixNano())
	return n, err
}

// CloseWrite tells the other side that nothing more comes.
func (m *metered) CloseWrite() error {
	if c, ok := m.Conn.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return m.Close()
}

func (m *metered) Close() error {
	m.idle.Stop()
	return m.Conn.Close()
}
