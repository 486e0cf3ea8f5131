package docker_test

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"testing"

	"github.com/paddock-run/paddock/internal/need"
	"github.com/paddock-run/paddock/policies"
	"github.com/paddock-run/paddock/runner"
	"github.com/paddock-run/paddock/runner/contract"
	"github.com/paddock-run/paddock/sandbox"
	"github.com/paddock-run/paddock/sandbox/docker"
	"github.com/paddock-run/paddock/sandbox/native"
)

type launcher struct {
	*docker.Launcher
	parent string
}

func (l launcher) Start(ctx context.Context, spec sandbox.Spec) (runner.Sandbox, error) {
	s, err := l.Launcher.Start(ctx, spec)
	if err != nil {
		return nil, err
	}
	return box{s}, nil
}

type box struct{ *native.Sandbox }

func (b box) Files() runner.Files { return b.Sandbox.Files() }

func newLauncher(tb testing.TB, host string) launcher {
	tb.Helper()
	need.Root(tb)
	parent := fmt.Sprintf("paddock-docker-%d-%d", os.Getpid(), parents.Add(1))
	l, err := docker.New(tb.Context(), docker.Config{Dir: need.Tmpfs(tb), CgroupParent: parent, Host: host})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := l.Close(); err != nil {
			tb.Errorf("Close: %v", err)
		}
	})
	return launcher{l, parent}
}

var parents atomic.Int64

func TestDockerLauncher(t *testing.T) {
	l := newLauncher(t, need.StartEngine(t))
	contract.Launcher(t, contract.LauncherUnderTest{Launcher: l, Spec: func(t *testing.T, name string) sandbox.Spec {
		t.Helper()
		return contract.SpecOf("default", policies.Limits{})(t, name)
	}})
}
