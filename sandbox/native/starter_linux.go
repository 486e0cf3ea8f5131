package native

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/paddock-run/paddock/guest"
	"github.com/paddock-run/paddock/internal/mount"
	"github.com/paddock-run/paddock/internal/undo"
	"github.com/paddock-run/paddock/sandbox"
)

// Starter is another way to a sandbox's PID 1 than this package's own clone: an OCI
// runtime, or a container engine. It works in the launcher process, on the very overlay,
// cgroups and guest that a native sandbox has, so that what comes after the start (calls,
// captures, limits) is the same for all.
type Starter interface {
	// Start makes a container whose PID 1 is the guest, waiting for its SETUP. After an
	// error nothing of it is left, but for what Remove removes.
	Start(c *Container) (Started, error)
	// Remove removes what is left of a container; one that is gone is no error.
	Remove(name string) error
}

// Container is what a Starter starts.
type Container struct {
	Name string
	IDs  sandbox.IDMap
	// OCI is the lock-down. The limits in it are kept by the launcher's own cgroups.
	OCI *specs.Spec
	// Dir is a directory of the container's own in the launcher's mount namespace, gone
	// with it; the root is mounted on Dir/rootfs.
	Dir string
	// Root is the same mount, by descriptor.
	Root *os.File
	// Parts are what is mounted into the root read-only, in this order: all are there.
	Parts []Part
	// Program is the guest's, a sealed memory file.
	Program *os.File
	// Dev is the path of a /dev like a native sandbox's.
	Dev string
	// Cgroup is where PID 1 belongs in each hierarchy, from its root on; Parent is the
	// directory above it for starters that add one of their own.
	Cgroup, Parent string
	// Unified is its directory in the cgroup2 hierarchy of a hybrid host, which runtimes do
	// not use but pausing does; nil elsewhere.
	Unified *os.File
	// Inside calls run in the cgroups of the sandbox's first call, on a thread that is there,
	// with the cgroup2 directory to start a process in: for a runtime that is the sandbox.
	Inside func(run func(cgroup *os.File) error) error
	// Socket is to be descriptor 3 of PID 1.
	Socket *os.File
}

// RootFS is where the root is mounted.
func (c *Container) RootFS() string { return filepath.Join(c.Dir, rootPlace) }

// rootPlace is the name of the root's place in a container's directory.
const rootPlace = "rootfs"

// Part is a file or directory of the launcher's that a container sees in place of its own.
type Part struct {
	// Source is a path in the launcher's mount namespace, Destination one in the container.
	Source, Destination string
	// Writable: it is a directory of the world that stays writable under a read-only root.
	Writable bool
}

// Started is a container that runs.
type Started struct {
	// PID is PID 1's in the launcher's pid namespace.
	PID int
	// Wait gives the wait status once PID 1 is gone; nil when it is the launcher's child.
	Wait func() uint32
}

// Env is what a Starter can ask of its launcher process.
type Env struct {
	l *launcher
}

// Stage is a directory in the launcher's mount namespace, gone with the process.
func (e Env) Stage() string { return e.l.stage }

// V2 says whether the host has cgroup v2 alone.
func (e Env) V2() bool { return e.l.tree.v2 }

// Hybrid says whether the host has a cgroup2 hierarchy beside those of v1.
func (e Env) Hybrid() bool { return !e.l.tree.v2 && e.l.tree.unified != "" }

// Run runs a program to its end, in a cgroup2 directory unless that is nil, with files as
// descriptors from 3 on, and says what it wrote to its streams when it failed. The launcher
// reaps all children itself, so a starter must not wait for any.
func (e Env) Run(cgroup *os.File, argv []string, files ...*os.File) error {
	out, err := memfd(nil)
	if err != nil {
		return err
	}
	defer func() { _ = out.Close() }()
	attr := &syscall.ProcAttr{
		Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/", "XDG_RUNTIME_DIR=" + e.l.stage},
		Dir: e.l.stage, Files: []uintptr{e.l.null.Fd(), out.Fd(), out.Fd()}, Sys: &syscall.SysProcAttr{Setsid: true},
	}
	for _, f := range files {
		attr.Files = append(attr.Files, f.Fd())
	}
	if cgroup != nil {
		attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, int(cgroup.Fd())
	}
	began := time.Now()
	pid, err := syscall.ForkExec(argv[0], argv, attr)
	if err != nil {
		return fmt.Errorf("%s: %w", argv[0], err)
	}
	if ws := e.l.await(pid, began); !ws.Exited() || ws.ExitStatus() != 0 {
		return fmt.Errorf("%s: status %#x: %s", argv[0], uint32(ws), tail(out))
	}
	return nil
}

