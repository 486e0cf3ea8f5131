package attacks

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paddock-run/paddock/internal/egress"
	"github.com/paddock-run/paddock/internal/need"
	"github.com/paddock-run/paddock/overlay"
	"github.com/paddock-run/paddock/policies"
	"github.com/paddock-run/paddock/sandbox"
	"github.com/paddock-run/paddock/sandbox/native"
)

// probes is where the probe of the launcher's own tests is, with what it finds under each
// policy.
const probes = "../../sandbox/native/testdata/"

// host is what all cases share: the launcher, the store, and what an attacker is after.
type host struct {
	launcher launcher
	cgroup   string
	store    *overlay.Store
	world    string
	set      *policies.Set
	probe    string // the program, as it is on the host
	ids      *sandbox.IDPool

	// flag is a file that anybody may read and nobody does; watch hears of every open.
	flag, canary string
	watch        int
	// state is the digest of what must not change.
	state string
	// private are words of the host that no sandbox may learn.
	private []string

	bystander *box
	mounts    int
	files     int
}

func newHost(t *testing.T) *host {
	t.Helper()
	need.Overlay(t)
	busybox := need.Busybox(t)
	fakeNetwork(t, busybox)
	sink(t)
	h := &host{cgroup: fmt.Sprintf("paddock-attacks-%d", os.Getpid()), canary: "canary-" + rand.Text()}
	h.plant(t)
	var err error
	if h.set, err = policies.Load(); err != nil {
		t.Fatal(err)
	}
	if h.ids, err = sandbox.HostIDPool(16); err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	if h.store, err = overlay.Open(root, overlay.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.store.Close(); err != nil {
			t.Errorf("close the store: %v", err)
		}
	})
	h.buildWorld(t)
	dir := need.Tmpfs(t)
	h.launcher = chosenLauncher(t, dir, h.cgroup)
	t.Cleanup(func() {
		if err := h.launcher.Close(); err != nil {
			t.Errorf("close the launcher: %v", err)
		}
	})
	name, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	h.private = []string{root, dir, h.cgroup, "=" + name + "\n", filepath.Dir(h.flag)}
	h.bystander = h.start(t, "bystander", "default", policies.Limits{})
	// A sandbox keeps something of its first call for the next.
	h.bystander.sh(t, "echo")
	// The first sandbox may leave the launcher with something that it keeps.
	h.start(t, "warm-up", "default", policies.Limits{}).close(t)
	h.mounts, h.files = h.countMounts(t), countFiles(t)
	return h
}

