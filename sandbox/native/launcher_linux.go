package native

import (
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paddock-run/paddock/guest"
	"github.com/paddock-run/paddock/internal/monitor"
	"github.com/paddock-run/paddock/internal/mount"
)

// launcher is the state of a launcher process: the small process that sandboxes are
// forked from, because a fork with a new user namespace copies the caller's page tables.
type launcher struct {
	entry  entry
	daemon *conn
	tree   *tree
	stage  string // a tmpfs in the launcher's own mount namespace
	guest  *os.File
	null   *os.File
	shared *templates
	// nursery clones the guests.
	nursery *nursery
	// byPath: this kernel takes an overlay's layers by path only.
	byPath bool

	mu     sync.Mutex
	guests map[int]uint64 // pid -> request
	early  map[int]gone   // ended before it was noted
	blanks map[string]*building
	// awaited are children that no request belongs to.
	awaited map[int]chan uint32

	// starter makes PID 1 in another way than by clone; nil in a native launcher.
	starter Starter
}

// launcherMain is the whole life of a launcher process. Descriptor 3 is the daemon's
// socket; when that closes, it ends, and so does every guest, whose socket closes too.
func launcherMain(arg string, newStarter func(json.RawMessage, Env) (Starter, error)) int {
	debug.SetGCPercent(50)
	l, err := newLauncher(arg)
	if err != nil {
		fmt.Fprintln(os.Stderr, "paddock launcher:", err)
		return 1
	}
	_ = monitor.Calm() // without it everything works, slower
	children := make(chan os.Signal, 64)
	signal.Notify(children, unix.SIGCHLD)
	signal.Ignore(unix.SIGINT, unix.SIGTERM, unix.SIGHUP) // it ends with the daemon
	go func() {
		for range children {
			l.reap()
		}
	}()
	if newStarter != nil {
		if err := l.prepareStarter(newStarter); err != nil {
			fmt.Fprintln(os.Stderr, "paddock launcher:", err)
			return 1
		}
	}
	buf := make([]byte, maxMessage)
	for {
		n, files, err := l.daemon.receive(buf)
		if err != nil || n == 0 {
			return 0
		}
		r, err := decodeRequest(buf[:n])
		if err != nil {
			fmt.Fprintln(os.Stderr, "paddock launcher:", err)
			return 1
		}
		go l.serve(r, files)
	}
}

// entry is what a launcher is told at its birth.
type entry struct {
	Stage  string // an empty directory of the host
	Parent string // cgroup parent
	// Private says that the process already has its own mount namespace.
	Private bool
	// Variable is the one of the environment that this is told in.
	Variable string
	// Config is the starter's, nil for a native launcher.
	Config json.RawMessage `json:",omitempty"`
	// Rebind is as in Origin.
	Rebind []string `json:",omitempty"`
}

// enterPrivate gives the whole process a mount namespace of its own. Go's threads cannot
// be moved together, so one thread unshares and the program is executed again from it.
func enterPrivate(e entry) error {
	if err := mount.PrivateNamespace(); err != nil {
		return err
	}
	e.Private = true
	b, err := json.Marshal(e)
	if err != nil {
		return err
	}
	return unix.Exec("/proc/self/exe", []string{"paddock-launcher"}, []string{e.Variable + "=" + string(b)})
}

func newLauncher(arg string) (*launcher, error) {
	var e entry
	if err := json.Unmarshal([]byte(arg), &e); err != nil {
		return nil, err
	}
	if !e.Private {
		return nil, enterPrivate(e)
	}
	_ = os.Unsetenv(e.Variable)
	if err := unix.CloseRange(4, ^uint(0), unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return nil, fmt.Errorf("close inherited descriptors: %w", err)
	}
	unix.CloseOnExec(3)
	l := &launcher{
		entry: e, stage: e.Stage, guests: map[int]uint64{}, early: map[int]gone{}, blanks: map[string]*building{},
		awaited: map[int]chan uint32{},
	}
	var err error
	if l.daemon, err = newConn(3); err != nil {
		return nil, err
	}
	if l.tree, err = openTree(e.Parent); err != nil {
		return nil, err
	}
	l.tree.flat = !l.tree.v2 && e.Config == nil
	if l.null, err = os.OpenFile(os.DevNull, os.O_RDWR, 0); err != nil {
		return nil, err
	}
	if l.guest, err = guestFile(); err != nil {
		return nil, err
	}
	stageBytes := int64(1 << 20)
	if e.Config != nil {
		stageBytes = 1 << 30 // what runtimes note of each container, some 50 KiB
	}
	stage, err := mount.Tmpfs(stageBytes, 1<<18, 0o755, mount.NoSUID|mount.NoDev|mount.NoExec)
	if err != nil {
		return nil, err
	}
	if err := mount.Attach(stage, e.Stage); err != nil {
		return nil, err
	}
	_ = stage.Close()
	// A guest inherits this directory and puts its new root on it, and the others beside it are
	// for parts that it makes before. Each has a mount namespace of its own, so one serves all.
	for _, place := range []string{"root", "proc", "dev", "empty"} {
		if err := os.Mkdir(filepath.Join(e.Stage, place), 0o755); err != nil { //nolint:gosec // mapped users go through it
			return nil, err
		}
	}
	if err := os.Chdir(filepath.Join(e.Stage, "root")); err != nil {
		return nil, err
	}
	if l.shared, err = newTemplates(); err != nil {
		return nil, err
	}
	if e.Config == nil {
		if l.nursery, err = newNursery(l.guest, l.null); err != nil {
			return nil, err
		}
	}
	return l, l.shared.prove(e.Stage + "/shared")
}

