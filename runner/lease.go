package runner

import (
	"sync"
	"time"

	"github.com/google/uuid"
)

// LeaseGrace is how long episodes outlive the connection that holds them, DefaultTTL how
// long those of a ttl lease live without a call or keepalive.
const (
	LeaseGrace = 30 * time.Second
	DefaultTTL = time.Hour
)

// connLease is one connection's lease. It ends once, LeaseGrace after its release.
type connLease struct {
	owner string
	ended chan struct{}
}

// leases are the open connection leases.
type leases struct {
	mu    sync.Mutex
	conns map[string]*connLease
}

// OpenLease opens a connection lease; release, which may be called more than once,
// starts its grace, after which the episodes that name it end as expired.
func (r *Runner) OpenLease(owner string) (id string, release func()) {
	id = uuid.NewString()
	c := &connLease{owner: owner, ended: make(chan struct{})}
	r.leases.mu.Lock()
	r.leases.conns[id] = c
	r.leases.mu.Unlock()
	return id, sync.OnceFunc(func() {
		time.AfterFunc(LeaseGrace, func() {
			r.leases.mu.Lock()
			delete(r.leases.conns, id)
			r.leases.mu.Unlock()
			close(c.ended)
		})
	})
}

func (r *Runner) connLease(owner, id string) (*connLease, error) {
	r.leases.mu.Lock()
	defer r.leases.mu.Unlock()
	c, ok := r.leases.conns[id]
	if !ok || c.owner != owner {
		return nil, badField("lease/conn", "no lease connection %q is open", id)
	}
	return c, nil
}

// lease is who owns one attempt's life. Exactly one of conn, ttl is set, or none (daemon).
type lease struct {
	kind     string
	conn     *connLease
	ttl      time.Duration
	deadline time.Time
}

func (r *Runner) leaseOf(owner string, s LeaseSpec) (lease, error) {
	switch s.Kind {
	case "connection":
		c, err := r.connLease(owner, s.Conn)
		return lease{kind: s.Kind, conn: c}, err
	case "daemon":
		return lease{kind: s.Kind}, nil
	default:
		l := lease{kind: "ttl", ttl: seconds(s.TTLS)}
		if l.ttl == 0 {
			l.ttl = DefaultTTL
		}
		l.renew()
		return l, nil
	}
}

func (l *lease) renew() {
	if l.ttl > 0 {
		l.deadline = time.Now().Add(l.ttl)
	}
}

// cut lets a ttl lease end after at most grace, unless it is renewed.
func (l *lease) cut(grace time.Duration) {
	if by := time.Now().Add(grace); l.ttl > 0 && l.deadline.After(by) {
		l.deadline = by
	}
}

func (l *lease) state() LeaseState { return LeaseState{Kind: l.kind, Deadline: l.deadline} }
