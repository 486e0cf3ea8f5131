package daemon

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"sync"
	"syscall"

	"github.com/paddock-run/paddock/runner/app"
)

// appConns makes connections to apps within the daemon, for endpoints of episodes and for the
// OpenEnv view: each is of one app and one session, whatever its requests say.
type appConns struct {
	*app.Service
	s *Server

	once sync.Once
	http *http.Server
	in   chan net.Conn
	over chan struct{}
	end  func()
}

func newAppConns(s *Server) *appConns {
	c := &appConns{Service: s.cfg.Apps, s: s, in: make(chan net.Conn), over: make(chan struct{})}
	c.end = sync.OnceFunc(func() { close(c.over) })
	return c
}

// appConn is the daemon's end of such a connection.
type appConn struct {
	net.Conn
	caller app.Caller
}

type callerKey struct{}

// Connect is a connection to an app.
func (c *appConns) Connect(ctx context.Context, owner, name, session string) (net.Conn, error) {
	c.once.Do(c.serve)
	ours, theirs, err := connPair()
	if err != nil {
		return nil, err
	}
	select {
	case c.in <- &appConn{Conn: ours, caller: app.Caller{Owner: owner, Name: name, Session: session, KeepAuthorization: true}}:
		return theirs, nil
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-c.over:
		err = errStopping
	}
	return nil, errors.Join(err, ours.Close(), theirs.Close())
}

// Release ends a session.
func (c *appConns) Release(owner, name, session string) { _ = c.End(owner, name, session) }

// connPair is two ends of one connection.
func connPair() (a, b net.Conn, err error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	var ends [2]net.Conn
	var errs [2]error
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "app")
		ends[i], errs[i] = net.FileConn(f) // a duplicate
		_ = f.Close()
	}
	if err := errors.Join(errs[:]...); err != nil {
		for _, c := range ends {
			if c != nil {
				_ = c.Close()
			}
		}
		return nil, nil, err
	}
	return ends[0], ends[1], nil
}

func (c *appConns) serve() {
	c.http = c.s.httpServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		caller, _ := q.Context().Value(callerKey{}).(app.Caller)
		if err := c.s.proxyTo(w, q, caller, "none"); err != nil {
			c.s.writeProblem(w, "none", err)
		}
	}))
	c.http.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		if a, ok := conn.(*appConn); ok {
			return context.WithValue(ctx, callerKey{}, a.caller)
		}
		return ctx
	}
	go func() { _ = c.http.Serve(c) }() // until close
}

// Accept, Close and Addr make it the listener of its own server.
func (c *appConns) Accept() (net.Conn, error) {
	select {
	case conn := <-c.in:
		return conn, nil
	case <-c.over:
		return nil, net.ErrClosed
	}
}

// Close ends what Accept waits for.
func (c *appConns) Close() error {
	c.end()
	return nil
}

// Addr is no address.
func (c *appConns) Addr() net.Addr { return &net.UnixAddr{Name: "apps", Net: "unix"} }

// shut ends the connections.
func (c *appConns) shut() error {
	c.end()
	c.once.Do(func() {}) // none is begun any more
	if c.http == nil {
		return nil
	}
	return c.http.Close()
}
