package simulator_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/paddock-run/paddock/runner"
	"github.com/paddock-run/paddock/runner/simulator"
)

// keeping is the counter with snapshots: its state is the number of steps, in digits.
var keeping = strings.NewReplacer(
	`"action_space"`, `"snapshots":true,"action_space"`,
	`while read -r line; do
  case $line in`, `bytes() { printf '{"snapshot":{"$array":"|u1","shape":[%s],"b64":"%s"}}\n' ${#1} "$(printf %s "$1" | base64 | tr -d '\n')"; }
while read -r line; do
  case $line in
  *'"op":"snapshot"'*)
    case $MODE in
    big) bytes "$(printf %0200d $n)" ;;
    large) echo '{"error":{"kind":"snapshot_too_large","detail":"it has 9 bytes"}}' ;;
    none) echo '{"error":{"kind":"snapshot_unsupported","detail":"not now"}}' ;;
    list) echo '{"snapshot":[1]}' ;;
    short) echo '{"snapshot":{"$array":"|u1","shape":[2],"b64":"AA=="}}' ;;
    *) bytes $n ;;
    esac
    continue ;;
  *'"op":"restore"'*)
    s=${line#*'"snapshot":"'}
    was=$n
    n=$(printf %s "${s%%\"*}" | base64 -d)
    case $MODE$n in
    refuse*) n=$was; echo '{"error":{"kind":"bad_snapshot","detail":"from a later version"}}' ;;
    die*) exit 5 ;;
    *) echo "{$(observation),\"info\":{\"restored\":$n}}" ;;
    esac
    continue ;;
  *'"action":-12}') [ $n = 1 ] && exit 6 ;;`,
).Replace(counter)

func (b *bench) openKeeping(mode string, change ...func(*simulator.Spec)) {
	b.t.Helper()
	b.open(1, append([]func(*simulator.Spec){func(s *simulator.Spec) {
		s.Command[2] = keeping
		s.Vars = map[string]string{"MODE": mode}
		s.MaxSnapshot = 100
	}}, change...)...)
}

func (b *bench) snapshot(e *simulator.Env) simulator.Snapshot {
	b.t.Helper()
	s, res, err := e.Snapshot(b.t.Context())
	if err != nil || res.Error != nil || res.Ended != nil || s.ID == "" {
		b.t.Fatalf("Snapshot() = %+v, %+v (%+v), %v", s, res, res.Error, err)
	}
	return s
}

func (b *bench) restore(e *simulator.Env, s simulator.Snapshot) simulator.Result {
	b.t.Helper()
	res, err := e.Restore(b.t.Context(), s.ID)
	if err != nil || res.Error != nil || res.Ended != nil {
		b.t.Fatalf("Restore() = %+v (%+v), %v", res, res.Error, err)
	}
	return res
}

func TestARestoredEnvironmentGoesOnFromTheSnapshot(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.openKeeping("")
	e := b.make("e")
	if _, res, err := e.Snapshot(t.Context()); err != nil || res.Error == nil || res.Error.Kind != "needs_reset" {
		t.Errorf("a snapshot before the reset = %+v, %v", res, err)
	}
	if res, err := e.Reset(t.Context(), nil, nil); err != nil || res.Error != nil {
		t.Fatalf("Reset() = %+v, %v", res, err)
	}
	b.step(e, "5")
	s := b.snapshot(e)
	if s.Bytes != 1 || s.Steps != 1 || s.Rollouts != 1 || s.Return != 5 || s.Of.ID != "e" || s.Seq != 3 {
		t.Errorf("snapshot %+v", s)
	}
	for range 2 {
		for i, action := range []string{"1", "2"} {
			if res := b.step(e, action); res.Terminated != (i == 1) {
				t.Errorf("step %d = %+v", i, res)
			}
		}
		over := b.snapshot(e)
		if res := b.restore(e, s); string(res.Info) != `{"restored":1}` || res.Terminated {
			t.Errorf("Restore() = %+v", res)
		}
		if res := b.restore(e, over); !res.Terminated {
			t.Errorf("Restore() of an ended rollout = %+v", res)
		}
		if res := b.step(e, "1"); res.Error == nil || res.Error.Kind != "needs_reset" {
			t.Errorf("a step of an ended rollout = %+v", res)
		}
		b.restore(e, s)
	}
	b.step(e, "3")
	// The reward is that of the way to the end, whatever else was tried.
	ended, err := e.Close(t.Context())
	if err != nil || ended.Reward == nil || *ended.Reward != 8 {
		t.Errorf("Close() = %+v, %v; want the reward 8", ended, err)
	}
	key, _, _ := e.Key()
	ep, err := b.run.Get(t.Context(), key)
	if last := ep.Last(); err != nil || string(last.Answer) != `{"restores":6,"return":8,"rollouts":1,"steps":2}` || last.Scores[0].Metrics["restores"] != 6 {
		t.Errorf("episode %s %+v, %v", last.Answer, last.Scores, err)
	}
	if res, err := e.Restore(t.Context(), s.ID); err != nil || res.Ended == nil {
		t.Errorf("a restore after the close = %+v, %v", res, err)
	}
	if _, res, err := e.Snapshot(t.Context()); err != nil || res.Ended == nil {
		t.Errorf("a snapshot after the close = %+v, %v", res, err)
	}
}

