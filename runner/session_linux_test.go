package runner_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/paddock-run/paddock/internal/need"
	"github.com/paddock-run/paddock/overlay"
	"github.com/paddock-run/paddock/runner"
)

func (b *bench) open(key runner.Key) string {
	b.t.Helper()
	res := b.call(key, runner.CallSpec{Tool: "session_open"})
	if res.Error != nil || res.Session == "" {
		b.t.Fatalf("session_open: %+v (error %+v)", res, res.Error)
	}
	return res.Session
}

func (b *bench) input(key runner.Key, session, text string) runner.CallResult {
	b.t.Helper()
	return b.call(key, runner.CallSpec{Tool: "session", Session: session, Shell: text})
}

func TestSessionInARealSandbox(t *testing.T) {
	t.Parallel()
	b := newRealBench(t)
	key := b.live("e")
	s := b.open(key)
	for _, in := range []struct {
		text, out string
		code      int
	}{
		// E17: nothing swallows what reports the code.
		{"cat <<'EOF'\nprint(1)\nEOF", "print(1)\n", 0},
		{"echo hi # note", "hi\n", 0},
		{"cat <<A <<B\n1\nA\n2\nB", "2\n", 0},
		{"echo con\\\ntinued", "continued\n", 0},
		{"sh <<'EOF'\nexit 9\nEOF", "", 9},
		{"echo $?", "9\n", 0},
		// E21: bytes are exact.
		{`printf '\n\nx\n\n\n'`, "\n\nx\n\n\n", 0},
		{`printf '  x'`, "  x", 0},
		{"echo -n y", "y", 0},
		{`printf '\303\000\377'`, "\303\000\377", 0},
		// What a shell is for.
		{"cd /tmp; X=kept; export Y=too", "", 0},
		{"pwd; echo $X; sh -c 'echo $Y'", "/tmp\nkept\ntoo\n", 0},
		{"cat", "", 0},
		{"sleep 1000 & echo started", "started\n", 0},
		{"kill $!; (exit 4)", "", 4},
	} {
		res := b.input(key, s, in.text)
		if res.Code == nil || *res.Code != in.code || string(res.Stdout.Head) != in.out || res.Error != nil {
			t.Errorf("%q = %+v (out %q, err %q, error %+v), want %d and %q", in.text, res.Code, res.Stdout.Head, res.Stderr.Head, res.Error, in.code, in.out)
		}
	}
	// E21 of exec.
	if res := b.sh(key, `printf '\n\nx\n\n\n'`); string(res.Stdout.Head) != "\n\nx\n\n\n" {
		t.Errorf("exec wrote %q", res.Stdout.Head)
	}
	if res := b.call(key, runner.CallSpec{Tool: "session_close", Session: s}); res.Error != nil {
		t.Errorf("session_close: %+v", res.Error)
	}
	if res := b.input(key, s, "true"); res.Error == nil || res.Error.Kind != "session_unknown" {
		t.Errorf("input of a closed session: %+v", res.Error)
	}
}

// E19: a shell that ends is said with its code, and the episode goes on.
func TestSessionThatEndsInARealSandbox(t *testing.T) {
	t.Parallel()
	b := newRealBench(t)
	key := b.live("e")
	for text, want := range map[string]int{"echo last; exit 5": 5, "echo last; set -e; false": 1} {
		s := b.open(key)
		res := b.input(key, s, text)
		if res.Error == nil || res.Error.Kind != "session_ended" || res.Code == nil || *res.Code != want || string(res.Stdout.Head) != "last\n" {
			t.Errorf("%q = code %+v, out %q, error %+v; want session_ended with %d after its output", text, res.Code, res.Stdout.Head, res.Error, want)
		}
		if res := b.input(key, s, "echo $?"); res.Error == nil || res.Error.Kind != "session_ended" {
			t.Errorf("input after %q: %+v, want session_ended", text, res.Error)
		}
	}
	if res := b.input(key, b.open(key), "echo fine"); string(res.Stdout.Head) != "fine\n" {
		t.Errorf("the next session wrote %q", res.Stdout.Head)
	}
}

func TestSessionInputThatPassesItsTime(t *testing.T) {
	t.Parallel()
	b := newRealBench(t)
	key := b.live("e")
	s, other := b.open(key), b.open(key)
	res := b.call(key, runner.CallSpec{Tool: "session", Session: s, Shell: "echo partial; (sleep 1234 &) ; sleep 1234", TimeoutS: 0.3})
	if !res.TimedOut || res.Limit == nil || res.Limit.Name != "call_s" || string(res.Stdout.Head) != "partial\n" || res.End != nil {
		t.Errorf("result = timed out %v, limit %+v, out %q, end %+v", res.TimedOut, res.Limit, res.Stdout.Head, res.End)
	}
	if res := b.sh(key, "ps | grep -c '[s]leep 1234'"); string(res.Stdout.Head) != "0\n" {
		t.Errorf("%q processes of the input are left", res.Stdout.Head)
	}
	if res := b.input(key, s, "true"); res.Error == nil || res.Error.Kind != "session_ended" {
		t.Errorf("the session: %+v, want session_ended", res.Error)
	}
	if res := b.input(key, other, "echo fine"); string(res.Stdout.Head) != "fine\n" {
		t.Errorf("the session beside it wrote %q", res.Stdout.Head)
	}
}

// E28: a world of one static program has no shell, and its bounds need none.
func TestWorldWithoutAShell(t *testing.T) {
	t.Parallel()
	b := newRealBench(t)
	program, err := os.ReadFile(need.Busybox(t))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "busybox"), program, 0o755); err != nil {
		t.Fatal(err)
	}
	built, err := b.BuildWorld(t.Context(), root, overlay.Recipe{Dir: dir, Name: "bare"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	key := b.live("e", func(s *runner.EpisodeSpec) { s.World = built.World.ID })
	if res := b.call(key, runner.CallSpec{Tool: "session_open"}); res.Error == nil || res.Error.Kind != "no_shell" {
		t.Errorf("session_open: %+v, want no_shell", res.Error)
	}
	if res := b.sh(key, "true"); res.Error == nil || res.Error.Kind != "no_shell" {
		t.Errorf("exec of a text: %+v, want no_shell", res.Error)
	}
	if res := b.call(key, runner.CallSpec{Tool: "exec", Argv: []string{"/busybox", "sleep", "1000"}, TimeoutS: 0.3}); !res.TimedOut {
		t.Errorf("sleep: %+v, want its time passed", res)
	}
	if res := b.call(key, runner.CallSpec{Tool: "exec", Argv: []string{"/busybox", "echo", "fine"}}); string(res.Stdout.Head) != "fine\n" {
		t.Errorf("the next call wrote %q", res.Stdout.Head)
	}
}

func TestStrictChangesNoOwnerOfTheWorkingDirectory(t *testing.T) {
	t.Parallel()
	b := newRealBench(t)
	key := b.live("e", func(s *runner.EpisodeSpec) { s.Policy = "strict" })
	if res := b.sh(key, "cat answer.sh && ! echo x > made"); res.Code == nil || *res.Code != 0 {
		t.Errorf("a working directory of root's: %+v", res)
	}
	if res := b.sh(key, "echo x > /tmp/made"); res.Code == nil || *res.Code != 0 {
		t.Errorf("/tmp: %+v", res)
	}
	if at := last(b.finish(key)); at.Capture == nil || at.Capture.Changes != 1 {
		t.Errorf("capture = %+v, want /tmp/made alone", at.Capture)
	}
}
