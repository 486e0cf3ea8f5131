package native_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/paddock-run/paddock/internal/need"
	"github.com/paddock-run/paddock/policies"
	"github.com/paddock-run/paddock/runner"
	"github.com/paddock-run/paddock/runner/contract"
	"github.com/paddock-run/paddock/sandbox"
	"github.com/paddock-run/paddock/sandbox/native"
)

// launcher and box give the concrete types the runner's interfaces.
type launcher struct {
	*native.Launcher
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

func TestNativeLauncher(t *testing.T) {
	contract.Launcher(t, contract.LauncherUnderTest{Launcher: newLauncher(t), Spec: func(t *testing.T, name string) sandbox.Spec {
		t.Helper()
		return specOf("default", policies.Limits{})(t, name)
	}})
}

// cgroupParent is a name that no other run of tests on this host has.
func cgroupParent() string {
	return fmt.Sprintf("paddock-test-%d-%d", os.Getpid(), parents.Add(1))
}

var parents atomic.Int64

func newLauncher(tb testing.TB) launcher {
	tb.Helper()
	need.Root(tb)
	parent := cgroupParent()
	l, err := native.New(native.Config{Dir: need.Tmpfs(tb), CgroupParent: parent})
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

// specOf makes specs of a policy over the test world.
func specOf(policy string, limits policies.Limits) func(testing.TB, string) sandbox.Spec {
	return contract.SpecOf(policy, limits)
}

// A grader sees what the agent left: its upper is a lower layer of the grader's sandbox.
func TestUpperOfAStoppedSandboxIsALayerOfAnother(t *testing.T) {
	l := newLauncher(t)
	spec := specOf("default", policies.Limits{})(t, "agent")
	agent, err := l.Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = agent.Close() }()
	if got := shell(t, agent, "echo 42 >/answer && rm -r /home && id -u"); got != "0\n" {
		t.Fatalf("agent printed %q", got)
	}
	if err := agent.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	spec.Name = "grader"
	spec.Root.Lowers = append([]sandbox.Lower{{Dir: agent.Upper(), Shifted: true}}, spec.Root.Lowers...)
	grader, err := l.Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	got := shell(t, grader, "cat /answer; stat -c %u /answer; ls -d /home 2>/dev/null; echo 43 >/answer; echo $?")
	if got != "42\n0\n0\n" {
		t.Errorf("grader printed %q, want the agent's answer, owned by 0, no /home, and to be able to write", got)
	}
	if err := grader.Close(); err != nil {
		t.Error(err)
	}
	left, err := os.ReadFile(fmt.Sprintf("/proc/self/fd/%d/answer", agent.Upper().Fd()))
	if err != nil || string(left) != "42\n" {
		t.Errorf("agent's upper has %q, %v after the grader wrote, want 42", left, err)
	}
}

// A kept end state is made again as a directory of the host.
func TestDirectoryOfTheHostIsALayerByDescriptor(t *testing.T) {
	l := newLauncher(t)
	spec := specOf("default", policies.Limits{})(t, "restored")
	restored := t.TempDir()
	if err := os.WriteFile(filepath.Join(restored, "answer"), []byte("42\n"), 0o644); err != nil { //nolint:gosec // the sandbox reads it
		t.Fatal(err)
	}
	dir, err := os.Open(restored)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = dir.Close() }()
	spec.Root.Lowers = append([]sandbox.Lower{{Dir: dir, Shifted: true}}, spec.Root.Lowers...)
	sb, err := l.Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	if got := shell(t, sb, "cat /answer"); got != "42\n" {
		t.Errorf("cat printed %q, want 42", got)
	}
	if err := sb.Close(); err != nil {
		t.Error(err)
	}
}

// What a policy hides shows nothing, a directory too, on every kernel and with or without a
// part of the view made ahead.
func TestMaskedDirectoriesAreEmpty(t *testing.T) {
	l := newLauncher(t)
	for _, name := range []string{"masked-1", "masked-ahead"} {
		spec := specOf("default", policies.Limits{})(t, name)
		spec.OCI.Linux.MaskedPaths = append(spec.OCI.Linux.MaskedPaths, "/proc/tty", "/proc/filesystems", "/sys/devices", "/nowhere")
		if name == "masked-ahead" {
			if err := l.Prepare(t.Context(), spec.Name, spec.IDs); err != nil {
				t.Fatal(err)
			}
		}
		sb, err := l.Start(t.Context(), spec)
		if err != nil {
			t.Fatal(err)
		}
		const look = "ls /proc/tty /sys/devices | grep -v :; cat /proc/filesystems; cat /proc/uptime >/dev/null && echo proc; echo x 2>/dev/null >/proc/sys/kernel/hostname || echo read-only"
		if got := shell(t, sb, look); strings.TrimSpace(got) != "proc\nread-only" {
			t.Errorf("%s: %q printed %q, want nothing of the hidden", name, look, got)
		}
		if err := sb.Close(); err != nil {
			t.Error(err)
		}
	}
}

// shell runs a script and returns its output.
func shell(tb testing.TB, sb runner.Sandbox, script string) string {
	tb.Helper()
	var out bytes.Buffer
	p, err := sb.Start(tb.Context(), sandbox.Command{
		Argv: []string{"/bin/sh", "-c", script}, Env: []string{"PATH=/bin"}, Dir: "/", Stdout: &out,
	})
	if err != nil {
		tb.Fatal(err)
	}
	p.Wait()
	return out.String()
}
