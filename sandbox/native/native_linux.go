// Package native starts sandboxes with nothing but the kernel: one clone into all
// namespaces, an overlay on idmapped layers, cgroups v1 or v2, a static PID 1.
//
// Five processes take part:
//
//	daemon    holds each sandbox's socket, root and upper; starts programs, pumps their
//	          streams, watches their cgroups
//	launcher  the same binary with a tiny heap and few descriptors, in a mount namespace of
//	          its own: builds sandboxes, and is the parent that sees a guest end
//	nursery   the guest's program outside of all sandboxes: clones guests
//	undertaker  the same program, scheduled as a sandbox that computes: closes large
//	          writable layers
//	guest     PID 1 of a sandbox (package guest)
//
// A sandbox lives as long as the daemon holds its socket. The launcher is supervised: its
// death ends every sandbox it held, with the fate launcher_died, and the next Start brings
// up a new one.
package native

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/paddock-run/paddock/guest"
	"github.com/paddock-run/paddock/sandbox"
	"github.com/paddock-run/paddock/sandbox/disk"
	"github.com/paddock-run/paddock/sandbox/files"
	"github.com/paddock-run/paddock/sandbox/seccomp"
)

// Config is where a launcher works.
type Config struct {
	// Dir is an existing directory for the launcher's own use; nothing of value is in it.
	Dir string
	// CgroupParent is the path below each hierarchy under which sandboxes get their
	// cgroups. It belongs to this launcher alone: New sweeps what a dead one left there.
	CgroupParent string
	// Disk makes the uppers that are to be OnDisk; nil refuses them. It stays the caller's,
	// to be closed after the launcher.
	Disk disk.Backend
	// Origin says who starts PID 1 in place of this package's own clone; nil is nobody.
	Origin *Origin
	Log    *slog.Logger
}

// Origin is a Starter as the daemon knows it.
type Origin struct {
	// Info says what such sandboxes can do, where the host can: Freeze and Cgroup are set
	// by New.
	Info sandbox.Info
	// Variable is set in the environment of the launcher processes, for a package's entry
	// that calls Main. Config is for its Starter.
	Variable string
	Config   any
	// Stage is an empty directory that mapped users can get to. It is the launcher's alone.
	Stage string
	// ReserveBytes and ReservePids are added to a sandbox's limits for a runtime that is in
	// the sandbox's cgroups itself.
	ReserveBytes, ReservePids int64
	// Rebind are directories that are always mounted on themselves, for a runtime that would
	// put something else there.
	Rebind []string
	// Powerless says that there is no user namespace: programs run as the users of the host
	// that a map would make of theirs, and without any capability, which would be the host's.
	Powerless bool
}

// Launcher implements runner.Launcher.
type Launcher struct {
	cfg  Config
	tree *tree
	info sandbox.Info
	// entry is what each launcher process is told.
	entry    entry
	courtesy *courtesy
	// undertaker takes down large writable layers.
	undertaker *undertaker

	mu      sync.Mutex
	proc    *launcherProcess
	closed  bool
	nextID  uint64
	nextCPU int
	// lastProc is the view of the last sandbox: the likeliest of the next one.
	lastProc atomic.Pointer[guest.ProcView]
	// prepared says which process has the blank of a name.
	prepared map[string]*launcherProcess
	// guestOOMs are the guests that the OOM killer is known to have taken, in a flat tree.
	guestOOMs int64
	filters   map[*specs.LinuxSeccomp][]byte

	wg sync.WaitGroup
}

// ErrClosed says: the launcher was closed.
var ErrClosed = errors.New("launcher is closed")

