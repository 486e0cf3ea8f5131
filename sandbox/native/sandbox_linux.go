package native

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/paddock-run/paddock/guest"
	"github.com/paddock-run/paddock/sandbox"
	"github.com/paddock-run/paddock/sandbox/disk"
	"github.com/paddock-run/paddock/sandbox/files"
)

// Sandbox implements runner.Sandbox.
type Sandbox struct {
	l     *Launcher
	name  string
	ids   sandbox.IDMap
	oci   *specs.Spec
	root  *os.File // a clone of the overlay alone: no /proc or /dev of the sandbox below it
	upper *os.File
	// pool is the mount that upper lies on. It is dissolved with its last descriptor, and
	// then upper could be no layer of a scoring sandbox.
	pool *os.File
	// volume is what pool is of; nil when that is a tmpfs of its own.
	volume  *disk.Volume
	pidfd   *os.File
	guest   *conn
	files   *files.Tree
	slots   *slots
	hog     *hog
	rlimits []guest.Rlimit
	// listeners are in the sandbox's network namespace.
	listeners []net.Listener
	// release gives up what the launcher holds for the upper; nil when it holds nothing.
	release func() error
	// remove removes what a starter keeps of the container; nil where there is none.
	remove func() error
	// powerless: its users are the host's, as in Origin.
	powerless bool
	// guestCgroup is where PID 1 is, below the root of the hierarchy of memory; "" is the
	// sandbox's own.
	guestCgroup string

	sweeping sync.Mutex // one question at a time
	swept    chan guest.Reply

	mu       sync.Mutex
	nextCall uint32
	calls    map[uint32]*process
	stopping bool
	broke    string // how the guest broke the protocol
	fate     sandbox.Fate
	over     bool
	done     chan struct{}

	held []*os.File // pipes of ended calls that leftovers still write to, the oldest first

	closeOnce sync.Once
	closeErr  error
	wg        sync.WaitGroup
}

// Files acts on the sandbox's tree from outside.
func (s *Sandbox) Files() *files.Tree { return s.files }

// Upper is the writable layer's directory.
func (s *Sandbox) Upper() *os.File { return s.upper }

// Done is closed when PID 1 is gone.
func (s *Sandbox) Done() <-chan struct{} { return s.done }

// Fate says why PID 1 is gone; before Done is closed it is the zero value.
func (s *Sandbox) Fate() sandbox.Fate {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fate
}

// listen takes the guest's frames until its socket closes.
func (s *Sandbox) listen() {
	buf := make([]byte, 256)
	for {
		n, files, err := s.guest.receive(buf)
		if err != nil || n == 0 {
			closeAll(files)
			return
		}
		r, err := guest.Decode(buf[:n])
		if err == nil {
			err = s.take(r, files)
		}
		if err != nil {
			closeAll(files)
			s.mu.Lock()
			s.broke = err.Error()
			s.mu.Unlock()
			s.killGuest()
			return
		}
	}
}

func (s *Sandbox) take(r guest.Reply, files []*os.File) error {
	if r.Type == guest.Swept {
		select {
		case s.swept <- r:
			return nil
		default:
			return errors.New("guest answered what it was not asked")
		}
	}
	s.mu.Lock()
	p, ok := s.calls[r.ID]
	if ok && r.Type != guest.Started {
		delete(s.calls, r.ID)
	}
	s.mu.Unlock()
	if !ok || r.Type == guest.Ready || len(files) > 1 {
		return fmt.Errorf("guest frame of type %d for call %d with %d descriptors", r.Type, r.ID, len(files))
	}
	return p.take(r, files)
}

// sweep has the guest count, and kill, what is left of a call's session.
func (s *Sandbox) sweep(call uint32, kill bool) int {
	s.sweeping.Lock()
	defer s.sweeping.Unlock()
	if s.guest.sendBytes(guest.SweepFrame(call, kill)) != nil {
		return 0 // it is gone, and everything with it
	}
	patience := time.NewTimer(killPatience)
	defer patience.Stop()
	for {
		select {
		case r := <-s.swept:
			if r.ID == call {
				return int(r.Found)
			}
		case <-s.done:
			return 0
		case <-patience.C:
			return 0
		}
	}
}

