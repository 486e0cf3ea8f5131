package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paddock-run/paddock/internal/timing"
)

// arm is one of several that do the same work, some at a time.
type arm struct {
	name, what string
	// one does the work of one; all, in its place, that of a whole batch.
	one func(ctx context.Context, i int) error
	all func(ctx context.Context, n int) error
	// before and after surround a batch and are not measured.
	before, after func(ctx context.Context, n int) error
	// cpu is the time that counts as the arm's; nil is not told.
	cpu func() (time.Duration, error)
}

// turns has each arm do a batch of n in every round, after one smaller batch that does not
// count, and reports the wall and CPU time of one.
func (b *bench) turns(ctx context.Context, arms []arm, rounds, n int) error {
	wall, cpu := map[string]timing.Sample{}, map[string]timing.Sample{}
	for round := range rounds + 1 {
		for i, a := range arms {
			b.Progress(a.name, round*len(arms)+i, (rounds+1)*len(arms))
			size := n
			if round == 0 {
				size = 2
			}
			took, used, err := a.batch(ctx, size)
			if err != nil {
				return fmt.Errorf("%s: %w", a.name, err)
			}
			if round == 0 {
				continue
			}
			wall[a.name] = append(wall[a.name], took/time.Duration(n))
			if a.cpu != nil {
				cpu[a.name] = append(cpu[a.name], used/time.Duration(n))
			}
		}
	}
	for _, a := range arms {
		row := Row{What: a.what, Summary: wall[a.name].Summarize()}
		if a.cpu != nil {
			ms := cpu[a.name].Summarize().P50
			row.CPUMs = &ms
		}
		b.report.Rows[a.name] = row
	}
	return nil
}

// batch is n at once, and what is taken down behind the answers.
func (a arm) batch(ctx context.Context, n int) (wall, cpu time.Duration, err error) {
	if a.before != nil {
		if err := a.before(ctx, n); err != nil {
			return 0, 0, err
		}
	}
	if a.after != nil {
		defer func() { err = errors.Join(err, a.after(context.WithoutCancel(ctx), n)) }()
	}
	used := a.cpu
	if used == nil {
		used = func() (time.Duration, error) { return 0, nil }
	}
	if err := settle(ctx); err != nil {
		return 0, 0, err
	}
	before, err := used()
	if err != nil {
		return 0, 0, err
	}
	began := time.Now()
	if a.all != nil {
		err = a.all(ctx, n)
	} else {
		err = inParallel(ways, n, func(i int) error { return a.one(ctx, i) })
	}
	wall = time.Since(began)
	if err := errors.Join(err, settle(ctx)); err != nil {
		return 0, 0, err
	}
	after, err := used()
	return wall, after - before, err
}

// heavyTime is the CPU time of the daemon for whole tasks, its sandboxes and this program;
// nil where nothing tells it.
func (b *bench) heavyTime() func() (time.Duration, error) {
	if b.HeavyCPU == nil {
		b.report.Absent["CPU time of episodes"] = ErrNoAccount.Error()
		return nil
	}
	return func() (time.Duration, error) {
		daemon, err := b.HeavyCPU()
		return daemon + rusage(unix.RUSAGE_SELF), err
	}
}

// childrenTime is the CPU time of this program and of those that it started and waited for.
func childrenTime() (time.Duration, error) {
	return rusage(unix.RUSAGE_SELF) + rusage(unix.RUSAGE_CHILDREN), nil
}

func hostTime() (time.Duration, error) { return busyTime(), nil }

func rusage(who int) time.Duration {
	var r unix.Rusage
	if unix.Getrusage(who, &r) != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