// New sweeps the cgroup parent and starts the launcher process.
func New(cfg Config) (*Launcher, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if _, err := guest.Binary(); err != nil {
		return nil, err
	}
	if n, err := SweepCgroups(cfg.CgroupParent); err != nil {
		return nil, fmt.Errorf("sweep cgroups: %w", err)
	} else if n > 0 {
		cfg.Log.Info("swept sandboxes of a dead daemon", slog.Int("count", n))
	}
	t, err := openTree(cfg.CgroupParent)
	if err != nil {
		return nil, err
	}
	l := &Launcher{cfg: cfg, tree: t, courtesy: newCourtesy(t), filters: map[*specs.LinuxSeccomp][]byte{}, prepared: map[string]*launcherProcess{}}
	if err := l.configure(); err != nil {
		return nil, err
	}
	l.info.Cgroup, l.info.Freeze, l.info.Disk = t.mode(), l.info.Freeze && t.unified != "", string(disk.Tmpfs)
	if cfg.Disk != nil {
		l.info.Disk = string(cfg.Disk.Kind())
	}
	if l.undertaker, err = newUndertaker(t); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.proc, err = l.spawnLocked(); err != nil {
		return nil, errors.Join(err, l.undertaker.close())
	}
	return l, nil
}

// configure notes what differs with an Origin.
func (l *Launcher) configure() error {
	l.info = sandbox.Info{Name: "native", UserNS: true, Root: true, PTY: true, Freeze: true, Listen: true, PerCall: true}
	l.entry = entry{Stage: filepath.Join(l.cfg.Dir, "stage"), Parent: l.cfg.CgroupParent, Variable: entryVariable}
	mode := os.FileMode(0o700)
	if o := l.cfg.Origin; o != nil {
		config, err := json.Marshal(o.Config)
		if err != nil {
			return err
		}
		l.info = o.Info
		l.entry.Stage, l.entry.Variable, l.entry.Config, l.entry.Rebind = o.Stage, o.Variable, config, o.Rebind
		mode = 0o755
		l.tree.findOthers()
	}
	l.tree.flat = !l.tree.v2 && l.cfg.Origin == nil
	return os.MkdirAll(l.entry.Stage, mode)
}

func (t *tree) mode() string {
	switch {
	case t.v2:
		return "v2"
	case t.unified != "":
		return "hybrid"
	}
	return "v1"
}

// Info says what this launcher can do here.
func (l *Launcher) Info() sandbox.Info { return l.info }

// Start builds a sandbox and returns when its guest answers.
func (l *Launcher) Start(ctx context.Context, spec sandbox.Spec) (*Sandbox, error) {
	if err := errors.Join(check(spec), l.info.Refuse(spec)); err != nil {
		return nil, err
	}
	if !spec.Root.Upper.OnDisk {
		return l.start(ctx, spec, nil)
	}
	v, err := l.volume(ctx, spec)
	if err != nil {
		return nil, errors.Join(err, l.Drop(spec.Name))
	}
	s, err := l.start(ctx, spec, v)
	if err != nil && !errors.Is(err, errAbandoned) {
		err = errors.Join(err, v.Close())
	}
	return s, err
}

func (l *Launcher) volume(ctx context.Context, spec sandbox.Spec) (*disk.Volume, error) {
	if l.cfg.Disk == nil {
		return nil, errors.New("the writable layer is to be on a disk, and there is none")
	}
	return l.cfg.Disk.New(ctx, spec.Name, disk.Size{Bytes: spec.Root.Upper.Bytes, Inodes: spec.Root.Upper.Inodes})
}

// errAbandoned says that what was begun is ended behind the caller's back.
var errAbandoned = errors.New("abandoned")

// start is Start on an upper that is there, or in memory.
func (l *Launcher) start(ctx context.Context, spec sandbox.Spec, upper *disk.Volume) (*Sandbox, error) {
	r, fds, err := l.request(spec)
	if err != nil {
		return nil, err
	}
	if upper != nil {
		fds = append([]*os.File{upper.Mount()}, fds...)
	}
	p, err := l.launcher()
	if err != nil {
		return nil, err
	}
	if err := l.unprepare(spec.Name, p); err != nil {
		return nil, err
	}
	answer, err := p.ask(r, fds)
	if err != nil {
		return nil, errors.Join(err, l.tree.remove(spec.Name))
	}
	select {
	case a, ok := <-answer:
		if err := a.failure(ok); err != nil {
			// A launcher that died in the middle has not cleared away.
			return nil, errors.Join(fmt.Errorf("start sandbox %s: %w", spec.Name, err), l.tree.remove(spec.Name))
		}
		return l.adopt(p, r, spec, a, upper)
	case <-ctx.Done():
		l.wg.Go(func() { l.abandon(p, r, spec, answer, upper) }) //nolint:contextcheck // ctx is over: the clean-up has a deadline of its own
		return nil, fmt.Errorf("%w: %w", errAbandoned, context.Cause(ctx))
	}
}

