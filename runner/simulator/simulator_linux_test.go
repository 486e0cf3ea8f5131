package simulator_test

import (
	"context"
	"encoding/json"
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
	"github.com/paddock-run/paddock/runner/simulator"
	"github.com/paddock-run/paddock/sandbox"
	"github.com/paddock-run/paddock/sandbox/native"
)

const owner = "1000"

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

// bench is a service on real sandboxes, store and record, with a world of busybox.
type bench struct {
	*simulator.Service
	t         *testing.T
	run       *runner.Runner
	root, sim string
}

func newBench(t *testing.T) *bench {
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
	dir := filepath.Join(root, "run", "launcher")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := native.New(native.Config{Dir: dir, CgroupParent: fmt.Sprintf("paddock-simulator-%d-%d", os.Getpid(), benches.Add(1))})
	if err != nil {
		t.Fatal(err)
	}
	ids, err := sandbox.HostIDPool(64)
	if err != nil {
		t.Fatal(err)
	}
	r, err := runner.New(t.Context(), runner.Config{
		Root: root, Launcher: realLauncher{l}, Worlds: realStore{image.Worlds{Store: store}}, Record: rec, Policies: set, IDs: ids,
		Host: policies.Host{CPUs: 16, MemoryBytes: 16 << 30},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		if err := errors.Join(r.Close(ctx), l.Close(), rec.Close(), store.Close()); err != nil {
			t.Errorf("close: %v", err)
		}
		if free := ids.Free(); free != 64 {
			t.Errorf("%d of 64 id ranges are free", free)
		}
	})
	if _, err := r.BuildWorld(t.Context(), owner, overlay.Recipe{Busybox: true, Name: "box"}, nil); err != nil {
		t.Fatal(err)
	}
	sims, err := simulator.New(r, simulator.Options{Dir: filepath.Join(root, "snapshots"), SnapshotBytes: 64 << 10})
	if err != nil {
		t.Fatal(err)
	}
	return &bench{Service: sims, t: t, run: r, root: root}
}

// counter is a simulator whose observation is how many steps were taken, and whose reward
// is the action. Some actions make it fail, each in another way.
const counter = `
echo '{"protocol":"paddock-simulator/1","observation_space":{"space":{"type":"Box","dtype":"<u8","shape":[1]}},"action_space":{"type":"integer"}}'
n=0
observation() {
  printf '"observation":{"$array":"<u8","shape":[1],"b64":"'
  printf "\\$(printf %o $n)\0\0\0\0\0\0\0" | base64 | tr -d '\n'
  printf '"}'
}
while read -r line; do
  case $line in
  *'"op":"reset"'*)
    n=0
    case $line in *'"options"'*) echo "{\"info\":$line}"; continue ;; esac
    echo "{$(observation),\"info\":{}}"
    continue ;;
  *'"action":-1}') exit 3 ;;
  *'"action":-2}') sleep 1000 ;;
  *'"action":-3}') echo 'hello, world' ; continue ;;
  *'"action":-4}') head -c 2000000 /dev/zero ; continue ;;
  *'"action":-5}') echo '{"error":{"kind":"crash","detail":"division by zero"}}' ; continue ;;
  *'"action":-6}') echo "{$(observation),\"reward\":{\"\$float\":\"nan\"},\"terminated\":false,\"truncated\":false}" ; continue ;;
  *'"action":-7}') echo '{"observation":{"$array":"<u8","shape":[9],"b64":"AAAA"},"reward":0,"terminated":false,"truncated":false}' ; continue ;;
  *'"action":-8}') tail /dev/zero ; exit 9 ;;
  *'"action":-9}') [ -e /tmp/poison ] && exit 4 ;;
  *'"action":-10}') echo '{"error":{"kind":"bad_action","detail":"no such move"}}' ; continue ;;
  *'"action":-11}') echo "{$(observation),\"terminated\":false,\"truncated\":false}" ; continue ;;
  *'"action":-12}') printf "{$(observation),\"reward\":0,\"terminated\":false,\"truncated\":false,\"info\":{\"a\":\"\377\"}}\n" ; continue ;;
  *'"action":-13}') echo "{$(observation),\"reward\":0,\"terminated\":false,\"truncated\":false,\"info\":{\"a\":{\"\$array\":\"|u1\",\"shape\":[9],\"frame\":5}}}" ; continue ;;
  esac
  n=$((n + 1))
  action=${line##*:}
  echo "{$(observation),\"reward\":${action%\}},\"terminated\":$([ $n = 3 ] && echo true || echo false),\"truncated\":false,\"info\":{\"n\":$n}}"
done`

