package docker

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/paddock-run/paddock/internal/engine"
)

// Places in the image of PID 1.
const (
	guestPath  = "/init"
	socketDir  = "/paddock"
	socketName = "s"
	forkDir    = "/fork"
)

// guestCaps are what PID 1 needs to start programs as other users and to give terminals to
// them. No program that it starts has any.
var guestCaps = []string{"CHOWN", "SETGID", "SETPCAP", "SETUID"}

// guestScores tell the OOM killer whom to take first.
var guestScores = []string{
	"/proc/1/oom_adj", "/proc/1/oom_score_adj", "/proc/1/task/1/oom_adj", "/proc/1/task/1/oom_score_adj",
}

// label marks the containers of a launcher with its cgroup parent.
const label = "run.paddock.parent"

// box says what the engine is asked for. It touches nothing.
func box(name string, s settings, parent string, oci *specs.Spec) (engine.Box, error) {
	b := engine.Box{
		Name: "paddock-" + name + "-" + s.Mark, Labels: map[string]string{label: s.Parent}, Image: s.Image,
		Argv: []string{guestPath, socketDir + "/" + socketName}, Hostname: oci.Hostname, Caps: guestCaps,
		Masked: oci.Linux.MaskedPaths, ReadOnly: slices.Concat(oci.Linux.ReadonlyPaths, guestScores),
		Target: socketDir,
	}
	if s.Cgroupfs {
		b.CgroupParent = parent
	}
	if oci.Linux.Seccomp == nil {
		return b, fmt.Errorf("sandbox %s has no seccomp profile", name)
	}
	// The two forms of a profile differ only in what this one does not use.
	profile, err := json.Marshal(oci.Linux.Seccomp)
	if err != nil {
		return b, err
	}
	b.Seccomp = string(profile)
	if r := oci.Linux.Resources; r != nil {
		if r.Memory != nil && r.Memory.Limit != nil {
			b.MemoryBytes = *r.Memory.Limit
		}
		if r.CPU != nil && r.CPU.Quota != nil && r.CPU.Period != nil && *r.CPU.Period > 0 {
			b.NanoCPUs = int64(float64(*r.CPU.Quota) / float64(*r.CPU.Period) * 1e9)
		}
		if r.Pids != nil && r.Pids.Limit != nil {
			b.Pids = *r.Pids.Limit
		}
	}
	for _, m := range oci.Mounts {
		if m.Destination != "/dev/shm" {
			continue
		}
		for _, o := range m.Options {
			if v, ok := strings.CutPrefix(o, "size="); ok {
				b.Shm, err = strconv.ParseInt(v, 10, 64)
			}
		}
	}
	return b, err
}
