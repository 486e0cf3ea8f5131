package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/paddock-run/paddock/api"
)

// line runs a command line.
func line(tb testing.TB, args ...string) (code int, out, errs string) {
	tb.Helper()
	var o, e bytes.Buffer
	code = run(tb.Context(), args, strings.NewReader(""), &o, &e)
	return code, o.String(), e.String()
}

func TestWrongUsageIsExitCode2AndSaysSo(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"frobnicate"},
		{"--frobnicate"},
		{"world", "inspect"},
		{"world", "frobnicate"},
		{"run", "busybox"},
		{"episode", "create"},
		{"episode", "call", "e"},
		{"run", "w", "--memory", "much", "--", "true"},
		{"run", "w", "-e", "=x", "--", "true"},
		{"serve", "--inject-faults", "2"},
		{"serve", "--inject-faults", "0.1:x"},
		{"serve", "--log-level", "loud"},
		{"serve", "--log-format", "xml"},
		{"score", "e"},
		{"world", "build", "--packages", "git"},
	} {
		code, out, errs := line(t, args...)
		if code != exitUsage || out != "" || !strings.HasPrefix(errs, "paddock: ") {
			t.Errorf("%v: exit code %d, out %q, errors %q", args, code, out, errs)
		}
	}
}

func TestMissingDaemonIsExitCode3AndSaysWhatToDo(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "none")
	code, _, errs := line(t, "--socket", socket, "world", "ls")
	if code != exitUnavailable || !strings.Contains(errs, socket) || !strings.Contains(errs, "paddock serve") {
		t.Errorf("exit code %d, errors %q", code, errs)
	}
	code, _, errs = line(t, "--socket", socket, "--json", "world", "ls")
	var p api.Error
	if err := json.Unmarshal([]byte(errs), &p); err != nil || code != exitUnavailable || p.Kind != api.Unavailable {
		t.Errorf("--json: exit code %d, errors %q", code, errs)
	}
	if code, _, _ = line(t, "--socket", socket, "run", "w", "--", "true"); code != exitPaddock {
		t.Errorf("run: exit code %d, want %d", code, exitPaddock)
	}
	if code, out, _ := line(t, "--socket", socket, "version"); code != 0 || !strings.Contains(out, "no daemon answers") {
		t.Errorf("version: exit code %d, out %q", code, out)
	}
}

// A03: a missing exit code never becomes 0.
func TestResultsBecomeExitCodes(t *testing.T) {
	t.Parallel()
	code := func(n int) *int { return &n }
	for name, c := range map[string]struct {
		result api.CallResult
		want   int
	}{
		"good":           {api.CallResult{ExitCode: code(0)}, 0},
		"bad":            {api.CallResult{ExitCode: code(7)}, 7},
		"signal":         {api.CallResult{Signal: 9}, 137},
		"timeout":        {api.CallResult{Signal: 9, TimedOut: true}, exitTimeout},
		"CPU time":       {api.CallResult{Signal: 9, CPUTimedOut: true}, exitTimeout},
		"memory":         {api.CallResult{Signal: 9, OOM: true}, 137},
		"nothing at all": {api.CallResult{}, exitPaddock},
		"not found":      {api.CallResult{Fault: &api.CallFault{Kind: "command_not_found", Path: "x"}}, exitNotFound},
		"no directory":   {api.CallResult{Fault: &api.CallFault{Kind: "cwd_not_found"}}, exitNotRunnable},
		"unknown user":   {api.CallResult{Fault: &api.CallFault{Kind: "user_not_found"}}, exitNotRunnable},
	} {
		var errs bytes.Buffer
		got := 0
		if e, ok := errors.AsType[exitError](exitOf(&errs, c.result)); ok {
			got = e.code
		}
		if got != c.want {
			t.Errorf("%s: exit code %d, want %d", name, got, c.want)
		}
	}
}

func TestTablesDoNotMoveTheCursor(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	table(&out, []string{"A", "B"}, []string{"x\x1b[2J\n\xff", "y"})
	if strings.Contains(out.String(), "\x1b") || !utf8.Valid(out.Bytes()) || strings.Count(out.String(), "\n") != 2 {
		t.Errorf("table = %q", out.String())
	}
}

func TestFaultSwitchIsReadAsShareAndSeed(t *testing.T) {
	t.Parallel()
	if f, err := parseFaults(""); f != nil || err != nil {
		t.Errorf("off = %v, %v", f, err)
	}
	if f, err := parseFaults("0.1:7"); err != nil || f.Share != 0.1 || f.Seed != 7 {
		t.Errorf("0.1:7 = %+v, %v", f, err)
	}
	for _, bad := range []string{"x", "-1", "1.1", "NaN", "0.1:", "0.1:-1", "0.1:4294967296"} {
		if f, err := parseFaults(bad); err == nil {
			t.Errorf("%s = %+v, want an error", bad, f)
		}
	}
}

func TestMissingRewardIsNoZero(t *testing.T) {
	t.Parallel()
	zero := 0.0
	if number(nil) != "-" || number(&zero) != "0" {
		t.Errorf("number(nil) = %q, number(0) = %q", number(nil), number(&zero))
	}
}

func TestEveryCommandHasHelp(t *testing.T) {
	t.Parallel()
	var walk func(path []string)
	walk = func(path []string) {
		cmd, _, err := rootCommand(&cli{}).Find(path)
		if err != nil {
			t.Fatal(err)
		}
		if len(path) > 0 && cmd.Short == "" {
			t.Errorf("%v has no short help", path)
		}
		for _, sub := range cmd.Commands() {
			walk(append(append([]string(nil), path...), sub.Name()))
		}
	}
	walk(nil)
}

func TestTimesAreSecondsOrDurations(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]float64{"2": 2, "0.25": 0.25, "1m30s": 90, "250ms": 0.25} {
		var s secondsValue
		if err := s.Set(text); err != nil || float64(s) != want {
			t.Errorf("%s = %v, %v; want %v", text, s, err, want)
		}
	}
	for _, text := range []string{"", "x", "1 m", "NaN", "Inf"} {
		if err := new(secondsValue).Set(text); err == nil {
			t.Errorf("%q is taken for a time", text)
		}
	}
}

// With --json an error is JSON too, whoever found it.
func TestErrorsAreJSONWhenAsked(t *testing.T) {
	t.Parallel()
	missing := filepath.Join(t.TempDir(), "no-socket")
	for want, a := range map[string][]string{
		"usage":       {"run", "box", "--nonsense"},
		"unavailable": {"world", "ls"},
		"failed":      {"world", "build", filepath.Join(t.TempDir(), "none")},
	} {
		var out, errs bytes.Buffer
		code := run(t.Context(), append([]string{"--json", "--socket", missing}, a...), strings.NewReader(""), &out, &errs)
		var got struct{ Kind, Detail string }
		if err := json.Unmarshal(errs.Bytes(), &got); err != nil || got.Kind != want || got.Detail == "" || code == 0 || out.Len() > 0 {
			t.Errorf("%v: code %d, stdout %q, stderr %q; want kind %s", a, code, out.String(), errs.String(), want)
		}
	}
}