func TestSnapshotsAndRestoresAreCallsOnRecordWithoutTheirBytes(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.openKeeping("")
	e := b.began("e")
	s := b.snapshot(e)
	f := b.make("f")
	b.restore(f, s)
	b.step(f, "1")
	ofE, _, _ := e.Key()
	ofF, _, _ := f.Key()
	taken := trajectory(t, b, ofE)[1]
	if taken.Call.Tool != "snapshot" || string(taken.Call.Args) != `{"max":100}` || taken.Result.Stdout.Bytes == 0 || len(taken.Result.Stdout.Head) != 0 {
		t.Errorf("the snapshot is on record as %+v", taken)
	}
	put := trajectory(t, b, ofF)[0]
	want := `{"id":"` + s.ID + `","sha256":"` + s.SHA256 + `","of":{"run":"default","id":"e","attempt":1,"seq":2}}`
	if put.Call.Tool != "restore" || string(put.Call.Args) != want || !strings.Contains(string(put.Result.Stdout.Head), "restored") {
		t.Errorf("the restore is on record as %s, want %s", put.Call.Args, want)
	}
}

func TestManyEpisodesBranchFromOneState(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.openKeeping("")
	e := b.began("e")
	b.step(e, "4")
	s := b.snapshot(e)
	if _, err := e.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for action, reward := range map[string]float64{"1": 5, "2": 6} {
		f := b.make("f" + action)
		b.restore(f, s)
		if res := b.step(f, action); string(res.Info) != `{"n":2}` {
			t.Errorf("step = %+v", res)
		}
		if ended, err := f.Close(t.Context()); err != nil || *ended.Reward != reward {
			t.Errorf("Close() = %+v, %v, want the reward %v", ended, err, reward)
		}
	}
}

// What an environment did before a restore is not what its fault follows from.
func TestAFaultAfterARestoreIsReplayedFromTheSnapshot(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.openKeeping("")
	e := b.began("e")
	b.step(e, "1")
	s := b.snapshot(e)
	b.step(e, "1")
	b.restore(e, s)
	f := b.make("f") // was never reset
	b.restore(f, s)
	if err := b.DropSnapshot(owner, s.ID); err != nil { // what was restored does not need it any more
		t.Fatal(err)
	}
	for _, env := range []*simulator.Env{e, f} {
		res := b.step(env, "-12")
		if res.Ended == nil || res.Ended.End.Cause != runner.Agent || !slices.Contains(res.Ended.End.Flags, "world_fault") || *res.Ended.Reward != 1-5 {
			t.Errorf("step = %+v, ended %+v", res, res.Ended)
		}
	}
	if left, err := os.ReadDir(filepath.Join(b.root, "snapshots")); err != nil || len(left) != 0 {
		t.Errorf("%v are left, %v", left, err)
	}
	g := b.began("g")
	again := b.snapshot(g)
	b.restore(g, again)
	key, _, _ := g.Key()
	if _, err := b.run.Call(t.Context(), key, runner.CallSpec{Tool: "exec", Argv: []string{"touch", "/tmp/poison"}}, runner.CallIO{}); err != nil {
		t.Fatal(err)
	}
	if res := b.step(g, "-9"); res.Ended == nil || res.Ended.End.Cause != runner.Platform || res.Ended.Reward != nil {
		t.Errorf("step = %+v, ended %+v", res, res.Ended)
	}
}

func TestARefusedResetLosesNothingOfWhatAFaultIsReplayedFrom(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.openKeeping("")
	e := b.began("e")
	b.step(e, "1")
	seed := int64(3)
	if _, err := e.Reset(t.Context(), &seed, json.RawMessage(`[1]`)); runner.KindOf(err) != runner.KindBadRequest {
		t.Errorf("Reset() = %v", err)
	}
	if res := b.step(e, "-12"); res.Ended == nil || res.Ended.End.Cause != runner.Agent {
		t.Errorf("step = %+v, ended %+v", res, res.Ended)
	}
}

