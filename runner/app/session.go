package app

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/paddock-run/paddock/runner"
)

const (
	// unclaimedFor is how long a session lasts that was given to a client that did not ask
	// for one, until it comes back with it.
	unclaimedFor = time.Minute
	// lostFor is how long it is remembered that a session was lost.
	lostFor = time.Hour
	// maxWaiting bounds the requests that wait for a replica.
	maxWaiting = 4096
	// givenPrefix begins the sessions that an app gave out. One that it does not know was
	// lost; any other name that it does not know is a new session.
	givenPrefix = "s-"
)

var sessionName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._~:-]{0,127}$`)

// session is a client's hold of one replica.
type session struct {
	id       string
	r        *replica
	last     time.Time
	claimed  bool
	inFlight int
	lost     string // why; empty is that it is not
}

// hold is a request's place at a replica, which release gives back.
type hold struct {
	a  *app
	r  *replica
	s  *session // nil where the app has none
	id string
}

// enter finds a replica for a request of a session; an empty id is a client that has none yet.
// It waits until one is ready.
func (a *app) enter(ctx context.Context, id string) (*hold, error) {
	if id != "" && !sessionName.MatchString(id) {
		return nil, bad(HeaderSession, "%.64q is not %s", id, sessionName)
	}
	ctx, cancel := context.WithTimeout(ctx, seconds(a.recorded().Spec.StartS))
	defer cancel()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lastUsed = time.Now()
	if a.idle {
		a.idle = false
		a.wake()
	}
	if a.rec.Spec.Sessions != Sticky {
		id = ""
	} else if s := a.sessions[id]; s != nil {
		return a.rejoinLocked(s)
	} else if strings.HasPrefix(id, givenPrefix) {
		return nil, lostError(id, "it ended, or was of an earlier life of the daemon")
	}
	r, err := a.pickLocked(ctx)
	if err != nil {
		return nil, err
	}
	h := &hold{a: a, r: r, id: id}
	if a.rec.Spec.Sessions == Sticky {
		if s := a.sessions[id]; s != nil { // another request of it came in between
			return a.rejoinLocked(s)
		}
		if h.s, err = a.newSessionLocked(r, id); err != nil {
			return nil, err
		}
		h.id = h.s.id
	}
	a.countLocked(h, 1)
	return h, nil
}

func (a *app) rejoinLocked(s *session) (*hold, error) {
	switch {
	case s.lost != "":
		return nil, lostError(s.id, s.lost)
	case s.r.inFlight >= s.r.spec.MaxInFlight:
		return nil, &runner.Error{
			Kind: runner.KindOverCapacity, RetryAfter: time.Second,
			Detail: fmt.Sprintf("replica %s of the session has %d requests (max_in_flight)", s.r.id, s.r.inFlight),
		}
	}
	s.claimed = true
	h := &hold{a: a, r: s.r, s: s, id: s.id}
	a.countLocked(h, 1)
	return h, nil
}

func lostError(id, why string) error {
	return &runner.Error{Kind: runner.KindSessionLost, Field: HeaderSession, Detail: fmt.Sprintf("session %s is lost: %s", id, why)}
}

func (a *app) newSessionLocked(r *replica, id string) (*session, error) {
	if len(a.sessions) >= MaxSessions {
		return nil, &runner.Error{
			Kind: runner.KindOverCapacity, RetryAfter: 10 * time.Second,
			Detail: fmt.Sprintf("app %q has %d sessions, its most", a.key.Name, MaxSessions),
		}
	}
	s := &session{id: id, r: r, claimed: id != ""}
	if id == "" {
		s.id = givenPrefix + uuid.NewString()
	}
	a.sessions[s.id] = s
	a.live++
	r.sessions++
	a.wake() // it may be one more than the replicas are to have
	return s, nil
}

// countLocked counts a request in (1) or out (-1).
func (a *app) countLocked(h *hold, n int) {
	a.inFlight += n
	h.r.inFlight += n
	now := time.Now()
	a.lastUsed = now
	if h.s != nil {
		h.s.inFlight += n
		h.s.last = now
	}
}

// release gives the request's place back.
func (h *hold) release() {
	h.a.mu.Lock()
	h.a.countLocked(h, -1)
	drained := h.r.state == Draining && h.r.inFlight+h.r.sessions == 0
	h.a.mu.Unlock()
	if drained {
		h.a.wake()
	}
}

// pickLocked returns the ready replica with the least to do, and waits for one. The mutex is
// let go meanwhile.
func (a *app) pickLocked(ctx context.Context) (*replica, error) {
	for {
		var best *replica
		full := 0
		for _, r := range a.replicas {
			switch {
			case r.state != Ready:
			case r.inFlight >= r.spec.MaxInFlight:
				full++
			case best == nil || r.rank() < best.rank() || r.rank() == best.rank() && r.revision > best.revision:
				best = r
			}
		}
		switch {
		case best != nil:
			return best, nil
		case full > 0:
			return nil, &runner.Error{
				Kind: runner.KindOverCapacity, RetryAfter: time.Second,
				Detail: fmt.Sprintf("the %d replicas of app %q have as many requests as they may (max_in_flight)", full, a.key.Name),
			}
		case a.failures >= failingAfter, a.ctx.Err() != nil, a.waiting >= maxWaiting:
			return nil, a.downLocked()
		}
		if err := a.waitLocked(ctx); err != nil {
			return nil, err
		}
	}
}

// waitLocked waits until something of the replicas has changed.
func (a *app) waitLocked(ctx context.Context) error {
	changed := a.changed
	a.waiting++
	a.mu.Unlock()
	select {
	case <-changed:
	case <-a.ctx.Done():
	case <-ctx.Done():
	}
	a.mu.Lock()
	a.waiting--
	if ctx.Err() != nil {
		return a.downLocked()
	}
	return nil
}

// ready lets a replica take requests, unless it is to stop.
func (a *app) ready(r *replica) {
	a.mu.Lock()
	if r.state == Starting {
		r.state, r.readyAt = Ready, time.Now()
		a.lastUsed = r.readyAt // it was not idle before
	}
	a.announceLocked()
	a.mu.Unlock()
	a.logs.note(r.id, "is ready")
	a.wake()
}

// lose takes a replica from its sessions, which are lost.
func (a *app) lose(r *replica, why string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r.state = Stopping
	for _, s := range a.sessions {
		if s.r == r && s.lost == "" {
			a.loseLocked(s, fmt.Sprintf("its replica %s has ended: %s", r.id, why))
		}
	}
}

func (a *app) loseLocked(s *session, why string) {
	s.lost, s.last = why, time.Now()
	s.r.sessions--
	a.live--
}

// expireLocked ends sessions that nobody has used for long, and forgets those lost long ago.
func (a *app) expireLocked(now time.Time) {
	idle := seconds(a.rec.Spec.SessionIdleS)
	for id, s := range a.sessions {
		unused := now.Sub(s.last)
		switch {
		case s.lost != "":
			if unused > lostFor || len(a.sessions) > MaxSessions/2 {
				delete(a.sessions, id)
			}
		case s.inFlight > 0:
		case !s.claimed && unused > min(unclaimedFor, idle):
			a.forgetLocked(s)
		case unused > idle:
			a.loseLocked(s, fmt.Sprintf("it had no request for %v s (session_idle_s)", a.rec.Spec.SessionIdleS))
		}
	}
}

// forgetLocked ends a session for good.
func (a *app) forgetLocked(s *session) {
	delete(a.sessions, s.id)
	if s.lost == "" {
		s.r.sessions--
		a.live--
	}
}

// Begin gives a client a session of its own, at a replica that is ready.
func (s *Service) Begin(ctx context.Context, owner, name string) (id, replica string, err error) {
	a, err := s.get(Key{owner, name})
	if err != nil {
		return "", "", err
	}
	h, err := a.enter(ctx, "")
	if err != nil {
		return "", "", err
	}
	defer h.release()
	if h.s == nil {
		return "", "", bad("app", "app %q has no sessions", name)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	h.s.claimed = true
	return h.id, h.r.id, nil
}

// End ends a session; one that is not there is none.
func (s *Service) End(owner, name, id string) error {
	a, err := s.get(Key{owner, name})
	if err != nil {
		return err
	}
	a.mu.Lock()
	if kept := a.sessions[id]; kept != nil {
		a.forgetLocked(kept)
	}
	a.mu.Unlock()
	a.wake()
	return nil
}

// Ensure returns when an app can take requests; one that is idle is woken. An app that cannot
// is a *runner.Error of kind app_down.
func (s *Service) Ensure(ctx context.Context, owner, name string) error {
	a, err := s.get(Key{owner, name})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, seconds(a.recorded().Spec.StartS))
	defer cancel()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lastUsed, a.idle = time.Now(), false
	a.wake()
	_, err = a.pickLocked(ctx)
	return err
}
