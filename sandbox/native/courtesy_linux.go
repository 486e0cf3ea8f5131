package native

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/paddock-run/paddock/internal/giveway"
)

const (
	// courtesyLook is how often the host is looked at while a sandbox computes.
	courtesyLook = 100 * time.Millisecond
	// courtesyShare is the part of the host's CPUs that everything else uses at most while
	// the sandboxes stand behind it: so they always get the rest.
	courtesyShare = 0.75
)

// courtesy has all sandboxes stand behind everything else on the host (SCHED_IDLE) while
// one of them computes and the rest of the host wants few of the CPUs. The daemon, its
// client and the kernel's own threads then run the moment they wake; without it they wait
// for the tick that takes a CPU from a sandbox, at each of the wake-ups that a call has. When
// the rest wants more, the sandboxes have their weight again: they never starve.
type courtesy struct {
	// used is the CPU time that the host spent, and what all sandboxes had of it.
	used func() (host, own time.Duration)
	// put has the sandboxes behind the rest, or beside it again.
	put func(behind bool) error

	mu     sync.Mutex
	busy   int // sandboxes that compute
	behind bool
	closed bool
	timer  *time.Timer
	at     time.Time // of the last look
	others time.Duration
}

func newCourtesy(t *tree) *courtesy {
	return &courtesy{
		used: func() (host, own time.Duration) { return hostCPU(), t.topCPU() },
		put: func(behind bool) error {
			if behind {
				return write(t.top("cpu"), "cpu.idle", "1")
			}
			return t.weigh()
		},
	}
}

// computes is told how many sandboxes more, or fewer, compute.
func (c *courtesy) computes(more int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.busy
	c.busy += more
	switch {
	case c.closed:
	case before == 0:
		c.measureLocked()
		c.timer = time.AfterFunc(courtesyLook/4, c.look)
	case c.busy == 0:
		c.timer.Stop()
		c.setLocked(false)
	}
}

// crowded says whether more sandboxes compute than there are CPUs.
func (c *courtesy) crowded() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.busy > runtime.NumCPU()
}

// measureLocked returns which part of the host's CPUs the rest of it used since the last time.
func (c *courtesy) measureLocked() float64 {
	now := time.Now()
	host, own := c.used()
	used, over := host-own-c.others, now.Sub(c.at)
	c.at, c.others = now, host-own
	return used.Seconds() / over.Seconds() / float64(runtime.NumCPU())
}

func (c *courtesy) look() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.busy == 0 {
		return
	}
	c.setLocked(c.measureLocked() < courtesyShare)
	c.timer.Reset(courtesyLook)
}

func (c *courtesy) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if c.timer != nil {
		c.timer.Stop()
	}
	c.setLocked(false)
}

// setLocked is best effort, as setPace is.
func (c *courtesy) setLocked(behind bool) {
	if behind != c.behind && c.put(behind) == nil {
		c.behind = behind
		giveway.Behind(behind)
	}
}

// top is a controller's cgroup of all sandboxes of this host's daemons.
func (t *tree) top(controller string) string {
	name, _, _ := strings.Cut(t.parent, "/")
	if t.v2 {
		return filepath.Join(t.unified, name)
	}
	return filepath.Join(t.v1[controller], name)
}

// topCPU is what all of them have used.
func (t *tree) topCPU() time.Duration {
	if t.v2 {
		return time.Duration(field(t.top("cpu"), "cpu.stat", "usage_usec")) * time.Microsecond
	}
	return time.Duration(readInt(t.top("cpuacct"), "cpuacct.usage"))
}

// hostCPU is the time that the host's CPUs were not idle.
func hostCPU() time.Duration {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	line, _, _ := strings.Cut(string(text), "\n")
	const idle, iowait, steal = 3, 4, 7 // guests' time is in user's, too
	var ticks int64
	for i, f := range strings.Fields(strings.TrimPrefix(line, "cpu")) {
		if i == idle || i == iowait || i > steal {
			continue
		}
		n, _ := strconv.ParseInt(f, 10, 64)
		ticks += n
	}
	return time.Duration(ticks) * (time.Second / 100)
}
