package native

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paddock-run/paddock/guest"
	"github.com/paddock-run/paddock/sandbox"
)

// process implements sandbox.Process: one command in a call cgroup of its own.
type process struct {
	s     *Sandbox
	cmd   sandbox.Command
	slot  *slot
	began time.Time

	stdin *os.File // write end
	pumps []*pump
	tty   *os.File

	running bool             // nothing but the end is to come; the listener's alone
	started chan guest.Reply // the answer to EXEC where there is a terminal
	ended   chan struct{}    // the main process is gone, or the sandbox is
	status  unix.WaitStatus
	failure *sandbox.StartFailure // set when the program could not be started after all
	gone    bool                  // the sandbox ended first

	killed, timedOut, cpuTimedOut atomic.Bool
	once                          sync.Once

	killing  sync.Mutex // held while the slot's processes are killed
	released bool       // the slot may be another call's by now
}

// killSlot ends every process of the command and says how many there were. The slot is
// not given back while this runs, and not touched afterwards.
func (p *process) killSlot() int {
	p.killing.Lock()
	defer p.killing.Unlock()
	if p.released {
		return 0
	}
	return p.slot.kill()
}

// end kills the command. Its process may be still to come, or not yet in the slot, so this repeats until the main process is gone; what stays longer than the
// patience is stuck in the kernel and ends with the sandbox.
func (p *process) end() {
	p.s.hog.die()
	patience := time.NewTimer(killPatience)
	defer patience.Stop()
	for wait := time.Millisecond; ; wait = min(2*wait, 20*time.Millisecond) {
		p.killSlot()
		select {
		case <-p.ended:
			return
		case <-patience.C:
			return
		case <-time.After(wait):
		}
	}
}

func (p *process) releaseSlot() {
	p.killing.Lock()
	p.released = true
	p.killing.Unlock()
	p.s.slots.release(p.slot)
}

// Start starts a command. What the program does wrong is in the Exit; an error means that
// the sandbox is gone or the host failed.
func (s *Sandbox) Start(ctx context.Context, cmd sandbox.Command) (sandbox.Process, error) {
	if len(cmd.Argv) == 0 {
		return nil, errors.New("command without arguments")
	}
	if cmd.PTY != nil && !s.l.info.PTY {
		return nil, s.l.info.Lacks("pty")
	}
	if failed := s.checkUser(cmd); failed != nil {
		return notStarted{failed}, nil
	}
	p := &process{s: s, cmd: cmd, running: cmd.PTY == nil, started: make(chan guest.Reply, 1), ended: make(chan struct{})}
	theirs, err := p.open()
	if err != nil {
		closeTheirs(theirs)
		p.drop()
		return nil, err
	}
	failed, err := p.launch(ctx, theirs)
	closeTheirs(theirs)
	if err != nil {
		p.drop()
		return nil, err
	}
	if failed != nil {
		p.drop()
		return notStarted{failed}, nil
	}
	p.began = time.Now()
	s.hog.begin()
	p.run()
	return p, nil
}

// checkUser refuses ids that the sandbox does not have. A user namespace does so itself;
// without one they would be those of another sandbox.
func (s *Sandbox) checkUser(cmd sandbox.Command) *sandbox.StartFailure {
	for _, id := range append([]uint32{cmd.User.UID, cmd.User.GID}, cmd.User.Groups...) {
		if id >= s.ids.Size {
			return &sandbox.StartFailure{Kind: "start_failed", Path: cmd.Argv[0], Errno: int(unix.EINVAL)}
		}
	}
	return nil
}

// notStarted is a command that never ran.
type notStarted struct{ failure *sandbox.StartFailure }

func (n notStarted) Wait() sandbox.Exit              { return sandbox.Exit{NotStarted: n.failure} }
func (n notStarted) Kill()                           {}
func (n notStarted) Resize(sandbox.WindowSize) error { return errors.New("not a terminal") }

