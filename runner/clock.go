package runner

import (
	"sync"
	"time"
)

// clock is a stopwatch with a budget. It may be stopped and started again at will.
type clock struct {
	budget time.Duration // 0 is none
	fired  chan struct{} // closed when the budget is used up

	mu    sync.Mutex
	used  time.Duration
	since time.Time // zero while it stands
	timer *time.Timer
	over  bool
}

func newClock(budget time.Duration) *clock {
	return &clock{budget: budget, fired: make(chan struct{})}
}

func (c *clock) start() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.since.IsZero() || c.over {
		return
	}
	c.since = time.Now()
	if c.budget > 0 {
		c.timer = time.AfterFunc(max(0, c.budget-c.used), c.expire)
	}
}

func (c *clock) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.since.IsZero() {
		return
	}
	c.used += time.Since(c.since)
	c.since = time.Time{}
	if c.timer != nil {
		c.timer.Stop()
		c.timer = nil
	}
}

func (c *clock) expire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	// A stop that came first may have left this timer's call on its way.
	if c.since.IsZero() || c.over || c.used+time.Since(c.since) < c.budget {
		return
	}
	c.over = true
	close(c.fired)
}

func (c *clock) elapsed() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.since.IsZero() {
		return c.used
	}
	return c.used + time.Since(c.since)
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
