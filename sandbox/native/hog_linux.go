package native

import (
	"sync"
	"time"
)

const (
	// hogWindow is how often the CPU time of a sandbox with something running is looked at;
	// a call that is shorter costs no look at all.
	hogWindow = 50 * time.Millisecond
	// hogShare of one CPU, used over a window, makes a sandbox a hog.
	hogShare = 0.5
	// calmWindow is how often a hog is looked at, and calmShare what it uses at most over
	// one to be none any more. One that gets no CPU at all seems calm: so it gets its turn.
	calmWindow = time.Second
	calmShare  = 0.05
)

// hog keeps a sandbox that computes without end from delaying those that answer and sleep:
// its cgroup becomes SCHED_IDLE, so that what wakes in any other runs at once. Hogs share
// what is left as before, and where nobody else wants the CPU nothing changes. The next
// call is first of all an ordinary one again, unless what still runs is the hog.
type hog struct {
	tree *tree
	name string

	mu      sync.Mutex
	timer   *time.Timer
	running int // calls
	idle    bool
	ever    bool // it was one
	closed  bool
	at      time.Time
	cpu     time.Duration
	// leftovers says whether an ended call left processes.
	leftovers func() bool
}

// begin is told of every call that starts.
func (h *hog) begin() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return
	}
	h.running++
	if h.idle && h.running == 1 && !h.leftovers() {
		h.setLocked(false)
	}
	if h.running == 1 {
		h.lookAgainLocked()
	}
}

// end is told of every call that ended.
func (h *hog) end(leftovers bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.running--
	if h.running == 0 && !leftovers && h.timer != nil {
		h.timer.Stop()
	}
}

// die is told when processes are being killed: they need the CPU to end, and what they hold
// in the kernel others wait for. Nothing is a hog again before the next call.
func (h *hog) die() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.timer != nil {
		h.timer.Stop()
	}
	if h.idle {
		h.setLocked(false)
	}
}

// close is die for the sandbox, which has no next call; not even its quota is in the way.
func (h *hog) close() {
	h.mu.Lock()
	was := h.ever
	h.closed = true
	h.mu.Unlock()
	h.die()
	if was {
		h.tree.unlimitCPU(h.name)
	}
}

func (h *hog) lookAgainLocked() {
	h.at, h.cpu = time.Now(), -1
	if h.timer == nil {
		h.timer = time.AfterFunc(h.windowLocked(), h.look)
		return
	}
	h.timer.Reset(h.windowLocked())
}

// look compares the CPU time with that of the last look.
func (h *hog) look() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed || (h.running == 0 && !h.leftovers()) {
		return
	}
	now, cpu := time.Now(), h.tree.cpu(h.name)
	share := float64(cpu-h.cpu) / float64(now.Sub(h.at))
	switch {
	case h.cpu < 0: // the first look
	case !h.idle && share > hogShare:
		h.setLocked(true)
	case h.idle && share < calmShare:
		h.setLocked(false)
	}
	h.at, h.cpu = now, cpu
	h.timer.Reset(h.windowLocked())
}

func (h *hog) windowLocked() time.Duration {
	if h.idle {
		return calmWindow
	}
	return hogWindow
}

// setLocked is best effort: kernels before 5.15 have no cpu.idle, and then nothing is lost
// but the courtesy.
func (h *hog) setLocked(idle bool) {
	value := "0"
	if idle {
		value = "1"
	}
	if write(h.tree.at("cpu", h.name), "cpu.idle", value) == nil {
		h.idle, h.ever = idle, true
	}
}

// unlimitCPU lifts the quota of a sandbox that ends.
func (t *tree) unlimitCPU(name string) {
	if t.v2 {
		_ = write(t.at("", name+"/c"), "cpu.max", "max")
		return
	}
	_ = write(t.at("cpu", name), "cpu.cfs_quota_us", "-1")
}

// cpu is what a sandbox has used.
func (t *tree) cpu(name string) time.Duration {
	if t.v2 {
		return time.Duration(field(t.at("", name), "cpu.stat", "usage_usec")) * time.Microsecond
	}
	return time.Duration(readInt(t.at("cpuacct", name), "cpuacct.usage"))
}
