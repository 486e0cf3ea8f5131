package runner_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/paddock-run/paddock/overlay"
	"github.com/paddock-run/paddock/policies"
	"github.com/paddock-run/paddock/runner"
	"github.com/paddock-run/paddock/runner/fake"
	"github.com/paddock-run/paddock/runner/record"
	"github.com/paddock-run/paddock/sandbox"
)

const owner = "1000"

// bench is a runner on fakes, with the real record.
type bench struct {
	*runner.Runner
	t        *testing.T
	cfg      runner.Config
	launcher *fake.Launcher
	worlds   *fake.Worlds
	world    string
	cgroup   string // the parent of real sandboxes' cgroups
}

func newBench(t *testing.T, change ...func(*runner.Config)) *bench {
	t.Helper()
	root := t.TempDir()
	set, err := policies.Load()
	if err != nil {
		t.Fatal(err)
	}
	ids, err := sandbox.NewIDPool(300000*2, 64)
	if err != nil {
		t.Fatal(err)
	}
	rec, err := record.Open(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, launcher: fake.NewLauncher(t.TempDir()), worlds: fake.NewWorlds(t.TempDir())}
	b.cfg = runner.Config{
		Root: root, Launcher: b.launcher, Worlds: b.worlds, Record: rec, Policies: set, IDs: ids,
		Host: policies.Host{CPUs: 2, MemoryBytes: 8 << 30},
	}
	for _, c := range change {
		c(&b.cfg)
	}
	built, err := b.worlds.Build(t.Context(), overlay.Recipe{Busybox: true, Name: "base", Config: overlay.Config{
		WorkingDir: "/workdir/dir",
		Tools:      []overlay.Tool{{Name: "args", Command: []string{"cat"}}},
	}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	b.world = built.World.ID
	b.restart()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 30*time.Second)
		defer cancel()
		if err := b.Close(ctx); err != nil {
			t.Errorf("Close: %v", err)
		}
		if n := len(b.launcher.Live()); n != 0 {
			t.Errorf("%d sandboxes are left", n)
		}
		if free := ids.Free(); free != 64 {
			t.Errorf("%d of 64 id ranges are free", free)
		}
		if err := b.worlds.Remove(ctx, b.world); err != nil {
			t.Errorf("the world is still pinned: %v", err)
		}
		if err := rec.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// restart makes a new runner on the same record, as a new daemon would.
func (b *bench) restart() {
	b.t.Helper()
	r, err := runner.New(b.t.Context(), b.cfg)
	if err != nil {
		b.t.Fatal(err)
	}
	b.Runner = r
}

func (b *bench) spec(id string, change ...func(*runner.EpisodeSpec)) runner.EpisodeSpec {
	s := runner.EpisodeSpec{ID: id, World: "base"}
	for _, c := range change {
		c(&s)
	}
	return s
}

func (b *bench) key(id string) runner.Key { return runner.Key{Owner: owner, Run: "default", ID: id} }

func (b *bench) create(s runner.EpisodeSpec) runner.Created {
	b.t.Helper()
	c, err := b.Create(b.t.Context(), owner, 0, s)
	if err != nil {
		b.t.Fatalf("Create %s: %v", s.ID, err)
	}
	return c
}

func (b *bench) live(id string, change ...func(*runner.EpisodeSpec)) runner.Key {
	b.t.Helper()
	c := b.create(b.spec(id, change...))
	if c.Episode.State != runner.Live {
		b.t.Fatalf("Create %s: state %s, end %+v; want live", id, c.Episode.State, c.Episode.Last().End)
	}
	return b.key(id)
}

func (b *bench) call(key runner.Key, s runner.CallSpec) runner.CallResult {
	b.t.Helper()
	res, err := b.Call(b.t.Context(), key, s, runner.CallIO{})
	if err != nil {
		b.t.Fatalf("Call %+v: %v", s, err)
	}
	return res
}

func (b *bench) sh(key runner.Key, script string) runner.CallResult {
	b.t.Helper()
	return b.call(key, runner.CallSpec{Tool: "exec", Shell: script})
}

func (b *bench) finish(key runner.Key) runner.Episode {
	b.t.Helper()
	ep, err := b.Finish(b.t.Context(), key, runner.FinishSpec{})
	if err != nil {
		b.t.Fatalf("Finish: %v", err)
	}
	return ep
}

// ended waits until the last attempt is done.
func (b *bench) ended(key runner.Key) runner.Attempt {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), 20*time.Second)
	defer cancel()
	for {
		ep, err := b.Get(ctx, key)
		if err != nil {
			b.t.Fatal(err)
		}
		if ep.State == runner.Done {
			return *ep.Last()
		}
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			b.t.Fatalf("state is still %s", ep.State)
		}
	}
}

