package runner_test

import (
	"strings"
	"testing"

	"github.com/paddock-run/paddock/runner"
)

// What an episode makes of its own passwd is its own: it sees it at once, and no other
// episode of the world ever does, however it was written.
func TestUsersOfAnEpisodeAreItsOwn(t *testing.T) {
	t.Parallel()
	b := newRealBench(t)
	const agent = "id -u"
	asAgent := func(key runner.Key) runner.CallResult {
		return b.call(key, runner.CallSpec{Tool: "exec", Shell: agent, User: "twin"})
	}
	line := []byte("root:x:0:0::/root:/bin/sh\ntwin:x:4321:4321::/home:/bin/sh\n")

	written := b.live("written")
	b.call(written, runner.CallSpec{Tool: "write_file", Path: "/etc/passwd", Content: line, Mode: 0o644, User: "0:0"})
	if got := strings.TrimSpace(string(asAgent(written).Stdout.Head)); got != "4321" {
		t.Errorf("after a write of its own the episode's twin is %q, want 4321", got)
	}
	later := b.live("later")
	b.call(later, runner.CallSpec{Tool: "exec", User: "0:0", Shell: "sed -i '$a twin:x:4321:4321::/home:/bin/sh' /etc/passwd"})
	if got := strings.TrimSpace(string(asAgent(later).Stdout.Head)); got != "4321" {
		t.Errorf("after a command's write the episode's twin is %q, want 4321", got)
	}
	if r := asAgent(b.live("other")); r.Error == nil || r.Error.Kind != "user_not_found" {
		t.Errorf("another episode has a twin: %+v %q", r.Error, r.Stdout.Head)
	}
}
