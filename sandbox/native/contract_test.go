package native_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/paddock-run/paddock/internal/need"
	"github.com/paddock-run/paddock/policies"
	"github.com/paddock-run/paddock/runner"
	"github.com/paddock-run/paddock/runner/contract"
	"github.com/paddock-run/paddock/sandbox"
	"github.com/paddock-run/paddock/sandbox/native"
)

// launcher and box give the concrete types the runner's interfaces.
type launcher struct{ *native.Launcher }

func (l launcher) Start(ctx context.Context, spec sandbox.Spec) (runner.Sandbox, error) {
	s, err := l.Launcher.Start(ctx, spec)
	if err != nil {
		return nil, err
	}
	return box{s}, nil
}

type box struct{ *native.Sandbox }

func (b box) Files() runner.Files { return b.Sandbox.Files() }

func TestNativeLauncher(t *testing.T) {
	contract.Launcher(t, contract.LauncherUnderTest{Launcher: newLauncher(t), Spec: func(t *testing.T, name string) sandbox.Spec {
		t.Helper()
		return specOf("default", policies.Limits{})(t, name)
	}})
}

func newLauncher(tb testing.TB) launcher {
	tb.Helper()
	need.Root(tb)
	l, err := native.New(native.Config{Dir: need.Tmpfs(tb), CgroupParent: "paddock-test-" + strings.ToLower(filepath.Base(tb.TempDir()))})
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

var ids = sync.OnceValues(func() (*sandbox.IDPool, error) { return sandbox.HostIDPool(1 << 10) })

// specOf makes specs of a policy over the test world.
func specOf(policy string, limits policies.Limits) func(testing.TB, string) sandbox.Spec {
	return func(tb testing.TB, name string) sandbox.Spec {
		tb.Helper()
		set, err := policies.Load()
		if err != nil {
			tb.Fatal(err)
		}
		p, err := set.Get(policy)
		if err != nil {
			tb.Fatal(err)
		}
		eff, _, err := p.Effective(limits, policies.Host{CPUs: 2, MemoryBytes: 8 << 30})
		if err != nil {
			tb.Fatal(err)
		}
		oci, err := p.Spec(eff, "paddock", "/")
		if err != nil {
			tb.Fatal(err)
		}
		pool, err := ids()
		if err != nil {
			tb.Fatal(err)
		}
		m, err := pool.Acquire()
		if err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(func() { pool.Release(m) })
		return sandbox.Spec{
			Name: name, IDs: m, OCI: oci,
			Root: sandbox.Root{
				Lowers: []sandbox.Lower{{Path: world(tb)}},
				Upper:  sandbox.Upper{Bytes: eff.DiskBytes, Inodes: eff.Inodes},
			},
		}
	}
}

// world is a small tree around busybox, made once for a test.
func world(tb testing.TB) string {
	tb.Helper()
	dir := tb.TempDir() // kernel 6.1 cannot idmap a tmpfs
	busybox, err := os.ReadFile(need.Busybox(tb))
	if err != nil {
		tb.Fatal(err)
	}
	for _, d := range []string{"bin", "dev", "proc", "sys", "etc", "root", "tmp", "home"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			tb.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(dir, "tmp"), 0o1777|os.ModeSticky); err != nil {
		tb.Fatal(err)
	}
	for name, text := range map[string]string{
		"bin/busybox": string(busybox), "etc/passwd": "root:x:0:0::/root:/bin/sh\nagent:x:1000:1000::/home:/bin/sh\n",
		"etc/group": "root:x:0:\nagent:x:1000:\n", "etc/hosts": "", "etc/hostname": "", "etc/resolv.conf": "",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			tb.Fatal(err)
		}
	}
	list, err := exec.CommandContext(tb.Context(), need.Busybox(tb), "--list").Output()
	if err != nil {
		tb.Fatal(err)
	}
	for _, applet := range strings.Fields(string(list)) {
		if applet != "busybox" {
			_ = os.Symlink("busybox", filepath.Join(dir, "bin", applet))
		}
	}
	return dir
}