func wantKind(t *testing.T, err error, kind string) *runner.Error {
	t.Helper()
	if runner.KindOf(err) != kind {
		t.Fatalf("error %v, want kind %s", err, kind)
	}
	e, _ := errors.AsType[*runner.Error](err)
	return e
}

func last(ep runner.Episode) runner.Attempt { return *ep.Last() }

func wantEnd(t *testing.T, at runner.Attempt, status runner.Status, cause runner.Cause, step string) {
	t.Helper()
	if at.End == nil || at.End.Status != status || at.End.Cause != cause || at.End.Step != step {
		t.Errorf("end = %+v, want %s by %s at step %q", at.End, status, cause, step)
	}
}

func TestEpisodeFromCreateToFinish(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	key := b.live("it1/t/s0")
	res := b.sh(key, "echo hello > f; echo out; echo err >&2; exit 3")
	if res.Code == nil || *res.Code != 3 || string(res.Stdout.Head) != "out\n" || string(res.Stderr.Head) != "err\n" {
		t.Errorf("exec = %+v", res)
	}
	if !slices.ContainsFunc(res.Changes, func(c runner.FileChange) bool { return c.Path == "/workdir/dir/f" && c.Kind == overlay.Created }) {
		t.Errorf("changes = %+v, want /workdir/dir/f", res.Changes)
	}
	if res := b.call(key, runner.CallSpec{Tool: "args", Args: json.RawMessage(`{"x":1}`)}); string(res.Stdout.Head) != `{"x":1}` {
		t.Errorf("a world's tool got %q", res.Stdout.Head)
	}
	ep, err := b.Finish(t.Context(), key, runner.FinishSpec{Answer: json.RawMessage(`"42"`), Payload: []byte{0, 1, 255}})
	if err != nil {
		t.Fatal(err)
	}
	at := ep.Last()
	wantEnd(t, *at, runner.OK, runner.Agent, "")
	if at.Calls != 2 || at.Capture == nil || !at.Capture.Rescorable || string(at.Answer) != `"42"` {
		t.Errorf("attempt = %+v", at)
	}
	for name, d := range map[string]string{"start": at.Digests.Start, "actions": at.Digests.Actions, "observations": at.Digests.Observations, "state": at.Digests.State} {
		if !strings.HasPrefix(d, "v1:sha256:") {
			t.Errorf("digest %s = %q", name, d)
		}
	}
	if got, err := b.Payload(t.Context(), key, 0); err != nil || string(got) != "\x00\x01\xff" {
		t.Errorf("payload = %q, %v", got, err)
	}
	c, err := b.Changes(t.Context(), key, 1)
	if err != nil || !slices.ContainsFunc(c.Changes, func(ch overlay.Change) bool { return ch.Path == "/workdir/dir/f" }) {
		t.Errorf("Changes = %+v, %v", c.Changes, err)
	}
	rd, err := b.Trajectory(t.Context(), key, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer rd.Close()
	if text, err := io.ReadAll(rd); err != nil || strings.Count(string(text), "\n") != 2 {
		t.Errorf("trajectory = %q, %v; want two lines", text, err)
	}
}

func TestFinishTwiceIsOneFinish(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	key := b.live("e")
	spec := runner.FinishSpec{Answer: json.RawMessage(`1`), Payload: []byte("p")}
	for range 2 {
		if _, err := b.Finish(t.Context(), key, spec); err != nil {
			t.Fatalf("Finish: %v", err)
		}
	}
	_, err := b.Finish(t.Context(), key, runner.FinishSpec{Answer: json.RawMessage(`2`)})
	if e := wantKind(t, err, runner.KindEpisodeEnded); e.End == nil || e.End.Status != runner.OK {
		t.Errorf("outcome in the error = %+v", e.End)
	}
	_, err = b.Call(t.Context(), key, runner.CallSpec{Tool: "exec", Argv: []string{"true"}}, runner.CallIO{})
	wantKind(t, err, runner.KindEpisodeEnded)
}

func TestCreateOfAKnownID(t *testing.T) {
	t.Parallel()
	retried := func(s *runner.EpisodeSpec) { s.Retries = 1 }
	for _, c := range []struct {
		name string
		// before brings the episode about; the create under test follows.
		before   func(*bench)
		spec     func(*runner.EpisodeSpec)
		kept     bool
		attempts int
		kind     string
	}{
		{"live is attached to", func(b *bench) { b.live("e") }, nil, true, 1, ""},
		{"ended by the agent is kept", func(b *bench) { b.finish(b.live("e")) }, nil, true, 1, ""},
		{"platform's null is retried", func(b *bench) { b.lose(retried) }, retried, false, 2, ""},
		{"no retries are left", func(b *bench) { b.lose(retried); b.lose(retried) }, retried, false, 2, runner.KindAttemptsExhausted},
		{"cancelled is kept", func(b *bench) { b.cancelled("e") }, retried, true, 1, ""},
		{
			"cancelled starts anew when asked", func(b *bench) { b.cancelled("e") },
			func(s *runner.EpisodeSpec) { s.Attempt = "next" }, false, 2, "",
		},
		{
			"the agent's end does not, even when asked", func(b *bench) { b.finish(b.live("e")) },
			func(s *runner.EpisodeSpec) { s.Attempt, s.Retries = "next", 5 }, true, 1, "",
		},
		{"another spec is a conflict", func(b *bench) { b.live("e") }, func(s *runner.EpisodeSpec) { s.Weights = "v2" }, false, 1, runner.KindSpecConflict},
		{
			"another spec supersedes when asked", func(b *bench) { b.live("e") },
			func(s *runner.EpisodeSpec) { s.Weights, s.OnConflict = "v2", "supersede" }, false, 2, "",
		},
		{
			"labels, priority, retries and lease are no other spec", func(b *bench) { b.live("e") },
			func(s *runner.EpisodeSpec) {
				s.Labels, s.Priority, s.Retries, s.Lease = map[string]string{"a": "b"}, 3, 4, runner.LeaseSpec{Kind: "daemon"}
			}, true, 1, "",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			c.before(b)
			var change []func(*runner.EpisodeSpec)
			if c.spec != nil {
				change = append(change, c.spec)
			}
			got, err := b.Create(t.Context(), owner, 0, b.spec("e", change...))
			if c.kind != "" {
				e := wantKind(t, err, c.kind)
				if c.kind == runner.KindAttemptsExhausted && len(e.Attempts) != c.attempts {
					t.Errorf("the error has %d attempts, want %d", len(e.Attempts), c.attempts)
				}
				if c.kind == runner.KindSpecConflict && (len(e.Diffs) != 1 || e.Diffs[0].Pointer != "/weights" || string(e.Diffs[0].New) != `"v2"`) {
					t.Errorf("diffs = %+v, want /weights alone", e.Diffs)
				}
				return
			}
			if err != nil || got.Kept != c.kept || len(got.Episode.Attempts) != c.attempts {
				t.Errorf("kept %v with %d attempts, %v; want %v with %d", got.Kept, len(got.Episode.Attempts), err, c.kept, c.attempts)
			}
		})
	}
}

