package oci

import (
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/paddock-run/paddock/sandbox/native"
)

// guestPath is PID 1's program: a sealed memory file that the runtime is given as the first
// descriptor after the socket, and that no path of the world leads to. runsc takes the
// descriptor by an option, and this is then a name only.
const guestPath = "/proc/self/fd/4"

// guestCaps are the capabilities that PID 1 has beside the policy's, to start programs as
// other users and to give terminals to them. It drops them from the bounding set before
// it starts any.
var guestCaps = []string{"CAP_CHOWN", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID"}

// killCap lets PID 1 end programs under runsc, whose processes no cgroup of the host ends.
const killCap = "CAP_KILL"

// guestScores tell the OOM killer whom to take first; they are PID 1's to write, whose user
// the agent may be.
var guestScores = []string{
	"/proc/1/oom_adj", "/proc/1/oom_score_adj", "/proc/1/task/1/oom_adj", "/proc/1/task/1/oom_score_adj",
}

// config is the bundle's config.json. Limits are kept by the launcher's cgroups, so the
// runtime is told of none; resource limits are set by the guest for each program.
func config(c *native.Container, kind Kind) *specs.Spec {
	in := c.OCI
	ids := []specs.LinuxIDMapping{{ContainerID: 0, HostID: c.IDs.HostID, Size: c.IDs.Size}}
	return &specs.Spec{
		Version:  "1.0.2", // what the oldest runtimes that are of use know
		Hostname: in.Hostname,
		Root:     &specs.Root{Path: c.RootFS(), Readonly: in.Root != nil && in.Root.Readonly},
		Process:  process(in, kind),
		Mounts:   mounts(c, kind),
		Linux: &specs.Linux{
			UIDMappings: ids, GIDMappings: ids,
			Namespaces:    slices.Clone(in.Linux.Namespaces),
			CgroupsPath:   c.Cgroup,
			Resources:     &specs.LinuxResources{Devices: in.Linux.Resources.Devices},
			Seccomp:       in.Linux.Seccomp,
			MaskedPaths:   in.Linux.MaskedPaths,
			ReadonlyPaths: slices.Concat(in.Linux.ReadonlyPaths, guestScores),
		},
	}
}

func process(in *specs.Spec, kind Kind) *specs.Process {
	caps := slices.Clone(guestCaps)
	if kind == Runsc {
		caps = append(caps, killCap)
	}
	if in.Process != nil && in.Process.Capabilities != nil {
		caps = append(caps, in.Process.Capabilities.Bounding...)
	}
	slices.Sort(caps)
	caps = slices.Compact(caps)
	return &specs.Process{
		Args: []string{guestPath}, Env: []string{}, Cwd: "/",
		// No inheritable and no ambient ones, as in the policy.
		Capabilities:    &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps},
		NoNewPrivileges: true,
	}
}

// mounts are first the world's directories that stay writable, then the policy's file
// systems, then what is the launcher's. /dev is a native sandbox's but under runsc, which has
// devices of its own: a runtime's are bound from the host one by one, without any flag.
func mounts(c *native.Container, kind Kind) []specs.Mount {
	var all []specs.Mount
	for _, p := range c.Parts {
		if p.Writable {
			all = append(all, bind(p, "rw"))
		}
	}
	for _, m := range c.OCI.Mounts {
		if m.Type == "bind" {
			continue
		}
		if m.Destination == "/dev" && kind != Runsc {
			m = specs.Mount{Destination: "/dev", Type: "bind", Source: c.Dev, Options: []string{"bind", "nosuid", "noexec", "ro"}}
		}
		all = append(all, m)
	}
	for _, p := range c.Parts {
		// runsc would make the file to mount on in the world's /proc, and has its own.
		if !p.Writable && (kind != Runsc || !strings.HasPrefix(p.Destination, "/proc/")) {
			all = append(all, bind(p, "ro", "noexec"))
		}
	}
	return all
}

func bind(p native.Part, options ...string) specs.Mount {
	return specs.Mount{
		Destination: p.Destination, Type: "bind", Source: p.Source,
		Options: append([]string{"bind", "nosuid", "nodev"}, options...),
	}
}
