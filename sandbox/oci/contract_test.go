package oci_test

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
	"github.com/paddock-run/paddock/sandbox/native"
	"github.com/paddock-run/paddock/sandbox/oci"
)

type launcher struct{ *oci.Launcher }

func (l launcher) Start(ctx context.Context, spec sandbox.Spec) (runner.Sandbox, error) {
	s, err := l.Launcher.Start(ctx, spec)
	if err != nil {
		return nil, err
	}
	return box{s}, nil
}

type box struct{ *native.Sandbox }

func (b box) Files() runner.Files { return b.Sandbox.Files() }

func newLauncher(tb testing.TB, kind oci.Kind) launcher {
	tb.Helper()
	need.Root(tb)
	l, err := oci.New(tb.Context(), oci.Config{
		Dir: need.Tmpfs(tb), CgroupParent: fmt.Sprintf("paddock-oci-%d-%d", os.Getpid(), parents.Add(1)), Runtime: kind,
	})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := l.Close(); err != nil {
			tb.Errorf("Close: %v", err)
		}
	})
	return launcher{l}
}

var parents atomic.Int64

func TestRuncLauncher(t *testing.T) {
	need.Command(t, "runc", "runc")
	suite(t, oci.Runc)
}

func TestCrunLauncher(t *testing.T) {
	need.Command(t, "crun", "crun")
	suite(t, oci.Crun)
}

func suite(t *testing.T, kind oci.Kind) {
	t.Helper()
	contract.Launcher(t, contract.LauncherUnderTest{Launcher: newLauncher(t, kind), Spec: func(t *testing.T, name string) sandbox.Spec {
		t.Helper()
		return contract.SpecOf("default", policies.Limits{})(t, name)
	}})
}
