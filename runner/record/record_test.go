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

// A state that nobody waits for is kept unless something overtook it, and never comes back
// to an episode that took a removed one's place.
func TestStatesThatNobodyWaitsForAreKeptInOrder(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	r := open(t, root)
	state := func(key runner.Key, s runner.State, d runner.Durability) {
		t.Helper()
		if err := r.UpdateAttempt(t.Context(), key, runner.Attempt{N: 1, State: s}, d); err != nil {
			t.Fatal(err)
		}
	}
	insert := func(key runner.Key) {
		t.Helper()
		kept, err := r.InsertAttempt(t.Context(), key, runner.Plan{}, runner.Attempt{N: 1, State: runner.Queued})
		if err == nil {
			err = kept()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	want := map[runner.Key]runner.State{}
	for i, s := range []runner.State{runner.Live, runner.Done, runner.Queued} {
		key := runner.Key{Owner: "0", Run: "r", ID: fmt.Sprint("e", i)}
		want[key] = s
		insert(key)
		state(key, runner.Starting, runner.Lazy)
		state(key, runner.Live, runner.Lazy)
		if s == runner.Done {
			state(key, runner.Done, runner.Written)
		}
		if s == runner.Queued {
			if err := r.DeleteEpisode(t.Context(), key); err != nil {
				t.Fatal(err)
			}
			insert(key)
		}
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	r = open(t, root)
	defer r.Close()
	for key, s := range want {
		if _, all, err := r.Attempts(t.Context(), key); err != nil || len(all) != 1 || all[0].State != s {
			t.Errorf("%s is %+v (%v), want %s", key.ID, all, err, s)
		}
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
