package main

import (
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/paddock-run/paddock/policies"
)

// hostLimits are what there is to hand out. NumCPU honours the daemon's CPU affinity.
func hostLimits() policies.Host {
	host := policies.Host{CPUs: float64(runtime.NumCPU())}
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		host.MemoryBytes = int64(info.Totalram) * int64(info.Unit)
	}
	return host
}
