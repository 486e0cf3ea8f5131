package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/paddock-run/paddock/api"
	"github.com/paddock-run/paddock/internal/timing"
)

// scale measures what grows with the number of episodes or of files.
func (b *bench) scale(ctx context.Context) error {
	return b.steps(ctx, []step{
		{RowIdle, "memory of idle episodes", b.idleMemory},
		{RowCapture, "capture of 10,000 files", b.captureMany},
		{RowDepth, "branches of branches", b.branchDepth},
		{RowLive, "2,000 live episodes", b.manyLive},
		{RowBurst, "1,000 creates at once", b.burst},
		{RowJudge, "scores of texts", b.texts},
	})
}

// crowd makes n live episodes; leave ends them.
func (b *bench) crowd(ctx context.Context, n int) (ids []string, leave func() error, err error) {
	ids = make([]string, n)
	leave = func() error {
		ctx := context.WithoutCancel(ctx)
		return inParallel(ways, n, func(i int) error {
			if ids[i] == "" {
				return nil
			}
			return b.Client.Delete(ctx, key(ids[i]))
		})
	}
	// They do next to nothing and ask for as little, or admission would make most wait.
	little := api.Requests{CPUs: 0.0005, Memory: 2 << 20}
	err = inParallel(ways, n, func(i int) error {
		id, err := b.createWith(ctx, api.EpisodeSpec{World: b.worlds["base"], Requests: little})
		ids[i] = id
		return err
	})
	return ids, leave, err
}

// captureMany is the finish of an episode that changed 10,000 files of 4 KiB: the kill, the
// capture of their bytes, and the record of its outcome.
func (b *bench) captureMany(ctx context.Context) error {
	const script = "mkdir /many && cd /many && head -c 4096 /dev/urandom >one; i=0; while [ $i -lt 100 ]; do mkdir $i; j=0; " +
		"while [ $j -lt 100 ]; do { echo $i $j; cat one; } >$i/$j; j=$((j+1)); done; i=$((i+1)); done"
	var took timing.Sample
	for range 3 {
		id, err := b.create(ctx, "base")
		if err != nil {
			return err
		}
		if err := b.shell(ctx, id, script); err != nil {
			return err
		}
		began := time.Now()
		ep, err := b.Client.Finish(ctx, key(id), api.FinishSpec{})
		took = append(took, time.Since(began))
		if err != nil {
			return err
		}
		if c := ep.Last().Capture; c == nil || c.Changes < 10_000 || !c.Rescorable {
			return fmt.Errorf("capture %+v, want 10,000 changes and all of their bytes", c)
		}
		if err := b.Client.Delete(ctx, key(id)); err != nil {
			return err
		}
	}
	b.report.Figures["capture_10k_ms"] = took.Summarize().P50
	return nil
}

// manyLive holds 2,000 episodes and asks each.
func (b *bench) manyLive(ctx context.Context) error {
	const n = 2000
	alone, err := b.execs(ctx)
	if err != nil {
		return err
	}
	ids, leave, err := b.crowd(ctx, n)
	if err != nil {
		return errors.Join(err, leave())
	}
	answered := 0
	var mu sync.Mutex
	err = inParallel(ways, n, func(i int) error {
		_, err := b.exec(ctx, ids[i])
		mu.Lock()
		defer mu.Unlock()
		if err == nil {
			answered++
		}
		return err
	})
	if err == nil {
		var crowded time.Duration
		if crowded, err = b.execs(ctx); err == nil {
			b.report.Figures["exec_2000_vs_0"] = float64(crowded) / float64(alone)
		}
	}
	b.report.Figures["live_max"] = float64(answered)
	return errors.Join(err, leave())
}

// execs is the median of calls of true in an episode of its own.
func (b *bench) execs(ctx context.Context) (time.Duration, error) {
	id, err := b.create(ctx, "base")
	if err != nil {
		return 0, err
	}
	var all []time.Duration
	for range 200 {
		took, err := b.exec(ctx, id)
		if err != nil {
			return 0, err
		}
		all = append(all, took)
	}
	slices.Sort(all)
	return all[len(all)/2], b.Client.Delete(ctx, key(id))
}

// burst is 1,000 creates at once, each until its first call has ended.
func (b *bench) burst(ctx context.Context) error {
	const n = 1000
	var mu sync.Mutex
	var took timing.Sample
	began := time.Now()
	err := inParallel(n, n, func(int) error {
		id, err := b.create(ctx, "base")
		if err == nil {
			_, err = b.exec(ctx, id)
		}
		mu.Lock()
		took = append(took, time.Since(began))
		mu.Unlock()
		return errors.Join(err, b.Client.Delete(context.WithoutCancel(ctx), key(id)))
	})
	b.report.Figures["burst1000_p99_s"] = took.Summarize().P99 / 1000
	return err
}
