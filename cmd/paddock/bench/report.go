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
	// Figures are measured once and are no durations of a job: mebibytes, counts, seconds, as
	// their names say.
	Figures map[string]float64 `json:"figures"`
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
	// CPUMs is the CPU time of one operation, what the kernel does behind the answer
	// included: on the whole host, unless What names whose it is. It is null where jobs were
	// run in turn.
	CPUMs *float64 `json:"cpu_ms"`
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
func median(r Row) float64 { return r.P50 }
func quick(r Row) float64  { return r.P10 }

// cpuTime is 0 where none was counted.
func cpuTime(r Row) float64 {
	if r.CPUMs == nil {
		return 0
	}
	return *r.CPUMs
}

// quoted are the figures that are quoted, in the report's order: top row over bottom row.
var quoted = []struct {
	name, top, bottom, says string
	of                      func(Row) float64
}{
	{"episode_vs_docker", "docker_episode", "episode", "fresh episode over the socket (create, exec true, finish with capture, delete): times faster than the same with Docker (create, start, exec true, changes, remove)", median},
	{"episode_vs_docker_run", "docker_run", "episode", "the same episode: times faster than Docker's shortest way to run true once (create, start true, wait, remove; nothing captured)", median},
	{"episode8_vs_docker", "docker_episode8", "episode8", "the same episode, 8 at a time, wall time of one: times faster than with Docker", median},
	{"acquire_vs_docker_start", "docker_start", "acquire", "create where a warm sandbox waits: times faster than Docker's create and start", median},
	{"exec8_vs_gojudge", "gojudge8", "exec8", "commands in 8 live sandboxes at a time: times the throughput of go-judge's /run", median},
	{"episode8_vs_gojudge", "gojudge8", "episode8", "fresh episodes, 8 at a time: times the throughput of go-judge's /run, which uses its containers again", median},
	{"branch_vs_docker", "docker_branch", "branch", "fork of a live episode with 100 changed files until its first command: times faster than docker commit and run", median},
	{"exec_vs_docker_exec", "docker_exec", "exec", "one command in a running sandbox: times faster than docker exec", median},
	{"exec_vs_host", "exec_direct", "host_exec_beside_direct", "the same command by the launcher's own interface against fork+exec on the host (1 is the floor)", median},
	{"exec_http_vs_host", "exec", "host_exec", "the same command, over HTTP, against fork+exec on the host (1 is the floor)", median},
	{"fork_2g_vs_10m", "create_2g", "create_10m", "start on a 2 GB world against a 10 MB world, 10th percentiles (1 is ideal)", quick},
	{"trace_vs_docker", "docker_trace8", "trace8", "a coding trace of 30 calls, finish and score, 8 at a time: times the episodes per core-hour of docker run and docker exec (wall time, all CPUs being held)", median},
	{"judge_vs_gojudge", "gojudge_judge8", "judge8", "Python one-liners judged by one case of standard input and output, 8 at a time, each in a fork of its own: times the throughput of go-judge's /run, which uses its containers again", median},
	{"humaneval_vs_docker", "docker_humaneval", "humaneval", "HumanEval solutions judged by the data set's tests, 8 at a time: times faster than solution and tests as one program in a docker run each", median},
	{"humaneval_episode_vs_docker", "docker_humaneval_episode", "humaneval_episode", "HumanEval solutions written in an episode, captured, and graded in another fork, 8 at a time: times faster than written and graded in a docker run each", median},
	{"trace_vs_bare", "trace8", "bare_trace8", "the same trace: CPU time over that of the same commands bare on the host (1 is the floor)", cpuTime},
}

// computeRatios fills Ratios from Rows.
func (r *Report) computeRatios() {
	r.Ratios = map[string]*float64{}
	for _, q := range quoted {
		top, okTop := r.Rows[q.top]
		bottom, okBottom := r.Rows[q.bottom]
		r.Ratios[q.name] = nil
		if r.Refused == "" && okTop && okBottom && q.of(top) > 0 && q.of(bottom) > 0 {
			v := q.of(top) / q.of(bottom)
			r.Ratios[q.name] = &v
		}
	}
	// Figures that the targets name stand beside the ratios.
	for _, name := range figures {
		r.Ratios[name] = nil
		if v, ok := r.Figures[name]; ok && r.Refused == "" {
			r.Ratios[name] = &v
		}
	}
	r.Ratios["idle_vs_docker"] = nil
	if ours, theirs := r.Ratios["idle_mib"], r.Ratios["docker_idle_mib"]; ours != nil && theirs != nil && *ours > 0 {
		v := *theirs / *ours
		r.Ratios["idle_vs_docker"] = &v
	}
}

// figures say what each of Figures is, in the report's order.
var figures = []string{"idle_mib", "docker_idle_mib", "capture_10k_ms", "exec_2000_vs_0", "live_max", "burst1000_p99_s", "texts_per_s"}

var figureSays = map[string]string{
	"idle_mib":        "memory per idle episode that no cache gives back: the kernel's and that of daemon, launcher and sandbox; MiB",
	"docker_idle_mib": "the same per idle container: the kernel's and that of the engine, its shims and the container; MiB",
	"idle_vs_docker":  "memory per idle container over memory per idle episode",
	"capture_10k_ms":  "finish of an episode that changed 10,000 files of 4 KiB (kill, capture with their bytes, record), ms",
	"exec_2000_vs_0":  "median call with 2,000 live episodes over the median with none",
	"live_max":        "live episodes that all answered a call (2,000 are tried)",
	"texts_per_s":     "completions compared with the answers of a data set by the rule text, over the socket, per second",
	"burst1000_p99_s": "1,000 creates at once: p99 until the first call has ended, s",
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
	for _, name := range append(slices.Clone(figures), "idle_vs_docker") {
		if v := r.Ratios[name]; v != nil {
			fmt.Fprintf(&b, "| `%s` | %.2f | %s |\n", name, *v, figureSays[name])
		}
	}
	if r.Refused != "" {
		fmt.Fprintf(&b, "\nNo ratio is quoted: %s\n", r.Refused)
	}
	b.WriteString("\n| job | n | min ms | p10 ms | p50 ms | p90 ms | p99 ms | CPU ms | what |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n")
	for _, name := range r.rowNames() {
		s := r.Rows[name]
		cpu := "–"
		if s.CPUMs != nil {
			cpu = fmt.Sprintf("%.2f", *s.CPUMs)
		}
		fmt.Fprintf(&b, "| %s | %d | %.2f | %.2f | %.2f | %.2f | %.2f | %s | %s |\n", name, s.N, s.Min, s.P10, s.P50, s.P90, s.P99, cpu, s.What)
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
