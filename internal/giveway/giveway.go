// Package giveway keeps the daemon's long work from delaying the short: what goes on for
// longer than a stretch has at most half of the CPUs, together with all else that does. And
// while sandboxes stand behind the rest of the host, because one of them computes without
// end, whatever the daemon does at a stretch keeps all others waiting: then it rests as well.
package giveway

import (
	"runtime"
	"sync/atomic"
	"time"
)

const (
	// stretch is how long work goes on at a time.
	stretch = time.Millisecond
	// rest is how long it then waits while sandboxes stand behind.
	rest = 3 * stretch
)

var (
	behind atomic.Int32
	lanes  = make(chan struct{}, max(1, runtime.NumCPU()/2))
)

// Behind says that a host's sandboxes stand behind this process, or no longer do.
func Behind(yes bool) {
	if yes {
		behind.Add(1)
	} else {
		behind.Add(-1)
	}
}

// Work is one piece of work that may be long. The zero value is one that has not begun.
type Work struct {
	since time.Time
	lane  bool
}

// Step is called often while it goes on, and waits when that is due.
func (w *Work) Step() {
	now := time.Now()
	switch {
	case w.since.IsZero():
		w.since = now
		return
	case now.Sub(w.since) < stretch:
		return
	case w.lane && behind.Load() == 0:
		w.since = now
		return
	}
	w.Done()
	if behind.Load() > 0 {
		<-time.After(rest)
	}
	lanes <- struct{}{}
	w.lane, w.since = true, time.Now()
}

// Done is called when it is over.
func (w *Work) Done() {
	if w.lane {
		<-lanes
		w.lane = false
	}
}
