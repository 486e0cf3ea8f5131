package bench

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// memory is what is in use and cannot be had back by dropping caches, in bytes.
//
// It is not told from how much the host has free. Each CPU keeps free pages to itself, up
// to hundreds of mebibytes (pagesets in /proc/zoneinfo), which count neither as free nor as
// anything else: between two readings they move by more than a hundred sandboxes take.
type memory struct {
	// kernel is the whole kernel's: slab that is not reclaimable, stacks and what else is
	// mapped by vmalloc, page tables, what there is for each CPU.
	kernel int64
	// processes is anonymous and shared memory of those processes alone that were asked for,
	// so that those of neighbours do not count.
	processes int64
}

func (m memory) total() int64 { return m.kernel + m.processes }

func (m memory) minus(o memory) memory {
	return memory{m.kernel - o.kernel, m.processes - o.processes}
}

// inUse reads it; whose says which processes count.
func inUse(whose func(map[int]process) []int) (m memory, err error) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return m, err
	}
	m.kernel = sizes(text, "SUnreclaim", "VmallocUsed", "PageTables", "Percpu")
	all, err := processes()
	if err != nil {
		return m, err
	}
	for _, pid := range whose(all) {
		// One that has ended meanwhile has none.
		if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid)); err == nil {
			m.processes += sizes(text, "Pss_Anon", "Pss_Shmem")
		}
	}
	return m, nil
}

// sizes adds up lines like "KEY:   12 kB".
func sizes(text []byte, keys ...string) (bytes int64) {
	for line := range strings.Lines(string(text)) {
		key, rest, _ := strings.Cut(line, ":")
		if slices.Contains(keys, key) {
			kb, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			bytes += kb << 10
		}
	}
	return bytes
}

// process is one of the host's.
type process struct {
	parent int
	name   string
}

func processes() (map[int]process, error) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	all := map[int]process{}
	for _, dir := range dirs {
		text, err := os.ReadFile(filepath.Join(dir, "stat"))
		if err != nil { // it has ended
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(dir))
		if p, ok := parseStat(text); ok {
			all[pid] = p
		}
	}
	return all, nil
}

// parseStat reads "PID (NAME) STATE PARENT ...", where NAME may be anything.
func parseStat(text []byte) (process, bool) {
	from, to := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
	if from < 0 || to < from {
		return process{}, false
	}
	fields := bytes.Fields(text[to+1:])
	if len(fields) < 2 {
		return process{}, false
	}
	parent, err := strconv.Atoi(string(fields[1]))
	return process{parent: parent, name: string(text[from+1 : to])}, err == nil
}

// below is those of the processes that are root, or descend from one that is.
func below(all map[int]process, root func(pid int, p process) bool) (pids []int) {
	for pid := range all {
		for at := pid; ; {
			p, ok := all[at]
			if !ok {
				break
			}
			if root(at, p) {
				pids = append(pids, pid)
				break
			}
			at = p.parent
		}
	}
	return pids
}

// ofDocker are an engine's processes, containers included, whoever started them.
func ofDocker(all map[int]process) []int {
	return below(all, func(_ int, p process) bool {
		return p.name == "dockerd" || strings.HasPrefix(p.name, "containerd")
	})
}

// settled reads memory once it stands still: what was taken down before is freed behind the
// answers. A host that does not come to rest in 4 s is read as it is.
func settled(ctx context.Context, whose func(map[int]process) []int) (m memory, err error) {
	const (
		every = 200 * time.Millisecond
		tries = 20
		still = 4 // readings in a row
		apart = 256 << 10
	)
	var last []int64
	for range tries {
		if err := pause(ctx, every); err != nil {
			return m, err
		}
		if m, err = inUse(whose); err != nil {
			return m, err
		}
		last = append(last, m.total())
		if n := len(last) - still; n >= 0 && slices.Max(last[n:])-slices.Min(last[n:]) <= apart {
			break
		}
	}
	return m, nil
}

