package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/paddock-run/paddock/api"
)

const ways = 8

// eight does an operation n times, eight at a time, and returns the wall time of one.
func eight(n int, do func(context.Context) (time.Duration, error)) func(context.Context) (time.Duration, error) {
	return func(ctx context.Context) (time.Duration, error) {
		began := time.Now()
		err := inParallel(ways, n, func(int) error {
			_, err := do(ctx)
			return err
		})
		return time.Since(began) / time.Duration(n), err
	}
}

// inParallel calls do for 0 to n-1, several at a time, and returns what went wrong.
func inParallel(ways, n int, do func(i int) error) error {
	next := make(chan int)
	go func() {
		defer close(next)
		for i := range n {
			next <- i
		}
	}()
	var mu sync.Mutex
	var failed error
	var workers sync.WaitGroup
	for range ways {
		workers.Go(func() {
			for i := range next {
				if err := do(i); err != nil {
					mu.Lock()
					failed = errors.Join(failed, err)
					mu.Unlock()
				}
			}
		})
	}
	workers.Wait()
	return failed
}

// manyJobs are those with several operations at a time, those of a warm daemon, and branches.
//
// Each makes the episodes that it needs and ends them, so that no other job pays for them.
func (b *bench) manyJobs() []job {
	whole := func(ctx context.Context) (time.Duration, error) {
		_, err := b.wholeEpisode(ctx)
		return 0, err
	}
	jobs := []job{
		{name: "episode8", what: "episode, 8 at a time, wall time per episode", each: 1, ops: 64, do: eight(64, whole)},
		{name: "exec8", what: "exec true in 8 live episodes at a time, wall time per call", each: 1, ops: 80, do: b.execEight},
		{name: "branch", what: "fork of a live episode with 100 changed files, until the new one has run true", each: 3, do: b.branch},
	}
	if b.Warm != nil {
		jobs = append(jobs, job{name: "acquire", what: "create where a warm sandbox waits, over the socket", each: 30, do: b.acquire})
	}
	if b.GoJudge != "" {
		jobs = append(jobs, job{name: "gojudge8", what: "go-judge /run of true, 8 at a time, wall time per run", each: 1, ops: 80, do: eight(80, goJudge{url: b.GoJudge}.true)})
	} else {
		b.report.Absent["go-judge"] = "no --go-judge URL was given"
	}
	return jobs
}

// execEight makes calls in eight live episodes at a time, and returns the wall time of one.
func (b *bench) execEight(ctx context.Context) (time.Duration, error) {
	const n = 80
	live, leave, err := b.crowd(ctx, ways)
	if err != nil {
		return 0, errors.Join(err, leave())
	}
	began := time.Now()
	err = inParallel(ways, n, func(i int) error {
		_, err := b.exec(ctx, live[i%ways])
		return err
	})
	return time.Since(began) / n, errors.Join(err, leave())
}

// acquire is a create on the warm daemon. What it took is made again before the next.
func (b *bench) acquire(ctx context.Context) (time.Duration, error) {
	id := fmt.Sprintf("warm-%d-%d", os.Getpid(), b.episodes.Add(1))
	began := time.Now()
	_, err := b.Warm.Create(ctx, api.EpisodeSpec{Run: benchRun, ID: id, World: "bench-base"})
	took := time.Since(began)
	if err != nil {
		return 0, err
	}
	if err := b.Warm.Delete(ctx, key(id)); err != nil {
		return 0, err
	}
	return took, b.refilled(ctx)
}

// refilled waits until the warm daemon has made ahead what was taken.
func (b *bench) refilled(ctx context.Context) error {
	for range 1000 {
		c, err := b.Warm.Capacity(ctx)
		if err != nil {
			return err
		}
		if c.Warm > 0 && c.Blanks > 0 {
			return nil
		}
		if err := pause(ctx, time.Millisecond); err != nil {
			return err
		}
	}
	return errors.New("the warm daemon makes no sandbox ahead")
}

// changes makes 100 files of 4 KiB.
const changes = "mkdir /work && cd /work && i=0; while [ $i -lt 100 ]; do head -c 4096 /dev/urandom >f$i; i=$((i+1)); done"

func (b *bench) branchParent(ctx context.Context) (string, error) {
	id, err := b.create(ctx, "base")
	if err != nil {
		return "", err
	}
	return id, b.shell(ctx, id, changes)
}

func (b *bench) shell(ctx context.Context, id, script string) error {
	r, err := b.Client.Call(ctx, key(id), api.CallSpec{Tool: "exec", Shell: script, TimeoutS: 600})
	if err == nil && (r.ExitCode == nil || *r.ExitCode != 0) {
		err = fmt.Errorf("%q ended with %v, signal %d: %s", script, r.ExitCode, r.Signal, r.Stderr)
	}
	return err
}

func (b *bench) branch(ctx context.Context) (time.Duration, error) {
	parent, err := b.branchParent(ctx)
	if err != nil {
		return 0, err
	}
	began := time.Now()
	id, err := b.fork(ctx, parent)
	if err != nil {
		return 0, err
	}
	if _, err := b.exec(ctx, id); err != nil {
		return 0, err
	}
	took := time.Since(began)
	return took, errors.Join(b.Client.Delete(ctx, key(id)), b.Client.Delete(ctx, key(parent)))
}

// fork branches a live episode once and returns the new one's id.
func (b *bench) fork(ctx context.Context, parent string) (string, error) {
	id := fmt.Sprintf("branch-%d-%d", os.Getpid(), b.episodes.Add(1))
	_, err := b.Client.Fork(ctx, key(parent), api.ForkSpec{IDs: []string{id}})
	return id, err
}

// dockerBranch is the same with Docker: the container's files become an image.
func (b *bench) dockerBranch(ctx context.Context) (took time.Duration, err error) {
	parent, err := b.docker.Start(ctx, idle)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, b.docker.Remove(ctx, parent)) }()
	code, err := b.docker.Exec(ctx, parent, []string{"/bin/busybox", "sh", "-c", dockerChanges})
	if err != nil || code != 0 {
		return 0, errors.Join(err, fmt.Errorf("making the changes exited %d", code))
	}
	began := time.Now()
	image, err := b.docker.Commit(ctx, parent)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, b.docker.RemoveImage(ctx, image)) }()
	c := idle
	c.Image = image
	id, err := b.docker.Start(ctx, c)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, b.docker.Remove(ctx, id)) }()
	if code, err = b.docker.Exec(ctx, id, []string{"/bin/true"}); err == nil && code != 0 {
		err = fmt.Errorf("true exited %d", code)
	}
	return time.Since(began), err
}

// dockerChanges is changes for an image that has no links to busybox's programs.
const dockerChanges = "b=/bin/busybox; $b mkdir /work && cd /work && i=0; while [ $i -lt 100 ]; do $b head -c 4096 /dev/urandom >f$i; i=$((i+1)); done"

func (b *bench) dockerStart(ctx context.Context) (time.Duration, error) {
	began := time.Now()
	id, err := b.docker.Start(ctx, idle)
	took := time.Since(began)
	if err != nil {
		return 0, err
	}
	return took, b.docker.Remove(ctx, id)
}
