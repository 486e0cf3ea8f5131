package native_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/paddock-run/paddock/internal/need"
	"github.com/paddock-run/paddock/policies"
	"github.com/paddock-run/paddock/runner/contract"
	"github.com/paddock-run/paddock/sandbox"
	"github.com/paddock-run/paddock/sandbox/disk"
	"github.com/paddock-run/paddock/sandbox/native"
)

// newLauncherOn is a launcher with a disk below dir.
func newLauncherOn(tb testing.TB, kind disk.Kind, dir string) launcher {
	tb.Helper()
	need.Root(tb)
	layers, err := disk.Open(tb.Context(), kind, disk.Config{Dir: filepath.Join(dir, "disk")})
	if err != nil {
		tb.Fatal(err)
	}
	parent := cgroupParent()
	l, err := native.New(native.Config{Dir: need.Tmpfs(tb), CgroupParent: parent, Disk: layers})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := l.Close(); err != nil {
			tb.Errorf("Close: %v", err)
		}
		if err := layers.Close(); err != nil {
			tb.Errorf("Close of the disk: %v", err)
		}
		if left, err := os.ReadDir(filepath.Join(dir, "disk")); err != nil || len(left) > 0 {
			tb.Errorf("left on the disk: %v, %v", left, err)
		}
	})
	return launcher{l, parent}
}

// onDisk is specOf for layers on the disk: they are no part of the memory limit.
func onDisk(policy string, limits policies.Limits) func(testing.TB, string) sandbox.Spec {
	return func(tb testing.TB, name string) sandbox.Spec {
		tb.Helper()
		spec := specOf(policy, limits)(tb, name)
		spec.Root.Upper.OnDisk = true
		memory := *spec.OCI.Linux.Resources.Memory.Limit - spec.Root.Upper.Bytes
		spec.OCI.Linux.Resources.Memory.Limit, spec.OCI.Linux.Resources.Memory.Swap = &memory, &memory
		return spec
	}
}

// layersOn is what sandboxes keep on every kind of disk; full is what a program is told.
func layersOn(t *testing.T, kind disk.Kind, dir, full string) {
	t.Helper()
	l := newLauncherOn(t, kind, dir)
	limits := policies.Limits{CPUs: 1, MemoryBytes: 32 << 20, DiskBytes: 96 << 20, Inodes: 2000, Pids: 48}
	specs := map[string]sandbox.Spec{}
	begin := func(name string) *native.Sandbox {
		specs[name] = onDisk("default", limits)(t, name)
		s, err := l.Launcher.Start(t.Context(), specs[name])
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		return s
	}
	// X-F18, X-F14: more than the memory holds goes in, and what is beyond the limit is ENOSPC.
	s, neighbour := begin("full"), begin("neighbour")
	r := run(t, s, script("dd if=/dev/zero of=/big bs=1M; stat -c %s /big"))
	size, err := strconv.ParseInt(strings.TrimSpace(r.out), 10, 64)
	if !strings.Contains(r.err, full) || r.OOM || err != nil || size < limits.DiskBytes*9/10 || size > limits.DiskBytes*11/10 {
		t.Errorf("a file that grows: out %q err %q oom %v, want %q at about %d bytes", r.out, r.err, r.OOM, full, limits.DiskBytes)
	}
	if kind != disk.Btrfs && r.Full != sandbox.FullDisk {
		t.Errorf("the result says %q is full, want %q", r.Full, sandbox.FullDisk)
	}
	if r := run(t, neighbour, script("dd if=/dev/zero of=/small bs=1M count=64 2>&1")); code(r) != 0 {
		t.Errorf("the neighbour: %q", r.out)
	}
	run(t, s, script("rm -f /big"))
	if kind != disk.Btrfs {
		r = run(t, s, script("mkdir /many; i=0; while : >/many/f$i; do i=$((i+1)); done; ls /many | wc -l"))
		if !strings.Contains(r.err, full) || r.Full != sandbox.FullInodes {
			t.Errorf("files without end: out %q err %q full %q", r.out, r.err, r.Full)
		}
	}
	mustWork(t, neighbour)
	layerOnDiskOfAnother(t, l, s, specs["full"])
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	mustWork(t, begin("again"))
}

// contractOn passes the suite of all launchers with layers on a disk.
func contractOn(t *testing.T, kind disk.Kind, dir string) {
	t.Helper()
	contract.Launcher(t, contract.LauncherUnderTest{Launcher: newLauncherOn(t, kind, dir), Spec: func(t *testing.T, name string) sandbox.Spec {
		t.Helper()
		return onDisk("default", policies.Limits{DiskBytes: 64 << 20})(t, name)
	}})
}

// layerOnDiskOfAnother scores: the upper of an ended sandbox, whose spec is given, is a
// layer of the next.
func layerOnDiskOfAnother(t *testing.T, l launcher, s *native.Sandbox, spec sandbox.Spec) {
	t.Helper()
	run(t, s, script("rm -rf /many; echo 42 >/answer; rm -r /home"))
	if err := s.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	spec.Name = "grader"
	spec.Root.Lowers = append([]sandbox.Lower{{Dir: s.Upper(), Shifted: true}}, spec.Root.Lowers...)
	grader, err := l.Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	if got := shell(t, grader, "cat /answer; ls -d /home 2>/dev/null; echo 43 >/answer; echo $?"); got != "42\n0\n" {
		t.Errorf("the grader printed %q, want the agent's answer, no /home, and to be able to write", got)
	}
	if err := grader.Close(); err != nil {
		t.Error(err)
	}
}

func TestLauncherWithLoopDevices(t *testing.T) { contractOn(t, disk.Loop, t.TempDir()) }

func TestLayersOnLoopDevices(t *testing.T) {
	dir := t.TempDir()
	t.Cleanup(func() { // after everything is closed
		for deadline := time.Now().Add(20 * time.Second); backed(t, dir+"/") > 0; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%d loop devices are left", backed(t, dir+"/"))
			}
		}
	})
	layersOn(t, disk.Loop, dir, "No space left")
}

// backed counts the loop devices with files below dir.
func backed(t *testing.T, dir string) int {
	t.Helper()
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, f := range files {
		if text, err := os.ReadFile(f); err == nil && strings.HasPrefix(string(text), dir) {
			n++
		}
	}
	return n
}

// Without a disk a layer that wants one is refused, and nothing is left of it.
func TestNoDiskNoLayerOnIt(t *testing.T) {
	l := newLauncher(t)
	if _, err := l.Start(t.Context(), onDisk("default", small)(t, "none")); err == nil || !strings.Contains(err.Error(), "disk") {
		t.Errorf("Start = %v, want a refusal", err)
	}
}
