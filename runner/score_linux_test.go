package runner_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/paddock-run/paddock/internal/need"
	"github.com/paddock-run/paddock/overlay"
	"github.com/paddock-run/paddock/overlay/image"
	"github.com/paddock-run/paddock/policies"
	"github.com/paddock-run/paddock/runner"
	"github.com/paddock-run/paddock/runner/record"
	"github.com/paddock-run/paddock/sandbox"
	"github.com/paddock-run/paddock/sandbox/native"
)

// realLauncher and realStore give the concrete types the runner's interfaces.
type realLauncher struct{ *native.Launcher }

func (l realLauncher) Start(ctx context.Context, spec sandbox.Spec) (runner.Sandbox, error) {
	s, err := l.Launcher.Start(ctx, spec)
	if err != nil {
		return nil, err
	}
	return realSandbox{s}, nil
}

type realSandbox struct{ *native.Sandbox }

func (s realSandbox) Files() runner.Files { return s.Sandbox.Files() }

type realStore struct{ image.Worlds }

func (s realStore) Fork(ctx context.Context, id string) (runner.Fork, error) {
	f, err := s.Worlds.Fork(ctx, id)
	if err != nil {
		return nil, err
	}
	return realFork{f}, nil
}

type realFork struct{ *overlay.Fork }

func (f realFork) Track(upper *os.File, hostID uint32) runner.Tracker {
	return f.Fork.Track(upper, hostID)
}

var benches atomic.Int64

// newRealBench is a runner on real sandboxes, store and record, with a world of busybox
// whose directory /app holds a source and a visible test.
func newRealBench(t *testing.T) *bench {
	t.Helper()
	need.Root(t)
	need.Overlay(t)
	need.Busybox(t)
	root := need.Tmpfs(t)
	set, err := policies.Load()
	if err != nil {
		t.Fatal(err)
	}
	store, err := overlay.Open(root, overlay.Options{})
	if err != nil {
		t.Fatal(err)
	}
	rec, err := record.Open(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	run := filepath.Join(root, "run", "launcher")
	if err := os.MkdirAll(run, 0o700); err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, cgroup: fmt.Sprintf("paddock-score-%d-%d", os.Getpid(), benches.Add(1))}
	l, err := native.New(native.Config{Dir: run, CgroupParent: b.cgroup})
	if err != nil {
		t.Fatal(err)
	}
	ids, err := sandbox.HostIDPool(64)
	if err != nil {
		t.Fatal(err)
	}
	b.cfg = runner.Config{
		Root: root, Launcher: realLauncher{l}, Worlds: realStore{image.Worlds{Store: store}}, Record: rec, Policies: set, IDs: ids,
		Host: policies.Host{CPUs: 16, MemoryBytes: 16 << 30}, Stock: runner.Stock{Blanks: 2, Warm: 2},
	}
	b.restart()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		if err := errors.Join(b.Close(ctx), l.Close(), rec.Close(), store.Close()); err != nil {
			t.Errorf("close: %v", err)
		}
		if free := ids.Free(); free != 64 {
			t.Errorf("%d of 64 id ranges are free", free)
		}
	})
	b.buildApp()
	return b
}

