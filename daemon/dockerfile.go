package daemon

import (
	"context"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/paddock-run/paddock/api"
	"github.com/paddock-run/paddock/overlay"
	"github.com/paddock-run/paddock/runner/dockerfile"
)

// buildDockerfile builds what a Dockerfile says, and streams what its commands write.
func (s *Server) buildDockerfile(q *request, in api.Recipe) error {
	if err := checkDockerfile(&in); err != nil {
		return err
	}
	d := in.Dockerfile
	if d.Host && !q.peer.root() {
		return &api.Error{Kind: api.PermissionDenied, Field: "/dockerfile/host_network", Detail: "the network of the host is root's to give; name the hosts in allow"}
	}
	if d.Host {
		s.log.Warn("a build reaches what this host reaches", slog.String("owner", q.owner()), slog.String("name", in.Name))
	}
	r := dockerfile.Recipe{
		Text: d.Text, File: d.File, Dir: in.Dir, Args: d.Args, Target: d.Target, Network: dockerfile.Network{Allow: d.Allow, Host: d.Host},
		Config: config(in.Config), Version: in.Version, Name: in.Name, Cache: in.Cache, Limits: limits(d.Limits), StepS: d.StepS,
	}
	if in.Tar != "" {
		f, err := os.Open(in.Tar)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		r.Tar = f
	}
	lines := &lazyStream{q: q}
	log := &logLines{to: lines}
	return s.streamTo(q, lines, func(ctx context.Context, p overlay.Progress) (api.BuildEvent, error) {
		res, err := s.cfg.Dockerfiles.Build(ctx, q.owner(), r, log, p)
		log.close()
		if err != nil {
			return api.BuildEvent{}, err
		}
		return api.BuildEvent{Built: &api.Built{
			World: wireWorld(res.World), Hit: res.Hit, Network: res.Network, TookS: res.Took.Seconds(), Steps: mapAll(res.Steps, wireStep),
		}}, nil
	})
}

func checkDockerfile(in *api.Recipe) error {
	for field, set := range map[string]bool{
		"/base": in.Base != "", "/into": in.Into != "", "/busybox": in.Busybox, "/debian": in.Debian != nil, "/ignore": len(in.Ignore) > 0,
	} {
		if set {
			return &api.Error{Kind: api.BadRecipe, Field: field, Detail: "does not go with a Dockerfile, which says that itself"}
		}
	}
	if in.Dir != "" && in.Tar != "" {
		return &api.Error{Kind: api.BadRecipe, Field: "/tar", Detail: "the context is dir or tar, not both"}
	}
	return nil
}

func wireStep(s dockerfile.Step) api.BuildStep {
	return api.BuildStep{Line: s.Line, Text: s.Text, Hit: s.Hit, TookS: s.Took.Seconds(), Network: wireNetwork(s.Network)}
}

// logLines sends a build's log, as text. A character that is split over two writes is sent
// whole.
type logLines struct {
	to sender

	mu   sync.Mutex
	held []byte
}

// Write sends p, but for the beginning of a character at its end.
func (l *logLines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	rest := slices.Concat(l.held, p)
	l.held = nil
	for len(rest) > 0 {
		n := min(len(rest), maxChunk)
		whole := n - unfinished(rest[:n])
		if whole == 0 {
			l.held = rest
			break
		}
		if err := l.send(rest[:whole]); err != nil {
			return 0, err
		}
		rest = rest[whole:]
	}
	return len(p), nil
}

func (l *logLines) send(p []byte) error {
	return l.to.send(api.BuildEvent{Log: strings.ToValidUTF8(string(p), "\uFFFD")})
}

func (l *logLines) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.held) > 0 {
		_ = l.send(l.held)
		l.held = nil
	}
}

func wireWords(w overlay.ImageWords) api.ImageWords {
	out := api.ImageWords{
		Labels: w.Labels, ExposedPorts: w.ExposedPorts, Volumes: w.Volumes, StopSignal: w.StopSignal, Shell: w.Shell, OnBuild: w.OnBuild,
	}
	if h := w.Healthcheck; h != nil {
		out.Healthcheck = &api.Healthcheck{
			Test: h.Test, IntervalS: h.Interval.Seconds(), TimeoutS: h.Timeout.Seconds(), StartPeriodS: h.StartPeriod.Seconds(),
			StartIntervalS: h.StartInterval.Seconds(), Retries: h.Retries,
		}
	}
	return out
}

func words(w api.ImageWords) overlay.ImageWords {
	out := overlay.ImageWords{
		Labels: w.Labels, ExposedPorts: w.ExposedPorts, Volumes: w.Volumes, StopSignal: w.StopSignal, Shell: w.Shell, OnBuild: w.OnBuild,
	}
	seconds := func(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
	if h := w.Healthcheck; h != nil {
		out.Healthcheck = &overlay.Healthcheck{
			Test: h.Test, Interval: seconds(h.IntervalS), Timeout: seconds(h.TimeoutS), StartPeriod: seconds(h.StartPeriodS),
			StartInterval: seconds(h.StartIntervalS), Retries: h.Retries,
		}
	}
	return out
}
