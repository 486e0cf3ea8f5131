// Package stray finds what paddock left behind on a host: processes, cgroups, mounts,
// namespaces, loop devices and directories that belong to a store but to no live daemon.
// It believes the kernel alone (/proc, /sys) and never a record. It changes nothing.
package stray

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

// Kind says what a stray is.
type Kind string

// The kinds of strays, in the order in which Find lists them.
const (
	Process   Kind = "process"
	Cgroup    Kind = "cgroup"
	Mount     Kind = "mount"
	Namespace Kind = "namespace"
	Loop      Kind = "loop"
	Directory Kind = "directory"
)

var kinds = []Kind{Process, Cgroup, Mount, Namespace, Loop, Directory}

// Stray is one thing that should not be there.
type Stray struct {
	Kind Kind `json:"kind"`
	// Where names it: a pid, a path, a namespace such as net:[4026532001].
	Where string `json:"where"`
	// Detail is for people.
	Detail string `json:"detail,omitempty"`
}

// Scope says whose leavings are looked for.
type Scope struct {
	// Store is the store's root, absolute and without symlinks.
	Store string
	// Cgroup is the store's directory in each cgroup hierarchy, such as paddock/0a1b2c3d.
	Cgroup string
	// Live is what a running daemon of this store owns; its zero value is no daemon.
	Live Live
}

// Live describes a running daemon.
type Live struct {
	// PID is the daemon's process; what it started hangs below it.
	PID int
	// Started is when it began: what is older in the store's scratch directories is not its.
	Started time.Time
	// Sandboxes are the names of the sandboxes that it knows; any other is a stray even
	// below the daemon. Nil when it was not asked: then all are its own.
	Sandboxes []string
}

// Host says where the kernel's files are; the zero value is this host.
type Host struct {
	Proc, Block string
	// Cgroups are the roots of the cgroup hierarchies.
	Cgroups []string
}

// Find lists the strays of a scope. What begins and ends while it looks may be listed
// wrongly; Confirm looks twice.
func (h Host) Find(ctx context.Context, scope Scope) ([]Stray, error) {
	h, err := h.withDefaults()
	if err != nil {
		return nil, err
	}
	processes, err := readProcesses(ctx, h.Proc)
	if err != nil {
		return nil, err
	}
	s := &search{host: h, scope: scope, all: processes, live: tree(processes, scope.Live.PID)}
	for _, step := range []func() error{s.mounts, s.processes, s.cgroups, s.namespaces, s.loops, s.directories} {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err := step(); err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(s.found, func(a, b Stray) int {
		if d := slices.Index(kinds, a.Kind) - slices.Index(kinds, b.Kind); d != 0 {
			return d
		}
		return strings.Compare(a.Where, b.Where)
	})
	return slices.Compact(s.found), nil
}

// Confirm finds strays, and when there are any asks again after pause what lives and
// keeps only those that are still there: episodes come and go while it looks.
func Confirm(ctx context.Context, h Host, pause time.Duration, scope func(context.Context) (Scope, error)) ([]Stray, error) {
	look := func() ([]Stray, error) {
		sc, err := scope(ctx)
		if err != nil {
			return nil, err
		}
		return h.Find(ctx, sc)
	}
	first, err := look()
	if err != nil || len(first) == 0 {
		return nil, err
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	second, err := look()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(second, func(s Stray) bool {
		return !slices.ContainsFunc(first, func(f Stray) bool { return f.Kind == s.Kind && f.Where == s.Where })
	}), nil
}

func (h Host) withDefaults() (Host, error) {
	if h.Proc == "" {
		h.Proc = "/proc"
	}
	if h.Block == "" {
		h.Block = "/sys/block"
	}
	if h.Cgroups == nil {
		own, err := os.ReadFile(h.Proc + "/self/mountinfo")
		if err != nil {
			return h, fmt.Errorf("list cgroup hierarchies: %w", err)
		}
		for _, m := range parseMounts(string(own)) {
			if m.fsType == "cgroup" || m.fsType == "cgroup2" {
				h.Cgroups = append(h.Cgroups, m.point)
			}
		}
	}
	return h, nil
}

// search is one run of Find.
type search struct {
	host  Host
	scope Scope
	all   map[int]process
	// live holds the pids of the daemon and of all below it.
	live map[int]bool
	// mountHolders are the processes that keep a mount namespace with mounts of the store.
	mountHolders map[int]bool
	strays       []process
	found        []Stray
}

func (s *search) add(kind Kind, where, format string, args ...any) {
	s.found = append(s.found, Stray{Kind: kind, Where: where, Detail: fmt.Sprintf(format, args...)})
}

// within says whether path is dir or below it.
func within(path, dir string) bool {
	return dir != "" && (path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/"))
}