// open makes the pipes and the call's cgroup. theirs are the descriptors for the guest,
// in the protocol's order.
func (p *process) open() (theirs []*os.File, err error) {
	if p.slot, err = p.s.slots.acquire(); err != nil {
		return nil, err
	}
	var stdin *os.File
	if p.cmd.Stdin == nil || p.cmd.PTY != nil {
		if stdin, err = devNull(); err != nil {
			return nil, err
		}
	} else if stdin, p.stdin, err = p.pipe(1); err != nil {
		return nil, err
	}
	theirs = append(theirs, stdin)
	outs := []io.Writer{p.cmd.Stdout, p.cmd.Stderr}
	if p.cmd.FD3 != nil {
		outs = append(outs, p.cmd.FD3)
	}
	for i, to := range outs {
		if p.cmd.PTY != nil && i < 2 {
			theirs = append(theirs, stdin)
			continue
		}
		w, r, err := p.pipe(0)
		if err != nil {
			return theirs, err
		}
		theirs = append(theirs, w)
		p.pumps = append(p.pumps, newPump(r, to, i < 2))
	}
	tasks, err := p.slot.tasks()
	return append(theirs, tasks...), err
}

// devNull is the stdin of all commands without one.
var devNull = sync.OnceValues(func() (*os.File, error) { return os.Open(os.DevNull) })

// closeTheirs closes what the guest has by now.
func closeTheirs(files []*os.File) {
	null, _ := devNull()
	for _, f := range files {
		if f != null {
			_ = f.Close()
		}
	}
}

// pipe makes a pipe whose other end belongs to the sandbox's user, so that a program may
// reopen its own streams by /dev/stdout. ours is 0 for the reading end, 1 for the writing
// one; it goes to the netpoller, which gives it deadlines and lets Close end its use.
func (p *process) pipe(ours int) (theirEnd, ourEnd *os.File, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, err
	}
	owner := int(p.s.ids.HostID + p.cmd.User.UID)
	err = unix.Fchown(fds[1], owner, int(p.s.ids.HostID+p.cmd.User.GID))
	if err = errors.Join(err, unix.SetNonblock(fds[ours], true)); err != nil {
		_ = unix.Close(fds[0])
		_ = unix.Close(fds[1])
		return nil, nil, err
	}
	return os.NewFile(uintptr(fds[1-ours]), "|theirs"), os.NewFile(uintptr(fds[ours]), "|ours"), nil
}

// launch sends EXEC and, for a terminal, waits for the answer.
func (p *process) launch(ctx context.Context, theirs []*os.File) (*sandbox.StartFailure, error) {
	s := p.s
	s.mu.Lock()
	if s.over || s.stopping {
		f := s.fate
		s.mu.Unlock()
		return nil, fmt.Errorf("sandbox %s is gone: %s", s.name, f.Kind)
	}
	s.nextCall++
	id := s.nextCall
	s.calls[id] = p
	s.mu.Unlock()
	if p.slot.sweep != nil {
		p.slot.sweep = func(kill bool) int { return s.sweep(id, kill) }
	}
	frame := p.frame(id)
	frame.Slot = p.slot.number()
	short, large := frame.Encode()
	if large != nil {
		if len(large) > maxArguments {
			p.unregister(id)
			return &sandbox.StartFailure{Kind: "argument_list_too_long", Path: p.cmd.Argv[0], Errno: int(unix.E2BIG)}, nil
		}
		m, err := memfd(large)
		if err != nil {
			p.unregister(id)
			return nil, err
		}
		defer func() { _ = m.Close() }()
		theirs = append(theirs, m)
	}
	if err := s.guest.sendBytes(short, theirs...); err != nil {
		p.unregister(id)
		return nil, fmt.Errorf("ask guest: %w", err)
	}
	p.slot.handed = frame.Slot != 0
	if p.cmd.PTY == nil { // its end says it all
		return nil, nil
	}
	select {
	case r := <-p.started:
		if r.Type == guest.Failed {
			return startFailure(r, &p.cmd), nil
		}
		return nil, nil
	case <-ctx.Done():
		p.end()
		return nil, context.Cause(ctx)
	}
}

// maxArguments bounds argv and environment together, beyond what the kernel takes.
const maxArguments = 8 << 20

