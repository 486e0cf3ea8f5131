// Package policies holds the named lock-downs and turns one, with limits, into an OCI
// runtime-spec. It touches nothing.
package policies

import (
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// Limits are the bounds of one sandbox, all set (see Policy.Effective).
type Limits struct {
	CPUs        float64 `json:"cpus"`
	MemoryBytes int64   `json:"memory"`
	DiskBytes   int64   `json:"disk"`
	Inodes      int64   `json:"inodes"`
	Pids        int64   `json:"pids"`
}

// Host is what limits are clamped to.
type Host struct {
	CPUs        float64
	MemoryBytes int64
}

// Builder is what the runner asks of a policy; *Policy implements it. Declared here only
// as a sketch of the shape: the concrete type replaces it.
type Builder interface {
	// Effective fills unset limits with the policy's defaults and clamps to the host.
	// clamped names what was lowered.
	Effective(asked Limits, host Host) (eff Limits, clamped []string)
	// Spec is the lock-down for these limits. Memory in Linux.Resources is
	// MemoryBytes + DiskBytes, since the upper is a tmpfs charged to the sandbox.
	Spec(eff Limits, hostname, workdir string) (*specs.Spec, error)
}
