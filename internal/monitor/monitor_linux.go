// Package monitor lets the Go runtime's monitor thread sleep longer.
//
// While any goroutine runs, that thread (sysmon) wakes every 20 µs to look for threads that
// are held up in a system call, to give their place to others. With the kernel's usual slack
// of 50 µs that is 12,000 switches a second; on a virtual machine each costs some 10 µs, so
// a tenth of a CPU and, on few CPUs, of whatever else would run. A slack of one millisecond
// makes it a thousand. The price: behind a goroutine in a long system call others wait up to
// a millisecond for its place, where all other places are taken.
package monitor

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"
)

// slack is how much longer than asked for the thread may sleep.
const slack = time.Millisecond

// Calm gives this process's monitor thread its slack. To be called early in main, while the
// process has few threads: the runtime starts the monitor right after the main thread, and
// the kernel lists threads in that order. An error changes nothing.
func Calm() error {
	dir, err := os.Open("/proc/self/task")
	if err != nil {
		return fmt.Errorf("list threads: %w", err)
	}
	defer func() { _ = dir.Close() }()
	threads, err := dir.Readdirnames(0)
	if err != nil {
		return fmt.Errorf("list threads: %w", err)
	}
	if len(threads) < 2 || threads[0] != strconv.Itoa(os.Getpid()) {
		return errors.New("list threads: the main thread is not the first")
	}
	file := "/proc/" + threads[1] + "/timerslack_ns"
	if err := os.WriteFile(file, strconv.AppendInt(nil, int64(slack), 10), 0); err != nil {
		return fmt.Errorf("set the monitor's slack: %w", err)
	}
	return nil
}
