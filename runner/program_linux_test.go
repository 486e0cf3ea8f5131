package runner_test

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/paddock-run/paddock/overlay"
	"github.com/paddock-run/paddock/runner"
)

// echoing answers each message with the message, and does what some of them ask.
const echoing = `
echo '{"ready":true,"seed":"'$PADDOCK_SEED'"}'
while read -r line; do
  case $line in
  *'"op":"die"'*) echo last words >&2; exit 7 ;;
  *'"op":"hang"'*) sleep 1000 ;;
  *'"op":"babble"'*) echo '{}'; echo '{}' ;;
  *'"op":"flood"'*) head -c 3000000 /dev/zero ;;
  *'"op":"raw"'*) echo '{"frames":[3]}'; printf 'a\nb' ;;
  *'"op":"write"'*) echo x > /tmp/written; echo '{}' ;;
  *) echo "{\"got\":$line}" ;;
  esac
done`

func programSpec(script string) func(*runner.EpisodeSpec) {
	return func(s *runner.EpisodeSpec) {
		s.World = "box"
		s.Prepare = &runner.ProgramSpec{Argv: []string{"sh", "-c", script}, MaxMessage: 1 << 20}
		s.Requests = runner.Requests{CPUs: 0.01, MemoryBytes: 1 << 20}
		s.Budgets.SetupS = 20
	}
}

func newProgramBench(t *testing.T) *bench {
	t.Helper()
	b := newRealBench(t)
	if _, err := b.cfg.Worlds.Build(t.Context(), overlay.Recipe{Busybox: true, Name: "box"}, nil); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *bench) say(key runner.Key, op, body string) runner.Reply {
	b.t.Helper()
	reply, err := b.Message(b.t.Context(), key, runner.Message{Op: op, Body: json.RawMessage(body), TimeoutS: 30})
	if err != nil {
		b.t.Fatalf("Message(%s): %v", op, err)
	}
	return reply
}

func TestAProgramAnswersMessagesAsRecordedCalls(t *testing.T) {
	t.Parallel()
	b := newProgramBench(t)
	seed := uint32(41)
	key := b.live("e", programSpec(echoing), func(s *runner.EpisodeSpec) { s.EnvSeed = &seed })
	hello, err := b.ProgramHello(t.Context(), key)
	if err != nil || string(hello.Line) != `{"ready":true,"seed":"0"}` {
		t.Errorf("ProgramHello() = %s, %v; the seed is no episode's yet", hello.Line, err)
	}
	for body, want := range map[string]string{
		``:                  `{"got":{"op":"step"}}`,
		`{ }`:               `{"got":{"op":"step"}}`,
		`{"x":[1,2]}`:       `{"got":{"op":"step","x":[1,2]}}`,
		"{\"x\":\n\"y\"\n}": `{"got":{"op":"step","x":"y"}}`,
	} {
		if got := b.say(key, "step", body); string(got.Frame.Line) != want || got.Result.Error != nil {
			t.Errorf("step %q = %s (%+v), want %s", body, got.Frame.Line, got.Result.Error, want)
		}
	}
	told, err := b.Message(t.Context(), key, runner.Message{Op: "told", Body: json.RawMessage(`{"short":1}`), Told: json.RawMessage(`{"long":2}`)})
	if err != nil || string(told.Frame.Line) != `{"got":{"op":"told","long":2}}` {
		t.Errorf("told = %s, %v; want what was told, not the body", told.Frame.Line, err)
	}
	if got := b.say(key, "raw", ""); string(got.Frame.Raw) != "a\nb" {
		t.Errorf("raw bytes %q", got.Frame.Raw)
	}
	thin, err := b.Message(t.Context(), key, runner.Message{Op: "thin", Keep: func(runner.Reply) runner.Keeping { return runner.KeepNothing }})
	if err != nil || len(thin.Frame.Line) == 0 {
		t.Errorf("thin = %+v, %v", thin, err)
	}
	if res := b.call(key, runner.CallSpec{Tool: "exec", Argv: []string{"true"}}); res.Code == nil || *res.Code != 0 || res.Seq != 8 {
		t.Errorf("a call beside the messages = %+v", res)
	}
	rd, err := b.Trajectory(t.Context(), key, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rd.Close() }()
	var ops []string
	for dec := json.NewDecoder(rd); dec.More(); {
		var line struct {
			Call   runner.CallSpec   `json:"call"`
			Result runner.CallResult `json:"result"`
		}
		if err := dec.Decode(&line); err != nil {
			t.Fatal(err)
		}
		ops = append(ops, line.Call.Tool)
		if line.Call.Tool == "told" && string(line.Call.Args) != `{"short":1}` {
			t.Errorf("recorded %s, want the body alone", line.Call.Args)
		}
		if line.Call.Tool == "raw" && string(line.Result.Stdout.Head) != "{\"frames\":[3]}\na\nb" {
			t.Errorf("recorded reply %q", line.Result.Stdout.Head)
		}
	}
	if want := []string{"step", "step", "step", "step", "told", "raw", "exec"}; !slices.Equal(ops, want) {
		t.Errorf("recorded %v, want %v", ops, want)
	}
	ep, err := b.Finish(t.Context(), key, runner.FinishSpec{})
	if last := ep.Last(); err != nil || last.Calls != 8 || last.End.Status != runner.OK {
		t.Errorf("Finish() = %+v, %v", last, err)
	}
}

