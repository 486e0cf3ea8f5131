package runner_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/paddock-run/paddock/internal/need"
	"github.com/paddock-run/paddock/runner"
)

// noSockets are paths without a socket behind them: these agents make no calls.
type noSockets struct{ closed chan struct{} }

func (s noSockets) Open(context.Context, runner.Key, uint32) (string, func() error, error) {
	return "/run/none.sock", func() error { close(s.closed); return nil }, nil
}

func (b *bench) hostAgent(script string, change ...func(*runner.EpisodeSpec)) runner.BatchResult {
	b.t.Helper()
	made := b.batch(runner.BatchSpec{Episodes: []runner.BatchEpisode{
		b.line("e", "", runner.AgentSpec{Host: []string{"/bin/sh", "-c", script}}, nil, change...),
	}})
	got := b.follow(made.ID, 0)
	if len(got) != 1 {
		b.t.Fatalf("%d results, want one", len(got))
	}
	return got[0]
}

func newHostBench(t *testing.T) (*bench, chan struct{}) {
	t.Helper()
	need.Root(t)
	closed := make(chan struct{})
	return newBench(t, func(c *runner.Config) { c.Sockets = noSockets{closed} }), closed
}

func TestHostAgentIsNobodyWithAnEnvironmentOfItsOwn(t *testing.T) {
	t.Parallel()
	b, closed := newHostBench(t)
	res := b.hostAgent(`env; echo "uid $(id -u) groups $(id -G) pid $$ stdin $(cat)"; grep NoNewPrivs /proc/self/status; exit 3`, func(s *runner.EpisodeSpec) {
		s.Input, s.Task = json.RawMessage(`{"prompt":"go"}`), "task-1"
	})
	if res.Status != runner.Errored || res.Cause != runner.Client || res.Step != "rollout" || res.Reward != nil {
		t.Errorf("a program that fails ends the episode as %s by %s at %q, want the client's error in rollout", res.Status, res.Cause, res.Step)
	}
	said := strings.Join(res.Evidence, "\n")
	for _, want := range []string{
		"PADDOCK_SOCKET=/run/none.sock", "PADDOCK_EPISODE=e", "PADDOCK_ATTEMPT=1", "PADDOCK_SEED=", "PADDOCK_SAMPLE_SEED=",
		`PADDOCK_INPUT={"prompt":"go"}`, "PADDOCK_TASK=task-1", "pid 1 ", `stdin {"prompt":"go"}`, "NoNewPrivs:\t1", "exit status 3",
	} {
		if !strings.Contains(said, want) {
			t.Errorf("the agent said %q, want %q in it", said, want)
		}
	}
	for _, never := range []string{"uid 0 ", "groups 0 ", "SSH_", "GOPATH", "TMPDIR"} {
		if strings.Contains(said, never) {
			t.Errorf("the agent said %q, with %q in it", said, never)
		}
	}
	<-closed
}

func TestHostAgentThatEndsWellFinishesTheEpisode(t *testing.T) {
	t.Parallel()
	b, _ := newHostBench(t)
	if res := b.hostAgent("exit 0"); res.Status != runner.OK || res.Cause != runner.Agent {
		t.Errorf("end %s by %s, want ok by the agent", res.Status, res.Cause)
	}
}

func TestNothingOfAHostAgentOutlivesIt(t *testing.T) {
	t.Parallel()
	b, _ := newHostBench(t)
	file := filepath.Join("/dev/shm", fmt.Sprintf("paddock-%s-%d", t.Name(), os.Getpid())) // where any user may come
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Chmod(file, 0o666)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(file) })
	res := b.hostAgent("(setsid sh -c 'while :; do echo x >> " + file + "; sleep 0.01; done' >/dev/null 2>&1 &); while [ ! -s " + file + " ]; do sleep 0.01; done; exit 0")
	if res.Status != runner.OK {
		t.Errorf("end %+v", res)
	}
	size := func() int64 {
		info, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	before := size()
	<-time.After(200 * time.Millisecond)
	if after := size(); before == 0 || after != before {
		t.Errorf("a process of the agent's wrote %d bytes while it lived and %d after it", before, after-before)
	}
}

func TestHostAgentEndsWithItsEpisode(t *testing.T) {
	t.Parallel()
	b, _ := newHostBench(t)
	res := b.hostAgent("sleep 1000", func(s *runner.EpisodeSpec) { s.Budgets.WallS = 0.2 })
	if res.Status != runner.Timeout || res.Cause != runner.Agent {
		t.Errorf("end %s by %s, want timeout by the agent", res.Status, res.Cause)
	}
}
