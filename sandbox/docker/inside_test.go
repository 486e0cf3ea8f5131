package docker_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/paddock-run/paddock/internal/engine"
	"github.com/paddock-run/paddock/internal/need"
	"github.com/paddock-run/paddock/policies"
	"github.com/paddock-run/paddock/runner"
	"github.com/paddock-run/paddock/runner/contract"
	"github.com/paddock-run/paddock/sandbox"
	"github.com/paddock-run/paddock/sandbox/docker"
)

// TestInside holds what is peculiar to containers of an engine; it shares one, which takes
// seconds to start.
func TestInside(t *testing.T) {
	host := need.StartEngine(t)
	l := newLauncher(t, host)
	t.Run("ProgramsHaveNoPower", func(t *testing.T) { noPower(t, l) })
	t.Run("UsersOfTwoSandboxesAreApart", func(t *testing.T) { usersApart(t, l) })
	t.Run("ReadOnlyRoot", func(t *testing.T) { readOnlyRoot(t, l) })
	t.Run("ForkIsAllThatIsSeen", func(t *testing.T) { forkAlone(t, l) })
	t.Run("AnEndedContainerIsGone", func(t *testing.T) { gone(t, l, host) })
	t.Run("DeathOfTheLauncher", func(t *testing.T) { launcherDies(t, host) })
	t.Run("ContainersOfADeadDaemon", func(t *testing.T) { deadDaemon(t, host) })
}

func start(t *testing.T, l launcher, policy, name string) (runner.Sandbox, sandbox.Spec) {
	t.Helper()
	spec := contract.SpecOf(policy, policies.Limits{})(t, name)
	sb, err := l.Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sb.Close(); err != nil {
			t.Error(err)
		}
	})
	return sb, spec
}

func shell(t *testing.T, sb runner.Sandbox, user sandbox.User, script string) string {
	t.Helper()
	var out bytes.Buffer
	p, err := sb.Start(t.Context(), sandbox.Command{
		Argv: []string{"/bin/sh", "-c", "exec 2>&1; " + script}, Env: []string{"PATH=/bin"}, Dir: "/", User: user, Stdout: &out,
	})
	if err != nil {
		t.Fatal(err)
	}
	if e := p.Wait(); e.NotStarted != nil {
		return e.NotStarted.Kind
	}
	return out.String()
}

func noPower(t *testing.T, l launcher) {
	t.Helper()
	sb, spec := start(t, l, "default", "power")
	for _, user := range []uint32{0, 1000} {
		id := spec.IDs.HostID + user
		got := shell(t, sb, sandbox.User{UID: user, GID: user}, "id -u; id -g; grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status | tr -d '\\t'")
		want := fmt.Sprintf("%d\n%d\n", id, id)
		for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
			want += set + ":0000000000000000\n"
		}
		if want += "NoNewPrivs:1\nSeccomp:2\n"; got != want {
			t.Errorf("user %d sees %q, want %q", user, got, want)
		}
	}
	if got := shell(t, sb, sandbox.User{}, "kill -9 1; mount -t tmpfs x /tmp; mknod /tmp/d b 8 0; chown 5 /etc/passwd; chroot / true; echo done"); strings.Count(got, "\n") < 5 || !strings.HasSuffix(got, "done\n") {
		t.Errorf("what only root may do: %q, want a refusal of each", got)
	}
	// User 0 is not root, but the world's files are its own.
	if got := shell(t, sb, sandbox.User{}, "echo x >>/etc/passwd && tail -n 1 /etc/passwd"); got != "x\n" {
		t.Errorf("user 0 on a file of the world: %q", got)
	}
}

func usersApart(t *testing.T, l launcher) {
	t.Helper()
	sb, _ := start(t, l, "default", "ids")
	for _, user := range []sandbox.User{{UID: 65536}, {GID: 1 << 20}, {Groups: []uint32{0, 70000}}} {
		if got := shell(t, sb, user, "id"); got != "start_failed" {
			t.Errorf("user %+v, who is of another sandbox's range: %q, want it refused", user, got)
		}
	}
}

func readOnlyRoot(t *testing.T, l launcher) {
	t.Helper()
	sb, _ := start(t, l, "strict", "strict")
	user := sandbox.User{UID: 1000, GID: 1000}
	got := shell(t, sb, user, "echo x >/tmp/x && cat /tmp/x; echo x >/home/x; touch /etc/hosts")
	if !strings.HasPrefix(got, "x\n") || strings.Count(got, "Read-only file system") != 2 {
		t.Errorf("strict: %q, want /tmp alone to be writable", got)
	}
}

