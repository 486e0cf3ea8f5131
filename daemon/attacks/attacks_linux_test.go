package attacks

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/paddock-run/paddock/overlay"
	"github.com/paddock-run/paddock/policies"
	"github.com/paddock-run/paddock/sandbox"
)

// attack is one case.
type attack struct {
	// id is the case's in docs/threat-model.md; a letter tells apart several of one id.
	id string
	// does says what the hostile code does.
	does string
	// run is a script of busybox that does it; FLAG is the path of a file on the host.
	run string
	// want is its whole output; strict, when set, is that under policies without a root, and
	// only those under policies by name.
	want, strict string
	only         map[string]string
	// timeout ends the call.
	timeout time.Duration
	// typed looks at how the call ended; without it the call has to end with code 0.
	typed func(c call) bool
	// then acts on the live sandbox from outside, as the daemon does.
	then func(t *testing.T, b *box, c call)
	// captured looks at what the case left in the tree.
	captured func(t *testing.T, changes map[string]overlay.Change)
	// policies are those under which it can be tried; none is all.
	policies []string
}

// small limits make the bombs quick.
var small = policies.Limits{CPUs: 1, MemoryBytes: 64 << 20, DiskBytes: 16 << 20, Inodes: 3000, Pids: 64}

func TestAttacks(t *testing.T) {
	h := newHost(t)
	var cases []attack
	for _, group := range [][]attack{processes, kernel, files, network, proxied} {
		cases = append(cases, group...)
	}
	for _, policy := range h.policies(t) {
		t.Run(policy, func(t *testing.T) {
			for i, a := range cases {
				if a.policies != nil && !slices.Contains(a.policies, policy) {
					continue
				}
				t.Run(a.id, func(t *testing.T) {
					h.attack(t, a, policy, "x-"+policy+"-"+string(rune('a'+i/26))+string(rune('a'+i%26)))
					h.master(t)
				})
			}
		})
	}
	t.Run("X-A11", func(t *testing.T) {
		h.removeWhileStarting(t)
		h.master(t)
	})
	t.Run("X-K18", func(t *testing.T) {
		h.malicious(t)
		h.master(t)
	})
	t.Run("X-K11", func(t *testing.T) {
		h.magicSysRq(t)
		h.master(t)
	})
	t.Run("X-F10", func(t *testing.T) {
		h.archives(t)
		h.master(t)
	})
	t.Run("X-F25", func(t *testing.T) {
		h.leastDisk(t)
		h.master(t)
	})
	t.Run("X-P21", func(t *testing.T) {
		h.initDies(t)
		h.master(t)
	})
	t.Run("X-F24", func(t *testing.T) {
		h.oneWorldForMany(t)
		h.master(t)
	})
}

// endsByAgent holds that a case which ended its sandbox is the agent's doing to whoever asks,
// and that what is left can still be captured.
func (h *host) endsByAgent(t *testing.T, a attack, b *box) {
	t.Helper()
	select {
	case <-b.Done():
	case <-time.After(20 * time.Second):
		t.Errorf("%s: the sandbox lives", a.does)
		return
	}
	if f := b.Fate(); f.Kind != sandbox.GuestDied && f.Kind != sandbox.GuestOOM {
		t.Errorf("%s: fate %+v, want the agent's doing", a.does, f)
	}
	if _, err := b.fork.Capture(t.Context(), overlay.CaptureInput{Upper: b.Upper(), HostID: b.ids.HostID}); err != nil {
		t.Errorf("%s: capture: %v", a.does, err)
	}
}

// next is the call after a case. What the kernel killed for memory may still be giving it back
// when its call has ended, by the death of another process, so that the next one meets the
// limit, too.
func (b *box) next(t *testing.T, last call) call {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for {
		n := b.run(t, cmdOf("/bin/echo", "on", b))
		if !last.OOM || !n.OOM || ctx.Err() != nil {
			return n
		}
	}
}

// ended says whether the sandbox is gone, or soon is.
func (b *box) ended() bool {
	select {
	case <-b.Done():
		return true
	case <-time.After(time.Second):
		return false
	}
}

// policies are those that the launcher can hold: one that wants a runtime is attacked under
// that.
func (h *host) policies(t *testing.T) []string {
	t.Helper()
	var names []string
	for _, name := range h.set.Names() {
		p, err := h.set.Get(name)
		if err != nil {
			t.Fatal(err)
		}
		_, networked := p.Egress()
		if (p.Runtime() == "" || p.Runtime() == under()) && (!networked || h.launcher.Info().Listen) {
			names = append(names, name)
		}
	}
	return names
}

