package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/paddock-run/paddock/internal/timing"
)

// depths are how many branches one upon another a branch is measured at.
var depths = []int{1, 8, 32, 100}

// deepen is what each episode of a chain does before it is branched: ten files that every
// one writes anew, ten of its own, and one that it takes away from the one before.
const deepen = "mkdir -p /chain/same /chain/%[1]d && cd /chain && i=0; while [ $i -lt 10 ]; do " +
	"head -c 4096 /dev/urandom >same/f$i; head -c 4096 /dev/urandom >%[1]d/f$i; i=$((i+1)); done; rm -f %[2]d/f0"

// branchDepth is a branch of a branch of a branch: the fork until the new one has run true,
// and then its first walk over all that the chain wrote.
func (b *bench) branchDepth(ctx context.Context) error {
	chain, err := b.chain(ctx)
	if err != nil {
		return err
	}
	rounds := 20
	if b.Quick {
		rounds = 5
	}
	branch, walk := map[int]timing.Sample{}, map[int]timing.Sample{}
	for range rounds {
		for _, d := range depths {
			if err := pause(ctx, 50*time.Millisecond); err != nil {
				return err
			}
			first, look, err := b.branchOf(ctx, chain[d])
			if err != nil {
				return fmt.Errorf("depth %d: %w", d, err)
			}
			branch[d], walk[d] = append(branch[d], first), append(walk[d], look)
		}
	}
	for _, d := range depths {
		what := fmt.Sprintf("at depth %d, 20 files by each episode of the chain", d)
		b.report.Rows[fmt.Sprintf("branch_depth%d", d)] = Row{What: "fork of a live episode until the new one has run true, " + what, Summary: branch[d].Summarize()}
		b.report.Rows[fmt.Sprintf("walk_depth%d", d)] = Row{What: "the new one's first find over all of them, " + what, Summary: walk[d].Summarize()}
		err = errors.Join(err, b.Client.Delete(ctx, key(chain[d])))
	}
	return err
}

// chain makes live episodes, each a branch of the one before, and returns those whose next
// branch is at one of the depths.
func (b *bench) chain(ctx context.Context) (map[int]string, error) {
	kept := map[int]string{}
	at, err := b.create(ctx, "base")
	if err != nil {
		return nil, err
	}
	for d := 1; ; d++ {
		if err := b.shell(ctx, at, fmt.Sprintf(deepen, d, d-1)); err != nil {
			return nil, err
		}
		for _, want := range depths {
			if want == d {
				kept[d] = at
			}
		}
		if d == depths[len(depths)-1] {
			return kept, nil
		}
		next, err := b.fork(ctx, at)
		if err != nil {
			return nil, fmt.Errorf("depth %d: %w", d, err)
		}
		if kept[d] == "" {
			if err := b.Client.Delete(ctx, key(at)); err != nil {
				return nil, err
			}
		}
		at = next
	}
}

func (b *bench) branchOf(ctx context.Context, parent string) (first, walk time.Duration, err error) {
	began := time.Now()
	id, err := b.fork(ctx, parent)
	if err != nil {
		return 0, 0, err
	}
	if _, err := b.exec(ctx, id); err != nil {
		return 0, 0, err
	}
	first, began = time.Since(began), time.Now()
	if err := b.shell(ctx, id, "find /chain -type f -exec cat {} + >/dev/null"); err != nil {
		return 0, 0, err
	}
	return first, time.Since(began), b.Client.Delete(ctx, key(id))
}