// abandon ends a sandbox whose caller did not wait for it.
func (l *Launcher) abandon(p *launcherProcess, r *request, spec sandbox.Spec, answer chan started, upper *disk.Volume) {
	a, ok := <-answer
	if ok && a.Error == "" {
		if s, err := l.adopt(p, r, spec, a, upper); err == nil {
			_ = s.Close()
			return
		}
	}
	_ = upper.Close()
}

func (l *Launcher) adopt(p *launcherProcess, r *request, spec sandbox.Spec, a started, upper *disk.Volume) (*Sandbox, error) {
	if want := 5 + len(spec.Listen); len(a.files) != want {
		closeAll(a.files)
		return nil, fmt.Errorf("launcher sent %d descriptors, want %d", len(a.files), want)
	}
	listeners, err := listenersOf(a.files[5:])
	if err != nil {
		closeAll(a.files[:5])
		return nil, err
	}
	socket := a.files[4]
	c, err := newConn(dup(socket))
	_ = socket.Close()
	if err != nil {
		closeListeners(listeners)
		closeAll(a.files[:4])
		return nil, err
	}
	s := &Sandbox{
		l: l, name: spec.Name, ids: spec.IDs, oci: spec.OCI,
		root: a.files[0], upper: a.files[1], pidfd: a.files[2], pool: a.files[3], volume: upper, guest: c,
		slots: &slots{tree: l.tree, name: spec.Name, shared: !l.info.PerCall}, swept: make(chan guest.Reply, 1), done: make(chan struct{}), calls: map[uint32]*process{},
		rlimits: rlimits(spec.OCI), listeners: listeners,
	}
	s.hog = &hog{tree: l.tree, name: spec.Name, courtesy: l.courtesy, leftovers: s.slots.populated}
	s.files = files.ForSpec(s.root, spec.IDs, spec.OCI)
	s.guestCgroup = a.Cgroup
	if o := l.cfg.Origin; o != nil {
		s.powerless = o.Powerless
		s.remove = func() error { return l.removeContainer(p, spec.Name) }
	}
	if a.Attached {
		s.release = func() error { return p.conn.request(&request{ID: r.ID, Release: true}) }
	}
	p.hold(r.ID, s)
	s.wg.Go(s.listen)
	if a.Slot {
		s.slots.given()
	} else {
		s.wg.Go(s.slots.ahead)
	}
	return s, nil
}

func checkName(name string, ids sandbox.IDMap) error {
	if name == "" || len(name) > 40 || name != filepath.Base(name) {
		return fmt.Errorf("sandbox name %q", name)
	}
	if ids.Size == 0 || ids.HostID == 0 {
		return errors.New("sandbox without an id map")
	}
	return nil
}

func check(spec sandbox.Spec) error {
	if err := checkName(spec.Name, spec.IDs); err != nil {
		return err
	}
	switch {
	case len(spec.Root.Lowers) == 0:
		return errors.New("sandbox without a lower layer")
	case spec.OCI == nil || spec.OCI.Linux == nil || spec.OCI.Linux.Resources == nil:
		return errors.New("sandbox without a runtime-spec")
	case spec.Root.Upper.Bytes <= 0 || spec.Root.Upper.Inodes <= 0:
		return errors.New("sandbox without a disk limit")
	}
	return checkListen(spec.Listen)
}

