// Package bench measures paddock beside what else is on the host, job by job in rounds
// of one run, and says what came of it as ratios.
package bench

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paddock-run/paddock/internal/timing"
)

// Report is what `paddock bench --json` prints.
type Report struct {
	Host  Host       `json:"host"`
	Store FileSystem `json:"store"`
	// Rows are the measured jobs, by name.
	Rows map[string]Row `json:"rows"`
	// Ratios are null where the peer is absent, and all null when Refused is set.
	Ratios map[string]*float64 `json:"ratios"`
	// Refused says why no ratio is quoted, and what to do.
	Refused string `json:"refused,omitempty"`
	// Absent says for each peer that was not measured why.
	Absent  map[string]string `json:"absent,omitempty"`
	Seconds float64           `json:"seconds"`
}

// Row is one job: what was done, and how long it took.
type Row struct {
	What string `json:"what"`
	timing.Summary
}

// Host is where it was measured.
type Host struct {
	CPUs        int    `json:"cpus"`
	MemoryBytes uint64 `json:"memory"`
	Kernel      string `json:"kernel"`
	// Docker is the engine's version, empty when there was none.
	Docker string `json:"docker,omitempty"`
	// Load is the 1-minute load average at the start: work beside the bench.
	Load float64   `json:"load"`
	Date time.Time `json:"date"`
}

func hostFacts() Host {
	h := Host{CPUs: runtime.NumCPU(), Date: time.Now().UTC().Truncate(time.Second)}
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		h.MemoryBytes = info.Totalram * uint64(info.Unit)
	}
	var name unix.Utsname
	if unix.Uname(&name) == nil {
		h.Kernel = unix.ByteSliceToString(name.Release[:])
	}
	if b, err := os.ReadFile("/proc/loadavg"); err == nil {
		_, _ = fmt.Sscan(string(b), &h.Load)
	}
	return h
}

// median and quick are what of two rows is compared. The start on two worlds is a question
// of the work itself and not of the host's queues, which the tenth percentile answers on a
// busy host too.
func median(s timing.Summary) float64 { return s.P50 }
func quick(s timing.Summary) float64  { return s.P10 }

// quoted are the figures that are quoted, in the report's order: top row over bottom row.
var quoted = []struct {
	name, top, bottom, says string
	of                      func(timing.Summary) float64
}{
	{"episode_vs_docker", "docker_episode", "episode", "fresh episode over the socket (create, exec true, finish with capture, delete): times faster than the same with Docker (create, start, exec true, changes, remove)", median},
	{"episode_vs_docker_run", "docker_run", "episode", "the same episode: times faster than Docker's shortest way to run true once (create, start true, wait, remove; nothing captured)", median},
	{"exec_vs_docker_exec", "docker_exec", "exec", "one command in a running sandbox: times faster than docker exec", median},
	{"exec_http_vs_host", "exec", "host_exec", "the same command, over HTTP, against fork+exec on the host (1 is the floor)", median},
	{"fork_2g_vs_10m", "create_2g", "create_10m", "start on a 2 GB world against a 10 MB world, 10th percentiles (1 is ideal)", quick},
}

// computeRatios fills Ratios from Rows.
func (r *Report) computeRatios() {
	r.Ratios = map[string]*float64{}
	for _, q := range quoted {
		top, okTop := r.Rows[q.top]
		bottom, okBottom := r.Rows[q.bottom]
		r.Ratios[q.name] = nil
		if r.Refused == "" && okTop && okBottom && q.of(bottom.Summary) > 0 {
			v := q.of(top.Summary) / q.of(bottom.Summary)
			r.Ratios[q.name] = &v
		}
	}
}

// Markdown is the report for people, as committed under docs/bench.
func (r *Report) Markdown() string {
	var b bytes.Buffer
	docker := r.Host.Docker
	if docker == "" {
		docker = "absent"
	}
	fmt.Fprintf(&b, "# Bench\n\n%s, kernel %s, %d CPUs, %.0f GiB, store on %s, Docker %s, load average %.1f at the start.\n"+
		"Jobs are interleaved in rounds within one run; ratios are of medians unless said otherwise.\n\n",
		r.Host.Date.Format(time.DateOnly), r.Host.Kernel, r.Host.CPUs, float64(r.Host.MemoryBytes)/(1<<30),
		r.Store.Type, docker, r.Host.Load)
	b.WriteString("| ratio | value | meaning |\n| --- | --- | --- |\n")
	for _, q := range quoted {
		value := "–"
		if v := r.Ratios[q.name]; v != nil {
			value = fmt.Sprintf("%.2f", *v)
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", q.name, value, q.says)
	}
	if r.Refused != "" {
		fmt.Fprintf(&b, "\nNo ratio is quoted: %s\n", r.Refused)
	}
	b.WriteString("\n| job | n | min ms | p10 ms | p50 ms | p90 ms | p99 ms | what |\n| --- | --- | --- | --- | --- | --- | --- | --- |\n")
	for _, name := range r.rowNames() {
		s := r.Rows[name]
		fmt.Fprintf(&b, "| %s | %d | %.2f | %.2f | %.2f | %.2f | %.2f | %s |\n", name, s.N, s.Min, s.P10, s.P50, s.P90, s.P99, s.What)
	}
	var absent []string
	for peer, why := range r.Absent {
		absent = append(absent, fmt.Sprintf("\nNot measured: %s (%s)\n", peer, why))
	}
	slices.Sort(absent)
	b.WriteString(strings.Join(absent, ""))
	return b.String()
}

func (r *Report) rowNames() []string {
	var names []string
	for name := range r.Rows {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
