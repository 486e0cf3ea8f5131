package runner_test

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/paddock-run/paddock/runner"
)

// limitHost gives all sandboxes of the bench together n bytes, as a host of that size does.
func (b *bench) limitHost(n int64) {
	b.t.Helper()
	file := filepath.Join("/sys/fs/cgroup/memory", b.cgroup, "memory.limit_in_bytes")
	if _, err := os.Stat(file); errors.Is(err, os.ErrNotExist) {
		file = filepath.Join("/sys/fs/cgroup", b.cgroup, "memory.max")
	}
	if err := os.WriteFile(file, []byte(strconv.FormatInt(n, 10)), 0o600); err != nil {
		b.t.Fatal(err)
	}
}

func TestHostOutOfMemoryIsThePlatforms(t *testing.T) {
	t.Parallel()
	b := newRealBench(t)
	key := b.live("e", func(s *runner.EpisodeSpec) { s.Limits.MemoryBytes, s.Limits.DiskBytes = 512<<20, 512<<20 })
	b.limitHost(48 << 20)
	// What a tmpfs holds is not freed by any kill.
	_, err := b.Call(t.Context(), key, runner.CallSpec{Tool: "exec", Shell: "dd if=/dev/zero of=/tmp/f bs=1M count=200"}, runner.CallIO{})
	if err != nil && runner.KindOf(err) != runner.KindEpisodeEnded {
		t.Fatal(err)
	}
	at := b.ended(key)
	wantEnd(t, at, runner.Errored, runner.Platform, "host_memory")
	if at.Reward != nil {
		t.Errorf("reward = %v, want null", *at.Reward)
	}
	b.limitHost(1 << 30)
	b.finish(b.live("neighbour"))
}

func TestOwnMemoryLimitIsTheAgents(t *testing.T) {
	t.Parallel()
	b := newRealBench(t)
	key := b.live("e", func(s *runner.EpisodeSpec) { s.Limits.MemoryBytes, s.Limits.DiskBytes = 32<<20, 64<<20 })
	res := b.sh(key, `a=x; while :; do a="$a$a"; done`)
	if !res.OOM || res.End != nil || res.Limit == nil || res.Limit.Name != "memory" {
		t.Errorf("call = oom %v, limit %+v, end %+v; want its own OOM and no end", res.OOM, res.Limit, res.End)
	}
	wantEnd(t, last(b.finish(key)), runner.OK, runner.Agent, "")
}

func TestLimitsThatEndRealEpisodes(t *testing.T) {
	t.Parallel()
	b := newRealBench(t)
	for name, c := range map[string]struct {
		limits  runner.Limits
		scripts []string
	}{
		"cpu_s":        {runner.Limits{CPUSeconds: 0.2}, []string{"true", `t=$(cut -d' ' -f1 /proc/uptime); i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done`}},
		"output_total": {runner.Limits{OutputBytes: 100 << 10}, []string{"echo fine", "yes"}},
		"calls":        {runner.Limits{Calls: 2}, []string{"true", "true", "true"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			key := b.live(name, func(s *runner.EpisodeSpec) { s.Limits = c.limits })
			for i, text := range c.scripts {
				_, err := b.Call(t.Context(), key, runner.CallSpec{Tool: "exec", Shell: text}, runner.CallIO{})
				if lastOne := i == len(c.scripts)-1; err != nil && (!lastOne || runner.KindOf(err) != runner.KindEpisodeEnded) {
					t.Fatalf("call %d: %v", i+1, err)
				}
			}
			at := b.ended(key)
			wantEnd(t, at, runner.Limit, runner.Agent, "")
			if l := at.End.Limit; l == nil || l.Name != name || l.Measured <= l.Value {
				t.Errorf("limit = %+v, want %s passed", l, name)
			}
			if at.Capture == nil {
				t.Error("the end state was not captured: it could not be scored")
			}
		})
	}
	b.finish(b.live("neighbour"))
}

func TestDiskAndPidsAreResultsOfCalls(t *testing.T) {
	t.Parallel()
	b := newRealBench(t)
	key := b.live("e", func(s *runner.EpisodeSpec) { s.Limits.DiskBytes, s.Limits.Pids = 1<<20, 16 })
	if res := b.sh(key, "dd if=/dev/zero of=/tmp/f bs=64k count=64"); res.Code == nil || *res.Code == 0 || res.End != nil || res.Limit == nil || res.Limit.Name != "disk" {
		t.Errorf("a full disk: %+v", res)
	}
	if res := b.sh(key, "rm /tmp/f; for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do sleep 1 & done; wait"); !res.PidsLimit || res.End != nil {
		t.Errorf("too many processes: %+v", res)
	}
	wantEnd(t, last(b.finish(key)), runner.OK, runner.Agent, "")
}
