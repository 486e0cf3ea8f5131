package runner_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/paddock-run/paddock/runner"
)

// stocked is a runner that keeps at most so many warm sandboxes of a kind, on a host of so
// many CPUs.
func stocked(t *testing.T, warm int, cpus float64) *bench {
	t.Helper()
	return newBench(t, func(c *runner.Config) {
		c.Stock.Warm = warm
		c.Host.CPUs = cpus
	})
}

// lines are episodes of a batch that wait for a client, with so much memory each.
func (b *bench) lines(memoryMiB ...int64) []runner.BatchEpisode {
	var all []runner.BatchEpisode
	for i, mib := range memoryMiB {
		all = append(all, runner.BatchEpisode{Agent: byClient, EpisodeSpec: b.spec(fmt.Sprintf("line-%d", i), func(s *runner.EpisodeSpec) {
			s.Limits.MemoryBytes = mib << 20
		})})
	}
	return all
}

// kinds are the shelves of the stock, by the memory of their kind.
func (b *bench) kinds() map[int64]runner.StockKind {
	synctest.Wait()
	out := map[int64]runner.StockKind{}
	for _, k := range b.Capacity().Stock.Kinds {
		out[k.Limits.MemoryBytes>>20] = k
	}
	return out
}

func (b *bench) wantKind(mib int64, warm, low, high, expected int) {
	b.t.Helper()
	if k := b.kinds()[mib]; k.Warm != warm || k.Low != low || k.High != high || k.Expected != expected {
		b.t.Errorf("of %d MiB: %d warm, low %d, high %d, expected %d; want %d, %d, %d, %d",
			mib, k.Warm, k.Low, k.High, k.Expected, warm, low, high, expected)
	}
}

func TestABatchsManifestFillsTheStockAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := stocked(t, 4, 16)
		b.batch(runner.BatchSpec{ID: "q", Parallel: 7, Episodes: b.lines(256, 512, 256, 256, 256, 256, 512, 1024)})
		// The next seven lines, whose clients are not there yet; no more of a kind than are kept.
		b.wantKind(256, 4, 2, 4, 5)
		b.wantKind(512, 2, 1, 2, 2)
		b.wantKind(1024, 0, 0, 0, 0)
		if got := len(b.launcher.Live()); got != 6 {
			t.Errorf("%d sandboxes live, want the 6 in stock alone", got)
		}
	})
}

func TestManifestAsksForNoMoreThanTheHostHasRoomFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := stocked(t, 8, 2)
		lines := b.lines(256, 256, 256, 256, 256)
		for i := range lines {
			lines[i].Requests.CPUs = 0.6
		}
		b.batch(runner.BatchSpec{ID: "q", Parallel: 5, Episodes: lines})
		b.wantKind(256, 3, 2, 3, 5) // three times 0.6 of two CPUs
		b.live("big", func(s *runner.EpisodeSpec) { s.Requests.CPUs = 2 })
		b.wantKind(256, 3, 0, 0, 5) // a full host asks for none, and those that are there stay
	})
}

func TestKindOfABatchThatIsOverIsLetGoSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := stocked(t, 4, 16)
		b.batch(runner.BatchSpec{ID: "q", Parallel: 3, Episodes: b.lines(256, 256, 512)})
		other := b.lines(512)
		other[0].ID = "other"
		b.batch(runner.BatchSpec{ID: "r", Parallel: 1, Episodes: other})
		b.wantKind(512, 2, 1, 2, 2)
		if _, _, err := b.CancelBatch(t.Context(), owner, "q", runner.BatchCancel{}); err != nil {
			t.Fatal(err)
		}
		b.wantKind(256, 2, 0, 0, 0)
		b.wantKind(512, 2, 1, 1, 1) // another batch has episodes of it
		time.Sleep(8 * time.Second)
		b.wantKind(256, 0, 0, 0, 0)
		b.wantKind(512, 2, 1, 1, 1)
	})
}

func TestStockForABatchWithoutClientsDoesNotWaitForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := stocked(t, 4, 16)
		b.batch(runner.BatchSpec{ID: "q", Parallel: 3, Episodes: b.lines(256, 256, 256)})
		b.wantKind(256, 3, 2, 3, 3)
		time.Sleep(runner.WarmIdle + 5*time.Second)
		b.wantKind(256, 0, 0, 0, 0)
		time.Sleep(time.Hour)
		b.wantKind(256, 0, 0, 0, 0)
		// A client brings it back: what it begins is seen, and what comes next is made.
		key := b.live("same", func(s *runner.EpisodeSpec) { s.Limits.MemoryBytes = 256 << 20 })
		b.wantKind(256, 1, 1, 1, 0)
		b.finish(key)
	})
}

func TestRecentDemandSizesTheStockBetweenItsMarks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := stocked(t, 4, 16)
		n := 0
		take := func() {
			t.Helper()
			n++
			b.finish(b.live(fmt.Sprint("e-", n), func(s *runner.EpisodeSpec) { s.Limits.MemoryBytes = 256 << 20 }))
		}
		take()
		b.wantKind(256, 1, 1, 1, 0)
		take() // it found one, which is made again
		b.wantKind(256, 1, 1, 1, 0)
		time.Sleep(runner.WarmIdle + 5*time.Second)
		b.wantKind(256, 0, 0, 0, 0)
	})
}