// exited turns the wait status of PID 1 into a fate. Nothing inside can kill PID 1 of a
// pid namespace, so SIGKILL that is not ours came from outside or from the OOM killer.
func (s *Sandbox) exited(ws unix.WaitStatus) {
	s.mu.Lock()
	stopping, broke := s.stopping, s.broke
	s.mu.Unlock()
	f := sandbox.Fate{Kind: sandbox.GuestDied, Evidence: fmt.Sprintf("PID 1 exited with status %d", ws.ExitStatus())}
	byKill := ws.Signaled() && ws.Signal() == unix.SIGKILL
	byOOM := byKill && !stopping && s.guestOOM()
	switch {
	case stopping:
		f = sandbox.Fate{Kind: sandbox.Stopped}
	case broke != "":
		f = sandbox.Fate{Kind: sandbox.GuestBroke, Evidence: broke}
	case byOOM && !s.limitMet():
		f = sandbox.Fate{Kind: sandbox.HostOOM, Evidence: "the OOM killer took PID 1; the sandbox had never met its own memory limit"}
	case byOOM:
		f = sandbox.Fate{Kind: sandbox.GuestOOM, Evidence: "the OOM killer took PID 1"}
	case byKill:
		f = sandbox.Fate{Kind: sandbox.Killed, Evidence: "PID 1 got SIGKILL from outside its namespace"}
	case ws.Signaled():
		f.Evidence = fmt.Sprintf("PID 1 was ended by signal %d", ws.Signal())
	}
	s.ended(f)
}

// guestOOM says whether the kernel's OOM killer struck in the guest's own cgroup.
func (s *Sandbox) guestOOM() bool {
	switch t := s.l.tree; {
	case s.guestCgroup != "" && t.v2:
		return field(filepath.Join(t.unified, s.guestCgroup), "memory.events", "oom_kill") > 0
	case s.guestCgroup != "":
		return field(filepath.Join(t.v1["memory"], s.guestCgroup), "memory.oom_control", "oom_kill") > 0
	}
	switch t := s.l.tree; {
	case t.v2:
		return field(t.at("", s.name+"/g"), "memory.events", "oom_kill") > 0
	case t.flat:
		return s.l.claimOOM()
	default:
		return field(t.at("memory", s.name), "memory.oom_control", "oom_kill") > 0
	}
}

// claimOOM says whether the OOM killer took a guest that nobody has claimed yet: the guests
// of a flat tree share the counter.
func (l *Launcher) claimOOM() bool {
	n := field(l.tree.at("memory", ""), "memory.oom_control", "oom_kill")
	l.mu.Lock()
	defer l.mu.Unlock()
	if n <= l.guestOOMs {
		return false
	}
	l.guestOOMs++
	return true
}

// limitMet says whether the sandbox ever met its own memory limit.
func (s *Sandbox) limitMet() bool { return s.l.tree.limitMet(s.name, s.slots.seen.Load()) }

// ended closes Done once, and answers every call that still waits.
func (s *Sandbox) ended(f sandbox.Fate) {
	s.mu.Lock()
	if s.over {
		s.mu.Unlock()
		return
	}
	s.over, s.fate = true, f
	calls := s.calls
	s.calls = nil
	s.mu.Unlock()
	close(s.done)
	for _, p := range calls {
		p.lost()
	}
}

// maxHeld bounds the pipes that the leftovers of one sandbox keep open in the daemon:
// its descriptors are everybody's. Beyond it the oldest is closed, and who writes to it
// then gets SIGPIPE.
const maxHeld = 64

