package fake_test

import (
	"testing"

	"github.com/paddock-run/paddock/overlay"
	"github.com/paddock-run/paddock/runner/contract"
	"github.com/paddock-run/paddock/runner/fake"
	"github.com/paddock-run/paddock/sandbox"
)

func TestFakeLauncherKeepsTheContract(t *testing.T) {
	t.Parallel()
	worlds := fake.NewWorlds(t.TempDir())
	b, err := worlds.Build(t.Context(), overlay.Recipe{Busybox: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	l := fake.NewLauncher(t.TempDir())
	contract.Launcher(t, contract.LauncherUnderTest{
		Launcher: l,
		Spec: func(t *testing.T, name string) sandbox.Spec {
			t.Helper()
			f, err := worlds.Fork(t.Context(), b.World.ID)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(f.Release)
			spec := sandbox.Spec{Name: name}
			for _, dir := range f.Lowers() {
				spec.Root.Lowers = append(spec.Root.Lowers, sandbox.Lower{Path: dir})
			}
			return spec
		},
	})
	if n := len(l.Live()); n != 0 {
		t.Errorf("%d sandboxes are left", n)
	}
}

func TestFakeWorldsKeepTheContract(t *testing.T) {
	t.Parallel()
	contract.Worlds(t, func(t *testing.T) contract.WorldsUnderTest {
		t.Helper()
		return contract.WorldsUnderTest{Worlds: fake.NewWorlds(t.TempDir())}
	})
}
