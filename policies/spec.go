package policies

import (
	"fmt"
	"math"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// cpuPeriod is the period of the CPU quota, in microseconds.
const cpuPeriod = 100_000

var hostnameForm = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9.-]{0,61}[A-Za-z0-9])?$`)

// replaced are the directories that a launcher puts in place of the world's own.
var replaced = []string{"/proc", "/dev", "/sys"}

// Spec is the lock-down for these limits. Memory in Linux.Resources is
// Limits.Memory: a layer in a tmpfs is charged to the sandbox. A mount of
// type bind whose source equals its destination names a directory of the world itself
// that stays writable under a read-only root. All specs of a policy share one seccomp
// profile: it is not to be changed.
func (p *Policy) Spec(eff Limits, hostname, workdir string) (*specs.Spec, error) {
	if !hostnameForm.MatchString(hostname) {
		return nil, fmt.Errorf("hostname %q: want letters, digits, dots and dashes, at most 63", hostname)
	}
	if err := checkWorkdir(workdir); err != nil {
		return nil, err
	}
	return &specs.Spec{
		Version:  specs.Version,
		Hostname: hostname,
		Root:     &specs.Root{Path: "rootfs", Readonly: p.file.Root == "read-only"},
		Process:  p.process(workdir),
		Mounts:   p.mounts(eff, workdir),
		Linux: &specs.Linux{
			Namespaces:    namespaces(),
			Resources:     resources(eff),
			Seccomp:       p.seccomp,
			MaskedPaths:   slices.Clone(p.file.MaskedPaths),
			ReadonlyPaths: slices.Clone(p.file.ReadonlyPaths),
		},
	}, nil
}

func checkWorkdir(dir string) error {
	if !path.IsAbs(dir) || path.Clean(dir) != dir || strings.ContainsRune(dir, 0) || len(dir) > 4095 {
		return fmt.Errorf("working directory %q: want a clean absolute path", dir)
	}
	for _, r := range replaced {
		if within(r, dir) {
			return fmt.Errorf("working directory %q: %s of the world is not seen inside", dir, r)
		}
	}
	return nil
}

func (p *Policy) process(workdir string) *specs.Process {
	caps := func() []string { return slices.Clone(p.file.Capabilities) }
	umask := p.Umask()
	var rlimits []specs.POSIXRlimit
	for _, name := range rlimitNames {
		pair := p.file.Rlimits[name]
		rlimits = append(rlimits, specs.POSIXRlimit{
			Type: "RLIMIT_" + strings.ToUpper(name), Soft: uint64(pair[0]), Hard: uint64(pair[1]),
		})
	}
	return &specs.Process{
		User: specs.User{UID: p.file.User.UID, GID: p.file.User.GID, Umask: &umask},
		Env:  p.Env(0),
		Cwd:  workdir,
		// Inheritable and ambient stay empty: nothing is gained by an exec.
		Capabilities:    &specs.LinuxCapabilities{Bounding: caps(), Effective: caps(), Permitted: caps()},
		Rlimits:         rlimits,
		NoNewPrivileges: true,
	}
}

func (p *Policy) mounts(eff Limits, workdir string) []specs.Mount {
	// Pages of /dev/shm are the sandbox's memory: filled to the limit, they would leave
	// no process room to start.
	shm := min(int64(p.file.Shm), eff.MemoryBytes/4)
	mounts := []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "nodev", "noexec"}},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "noexec", "mode=755", "size=64k"}},
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"}},
		{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{"nosuid", "nodev", "noexec", "mode=1777", "size=" + strconv.FormatInt(shm, 10)}},
	}
	for _, dir := range p.Writable(workdir) {
		if dir == "/" {
			continue
		}
		mounts = append(mounts, specs.Mount{
			Destination: dir, Type: "bind", Source: dir, Options: []string{"bind", "rw", "nosuid", "nodev"},
		})
	}
	return mounts
}

func namespaces() []specs.LinuxNamespace {
	var all []specs.LinuxNamespace
	for _, t := range []specs.LinuxNamespaceType{
		specs.UserNamespace, specs.MountNamespace, specs.PIDNamespace, specs.IPCNamespace,
		specs.UTSNamespace, specs.CgroupNamespace, specs.NetworkNamespace,
	} {
		all = append(all, specs.LinuxNamespace{Type: t})
	}
	return all
}

func resources(eff Limits) *specs.LinuxResources {
	quota := int64(math.Round(eff.CPUs * cpuPeriod))
	period := uint64(cpuPeriod)
	memory := eff.Memory()
	// Memory and swap together, so no swap at all.
	swap := memory
	pids := eff.Pids
	return &specs.LinuxResources{
		Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}},
		CPU:     &specs.LinuxCPU{Quota: &quota, Period: &period},
		Memory:  &specs.LinuxMemory{Limit: &memory, Swap: &swap},
		Pids:    &specs.LinuxPids{Limit: &pids},
	}
}
