package contract

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/paddock-run/paddock/internal/need"
	"github.com/paddock-run/paddock/policies"
	"github.com/paddock-run/paddock/sandbox"
)

var ids = sync.OnceValues(func() (*sandbox.IDPool, error) { return sandbox.HostIDPool(1 << 10) })

// SpecOf makes specs of a policy over a BusyboxWorld.
func SpecOf(policy string, limits policies.Limits) func(testing.TB, string) sandbox.Spec {
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
				Lowers: []sandbox.Lower{{Path: BusyboxWorld(tb)}},
				Upper:  sandbox.Upper{Bytes: eff.DiskBytes, Inodes: eff.Inodes},
			},
		}
	}
}

// BusyboxWorld is a small tree around busybox, a layer that a sandbox can stand on.
func BusyboxWorld(tb testing.TB) string {
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
	for applet := range strings.FieldsSeq(string(list)) {
		if applet != "busybox" {
			_ = os.Symlink("busybox", filepath.Join(dir, "bin", applet))
		}
	}
	return dir
}