// lose makes an attempt and ends it as the platform's fault.
func (b *bench) lose(change ...func(*runner.EpisodeSpec)) {
	b.t.Helper()
	key := b.live("e", change...)
	for _, s := range b.launcher.Live() {
		s.Die(sandbox.Fate{Kind: sandbox.LauncherDied})
	}
	b.ended(key)
}

func (b *bench) cancelled(id string) {
	b.t.Helper()
	b.live(id)
	if n, err := b.Cancel(b.t.Context(), owner, "", id, "surplus"); n != 1 || err != nil {
		b.t.Fatalf("Cancel = %d, %v", n, err)
	}
}

func TestCauseTable(t *testing.T) {
	t.Parallel()
	die := func(k sandbox.FateKind) func(*bench, runner.Key) {
		return func(b *bench, _ runner.Key) {
			for _, s := range b.launcher.Live() {
				s.Die(sandbox.Fate{Kind: k})
			}
		}
	}
	for _, c := range []struct {
		name   string
		spec   func(*runner.EpisodeSpec)
		do     func(*bench, runner.Key)
		status runner.Status
		cause  runner.Cause
		step   string
		flag   string
	}{
		{"finish", nil, func(b *bench, k runner.Key) { b.finish(k) }, runner.OK, runner.Agent, "", ""},
		{
			"agent clock", func(s *runner.EpisodeSpec) { s.Budgets.AgentS = 0.2 },
			func(b *bench, k runner.Key) {
				if res := b.sh(k, "echo partial; sleep 60"); !res.TimedOut || string(res.Stdout.Head) != "partial\n" || res.End == nil {
					b.t.Errorf("call = %+v, want its output and the end", res)
				}
			}, runner.Timeout, runner.Agent, "", "",
		},
		{"wall clock", func(s *runner.EpisodeSpec) { s.Budgets.WallS = 0.1 }, func(*bench, runner.Key) {}, runner.Timeout, runner.Agent, "", ""},
		{"calls", func(s *runner.EpisodeSpec) { s.Limits.Calls = 1 }, func(b *bench, k runner.Key) {
			b.sh(k, "true")
			_, err := b.Call(b.t.Context(), k, runner.CallSpec{Tool: "exec", Argv: []string{"true"}}, runner.CallIO{})
			wantKind(b.t, err, runner.KindEpisodeEnded)
		}, runner.Limit, runner.Agent, "", ""},
		{"output", func(s *runner.EpisodeSpec) { s.Limits.OutputBytes = 10 }, func(b *bench, k runner.Key) { b.sh(k, "echo more than ten bytes") }, runner.Limit, runner.Agent, "", ""},
		{"oom of what it cannot go on without", nil, die(sandbox.GuestOOM), runner.OOM, runner.Agent, "", ""},
		{"host out of memory", nil, die(sandbox.HostOOM), runner.Errored, runner.Platform, "host_memory", ""},
		{"guest dies", nil, die(sandbox.GuestDied), runner.Failed, runner.Agent, "", "unexplained"},
		{"guest breaks its protocol", nil, die(sandbox.GuestBroke), runner.Failed, runner.Agent, "", "unexplained"},
		{"launcher dies", nil, die(sandbox.LauncherDied), runner.Interrupted, runner.Platform, "launcher", ""},
		{"killed from outside", nil, die(sandbox.Killed), runner.Errored, runner.Platform, "killed_outside", ""},
		{"abort", nil, func(b *bench, k runner.Key) {
			if _, err := b.Abort(b.t.Context(), k, "raised"); err != nil {
				b.t.Error(err)
			}
		}, runner.Errored, runner.Client, "rollout", ""},
		{"cancel", nil, func(b *bench, k runner.Key) {
			if _, err := b.Cancel(b.t.Context(), owner, "", "", "stale"); err != nil {
				b.t.Error(err)
			}
		}, runner.Cancelled, runner.Client, "", ""},
		{"ttl lease", func(s *runner.EpisodeSpec) { s.Lease.TTLS = 0.1 }, func(*bench, runner.Key) {}, runner.Expired, runner.Client, "", ""},
		{"drain", nil, func(b *bench, _ runner.Key) {
			if err := b.Close(b.t.Context()); err != nil {
				b.t.Error(err)
			}
		}, runner.Cancelled, runner.Operator, "drain", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			var change []func(*runner.EpisodeSpec)
			if c.spec != nil {
				change = append(change, c.spec)
			}
			key := b.live("e", change...)
			c.do(b, key)
			at := b.ended(key)
			wantEnd(t, at, c.status, c.cause, c.step)
			if c.flag != "" && !slices.Contains(at.End.Flags, c.flag) {
				t.Errorf("flags = %q, want %s", at.End.Flags, c.flag)
			}
			if hasState := at.Capture != nil; hasState == (c.cause == runner.Platform) {
				t.Errorf("capture %v after an end by %s", at.Capture, c.cause)
			}
		})
	}
}