func TestAProgramThatBreaksOffIsAValueAndTheEpisodeGoesOn(t *testing.T) {
	t.Parallel()
	b := newProgramBench(t)
	for op, want := range map[string]string{
		"die": "program_ended", "hang": "timeout", "flood": "reply_too_large",
	} {
		t.Run(op, func(t *testing.T) {
			t.Parallel()
			key := b.live("e/"+op, programSpec(echoing))
			reply, err := b.Message(t.Context(), key, runner.Message{Op: op, TimeoutS: map[string]float64{"hang": 0.2}[op]})
			if err != nil || reply.Result.Error == nil || reply.Result.Error.Kind != want {
				t.Fatalf("%s = %+v, %v; want %s", op, reply.Result.Error, err, want)
			}
			if op == "die" && (!strings.Contains(reply.Result.Error.Detail, "last words") || *reply.Result.Code != 7) {
				t.Errorf("die = %+v", reply.Result)
			}
			if op == "hang" && (!reply.Result.TimedOut || reply.Result.Limit.Name != "call_s") {
				t.Errorf("hang = %+v", reply.Result)
			}
			if again := b.say(key, "step", ""); again.Result.Error == nil {
				t.Errorf("the program still answers: %s", again.Frame.Line)
			}
			if res := b.call(key, runner.CallSpec{Tool: "exec", Argv: []string{"true"}}); res.Code == nil || *res.Code != 0 {
				t.Errorf("the episode's next call = %+v", res)
			}
		})
	}
}

func TestAMessageNobodyAskedForEndsTheConversation(t *testing.T) {
	t.Parallel()
	b := newProgramBench(t)
	key := b.live("e", programSpec(echoing))
	b.say(key, "babble", "")
	// By then the second line has come.
	b.call(key, runner.CallSpec{Tool: "exec", Argv: []string{"sleep", "0.2"}})
	for range 2 {
		if reply := b.say(key, "step", ""); reply.Result.Error == nil || reply.Result.Error.Kind != "bad_reply" {
			t.Errorf("after a babble: %s %+v", reply.Frame.Line, reply.Result.Error)
		}
	}
}

func TestAProgramThatDoesNotGetReadyIsTheWorldsFault(t *testing.T) {
	t.Parallel()
	b := newProgramBench(t)
	for name, script := range map[string]string{"exits": "echo no gym here >&2; exit 3", "silent": "sleep 1000", "missing": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spec := b.spec("e/"+name, programSpec(script), func(s *runner.EpisodeSpec) {
				if name == "silent" {
					s.Budgets.SetupS = 1
				}
				if name == "missing" {
					s.Prepare.Argv = []string{"nosuch"}
				}
			})
			created := b.create(spec)
			end := created.Episode.Last().End
			if end == nil || end.Status != runner.Errored || end.Cause != runner.WorldBad || end.Step != "setup" {
				t.Errorf("end %+v", end)
			}
			if name == "exits" && !strings.Contains(strings.Join(end.Evidence, " "), "no gym here") {
				t.Errorf("evidence %q", end.Evidence)
			}
			if _, err := b.KeepReady(t.Context(), owner, spec, 1); runner.KindOf(err) != runner.KindPrepareFailed {
				t.Errorf("KeepReady() = %v", err)
			}
		})
	}
}