func memfd(b []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("exec", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "exec")
	if _, err := f.Write(b); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

func (p *process) unregister(id uint32) {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	delete(p.s.calls, id)
}

func (p *process) frame(id uint32) guest.ExecFrame {
	c := &p.cmd
	f := guest.ExecFrame{
		ID: id, UID: c.User.UID, GID: c.User.GID, Umask: c.Umask, Groups: c.User.Groups,
		Rlimits: p.s.rlimits, Dir: c.Dir, Argv: c.Argv, Env: c.Env,
	}
	if p.s.powerless { // the guest knows the host's ids alone
		f.UID, f.GID, f.Groups = f.UID+p.s.ids.HostID, f.GID+p.s.ids.HostID, slices.Clone(f.Groups)
		for i := range f.Groups {
			f.Groups[i] += p.s.ids.HostID
		}
	}
	if f.Umask == 0 {
		f.Umask = 0o022
	}
	if f.Dir == "" {
		f.Dir = "/"
	}
	if c.PTY != nil {
		f.Flags |= guest.PTY
		f.Rows, f.Cols = uint32(c.PTY.Rows), uint32(c.PTY.Cols)
	}
	if c.FD3 != nil {
		f.Flags |= guest.HasFD3
	}
	for _, e := range c.Env {
		if v, ok := strings.CutPrefix(e, "PATH="); ok {
			f.Path = v
		}
	}
	return f
}

// execKinds name what the kernel said to an exec.
var execKinds = map[syscall.Errno]string{
	unix.ENOENT: "command_not_found", unix.ENOTDIR: "command_not_found",
	unix.EACCES: "permission_denied", unix.EPERM: "permission_denied",
	unix.ENOEXEC: "not_executable", unix.E2BIG: "argument_list_too_long",
}

// cwdKinds name what the kernel said to a working directory that may be there.
var cwdKinds = map[syscall.Errno]string{unix.ENOTDIR: "cwd_not_a_directory", unix.EACCES: "permission_denied"}

// startFailure names what kept a program from starting.
func startFailure(r guest.Reply, c *sandbox.Command) *sandbox.StartFailure {
	errno := syscall.Errno(r.Errno)
	f := &sandbox.StartFailure{Kind: "start_failed", Path: c.Argv[0], Errno: int(r.Errno)}
	switch {
	case r.Step == guest.StepCwd:
		f.Path, f.Kind = c.Dir, "cwd_not_found"
		if kind := cwdKinds[errno]; kind != "" {
			f.Kind = kind
		}
	case errno == unix.EAGAIN && (r.Step == guest.StepFork || r.Step == guest.StepCgroup):
		f.Kind = "pids_limit"
	case r.Step == guest.StepExec && execKinds[errno] != "":
		f.Kind = execKinds[errno]
	}
	return f
}

// take is called by the sandbox's listener with each frame of this call.
func (p *process) take(r guest.Reply, files []*os.File) error {
	switch r.Type {
	case guest.Started:
		if p.running {
			return errors.New("guest started what it was not to tell of, or twice")
		}
		if len(files) != 1 {
			return errors.New("guest sent no terminal")
		}
		p.tty, p.running = files[0], true
		p.started <- r
	case guest.Failed:
		if !p.running { // not even a child
			p.started <- r
			return nil
		}
		p.failure = startFailure(r, &p.cmd)
		p.once.Do(func() { close(p.ended) })
	case guest.Exited:
		if !p.running {
			return errors.New("guest ended a call that it did not start")
		}
		p.status = unix.WaitStatus(uint32(r.Status))
		p.once.Do(func() { close(p.ended) })
	case guest.Swept, guest.Sweep, guest.Setup, guest.Ready, guest.Exec, guest.Clone, guest.Ahead, guest.Keep, guest.Bury, guest.Buried:
		return fmt.Errorf("guest frame of type %d for a call", r.Type)
	}
	return nil
}

// lost is called when the sandbox ended before the call did.
func (p *process) lost() {
	p.gone = true
	p.once.Do(func() { close(p.ended) })
	select {
	case p.started <- guest.Reply{Type: guest.Failed, Step: guest.StepFork, Errno: int32(unix.ESRCH)}:
	default:
	}
}

// run starts the pumps and the clocks.
func (p *process) run() {
	if p.tty != nil {
		u := newPump(pollable(p.tty), p.cmd.Stdout, true)
		p.tty, p.pumps = u.from, append(p.pumps, u)
		if p.cmd.Stdin != nil {
			go func() { _, _ = io.Copy(p.tty, p.cmd.Stdin) }()
		}
	}
	for _, u := range p.pumps {
		go u.run()
	}
	if p.stdin != nil {
		// Not waited for: the caller's reader may block for longer than the program lives.
		go func() {
			_, _ = io.Copy(p.stdin, p.cmd.Stdin)
			_ = p.stdin.Close()
		}()
	}
	if p.cmd.Timeout > 0 {
		timer := time.AfterFunc(p.cmd.Timeout, func() {
			p.timedOut.Store(true)
			p.end()
		})
		go func() { <-p.ended; timer.Stop() }()
	}
	if p.cmd.CPUTime > 0 {
		go p.watchCPU(p.slot.cpu0)
	}
}

// watchCPU looks at the call's CPU time ever more often as it nears its bound.
func (p *process) watchCPU(from time.Duration) {
	for {
		left := p.cmd.CPUTime - (p.slot.cpu() - from)
		if left <= 0 {
			p.cpuTimedOut.Store(true)
			p.end()
			return
		}
		select {
		case <-p.ended:
			return
		case <-time.After(max(5*time.Millisecond, min(left/4, time.Second))):
		}
	}
}

// Kill ends every process of the command.
func (p *process) Kill() {
	p.killed.Store(true)
	p.end()
}

// Resize sets the terminal's size.
func (p *process) Resize(w sandbox.WindowSize) error {
	if p.tty == nil {
		return errors.New("not a terminal")
	}
	return unix.IoctlSetWinsize(int(p.tty.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: w.Rows, Col: w.Cols})
}

// Wait returns when the main process is gone and its output is delivered. Processes that
// it left behind do not hold it up; what they still write is drained and dropped.
func (p *process) Wait() sandbox.Exit {
	<-p.ended
	wall := time.Since(p.began)
	e := sandbox.Exit{TimedOut: p.timedOut.Load(), CPUTimedOut: p.cpuTimedOut.Load()}
	if p.stdin != nil {
		_ = p.stdin.Close()
	}
	bounded := e.TimedOut || e.CPUTimedOut || p.killed.Load()
	if bounded || p.cmd.Leftovers == sandbox.KillLeftovers {
		e.Leftover = p.killSlot()
	} else {
		e.Leftover = p.slot.population()
	}
	for _, u := range p.pumps {
		if held := u.finish(p.s.hold); held && u.counts {
			e.OutputHeld = true
		}
	}
	p.settle(&e, bounded, wall)
	p.releaseSlot()
	p.s.hog.end(e.Leftover > 0 && !bounded)
	return e
}

func (p *process) settle(e *sandbox.Exit, bounded bool, wall time.Duration) {
	switch {
	case p.failure != nil && bounded: // its child was stopped before it became the program
		e.Signal = int(unix.SIGKILL)
	case p.failure != nil:
		e.NotStarted = p.failure
	case p.gone:
		e.Signal = int(unix.SIGKILL)
	case p.status.Signaled():
		e.Signal = int(p.status.Signal())
	case !bounded:
		code := p.status.ExitStatus()
		e.Code = &code
	}
	cpu, ooms, pids := p.slot.cpu(), p.slot.ooms(), p.slot.pidsHits()
	e.OOM = ooms > p.slot.oom0
	e.HostOOM = e.OOM && !p.s.limitMet()
	e.PidsLimit = pids > p.slot.pids0
	e.Full = p.s.full()
	e.Usage = sandbox.Usage{
		CPU: cpu - p.slot.cpu0, Wall: wall, MemoryPeakBytes: max(0, p.slot.peak()-p.slot.mem0),
	}
	if e.Leftover == 0 && !p.gone {
		p.slot.rest(cpu, ooms, pids)
	}
}

// drop releases what a command that did not start held.
func (p *process) drop() {
	if p.stdin != nil {
		_ = p.stdin.Close()
	}
	for _, u := range p.pumps {
		_ = u.from.Close()
	}
	if p.slot != nil {
		p.releaseSlot()
	}
}
