package daemon

import (
	"context"
	"net/http"
	"os"
	"time"

	"github.com/paddock-run/paddock/api"
	"github.com/paddock-run/paddock/runner"
	"github.com/paddock-run/paddock/sandbox"
)

// Informer says what starts the sandboxes.
type Informer interface {
	Info() sandbox.Info
}

func (s *Server) capacity(q *request, _ empty) (api.Capacity, error) {
	c := s.run.Capacity()
	out := api.Capacity{
		CPUs: c.CPUs, MemoryBytes: c.MemoryBytes, UsedCPUs: c.UsedCPUs, UsedMemoryBytes: c.UsedMemoryBytes,
		Queued: c.Queued, MaxQueue: c.MaxQueue, Live: c.Live, Draining: s.draining.Load(), Blanks: c.Blanks, Warm: c.Warm,
	}
	// The names are those of every tenant's episodes.
	if q.peer.root() {
		out.Sandboxes = append([]string{}, s.run.Sandboxes()...)
	}
	return out, nil
}

func (s *Server) info() api.VersionInfo {
	out := api.VersionInfo{Version: s.cfg.Version, API: api.Version, PID: os.Getpid(), UptimeS: time.Since(s.started).Seconds()}
	if s.cfg.Launcher != nil {
		out.Launcher = api.Launcher(s.cfg.Launcher.Info())
	}
	return out
}

func (s *Server) serveMetrics(q *request) error {
	s.metrics.handler().ServeHTTP(q.w, q.Request)
	return nil
}

func (s *Server) serveDocument(q *request) error {
	q.begin(api.MediaJSON)
	_, _ = q.w.Write(s.document)
	return nil
}

// lease holds a lease open until the kernel closes the connection, whatever becomes of
// the client's event loop.
func (s *Server) lease(q *request) error {
	id, release := s.run.OpenLease(q.owner())
	defer release()
	out := q.stream()
	if err := out.send(api.LeaseEvent{Lease: id, GraceS: runner.LeaseGrace.Seconds()}); err != nil {
		return nil //nolint:nilerr // the client is gone, and release says so
	}
	select {
	case <-q.Context().Done():
	case <-s.ending.Done():
	}
	return nil
}

// untilEnding is ctx that also ends when the server stops, for streams without an end.
func (s *Server) untilEnding(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.ending, func() { cancel(context.Cause(s.ending)) })
	return ctx, func() {
		stop()
		cancel(context.Canceled)
	}
}

func (s *Server) openRun(q *request, in api.RunSpec) (api.Run, error) {
	r, err := s.run.OpenRun(q.Context(), q.owner(), runSpec(in))
	if err != nil {
		return api.Run{}, err
	}
	q.status = http.StatusOK
	return wireRun(r), nil
}

func (s *Server) listRuns(q *request, _ empty) (api.Runs, error) {
	all, err := s.run.Runs(q.Context(), q.owner())
	if err != nil {
		return api.Runs{}, err
	}
	return api.Runs{Runs: notNil(mapAll(all, wireRun))}, nil
}

func notNil[T any](all []T) []T {
	if all == nil {
		return []T{}
	}
	return all
}