// tail is the end of what a program wrote, on one line.
func tail(out *os.File) string {
	const enough = 2000
	info, err := out.Stat()
	if err != nil {
		return ""
	}
	text := make([]byte, min(info.Size(), enough))
	_, _ = out.ReadAt(text, info.Size()-int64(len(text)))
	return strings.Join(strings.Fields(string(text)), " ")
}

// await waits for a child that no request belongs to and that was started after since.
func (l *launcher) await(pid int, since time.Time) unix.WaitStatus {
	ended := make(chan uint32, 1)
	l.mu.Lock()
	status, over := l.earlyLocked(pid, since)
	if !over {
		l.awaited[pid] = ended
	}
	l.mu.Unlock()
	if !over {
		status = <-ended
	}
	return unix.WaitStatus(status)
}

// Main is the whole life of a launcher process whose sandboxes are started by what
// newStarter gives; arg is the value of the variable that Origin named. A package with a Starter calls
// it before anything else of the program runs, from a main goroutine that is locked to its
// thread.
func Main(arg string, newStarter func(config json.RawMessage, env Env) (Starter, error)) int {
	return launcherMain(arg, newStarter)
}

// buildContainer makes a sandbox by the launcher's starter. The user namespace of the
// layers' map is one that ends at once: a map is all that a mount keeps of it.
func (l *launcher) buildContainer(r *request, given []*os.File) (*building, error) {
	b := &building{l: l, r: r, given: given, began: time.Now()}
	err := undo.Run(
		undo.Step{Name: "cgroups", Do: func() error { return l.tree.create(r.Name) }},
		undo.Step{Name: "limits", Do: func() error { return setLimits(r.Limits) }},
		undo.Step{Name: "map ids", Do: b.mapIDs},
		undo.Step{Name: "upper", Do: b.makeUpper},
		undo.Step{Name: "lowers", Do: b.openLowers},
		undo.Step{Name: "overlay", Do: b.makeRoot},
		undo.Step{Name: "container", Do: b.startContainer, Undo: b.killContainer},
		undo.Step{Name: "cpus", Do: b.pin},
		undo.Step{Name: "set up guest", Do: b.greet},
		undo.Step{Name: "listen inside", Do: b.listen},
	)
	if err != nil {
		l.release(r.ID)
		err = errors.Join(err, l.starter.Remove(r.Name), l.tree.remove(r.Name))
		b.close()
		return nil, err
	}
	return b, nil
}

// mapIDs opens a user namespace with the sandbox's map.
func (b *building) mapIDs() error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "holder"), os.NewFile(uintptr(pair[1]), "holder")
	defer closeAll([]*os.File{ours, theirs})
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: int(b.r.IDs.HostID), Size: int(b.r.IDs.Size)}}
	// A guest that is told nothing waits for its socket, and ends with it.
	pid, err := syscall.ForkExec(fmt.Sprintf("/proc/self/fd/%d", b.l.guest.Fd()), []string{"holder"}, &syscall.ProcAttr{
		Env: []string{}, Files: []uintptr{b.l.null.Fd(), b.l.null.Fd(), b.l.null.Fd(), theirs.Fd()},
		Sys: &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids},
	})
	if err != nil {
		return err
	}
	b.userns, err = os.Open(fmt.Sprintf("/proc/%d/ns/user", pid))
	_ = ours.Close()
	_ = theirs.Close()
	b.l.await(pid, b.began)
	return err
}

