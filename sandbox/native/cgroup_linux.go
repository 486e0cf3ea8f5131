package native

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/cgroups/v3"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

const cgroupRoot = "/sys/fs/cgroup"

// tree knows where this host's cgroups are and how to make those of one sandbox:
//
//	v1 (each controller)   PARENT/NAME        the guest; for cpu the quota, too
//	                       PARENT/NAME/c      the limits (memory, pids)
//	                       PARENT/NAME/c/N    one per concurrent call (memory, pids)
//	                       PARENT/NAME/N      the same (cpuacct)
//	v1, flat (memory)      PARENT             all guests
//	                       PARENT/NAME        the limits, and the first of concurrent calls
//	                       PARENT/NAME/N      one for each further one
//	v1 (cgroup2, hybrid)   PARENT/NAME        everything: freeze and kill
//	v2                     PARENT/NAME/g      the guest
//	                       PARENT/NAME/c      the limits
//	                       PARENT/NAME/c/N    one per concurrent call
type tree struct {
	v2 bool
	// flat: what a memory cgroup costs to make, to keep and to remove is paid once a sandbox.
	// It takes v1, where a cgroup with children may have processes, and guests of our own.
	flat bool
	// unified is the cgroup2 mount; empty on a pure v1 host.
	unified string
	// v1 maps memory, pids, cpu, cpuacct to their mounts.
	v1     map[string]string
	parent string
	// sharedHits: this kernel counts a fork that a pids limit refused where the limit is, so
	// for all calls of a sandbox together.
	sharedHits bool
	// others are v1 hierarchies that only starters use; they are cleared, too.
	others []string
}

var v1Controllers = []string{"memory", "pids", "cpu", "cpuacct"}

