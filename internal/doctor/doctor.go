// Package doctor looks at a host and says what paddock needs of it, what it has, and
// what to do about the difference. It changes nothing and believes what the kernel
// answers, not what a distribution calls itself.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

// Level says how bad a finding is.
type Level string

// The levels. Fail means that episodes cannot run here; Warn that something is slower,
// smaller or weaker than it could be.
const (
	OK   Level = "ok"
	Warn Level = "warn"
	Fail Level = "fail"
)

// Check is one line of the report.
type Check struct {
	Name  string `json:"name"`
	Level Level  `json:"level"`
	// Found is what was seen.
	Found string `json:"found"`
	// Do says what to do about it; empty when nothing is to be done.
	Do string `json:"do,omitempty"`
}

func ok(format string, args ...any) Check {
	return Check{Level: OK, Found: fmt.Sprintf(format, args...)}
}

func warn(do, format string, args ...any) Check {
	return Check{Level: Warn, Do: do, Found: fmt.Sprintf(format, args...)}
}

func fail(do, format string, args ...any) Check {
	return Check{Level: Fail, Do: do, Found: fmt.Sprintf(format, args...)}
}

// Examine makes every check; store is the store's root, which need not exist yet. disks
// says how the disk of a directory that is there can be bounded; nil leaves that out.
func Examine(ctx context.Context, store string, disks func(ctx context.Context, dir string) Check) []Check {
	checks := []struct {
		name string
		look func() Check
	}{
		{"platform", platform},
		{"root", root},
		{"capabilities", capabilities},
		{"kernel", kernel},
		{"overlayfs", overlayfs},
		{"system calls", systemCalls},
		{"namespaces", func() Check { return namespaces(ctx) }},
		{"namespace limits", namespaceLimits},
		{"seccomp", seccomp},
		{"cgroups", cgroups},
		{"store", func() Check { return storeCheck(store) }},
		{"disk limits", func() Check { return disks(ctx, exists(store)) }},
		{"memory", memory},
		{"descriptors", descriptors},
		{"process ids", processIDs},
		{"core dumps", coreDumps},
		{"busybox", busybox},
		{"mmdebstrap", func() Check { return program("mmdebstrap", "build worlds of recipe debian:SUITE") }},
	}
	report := make([]Check, 0, len(checks))
	for _, c := range checks {
		if c.name == "disk limits" && disks == nil {
			continue
		}
		found := c.look()
		found.Name = c.name
		report = append(report, found)
	}
	return report
}

// Worst is the worst level of a report.
func Worst(report []Check) Level {
	worst := OK
	for _, c := range report {
		if c.Level == Fail || (c.Level == Warn && worst == OK) {
			worst = c.Level
		}
	}
	return worst
}

func platform() Check {
	found := runtime.GOOS + "/" + runtime.GOARCH
	if runtime.GOARCH != "amd64" {
		return warn("use x86_64: the system call filter is tested there alone", "%s", found)
	}
	return ok("%s, %d CPUs", found, runtime.NumCPU())
}

func root() Check {
	if uid := os.Geteuid(); uid != 0 {
		return fail("run the daemon as root: it makes user namespaces with ranges of ids, cgroups and idmapped mounts", "uid %d", uid)
	}
	return ok("uid 0")
}

// capabilities looks for the two whose lack shows late.
func capabilities() Check {
	const sysAdmin, sysResource = 21, 24
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return fail("mount /proc", "%v", err)
	}
	set, err := effectiveCapabilities(string(status))
	switch {
	case err != nil:
		return fail("mount the kernel's own /proc", "%v", err)
	case set&(1<<sysAdmin) == 0:
		return fail("start outside of a container, or give it CAP_SYS_ADMIN", "no CAP_SYS_ADMIN")
	case set&(1<<sysResource) == 0:
		return warn("give CAP_SYS_RESOURCE, or raise the hard limits before the start: limits above the host's are clamped", "no CAP_SYS_RESOURCE")
	}
	return ok("all that is needed")
}

func effectiveCapabilities(status string) (uint64, error) {
	for line := range strings.Lines(status) {
		if value, ok := strings.CutPrefix(line, "CapEff:"); ok {
			return strconv.ParseUint(strings.TrimSpace(value), 16, 64)
		}
	}
	return 0, errors.New("/proc/self/status has no CapEff")
}

func overlayfs() Check {
	list, err := os.ReadFile("/proc/filesystems")
	if err == nil && strings.Contains(string(list), "\toverlay\n") {
		return ok("present")
	}
	return fail("load it: modprobe overlay", "/proc/filesystems has no overlay")
}

