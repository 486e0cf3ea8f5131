// Package daemon serves paddock's API as HTTP/1.1 on a unix socket and, when it is told to,
// over TLS to other hosts. It owns the sockets, who may connect and as which tenant, the table of routes, the strict reading of requests, and the
// translation between wire types (api) and the runner's. It decides nothing about
// episodes.
//
// A request goes: listener (kernel's credentials, caps) -> gate (who is let in) -> route
// table -> strict decoding -> handler -> runner; an error on any of these ends as a
// problem document with a stable kind, whose status is chosen in one switch.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/paddock-run/paddock/api"
	"github.com/paddock-run/paddock/daemon/fusion"
	"github.com/paddock-run/paddock/policies"
	"github.com/paddock-run/paddock/runner"
	"github.com/paddock-run/paddock/runner/app"
	"github.com/paddock-run/paddock/runner/dataset"
	"github.com/paddock-run/paddock/runner/dockerfile"
	"github.com/paddock-run/paddock/runner/judge"
	"github.com/paddock-run/paddock/runner/simulator"
)

const (
	headerTimeout = 5 * time.Second
	idleTimeout   = 5 * time.Minute
	maxHeader     = 256 << 10
	// DefaultMaxConns is the cap of open connections.
	DefaultMaxConns = 16384
)

// Config says what a Server serves and for whom.
type Config struct {
	Runner   *runner.Runner
	Policies *policies.Set
	Launcher Informer
	Socket   SocketOptions
	// Tenants are those of local uids that share their runs with others under one name; a
	// uid that is not in it is a tenant of its own, called by its number.
	Tenants map[uint32]string
	// Remote is where clients of other hosts may connect.
	Remote RemoteOptions
	// Sockets are the sockets of single episodes, whose requests the server answers too.
	Sockets *Sockets
	// Spool is a directory for uploads that are being worked on; empty is the system's.
	Spool string
	// Version is the binary's.
	Version string
	// Judge judges code; JudgeWorld is the world of requests that name none.
	Judge      *judge.Judge
	JudgeWorld string
	// Dockerfiles builds worlds from Dockerfiles.
	Dockerfiles *dockerfile.Builder
	// Datasets keeps root's sets of problems, and below them those of each other tenant.
	Datasets *dataset.Store
	// Apps serves apps.
	Apps *app.Service
	// Simulators makes environments.
	Simulators *simulator.Service
	Host       policies.Host
	Log        *slog.Logger
	// MaxConns caps open connections; 0 is DefaultMaxConns. Half as many again may come from
	// other hosts.
	MaxConns int
}

// Server is a daemon's front.
type Server struct {
	cfg      Config
	run      *runner.Runner
	sims     *simulator.Service
	log      *slog.Logger
	metrics  *metrics
	routes   []route
	handler  http.Handler
	document []byte
	http     *http.Server
	started  time.Time
	// declared are the kinds of error of each operation; undeclared, when set, is told of
	// others (the tests fail on them).
	declared   map[string]map[api.Kind]bool
	undeclared func(operation string, kind api.Kind)
	draining   atomic.Bool
	// ending is cancelled with a cause when streams that have no end of their own shall end.
	ending context.Context //nolint:containedctx // the life of the server, which outlasts any request
	end    context.CancelCauseFunc

	// fusion answers /run_code and its kin.
	fusion *fusion.Handler

	// inner are the connections to apps from within.
	inner *appConns

	// remote is nil where nothing listens for other hosts.
	remote *remote

	mu          sync.Mutex
	conns       *listener
	remoteConns net.Listener
	problems    map[string]problems // by tenant
}

// errStopping is the cause of streams ended by Shutdown.
var errStopping = &api.Error{Kind: api.Draining, Detail: "the daemon is stopping"}

