package native

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// remove kills whatever is left in a sandbox's cgroups and removes them. It waits for
// the kernel a bounded time.
func (t *tree) remove(name string) error {
	deadline := time.Now().Add(5 * time.Second)
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		var errs []error
		for _, d := range t.usual(name) {
			_ = unix.Rmdir(d)
		}
		for _, d := range t.allDirs(name) {
			errs = append(errs, removeAll(d))
		}
		err := errors.Join(errs...)
		if err == nil || time.Now().After(deadline) {
			return err
		}
		t.killAll(name)
		<-time.After(wait)
	}
}

// usual are the cgroups that nearly every sandbox has below its own, deepest first. To list
// a cgroup costs more than to remove it, since each file in it is made up for the list.
func (t *tree) usual(name string) []string {
	if t.v2 {
		return []string{t.at("", name+"/c/0"), t.at("", name+"/c"), t.at("", name+"/g")}
	}
	all := []string{t.at("pids", name+"/c/0"), t.at("pids", name+"/c"), t.at("cpuacct", name+"/0")}
	if !t.flat {
		all = append(all, t.at("memory", name+"/c/0"), t.at("memory", name+"/c"))
	}
	return all
}

// removeAll removes a cgroup and its children, deepest first.
func removeAll(dir string) error {
	if err := unix.Rmdir(dir); err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeAll(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove cgroup %s: %w", dir, err)
	}
	return nil
}

// killAll kills every process of a sandbox, the guest included.
func (t *tree) killAll(name string) {
	if t.unified != "" && write(t.at("unified", name), "cgroup.kill", "1") == nil {
		return
	}
	dir := t.at("pids", name)
	if t.unified != "" {
		dir = t.at("unified", name)
	}
	_ = filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			killProcs(p)
		}
		return nil
	})
}

// killProcs kills what a cgroup lists. A number may have
// been given to another process of the host since it was read, so the process is held by
// a descriptor first, and killed only if the cgroup then lists the number still.
func killProcs(dir string) {
	held := map[string]int{}
	for p := range strings.FieldsSeq(read(dir, "cgroup.procs")) {
		pid, err := strconv.Atoi(p)
		if err != nil || pid <= 1 || len(held) == maxHeldPids {
			continue
		}
		if fd, err := unix.PidfdOpen(pid, 0); err == nil {
			held[p] = fd
		}
	}
	for p := range strings.FieldsSeq(read(dir, "cgroup.procs")) {
		if fd, ok := held[p]; ok {
			_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
		}
	}
	for _, fd := range held {
		_ = unix.Close(fd)
	}
}

// maxHeldPids bounds the descriptors of one round of killProcs; callers repeat it.
const maxHeldPids = 256

// SweepCgroups kills and removes everything below a cgroup parent that a dead daemon
// left, and says how many sandboxes it found.
func SweepCgroups(parent string) (int, error) {
	t, err := openTree(parent)
	if err != nil {
		return 0, err
	}
	t.findOthers()
	names := map[string]bool{}
	for _, d := range t.allDirs("") {
		entries, err := os.ReadDir(d)
		if err != nil {
			continue
		}
		for _, e := range entries {
			if e.IsDir() {
				names[e.Name()] = true
			}
		}
	}
	var errs []error
	for n := range names {
		t.killAll(n)
		errs = append(errs, t.remove(n))
	}
	delete(names, Undertaker) // no sandbox
	return len(names), errors.Join(errs...)
}

// RemoveCgroups ends and removes what a dead launcher left below a parent, and then the
// parent itself. Close does it for a live one.
func RemoveCgroups(parent string) error {
	if _, err := SweepCgroups(parent); err != nil {
		return err
	}
	t, err := openTree(parent)
	if err != nil {
		return err
	}
	t.findOthers()
	return t.removeParent()
}

// removeParent removes the parent, and what is above it and empty by then; what is shared
// with others stays.
func (t *tree) removeParent() error {
	for _, d := range t.allDirs("") {
		if err := unix.Rmdir(d); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("remove cgroup %s: %w", d, err)
		}
		for range strings.Count(filepath.Clean(t.parent), "/") {
			d = filepath.Dir(d)
			if unix.Rmdir(d) != nil {
				break
			}
		}
	}
	return nil
}
