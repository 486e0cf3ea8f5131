package runner

import (
	"context"
	"errors"
	"net"

	"github.com/paddock-run/paddock/sandbox"
)

// Dial connects to a TCP port of a live attempt's own 127.0.0.1; attempt 0 is the live one. It
// is no call: it is on no record, and takes nothing of the episode's time. Where nobody listens
// the error is syscall.ECONNREFUSED.
func (r *Runner) Dial(ctx context.Context, key Key, attempt int, port uint16) (net.Conn, error) {
	a, err := r.liveAttempt(ctx, key, attempt)
	if err != nil {
		return nil, err
	}
	select {
	case <-a.ready:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if a.sb == nil {
		return nil, a.endedError()
	}
	d, ok := a.sb.(Dialer)
	if !ok {
		return nil, &Error{Kind: KindUnsupported, Detail: r.cfg.Launcher.Info().Lacks("dial").Error()}
	}
	c, err := d.Dial(ctx, port)
	if lacks, ok := errors.AsType[*sandbox.UnsupportedError](err); ok {
		return nil, &Error{Kind: KindUnsupported, Detail: lacks.Error()}
	}
	if errors.Is(err, sandbox.ErrGone) {
		return nil, a.endedError()
	}
	return c, err
}

// CheckSpec says whether an episode like spec could be made: what is wrong with it, and what it
// names that is not there.
func (r *Runner) CheckSpec(ctx context.Context, owner string, spec EpisodeSpec) error {
	if err := checkSpec(&spec); err != nil {
		return err
	}
	_, _, _, _, err := r.resolve(ctx, Key{Owner: owner, Run: spec.Run, ID: spec.ID}, spec)
	return err
}
