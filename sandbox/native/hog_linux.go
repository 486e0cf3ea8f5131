package native

import (
	"sync"
	"time"
)

const (
	// brief is the CPU time that a call has before its sandbox weighs less than those that
	// answer and sleep, and hogAt the time after which it yields to all of them; crowdAt where
	// more compute than there are CPUs: until then one of an eighth of the weight still keeps
	// others from a CPU for some milliseconds at a time, and a Python has started.
	brief   = 10 * time.Millisecond
	hogAt   = 200 * time.Millisecond
	crowdAt = 60 * time.Millisecond
	// free is the part of a CPU that counts for nothing. It is small, because many that
	// compute at once get little each.
	free = 0.02
	// firstLook comes that long after a call began, so that a shorter one costs no look;
	// later ones come ever more rarely, down to one in maxLook where little is used.
	firstLook = 10 * time.Millisecond
	maxLook   = 50 * time.Millisecond
	// calmWindow is how often a hog is looked at, and calmShare of a CPU what it uses at most
	// over one to be none any more. One that gets no CPU at all seems calm: so it gets its turn.
	calmWindow = time.Second
	calmShare  = 0.05
)

// pace is how a sandbox's cgroup is scheduled among its like.
type pace int

const (
	fresh pace = iota // with the weight of any cgroup
	light             // with an eighth of it
	idle              // SCHED_IDLE: what wakes in any other runs at once
)

// hog keeps a sandbox that computes from delaying those that answer and sleep, the more the
// longer it does: as the CPU time adds up that its calls used, its cgroup gets light, and
// then idle. Hogs share what is left as before, and where nobody else wants the CPU nothing
// changes. The next call is first of all a fresh one again, unless what still runs is the hog.
type hog struct {
	tree *tree
	name string
	// courtesy is told whether it computes.
	courtesy *courtesy

	mu      sync.Mutex
	timer   *time.Timer
	running int // calls
	pace    pace
	told    bool // that it computes
	ever    bool // it was idle
	closed  bool
	at      time.Time     // of the last look, zero before the first
	cpu     time.Duration // then
	spent   time.Duration // beyond what is free
	wait    time.Duration // until the next look
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
	if h.running > 1 || h.pace != fresh && h.leftovers() {
		return
	}
	h.spent = 0
	h.setLocked(fresh)
	h.lookAgainLocked()
}

// end is told of every call that ended.
func (h *hog) end(leftovers bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.running--
	if h.running > 0 || leftovers {
		return
	}
	if h.timer != nil {
		h.timer.Stop()
	}
	h.tellLocked(false)
}

// die is told when processes are being killed: they need the CPU to end, and what they hold
// in the kernel others wait for. Nothing is a hog again before the next call.
func (h *hog) die() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.timer != nil {
		h.timer.Stop()
	}
	if h.pace == idle {
		h.setLocked(light)
	}
}

// close is die for the sandbox, which has no next call; not even its quota is in the way.
func (h *hog) close() {
	h.mu.Lock()
	was, closed := h.ever, h.closed
	h.closed = true
	h.tellLocked(false)
	h.mu.Unlock()
	if closed {
		return
	}
	h.die()
	if was {
		h.tree.unlimitCPU(h.name)
	}
}

func (h *hog) lookAgainLocked() {
	h.at, h.wait = time.Time{}, firstLook
	if h.timer == nil {
		h.timer = time.AfterFunc(h.wait, h.look)
		return
	}
	h.timer.Reset(h.wait)
}

// look adds up the CPU time used since the last look.
func (h *hog) look() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return
	}
	if h.running == 0 && !h.leftovers() {
		h.tellLocked(false)
		return
	}
	now, cpu := time.Now(), h.tree.cpu(h.name)
	if h.at.IsZero() { // the first look only begins to count: most calls end before
		h.at, h.cpu = now, cpu
		h.timer.Reset(h.wait)
		return
	}
	used, over := cpu-h.cpu, now.Sub(h.at)
	h.at, h.cpu = now, cpu
	limit := hogAt
	if h.courtesy.crowded() {
		limit = crowdAt
	}
	h.spent = min(max(0, h.spent+used-time.Duration(free*float64(over))), limit)
	switch {
	case h.pace == idle && float64(used) > calmShare*float64(over):
	case h.pace == idle:
		h.spent = limit - brief
		h.setLocked(light)
	case h.spent >= limit:
		h.setLocked(idle)
	case h.spent >= brief:
		h.setLocked(light)
	default:
		h.setLocked(fresh)
	}
	switch {
	case h.pace == idle:
		h.wait = calmWindow
	case used > over/4:
		h.wait = firstLook
	default:
		h.wait = min(2*h.wait, maxLook)
	}
	h.timer.Reset(h.wait)
}

// setLocked is best effort: kernels before 5.15 have no cpu.idle, and then nothing is lost
// but the courtesy.
func (h *hog) setLocked(p pace) {
	if p == h.pace {
		return
	}
	if h.tree.setPace(h.name, h.pace, p) == nil {
		h.pace = p
		h.ever = h.ever || p == idle
		h.tellLocked(p != fresh)
	}
}

// tellLocked tells courtesy whether the sandbox computes: it is a hog, and not only until its
// next call.
func (h *hog) tellLocked(computes bool) {
	computes = computes && !h.closed
	switch {
	case computes == h.told:
		return
	case computes:
		h.courtesy.computes(1)
	default:
		h.courtesy.computes(-1)
	}
	h.told = computes
}

// setPace changes how a sandbox is scheduled. One that was idle has the usual weight again
// when it is not, and a weight cannot be written as long as it is.
func (t *tree) setPace(name string, from, to pace) error {
	dir := t.at("cpu", name)
	if to == idle {
		return write(dir, "cpu.idle", "1")
	}
	if from == idle {
		if err := write(dir, "cpu.idle", "0"); err != nil || to == fresh {
			return err
		}
	}
	file, weights := "cpu.shares", [...]string{fresh: "1024", light: "128"}
	if t.v2 {
		file, weights = "cpu.weight", [...]string{fresh: "100", light: "12"}
	}
	return write(dir, file, weights[to])
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
