package overlay_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/paddock-run/paddock/internal/need"
	"github.com/paddock-run/paddock/overlay"
	"github.com/paddock-run/paddock/overlay/image"
	"github.com/paddock-run/paddock/runner"
	"github.com/paddock-run/paddock/runner/contract"
)

// worlds makes a store what the runner asks for, as cmd/paddock does.
type worlds struct{ image.Worlds }

func (w worlds) Fork(ctx context.Context, id string) (runner.Fork, error) {
	f, err := w.Worlds.Fork(ctx, id)
	if err != nil {
		return nil, err
	}
	return fork{f}, nil
}

type fork struct{ *overlay.Fork }

func (f fork) Track(upper *os.File, hostID uint32) runner.Tracker { return f.Fork.Track(upper, hostID) }

func openStore(t *testing.T, opts overlay.Options) *overlay.Store {
	t.Helper()
	need.Root(t)
	s, err := overlay.Open(filepath.Join(t.TempDir(), "store"), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if strays, err := s.Strays(); err != nil || len(strays) > 0 {
			t.Errorf("Strays() = %q, %v, want none", strays, err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestContract(t *testing.T) {
	for name, id := range map[string]uint32{"not shifted": 0, "shifted": 300000} {
		t.Run(name, func(t *testing.T) {
			contract.Worlds(t, func(t *testing.T) contract.WorldsUnderTest {
				t.Helper()
				return contract.WorldsUnderTest{Worlds: worlds{image.Worlds{Store: openStore(t, overlay.Options{})}}, HostID: id}
			})
		})
	}
}

func TestASecondOpenIsRefused(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	s, err := overlay.Open(root, overlay.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := overlay.Open(root, overlay.Options{}); !errors.Is(err, overlay.ErrLocked) {
		t.Errorf("Open() = %v, want ErrLocked", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := overlay.Open(root, overlay.Options{})
	if err != nil {
		t.Fatal(err)
	}
	_ = again.Close()
}

func TestBusybox(t *testing.T) {
	t.Parallel()
	s := openStore(t, overlay.Options{Busybox: need.Busybox(t)})
	first, err := s.Build(t.Context(), overlay.Recipe{Busybox: true, Name: "busybox"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	again, err := s.Build(t.Context(), overlay.Recipe{Busybox: true}, nil)
	if err != nil || !again.Hit || again.World.ID != first.World.ID {
		t.Errorf("second Build() = %+v, %v, want a hit", again, err)
	}
	made, err := s.Build(t.Context(), overlay.Recipe{Busybox: true, Cache: "refresh"}, nil)
	if err != nil || made.Hit || made.World.ID != first.World.ID {
		t.Errorf("Build() again = %+v, %v, want the same world made anew", made, err)
	}
	f, err := s.Fork(t.Context(), "busybox")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Release()
	if to, err := os.Readlink(filepath.Join(f.Lowers()[0], "bin/sh")); err != nil || to != "/bin/busybox" {
		t.Errorf("bin/sh = %q, %v", to, err)
	}
}
