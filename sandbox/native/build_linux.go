package native

import (
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/paddock-run/paddock/guest"
	"github.com/paddock-run/paddock/internal/mount"
	"github.com/paddock-run/paddock/internal/undo"
	"github.com/paddock-run/paddock/sandbox/disk"
)

// building is one sandbox on its way; what it holds goes to the daemon or is closed.
type building struct {
	l     *launcher
	r     *request
	given []*os.File // descriptors of lowers

	pid       int
	pidfd     *os.File
	socket    *os.File // the daemon's end
	guestEnd  *os.File // for a starter
	userns    *os.File
	pool      *os.File // the mount with the upper
	upper     *os.File
	work      *os.File
	lowers    []*os.File
	root      *os.File
	rootClone *os.File
	// attached: the upper's tmpfs has a place in the launcher's mount namespace.
	attached  bool
	listeners []*os.File
	// slot: the cgroups of the first call are there.
	slot bool
	// wait gives the status of a PID 1 that is no child of the launcher.
	wait func() uint32
	// cgroup is where a starter put PID 1.
	cgroup string
	// began is before the first process of it; what has its number and ended earlier is not it.
	began time.Time
}

func (b *building) close() {
	closeAll([]*os.File{b.pidfd, b.socket, b.guestEnd, b.userns, b.pool, b.upper, b.work, b.root, b.rootClone})
	closeAll(b.lowers)
	closeAll(b.listeners)
}

// build makes a sandbox whose guest is ready. The order is the kernel's: the user
// namespace exists with the guest, lowers are mapped by it, and the guest may move mounts
// that host root made.
func (l *launcher) build(r *request, given []*os.File) (*building, error) {
	b, err := l.blankFor(r)
	if err != nil {
		return nil, err
	}
	b.r, b.given = r, given
	err = undo.Run(
		undo.Step{Name: "blank", Do: func() error { return nil }, Undo: b.kill},
		undo.Step{Name: "limits", Do: func() error { return setLimits(r.Limits) }},
		undo.Step{Name: "cpus", Do: b.pin},
		undo.Step{Name: "upper", Do: b.makeUpper},
		undo.Step{Name: "lowers", Do: b.openLowers},
		undo.Step{Name: "overlay", Do: b.makeRoot},
		undo.Step{Name: "set up guest", Do: b.setUp},
		undo.Step{Name: "listen inside", Do: b.listen},
	)
	if err != nil {
		l.release(r.ID)
		err = errors.Join(err, l.tree.remove(r.Name))
		b.close()
		return nil, err
	}
	return b, nil
}

// clone has the nursery make the guest, in all its namespaces and cgroups.
func (b *building) clone() error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(pair[1]) }()
	b.socket = os.NewFile(uintptr(pair[0]), "guest")
	g := newborn{ids: b.r.IDs, socket: pair[1], home: b.l.tree.flat}
	defer func() {
		for _, fd := range append(g.tasks, g.birth) {
			_ = unix.Close(fd)
		}
	}()
	if g.birth, err = b.l.tree.birth(b.r.Name); err != nil {
		return err
	}
	if g.tasks, err = b.l.tree.tasks(b.r.Name); err != nil {
		return err
	}
	pid, pidfd, err := b.l.nursery.clone(g)
	if failed := (*unborn)(nil); errors.As(err, &failed) && failed.pid > 0 {
		b.l.reap()
		b.l.forget(failed.pid)
	}
	if err != nil {
		return err
	}
	b.pid, b.pidfd = pid, os.NewFile(uintptr(pidfd), "pidfd")
	return nil
}

// pin gives the guest, and with it whatever it starts, the CPUs of its sandbox.
func (b *building) pin() error { return b.pinTo(b.pid) }

func (b *building) pinTo(pid int) error {
	if len(b.r.CPUs) == 0 {
		return nil
	}
	var set unix.CPUSet
	for _, c := range b.r.CPUs {
		set.Set(c)
	}
	return unix.SchedSetaffinity(pid, &set)
}

