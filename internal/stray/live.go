package stray

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Daemon describes the process pid as the live daemon of a store. ok is false when it has
// no file of the store open: then it serves another one.
func (h Host) Daemon(pid int, store string) (live Live, ok bool, err error) {
	if h.Proc == "" {
		h.Proc = "/proc"
	}
	if !h.holdsStore(pid, store) {
		return Live{}, false, nil
	}
	started, err := h.started(pid)
	if err != nil {
		return Live{}, false, err
	}
	return Live{PID: pid, Started: started}, true, nil
}

// started is when a process began, exact to a second: the kernel counts its ticks from a
// boot time in whole seconds. It is rounded down, so that nothing of the process's own
// looks older than it.
func (h Host) started(pid int) (time.Time, error) {
	const ticksPerSecond = 100 // USER_HZ, fixed in the kernel's ABI
	stat, err := os.ReadFile(filepath.Join(h.Proc, strconv.Itoa(pid), "stat"))
	if err != nil {
		return time.Time{}, fmt.Errorf("look at the daemon: %w", err)
	}
	p, ok := parseStat(string(stat))
	if !ok {
		return time.Time{}, fmt.Errorf("look at the daemon: process %d is gone", pid)
	}
	ticks, err := strconv.ParseInt(p.start, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("look at the daemon: start time: %w", err)
	}
	kernel, err := os.ReadFile(filepath.Join(h.Proc, "stat"))
	if err != nil {
		return time.Time{}, fmt.Errorf("look at the boot time: %w", err)
	}
	for line := range strings.Lines(string(kernel)) {
		if value, ok := strings.CutPrefix(line, "btime "); ok {
			boot, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
			if err != nil {
				return time.Time{}, fmt.Errorf("look at the boot time: %w", err)
			}
			return time.Unix(boot+ticks/ticksPerSecond-1, 0), nil
		}
	}
	return time.Time{}, errors.New("look at the boot time: /proc/stat has no btime")
}