// startContainer hands everything to the starter.
func (b *building) startContainer() error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	b.socket, b.guestEnd = os.NewFile(uintptr(pair[0]), "guest"), os.NewFile(uintptr(pair[1]), "guest")
	// Attached before its directories are cloned: kernels before 6.15 clone nothing else.
	if _, err := b.attach(b.root, rootPlace); err != nil {
		return err
	}
	defer b.detachContainer()
	parts, err := b.parts()
	if err != nil {
		return err
	}
	c := &Container{
		Name: b.r.Name, IDs: b.r.IDs, OCI: b.r.OCI, Dir: b.l.place(b.r.ID), Root: b.root, Parts: parts,
		Program: b.l.guest, Dev: filepath.Join(b.l.sharedPlace(), "dev"), Parent: "/" + b.l.tree.parent + "/" + b.r.Name, Socket: b.guestEnd, Inside: b.inside,
	}
	if c.Cgroup = c.Parent; b.l.tree.v2 {
		c.Cgroup += "/g"
	}
	if t := b.l.tree; !t.v2 && t.unified != "" {
		if c.Unified, err = os.OpenFile(t.at("unified", b.r.Name), unix.O_PATH|unix.O_DIRECTORY, 0); err != nil {
			return err
		}
		defer func() { _ = c.Unified.Close() }()
	}
	started, err := b.l.starter.Start(c)
	if err != nil {
		return err
	}
	b.pid, b.wait = started.PID, started.Wait
	fd, err := unix.PidfdOpen(b.pid, 0)
	if err != nil {
		return errors.Join(fmt.Errorf("hold PID 1: %w", err), unix.Kill(b.pid, unix.SIGKILL))
	}
	b.pidfd = os.NewFile(uintptr(fd), "pidfd")
	b.cgroup = cgroupOf(b.pid)
	// An engine has put it elsewhere.
	if t := b.l.tree; c.Unified != nil {
		if err := write(t.at("unified", b.r.Name), "cgroup.procs", fmt.Sprint(b.pid)); err != nil {
			return errors.Join(err, b.killContainer())
		}
	}
	return nil
}

// inside makes the first call's cgroups and runs in them.
func (b *building) inside(run func(cgroup *os.File) error) error {
	first := newSlot(b.l.tree, b.r.Name, 0)
	if err := first.make(); err != nil {
		return err
	}
	b.slot = true
	t := b.l.tree
	dirs := append(first.dirs(), t.at("cpu", b.r.Name))
	unified := t.at("unified", b.r.Name)
	if t.v2 {
		dirs, unified = nil, first.dirs()[0]
	}
	var cgroup *os.File
	if t.unified != "" {
		var err error
		if cgroup, err = os.OpenFile(unified, unix.O_PATH|unix.O_DIRECTORY, 0); err != nil {
			return err
		}
		defer func() { _ = cgroup.Close() }()
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread()             // and never unlocked: the thread ends with the goroutine
		if err := b.pinTo(0); err != nil { // a runtime counts them
			done <- err
			return
		}
		for _, d := range dirs {
			if err := write(d, "tasks", "0"); err != nil {
				done <- err
				return
			}
		}
		done <- run(cgroup)
	}()
	return <-done
}

// cgroupOf is where a process is in the hierarchy of memory; "" when it is gone.
func cgroupOf(pid int) string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return ""
	}
	unified := ""
	for line := range strings.Lines(string(text)) {
		part := strings.SplitN(strings.TrimSpace(line), ":", 3)
		switch {
		case len(part) != 3:
		case slices.Contains(strings.Split(part[1], ","), "memory"):
			return part[2]
		case part[0] == "0":
			unified = part[2]
		}
	}
	return unified
}

// parts are the launcher's own files for this sandbox, and the directories of the world
// that stay writable. What the world has no place for is left out, as its absence is part
// of the world.
func (b *building) parts() ([]Part, error) {
	t := b.l.shared
	sys, err := t.sysFor(b.r.VisibleCPUs)
	if err != nil {
		return nil, err
	}
	etc, err := t.etcFor(b.r.Hostname)
	if err != nil {
		return nil, err
	}
	at := func(part string) string { return filepath.Join(b.l.sharedPlace(), part) }
	var parts []Part
	writable := slices.Clone(b.l.entry.Rebind)
	for _, m := range b.r.OCI.Mounts {
		if m.Type == "bind" && m.Source == m.Destination {
			writable = append(writable, m.Destination)
		}
	}
	slices.Sort(writable)
	for i, dir := range slices.Compact(writable) {
		source, err := b.own(dir, fmt.Sprintf("w%d", i))
		if err != nil {
			return nil, err
		}
		if source != "" {
			parts = append(parts, Part{Source: source, Destination: dir, Writable: true})
		}
	}
	parts = append(parts, Part{Source: at(sys), Destination: "/sys"})
	for _, f := range etcFiles {
		there, err := inRoot(b.root, f, unix.S_IFREG)
		if err != nil {
			return nil, err
		}
		if there != nil {
			_ = there.Close()
			parts = append(parts, Part{Source: at(etcPart(etc, f)), Destination: f})
		}
	}
	return append(parts, Part{Source: at(cpuinfoPart(sys)), Destination: cpuinfo}), nil
}

// own attaches a directory of the root at a place of its own, so that nobody has to find
// it by a path that an agent may have written; "" when there is none.
func (b *building) own(path, name string) (string, error) {
	dir, err := inRoot(b.root, path, unix.S_IFDIR)
	if dir == nil || err != nil {
		return "", err
	}
	defer func() { _ = dir.Close() }()
	m, err := mount.Clone(dir)
	if err != nil {
		return "", err
	}
	defer func() { _ = m.Close() }()
	return b.attach(m, name)
}

