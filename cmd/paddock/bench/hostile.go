package bench

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/paddock-run/paddock/api"
	"github.com/paddock-run/paddock/internal/timing"
)

// HostileConfig says how many meet.
type HostileConfig struct {
	// Client reaches a daemon that has nothing else to do.
	Client *api.Client
	// Hostile episodes are begun in all, AtOnce at a time; Ordinary ones live beside them.
	Hostile, AtOnce, Ordinary int
	// Only names the kinds of hostile episodes; none is all.
	Only []string
	// Idle is how long the ordinary ones are alone, before and after.
	Idle time.Duration
	// Progress is told about each step.
	Progress func(step string, done, total int)
}

// HostileReport is what ordinary episodes noticed of hostile ones.
type HostileReport struct {
	// Idle are ordinary calls with nothing beside them, before and after; Beside those while
	// hostile episodes ran.
	Idle, Beside timing.Summary
	// Create is of the hostile ones' creates, Delete of their deletes by kind.
	Create timing.Summary
	Delete map[string]timing.Summary
	// Ratio is of the 99th percentiles.
	Ratio   float64
	Hostile map[string]int
	Seconds float64
	// Wrong are results that were not what they had to be, at most maxWrong.
	Wrong []string
}

const (
	maxWrong = 50
	// think is how long an ordinary agent does nothing between two calls, on average: from half
	// of it to half as much again, by chance. With one time for all, calls that were once
	// held up together would come together ever after.
	think = 250 * time.Millisecond
	// bombSeconds bounds a hostile call.
	bombSeconds = 2
)

// bomb is one kind of hostile episode. wrong says why a result is not the typed one that it
// must be; empty is right. On a busy host any of them may run into its time first, which is
// typed, too.
type bomb struct {
	name, run string
	wrong     func(api.CallResult) string
}

func limitIs(names ...string) func(api.CallResult) string {
	return func(r api.CallResult) string {
		for _, n := range names {
			if r.Limit != nil && r.Limit.Name == n {
				return ""
			}
		}
		return fmt.Sprintf("limit %+v, want one of %v", r.Limit, names)
	}
}

func bombs() []bomb {
	return []bomb{
		{"fork bomb", "f() { f | f & }; f; while :; do :; done", func(r api.CallResult) string {
			if !r.PidsLimit {
				return "no pids limit"
			}
			return ""
		}},
		{"memory bomb", "dd if=/dev/zero of=/dev/null bs=900M count=1; echo rc=$?", func(r api.CallResult) string {
			if !r.OOM || r.Stdout != "rc=137\n" {
				return fmt.Sprintf("oom %v, stdout %q, want the killed child", r.OOM, r.Stdout)
			}
			return ""
		}},
		{"flood", "exec cat /dev/zero", func(api.CallResult) string {
			return "ended by itself"
		}},
		{"disk fill", "dd if=/dev/zero of=/tmp/f bs=1M; while :; do :; done", limitIs("call_s")},
		{"full disk", "dd if=/dev/zero of=/tmp/f bs=1M; exit 3", limitIs("disk", "call_s")},
		{"inode fill", "i=0; while :>/tmp/f$i; do i=$((i+1)); done; exit 3", limitIs("inodes", "call_s")},
		{"spin", "for i in 1 2 3 4 5 6 7 8; do while :; do :; done & done; wait", limitIs("call_s")},
		{"memory in /dev/shm", "while :; do dd if=/dev/zero of=/dev/shm/f bs=1M 2>/dev/null; done", limitIs("call_s", "memory")},
		{"orphans that stay", "for i in 1 2 3 4 5 6 7 8 9; do setsid sh -c 'while :; do :; done' & done; exit 0", func(r api.CallResult) string {
			if r.ExitCode == nil || *r.ExitCode != 0 || r.Leftover == 0 {
				return fmt.Sprintf("exit code %v, leftover %d, want 0 and some", r.ExitCode, r.Leftover)
			}
			return ""
		}},
	}
}

// hostile is one measurement.
type hostile struct {
	HostileConfig
	world  string
	report HostileReport

	mu     sync.Mutex
	create timing.Sample
	delete map[string]timing.Sample
}