// crew is what fills the host with idle sandboxes.
type crew struct {
	// name begins the names of the figures.
	name string
	// n is how many at once.
	n int
	// whose are the processes whose memory counts.
	whose func(map[int]process) []int
	// fill makes n and returns what ends them, which is to be called whatever the error.
	fill func(ctx context.Context, n int) (leave func() error, err error)
}

// each is what one of n sandboxes takes, once one has been: what is there for the first and
// stays for the next is not counted.
func (c crew) each(ctx context.Context) (memory, error) {
	before, err := settled(ctx, c.whose)
	if err != nil {
		return memory{}, err
	}
	leave, err := c.fill(ctx, c.n)
	if err != nil {
		return memory{}, errors.Join(err, leave())
	}
	after, err := settled(ctx, c.whose)
	if err := errors.Join(err, leave()); err != nil {
		return memory{}, err
	}
	return after.minus(before), nil
}

// idleMemory is what an episode that does nothing takes, and a container that does nothing.
// They take turns: what the kernel keeps for each memory cgroup grows with how many file
// systems the host ever had at once, and so with either.
func (b *bench) idleMemory(ctx context.Context) error {
	crews, err := b.crews(ctx)
	if err != nil {
		return err
	}
	for _, c := range crews { // the first ever are not counted
		leave, err := c.fill(ctx, 2)
		if err := errors.Join(err, leave()); err != nil {
			return err
		}
	}
	const fills = 3
	taken := map[string][]memory{}
	for fill := range fills {
		for i, c := range crews {
			b.Progress("memory of idle sandboxes", fill*len(crews)+i, fills*len(crews))
			m, err := c.each(ctx)
			if err != nil {
				return err
			}
			taken[c.name] = append(taken[c.name], m)
		}
	}
	for _, c := range crews {
		b.idleFigures(c, taken[c.name])
	}
	return nil
}

// crews are those that there are to compare.
func (b *bench) crews(ctx context.Context) ([]crew, error) {
	version, err := b.Client.Version(ctx)
	if err != nil {
		return nil, err
	}
	episodes := crew{
		name: "idle", n: 400,
		whose: func(all map[int]process) []int {
			return below(all, func(pid int, _ process) bool { return pid == version.PID })
		},
		fill: func(ctx context.Context, n int) (func() error, error) {
			_, leave, err := b.crowd(ctx, n)
			return leave, err
		},
	}
	containers := crew{name: "docker_idle", n: 40, whose: ofDocker, fill: b.containers}
	if b.Quick {
		episodes.n, containers.n = 100, 12
	}
	if b.docker == nil {
		return []crew{episodes}, nil
	}
	return []crew{episodes, containers}, nil
}

// idleFigures are the median of the fills, its parts, and how far the fills lie apart.
func (b *bench) idleFigures(c crew, fills []memory) {
	slices.SortFunc(fills, func(x, y memory) int { return cmp.Compare(x.total(), y.total()) })
	least, middle, most := fills[0], fills[len(fills)/2], fills[len(fills)-1]
	for figure, bytes := range map[string]int64{
		"_mib": middle.total(), "_kernel_mib": middle.kernel, "_processes_mib": middle.processes,
		"_least_mib": least.total(), "_most_mib": most.total(),
	} {
		b.report.Figures[c.name+figure] = float64(bytes) / float64(c.n) / (1 << 20)
	}
}

// containers starts idle ones.
func (b *bench) containers(ctx context.Context, n int) (leave func() error, err error) {
	ids := make([]string, n)
	leave = func() error {
		ctx := context.WithoutCancel(ctx)
		return inParallel(ways, n, func(i int) error {
			if ids[i] == "" {
				return nil
			}
			return b.docker.Remove(ctx, ids[i])
		})
	}
	return leave, inParallel(ways, n, func(i int) (err error) {
		ids[i], err = b.docker.Start(ctx, idle)
		return err
	})
}