// inRoot opens a path below a root, with no symbolic link on the way; nil when there is
// nothing of that type.
func inRoot(root *os.File, path string, want uint32) (*os.File, error) {
	f, err := mount.Target(root, path)
	if f == nil || err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Mode&unix.S_IFMT != want {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// detachContainer takes the container's mounts out of the launcher's namespace: those of
// the container live on in its own.
func (b *building) detachContainer() {
	place := b.l.place(b.r.ID)
	entries, _ := os.ReadDir(place)
	for _, e := range entries {
		switch at := filepath.Join(place, e.Name()); {
		case e.Name() == upperPlace:
		case e.IsDir():
			b.l.detach(at)
		default:
			_ = os.Remove(at)
		}
	}
	_ = os.Remove(place) // unless the upper is attached there
}

// killContainer ends a container that did not come up.
func (b *building) killContainer() error {
	_ = unix.PidfdSendSignal(int(b.pidfd.Fd()), unix.SIGKILL, nil, 0)
	p := []unix.PollFd{{Fd: int32(b.pidfd.Fd()), Events: unix.POLLIN}}
	for {
		if _, err := unix.Poll(p, 5000); err != unix.EINTR {
			break
		}
	}
	b.l.reap()
	b.l.forget(b.pid)
	return nil
}

// greet tells the guest that its view is made, and waits until it has dropped the rest of
// its rights.
func (b *building) greet() error {
	c, err := newConn(dup(b.socket))
	if err != nil {
		return err
	}
	defer func() { _ = c.uc.Close() }()
	if err := c.sendBytes(b.r.Frame); err != nil {
		return err
	}
	return awaitReady(c)
}

// greeting is the SETUP of a guest whose view is made. The filter is loaded on top of the
// runtime's: it looks at the low word of what a call looks at the low word of, as ioctl, and
// denies calls on files that a profile cannot name.
func greeting(oci *specs.Spec, filter []byte, powerless bool) *guest.SetupFrame {
	f := &guest.SetupFrame{KeepCaps: capabilityMask(oci), Hostname: oci.Hostname, Flags: guest.AsItIs}
	if filter != nil {
		f.Filters = [][]byte{filter}
	}
	if powerless {
		f.KeepCaps = 0
	}
	return f
}

// removeContainer removes what a starter keeps of an ended container, and answers.
func (l *launcher) removeContainer(r *request) {
	a := reply{ID: r.ID}
	if err := l.starter.Remove(r.Name); err != nil {
		a.Error = err.Error()
	}
	_ = l.daemon.reply(a)
}

// watch tells of the end of a PID 1 that is no child of the launcher.
func (l *launcher) watch(id uint64, pidfd *os.File, wait func() uint32) {
	defer func() { _ = pidfd.Close() }()
	for {
		p := []unix.PollFd{{Fd: int32(pidfd.Fd()), Events: unix.POLLIN}}
		if _, err := unix.Poll(p, -1); err != unix.EINTR {
			break
		}
	}
	_ = l.daemon.reply(reply{ID: id, Exited: true, Status: wait()})
}

// prepareStarter makes what containers need of a launcher process that has a starter.
func (l *launcher) prepareStarter(newStarter func(json.RawMessage, Env) (Starter, error)) error {
	// Runtimes end as soon as a container runs; PID 1 is then the launcher's to reap.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return err
	}
	if err := l.shared.attach(l.sharedPlace()); err != nil {
		return err
	}
	// runsc wants it open for reading alone.
	program, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", l.guest.Fd()))
	if err != nil {
		return err
	}
	_ = l.guest.Close()
	l.guest = program
	l.starter, err = newStarter(l.entry.Config, Env{l})
	return err
}

// sharedPlace is where the templates are attached.
func (l *launcher) sharedPlace() string { return l.stage + "/shared" }

// Enter runs work on a thread that is in a process's mount namespace, and ends with it.
func Enter(pidfd *os.File, work func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked
		done <- func() error {
			if err := unix.Unshare(unix.CLONE_FS); err != nil {
				return fmt.Errorf("leave the shared working directory: %w", err)
			}
			if err := unix.Setns(int(pidfd.Fd()), unix.CLONE_NEWNS); err != nil {
				return fmt.Errorf("join its mount namespace: %w", err)
			}
			return work()
		}()
	}()
	return <-done
}
