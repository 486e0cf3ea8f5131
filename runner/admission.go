package runner

import (
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/paddock-run/paddock/policies"
)

// DefaultMaxQueue bounds the episodes that wait for capacity.
const DefaultMaxQueue = 10000

// hostShare is the part of the host that episodes may reserve; the rest is the daemon's
// and the system's.
const hostShare = 0.85

// admission hands out the host's CPU and memory by what episodes request. Who waits is
// served in order of priority, then of arrival; a big one at the front is not passed by
// small ones behind it, so nobody starves.
type admission struct {
	cpus, memory float64
	maxQueue     int

	mu               sync.Mutex
	usedCPU, usedMem float64
	queue            []*ticket
	seq              int64
}

type ticket struct {
	req      Requests
	priority int
	seq      int64
	admitted chan struct{}
}

func newAdmission(host policies.Host, maxQueue int) *admission {
	if maxQueue == 0 {
		maxQueue = DefaultMaxQueue
	}
	return &admission{cpus: host.CPUs, memory: float64(host.MemoryBytes) * hostShare, maxQueue: maxQueue}
}

// enter joins the queue; a full queue is over_capacity. The ticket may be admitted at once.
func (ad *admission) enter(req Requests, priority int) (*ticket, error) {
	ad.mu.Lock()
	defer ad.mu.Unlock()
	if len(ad.queue) >= ad.maxQueue {
		return nil, &Error{Kind: KindOverCapacity, Detail: "the queue of episodes is full", RetryAfter: 5 * time.Second}
	}
	// A request that is more than the share alone would wait for ever.
	req.MemoryBytes = min(req.MemoryBytes, int64(max(ad.memory, 0)))
	if ad.memory == 0 {
		req.MemoryBytes = 0
	}
	if ad.cpus == 0 {
		req.CPUs = 0
	}
	ad.seq++
	t := &ticket{req: req, priority: priority, seq: ad.seq, admitted: make(chan struct{})}
	at, _ := slices.BinarySearchFunc(ad.queue, t, compareTickets)
	ad.queue = slices.Insert(ad.queue, at, t)
	ad.serveLocked()
	return t, nil
}

func compareTickets(a, b *ticket) int {
	if a.priority != b.priority {
		return b.priority - a.priority
	}
	return int(a.seq - b.seq)
}

func (ad *admission) serveLocked() {
	for len(ad.queue) > 0 {
		t := ad.queue[0]
		// A thousandth of slack: many small numbers do not add up exactly.
		if ad.usedCPU+t.req.CPUs > ad.cpus+0.001 || ad.usedMem+float64(t.req.MemoryBytes) > ad.memory {
			return
		}
		ad.usedCPU += t.req.CPUs
		ad.usedMem += float64(t.req.MemoryBytes)
		ad.queue = ad.queue[1:]
		close(t.admitted)
	}
}

// leave gives back what an admitted ticket holds, or takes a waiting one out.
func (ad *admission) leave(t *ticket) {
	ad.mu.Lock()
	defer ad.mu.Unlock()
	if i := slices.Index(ad.queue, t); i >= 0 {
		ad.queue = slices.Delete(ad.queue, i, i+1)
	} else {
		ad.usedCPU -= t.req.CPUs
		ad.usedMem -= float64(t.req.MemoryBytes)
	}
	ad.serveLocked()
}

// room is how many more of such requests would be let in at once.
func (ad *admission) room(req Requests) int {
	ad.mu.Lock()
	defer ad.mu.Unlock()
	if len(ad.queue) > 0 {
		return 0
	}
	room := math.Inf(1)
	if ad.cpus > 0 && req.CPUs > 0 {
		room = (ad.cpus + 0.001 - ad.usedCPU) / req.CPUs
	}
	if ad.memory > 0 && req.MemoryBytes > 0 {
		room = min(room, (ad.memory-ad.usedMem)/float64(req.MemoryBytes))
	}
	return int(max(0, min(room, MaxWarm)))
}

// busy says that somebody waits.
func (ad *admission) busy() bool {
	ad.mu.Lock()
	defer ad.mu.Unlock()
	return len(ad.queue) > 0
}

// position is 1 for the next to be admitted, 0 for who does not wait.
func (ad *admission) position(t *ticket) int {
	ad.mu.Lock()
	defer ad.mu.Unlock()
	return slices.Index(ad.queue, t) + 1
}

// wait returns when the ticket is admitted, or ctx is done: false is not admitted.
func (t *ticket) wait(ctx context.Context) bool {
	if stopped(t.admitted) {
		return true
	}
	select {
	case <-t.admitted:
		return true
	case <-ctx.Done():
		return false
	}
}

// Capacity is what admission has and has given.
type Capacity struct {
	CPUs            float64 `json:"cpus"`
	MemoryBytes     int64   `json:"memory"`
	UsedCPUs        float64 `json:"used_cpus"`
	UsedMemoryBytes int64   `json:"used_memory"`
	Queued          int     `json:"queued"`
	MaxQueue        int     `json:"max_queue"`
	Live            int     `json:"live"`
	// Stock is what is made ahead of need.
	Stock StockView `json:"stock"`
}

// Capacity tells how full the host is.
func (r *Runner) Capacity() Capacity {
	ad := r.admission
	ad.mu.Lock()
	c := Capacity{
		CPUs: ad.cpus, MemoryBytes: int64(ad.memory), UsedCPUs: ad.usedCPU, UsedMemoryBytes: int64(ad.usedMem),
		Queued: len(ad.queue), MaxQueue: ad.maxQueue,
	}
	ad.mu.Unlock()
	r.mu.Lock()
	c.Live = len(r.live)
	r.mu.Unlock()
	c.Stock = r.stock.view()
	return c
}