func TestAProgramsRefusalsLeaveEverythingAsItWas(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for mode, want := range map[string]string{"big": "snapshot_too_large", "large": "snapshot_too_large", "none": "snapshot_unsupported"} {
		b.openKeeping(mode)
		e := b.began("take/" + mode)
		if s, res, err := e.Snapshot(t.Context()); err != nil || res.Error == nil || res.Error.Kind != want || res.Ended != nil || s.ID != "" {
			t.Errorf("%s: %+v, %+v, %v", mode, s, res.Error, err)
		}
		if res := b.step(e, "1"); string(res.Info) != `{"n":1}` {
			t.Errorf("%s: step = %+v", mode, res)
		}
	}
	for mode, want := range map[string]string{"list": "no array of bytes", "short": "has 1 bytes, not 2"} {
		b.openKeeping(mode)
		e := b.began("take/" + mode)
		if _, res, err := e.Snapshot(t.Context()); err != nil || res.Ended == nil || res.Error.Kind != "bad_reply" || !strings.Contains(res.Error.Detail, want) {
			t.Errorf("%s: %+v, %v", mode, res.Error, err)
		}
	}
	b.openKeeping("refuse")
	e := b.began("put/refuse")
	s := b.snapshot(e)
	b.step(e, "1")
	if res, err := e.Restore(t.Context(), s.ID); err != nil || res.Error == nil || res.Error.Kind != "bad_snapshot" || res.Ended != nil {
		t.Errorf("Restore() = %+v, %v", res, err)
	}
	if res := b.step(e, "1"); string(res.Info) != `{"n":2}` {
		t.Errorf("step = %+v", res)
	}
	// What was said before the refused restore is what a fault is replayed from.
	if res := b.step(e, "-1"); res.Ended == nil || res.Ended.End.Cause != runner.Agent || *res.Ended.Reward != 2-5 {
		t.Errorf("step = %+v, ended %+v", res, res.Ended)
	}
	b.open(1) // offers none
	e = b.began("plain")
	if _, res, err := e.Snapshot(t.Context()); err != nil || res.Error == nil || res.Error.Kind != "snapshot_unsupported" {
		t.Errorf("Snapshot() = %+v, %v", res.Error, err)
	}
}

// What a trial's sandbox is lost to says nothing of the simulator: it is tried again.
func TestALostTrialIsNoVerdict(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	const slow = `*'"op":"trial"'*) sleep 100 ;;
  *'"op":"snapshot"'*)`
	b.openKeeping("", func(s *simulator.Spec) {
		s.Command[2] = strings.NewReplacer(`"snapshots":true`, `"snapshots":"trial"`, `*'"op":"snapshot"'*)`, slow).Replace(s.Command[2])
	})
	e := b.began("e")
	for range 2 {
		failed := make(chan error, 1)
		go func() {
			_, _, err := e.Snapshot(t.Context())
			failed <- err
		}()
		for n := 0; n == 0; {
			select {
			case err := <-failed:
				t.Fatalf("Snapshot() = %v, and nothing was tried", err)
			case <-time.After(time.Millisecond):
			}
			var err error
			if n, err = b.run.Cancel(t.Context(), owner, "", b.trial(), "taken away"); err != nil {
				t.Fatal(err)
			}
		}
		if err := <-failed; runner.KindOf(err) != runner.KindOverCapacity || !strings.Contains(err.Error(), "says nothing") {
			t.Errorf("Snapshot() = %v, want over_capacity", err)
		}
	}
}

// trial is the id of a trial that is live, or of nothing.
func (b *bench) trial() string {
	b.t.Helper()
	all, _, err := b.run.List(b.t.Context(), owner, "", "", "", 100)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, ep := range all {
		if strings.HasPrefix(ep.Key.ID, "trial-") && ep.State == runner.Live {
			return ep.Key.ID
		}
	}
	return "none"
}

func TestARestoreThatCrashesIsTheAgents(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.openKeeping("die")
	e := b.began("e")
	s := b.snapshot(e)
	f := b.make("f")
	res, err := f.Restore(t.Context(), s.ID)
	if err != nil || res.Ended == nil || res.Ended.End.Cause != runner.Agent || res.Error.Kind != "program_ended" {
		t.Errorf("Restore() = %+v, %+v, %v", res.Error, res.Ended, err)
	}
}

