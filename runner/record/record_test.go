package record_test

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/paddock-run/paddock/runner"
	"github.com/paddock-run/paddock/runner/contract"
	"github.com/paddock-run/paddock/runner/record"
)

func open(t *testing.T, root string) runner.Record {
	t.Helper()
	r, err := record.Open(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestRecordKeepsTheContract(t *testing.T) {
	t.Parallel()
	contract.Record(t, open)
}

func TestSecondDaemonIsRefused(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	defer open(t, root).Close()
	if _, err := record.Open(t.Context(), root); !errors.Is(err, record.ErrLocked) {
		t.Errorf("second Open: %v, want ErrLocked", err)
	}
}

// BenchmarkEpisode is what the record costs an episode: two writes that are waited for
// (one synced), three that are not, and one call.
func BenchmarkEpisode(b *testing.B) {
	r, err := record.Open(b.Context(), b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	var n atomic.Int64
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			key := runner.Key{Owner: "0", Run: "bench", ID: fmt.Sprint("e", n.Add(1))}
			a := runner.Attempt{N: 1, State: runner.Queued}
			j, err := r.Journal(key, 1)
			if err == nil {
				var kept func() error
				if kept, err = r.InsertAttempt(b.Context(), key, runner.Plan{}, a); err == nil {
					err = kept()
				}
			}
			for _, s := range []runner.State{runner.Starting, runner.Live, runner.Stopping} {
				a.State = s
				if err == nil {
					err = r.UpdateAttempt(b.Context(), key, a, runner.Lazy)
				}
			}
			if err == nil {
				_, err = j.Append([]byte(`{"seq":1,"call":{"tool":"exec"},"result":{}}`))
			}
			a.State = runner.Done
			if err == nil {
				err = errors.Join(j.Sync(), j.Close(), r.UpdateAttempt(b.Context(), key, a, runner.Synced))
			}
			if err != nil {
				b.Error(err)
				return
			}
		}
	})
}