func counterSpec(change ...func(*simulator.Spec)) simulator.Spec {
	s := simulator.Spec{World: "box", Command: []string{"sh", "-c", counter}, MaxMessage: 1 << 20, StepS: 20, CrashReward: -5}
	for _, c := range change {
		c(&s)
	}
	return s
}

func (b *bench) open(ready int, change ...func(*simulator.Spec)) {
	b.t.Helper()
	sim, err := b.Open(b.t.Context(), owner, counterSpec(change...), ready)
	if err != nil {
		b.t.Fatal(err)
	}
	b.sim = sim.ID
}

func (b *bench) make(id string) *simulator.Env {
	b.t.Helper()
	e, err := b.Make(b.t.Context(), owner, b.sim, simulator.EnvSpec{ID: id})
	if err != nil {
		b.t.Fatalf("Make(%s) = %v", id, err)
	}
	return e
}

func (b *bench) began(id string) *simulator.Env {
	b.t.Helper()
	e := b.make(id)
	if res, err := e.Reset(b.t.Context(), nil, nil); err != nil || res.Error != nil {
		b.t.Fatalf("Reset() = %+v, %v", res, err)
	}
	return e
}

func (b *bench) step(e *simulator.Env, action string) simulator.Result {
	b.t.Helper()
	res, err := e.Step(b.t.Context(), json.RawMessage(action))
	if err != nil {
		b.t.Fatalf("Step(%s) = %v", action, err)
	}
	return res
}

func TestRewardsOfRolloutsAreTheEpisodesScore(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.open(1)
	e := b.make("e")
	if res := b.step(e, "1"); res.Error == nil || res.Error.Kind != "needs_reset" {
		t.Errorf("a step before the reset = %+v", res)
	}
	for range 2 {
		if res, err := e.Reset(t.Context(), nil, nil); err != nil || !strings.Contains(string(res.Observation), "AAAAAAAAAAA=") {
			t.Errorf("Reset() = %s, %v", res.Observation, err)
		}
		for i, action := range []string{"1", "2", "3.5"} {
			res := b.step(e, action)
			if res.Error != nil || res.Terminated != (i == 2) || string(res.Info) != fmt.Sprintf(`{"n":%d}`, i+1) {
				t.Errorf("step %d = %+v (%+v)", i, res, res.Error)
			}
		}
		if res := b.step(e, "1"); res.Error == nil || res.Error.Kind != "needs_reset" {
			t.Errorf("a step after the end = %+v", res)
		}
	}
	ended, err := e.Close(t.Context())
	if err != nil || ended.Reward == nil || *ended.Reward != 13 || ended.End.Status != runner.OK {
		t.Errorf("Close() = %+v, %v; want the reward 13", ended, err)
	}
	if again, err := e.Close(t.Context()); err != nil || *again.Reward != 13 {
		t.Errorf("Close() again = %+v, %v", again, err)
	}
	if res := b.step(e, "1"); res.Ended == nil {
		t.Errorf("a step after the close = %+v", res)
	}
	key, _, seed := e.Key()
	ep, err := b.run.Get(t.Context(), key)
	if last := ep.Last(); err != nil || last.Calls != 8 || !last.Valid || string(last.Answer) != `{"return":13,"rollouts":2,"steps":6}` {
		t.Errorf("episode = %+v, %v", last, err)
	}
	first := trajectory(t, b, key)[0]
	if want := fmt.Sprintf(`{"seed":%d}`, seed); first.Call.Tool != "reset" || string(first.Call.Args) != want {
		t.Errorf("the first call %s %s, want reset %s", first.Call.Tool, first.Call.Args, want)
	}
	if _, err := b.Make(t.Context(), owner, b.sim, simulator.EnvSpec{ID: "e"}); runner.KindOf(err) != runner.KindEpisodeEnded {
		t.Errorf("the same id again: %v", err)
	}
}