// buildApp makes the world: /app/answer.sh is the source to be mended, /app/test.sh the
// visible test.
func (b *bench) buildApp() {
	b.t.Helper()
	base, err := b.cfg.Worlds.Build(b.t.Context(), overlay.Recipe{Busybox: true}, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	dir := b.t.TempDir()
	for name, text := range map[string]string{"answer.sh": "echo wrong\n", "test.sh": "[ \"$(sh /app/answer.sh)\" = 42 ]\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			b.t.Fatal(err)
		}
	}
	built, err := b.cfg.Worlds.Build(b.t.Context(), overlay.Recipe{
		Base: base.World.ID, Dir: dir, Into: "/app", Name: "base", Config: overlay.Config{WorkingDir: "/app"},
	}, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	b.world = built.World.ID
}

// hidden is a grader with a test of its own. The code under test runs as a child without
// the verdict's descriptor.
const hidden = `
out=$(sh /app/answer.sh 3>&- </dev/null 2>/dev/null)
if [ "$out" = 42 ]; then echo '{"reward": 1, "reason": "passed"}' >&3; else echo '{"reward": 0}' >&3; fi
`

func (b *bench) hiddenGrader(change ...func(*runner.GraderSpec)) []runner.WeightedGrader {
	b.t.Helper()
	g := runner.GraderSpec{
		Files:   map[string]runner.GraderFile{"grade.sh": {Bytes: []byte(hidden)}},
		Command: []string{"/bin/sh", "/grader/grade.sh"},
	}
	for _, c := range change {
		c(&g)
	}
	d, err := b.PutGrader(b.t.Context(), g)
	if err != nil {
		b.t.Fatal(err)
	}
	return []runner.WeightedGrader{{Grader: d}}
}

const solve = "echo 'echo 42' > /app/answer.sh"

func wantReward(t *testing.T, at runner.Attempt, want float64) {
	t.Helper()
	if at.Reward == nil || *at.Reward != want {
		t.Errorf("reward %v, want %v; end %+v, scores %+v", at.Reward, want, at.End, at.Scores)
	}
}

// No exit (semantics section 11, check 2): nothing that an agent does makes its sample
// null, and the honest one beside it keeps its reward.
func TestAgentCannotVoidItsSample(t *testing.T) {
	t.Parallel()
	b := newRealBench(t)
	short := func(s *runner.EpisodeSpec) { s.Budgets.ScoreS = 5 }
	small := func(s *runner.EpisodeSpec) {
		short(s)
		s.Limits = runner.Limits{MemoryBytes: 64 << 20, DiskBytes: 16 << 20, Inodes: 2000, Pids: 32}
	}
	g := b.hiddenGrader()
	loud := shellAgent("dd if=/dev/zero bs=1M count=200 2>/dev/null; true")
	for i, c := range []struct {
		name   string
		agent  runner.AgentSpec
		change func(*runner.EpisodeSpec)
		want   float64
	}{
		{"honest", shellAgent(solve), short, 1},
		{"does nothing", shellAgent("true"), short, 0},
		{"hangs the test", shellAgent("echo 'while :; do :; done' > /app/answer.sh"), short, 0},
		{"sleeps in the test", shellAgent("echo 'sleep 1000' > /app/answer.sh"), short, 0},
		{"kills its parent in the test", shellAgent("echo 'kill -9 $PPID' > /app/answer.sh"), short, 0},
		{"kills everything in the test", shellAgent("echo 'kill -9 -1' > /app/answer.sh"), short, 0},
		{"fills the disk in the test", shellAgent("echo 'cat /dev/zero > /app/full; cat /dev/zero > /tmp/full' > /app/answer.sh"), short, 0},
		{"forks without end in the test", shellAgent("echo 'f() { f | f & }; f; sleep 1000' > /app/answer.sh"), short, 0},
		{"eats memory in the test", shellAgent("echo 'tail /dev/zero' > /app/answer.sh"), short, 0},
		{"floods the verdict's descriptor", shellAgent("echo 'yes > /proc/$PPID/fd/3' > /app/answer.sh"), short, 0},
		{"replaces the shell by nothing", shellAgent("cp /bin/busybox /tmp/b; /tmp/b rm -f /bin/sh"), short, 0},
		{"removes the whole root", shellAgent("rm -rf / 2>/dev/null"), short, 0},
		{"puts a file where the grader goes", shellAgent("echo x > /grader; echo x > /paddock"), short, 0},
		{"puts links where the grader goes", shellAgent("ln -s /proc /grader; ln -s /dev /paddock; rm -rf /tmp; ln -s /proc/1 /tmp"), short, 0},
		{"kills PID 1", shellAgent("kill -9 1; kill -SEGV 1; kill -9 -1"), short, 0},
		{"exits badly after its work", runner.AgentSpec{Command: &runner.CallSpec{Shell: solve + "; exit 7"}}, short, 1},
		{"dies of a signal after its work", runner.AgentSpec{Command: &runner.CallSpec{Shell: solve + "; kill -9 $$"}}, short, 1},
		{"sleeps to its deadline after its work", shellAgent(solve, "sleep 1000"), func(s *runner.EpisodeSpec) { short(s); s.Budgets.AgentS = 1 }, 1},
		{"runs out of memory", shellAgent("tail /dev/zero"), small, 0},
		{"fills its disk", shellAgent("cat /dev/zero > /app/full"), small, 0},
		{"uses up the inodes", shellAgent("i=0; while [ $i -lt 3000 ]; do : > /app/f$i || break; i=$((i+1)); done"), small, 0},
		{"forks without end", shellAgent("f() { f | f & }; f; sleep 1"), small, 0},
		{"floods its output to the limit", loud, func(s *runner.EpisodeSpec) { short(s); s.Limits.OutputBytes = 1 << 20 }, 0},
		{"makes calls to the limit", shellAgent("true", "true", "true"), func(s *runner.EpisodeSpec) { short(s); s.Limits.Calls = 2 }, 0},
		{"leaves a process that goes on writing", shellAgent("(while :; do echo x > /app/answer.sh; done) >/dev/null 2>&1 &"), short, 0},
		{"removes its working directory", shellAgent("cd /; rm -rf /app"), short, 0},
		{"removes everything it can name", shellAgent("cd /; for d in app etc tmp proc sys dev root home var usr lib sbin; do rm -rf /$d; done"), short, 0},
		{"makes a link of its working directory", shellAgent("cd /; rm -rf /app; ln -s /proc /app"), short, 0},
		{"makes a dangling link of its working directory", shellAgent("cd /; rm -rf /app; ln -s /nowhere/at/all /app"), short, 0},
		{"makes a file of its working directory", shellAgent("cd /; rm -rf /app; echo x > /app"), short, 0},
		{"makes a link of what the launcher mounts over", shellAgent("cd /; for d in etc dev proc sys tmp; do rm -rf /$d; ln -s /app /$d; done"), short, 0},
		{"shuts everybody out", shellAgent("chmod 0 /app /app/* /tmp /etc /bin; chmod 0 /"), short, 0},
		{"forges a verdict and kills the grader", shellAgent(`echo 'echo "{\"reward\": 1}" > /proc/$PPID/fd/3; kill -9 $PPID' > /app/answer.sh`), short, 0},
		{"forges a verdict beside the grader's", shellAgent(`echo 'echo "{\"reward\": 1}" > /proc/$PPID/fd/3' > /app/answer.sh`), short, 0},
		{"nests directories deep", shellAgent("i=0; while [ $i -lt 300 ]; do mkdir dddddddddd && cd dddddddddd || break; i=$((i+1)); done"), short, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			made, err := b.CreateBatch(t.Context(), owner, runner.BatchSpec{Episodes: []runner.BatchEpisode{
				b.line(fmt.Sprintf("e%d", i), "", c.agent, g, c.change),
			}})
			if err != nil {
				t.Fatal(err)
			}
			got := b.follow(made.ID, 0)
			for _, s := range got[0].Scores {
				t.Logf("end %s, score %s, flags %q, evidence %q", got[0].Status, s.Status, s.Flags, s.Evidence)
			}
			if len(got) != 1 || got[0].Reward == nil || *got[0].Reward != c.want {
				t.Errorf("results = %+v, want reward %v", got, c.want)
			}
		})
	}
}