// hold drains a pipe to nothing until its other end is closed or the sandbox ends.
func (s *Sandbox) hold(pipe *os.File) {
	s.mu.Lock()
	s.held = append(s.held, pipe)
	var oldest *os.File
	if len(s.held) > maxHeld {
		oldest, s.held = s.held[0], s.held[1:]
	}
	s.mu.Unlock()
	if oldest != nil {
		_ = oldest.Close()
	}
	s.wg.Go(func() {
		_, _ = io.Copy(io.Discard, pipe)
		_ = pipe.Close()
		s.mu.Lock()
		defer s.mu.Unlock()
		if i := slices.Index(s.held, pipe); i >= 0 {
			s.held = slices.Delete(s.held, i, i+1)
		}
	})
}

func (s *Sandbox) killGuest() { _ = unix.PidfdSendSignal(int(s.pidfd.Fd()), unix.SIGKILL, nil, 0) }

// Break kills the sandbox as a stranger on the host would: the fault switch of
// tests and demos.
func (s *Sandbox) Break() error {
	s.killGuest()
	return nil
}

// Freeze stops or lets go every process of the sandbox.
func (s *Sandbox) Freeze(_ context.Context, frozen bool) error {
	if !s.l.info.Freeze {
		return s.l.info.Lacks("freeze")
	}
	if err := s.l.tree.freeze(s.name, frozen); err != nil {
		return fmt.Errorf("freeze sandbox %s: %w", s.name, err)
	}
	return nil
}

// Usage is what the sandbox has used so far.
func (s *Sandbox) Usage(context.Context) (sandbox.Usage, error) {
	t := s.l.tree
	if t.v2 {
		dir := t.at("", s.name+"/c")
		return sandbox.Usage{
			CPU:             time.Duration(field(dir, "cpu.stat", "usage_usec")) * time.Microsecond,
			MemoryPeakBytes: readInt(dir, "memory.peak"),
			RunDelay:        pressure(read(dir, "cpu.pressure")),
		}, nil
	}
	return sandbox.Usage{
		CPU:             time.Duration(readInt(t.at("cpuacct", s.name), "cpuacct.usage")),
		MemoryPeakBytes: max(s.slots.seen.Load(), readInt(t.at("memory", t.memory(s.name)), "memory.max_usage_in_bytes")),
	}, nil
}

// full says what the upper has no more of, if anything.
func (s *Sandbox) full() string {
	var st unix.Statfs_t
	err := fstatfs(s.upper, &st)
	left := uint64(0)
	if s.volume != nil {
		// A disk's file system may take a write of 1 MiB whole or not at all.
		left = min(1<<20/uint64(max(1, st.Bsize)), st.Blocks/16) //nolint:gosec // not negative
	}
	switch {
	case err != nil || st.Blocks == 0:
	case st.Bavail <= left:
		return sandbox.FullDisk
	case st.Files > 0 && st.Ffree == 0:
		return sandbox.FullInodes
	}
	return ""
}

// fstatfs looks at the file system of a file that another goroutine may be closing.
func fstatfs(f *os.File, st *unix.Statfs_t) error {
	rc, err := f.SyscallConn()
	if err != nil {
		return err
	}
	cerr := rc.Control(func(fd uintptr) { err = unix.Fstatfs(int(fd), st) })
	return errors.Join(cerr, err)
}

// pressure reads "some ... total=N" (microseconds) of a PSI file; 0 where there is none.
func pressure(text string) time.Duration {
	line, _, _ := strings.Cut(text, "\n")
	_, total, ok := strings.Cut(line, "total=")
	if !ok {
		return 0
	}
	var us int64
	if _, err := fmt.Sscan(total, &us); err != nil {
		return 0
	}
	return time.Duration(us) * time.Microsecond
}

// stopPatience bounds how long Stop waits for the kernel to end a sandbox's processes.
const stopPatience = 10 * time.Second