// kill ends a guest whose sandbox did not come up.
func (b *building) kill() error {
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

func (b *building) makeUpper() error {
	if b.userns == nil {
		var err error
		if b.userns, err = os.Open(fmt.Sprintf("/proc/%d/ns/user", b.pid)); err != nil {
			return err
		}
	}
	if err := b.makePool(); err != nil {
		return err
	}
	for _, d := range []struct {
		name string
		mode uint32
		fd   **os.File
	}{{"upper", 0o755, &b.upper}, {"work", 0o700, &b.work}} {
		if err := unix.Mkdirat(int(b.pool.Fd()), d.name, d.mode); err != nil {
			return err
		}
		fd, err := unix.Openat(int(b.pool.Fd()), d.name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		*d.fd = os.NewFile(uintptr(fd), d.name)
	}
	owner := int(b.r.IDs.HostID)
	return b.upper.Chown(owner, owner)
}

// makePool makes the tmpfs of the upper, unless the daemon sent a mount of its disk.
func (b *building) makePool() (err error) {
	if !b.r.Upper.OnDisk {
		b.pool, err = mount.Tmpfs(b.r.Upper.Bytes, b.r.Upper.Inodes, 0o700, mount.NoSUID|mount.NoDev)
		return err
	}
	if len(b.given) == 0 {
		return errors.New("descriptor of the upper's disk is missing")
	}
	b.pool, b.given = b.given[0], b.given[1:]
	return mount.SetAttrs(b.pool, mount.NoSUID|mount.NoDev, nil)
}

// openLowers clones each layer and maps its owners into the sandbox's range.
func (b *building) openLowers() error {
	given := b.given
	for _, lo := range b.r.Lowers {
		var m *os.File
		var err error
		if lo.FD {
			if len(given) == 0 {
				return errors.New("descriptor of a lower is missing")
			}
			m, err = cloneDir(given[0])
			given = given[1:]
		} else {
			m, err = mount.ClonePath(lo.Path)
		}
		if err != nil {
			return err
		}
		b.lowers = append(b.lowers, m)
		userns := b.userns
		if lo.Shifted {
			userns = nil
		}
		if err := mount.SetAttrs(m, mount.NoSUID|mount.NoDev, userns); err != nil {
			return fmt.Errorf("layer %s: %w", lo.Path, err)
		}
	}
	return nil
}

// cloneDir clones the directory of a descriptor. One that the daemon opened on the host
// lies on a mount of the daemon's namespace, which cannot be cloned from here; the same
// directory is then reached by its path.
func cloneDir(dir *os.File) (*os.File, error) {
	m, err := mount.Clone(dir)
	if !errors.Is(err, unix.EINVAL) {
		return m, err
	}
	path, rerr := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", dir.Fd()))
	if rerr != nil {
		return nil, rerr
	}
	here, rerr := mount.ClonePath(path)
	if rerr != nil {
		return nil, errors.Join(err, rerr)
	}
	want, err := dir.Stat()
	if err != nil {
		_ = here.Close()
		return nil, err
	}
	if got, err := here.Stat(); err != nil || !os.SameFile(got, want) {
		_ = here.Close()
		return nil, fmt.Errorf("layer %s is another directory here: %w", path, errors.Join(err, unix.ESTALE))
	}
	return here, nil
}

func (b *building) makeRoot() error {
	makeOverlay := b.makeOverlay
	if b.r.Upper.OnDisk {
		makeOverlay = func() error { return disk.WithoutResource(b.makeOverlay) }
	}
	if err := makeOverlay(); err != nil {
		return err
	}
	// A full upper at this moment makes the kernel mount read-only, silently.
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(b.root.Fd()), &st); err != nil {
		return err
	}
	if st.Flags&unix.ST_RDONLY != 0 {
		return fmt.Errorf("overlay came up read-only: %w", unix.ENOSPC)
	}
	var err error
	b.rootClone, err = mount.Clone(b.root)
	if errors.Is(err, unix.EINVAL) { // before 6.15 only an attached mount can be cloned
		err = b.cloneAttached()
	}
	return err
}

func (b *building) makeOverlay() error {
	err := mount.ErrNeedsPaths
	if !b.l.byPath {
		b.root, err = mount.Overlay(b.lowers, b.upper, b.work)
	}
	if errors.Is(err, mount.ErrNeedsPaths) {
		b.l.byPath = true
		err = b.overlayByPath()
	}
	return err
}

// overlayByPath attaches the layers under short names for as long as the mount takes. The
// names are relative to the launcher's directory, root, which lies beside them: a sandbox
// reads them in its /proc/self/mountinfo, and learns nothing of the host by them.
func (b *building) overlayByPath() error {
	var lowers, names []string
	defer func() {
		for _, at := range lowers {
			b.l.detach(at)
		}
	}()
	for i, m := range b.lowers {
		at, err := b.attach(m, strconv.FormatInt(int64(i), 36))
		if err != nil {
			return err
		}
		lowers = append(lowers, at)
		names = append(names, b.l.fromRoot(at))
	}
	if err := b.attachUpper(); err != nil {
		return err
	}
	at := b.l.place(b.r.ID) + "/m"
	if err := os.Mkdir(at, 0o755); err != nil {
		return err
	}
	defer func() { _ = os.Remove(at) }()
	var err error
	upper := b.l.fromRoot(b.l.place(b.r.ID) + "/" + upperPlace)
	b.root, err = mount.OverlayPaths(names, upper+"/upper", upper+"/work", at)
	return err
}

// cloneAttached makes the two mounts of the root, the guest's and the daemon's, through
// a place in the launcher's mount namespace.
func (b *building) cloneAttached() error {
	if err := b.attachUpper(); err != nil {
		return err
	}
	at, err := b.attach(b.root, "r")
	if err != nil {
		return err
	}
	defer b.l.detach(at)
	guests, err := mount.ClonePath(at)
	if err != nil {
		return err
	}
	_ = b.root.Close()
	b.root = guests
	b.rootClone, err = mount.ClonePath(at)
	return err
}

// upperPlace is where an upper's mount is attached, below the place of its sandbox.
const upperPlace = "u"

// attachUpper attaches the upper until the daemon releases it: a scoring sandbox takes it
// as a lower layer, and such a kernel clones attached mounts only.
func (b *building) attachUpper() error {
	if b.attached {
		return nil
	}
	_, err := b.attach(b.pool, upperPlace)
	b.attached = err == nil
	return err
}

func (b *building) attach(m *os.File, name string) (at string, err error) {
	at = b.l.place(b.r.ID) + "/" + name
	mode := os.FileMode(0o700)
	if b.l.starter != nil {
		mode = 0o711 // runtimes go to the root by its path, as users of the container's
	}
	if err := os.MkdirAll(at, mode); err != nil {
		return "", err
	}
	if err := mount.Attach(m, at); err != nil {
		_ = os.Remove(at)
		return "", err
	}
	return at, nil
}

// place is a sandbox's own directory in the launcher's stage.
func (l *launcher) place(id uint64) string { return l.stage + "/" + strconv.FormatUint(id, 36) }

// fromRoot is a path in the stage as seen from the launcher's working directory.
func (l *launcher) fromRoot(at string) string { return ".." + strings.TrimPrefix(at, l.stage) }

// detach never removes more than an empty directory: what is mounted there may be an
// episode's files.
func (l *launcher) detach(at string) {
	_ = mount.Detach(at)
	_ = os.Remove(at)
}

// release gives up what is attached for a sandbox.
func (l *launcher) release(id uint64) {
	l.detach(l.place(id) + "/" + upperPlace)
	_ = os.Remove(l.place(id))
}

// setUp sends the guest its view and waits until it stands in it.
func (b *building) setUp() error {
	sys, err := b.l.shared.sysFor(b.r.VisibleCPUs)
	if err != nil {
		return err
	}
	etc, err := b.l.shared.etcFor(b.r.Hostname)
	if err != nil {
		return err
	}
	parts := []string{"dev", "empty", sys}
	for _, f := range etcFiles {
		parts = append(parts, etcPart(etc, f))
	}
	parts = append(parts, cpuinfoPart(sys))
	files := []*os.File{b.root}
	defer func() { closeAll(files[1:]) }()
	for _, p := range parts {
		m, err := b.l.shared.clone(p)
		if err != nil {
			return err
		}
		files = append(files, m)
	}
	c, err := newConn(dup(b.socket))
	if err != nil {
		return err
	}
	defer func() { _ = c.uc.Close() }()
	if err := c.sendBytes(b.r.Frame, files...); err != nil {
		return err
	}
	return awaitReady(c)
}

func dup(f *os.File) int {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 4)
	if err != nil {
		return -1
	}
	return fd
}

