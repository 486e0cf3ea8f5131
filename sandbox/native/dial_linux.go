package native

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/paddock-run/paddock/sandbox"
)

// Dial connects to a TCP port of the sandbox's own 127.0.0.1. Where nobody listens the error
// is the kernel's (ECONNREFUSED); of a sandbox that is gone it is sandbox.ErrGone. The
// connection keeps the sandbox's network namespace until it is closed. A launcher that has no
// listeners cannot dial, either: a *sandbox.UnsupportedError.
func (s *Sandbox) Dial(ctx context.Context, port uint16) (net.Conn, error) {
	if !s.l.info.Listen {
		return nil, s.l.info.Lacks("dial")
	}
	type dialled struct {
		conn net.Conn
		err  error
	}
	done := make(chan dialled, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread stays in that namespace and ends
		var d dialled
		if d.err = s.joinNetwork(); d.err == nil {
			var dialer net.Dialer // to one address it makes its socket on this thread
			d.conn, d.err = dialer.DialContext(ctx, "tcp4", netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port).String())
		}
		done <- d
	}()
	d := <-done
	return d.conn, d.err
}

// joinNetwork takes the thread that it runs on into the sandbox's network namespace.
func (s *Sandbox) joinNetwork() error {
	raw, err := s.pidfd.SyscallConn()
	if err != nil {
		return sandbox.ErrGone // closed
	}
	// Held meanwhile: a number that was closed and given out again would be another sandbox's.
	cerr := raw.Control(func(fd uintptr) { err = unix.Setns(int(fd), unix.CLONE_NEWNET) })
	if cerr != nil || errors.Is(err, unix.ESRCH) {
		return sandbox.ErrGone
	}
	if err != nil {
		return fmt.Errorf("join the network namespace of %s: %w", s.name, err)
	}
	return nil
}