type line struct {
	Call   runner.CallSpec   `json:"call"`
	Result runner.CallResult `json:"result"`
}

func trajectory(t *testing.T, b *bench, key runner.Key) (all []line) {
	t.Helper()
	rd, err := b.run.Trajectory(t.Context(), key, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rd.Close() }()
	for dec := json.NewDecoder(rd); dec.More(); {
		var l line
		if err := dec.Decode(&l); err != nil {
			t.Fatal(err)
		}
		all = append(all, l)
	}
	return all
}

// The cause table for a simulator that fails in a step. Each fault repeats when the same
// actions are taken again, so it is the world's way, and the agent's to avoid.
func TestFaultsThatRepeatAreTheAgents(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.open(2, func(s *simulator.Spec) {
		s.StepS = 2
		s.Limits.MemoryBytes, s.Limits.DiskBytes = 32<<20, 8<<20
	})
	for action, want := range map[string]struct{ kind, status string }{
		"-1": {"program_ended", "failed"}, "-2": {"timeout", "failed"}, "-3": {"bad_reply", "failed"}, "-4": {"reply_too_large", "failed"},
		"-5": {"crash", "failed"}, "-6": {"not_finite", "failed"}, "-7": {"bad_reply", "failed"}, "-8": {"program_ended", "oom"}, "-11": {"bad_reply", "failed"},
		"-12": {"bad_reply", "failed"}, "-13": {"bad_reply", "failed"}, // what a client cannot read
	} {
		t.Run(want.kind+action, func(t *testing.T) {
			t.Parallel()
			e := b.began("e" + action[1:])
			b.step(e, "2")
			res := b.step(e, action)
			if res.Error == nil || res.Error.Kind != want.kind || res.Ended == nil {
				t.Fatalf("step = %+v (%+v)", res, res.Error)
			}
			end := res.Ended.End
			if string(end.Status) != want.status || end.Cause != runner.Agent || slices.Contains(end.Flags, "world_fault") == (want.status == "oom") {
				t.Errorf("end %+v", end)
			}
			if !res.Ended.Valid || *res.Ended.Reward != 2-5 {
				t.Errorf("reward %v, want the 2 so far and -5 for the crash", res.Ended.Reward)
			}
		})
	}
}

func TestAFaultThatDoesNotRepeatIsThePlatforms(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.open(1)
	e := b.began("e")
	b.step(e, "2")
	key, _, _ := e.Key()
	if _, err := b.run.Call(t.Context(), key, runner.CallSpec{Tool: "exec", Argv: []string{"touch", "/tmp/poison"}}, runner.CallIO{}); err != nil {
		t.Fatal(err)
	}
	res := b.step(e, "-9")
	if res.Ended == nil || res.Ended.End.Cause != runner.Platform || res.Ended.End.Step != "step" || res.Ended.Reward != nil {
		t.Errorf("step = %+v, ended %+v", res, res.Ended)
	}
	eps, _, err := b.run.List(t.Context(), owner, "", "replay", "", 0)
	if err != nil || len(eps) != 0 {
		t.Errorf("%d replays are left (%v)", len(eps), err)
	}
}

func TestAMalformedActionIsRefusedAndNothingIsDone(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.open(1)
	e := b.began("e")
	for range 3 {
		if res := b.step(e, "-10"); res.Error == nil || res.Error.Kind != "bad_action" || res.Ended != nil {
			t.Errorf("step = %+v", res)
		}
	}
	if res := b.step(e, "1"); res.Error != nil || string(res.Info) != `{"n":1}` {
		t.Errorf("step = %+v", res)
	}
}

