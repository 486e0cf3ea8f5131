package bench

import (
	"context"
	"os"
	"strconv"
	"strings"
	"time"
)

// cpuUse is what a job cost the whole host, the kernel's work behind the answers included.
type cpuUse struct {
	busy time.Duration
	ops  int
}

// each is milliseconds of CPU per operation, nil where nothing was counted.
func (u cpuUse) each() *float64 {
	if u.ops == 0 {
		return nil
	}
	ms := float64(u.busy) / float64(time.Millisecond) / float64(u.ops)
	return &ms
}

// busyTime is the time that the host's CPUs have spent on anything since it booted.
func busyTime() time.Duration {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(text), "\n")
	const tick = 10 * time.Millisecond // USER_HZ is 100 on every Linux that Go knows
	const idle, iowait, guest = 3, 4, 8
	var busy time.Duration
	for i, f := range strings.Fields(strings.TrimPrefix(first, "cpu")) {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil || i == idle || i == iowait || i >= guest { // guest time is in user already
			continue
		}
		busy += time.Duration(n) * tick
	}
	return busy
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
