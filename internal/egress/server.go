package egress

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"
)

// server takes connections from a listener, each in a goroutine of its own, and ends all of
// them when it is closed.
type server struct {
	l      net.Listener
	budget *budget
	ctx    context.Context //nolint:containedctx // bounds the connections, which the server owns; Close cancels it
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup
}

var errClosed = errors.New("closed")

// serve starts a server. The listener is its own from now on.
func serve(l net.Listener, limits Limits, handle func(context.Context, net.Conn)) *server {
	ctx, cancel := context.WithCancelCause(context.Background())
	s := &server{l: l, budget: newBudget(limits), ctx: ctx, cancel: cancel}
	s.wg.Go(func() { s.accept(handle) })
	return s
}

func (s *server) accept(handle func(context.Context, net.Conn)) {
	for s.budget.wait(s.ctx) {
		c, err := s.l.Accept()
		if err != nil {
			s.budget.done()
			if errors.Is(err, net.ErrClosed) || !s.pause() {
				return
			}
			continue
		}
		s.wg.Go(func() {
			defer s.budget.done()
			defer func() { _ = c.Close() }()
			ctx, cancel := context.WithTimeoutCause(s.ctx, s.budget.limits.Life, errTime)
			defer cancel()
			stop := context.AfterFunc(ctx, func() { _ = c.Close() })
			defer stop()
			handle(ctx, c)
		})
	}
}

// pause is a moment after an Accept that failed, as for want of descriptors.
func (s *server) pause() bool {
	timer := time.NewTimer(100 * time.Millisecond)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-s.ctx.Done():
		return false
	}
}

// Close ends every connection and returns when they are gone. It may be called again.
func (s *server) Close() error {
	s.cancel(errClosed)
	err := s.l.Close()
	s.wg.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
