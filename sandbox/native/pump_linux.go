package native

import (
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// pump carries one stream from a pipe to a writer.
type pump struct {
	from   *os.File
	to     io.Writer
	counts bool // a held end of this one is OutputHeld
	done   chan struct{}
	eof    bool
}

// buffers are for the moment between a pipe and its writer: made for each stream of each
// call they would be most of what the daemon throws away.
var buffers = sync.Pool{New: func() any { return new([64 << 10]byte) }}

func newPump(from *os.File, to io.Writer, counts bool) *pump {
	if to == nil {
		to = io.Discard
	}
	return &pump{from: from, to: to, counts: counts, done: make(chan struct{})}
}

// pollable replaces f by the same file in the netpoller, which gives its reads and writes
// deadlines and lets Close end them.
func pollable(f *os.File) *os.File {
	_ = unix.SetNonblock(int(f.Fd()), true)
	p := os.NewFile(uintptr(dup(f)), f.Name())
	_ = f.Close()
	return p
}

func (u *pump) run() {
	defer close(u.done)
	buf := buffers.Get().(*[64 << 10]byte) //nolint:forcetypeassert // New makes them
	defer buffers.Put(buf)
	for {
		n, err := u.from.Read(buf[:])
		u.deliver(buf[:n])
		if err != nil {
			u.eof = !errors.Is(err, os.ErrDeadlineExceeded)
			return
		}
	}
}

// deliver ignores the writer's errors: the rest is drained and dropped.
func (u *pump) deliver(b []byte) {
	if len(b) == 0 {
		return
	}
	if _, err := u.to.Write(b); err != nil {
		u.to = io.Discard
	}
}

// finish is called when the main process is gone: everything that it wrote is in the
// pipe already. It delivers that and says whether somebody still holds the other end;
// then the pipe is drained to nothing until the end of the sandbox, so that a server that
// logs there lives on.
func (u *pump) finish(hold func(*os.File)) (held bool) {
	_ = u.from.SetReadDeadline(time.Unix(1, 0))
	<-u.done
	if !u.eof {
		u.eof = u.takeRest()
	}
	if u.eof {
		_ = u.from.Close()
		return false
	}
	_ = u.from.SetReadDeadline(time.Time{})
	hold(u.from)
	return true
}

// takeRest reads what is in the pipe now, at most one pipe full: a leftover that floods
// cannot hold the call open.
func (u *pump) takeRest() (eof bool) {
	rc, err := u.from.SyscallConn()
	if err != nil {
		return true
	}
	left := 1 << 20
	buf := buffers.Get().(*[64 << 10]byte) //nolint:forcetypeassert // New makes them
	defer buffers.Put(buf)
	_ = rc.Control(func(fd uintptr) {
		for left > 0 {
			n, err := unix.Read(int(fd), buf[:])
			if err == unix.EINTR {
				continue
			}
			if n <= 0 || err != nil {
				eof = err != unix.EAGAIN
				return
			}
			left -= n
			u.deliver(buf[:n])
		}
	})
	return eof
}
