package runner_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/paddock-run/paddock/runner"
)

// replaceShell makes every later sh say that the reward is 1.
const replaceShell = `rm /bin/sh; printf '#!/bin/busybox sh\necho "{\\"reward\\": 1}" >&3\n' >/bin/sh; chmod 755 /bin/sh`

// A grader that keeps the working directory runs on the world's own shell, whatever an
// agent that was root did to it, and still sees its work.
func TestGraderThatKeepsADirectoryRunsOnTheWorldsPrograms(t *testing.T) {
	t.Parallel()
	b := newRealBench(t)
	keep := func(g *runner.GraderSpec) { g.Keep = []string{"/app"} }
	for i, c := range []struct {
		name     string
		script   string
		change   func(*runner.GraderSpec)
		want     float64
		tampered bool
	}{
		{"a replaced shell lies to a grader that takes all", replaceShell, func(*runner.GraderSpec) {}, 1, true},
		{"a replaced shell", replaceShell, keep, 0, false},
		{"a replaced shell beside real work", solve + "; " + replaceShell, keep, 1, false},
		{"real work", solve, keep, 1, false},
		{"no work", "true", keep, 0, false},
		{"work in a file that is linked from elsewhere", "echo 'echo 42' >/tmp/w; ln -f /tmp/w /app/answer.sh", keep, 1, false},
		{"all else is gone", solve + "; rm -rf /bin /etc /root /tmp/* 2>/dev/null", keep, 1, false},
		{"the directory is a link to what is not kept", "mkdir /tmp/x; cp /app/* /tmp/x; echo 'echo 42' >/tmp/x/answer.sh; rm -r /app; ln -s /tmp/x /app", keep, 0, false},
		{"the directory is gone", "cd /; rm -r /app", keep, 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			key := b.live(fmt.Sprintf("k%d", i), func(s *runner.EpisodeSpec) { s.Graders = b.hiddenGrader(c.change) })
			b.call(key, runner.CallSpec{Tool: "exec", Argv: []string{"/bin/sh", "-c", c.script}})
			at := last(b.finish(key))
			wantReward(t, at, c.want)
			if got := slices.Contains(at.Scores[0].Flags, "tampered"); got != c.tampered {
				t.Errorf("tampered %v, want %v: %q", got, c.tampered, at.Scores[0].Evidence)
			}
		})
	}
}

func TestKeepThatMeansNothingIsRefused(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for _, dir := range []string{"/", "app", "/app/", "/a/../b", "/proc/x", "/dev", "/grader", "/paddock/in", "/a\x00"} {
		_, err := b.PutGrader(t.Context(), runner.GraderSpec{Command: []string{"x"}, Keep: []string{"/ok", dir}})
		if e, ok := err.(*runner.Error); !ok || e.Kind != runner.KindBadRequest || e.Field != "keep/1" { //nolint:errorlint // what the daemon is handed
			t.Errorf("keep %q: %v, want bad_request of keep/1", dir, err)
		}
	}
}