// openTree finds the hierarchies and makes parent in each.
func openTree(parent string) (*tree, error) {
	t := &tree{parent: parent}
	switch cgroups.Mode() {
	case cgroups.Unified:
		t.v2, t.unified = true, cgroupRoot
	case cgroups.Hybrid:
		t.unified = filepath.Join(cgroupRoot, "unified")
		t.v1 = map[string]string{}
	case cgroups.Legacy:
		t.v1 = map[string]string{}
	case cgroups.Unavailable:
		return nil, errors.New("no cgroups are mounted at " + cgroupRoot)
	}
	for _, c := range v1Controllers {
		if t.v2 {
			break
		}
		dir := filepath.Join(cgroupRoot, c)
		if _, err := os.Stat(filepath.Join(dir, "cgroup.procs")); err != nil {
			return nil, fmt.Errorf("cgroup controller %s: %w", c, err)
		}
		t.v1[c] = dir
	}
	// Another launcher that closes removes a shared parent while it is empty, perhaps
	// between the making of it and of what is below.
	var err error
	for range 10 {
		if err = t.make(); !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	if t.v2 { // from Linux 6.11 on, and that file is as new
		t.sharedHits = unix.Access(filepath.Join(t.at("", ""), "pids.events.local"), unix.F_OK) == nil
	}
	return t, err
}

// make makes the parent.
func (t *tree) make() error {
	for _, dir := range t.dirs("") {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if t.v2 {
		if err := t.delegate(); err != nil {
			return err
		}
	}
	return t.weigh()
}

// weigh gives all sandboxes together the weight of one busy process per CPU. A new cgroup
// weighs as much as one process, so that a host with a few other busy ones would leave
// next to nothing for a thousand episodes.
func (t *tree) weigh() error {
	top, n := t.top("cpu"), runtime.NumCPU()
	_ = write(top, "cpu.idle", "0") // a weight cannot be written else; from Linux 5.15 on
	if t.v2 {
		return write(top, "cpu.weight", strconv.Itoa(min(100*n, 10_000)))
	}
	return write(top, "cpu.shares", strconv.Itoa(min(1024*n, 262_144)))
}

// delegate switches the controllers on from the root down to the parent.
func (t *tree) delegate() error {
	dir := t.unified
	for _, part := range append([]string{""}, strings.Split(t.parent, "/")...) {
		dir = filepath.Join(dir, part)
		if err := write(dir, "cgroup.subtree_control", "+cpu +memory +pids"); err != nil {
			return fmt.Errorf("enable cgroup controllers in %s: %w", dir, err)
		}
	}
	return nil
}

// findOthers finds the v1 hierarchies that this package makes nothing in, but that an OCI
// runtime or an engine does.
func (t *tree) findOthers() {
	entries, err := os.ReadDir(cgroupRoot)
	if t.v2 || err != nil {
		return
	}
	for _, e := range entries {
		dir := filepath.Join(cgroupRoot, e.Name())
		if _, err := os.Stat(filepath.Join(dir, "tasks")); err == nil && e.IsDir() && t.v1[e.Name()] == "" {
			t.others = append(t.others, dir)
		}
	}
}

// allDirs are dirs and those of the other hierarchies.
func (t *tree) allDirs(path string) []string {
	all := t.dirs(path)
	for _, d := range t.others {
		all = append(all, filepath.Join(d, t.parent, path))
	}
	return all
}

// dirs are the directories of one cgroup path below the parent, one per hierarchy, the
// cgroup2 one last.
func (t *tree) dirs(path string) []string {
	var all []string
	for _, c := range v1Controllers {
		if d, ok := t.v1[c]; ok {
			all = append(all, filepath.Join(d, t.parent, path))
		}
	}
	if t.unified != "" {
		all = append(all, filepath.Join(t.unified, t.parent, path))
	}
	return all
}

func (t *tree) at(controller, path string) string {
	if t.v2 || controller == "unified" {
		return filepath.Join(t.unified, t.parent, path)
	}
	return filepath.Join(t.v1[controller], t.parent, path)
}

// write and read use the system calls alone: a call touches a dozen of these files, and
// os.File would make each known to the netpoller.
func write(dir, file, value string) error {
	fd, err := unix.Open(dir+"/"+file, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: dir + "/" + file, Err: err}
	}
	defer func() { _ = unix.Close(fd) }()
	for {
		if _, err = unix.Write(fd, []byte(value)); err != unix.EINTR {
			break
		}
	}
	if err != nil {
		return &fs.PathError{Op: "write", Path: dir + "/" + file, Err: err}
	}
	return nil
}

// read is empty for a file that is not there.
func read(dir, file string) string {
	fd, err := unix.Open(dir+"/"+file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer func() { _ = unix.Close(fd) }()
	var all []byte
	var buf [1024]byte
	for {
		n, err := unix.Read(fd, buf[:])
		if err == unix.EINTR {
			continue
		}
		if n <= 0 || err != nil {
			return strings.TrimSpace(string(all))
		}
		all = append(all, buf[:n]...)
	}
}

func readInt(dir, file string) int64 {
	n, _ := strconv.ParseInt(read(dir, file), 10, 64)
	return n
}

// field finds "KEY N" in a flat-keyed file.
func field(dir, file, key string) int64 {
	for line := range strings.Lines(read(dir, file)) {
		if rest, ok := strings.CutPrefix(line, key+" "); ok {
			n, _ := strconv.ParseInt(strings.TrimSpace(rest), 10, 64)
			return n
		}
	}
	return 0
}

// limitMet says whether the calls of a sandbox ever met the memory limit of their cgroup;
// seen is the highest peak that was read before the kernel's was set back.
// The kernel notes an OOM kill where its victim was, whoever's limit it was; this tells
// whose. On v1, whose counters of failures stay 0 on newer kernels, it goes by the peak: a
// peak within 1/16 of the limit met it. That errs to the sandbox's own limit.
func (t *tree) limitMet(name string, seen int64) bool {
	if t.v2 {
		return field(t.at("", name+"/c"), "memory.events", "oom") > 0
	}
	dir := t.at("memory", t.memory(name))
	for _, of := range []string{"memory.", "memory.memsw."} {
		limit := readInt(dir, of+"limit_in_bytes")
		if limit > 0 && max(seen, readInt(dir, of+"max_usage_in_bytes")) >= limit-limit/16 {
			return true
		}
	}
	return false
}

// memory is the memory cgroup that has a sandbox's limit.
func (t *tree) memory(name string) string {
	if t.flat {
		return name
	}
	return name + "/c"
}

// create makes the cgroups of a sandbox, without limits.
func (t *tree) create(name string) error {
	paths := []string{}
	if t.v2 {
		paths = append(paths, t.at("", name), t.at("", name+"/g"), t.at("", name+"/c"))
	} else {
		paths = append(paths, t.dirs(name)...)
		paths = append(paths, t.at("pids", name+"/c"))
		if !t.flat {
			paths = append(paths, t.at("memory", name+"/c"))
		}
	}
	for _, p := range paths {
		if err := os.Mkdir(p, 0o755); err != nil {
			return fmt.Errorf("make cgroup: %w", err)
		}
	}
	if t.v2 {
		for _, p := range []string{name, name + "/c"} {
			if err := write(t.at("", p), "cgroup.subtree_control", "+cpu +memory +pids"); err != nil {
				return fmt.Errorf("enable cgroup controllers: %w", err)
			}
		}
	}
	return nil
}

// limit is one file of a cgroup and what is written to it.
type limit struct{ Dir, File, Value string }

// limits are those of the calls' subtree. What is nil has no limit.
func (t *tree) limits(name string, r *specs.LinuxResources) (all []limit) {
	set := func(controller, path, file, value string) {
		all = append(all, limit{t.at(controller, path), file, value})
	}
	calls := name + "/c"
	if r.Memory != nil && r.Memory.Limit != nil {
		v := strconv.FormatInt(*r.Memory.Limit, 10)
		file, swapFile, swap := "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", v
		if t.v2 {
			file, swapFile, swap = "memory.max", "memory.swap.max", "0"
		}
		set("memory", t.memory(name), file, v)
		if t.swap() {
			set("memory", t.memory(name), swapFile, swap)
		}
	}
	if r.Pids != nil && r.Pids.Limit != nil {
		set("pids", calls, "pids.max", strconv.FormatInt(*r.Pids.Limit, 10))
	}
	if r.CPU != nil && r.CPU.Quota != nil && r.CPU.Period != nil {
		if t.v2 {
			set("cpu", calls, "cpu.max", fmt.Sprintf("%d %d", *r.CPU.Quota, *r.CPU.Period))
		} else {
			set("cpu", name, "cpu.cfs_period_us", strconv.FormatUint(*r.CPU.Period, 10))
			set("cpu", name, "cpu.cfs_quota_us", strconv.FormatInt(*r.CPU.Quota, 10))
		}
	}
	return all
}

// swap says whether this host accounts for swap in cgroups.
func (t *tree) swap() bool {
	file := "memory.memsw.limit_in_bytes"
	if t.v2 {
		file = "memory.swap.max"
	}
	return unix.Access(filepath.Join(t.at("memory", ""), file), unix.F_OK) == nil
}

func setLimits(all []limit) error {
	for _, l := range all {
		if err := write(l.Dir, l.File, l.Value); err != nil {
			return fmt.Errorf("cgroup limit %s=%s: %w", l.File, l.Value, err)
		}
	}
	return nil
}

// tasks opens the files that a guest writes "0" to, to be in its sandbox's v1 cgroups: a
// pid written from outside would wait for every CPU. In a flat tree the last is that of
// all guests' memory, where it goes once the sandbox's own is the root of what it sees.
func (t *tree) tasks(name string) (all []int, err error) {
	var dirs []string
	for _, c := range v1Controllers {
		if _, ok := t.v1[c]; ok {
			dirs = append(dirs, t.at(c, name))
		}
	}
	if t.flat {
		dirs = append(dirs, t.at("memory", ""))
	}
	for _, d := range dirs {
		fd, err := unix.Open(d+"/tasks", unix.O_WRONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return all, fmt.Errorf("open cgroup %s: %w", d, err)
		}
		all = append(all, fd)
	}
	return all, nil
}

// birth is the cgroup2 directory that the guest is cloned into, -1 on pure v1.
func (t *tree) birth(name string) (int, error) {
	if t.unified == "" {
		return -1, nil
	}
	if t.v2 {
		name += "/g"
	}
	return unix.Open(t.at("unified", name), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
}

// freeze stops or lets go every process of a sandbox.
func (t *tree) freeze(name string, frozen bool) error {
	if t.unified == "" {
		return errors.New("freezing needs a cgroup2 hierarchy")
	}
	v := "0"
	if frozen {
		v = "1"
	}
	dir := t.at("unified", name)
	if err := write(dir, "cgroup.freeze", v); err != nil {
		return err
	}
	deadline := time.Now().Add(5 * time.Second)
	for wait := 20 * time.Microsecond; field(dir, "cgroup.events", "frozen") != int64(v[0]-'0'); wait = min(2*wait, 5*time.Millisecond) {
		if time.Now().After(deadline) {
			return errors.New("cgroup did not freeze in 5 s")
		}
		<-time.After(wait)
	}
	return nil
}
