package giveway

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// stretches has work go on for a while, step by step, as long as the test needs it.
func stretches(w *Work, n int) {
	for range n {
		for began := time.Now(); time.Since(began) < stretch; {
		}
		w.Step()
	}
}

func TestLongWorkHasHalfOfTheCPUs(t *testing.T) {
	var at atomic.Int32
	var all sync.WaitGroup
	for range 4 * cap(lanes) {
		all.Go(func() {
			var w Work
			defer w.Done()
			w.Step()
			stretches(&w, 1) // from here on it is long
			for range 10 {
				if n := int(at.Add(1)); n > cap(lanes) {
					t.Errorf("%d pieces of long work at once, want at most %d", n, cap(lanes))
				}
				for began := time.Now(); time.Since(began) < stretch; {
				}
				at.Add(-1)
				w.Step()
			}
		})
	}
	all.Wait()
	if len(lanes) != 0 {
		t.Errorf("%d places are taken after all", len(lanes))
	}
}

func TestWorkRestsWhileSandboxesStandBehind(t *testing.T) {
	Behind(true)
	defer Behind(false)
	var w Work
	w.Step()
	began := time.Now()
	stretches(&w, 5)
	w.Done()
	if took := time.Since(began); took < 5*(stretch+rest) {
		t.Errorf("five stretches took %s, want a rest of %s after each", took, rest)
	}
}

func TestShortWorkWaitsForNothing(t *testing.T) {
	for range cap(lanes) {
		lanes <- struct{}{}
		defer func() { <-lanes }()
	}
	var w Work
	w.Step()
	w.Step() // within the first stretch
	w.Done()
}