// New makes a server; Serve starts it.
func New(cfg Config) (*Server, error) {
	if cfg.MaxConns == 0 {
		cfg.MaxConns = DefaultMaxConns
	}
	s := &Server{cfg: cfg, run: cfg.Runner, sims: cfg.Simulators, log: cfg.Log, metrics: newMetrics(), started: time.Now()}
	s.ending, s.end = context.WithCancelCause(context.Background())
	s.metrics.watch(cfg.Runner.Capacity)
	s.fusion = fusion.New(cfg.Judge, cfg.JudgeWorld, cfg.Log)
	s.problems = map[string]problems{}
	s.inner = newAppConns(s)
	cfg.Runner.SetApps(s.inner)
	s.routes = routes()
	doc, err := api.Document(cfg.Version, operations(s.routes))
	if err != nil {
		return nil, err
	}
	s.document = doc
	if cfg.Remote != (RemoteOptions{}) {
		if s.remote, err = newRemote(cfg.Remote, cfg.Log); err != nil {
			return nil, err
		}
	}
	s.declared = declared(s.routes)
	s.handler = s.mux(s.routes, nil)
	s.http = s.httpServer(s.handler)
	if cfg.Sockets != nil {
		cfg.Sockets.attach(s)
	}
	return s, nil
}

func (s *Server) httpServer(h http.Handler) *http.Server {
	return &http.Server{
		Handler: h, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		ConnContext: withPeer, ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelWarn),
	}
}

// Listen makes the socket, so that clients can connect; they are answered by Serve. A
// second daemon at the same path is an error.
func (s *Server) Listen(ctx context.Context) error {
	gid, err := lookupGroup(s.cfg.Socket.Group)
	if err != nil {
		return err
	}
	l, err := ownedSocket{path: s.cfg.Socket.Path, uid: -1, gid: gid, mode: socketMode}.listen(ctx)
	if err != nil {
		return err
	}
	g := newGate(gid)
	g.tenants = s.cfg.Tenants
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conns = s.newListener(l, g, s.cfg.MaxConns)
	if s.remote == nil {
		return nil
	}
	if s.remoteConns, err = s.remote.listen(ctx, s.newCaps(max(1, s.cfg.MaxConns/2))); err != nil {
		return errors.Join(err, l.Close(), os.Remove(s.cfg.Socket.Path))
	}
	return nil
}

// RemoteAddr is where the daemon listens for other hosts; nil is nowhere. Listen comes first.
func (s *Server) RemoteAddr() net.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.remoteConns == nil {
		return nil
	}
	return s.remoteConns.Addr()
}

func (s *Server) newListener(l *net.UnixListener, g gate, most int) *listener {
	return &listener{UnixListener: l, gate: g, caps: s.newCaps(most), log: s.log}
}

// Serve answers until Shutdown or Close; then it returns nil.
func (s *Server) Serve() error {
	s.mu.Lock()
	listeners := map[string]net.Listener{}
	if s.conns != nil {
		listeners[s.cfg.Socket.Path] = s.conns
	}
	if s.remoteConns != nil {
		listeners[s.cfg.Remote.Address] = s.remoteConns
	}
	s.mu.Unlock()
	if len(listeners) == 0 {
		return errors.New("serve: Listen was not called")
	}
	var g errgroup.Group
	for where, l := range listeners {
		g.Go(func() error {
			if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				return errors.Join(fmt.Errorf("serve %s: %w", where, err), s.http.Close())
			}
			return nil
		})
	}
	return g.Wait()
}

// Drain refuses new work from now on; what runs may finish, and looking is still allowed.
func (s *Server) Drain() { s.draining.Store(true) }

// Shutdown takes the socket away, ends streams that have no end of their own, waits for
// the requests in flight until ctx ends, then closes what is left.
func (s *Server) Shutdown(ctx context.Context) error {
	s.Drain()
	s.end(errStopping)
	s.unlink()
	err := s.http.Shutdown(ctx)
	if err != nil {
		err = errors.Join(err, s.http.Close())
	}
	return errors.Join(err, s.inner.shut())
}

// unlink removes the socket's file when it is still this server's.
func (s *Server) unlink() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conns != nil {
		_ = os.Remove(s.cfg.Socket.Path)
	}
}
