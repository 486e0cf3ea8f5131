package runner_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paddock-run/paddock/runner"
)

// warmed plays one episode and waits until another sandbox of its kind is ready.
func warmed(t *testing.T, b *bench) runner.Key {
	t.Helper()
	first := b.live("first")
	b.call(first, runner.CallSpec{Tool: "exec", Shell: "echo mine > /tmp/mine; echo mine > here"})
	waitFor(t, "a warm sandbox", func() bool { return b.Capacity().Stock.Warm > 0 })
	return first
}

func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not in 30 s", what)
		}
		<-time.After(5 * time.Millisecond)
	}
}

func TestWarmSandboxIsFresh(t *testing.T) {
	t.Parallel()
	b := newRealBench(t)
	first := warmed(t, b)
	ready := b.ranges()
	second := b.live("second")
	if got := string(b.sh(second, "ls /tmp/mine here; cat answer.sh").Stdout.Head); got != "echo wrong\n" {
		t.Errorf("the second episode sees %q, want the world's own file alone", got)
	}
	one, two := b.idsOf(first), b.idsOf(second)
	if one == two {
		t.Errorf("both have the ids from %d", one)
	}
	if ready[two] == 0 {
		t.Errorf("the second has the ids from %d, which were not ready: %v", two, ready)
	}
}

func (b *bench) idsOf(key runner.Key) uint32 {
	b.t.Helper()
	ep, err := b.Get(b.t.Context(), key)
	if err != nil {
		b.t.Fatal(err)
	}
	return ep.Last().IDs.HostID
}

func TestRemovedWorldTakesItsWarmSandboxesAlong(t *testing.T) {
	t.Parallel()
	b := newRealBench(t)
	first := warmed(t, b)
	if err := b.Delete(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	if err := b.RemoveWorld(t.Context(), root, b.world); err != nil {
		t.Errorf("RemoveWorld: %v", err)
	}
}

func TestWarmSandboxKilledWhileItWaitsIsReplaced(t *testing.T) {
	t.Parallel()
	b := newRealBench(t)
	warmed(t, b)
	waitFor(t, "everything in stock", func() bool { return b.Capacity().Stock.Blanks == 2 && b.Capacity().Stock.Warm == 1 })
	first := b.idsOf(b.key("first"))
	for id, pid := range b.ranges() {
		if id != first {
			if err := unix.Kill(pid, unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
	}
	waitFor(t, "their end", func() bool { return len(b.ranges()) <= 1 || b.Capacity().Stock.Warm == 0 })
	spoiled := 0
	for i := range 4 {
		c := b.create(b.spec(fmt.Sprintf("after-%d", i)))
		if _, err := b.Call(t.Context(), c.Episode.Key, runner.CallSpec{Tool: "exec", Shell: "true"}, runner.CallIO{}); err != nil {
			spoiled++ // taken before its death was told
		}
	}
	if spoiled > 1 {
		t.Errorf("%d of 4 episodes did not work after one warm sandbox was killed", spoiled)
	}
}

// ranges are the PID 1s that the launcher has, by the first id of their range.
func (b *bench) ranges() map[uint32]int {
	b.t.Helper()
	launcher, ok := b.cfg.Launcher.(realLauncher)
	if !ok {
		b.t.Fatal("no real launcher")
	}
	children, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", launcher.ProcessID()))
	if err != nil {
		b.t.Fatal(err)
	}
	found := map[uint32]int{}
	for _, file := range children {
		list, _ := os.ReadFile(file) // a thread that ended has none
		for f := range strings.FieldsSeq(string(list)) {
			m, _ := os.ReadFile("/proc/" + f + "/uid_map")
			var inside, id, size uint32
			pid, err := strconv.Atoi(f)
			if _, serr := fmt.Sscan(string(m), &inside, &id, &size); err == nil && serr == nil && id != 0 { // not the nursery, which has the host's ids
				found[id] = pid
			}
		}
	}
	return found
}

// The very first episode of a world and its limits has its sandbox from the stock when a
// batch said before that it would come.
func TestFirstEpisodeOfABatchIsWarm(t *testing.T) {
	t.Parallel()
	b := newRealBench(t)
	like := func(s *runner.EpisodeSpec) { s.Limits.MemoryBytes = 200 << 20 }
	b.batch(runner.BatchSpec{ID: "q", Parallel: 2, Episodes: []runner.BatchEpisode{
		{Agent: byClient, EpisodeSpec: b.spec("one", like)}, {Agent: byClient, EpisodeSpec: b.spec("two", like)},
	}})
	waitFor(t, "both sandboxes", func() bool { return b.Capacity().Stock.Warm == 2 })
	ready := b.ranges()
	for i, id := range []string{"one", "two"} {
		key := b.live(id, like)
		if ids := b.idsOf(key); ready[ids] == 0 {
			t.Errorf("%s has the ids from %d, which were not ready: %v", id, ids, ready)
		}
		if warm := b.Capacity().Stock.Warm; i == 0 && warm != 1 {
			t.Errorf("after the first episode %d of 2 are left", warm)
		}
		b.says(key, "cat answer.sh", "echo wrong\n")
	}
}
