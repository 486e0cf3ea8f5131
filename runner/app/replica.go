package app

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/paddock-run/paddock/runner"
)

// State is where a replica is in its life.
type State string

// The states of a replica. One that is Draining takes no new session; one that is Stopping
// takes nothing.
const (
	Starting State = "starting"
	Ready    State = "ready"
	Draining State = "draining"
	Stopping State = "stopping"
)

const (
	// healthTry is how often a replica that starts is looked at.
	healthTry = 25 * time.Millisecond
	// unhealthyAfter is how many looks in a row must fail until a replica is given up.
	unhealthyAfter = 3
	// endPatience bounds the end of a replica's episode.
	endPatience = time.Minute
	maxHead     = 1 << 20
	maxIdle     = 64
)

var (
	errNotWanted = errors.New("the replica is not wanted any more")
	errUnwell    = errors.New("its health check failed")
)

// replica is one program of an app. The app's mutex guards its state and what it counts.
type replica struct {
	a        *app
	id       string
	revision int64
	spec     Spec
	key      runner.Key
	ctx      context.Context //nolint:containedctx // the life of the replica, which its end cancels
	stop     context.CancelCauseFunc
	// gone is closed when the program has ended, or is to be ended.
	gone  chan struct{}
	proxy http.RoundTripper

	state    State
	since    time.Time
	readyAt  time.Time
	drainBy  time.Time
	sessions int
	inFlight int
}

func newReplica(a *app) *replica {
	raw := uuid.New()
	r := &replica{
		a: a, id: "r" + strconv.FormatInt(a.rec.Revision, 10) + "-" + hex.EncodeToString(raw[:4]), revision: a.rec.Revision, spec: a.rec.Spec,
		gone: make(chan struct{}), state: Starting, since: time.Now().UTC(),
	}
	r.key = runner.Key{Owner: a.key.Owner, Run: runName, ID: a.key.Name + "/" + r.id}
	r.ctx, r.stop = context.WithCancelCause(a.ctx)
	r.proxy = &http.Transport{
		DialContext: r.dial, MaxIdleConnsPerHost: maxIdle, IdleConnTimeout: time.Minute, DisableCompression: true,
		ResponseHeaderTimeout: seconds(r.spec.AnswerS), MaxResponseHeaderBytes: maxHead,
	}
	return r
}

// rank is less for those that are sooner done without.
func (r *replica) rank() int {
	if r.state == Starting {
		return -1
	}
	return r.sessions + r.inFlight
}

func (r *replica) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	return r.a.s.run.Dial(ctx, r.key, 0, r.spec.Port)
}

// live is the replica's life. It returns when nothing of it is left, with what it failed of;
// empty is that it was told to stop.
func (r *replica) live() (failure string) {
	defer r.stop(nil)
	end := runner.End{Status: runner.Cancelled, Cause: runner.Operator, Step: "app"}
	err := r.serve()
	switch cause := context.Cause(r.ctx); {
	case cause != nil && !errors.Is(cause, errUnwell):
		end.Evidence = []string{cause.Error()}
	default:
		if failure = err.Error(); cause != nil {
			failure = cause.Error()
		}
		end = runner.End{Status: runner.Failed, Cause: runner.WorldBad, Step: "app", Evidence: []string{failure}}
	}
	r.a.lose(r, end.Evidence[0])
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.ctx), endPatience)
	defer cancel()
	if t, ok := r.proxy.(*http.Transport); ok {
		t.CloseIdleConnections()
	}
	_, err = r.a.s.run.EndAs(ctx, r.key, runner.FinishSpec{}, end)
	switch kind := runner.KindOf(err); {
	case kind == runner.KindEpisodeEnded, kind == runner.KindNotFound, err == nil:
	default:
		failure = fmt.Sprintf("%s; and its episode did not end: %v", failure, err)
	}
	return failure
}

// serve starts the program and watches it; it returns when the program has ended.
func (r *replica) serve() error {
	a := r.a
	made, err := a.s.run.Create(r.ctx, r.key.Owner, 0, r.spec.episode(r.key.ID))
	if err != nil {
		return fmt.Errorf("its episode: %w", err)
	}
	if end := made.Episode.Last().End; end != nil {
		return fmt.Errorf("its episode did not begin: %s by %s at %s: %q", end.Status, end.Cause, end.Step, end.Evidence)
	}
	a.logs.note(r.id, "starts "+r.spec.Command[0])
	ended := make(chan error, 1)
	go func() {
		out, errs := a.logs.stream(r.id, "stdout"), a.logs.stream(r.id, "stderr")
		res, err := a.s.run.Call(r.ctx, r.key, r.spec.call(), runner.CallIO{Stdout: out, Stderr: errs})
		out.flush()
		errs.flush()
		if err == nil {
			err = exitError(&res)
		}
		close(r.gone)
		ended <- err
	}()
	if r.await() {
		a.ready(r)
		r.watch()
	}
	return <-ended
}

// await returns when the program is well; false is that it has ended, or did not get there in
// time and is being ended.
func (r *replica) await() bool {
	ctx, cancel := context.WithTimeout(r.ctx, seconds(r.spec.StartS))
	defer cancel()
	var last error
	for {
		if last = r.check(ctx); last == nil {
			return true
		}
		select {
		case <-time.After(healthTry):
		case <-r.gone:
			return false
		case <-ctx.Done():
			r.stop(fmt.Errorf("%w: not ready in %v s: %w", errUnwell, r.spec.StartS, last))
			return false
		}
		if runner.KindOf(last) == runner.KindUnsupported {
			r.stop(fmt.Errorf("%w: %w", errUnwell, last))
			return false
		}
	}
}

// watch looks after a program that is ready until it has ended, or is given up.
func (r *replica) watch() {
	timer := time.NewTicker(seconds(r.spec.Health.IntervalS))
	defer timer.Stop()
	failed := 0
	for {
		select {
		case <-r.gone:
			return
		case <-timer.C:
		}
		err := r.check(r.ctx)
		if err == nil {
			failed = 0
			continue
		}
		if failed++; failed == unhealthyAfter {
			r.stop(fmt.Errorf("%w %d times: %w", errUnwell, failed, err))
		}
	}
}

// check says what is wrong with the program; nil is that it is well.
func (r *replica) check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, seconds(r.spec.Health.TimeoutS))
	defer cancel()
	if r.spec.Health.Path == "" {
		c, err := r.dial(ctx, "", "")
		if err != nil {
			return err
		}
		return c.Close()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost"+r.spec.Health.Path, nil)
	if err != nil {
		return err
	}
	t := &http.Transport{DialContext: r.dial, DisableKeepAlives: true, MaxResponseHeaderBytes: maxHead}
	resp, err := t.RoundTrip(req)
	if err != nil {
		return err
	}
	_ = resp.Body.Close()
	if resp.StatusCode/100 != 2 && resp.StatusCode/100 != 3 {
		return fmt.Errorf("GET %s: %s", r.spec.Health.Path, resp.Status)
	}
	return nil
}

// exitError says how a program ended that should not have.
func exitError(res *runner.CallResult) error {
	switch {
	case res.Error != nil:
		return fmt.Errorf("the program did not start: %s %s %s", res.Error.Kind, res.Error.Path, res.Error.Detail)
	case res.OOM:
		return errors.New("the program met its limit of memory")
	case res.Signal != 0:
		return fmt.Errorf("the program was ended by signal %d", res.Signal)
	case res.Code != nil:
		return fmt.Errorf("the program exited with status %d", *res.Code)
	}
	return errors.New("the program ended")
}
