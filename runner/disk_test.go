package runner_test

import (
	"context"
	"encoding/json"
	"fmt"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/paddock-run/paddock/overlay"
	"github.com/paddock-run/paddock/runner"
)

// fullRecord is a record on a disk that is full for one kind of write.
type fullRecord struct {
	runner.Record
	full atomic.Value // a string: which
}

func (r *fullRecord) fails(what string) error {
	if now, _ := r.full.Load().(string); now == what {
		return fmt.Errorf("write: %w", syscall.ENOSPC)
	}
	return nil
}

func (r *fullRecord) UpdateAttempt(ctx context.Context, key runner.Key, a runner.Attempt, d runner.Durability) error {
	if d == runner.Synced {
		if err := r.fails("outcome"); err != nil {
			return err
		}
	}
	return r.Record.UpdateAttempt(ctx, key, a, d)
}

func (r *fullRecord) SavePayload(ctx context.Context, key runner.Key, n int, payload []byte) error {
	if err := r.fails("payload"); err != nil {
		return err
	}
	return r.Record.SavePayload(ctx, key, n, payload)
}

func (r *fullRecord) Journal(key runner.Key, n int) (runner.Journal, error) {
	if err := r.fails("start"); err != nil {
		return nil, err
	}
	j, err := r.Record.Journal(key, n)
	return fullJournal{Journal: j, r: r}, err
}

type fullJournal struct {
	runner.Journal
	r *fullRecord
}

func (j fullJournal) Append(line []byte) (int64, error) {
	if err := j.r.fails("call"); err != nil {
		return 0, err
	}
	return j.Journal.Append(line)
}

func (j fullJournal) Sync() error {
	if err := j.r.fails("sync"); err != nil {
		return err
	}
	return j.Journal.Sync()
}

// fullWorlds is a store whose captures cannot be written.
type fullWorlds struct {
	runner.Worlds
	r *fullRecord
}

func (w fullWorlds) Fork(ctx context.Context, id string) (runner.Fork, error) {
	f, err := w.Worlds.Fork(ctx, id)
	return fullFork{Fork: f, r: w.r}, err
}

type fullFork struct {
	runner.Fork
	r *fullRecord
}

func (f fullFork) Capture(ctx context.Context, in overlay.CaptureInput) (overlay.Capture, error) {
	if err := f.r.fails("capture"); err != nil {
		return overlay.Capture{}, err
	}
	return f.Fork.Capture(ctx, in)
}

func TestFullHostDiskIsThePlatforms(t *testing.T) {
	t.Parallel()
	for _, what := range []string{"start", "call", "capture", "sync", "payload", "outcome"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			r := &fullRecord{}
			b := newBench(t, func(c *runner.Config) {
				r.Record = c.Record
				c.Record, c.Worlds = r, fullWorlds{c.Worlds, r}
			})
			neighbour := b.live("neighbour")
			b.sh(neighbour, "true")
			if what == "start" {
				r.full.Store(what)
			}
			b.create(b.spec("e"))
			key := b.key("e")
			r.full.Store(what)
			_, err := b.Call(t.Context(), key, runner.CallSpec{Tool: "exec", Shell: "echo x > f"}, runner.CallIO{})
			if failed := what == "start" || what == "call"; failed {
				wantKind(t, err, runner.KindEpisodeEnded)
			} else if err != nil {
				t.Fatal(err)
			}
			_, _ = b.Finish(t.Context(), key, runner.FinishSpec{Answer: json.RawMessage(`1`), Payload: []byte("p")})
			at := b.ended(key)
			wantEnd(t, at, runner.Errored, runner.Platform, "host_disk")
			if at.Valid {
				t.Errorf("reward = %v, want null", *at.Reward)
			}
			r.full.Store("")
			wantEnd(t, last(b.finish(neighbour)), runner.OK, runner.Agent, "")
		})
	}
}