func TestASnapshotIsForItsOwnKindAndTenantAlone(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.openKeeping("")
	e := b.began("e")
	s := b.snapshot(e)
	b.openKeeping("", func(s *simulator.Spec) { s.Record = "ends" }) // of the same kind
	b.restore(b.make("same"), s)
	b.openKeeping("big")
	other := b.began("other")
	_, err := other.Restore(t.Context(), s.ID)
	if runner.KindOf(err) != runner.KindSpecConflict || !strings.Contains(conflict(err), `/vars {"MODE":""} {"MODE":"big"}`) {
		t.Errorf("Restore() = %v %s", err, conflict(err))
	}
	if _, err := other.Restore(t.Context(), "snap-none"); runner.KindOf(err) != runner.KindNotFound {
		t.Errorf("Restore() = %v", err)
	}
	for name, err := range map[string]error{"get": second(b.GetSnapshot("1001", s.ID)), "drop": b.DropSnapshot("1001", s.ID)} {
		if runner.KindOf(err) != runner.KindNotFound {
			t.Errorf("%s by another tenant: %v", name, err)
		}
	}
	if all, use := b.Snapshots(owner, "", 10); len(all) != 1 || all[0].ID != s.ID || use.Bytes != 1 || use.MaxBytes != 64<<10 {
		t.Errorf("Snapshots() = %+v, %+v", all, use)
	}
	if err := os.WriteFile(filepath.Join(b.root, "snapshots", s.ID), []byte("7"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Restore(t.Context(), s.ID); runner.KindOf(err) != runner.KindRecordDamaged {
		t.Errorf("Restore() of other bytes = %v", err)
	}
	if res := b.step(e, "1"); string(res.Info) != `{"n":1}` {
		t.Errorf("step = %+v", res)
	}
}

func second[T any](_ T, err error) error { return err }

// conflict is what a refusal says differs.
func conflict(err error) (text string) {
	if e, ok := errors.AsType[*runner.Error](err); ok {
		for _, d := range e.Diffs {
			text += d.Pointer + " " + string(d.Old) + " " + string(d.New) + ";"
		}
	}
	return text
}

// A program that must be tried is, once, in a sandbox that goes.
func TestATrialSaysInWhichWaySnapshotsAreTaken(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	trying := strings.NewReplacer(`"snapshots":true`, `"snapshots":"trial"`, "  *'\"op\":\"snapshot\"'*)", `  *'"op":"trial"'*)
    case $MODE in
    no) echo '{"error":{"kind":"snapshot_unsupported","detail":"it holds a socket"}}' ;;
    dies) exit 7 ;;
    *) n=99; echo '{"way":"digits"}' ;;
    esac
    continue ;;
  *'"op":"snapshot"'*)`).Replace(keeping)
	for mode, want := range map[string]string{"": "", "no": "it holds a socket", "dies": "in a trial: program_ended"} {
		b.openKeeping(mode, func(s *simulator.Spec) { s.Command[2] = trying })
		e := b.began("e/" + mode + "x")
		for range 2 {
			s, res, err := e.Snapshot(t.Context())
			switch {
			case err != nil || (res.Error == nil) != (want == "") || res.Ended != nil:
				t.Errorf("%s: %+v, %+v, %v", mode, s, res.Error, err)
			case want != "" && (res.Error.Kind != "snapshot_unsupported" || !strings.Contains(res.Error.Detail, want)):
				t.Errorf("%s: %+v", mode, res.Error)
			}
		}
		key, _, _ := e.Key()
		if last := trajectory(t, b, key); want == "" && string(last[len(last)-1].Call.Args) != `{"max":100,"way":"digits"}` {
			t.Errorf("the last call is %s", last[len(last)-1].Call.Args)
		}
		if res := b.step(e, "1"); string(res.Info) != `{"n":1}` {
			t.Errorf("%s: step = %+v", mode, res)
		}
	}
	if eps, _, err := b.run.List(t.Context(), owner, "", "trial", "", 0); err != nil || len(eps) != 0 {
		t.Errorf("%d trials are left (%v)", len(eps), err)
	}
}

func TestSpecsOfSnapshotsThatMeanNothingAreRefused(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for _, change := range []func(*simulator.Spec){
		func(s *simulator.Spec) { s.MaxSnapshot = -1 },
		func(s *simulator.Spec) { s.MaxSnapshot = s.MaxMessage + 1 },
	} {
		_, err := b.Open(t.Context(), owner, counterSpec(change), 0)
		if e, ok := errors.AsType[*runner.Error](err); !ok || e.Kind != runner.KindBadRequest || e.Field != "max_snapshot" {
			t.Errorf("Open() = %v", err)
		}
	}
	if sim, err := b.Open(t.Context(), owner, counterSpec(), 0); err != nil || sim.Spec.MaxSnapshot != 1<<20 {
		t.Errorf("Open() = %+v, %v", sim.Spec, err)
	}
	odd := counterSpec(func(s *simulator.Spec) {
		s.Command[2] = strings.Replace(counter, `"action_space"`, `"snapshots":"perhaps","action_space"`, 1)
	})
	if _, err := b.Open(t.Context(), owner, odd, 0); runner.KindOf(err) != runner.KindPrepareFailed {
		t.Errorf("Open() = %v", err)
	}
}