// eventually waits for what other goroutines do.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for !is() {
		select {
		case <-ctx.Done():
			t.Fatalf("never: %s", what)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func TestReadySandboxesAreHandedOutOnceAndMadeAgain(t *testing.T) {
	t.Parallel()
	b := newProgramBench(t)
	// Each says which one it is; a file in its tree would tell of another's use.
	script := strings.Replace(echoing, `"ready":true`, `"there":"'$(ls /tmp)'","id":"'$(cat /proc/sys/kernel/random/uuid)'"`, 1)
	spec := b.spec("ready", programSpec(script))
	ready, err := b.KeepReady(t.Context(), owner, spec, 2)
	if err != nil || ready.Wanted != 2 {
		t.Fatalf("KeepReady() = %+v, %v", ready, err)
	}
	two := func() bool {
		ready, err := b.KeepReady(t.Context(), owner, spec, 2)
		return err == nil && ready.Made == 2
	}
	seen := map[string]bool{}
	for _, id := range []string{"a", "b", "c"} {
		eventually(t, "two are ready", two)
		key := b.live(id, programSpec(script))
		hello, err := b.ProgramHello(t.Context(), key)
		if err != nil || seen[string(hello.Line)] || !strings.Contains(string(hello.Line), `"there":""`) {
			t.Errorf("%s: %s, %v; seen before: %v", id, hello.Line, err, seen)
		}
		if id == "a" && string(hello.Line) != string(ready.Hello.Line) {
			t.Errorf("a has %s, and %s was ready", hello.Line, ready.Hello.Line)
		}
		seen[string(hello.Line)] = true
		if reply := b.say(key, "write", ""); reply.Result.Error != nil {
			t.Errorf("write: %+v", reply.Result.Error)
		}
		ep, err := b.Finish(t.Context(), key, runner.FinishSpec{})
		if err != nil || ep.Last().Capture.Changes == 0 {
			t.Errorf("Finish() = %+v, %v", ep.Last(), err)
		}
	}
	eventually(t, "two are ready", two)
	b.live("other", programSpec(script), func(s *runner.EpisodeSpec) { s.Limits.Pids = 99 })
	if ready, err := b.KeepReady(t.Context(), owner, spec, 2); err != nil || ready.Made != 2 {
		t.Errorf("KeepReady() = %+v, %v: one of other limits is taken from the shelf", ready, err)
	}
	if err := b.RemoveWorld(t.Context(), root, "box"); err == nil {
		t.Error("a world in use was removed")
	}
	if _, err := b.Abort(t.Context(), b.key("other"), ""); err != nil {
		t.Error(err)
	}
	if err := b.RemoveWorld(t.Context(), root, "box"); err != nil {
		t.Errorf("RemoveWorld() = %v: what is ready must not keep a world", err)
	}
}

func TestReadySandboxesGiveWayToEpisodes(t *testing.T) {
	t.Parallel()
	b := newProgramBench(t)
	heavy := func(s *runner.EpisodeSpec) { s.Requests.CPUs = 6 }
	if _, err := b.KeepReady(t.Context(), owner, b.spec("ready", programSpec(echoing), heavy), 2); err != nil {
		t.Fatal(err)
	}
	eventually(t, "two are ready", func() bool { return b.Capacity().UsedCPUs > 11 })
	b.live("big", func(s *runner.EpisodeSpec) {
		s.World = "box"
		s.Requests.CPUs = 15
	})
	if used := b.Capacity().UsedCPUs; used > 16 {
		t.Errorf("%v CPUs are reserved of 16", used)
	}
}