func TestASimulatorThatFailsInItsFirstResetIsTheWorldsFault(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.open(1)
	e := b.make("e")
	// With options it answers without an observation.
	res, err := e.Reset(t.Context(), nil, json.RawMessage(`{"x":1}`))
	if err != nil || res.Ended == nil || res.Ended.End.Cause != runner.WorldBad || res.Ended.End.Step != "setup" || res.Ended.Reward != nil {
		t.Errorf("Reset() = %+v, %+v, %v", res, res.Ended, err)
	}
}

func TestALimitOfTheEpisodeEndsTheEnvironmentWithItsRewards(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.open(1, func(s *simulator.Spec) { s.Limits.Calls = 3 })
	e := b.began("e")
	b.step(e, "1")
	b.step(e, "1")
	res := b.step(e, "1")
	if res.Ended == nil || res.Ended.End.Status != runner.Limit || res.Ended.Reward == nil || *res.Ended.Reward != 2 {
		t.Errorf("step = %+v, ended %+v", res, res.Ended)
	}
}

func TestAnAbandonedEnvironmentHasNoReward(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.open(1)
	e := b.began("e")
	b.step(e, "1")
	if err := e.Abandon(t.Context(), "the connection closed"); err != nil {
		t.Fatal(err)
	}
	key, _, _ := e.Key()
	ep, err := b.run.Get(t.Context(), key)
	if last := ep.Last(); err != nil || last.End.Status != runner.Expired || last.End.Cause != runner.Client || last.Reward != nil {
		t.Errorf("attempt %+v, %v", last, err)
	}
}

func TestTheTrajectoryIsThinnedAsAsked(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	digests := map[string]bool{}
	for record, want := range map[string]int{"all": 4, "actions": 4, "ends": 2} {
		b.open(0, func(s *simulator.Spec) { s.Record = record })
		e := b.began("e/" + record)
		for range 3 {
			b.step(e, "1")
		}
		if _, err := e.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		key, _, _ := e.Key()
		lines := trajectory(t, b, key)
		if len(lines) != want {
			t.Errorf("%s: %d lines, want %d", record, len(lines), want)
		}
		last := lines[len(lines)-1].Result
		if kept := len(last.Stdout.Head) > 0; kept != (record != "actions") || last.Stdout.SHA256 == "" {
			t.Errorf("%s: the last step is kept as %+v", record, last.Stdout)
		}
		ep, err := b.run.Get(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		digests[ep.Last().Digests.Observations] = true
	}
	if len(digests) != 1 {
		t.Errorf("thinning changes the digest of the observations: %v", digests)
	}
}

func TestSpecsThatMeanNothingAreRefusedByField(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for field, spec := range map[string]simulator.Spec{
		"env":            {World: "box"},
		"kwargs":         {World: "box", Env: "X-v0", Kwargs: json.RawMessage(`[1]`)},
		"record":         counterSpec(func(s *simulator.Spec) { s.Record = "some" }),
		"step_s":         counterSpec(func(s *simulator.Spec) { s.StepS = -1 }),
		"prepare/cwd":    counterSpec(func(s *simulator.Spec) { s.Cwd = "x" }),
		"limits/memory":  counterSpec(func(s *simulator.Spec) { s.Limits.MemoryBytes = -1 }),
		"prepare/argv/1": counterSpec(func(s *simulator.Spec) { s.Command = []string{"a", "b\x00"} }),
	} {
		_, err := b.Open(t.Context(), owner, spec, 0)
		if e, ok := errors.AsType[*runner.Error](err); !ok || e.Kind != runner.KindBadRequest || e.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	for name, script := range map[string]string{
		"no protocol": `echo '{}'`, "another": `echo '{"protocol":"x/2"}'`, "garbage": `echo hello`,
		"no space": `echo '{"protocol":"paddock-simulator/1"}'`,
	} {
		spec := counterSpec(func(s *simulator.Spec) { s.Command = []string{"sh", "-c", script + "; cat"} })
		if _, err := b.Open(t.Context(), owner, spec, 0); runner.KindOf(err) != runner.KindPrepareFailed {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := b.Make(t.Context(), owner, "sim-none", simulator.EnvSpec{}); runner.KindOf(err) != runner.KindNotFound {
		t.Errorf("Make() = %v", err)
	}
}