// Hostile runs ordinary episodes alone, beside a batch of hostile ones, and alone again.
// An error is the daemon's failure; what came out wrong is in the report.
func Hostile(ctx context.Context, cfg HostileConfig) (HostileReport, error) {
	began := time.Now()
	h := &hostile{HostileConfig: cfg, report: HostileReport{Hostile: map[string]int{}, Delete: map[string]timing.Summary{}}, delete: map[string]timing.Sample{}}
	built, err := cfg.Client.BuildWorld(ctx, api.Recipe{Busybox: true, Name: "box"}, func(api.Progress) {})
	if err != nil {
		return HostileReport{}, fmt.Errorf("build the world: %w", err)
	}
	h.world = built.World.ID
	var keys []api.Key
	for i := range cfg.Ordinary {
		made, err := cfg.Client.Create(ctx, api.EpisodeSpec{ID: fmt.Sprintf("ordinary/%d", i), World: h.world})
		if err != nil {
			return HostileReport{}, fmt.Errorf("create an ordinary episode: %w", err)
		}
		keys = append(keys, api.Key{Run: made.Episode.Run, ID: made.Episode.ID})
	}
	alone := func(ctx context.Context) error { return pause(ctx, cfg.Idle) }
	var idle, beside timing.Sample
	for _, phase := range []struct {
		name string
		to   *timing.Sample
		work func(context.Context) error
	}{{"alone", &idle, alone}, {"beside the hostile", &beside, h.batch}, {"alone again", &idle, alone}} {
		cfg.Progress(phase.name, 0, 0)
		sample, err := h.ordinary(ctx, keys, phase.work)
		if err != nil {
			return HostileReport{}, fmt.Errorf("%s: %w", phase.name, err)
		}
		*phase.to = append(*phase.to, sample...)
	}
	for _, k := range keys {
		if err := cfg.Client.Delete(ctx, k); err != nil {
			return HostileReport{}, fmt.Errorf("delete an ordinary episode: %w", err)
		}
	}
	r := h.report
	r.Idle, r.Beside, r.Create = idle.Summarize(), beside.Summarize(), h.create.Summarize()
	for kind, sample := range h.delete {
		r.Delete[kind] = sample.Summarize()
	}
	if r.Idle.P99 > 0 {
		r.Ratio = r.Beside.P99 / r.Idle.P99
	}
	r.Seconds = time.Since(began).Seconds()
	return r, nil
}

// ordinary has every episode call and think in turn for as long as work lasts.
func (h *hostile) ordinary(ctx context.Context, keys []api.Key, work func(context.Context) error) (timing.Sample, error) {
	over := make(chan struct{})
	samples := make([]timing.Sample, len(keys))
	errs := make([]error, len(keys))
	var agents sync.WaitGroup
	for i, k := range keys {
		agents.Go(func() {
			chance := rand.New(rand.NewPCG(uint64(i), 0)) //nolint:gosec // no secret
			// Spread over one time of thinking, as agents are.
			wait := think * time.Duration(i) / time.Duration(len(keys))
			for {
				select {
				case <-over:
					return
				case <-time.After(wait):
				}
				wait = think/2 + time.Duration(chance.Int64N(int64(think)))
				began := time.Now()
				r, err := h.Client.Call(ctx, k, api.CallSpec{Tool: "exec", Shell: "echo 6 7 | { read a b; echo $((a*b)); }"})
				if err != nil {
					errs[i] = fmt.Errorf("ordinary call: %w", err)
					return
				}
				samples[i] = append(samples[i], time.Since(began))
				if r.Stdout != "42\n" || r.ExitCode == nil || *r.ExitCode != 0 {
					h.wrong("an ordinary call printed %q, limit %+v, fault %+v", r.Stdout, r.Limit, r.Fault)
				}
			}
		})
	}
	err := work(ctx)
	close(over)
	agents.Wait()
	var all timing.Sample
	for _, s := range samples {
		all = append(all, s...)
	}
	return all, errors.Join(append(errs, err)...)
}

