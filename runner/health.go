package runner

import (
	"fmt"
	"sync"
)

// unhealthyAfter is how many set-ups of one world must fail in a row before it is
// quarantined.
const unhealthyAfter = 3

// worldOf is a world as one owner uses it: a budget that one owner chose too small must
// not keep the others from it.
type worldOf struct{ owner, world string }

// worldHealth counts the set-ups that failed in a row. It is kept in memory: a new start
// of the daemon tries every world again.
type worldHealth struct {
	mu     sync.Mutex
	failed map[worldOf]int
}

// check refuses a world in quarantine.
func (h *worldHealth) check(owner, world string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.failed[worldOf{owner, world}] < unhealthyAfter {
		return nil
	}
	return &Error{
		Kind: KindWorldUnhealthy, Field: "world",
		Detail: fmt.Sprintf("the set-up of %s failed %d times in a row; a set-up under way that succeeds, or to build or import the world again, lifts this", world, unhealthyAfter),
	}
}

// note counts one set-up; a nil end is a success. Other ends say nothing about the world.
func (h *worldHealth) note(owner, world string, end *End) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case end == nil:
		delete(h.failed, worldOf{owner, world})
	case end.Cause == WorldBad:
		h.failed[worldOf{owner, world}]++
	}
}

// lift forgets what was counted, for every owner.
func (h *worldHealth) lift(world string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for k := range h.failed {
		if k.world == world {
			delete(h.failed, k)
		}
	}
}