func awaitReady(c *conn) error {
	buf := make([]byte, 256)
	n, files, err := c.receive(buf)
	if err != nil {
		return err
	}
	closeAll(files)
	r, err := guest.Decode(buf[:n])
	if err != nil {
		return fmt.Errorf("guest ended: %w", err)
	}
	if r.Type == guest.Failed {
		return fmt.Errorf("guest: %w", syscall.Errno(r.Errno))
	}
	if r.Type != guest.Ready {
		return fmt.Errorf("guest answered with frame %d", r.Type)
	}
	return nil
}

// guestScores tell the OOM killer whom to take first when the host is out of memory. They
// belong to PID 1's user, which under some policies is the agent's: raised, they would make
// it the host's victim, and its sample null.
var guestScores = []string{
	"/proc/1/oom_adj", "/proc/1/oom_score_adj", "/proc/1/task/1/oom_adj", "/proc/1/task/1/oom_score_adj",
}

// setupFrame is pure: what the guest is asked, from the spec.
func setupFrame(oci *specs.Spec, filter []byte) *guest.SetupFrame {
	f := &guest.SetupFrame{
		KeepCaps: capabilityMask(oci), Hostname: oci.Hostname, ShmBytes: "65536k",
		Flags: guest.WithPTS,
		Etc:   append(slices.Clone(etcFiles), cpuinfo),
	}
	f.Masked, f.Proc.Masked = splitProc(oci.Linux.MaskedPaths)
	f.ReadOnly, f.Proc.ReadOnly = splitProc(slices.Concat(oci.Linux.ReadonlyPaths, guestScores))
	if filter != nil {
		f.Filters = [][]byte{filter}
	}
	if oci.Root != nil && oci.Root.Readonly {
		f.Flags |= guest.RootReadOnly
	}
	for _, m := range oci.Mounts {
		switch {
		case m.Type == "bind" && m.Source == m.Destination:
			f.Writable = append(f.Writable, m.Destination)
		case m.Destination == "/dev/shm":
			for _, o := range m.Options {
				if v, ok := strings.CutPrefix(o, "size="); ok {
					f.ShmBytes = v
				}
			}
		}
	}
	return f
}

