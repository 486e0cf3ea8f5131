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
		Queued: c.Queued, MaxQueue: c.MaxQueue, Live: c.Live, Draining: s.draining.Load(), Blanks: c.Stock.Blanks, Warm: c.Stock.Warm,
		Stock: api.Stock{
			Blanks: c.Stock.Keep.Blanks, Warm: c.Stock.Keep.Warm, WarmTotal: runner.MaxWarm, IdleS: runner.WarmIdle.Seconds(),
		},
	}
	// The names are those of every tenant's episodes, the kinds of their worlds.
	if q.peer.root() {
		out.Stock.Kinds = stockKinds(c.Stock.Kinds)
		out.Sandboxes = append([]string{}, s.run.Sandboxes()...)
	}
	return out, nil
}

func stockKinds(all []runner.StockKind) []api.StockKind {
	out := make([]api.StockKind, 0, len(all))
	for _, k := range all {
		out = append(out, api.StockKind{
			World: k.World, PolicyHash: k.PolicyHash, Warm: k.Warm, Low: k.Low, High: k.High, Expected: k.Expected,
			Limits: api.Limits{
				CPUs: k.Limits.CPUs, Memory: api.Size(k.Limits.MemoryBytes), Disk: api.Size(k.Limits.DiskBytes), Inodes: k.Limits.Inodes, Pids: k.Limits.Pids,
			},
		})
	}
	return out
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
