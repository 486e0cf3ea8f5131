package bench

import (
	"bufio"
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

// available is how much memory the host could still give, in bytes.
func available() int64 {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0
	}
	defer func() { _ = f.Close() }()
	for s := bufio.NewScanner(f); s.Scan(); {
		if rest, ok := strings.CutPrefix(s.Text(), "MemAvailable:"); ok {
			kb, _ := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(rest, "kB")), 10, 64)
			return kb << 10
		}
	}
	return 0
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
