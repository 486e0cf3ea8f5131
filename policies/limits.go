package policies

import (
	"fmt"
	"math"
)

// Limits are the bounds of one sandbox. In a request a field that is zero is unset; what
// Policy.Effective returns has all of them set.
type Limits struct {
	CPUs        float64 `json:"cpus"`
	MemoryBytes int64   `json:"memory"`
	DiskBytes   int64   `json:"disk"`
	Inodes      int64   `json:"inodes"`
	Pids        int64   `json:"pids"`
	// DiskOn is what the writable layer stands on: HostDisk.Kind, or DiskInMemory. Effective
	// sets it; in a request it counts for nothing.
	DiskOn string `json:"disk_on,omitempty"`
}

// DiskInMemory is the DiskOn of a layer in a tmpfs, whose bytes are the sandbox's memory.
const DiskInMemory = "tmpfs"

// Memory is what the sandbox's processes and layer may use of the host's memory. An unset
// DiskOn is DiskInMemory.
func (l Limits) Memory() int64 {
	if l.OnDisk() {
		return l.MemoryBytes
	}
	return l.MemoryBytes + l.DiskBytes
}

// OnDisk says whether the layer is on the host's disk.
func (l Limits) OnDisk() bool { return l.DiskOn != "" && l.DiskOn != DiskInMemory }

// Host is what limits are clamped to; a field that is zero is unknown and clamps nothing.
type Host struct {
	CPUs        float64
	MemoryBytes int64
	// Disk is what holds writable layers that memory should not; its zero value is nothing.
	Disk HostDisk
}

// HostDisk is a way to bound writable layers on a disk.
type HostDisk struct {
	// Kind names it; empty means that there is none and every layer is in memory.
	Kind string
	// Above is the largest limit that is kept in memory all the same.
	Above int64
	// Bytes is the largest limit that the disk can keep.
	Bytes int64
}

// on is what a layer of a limit stands on.
func (d HostDisk) on(bytes int64) string {
	if d.Kind == "" || bytes <= d.Above {
		return DiskInMemory
	}
	return d.Kind
}

// The least limits with which a sandbox can start and answer.
const (
	minCPUs   = 0.01 // the kernel's least quota of 1 ms, in its period of 100 ms
	minMemory = 4 << 20
	minDisk   = 64 << 10
	minInodes = 16
	minPids   = 4
)

// What the kernel lets one host have, whatever its size.
const (
	maxPids       = 1 << 22 // PID_MAX_LIMIT
	inodeBytes    = 1024    // what an empty file in a tmpfs costs, about
	maxCPUs       = 8192    // NR_CPUS of the largest kernels
	maxBytes      = 1 << 50
	unknownInodes = maxBytes / inodeBytes
)

// fill takes what asked leaves unset from l, and lowers what is above the host's.
func (l Limits) fill(asked Limits, host Host) (eff Limits, clamped []string, err error) {
	if math.IsNaN(asked.CPUs) || math.IsInf(asked.CPUs, 0) {
		return Limits{}, nil, &LimitError{Field: "cpus", Detail: "is not a number"}
	}
	cpuCap, memCap, inodeCap := float64(maxCPUs), int64(maxBytes), int64(unknownInodes)
	if host.CPUs > 0 {
		cpuCap = host.CPUs
	}
	if host.MemoryBytes > 0 {
		memCap = host.MemoryBytes
		inodeCap = host.MemoryBytes / inodeBytes
	}
	diskCap := memCap // a tmpfs
	if host.Disk.Kind != "" {
		diskCap = max(host.Disk.Bytes, min(host.Disk.Above, memCap))
	}
	c := clamper{}
	eff.CPUs = clamp(&c, "cpus", asked.CPUs, l.CPUs, minCPUs, cpuCap)
	eff.MemoryBytes = clamp(&c, "memory", asked.MemoryBytes, l.MemoryBytes, minMemory, memCap)
	eff.DiskBytes = clamp(&c, "disk", asked.DiskBytes, l.DiskBytes, minDisk, diskCap)
	eff.DiskOn = host.Disk.on(eff.DiskBytes)
	if eff.OnDisk() {
		inodeCap = unknownInodes
	}
	eff.Inodes = clamp(&c, "inodes", asked.Inodes, l.Inodes, minInodes, inodeCap)
	eff.Pids = clamp(&c, "pids", asked.Pids, l.Pids, minPids, maxPids)
	if c.err != nil {
		return Limits{}, nil, c.err
	}
	return eff, c.clamped, nil
}

// clamper gathers what happened to the fields.
type clamper struct {
	clamped []string
	err     error
}

func clamp[N int64 | float64](c *clamper, field string, asked, unset, least, most N) N {
	n := asked
	if n == 0 {
		n = unset
	}
	switch {
	case n < 0:
		c.fail(field, "is negative")
	case n < least:
		c.fail(field, fmt.Sprintf("is %v, the least is %v", n, least))
	case n > most:
		c.clamped = append(c.clamped, field)
		// A host smaller than the least is the host's fault, not the request's.
		return max(most, least)
	}
	return n
}

func (c *clamper) fail(field, detail string) {
	if c.err == nil {
		c.err = &LimitError{Field: field, Detail: detail}
	}
}