// guestFile is the guest's program as a sealed memory file, which nothing can overwrite.
func guestFile() (*os.File, error) {
	program, err := guest.Binary()
	if err != nil {
		return nil, err
	}
	fd, err := unix.MemfdCreate("guest", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("memory file: %w", err)
	}
	f := os.NewFile(uintptr(fd), "guest")
	if _, err := f.Write(program); err != nil {
		return nil, err
	}
	seals := unix.F_SEAL_WRITE | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		return nil, fmt.Errorf("seal the guest: %w", err)
	}
	return f, nil
}

func (l *launcher) serve(r *request, files []*os.File) {
	defer closeAll(files)
	switch {
	case r.Release:
		l.release(r.ID)
		return
	case r.Prepare:
		l.prepare(r)
		return
	case r.Remove:
		l.removeContainer(r)
		return
	case r.Drop:
		if b := l.takeBlank(r.Name); b != nil {
			_ = b.drop()
		}
		return
	}
	build := l.build
	if l.starter != nil {
		build = l.buildContainer
	}
	b, err := build(r, files)
	if err != nil {
		_ = l.daemon.reply(reply{ID: r.ID, Error: err.Error()})
		return
	}
	files = append([]*os.File{b.rootClone, b.upper, b.pidfd, b.pool, b.socket}, b.listeners...)
	_ = l.daemon.reply(reply{ID: r.ID, Pid: b.pid, Attached: b.attached, Slot: b.slot, Cgroup: b.cgroup}, files...)
	if b.wait != nil {
		pidfd := b.pidfd
		b.pidfd = nil
		b.close()
		l.watch(r.ID, pidfd, b.wait)
		return
	}
	b.close()
	l.note(b.pid, r.ID, b.began)
}

// note connects a pid with its request, and tells at once when it has ended already.
func (l *launcher) note(pid int, id uint64, since time.Time) {
	l.mu.Lock()
	status, ended := l.earlyLocked(pid, since)
	if !ended {
		l.guests[pid] = id
	}
	l.mu.Unlock()
	if ended {
		_ = l.daemon.reply(reply{ID: id, Exited: true, Status: status})
	}
}

func (l *launcher) reap() {
	for {
		var ws unix.WaitStatus
		pid, err := unix.Wait4(-1, &ws, unix.WNOHANG, nil)
		if err != nil || pid <= 0 {
			return
		}
		if l.nursery != nil && pid == l.nursery.pid {
			fmt.Fprintln(os.Stderr, "paddock launcher: the nursery ended")
			os.Exit(1) // the daemon starts another launcher
		}
		l.mu.Lock()
		id, ok := l.guests[pid]
		awaited := l.awaited[pid]
		switch {
		case ok:
			delete(l.guests, pid)
		case awaited != nil:
			delete(l.awaited, pid)
			awaited <- uint32(ws)
		default:
			l.early[pid] = gone{uint32(ws), time.Now()}
			l.forgetOldLocked()
		}
		l.mu.Unlock()
		if ok {
			_ = l.daemon.reply(reply{ID: id, Exited: true, Status: uint32(ws)})
		}
	}
}

// gone is how and when a child ended that nobody had asked for yet.
type gone struct {
	status uint32
	at     time.Time
}

// earlyLocked takes the end of a child that was started after since. What has its number and
// ended before is another, which nobody asks for.
func (l *launcher) earlyLocked(pid int, since time.Time) (status uint32, ended bool) {
	child, ended := l.early[pid]
	if !ended {
		return 0, false
	}
	delete(l.early, pid)
	return child.status, !child.at.Before(since)
}

// forgetOldLocked drops the ends of children that nobody will ask for: what runtimes leave
// behind is the launcher's to reap, and its numbers come again.
func (l *launcher) forgetOldLocked() {
	const few, old = 256, time.Minute
	if len(l.early) < few {
		return
	}
	for pid, child := range l.early {
		if time.Since(child.at) > old {
			delete(l.early, pid)
		}
	}
}

// forget drops the exit of a guest whose start failed.
func (l *launcher) forget(pid int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.early, pid)
}