func forkAlone(t *testing.T, l launcher) {
	t.Helper()
	sb, _ := start(t, l, "default", "view")
	if got := shell(t, sb, sandbox.User{}, "ls -a /; ls /dev; cat /proc/self/mountinfo"); strings.Contains(got, "fork") ||
		strings.Contains(got, "paddock") || strings.Contains(got, "dockerenv") || strings.Contains(got, "docker/") {
		t.Errorf("the sandbox sees more than its fork:\n%s", got)
	}
	if got := shell(t, sb, sandbox.User{}, "cat /etc/hostname; hostname; nproc; ls /sys/devices/system/cpu | grep -c '^cpu'; ls /sys"); got != "paddock\npaddock\n1\n1\ndevices\n" {
		t.Errorf("the sandbox says of its host: %q", got)
	}
	if got := shell(t, sb, sandbox.User{}, "ls /proc/1/fd; ls /proc/1/root/; cat /proc/1/environ"); strings.Count(got, "Permission denied") != 3 {
		t.Errorf("PID 1 is open: %q", got)
	}
}

func containers(t *testing.T, host, label string) []string {
	t.Helper()
	e, err := engine.Dial(t.Context(), host)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = e.Close() }()
	ids, err := e.Labelled(t.Context(), "run.paddock.parent", label)
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

func gone(t *testing.T, l launcher, host string) {
	t.Helper()
	sb, _ := start(t, l, "default", "ends")
	if n := len(containers(t, host, l.parent)); n == 0 {
		t.Fatal("no container while a sandbox runs: the test looks in the wrong place")
	}
	if err := sb.Close(); err != nil {
		t.Fatal(err)
	}
	if left := containers(t, host, l.parent); len(left) > 0 {
		t.Errorf("containers after Close: %v", left)
	}
	if left := cgroupsOf(t, l.parent+"/ends"); len(left) > 0 {
		t.Errorf("cgroups after Close: %v", left)
	}
}

// cgroupsOf are the directories below a path of the cgroup hierarchies.
func cgroupsOf(t *testing.T, path string) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir("/sys/fs/cgroup", func(p string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case d.IsDir() && strings.Contains(p+"/", "/"+path+"/"):
			all = append(all, p)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func launcherDies(t *testing.T, host string) {
	t.Helper()
	l := newLauncher(t, host)
	sb, _ := start(t, l, "default", "orphan")
	if err := unix.Kill(l.ProcessID(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-sb.Done()
	if got := sb.Fate().Kind; got != sandbox.LauncherDied {
		t.Errorf("fate %s, want %s", got, sandbox.LauncherDied)
	}
	again, _ := start(t, l, "default", "orphan-2")
	if got := shell(t, again, sandbox.User{}, "echo alive"); got != "alive\n" {
		t.Errorf("the next sandbox says %q", got)
	}
}

func deadDaemon(t *testing.T, host string) {
	t.Helper()
	dir, parent := need.Tmpfs(t), "paddock-docker-dead"
	first, err := docker.New(t.Context(), docker.Config{Dir: dir, CgroupParent: parent, Host: host})
	if err != nil {
		t.Fatal(err)
	}
	sb, err := first.Start(t.Context(), contract.SpecOf("default", policies.Limits{})(t, "left"))
	if err != nil {
		t.Fatal(err)
	}
	// The next daemon does not know of the first, which is as good as dead to it.
	second, err := docker.New(t.Context(), docker.Config{Dir: need.Tmpfs(t), CgroupParent: parent, Host: host})
	if err != nil {
		t.Fatal(err)
	}
	if left := containers(t, host, parent); len(left) > 0 {
		t.Errorf("containers of the dead daemon: %v", left)
	}
	<-sb.Done()
	if err := errors.Join(second.Close(), sb.Close(), first.Close()); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "sockets")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory of sockets is left: %v", err)
	}
}

func TestEnginesThatCannotHoldASandboxAreRefused(t *testing.T) {
	t.Parallel()
	for host, says := range map[string]string{"unix:///no/such/socket": "no/such/socket", "tcp://127.0.0.1:1": "127.0.0.1:1"} {
		_, err := docker.New(t.Context(), docker.Config{Dir: t.TempDir(), CgroupParent: "paddock-docker-none", Host: host})
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("New at %s = %v, want an error that names it", host, err)
		}
	}
}