func (h *host) attack(t *testing.T, a attack, policy, name string) {
	t.Helper()
	b := h.start(t, name, policy, small)
	defer b.close(t)
	cmd := command(a.run)
	cmd.User, cmd.Timeout = b.user, a.timeout
	defer h.beside(t)()
	c := b.run(t, cmd)
	d := h.differs(a.id)
	if d.ends || d.mayEnd && b.ended() {
		h.endsByAgent(t, a, b)
		return
	}
	if d.typed != nil {
		a.typed = d.typed
	}
	want := a.wanted(b)
	if got := strings.TrimSpace(c.out); got != strings.TrimSpace(want) && want != "*" {
		t.Errorf("%s: printed\n%s\nwant\n%s\n(stderr %.500q, %+v)", a.does, got, strings.TrimSpace(want), c.err, c.Exit)
	}
	if a.typed == nil {
		a.typed = func(c call) bool { return c.Code != nil && *c.Code == 0 }
	}
	if !a.typed(c) || c.HostOOM {
		t.Errorf("%s: ended %+v, stderr %.500q", a.does, c.Exit, c.err)
	}
	h.noSecrets(t, c)
	if a.then != nil {
		a.then(t, b, c)
	}
	// The sandbox is still good for the next call, whatever the last one did.
	if n := b.next(t, c); n.out != "on\n" {
		t.Errorf("%s: the next call: %+v %q %q", a.does, n.Exit, n.out, n.err)
	}
	changes := map[string]overlay.Change{}
	for _, ch := range b.capture(t).Changes {
		changes[ch.Path] = ch
	}
	if a.captured != nil {
		a.captured(t, changes)
	}
}

// beside calls the bystander again and again until the returned function is called, and holds
// that each of its calls is right, however hostile its neighbour. It does so ever more seldom,
// for a sandbox that computes yields to it, and would not come to an end on a busy machine.
func (h *host) beside(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		wait := patient(50 * time.Millisecond)
		for n := 1; ; n++ {
			h.right(context.WithoutCancel(ctx), t, n)
			select {
			case <-ctx.Done():
				return
			case <-time.After(wait):
				wait *= 2
			}
		}
	})
	return func() {
		cancel()
		wg.Wait()
	}
}

// right is one of the bystander's calls.
func (h *host) right(ctx context.Context, t *testing.T, n int) {
	t.Helper()
	var out bytes.Buffer
	p, err := h.bystander.Start(ctx, sandbox.Command{
		Argv: []string{"/bin/sh", "-c", "read n; echo $((n*n)) >/tmp/n; cat /tmp/n; rm /tmp/n"}, Dir: "/", Env: []string{"PATH=/bin"},
		Stdin: strings.NewReader(strconv.Itoa(n) + "\n"), Stdout: &out, Stderr: &out, Timeout: time.Minute,
	})
	if err != nil {
		t.Errorf("the bystander's call meanwhile: %v", err)
		return
	}
	if e := p.Wait(); e.Code == nil || *e.Code != 0 || out.String() != strconv.Itoa(n*n)+"\n" {
		t.Errorf("the bystander's call meanwhile: %+v %q, want %d", e, out.String(), n*n)
	}
}

// wanted is what the case prints under the box's policy.
func (a attack) wanted(b *box) string {
	if d := b.h.differs(a.id); d.want != "" {
		return d.want
	} else if d.root != "" && b.policy.CheckUser(0) == nil {
		return d.root
	}
	if w, ok := a.only[b.policy.Name()]; ok {
		return w
	}
	if a.strict != "" && b.policy.CheckUser(0) != nil {
		return a.strict
	}
	return a.want
}

// noSecrets holds that a sandbox learns nothing of the host.
func (h *host) noSecrets(t *testing.T, c call) {
	t.Helper()
	if strings.Contains(c.out+c.err, h.canary) {
		t.Error("the output holds the host's flag")
	}
}

