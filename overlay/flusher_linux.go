package overlay

import (
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// flushEvery is how much is written before the disk is asked to begin with it.
const flushEvery = 32 << 20

// flusher has the disk write while more is unpacked, so that little is left for the sync
// that an import waits for in the end.
type flusher struct {
	bytes atomic.Int64
	fds   chan int
	end   sync.WaitGroup
}

func newFlusher() *flusher {
	f := &flusher{fds: make(chan int, 1)}
	f.end.Go(func() {
		for fd := range f.fds {
			_ = unix.Syncfs(fd) // the last sync tells of errors
			closeFD(fd)
		}
	})
	return f
}

// add counts what is about to be written below the open directory.
func (f *flusher) add(dir int, n int64) {
	sum := f.bytes.Add(n)
	if sum/flushEvery == (sum-n)/flushEvery || len(f.fds) > 0 {
		return
	}
	// A description of its own: an error of the disk is told once to each.
	fd, err := unix.Openat(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	select {
	case f.fds <- fd:
	default:
		closeFD(fd)
	}
}

func (f *flusher) close() {
	close(f.fds)
	f.end.Wait()
}