// splitProc parts paths into those elsewhere and those below /proc, without it.
func splitProc(paths []string) (elsewhere, below []string) {
	for _, p := range paths {
		if rest, ok := strings.CutPrefix(p, "/proc/"); ok {
			below = append(below, "/"+rest)
		} else {
			elsewhere = append(elsewhere, p)
		}
	}
	return elsewhere, below
}

// capabilities by name, in the kernel's order.
var capabilities = strings.Fields(`CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP
LINUX_IMMUTABLE NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO
SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE
AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF
CHECKPOINT_RESTORE`)

// capabilityMask is the bounding set: what root inside may have.
func capabilityMask(oci *specs.Spec) uint64 {
	var mask uint64
	if oci.Process == nil || oci.Process.Capabilities == nil {
		return 0
	}
	for _, c := range oci.Process.Capabilities.Bounding {
		for i, name := range capabilities {
			if c == "CAP_"+name {
				mask |= 1 << i
			}
		}
	}
	return mask
}

// visibleCPUs is how many CPUs the programs of a sandbox are told they have.
func visibleCPUs(oci *specs.Spec) int {
	host := runtime.NumCPU()
	cpu := oci.Linux.Resources.CPU
	if cpu == nil || cpu.Quota == nil || cpu.Period == nil || *cpu.Quota <= 0 || *cpu.Period == 0 {
		return host
	}
	n := int(math.Ceil(float64(*cpu.Quota) / float64(*cpu.Period)))
	return max(1, min(n, host))
}