// removeWhileStarting removes a world while sandboxes start on it: either the removal is
// refused or the world is not found, and never does a sandbox see half of it.
func (h *host) removeWhileStarting(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "whole"), []byte("whole"), 0o644); err != nil { //nolint:gosec // the sandbox reads it
		t.Fatal(err)
	}
	first := h.world
	defer func() { h.world = first }()
	for i := range 20 {
		built, err := h.store.Build(t.Context(), overlay.Recipe{Base: first, Dir: dir, Into: "/more", Version: strconv.Itoa(i)}, nil)
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := h.store.Remove(t.Context(), built.World.ID); err != nil && !errors.Is(err, overlay.ErrInUse) {
				t.Errorf("Remove: %v", err)
			}
		})
		fork, err := h.store.Fork(t.Context(), built.World.ID)
		if _, gone := errors.AsType[*overlay.NotFoundError](err); err != nil && !gone {
			t.Errorf("Fork: %v", err)
		}
		if err == nil {
			h.world = built.World.ID
			b := h.start(t, "x-a11-"+strconv.Itoa(i), "default", small)
			if c := b.sh(t, "cat /more/whole; attack ids"); c.out != fmt.Sprintf("whole%[1]d %[1]d %[1]d %[1]d\n", b.seen(0)) {
				t.Errorf("the world is not whole: %q %q", c.out, c.err)
			}
			b.close(t)
			fork.Release()
		}
		wg.Wait()
	}
}

// malicious builds worlds whose places of the kernel lead elsewhere (CVE-2023-27561,
// CVE-2025-31133, CVE-2026-41579): they are refused as worlds.
func (h *host) malicious(t *testing.T) {
	t.Helper()
	for _, place := range []string{"dev", "proc", "sys", "etc"} {
		dir := t.TempDir()
		if err := os.Symlink(filepath.Dir(h.flag), filepath.Join(dir, place)); err != nil {
			t.Fatal(err)
		}
		_, err := h.store.Build(t.Context(), overlay.Recipe{Dir: dir}, nil)
		if refused, ok := errors.AsType[*overlay.RecipeError](err); !ok || refused.Kind != "world_invalid" {
			t.Errorf("a world whose /%s is a link: %v, want world_invalid", place, err)
		}
	}
	h.hidden(t)
}

// hidden builds a world with links below /dev, /proc and /sys that lead to the host: whatever
// is there is the launcher's and the kernel's own.
func (h *host) hidden(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"dev/null", "dev/shm", "dev/pts", "proc/self", "proc/sys", "sys/devices", "etc/hosts", "etc/hostname"} {
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755); err != nil { //nolint:gosec // the sandbox reads it
			t.Fatal(err)
		}
		if err := os.Symlink(h.flag, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	built, err := h.store.Build(t.Context(), overlay.Recipe{Base: h.world, Dir: dir}, nil)
	if err != nil {
		t.Fatal(err)
	}
	first := h.world
	defer func() { h.world = first }()
	h.world = built.World.ID
	for _, policy := range h.policies(t) {
		b := h.start(t, "x-hidden-"+policy, policy, small)
		c := b.sh(t, "stat -c %t:%T /dev/null; stat -c %F /dev/shm /dev/pts /proc/self/ /proc/sys /sys/devices; cat /etc/hosts /etc/hostname >/dev/null; echo x >/dev/null")
		if want := "1:3\n" + strings.Repeat("directory\n", 5); c.out != want {
			t.Errorf("%s: what a world hides: %q %q, want %q", policy, c.out, c.err, want)
		}
		h.noSecrets(t, c)
		b.close(t)
	}
}