// plant puts the flag and the canaries on the host.
func (h *host) plant(t *testing.T) {
	t.Helper()
	dir := need.Tmpfs(t)
	for d := dir; d != "/" && d != "/dev/shm" && d != "/tmp"; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	h.flag = filepath.Join(dir, "flag")
	for _, name := range []string{"flag", "canary", "other"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(h.canary), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(dir, name), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	h.state = h.digest(t)
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if _, err := unix.InotifyAddWatch(fd, h.flag, unix.IN_ALL_EVENTS); err != nil {
		t.Fatal(err)
	}
	h.watch = fd
}

// digest is of all of the host that an attacker could have changed: the canaries with
// their attributes, the running binary, and what the kernel keeps for everybody.
func (h *host) digest(t *testing.T) string {
	t.Helper()
	sum := sha256.New()
	dir := filepath.Dir(h.flag)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		fmt.Fprintln(sum, path, st.Mode, st.Uid, st.Gid, st.Size, st.Mtim, st.Ctim, st.Nlink)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{
		filepath.Join(dir, "canary"), "/proc/self/exe", "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/hostname",
		"/proc/sysvipc/shm", "/proc/sysvipc/sem", "/proc/sysvipc/msg", "/proc/self/mountinfo", "/etc/passwd", "/etc/hosts",
	} {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(sum, "%s %x\n", name, sha256.Sum256(b))
	}
	return fmt.Sprintf("%x", sum.Sum(nil))
}

// buildWorld makes the world of all cases: busybox, the attacks, and what a malicious
// image brings along.
func (h *host) buildWorld(t *testing.T) {
	t.Helper()
	base, err := h.store.Build(t.Context(), overlay.Recipe{Busybox: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	attack := filepath.Join(dir, "attack")
	h.probe = filepath.Join(dir, "probe")
	cc := need.Command(t, "gcc", "gcc")
	for program, source := range map[string]string{attack: "testdata/attack.c", h.probe: probes + "probe.c"} {
		if out, err := exec.CommandContext(t.Context(), cc, "-static", "-O1", "-w", "-o", program, source).CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v\n%s", source, err, out)
		}
	}
	program, err := os.ReadFile(attack)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{"suid": program, "selfexe": []byte("#!/proc/self/exe\n")} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o755); err != nil { //nolint:gosec // programs
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(dir, "suid"), 0o755|os.ModeSetuid|os.ModeSetgid); err != nil {
		t.Fatal(err)
	}
	built, err := h.store.Build(t.Context(), overlay.Recipe{Base: base.World.ID, Dir: dir, Into: "/bin"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	h.world = built.World.ID
	// The positive control: outside a sandbox every one of the targets answers.
	out, err := exec.CommandContext(t.Context(), attack, append([]string{"network"}, targets()...)...).CombinedOutput()
	if want := answers("ok"); err != nil || string(out) != want {
		t.Fatalf("from the host: %v\n%swant\n%s", err, out, want)
	}
	out, err = exec.CommandContext(t.Context(), attack, "abstract", abstract).CombinedOutput()
	if err != nil || string(out) != "abstract ok\n" {
		t.Fatalf("from the host: %v %s", err, out)
	}
}

// box is one sandbox.
type box struct {
	*native.Sandbox
	h      *host
	name   string
	policy *policies.Policy
	fork   *overlay.Fork
	ids    sandbox.IDMap
	user   sandbox.User
	done   bool
	// proxy and ledger are there under the policies that have a network.
	proxy  io.Closer
	ledger *egress.Ledger
}

func (h *host) start(t *testing.T, name, policy string, limits policies.Limits) *box {
	t.Helper()
	p, err := h.set.Get(policy)
	if err != nil {
		t.Fatal(err)
	}
	eff, _, err := p.Effective(limits, policies.Host{CPUs: 2, MemoryBytes: 8 << 30})
	if err != nil {
		t.Fatal(err)
	}
	oci, err := p.Spec(eff, "paddock", "/root")
	if err != nil {
		t.Fatal(err)
	}
	b := &box{h: h, name: name, policy: p}
	b.user.UID, b.user.GID = p.User()
	if b.ids, err = h.ids.Acquire(); err != nil {
		t.Fatal(err)
	}
	if b.fork, err = h.store.Fork(t.Context(), h.world); err != nil {
		t.Fatal(err)
	}
	spec := sandbox.Spec{
		Name: name, IDs: b.ids, OCI: oci,
		Root: sandbox.Root{Upper: sandbox.Upper{Bytes: eff.DiskBytes, Inodes: eff.Inodes}},
	}
	for _, l := range b.fork.Lowers() {
		spec.Root.Lowers = append(spec.Root.Lowers, sandbox.Lower{Path: l})
	}
	way, networked := p.Egress()
	if networked {
		spec.Listen = []uint16{way.Port}
	}
	if b.Sandbox, err = h.launcher.Start(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	if networked {
		b.serveProxy(t, way)
	}
	t.Cleanup(func() { b.close(t) })
	return b
}

func (b *box) close(t *testing.T) {
	t.Helper()
	if b.done {
		return
	}
	b.done = true
	if b.proxy != nil {
		if err := b.proxy.Close(); err != nil {
			t.Errorf("close the proxy: %v", err)
		}
	}
	if err := b.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	b.fork.Release()
	b.h.ids.Release(b.ids)
}

// call is one command and how it ended.
type call struct {
	sandbox.Exit
	out, err string
}

func (b *box) run(t *testing.T, cmd sandbox.Command) call {
	t.Helper()
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	cmd.Env = []string{"PATH=/bin", "FLAG=" + b.h.flag}
	if cmd.Dir == "" {
		cmd.Dir = "/"
	}
	if cmd.Timeout == 0 {
		cmd.Timeout = time.Minute // for a machine that is busy; no case lasts that long
	}
	p, err := b.Start(t.Context(), cmd)
	if err != nil {
		t.Fatalf("start %q: %v", cmd.Argv, err)
	}
	e := p.Wait()
	return call{Exit: e, out: out.String(), err: errOut.String()}
}

// sh runs a script as the policy's user.
func (b *box) sh(t *testing.T, script string) call {
	t.Helper()
	return b.run(t, sandbox.Command{Argv: []string{"/bin/sh", "-c", script}, User: b.user})
}

// master are the assertions after every case, when its sandbox is closed.
func (h *host) master(t *testing.T) {
	t.Helper()
	buf := make([]byte, 4096)
	if n, err := unix.Read(h.watch, buf); n > 0 || err != unix.EAGAIN {
		t.Errorf("the flag on the host was touched: %d bytes of events, %v", n, err)
	}
	if h.digest(t) != h.state {
		t.Error("the host is not as it was")
		h.state = h.digest(t)
	}
	if c := h.bystander.sh(t, "echo 6 7 | { read a b; echo $((a*b)); }; ls /tmp"); c.out != "42\n" || c.Code == nil || *c.Code != 0 {
		t.Errorf("the bystander's call: %+v out %q err %q", c.Exit, c.out, c.err)
	}
	// What the kernel clears away after the answer is gone soon, however busy the machine.
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		left := h.left(t)
		if left == "" {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Errorf("left behind: %s", left)
			return
		}
	}
}

// left names what is there beyond the bystander.
func (h *host) left(t *testing.T) string {
	t.Helper()
	var left []string
	roots, err := filepath.Glob("/sys/fs/cgroup/*/" + h.cgroup)
	if err != nil {
		t.Fatal(err)
	}
	for _, root := range append(roots, "/sys/fs/cgroup/"+h.cgroup) {
		entries, _ := os.ReadDir(root) // one of them is not there
		for _, e := range entries {
			if e.IsDir() && strings.HasPrefix(e.Name(), "x-") {
				left = append(left, filepath.Join(root, e.Name()))
			}
		}
	}
	if n := h.countMounts(t); n > h.mounts {
		left = append(left, fmt.Sprintf("%d mounts", n-h.mounts))
	}
	if n := countFiles(t); n > h.files {
		left = append(left, fmt.Sprintf("%d descriptors", n-h.files))
	}
	return strings.Join(left, ", ")
}

func (h *host) countMounts(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", h.launcher.ProcessID()))
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Count(b, []byte("\n"))
}

func countFiles(t *testing.T) int {
	t.Helper()
	n, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(n)
}

// capture stops the sandbox and reads back what it changed, as for a record.
func (b *box) capture(t *testing.T) overlay.Capture {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := b.Stop(ctx); err != nil {
		t.Fatalf("Stop: %v", err)
	}
	if f := b.Fate(); f.Kind != sandbox.Stopped {
		t.Errorf("fate %+v, want stopped", f)
	}
	pack := filepath.Join(t.TempDir(), "pack")
	c, err := b.fork.Capture(ctx, overlay.CaptureInput{Upper: b.Upper(), HostID: b.ids.HostID, Pack: pack})
	if err != nil {
		t.Fatalf("Capture: %v", err)
	}
	sum := fmt.Sprintf("%x", sha256.Sum256([]byte(b.h.canary)))
	for _, ch := range c.Changes {
		if ch.SHA256 == sum {
			t.Errorf("captured %q is the host's flag", ch.Path)
		}
	}
	if kept, err := os.ReadFile(pack); err == nil && bytes.Contains(kept, []byte(b.h.canary)) {
		t.Error("the capture holds the host's flag")
	}
	return c
}