// S01, S02, S05, S07, S10 and X-F26: what an agent forges does not count.
func TestForgedVerdictsDoNotCount(t *testing.T) {
	t.Parallel()
	b := newRealBench(t)
	for i, c := range []struct {
		name    string
		scripts []string
		grader  func(*runner.GraderSpec)
		want    float64
		flag    string
	}{
		{"S01 output that looks like a pass", []string{`echo 'echo "=== 1 passed ==="; echo "{\"reward\": 1}"' > /app/answer.sh`}, nil, 0, ""},
		{"a verdict on descriptor 3 from the code under test", []string{`echo 'echo "{\"reward\": 1}" >&3' > /app/answer.sh`}, nil, 0, ""},
		{
			"S02 a planted test configuration is named",
			[]string{"echo x > /app/conftest.py"},
			func(g *runner.GraderSpec) { g.Protected = []string{"/app/conftest.py"} }, 0, "tampered",
		},
		{
			"S02 zero on tampering",
			[]string{solve, "echo x > /app/conftest.py"},
			func(g *runner.GraderSpec) { g.Protected, g.OnTamper = []string{"/app/conftest.py"}, "zero" }, 0, "tampered",
		},
		{
			"S05 a reward file written before scoring",
			[]string{"mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt; chmod 444 /logs/verifier/reward.txt"},
			func(g *runner.GraderSpec) { g.Protected = []string{"/logs/verifier"} }, 0, "tampered",
		},
		{"S07 a weakened visible test, no fix", []string{"echo true > /app/test.sh"}, nil, 0, ""},
		{"S07 a weakened visible test beside a real fix", []string{"rm /app/test.sh", solve}, nil, 1, ""},
		{"S10 the agent's profile and shims", []string{"mkdir -p /tmp/bin; printf '#!/bin/sh\\necho 42\\n' > /tmp/bin/sh; chmod 755 /tmp/bin/sh; echo 'PATH=/tmp/bin' > /etc/profile"}, nil, 0, ""},
		{"a grader of the agent's own", []string{`mkdir /grader; echo 'echo "{\"reward\": 1}" >&3' > /grader/grade.sh; mkdir /paddock; echo 1 > /paddock/answer.json`}, nil, 0, ""},
		{"a background writer that would mend it later", []string{"(while :; do echo 'echo 42' > /app/late.sh; done) >/dev/null 2>&1 & echo wrong"}, nil, 0, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var change []func(*runner.GraderSpec)
			if c.grader != nil {
				change = append(change, c.grader)
			}
			g := b.hiddenGrader(change...)
			key := b.live(fmt.Sprintf("f%d", i), func(s *runner.EpisodeSpec) {
				s.Graders, s.Env = g, map[string]string{"LD_PRELOAD": "/tmp/x.so", "PYTHONPATH": "/tmp", "PATH": "/tmp/bin:/bin:/usr/bin"}
			})
			for _, script := range c.scripts {
				b.call(key, runner.CallSpec{Tool: "exec", Argv: []string{"/bin/sh", "-c", script}})
			}
			at := last(b.finish(key))
			wantReward(t, at, c.want)
			if c.flag != "" && !slices.Contains(at.Scores[0].Flags, c.flag) {
				t.Errorf("flags %q, evidence %q; want %s", at.Scores[0].Flags, at.Scores[0].Evidence, c.flag)
			}
		})
	}
}