func (l *Launcher) request(spec sandbox.Spec) (*request, []*os.File, error) {
	r := &request{Name: spec.Name, IDs: spec.IDs, Upper: spec.Root.Upper, Listen: spec.Listen}
	var fds []*os.File
	for _, lo := range spec.Root.Lowers {
		r.Lowers = append(r.Lowers, lower{Path: lo.Path, FD: lo.Dir != nil, Shifted: lo.Shifted})
		if lo.Dir != nil {
			fds = append(fds, lo.Dir)
		}
	}
	filter, err := l.filter(spec.OCI.Linux.Seccomp)
	if err != nil {
		return nil, nil, err
	}
	if o := l.cfg.Origin; o != nil {
		r.OCI, r.Frame = spec.OCI, greeting(spec.OCI, filter, o.Powerless).Encode()
	} else {
		f := setupFrame(spec.OCI, filter)
		r.Frame = f.Encode()
		l.lastProc.Store(&f.Proc)
	}
	r.Limits = l.tree.limits(spec.Name, l.withReserve(spec.OCI.Linux.Resources))
	r.Hostname, r.VisibleCPUs = spec.OCI.Hostname, visibleCPUs(spec.OCI)
	l.mu.Lock()
	l.nextID++
	r.ID = l.nextID
	if n, host := r.VisibleCPUs, runtime.NumCPU(); n < host {
		for range n {
			r.CPUs = append(r.CPUs, l.nextCPU%host)
			l.nextCPU++
		}
	}
	l.mu.Unlock()
	return r, fds, nil
}

// withReserve adds what a sandbox's own runtime needs of its limits.
func (l *Launcher) withReserve(r *specs.LinuxResources) *specs.LinuxResources {
	o := l.cfg.Origin
	if o == nil || o.ReserveBytes == 0 && o.ReservePids == 0 {
		return r
	}
	more := *r
	if r.Memory != nil && r.Memory.Limit != nil {
		limit := *r.Memory.Limit + o.ReserveBytes
		more.Memory = &specs.LinuxMemory{Limit: &limit}
	}
	if r.Pids != nil && r.Pids.Limit != nil {
		limit := *r.Pids.Limit + o.ReservePids
		more.Pids = &specs.LinuxPids{Limit: &limit}
	}
	return &more
}

// filter compiles a seccomp profile once. Specs of one policy share their profile, which
// nobody changes, so its address names it.
func (l *Launcher) filter(profile *specs.LinuxSeccomp) ([]byte, error) {
	if profile == nil {
		return nil, nil
	}
	l.mu.Lock()
	b, ok := l.filters[profile]
	l.mu.Unlock()
	if ok {
		return b, nil
	}
	program, err := seccomp.Compile(profile, runtime.GOARCH)
	if err != nil {
		return nil, fmt.Errorf("compile seccomp profile: %w", err)
	}
	for _, i := range program {
		b = binary.NativeEndian.AppendUint16(b, i.Code)
		b = append(b, i.Jt, i.Jf)
		b = binary.NativeEndian.AppendUint32(b, i.K)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.filters) < 64 { // profiles come from policies, which are few
		l.filters[profile] = b
	}
	return b, nil
}

// Close ends every sandbox and the launcher process.
func (l *Launcher) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	l.closed = true
	p := l.proc
	l.mu.Unlock()
	p.mu.Lock()
	var held []*Sandbox
	for _, s := range p.held {
		held = append(held, s)
	}
	p.mu.Unlock()
	var errs []error
	for _, s := range held {
		errs = append(errs, s.Close())
	}
	_ = p.conn.uc.CloseRead()
	_ = p.conn.uc.CloseWrite()
	<-p.gone
	l.wg.Wait()
	l.courtesy.close()
	errs = append(errs, l.undertaker.close(), l.removeBlanks(), l.tree.removeParent())
	if o := l.cfg.Origin; o != nil && o.Stage != "" {
		_ = os.Remove(o.Stage)
	}
	return errors.Join(errs...)
}

// ProcessID is the launcher process's, for people and tests.
func (l *Launcher) ProcessID() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.proc.cmd.Process.Pid
}
