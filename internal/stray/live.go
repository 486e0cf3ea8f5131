package stray

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Daemon finds the live daemon of a store: a process that was started as `... serve` and
// has files of the store open. Whether it answers is not asked: what it holds is its own.
// The zero value is none.
func (h Host) Daemon(ctx context.Context, store string) (Live, error) {
	h, err := h.withDefaults()
	if err != nil {
		return Live{}, err
	}
	processes, err := readProcesses(ctx, h.Proc)
	if err != nil {
		return Live{}, err
	}
	for pid := range processes {
		if !h.serves(pid) || !h.holdsStore(pid, store) {
			continue
		}
		started, err := h.started(pid)
		if err != nil {
			return Live{}, err
		}
		return Live{PID: pid, Started: started}, nil
	}
	return Live{}, nil
}

// serves looks at a process's first argument.
func (h Host) serves(pid int) bool {
	line, err := os.ReadFile(filepath.Join(h.Proc, strconv.Itoa(pid), "cmdline"))
	if err != nil {
		return false
	}
	args := strings.Split(string(line), "\x00")
	return len(args) > 1 && args[1] == "serve"
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