func (h *hostile) wrong(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.report.Wrong) < maxWrong {
		h.report.Wrong = append(h.report.Wrong, fmt.Sprintf(format, args...))
	}
}

// batch runs the hostile episodes.
func (h *hostile) batch(ctx context.Context) error {
	all := slices.DeleteFunc(bombs(), func(b bomb) bool { return len(h.Only) > 0 && !slices.Contains(h.Only, b.name) })
	if len(all) == 0 {
		return fmt.Errorf("no kind of hostile episode in %q", h.Only)
	}
	total := h.Hostile
	next := make(chan int)
	go func() {
		defer close(next)
		for i := range total {
			select {
			case next <- i:
				h.Progress("hostile episodes", i, total)
			case <-ctx.Done():
				return
			}
		}
	}()
	errs := make([]error, h.AtOnce)
	var attackers sync.WaitGroup
	for n := range h.AtOnce {
		attackers.Go(func() {
			for i := range next {
				if err := h.attack(ctx, i, all[i%len(all)]); err != nil {
					errs[n] = errors.Join(errs[n], err)
				}
			}
		})
	}
	attackers.Wait()
	return errors.Join(errs...)
}

// attack is the life of one hostile episode.
func (h *hostile) attack(ctx context.Context, i int, b bomb) error {
	began := time.Now()
	made, err := h.Client.Create(ctx, api.EpisodeSpec{
		ID: fmt.Sprintf("hostile/%d", i), World: h.world,
		Limits: api.Limits{CPUs: 1, Memory: 128 << 20, Disk: 64 << 20, Inodes: 20000, Pids: 128},
	})
	if err != nil {
		return fmt.Errorf("create for a %s: %w", b.name, err)
	}
	created := time.Since(began)
	k := api.Key{Run: made.Episode.Run, ID: made.Episode.ID}
	r, err := h.Client.Call(ctx, k, api.CallSpec{Tool: "exec", Shell: b.run, TimeoutS: bombSeconds})
	if err != nil {
		return fmt.Errorf("call of a %s: %w", b.name, err)
	}
	if why := b.wrong(r); why != "" && limitIs("call_s")(r) != "" {
		h.wrong("%s: %s (fault %+v, stderr %.200q)", b.name, why, r.Fault, r.Stderr)
	}
	// What it left running runs on until here.
	next, err := h.Client.Call(ctx, k, api.CallSpec{Tool: "exec", Shell: "echo ok", TimeoutS: 60})
	if err != nil {
		return fmt.Errorf("the call after a %s: %w", b.name, err)
	}
	if next.Stdout != "ok\n" {
		h.wrong("the call after a %s printed %q, limit %+v, fault %+v", b.name, next.Stdout, next.Limit, next.Fault)
	}
	began = time.Now()
	if err := h.Client.Delete(ctx, k); err != nil {
		return fmt.Errorf("delete after a %s: %w", b.name, err)
	}
	deleted := time.Since(began)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.create, h.delete[b.name] = append(h.create, created), append(h.delete[b.name], deleted)
	h.report.Hostile[b.name]++
	return nil
}

// Text is the report for people.
func (r HostileReport) Text() string {
	var b strings.Builder
	n := 0
	for _, c := range r.Hostile {
		n += c
	}
	row := func(name string, s timing.Summary) {
		fmt.Fprintf(&b, "%-28s n %5d   p50 %8.2f ms   p90 %8.2f ms   p99 %8.2f ms\n", name, s.N, s.P50, s.P90, s.P99)
	}
	row("ordinary calls alone", r.Idle)
	row("beside the hostile", r.Beside)
	row("hostile: create", r.Create)
	for _, kind := range slices.Sorted(maps.Keys(r.Delete)) {
		row("delete: "+kind, r.Delete[kind])
	}
	fmt.Fprintf(&b, "%d hostile episodes in %.0f s; p99 beside them is %.2f times the p99 alone; %d wrong results\n", n, r.Seconds, r.Ratio, len(r.Wrong))
	for _, w := range r.Wrong {
		fmt.Fprintln(&b, "wrong:", w)
	}
	return b.String()
}