// Stop kills every process and returns when they are gone: the kernel reaps PID 1 only
// after everything else in its pid namespace.
func (s *Sandbox) Stop(ctx context.Context) error {
	s.mu.Lock()
	s.stopping = true
	s.mu.Unlock()
	select {
	case <-s.done:
		return s.provenGone()
	default:
	}
	s.hog.close()
	s.killGuest()
	if s.l.tree.unified == "" {
		s.l.tree.killAll(s.name)
	} else {
		_ = write(s.l.tree.at("unified", s.name), "cgroup.kill", "1") // reaches frozen ones, too
	}
	if s.guestGone(quickEnd) {
		// The launcher will say so too; nobody needs to wait for that.
		s.ended(sandbox.Fate{Kind: sandbox.Stopped})
	}
	timer := time.NewTimer(stopPatience)
	defer timer.Stop()
	select {
	case <-s.done:
		return s.provenGone()
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return fmt.Errorf("sandbox %s did not end in %s", s.name, stopPatience)
	}
}

// quickEnd is how long Stop looks at the guest itself; nearly all are gone in a tenth of it.
const quickEnd = 20 * time.Millisecond

// guestGone says whether PID 1 ended, and so its whole pid namespace.
func (s *Sandbox) guestGone(within time.Duration) bool {
	p := []unix.PollFd{{Fd: int32(s.pidfd.Fd()), Events: unix.POLLIN}}
	n, err := unix.Poll(p, int(within.Milliseconds()))
	return err == nil && n == 1 && p[0].Revents&unix.POLLIN != 0
}

// provenGone asks the kernel, not our own record, whether a process is left.
func (s *Sandbox) provenGone() error {
	deadline := time.Now().Add(stopPatience)
	for {
		left := 0
		for _, sl := range s.slots.all() {
			left += sl.population()
		}
		if left == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("sandbox %s: %d processes are still there", s.name, left)
		}
		s.l.tree.killAll(s.name)
		<-time.After(time.Millisecond)
	}
}

// Close stops the sandbox and releases everything it held.
func (s *Sandbox) Close() error {
	s.closeOnce.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), stopPatience)
		defer cancel()
		err := s.Stop(ctx)
		s.hog.close() // of one that ended by itself, too
		_ = s.guest.uc.Close()
		closeListeners(s.listeners)
		s.wg.Wait()
		closeAll([]*os.File{s.pidfd})
		if s.release != nil {
			_ = s.release() // a launcher that is gone holds nothing
		}
		s.l.undertaker.bury(s.pool, []*os.File{s.root, s.upper, s.pool})
		if s.remove != nil {
			err = errors.Join(err, s.remove())
		}
		s.closeErr = errors.Join(err, s.l.tree.remove(s.name), s.volume.Close())
	})
	return s.closeErr
}

// rlimits are the resource limits of every program, from the spec.
func rlimits(oci *specs.Spec) []guest.Rlimit {
	if oci.Process == nil {
		return nil
	}
	numbers := map[string]uint32{
		"RLIMIT_CPU": 0, "RLIMIT_FSIZE": 1, "RLIMIT_DATA": 2, "RLIMIT_STACK": 3, "RLIMIT_CORE": 4, "RLIMIT_RSS": 5,
		"RLIMIT_NPROC": 6, "RLIMIT_NOFILE": 7, "RLIMIT_MEMLOCK": 8, "RLIMIT_AS": 9, "RLIMIT_LOCKS": 10,
		"RLIMIT_SIGPENDING": 11, "RLIMIT_MSGQUEUE": 12, "RLIMIT_NICE": 13, "RLIMIT_RTPRIO": 14, "RLIMIT_RTTIME": 15,
	}
	var all []guest.Rlimit
	for _, r := range oci.Process.Rlimits {
		n, ok := numbers[r.Type]
		if !ok {
			continue
		}
		soft, hard := r.Soft, r.Hard
		var own unix.Rlimit
		if unix.Prlimit(0, int(n), nil, &own) == nil && own.Max < hard {
			hard = own.Max // raising a hard limit needs a capability that the host may lack
			soft = min(soft, hard)
		}
		all = append(all, guest.Rlimit{Resource: n, Soft: soft, Hard: hard})
	}
	return all
}
