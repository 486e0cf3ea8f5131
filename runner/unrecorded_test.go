package runner_test

import (
	"context"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/paddock-run/paddock/runner"
)

// crammedRecord is a record whose disk can be full.
type crammedRecord struct {
	runner.Record
	full atomic.Bool
	kept chan runner.Attempt
}

func (r *crammedRecord) UpdateAttempt(ctx context.Context, key runner.Key, at runner.Attempt, d runner.Durability) error {
	if d == runner.Synced && r.full.Load() {
		return syscall.ENOSPC
	}
	err := r.Record.UpdateAttempt(ctx, key, at, d)
	if err == nil && at.State == runner.Done {
		select {
		case r.kept <- at:
		default:
		}
	}
	return err
}

// An end that a full disk kept from the record is there once there is room again, without
// a restart.
func TestEndIsOnRecordOnceThereIsRoomAgain(t *testing.T) {
	t.Parallel()
	rec := &crammedRecord{kept: make(chan runner.Attempt, 1)}
	b := newBench(t, func(c *runner.Config) { rec.Record, c.Record = c.Record, rec })
	key := b.live("full")
	rec.full.Store(true)
	_, _ = b.Finish(t.Context(), key, runner.FinishSpec{})
	rec.full.Store(false)
	select {
	case at := <-rec.kept:
		if at.End == nil || at.End.Cause != runner.Platform {
			t.Errorf("end %+v", at.End)
		}
	case <-time.After(30 * time.Second):
		t.Error("the end never came on record")
	}
}