func seccomp() Check {
	const file = "/proc/sys/kernel/seccomp/actions_avail"
	actions, err := os.ReadFile(file)
	if err != nil {
		return fail("use a kernel with CONFIG_SECCOMP_FILTER", "%v", err)
	}
	have := strings.Fields(string(actions))
	for _, want := range []string{"errno", "kill_process", "allow"} {
		if !slices.Contains(have, want) {
			return fail("use a kernel with CONFIG_SECCOMP_FILTER", "%s lacks %s", file, want)
		}
	}
	return ok("filters with %s", strings.Join(have, " "))
}

// namespaceLimits reads the counts below which many episodes at once fail late.
func namespaceLimits() Check {
	const wanted = 4096
	low := []string{}
	for _, kind := range []string{"user", "mnt", "pid", "net", "ipc", "uts", "cgroup"} {
		file := "/proc/sys/user/max_" + kind + "_namespaces"
		n, err := readInt(file)
		if err != nil {
			return fail("use a kernel with all namespaces", "%v", err)
		}
		if n == 0 {
			return fail("sysctl -w user.max_"+kind+"_namespaces=65536", "%s is 0", file)
		}
		if n < wanted {
			low = append(low, fmt.Sprintf("%s %d", kind, n))
		}
	}
	if len(low) > 0 {
		return warn("raise user.max_*_namespaces for more episodes at once", "at most %s", strings.Join(low, ", "))
	}
	return ok("at least %d of each kind", wanted)
}

func memory() Check {
	const low = 2 << 20 // KiB
	info, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return fail("mount /proc", "%v", err)
	}
	total := meminfo(string(info), "MemTotal")
	swap := meminfo(string(info), "SwapTotal")
	found := fmt.Sprintf("%.1f GiB, swap %.1f GiB", float64(total)/(1<<20), float64(swap)/(1<<20))
	if total < low {
		return warn("every episode's files are in memory: set small limits", "%s", found)
	}
	return ok("%s", found)
}

// meminfo returns one value of /proc/meminfo in KiB.
func meminfo(file, key string) int64 {
	for line := range strings.Lines(file) {
		if value, ok := strings.CutPrefix(line, key+":"); ok {
			n, _ := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 10, 64)
			return n
		}
	}
	return 0
}

func processIDs() Check {
	const wanted = 1 << 17
	pids, err := readInt("/proc/sys/kernel/pid_max")
	if err != nil {
		return fail("mount /proc", "%v", err)
	}
	threads, err := readInt("/proc/sys/kernel/threads-max")
	if err != nil {
		return fail("mount /proc", "%v", err)
	}
	found := fmt.Sprintf("pid_max %d, threads-max %d", pids, threads)
	if min(pids, threads) < wanted {
		return warn("for thousands of episodes at once: sysctl -w kernel.pid_max=4194304 kernel.threads-max=1000000", "%s", found)
	}
	return ok("%s", found)
}

// coreDumps looks for a program of the host that a crash in a sandbox would start: the
// kernel runs it as root, outside of the sandbox, whatever the limit on core files is.
func coreDumps() Check {
	pattern, err := os.ReadFile("/proc/sys/kernel/core_pattern")
	if err != nil {
		return fail("mount /proc", "%v", err)
	}
	return corePattern(strings.TrimSpace(string(pattern)))
}

func corePattern(pattern string) Check {
	if program, piped := strings.CutPrefix(pattern, "|"); piped {
		return warn("sysctl -w kernel.core_pattern=core, so that the code in a sandbox feeds no program of the host",
			"a crash in a sandbox starts %s as root of the host", program)
	}
	return ok("a crash in a sandbox starts no program of the host")
}

func readInt(file string) (int64, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", file, err)
	}
	return n, nil
}

func busybox() Check {
	const do = "for worlds of recipe busybox: apt-get install busybox-static"
	path, err := exec.LookPath("busybox")
	if err != nil {
		return warn(do, "not found")
	}
	static, err := isStatic(path)
	switch {
	case err != nil:
		return warn(do, "%v", err)
	case !static:
		return warn(do, "%s is linked to shared libraries", path)
	}
	return ok("%s, static", path)
}

func program(name, purpose string) Check {
	path, err := exec.LookPath(name)
	if err != nil {
		return warn("to "+purpose+": apt-get install "+name, "not found")
	}
	return ok("%s", path)
}

// exists climbs to the nearest directory that is there.
func exists(dir string) string {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "/"
	}
	for {
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) || dir == "/" {
			return dir
		}
		dir = filepath.Dir(dir)
	}
}