func TestCauseTableBeforeTheAgentsPhase(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	bad := func(id, setup string) string {
		built, err := b.worlds.Build(t.Context(), overlay.Recipe{Busybox: true, Config: overlay.Config{Setup: []string{"sh", "-c", setup}}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = id
		return built.World.ID
	}
	failing, slow, fine := bad("a", "echo no; exit 1"), bad("b", "sleep 60"), bad("c", "echo yes > /tmp/made")
	one := func(id string, change func(*runner.EpisodeSpec)) runner.Attempt {
		t.Helper()
		return last(b.create(b.spec(id, change)).Episode)
	}
	wantEnd(t, one("setup", func(s *runner.EpisodeSpec) { s.World = failing }), runner.Errored, runner.WorldBad, "setup")
	wantEnd(t, one("slow", func(s *runner.EpisodeSpec) { s.World, s.Budgets.SetupS = slow, 0.2 }), runner.Errored, runner.WorldBad, "setup")
	b.launcher.Fail(io.ErrUnexpectedEOF)
	wantEnd(t, one("start", func(*runner.EpisodeSpec) {}), runner.Errored, runner.Platform, "start")
	b.launcher.Fail(nil)
	b.worlds.Damage(b.world, true)
	wantEnd(t, one("corrupt", func(*runner.EpisodeSpec) {}), runner.Errored, runner.Platform, "start")
	b.worlds.Damage(b.world, false)
	all := func(s *runner.EpisodeSpec) { s.Requests.CPUs = 2 }
	holder := b.live("holder", all)
	wantEnd(t, one("queue", func(s *runner.EpisodeSpec) { all(s); s.Budgets.QueueS = 0.1 }), runner.Errored, runner.Platform, "queue")
	b.finish(holder)
	key := b.live("honest", func(s *runner.EpisodeSpec) { s.World = fine })
	if res := b.sh(key, "cat /tmp/made"); string(res.Stdout.Head) != "yes\n" {
		t.Errorf("after set-up: %+v", res)
	}
	wantEnd(t, last(b.finish(key)), runner.OK, runner.Agent, "")
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for name, c := range map[string]struct {
		change func(*runner.EpisodeSpec)
		kind   string
	}{
		"world":       {func(s *runner.EpisodeSpec) { s.World = "nobody" }, runner.KindUnknownWorld},
		"policy":      {func(s *runner.EpisodeSpec) { s.Policy = "nobody" }, runner.KindUnknownPolicy},
		"run":         {func(s *runner.EpisodeSpec) { s.Run = "nobody" }, runner.KindNotFound},
		"id segment":  {func(s *runner.EpisodeSpec) { s.ID = "a/../b" }, runner.KindBadRequest},
		"id absolute": {func(s *runner.EpisodeSpec) { s.ID = "/a" }, runner.KindBadRequest},
		"id deep":     {func(s *runner.EpisodeSpec) { s.ID = "1/2/3/4/5/6/7/8/9" }, runner.KindBadRequest},
		"negative":    {func(s *runner.EpisodeSpec) { s.Limits.MemoryBytes = -1 }, runner.KindBadRequest},
		"budget":      {func(s *runner.EpisodeSpec) { s.Budgets.AgentS = -1 }, runner.KindBadRequest},
		"lease":       {func(s *runner.EpisodeSpec) { s.Lease = runner.LeaseSpec{Kind: "connection", Conn: "x"} }, runner.KindBadRequest},
		"tool":        {func(s *runner.EpisodeSpec) { s.Tools = []overlay.Tool{{Name: "exec", Command: []string{"x"}}} }, runner.KindBadRequest},
	} {
		_, err := b.Create(t.Context(), owner, 0, b.spec("e", c.change))
		if runner.KindOf(err) != c.kind {
			t.Errorf("%s: %v, want %s", name, err, c.kind)
		}
	}
	_, err := b.Get(t.Context(), b.key("e"))
	wantKind(t, err, runner.KindNotFound)
	key := b.live("e")
	for name, c := range map[string]struct {
		spec runner.CallSpec
		kind string
	}{
		"tool":     {runner.CallSpec{Tool: "nobody"}, runner.KindUnknownTool},
		"nothing":  {runner.CallSpec{Tool: "exec"}, runner.KindBadRequest},
		"both":     {runner.CallSpec{Tool: "exec", Shell: "x", Argv: []string{"x"}}, runner.KindBadRequest},
		"NUL":      {runner.CallSpec{Tool: "exec", Argv: []string{"a\x00b"}}, runner.KindBadRequest},
		"relative": {runner.CallSpec{Tool: "exec", Shell: "x", Cwd: "tmp"}, runner.KindBadRequest},
		"attempt":  {runner.CallSpec{Tool: "exec", Shell: "x", Attempt: 7}, runner.KindNotFound},
		"args":     {runner.CallSpec{Tool: "args", Args: json.RawMessage(`[1]`)}, runner.KindBadRequest},
	} {
		if _, err := b.Call(t.Context(), key, c.spec, runner.CallIO{}); runner.KindOf(err) != c.kind {
			t.Errorf("call %s: %v, want %s", name, err, c.kind)
		}
	}
}

func TestAgentsMistakesAreResults(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	key := b.live("e")
	for want, spec := range map[string]runner.CallSpec{
		"cwd_not_found":     {Tool: "exec", Argv: []string{"true"}, Cwd: "/nope"},
		"command_not_found": {Tool: "exec", Argv: []string{"nope"}},
		"user_not_found":    {Tool: "exec", Argv: []string{"true"}, User: "nobody-here"},
		"not_found":         {Tool: "read_file", Path: "/nope"},
		"is_directory":      {Tool: "read_file", Path: "/tmp"},
		"session_unknown":   {Tool: "session", Session: "nope", Shell: "true"},
		"no_shell":          {Tool: "session_open"},
	} {
		if res := b.call(key, spec); res.Error == nil || res.Error.Kind != want || res.Code != nil {
			t.Errorf("%s: %+v (error %+v)", want, res, res.Error)
		}
	}
	b.call(key, runner.CallSpec{Tool: "write_file", Path: "/tmp/f", Content: []byte("a\r\n\x00")})
	if res := b.call(key, runner.CallSpec{Tool: "read_file", Path: "/tmp/f"}); string(res.Stdout.Head) != "a\r\n\x00" {
		t.Errorf("read back %q", res.Stdout.Head)
	}
	strict := b.live("s", func(s *runner.EpisodeSpec) { s.Policy = "strict" })
	if res := b.call(strict, runner.CallSpec{Tool: "exec", Argv: []string{"true"}, User: "root"}); res.Error == nil || res.Error.Kind != "user_refused" {
		t.Errorf("strict lets root run: %+v", res)
	}
	if res := b.call(strict, runner.CallSpec{Tool: "write_file", Path: "/etc/x", Content: []byte("x")}); res.Error == nil || res.Error.Kind != "read_only" {
		t.Errorf("strict lets /etc be written: %+v", res)
	}
}

func TestWrongArgumentsAreTheAgentsResult(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	tool := overlay.Tool{Name: "count", Command: []string{"cat"}, Parameters: json.RawMessage(`{"properties": {"n": {"type": "integer"}}}`)}
	key := b.live("e", func(s *runner.EpisodeSpec) { s.Tools = []overlay.Tool{tool} })
	wrong := runner.CallSpec{Tool: "count", Args: json.RawMessage(`{"n":"x"}`), Seq: 1}
	for range 2 { // the second is read back from the record
		if res := b.call(key, wrong); res.Error == nil || res.Error.Kind != "invalid_arguments" || res.Code != nil {
			t.Errorf("result = %+v (error %+v)", res, res.Error)
		}
	}
	if res := b.call(key, runner.CallSpec{Tool: "count", Args: json.RawMessage(`{"n":1}`)}); string(res.Stdout.Head) != `{"n":1}` {
		t.Errorf("right arguments: %+v (error %+v)", res, res.Error)
	}
	if at := last(b.finish(key)); at.Calls != 2 {
		t.Errorf("%d calls are on record, want 2", at.Calls)
	}
	tool.Parameters = json.RawMessage(`{"type": "nonsense"}`)
	_, err := b.Create(t.Context(), owner, 0, b.spec("bad", func(s *runner.EpisodeSpec) { s.Tools = []overlay.Tool{tool} }))
	if e := wantKind(t, err, runner.KindBadRequest); e.Field != "tools/0/parameters" {
		t.Errorf("field = %q", e.Field)
	}
}

func TestSameNumberIsOneCall(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	key := b.live("e")
	spec := runner.CallSpec{Tool: "exec", Shell: "echo x >> /tmp/log; cat /tmp/log", Seq: 5}
	first, again := b.call(key, spec), b.call(key, spec)
	if first.Kept || !again.Kept || string(again.Stdout.Head) != "x\n" {
		t.Errorf("first kept %v, again kept %v with %q", first.Kept, again.Kept, again.Stdout.Head)
	}
	_, err := b.Call(t.Context(), key, runner.CallSpec{Tool: "exec", Shell: "true", Seq: 5}, runner.CallIO{})
	wantKind(t, err, runner.KindCallConflict)
	if res := b.sh(key, "cat /tmp/log"); res.Seq != 6 || string(res.Stdout.Head) != "x\n" {
		t.Errorf("the next call is %d and sees %q", res.Seq, res.Stdout.Head)
	}
}

func TestEqualEpisodesHaveEqualDigests(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	run := func(id, script string) runner.Digests {
		key := b.live(id, func(s *runner.EpisodeSpec) { s.Group = "g" })
		b.sh(key, script)
		return last(b.finish(key)).Digests
	}
	one, two, other := run("g/1", "echo a > f"), run("g/2", "echo a > f"), run("g/3", "echo b > f")
	if one != two {
		t.Errorf("digests differ: %+v and %+v", one, two)
	}
	if other.Start != one.Start || other.Actions == one.Actions || other.State == one.State {
		t.Errorf("another script: %+v against %+v", other, one)
	}
}

func TestGroupSharesItsEnvSeedAlone(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	plan := func(id, group string) runner.Plan {
		b.live(id, func(s *runner.EpisodeSpec) { s.Group = group })
		ep, err := b.Get(t.Context(), b.key(id))
		if err != nil {
			t.Fatal(err)
		}
		return ep.Plan
	}
	a, c, alone := plan("a", "g"), plan("c", "g"), plan("d", "")
	if a.EnvSeed != c.EnvSeed || a.SampleSeed == c.SampleSeed || alone.EnvSeed == a.EnvSeed {
		t.Errorf("env seeds %d %d %d, sample seeds %d %d", a.EnvSeed, c.EnvSeed, alone.EnvSeed, a.SampleSeed, c.SampleSeed)
	}
}

func TestResumeFencesTheEarlierDriver(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ctx := t.Context()
	_, err := b.OpenRun(ctx, owner, runner.RunSpec{Name: "exp", Resume: "resume"})
	wantKind(t, err, runner.KindNotFound)
	run, err := b.OpenRun(ctx, owner, runner.RunSpec{Name: "exp", Seed: 3})
	if err != nil {
		t.Fatal(err)
	}
	_, err = b.OpenRun(ctx, owner, runner.RunSpec{Name: "exp"})
	wantKind(t, err, runner.KindRunExists)
	spec := b.spec("e", func(s *runner.EpisodeSpec) { s.Run = "exp" })
	if _, err := b.Create(ctx, owner, run.Generation, spec); err != nil {
		t.Fatal(err)
	}
	next, err := b.OpenRun(ctx, owner, runner.RunSpec{Name: "exp", Resume: "auto"})
	if err != nil || next.Generation != run.Generation+1 || next.Seed != 3 {
		t.Fatalf("resumed run = %+v, %v", next, err)
	}
	_, err = b.Create(ctx, owner, run.Generation, spec)
	wantKind(t, err, runner.KindFenced)
	key := runner.Key{Owner: owner, Run: "exp", ID: "e"}
	_, err = b.Call(ctx, key, runner.CallSpec{Tool: "exec", Shell: "true", Generation: run.Generation}, runner.CallIO{})
	wantKind(t, err, runner.KindFenced)
	_, err = b.Finish(ctx, key, runner.FinishSpec{Generation: run.Generation})
	wantKind(t, err, runner.KindFenced)
	if got, err := b.Create(ctx, owner, next.Generation, spec); err != nil || !got.Kept {
		t.Errorf("the new driver: kept %v, %v; want to attach", got.Kept, err)
	}
}

func TestLateCallsOfAnEarlierAttemptAreSuperseded(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	retried := func(s *runner.EpisodeSpec) { s.Retries = 1 }
	b.lose(retried)
	key := b.live("e", retried)
	_, err := b.Call(t.Context(), key, runner.CallSpec{Tool: "exec", Shell: "true", Attempt: 1}, runner.CallIO{})
	wantKind(t, err, runner.KindSuperseded)
	_, err = b.Finish(t.Context(), key, runner.FinishSpec{Attempt: 1})
	wantKind(t, err, runner.KindSuperseded)
	ep := b.finish(key)
	if len(ep.Attempts) != 2 || ep.Attempts[0].End.Cause != runner.Platform || ep.Attempts[1].End.Status != runner.OK {
		t.Errorf("attempts = %+v, want both on record", ep.Attempts)
	}
}

func TestCrashLeavesInterrupted(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	done, live := b.live("done"), b.live("live", func(s *runner.EpisodeSpec) { s.Retries = 1 })
	b.finish(done)
	for deadline := time.Now().Add(10 * time.Second); ; <-time.After(time.Millisecond) { // a state is on record soon, not at once
		if _, all, err := b.cfg.Record.Attempts(t.Context(), live); err == nil && all[0].State == runner.Live {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the live state is not on record")
		}
	}
	dead := b.Runner // its sandboxes outlive the record's new owner here, as none would
	b.restart()
	defer dead.Close(t.Context())
	at := b.ended(live)
	wantEnd(t, at, runner.Interrupted, runner.Platform, "live")
	if ep, err := b.Get(t.Context(), done); err != nil || ep.Last().End.Status != runner.OK {
		t.Errorf("the finished one = %+v, %v", ep.Last(), err)
	}
}

func TestPauseFreezesTheClocks(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	key := b.live("e", func(s *runner.EpisodeSpec) { s.Budgets.WallS, s.Budgets.AgentS = 0.5, 0.5 })
	for range 2 {
		if ep, err := b.Pause(t.Context(), key); err != nil || ep.State != runner.Paused {
			t.Fatalf("Pause: %s, %v", ep.State, err)
		}
	}
	<-time.After(800 * time.Millisecond)
	ep, err := b.Resume(t.Context(), key)
	if err != nil || ep.State != runner.Live || ep.Last().Clocks.WallS > 0.4 {
		t.Fatalf("Resume: %s, wall %v, %v", ep.State, ep.Last().Clocks.WallS, err)
	}
	at := last(b.finish(key))
	if wantEnd(t, at, runner.OK, runner.Agent, ""); at.Clocks.PausedS < 0.7 {
		t.Errorf("paused %v s, want about 0.8", at.Clocks.PausedS)
	}
}

func TestQueueShowsPositionsAndServesInOrder(t *testing.T) {
	t.Parallel()
	b := newBench(t, func(c *runner.Config) { c.MaxQueue = 2 })
	all := func(s *runner.EpisodeSpec) { s.Requests.CPUs = 2 }
	first := b.live("first", all)
	got := make(chan string, 2)
	for i, id := range []string{"a", "b"} {
		go func() {
			if _, err := b.Create(context.WithoutCancel(t.Context()), owner, 0, b.spec(id, all)); err == nil {
				got <- id
			}
		}()
		for {
			if ep, err := b.Get(t.Context(), b.key(id)); err == nil && ep.QueuePosition == i+1 {
				break
			}
			<-time.After(time.Millisecond)
		}
	}
	_, err := b.Create(t.Context(), owner, 0, b.spec("c", all))
	if e := wantKind(t, err, runner.KindOverCapacity); e.RetryAfter <= 0 {
		t.Error("over capacity without a time to ask again")
	}
	b.finish(first)
	if id := <-got; id != "a" {
		t.Errorf("%s was served first", id)
	}
	b.finish(b.key("a"))
	<-got
}

func TestDeleteListAndCancelByPrefix(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for _, id := range []string{"it1/a", "it1/b", "it2/a"} {
		b.live(id)
	}
	if n, err := b.Cancel(t.Context(), owner, "", "it1", "stale"); n != 2 || err != nil {
		t.Errorf("Cancel = %d, %v; want 2", n, err)
	}
	eps, more, err := b.List(t.Context(), owner, "", "it1", "", 1)
	if err != nil || len(eps) != 1 || !more || eps[0].Key.ID != "it1/a" {
		t.Errorf("List = %d, more %v, %v", len(eps), more, err)
	}
	for _, id := range []string{"it1/a", "it2/a"} { // one ended, one live
		if err := b.Delete(t.Context(), b.key(id)); err != nil {
			t.Errorf("Delete %s: %v", id, err)
		}
		_, err := b.Get(t.Context(), b.key(id))
		wantKind(t, err, runner.KindNotFound)
	}
}

func TestFaultSwitchFailsFirstAttemptsOnly(t *testing.T) {
	t.Parallel()
	b := newBench(t, func(c *runner.Config) { c.Faults = &runner.Faults{Share: 1, Seed: 1} })
	retried := func(s *runner.EpisodeSpec) { s.Retries = 1 }
	key := b.live("e", retried)
	_, err := b.Finish(t.Context(), key, runner.FinishSpec{})
	wantKind(t, err, runner.KindEpisodeEnded)
	wantEnd(t, b.ended(key), runner.Errored, runner.Platform, "killed_outside")
	b.live("e", retried)
	wantEnd(t, last(b.finish(key)), runner.OK, runner.Agent, "")
}

func TestParallelCallsAreAllRecorded(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	key := b.live("e")
	errs := make(chan error, 20)
	for range 20 {
		go func() {
			_, err := b.Call(t.Context(), key, runner.CallSpec{Tool: "exec", Shell: "echo x", Parallel: true}, runner.CallIO{})
			errs <- err
		}()
	}
	for range 20 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if at := last(b.finish(key)); at.Calls != 20 || at.Output != 40 {
		t.Errorf("%d calls with %d bytes, want 20 with 40", at.Calls, at.Output)
	}
}