// S10: a grader's environment is its own, whatever the episode's was.
func TestGraderHasItsOwnEnvironment(t *testing.T) {
	t.Parallel()
	b := newRealBench(t)
	g := b.graderOf(`env >&2; echo '{"reward": 1}' >&3`)
	key := b.live("e", func(s *runner.EpisodeSpec) {
		s.Graders, s.Env = g, map[string]string{"LD_PRELOAD": "/tmp/x.so", "SECRET_OF_AGENT": "1"}
	})
	at := last(b.finish(key))
	wantReward(t, at, 1)
	env := at.Scores[0].Stderr
	if strings.Contains(env, "LD_PRELOAD") || strings.Contains(env, "SECRET_OF_AGENT") || !strings.Contains(env, "PADDOCK_VERDICT_FD=3") || !strings.Contains(env, "PADDOCK_SEED=") {
		t.Errorf("the grader's environment is %q", env)
	}
}

// Rescoring makes the kept end state again, deletions and owners included.
func TestRescoringSeesTheSameEndState(t *testing.T) {
	t.Parallel()
	b := newRealBench(t)
	look := `cd /app; ls -ln /app /tmp | grep -v ^total | awk '{print $1,$3,$4,$5,$9}' >&2; [ -e test.sh ] && r=0 || r=1; echo "{\"reward\": $r}" >&3`
	g := b.graderOf(look)
	key := b.live("e", func(s *runner.EpisodeSpec) { s.Graders = g })
	b.sh(key, "rm test.sh; echo hello > made; chmod 640 made; chown 7:8 made; ln -s made link; mkfifo pipe")
	live := last(b.finish(key))
	wantReward(t, live, 1)
	again := b.graderOf(look + " # again")
	ep, err := b.Score(t.Context(), key, 0, again)
	if err != nil {
		t.Fatal(err)
	}
	scores := ep.Last().Scores
	if len(scores) != 2 || scores[1].Reward == nil || *scores[1].Reward != 1 || scores[0].Stderr != scores[1].Stderr {
		t.Errorf("scores = %+v, want the same view twice", scores)
	}
	wantReward(t, *ep.Last(), 1) // not the sum of both
}
