package stray

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// process is what /proc says about one.
type process struct {
	pid, parent int
	name        string
	// start is the kernel's start time in ticks: it tells a pid from its reuse.
	start string
	// cgroups are its paths in each hierarchy.
	cgroups []string
	// mountNS is as the link reads, mnt:[N]; empty when it cannot be read.
	mountNS string
}

// readProcesses reads every process that is still there when its turn comes.
func readProcesses(ctx context.Context, proc string) (map[int]process, error) {
	entries, err := os.ReadDir(proc)
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	all := make(map[int]process, len(entries))
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if p, ok := readProcess(filepath.Join(proc, e.Name()), pid); ok {
			all[pid] = p
		}
	}
	return all, nil
}

func readProcess(dir string, pid int) (process, bool) {
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return process{}, false
	}
	p, ok := parseStat(string(stat))
	if !ok {
		return process{}, false
	}
	p.pid = pid
	if cgroup, err := os.ReadFile(filepath.Join(dir, "cgroup")); err == nil {
		p.cgroups = parseCgroups(string(cgroup))
	}
	if ns, err := os.Readlink(filepath.Join(dir, "ns/mnt")); err == nil {
		p.mountNS = ns
	}
	return p, true
}

// parseStat reads /proc/PID/stat. The name may hold spaces and parentheses, so the
// fields are counted from the last parenthesis.
func parseStat(stat string) (process, bool) {
	open, end := strings.IndexByte(stat, '('), strings.LastIndexByte(stat, ')')
	if open < 0 || end < open {
		return process{}, false
	}
	const state, parent, start = 0, 1, 19
	fields := strings.Fields(stat[end+1:])
	if len(fields) <= start {
		return process{}, false
	}
	ppid, err := strconv.Atoi(fields[parent])
	if err != nil {
		return process{}, false
	}
	// A zombie that its parent will reap holds nothing.
	if fields[state] == "Z" || fields[state] == "X" {
		return process{}, false
	}
	return process{name: stat[open+1 : end], parent: ppid, start: fields[start]}, true
}

// parseCgroups reads the paths of /proc/PID/cgroup.
func parseCgroups(file string) []string {
	var paths []string
	for line := range strings.Lines(file) {
		if parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3); len(parts) == 3 {
			paths = append(paths, parts[2])
		}
	}
	return paths
}

// tree returns root and everything below it; nothing for root 0.
func tree(all map[int]process, root int) map[int]bool {
	in := map[int]bool{}
	if root == 0 {
		return in
	}
	in[root] = true
	for grew := true; grew; {
		grew = false
		for pid, p := range all {
			if in[p.parent] && !in[pid] {
				in[pid], grew = true, true
			}
		}
	}
	return in
}

// sandboxOf returns the name of the sandbox in whose cgroup a process is.
func (s *search) sandboxOf(p process) (name string, inStore bool) {
	if s.scope.Cgroup == "" {
		return "", false
	}
	root := "/" + s.scope.Cgroup
	for _, path := range p.cgroups {
		if within(path, root) {
			name, _, _ = strings.Cut(strings.TrimPrefix(strings.TrimPrefix(path, root), "/"), "/")
			return name, true
		}
	}
	return "", false
}

func (s *search) processes() error {
	for pid, p := range s.all {
		if pid == os.Getpid() {
			continue
		}
		why := ""
		sandbox, inStore := s.sandboxOf(p)
		switch {
		case inStore && sandbox != "" && !s.known(sandbox):
			why = "in the cgroup of sandbox " + sandbox + ", which no daemon knows"
		case s.live[pid]:
		case inStore:
			why = "in a cgroup of the store"
		case s.mountHolders[pid]:
			why = "holds mounts of the store"
		}
		if why != "" {
			s.strays = append(s.strays, p)
			s.add(Process, fmt.Sprintf("pid %d", pid), "%s, start %s: %s", p.name, p.start, why)
		}
	}
	return nil
}

// known says whether the live daemon owns a sandbox. A daemon that was not asked for its
// sandboxes owns all: one that waits to be scored has no process any more.
func (s *search) known(sandbox string) bool {
	if s.scope.Live.Sandboxes == nil {
		return s.scope.Live.PID != 0
	}
	return slices.Contains(s.scope.Live.Sandboxes, sandbox)
}

// holdsStore says whether a process has a file of the store open.
func (h Host) holdsStore(pid int, store string) bool {
	dir := filepath.Join(h.Proc, strconv.Itoa(pid), "fd")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(entries, func(e os.DirEntry) bool {
		target, err := os.Readlink(filepath.Join(dir, e.Name()))
		return err == nil && within(target, store)
	})
}

// namespaces lists what stray processes keep alive beside the host's own namespaces.
func (s *search) namespaces() error {
	holders := map[string][]int{}
	for _, p := range s.strays {
		dir := filepath.Join(s.host.Proc, strconv.Itoa(p.pid), "ns")
		for _, kind := range []string{"cgroup", "ipc", "mnt", "net", "pid", "user", "uts"} {
			ns, err := os.Readlink(filepath.Join(dir, kind))
			own, ownErr := os.Readlink(filepath.Join(s.host.Proc, "self/ns", kind))
			if err == nil && ownErr == nil && ns != own {
				holders[ns] = append(holders[ns], p.pid)
			}
		}
	}
	for ns, pids := range holders {
		slices.Sort(pids)
		s.add(Namespace, ns, "held by pid %d and %d more", pids[0], len(pids)-1)
	}
	return nil
}