// archives builds worlds of tars that lead outside (X-F10) or carry attributes that steer
// overlayfs (X-F09): refused, or contained, and never a file of the host.
func (h *host) archives(t *testing.T) {
	t.Helper()
	dir := filepath.Dir(h.flag)
	for name, entries := range map[string][]tar.Header{
		"climbs":           {{Name: "../../../.." + dir + "/new", Typeflag: tar.TypeReg}},
		"absolute":         {{Name: dir + "/new", Typeflag: tar.TypeReg}},
		"through a link":   {{Name: "d", Typeflag: tar.TypeSymlink, Linkname: dir}, {Name: "d/new", Typeflag: tar.TypeReg}},
		"hard link":        {{Name: "flag", Typeflag: tar.TypeLink, Linkname: h.flag}},
		"hard link climbs": {{Name: "flag", Typeflag: tar.TypeLink, Linkname: "../../../.." + h.flag}},
		"device":           {{Name: "disk", Typeflag: tar.TypeBlock, Devmajor: 8}},
		"twice":            {{Name: "a", Typeflag: tar.TypeSymlink, Linkname: h.flag}, {Name: "a", Typeflag: tar.TypeReg}},
		"steers overlayfs": {{Name: "a", Typeflag: tar.TypeReg, PAXRecords: map[string]string{"SCHILY.xattr.trusted.overlay.redirect": dir, "SCHILY.xattr.trusted.overlay.metacopy": "y"}}},
	} {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, e := range entries {
			e.Mode = 0o644
			if err := w.WriteHeader(&e); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "tar")
		if err := os.WriteFile(file, b.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		built, err := h.store.Build(t.Context(), overlay.Recipe{Base: h.world, Tar: file}, nil)
		if _, typed := errors.AsType[*overlay.RecipeError](err); err != nil && !typed {
			t.Errorf("%s: %v is not typed", name, err)
		}
		if err == nil {
			h.reads(t, name, built.World.ID)
		}
	}
}

// reads has a sandbox on a world read all that it can.
func (h *host) reads(t *testing.T, name, world string) {
	t.Helper()
	first := h.world
	defer func() { h.world = first }()
	h.world = world
	b := h.start(t, "x-f10-"+strings.ReplaceAll(name, " ", "-"), "default", small)
	defer b.close(t)
	c := b.sh(t, "cat /flag /a /d/* /disk $(find / -xdev -name new -o -xdev -name flag) 2>/dev/null; :")
	h.noSecrets(t, c)
}

// oneWorldForMany has a thousand sandboxes one after another change the world they share, and
// holds that after this and all else every byte of its layers is what was sealed.
func (h *host) oneWorldForMany(t *testing.T) {
	t.Helper()
	names, many := h.policies(t), 1000
	if isUML || under() != "native" {
		many = 50 // starts take long
	}
	const want = "map EACCES\nprotect EACCES\nwrite EBADF\npunch EBADF\ncopy EBADF\n"
	for i := range many {
		b := h.start(t, "x-f24-"+strconv.Itoa(i), names[i%len(names)], small)
		if c := b.sh(t, "attack layers"); c.out != want {
			t.Errorf("sandbox %d changes a layer: %q %q, want %q", i, c.out, c.err, want)
		}
		b.close(t)
	}
	if err := h.store.Verify(t.Context(), h.world, nil); err != nil {
		t.Errorf("the world: %v", err)
	}
}

// leastDisk starts a sandbox with the least disk there can be: overlayfs turns read-only
// without a word where its upper has no room for its own directories.
func (h *host) leastDisk(t *testing.T) {
	t.Helper()
	b := h.start(t, "x-least", "default", policies.Limits{DiskBytes: 64 << 10, Inodes: 16})
	defer b.close(t)
	if c := b.sh(t, "echo x >/tmp/x && cat /tmp/x"); c.out != "x\n" {
		t.Errorf("the first write into the smallest disk: %q %q", c.out, c.err)
	}
	c := b.sh(t, "dd if=/dev/zero of=/tmp/y bs=4k count=100 2>&1; i=0; while [ $i -lt 40 ]; do : >/tmp/f$i || break; i=$((i+1)); done")
	if !strings.Contains(c.out+c.err, "No space left") || strings.Contains(c.out+c.err, "Read-only") {
		t.Errorf("beyond it: %q %q, want no space left", c.out, c.err)
	}
}

// initDies ends PID 1 from outside, as its own crash would: calls in flight end, and what
// is told is what the kernel saw.
func (h *host) initDies(t *testing.T) {
	t.Helper()
	b := h.start(t, "x-init", "default", small)
	defer b.close(t)
	var out bytes.Buffer
	p, err := b.Start(t.Context(), sandbox.Command{Argv: []string{"/bin/sh", "-c", "echo on; sleep 1000"}, Dir: "/", Env: []string{"PATH=/bin"}, Stdout: &out, Stderr: &out, Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Break(); err != nil {
		t.Fatal(err)
	}
	if e := p.Wait(); e.Code != nil || e.TimedOut {
		t.Errorf("the call in flight ended as %+v", e)
	}
	<-b.Done()
	if f := b.Fate(); f.Kind != sandbox.Killed || f.Evidence == "" {
		t.Errorf("fate %+v, want killed_outside with its evidence", f)
	}
}
