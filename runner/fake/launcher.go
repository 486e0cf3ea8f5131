package fake

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/paddock-run/paddock/runner"
	"github.com/paddock-run/paddock/sandbox"
)

// Launcher starts fake sandboxes, their uppers below one directory.
type Launcher struct {
	root string

	mu sync.Mutex
	// fail, when set, is the error of the next starts.
	fail error
	live map[string]*Sandbox
}

// NewLauncher returns a launcher.
func NewLauncher(dir string) *Launcher {
	return &Launcher{root: dir, live: map[string]*Sandbox{}}
}

var _ runner.Launcher = (*Launcher)(nil)

// Fail makes later starts fail with err; nil heals it.
func (l *Launcher) Fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fail = err
}

// Live are the sandboxes that are not closed.
func (l *Launcher) Live() []*Sandbox {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []*Sandbox
	for _, s := range l.live {
		out = append(out, s)
	}
	return out
}

// Info says that it is a fake.
func (l *Launcher) Info() sandbox.Info {
	return sandbox.Info{Name: "fake", Freeze: true, Root: true, Listen: true, PerCall: true}
}

// Close stops every sandbox.
func (l *Launcher) Close() error {
	var err error
	for _, s := range l.Live() {
		err = errors.Join(err, s.Close())
	}
	return err
}

// Start makes a sandbox.
func (l *Launcher) Start(ctx context.Context, spec sandbox.Spec) (runner.Sandbox, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := errors.Join(l.fail, ctx.Err()); err != nil {
		return nil, err
	}
	if _, ok := l.live[spec.Name]; ok {
		return nil, fmt.Errorf("sandbox %s is there already", spec.Name)
	}
	dir, err := os.MkdirTemp(l.root, "upper-")
	if err != nil {
		return nil, err
	}
	upper, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	s := &Sandbox{l: l, name: spec.Name, upper: upper, tree: &tree{upper: dir}, done: make(chan struct{}), procs: map[*process]bool{}}
	for _, low := range spec.Root.Lowers {
		p := low.Path
		if low.Dir != nil {
			p = low.Dir.Name()
		}
		s.tree.lowers = append(s.tree.lowers, p)
	}
	if err := s.listen(ctx, spec.Listen); err != nil {
		return nil, errors.Join(err, upper.Close(), os.RemoveAll(dir))
	}
	l.live[spec.Name] = s
	return s, nil
}

// listen opens ports of the host's loopback, whichever are free, in place of the sandbox's.
func (s *Sandbox) listen(ctx context.Context, ports []uint16) error {
	s.ports = map[string]string{}
	var lc net.ListenConfig
	for _, port := range ports {
		l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return errors.Join(err, s.closeListeners())
		}
		s.listeners = append(s.listeners, l)
		s.ports[strconv.Itoa(int(port))] = l.Addr().String()
	}
	return nil
}

func (s *Sandbox) closeListeners() error {
	for _, l := range s.listeners {
		if err := l.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			return err
		}
	}
	return nil
}

// Listeners are the sockets that nc reaches.
func (s *Sandbox) Listeners() []net.Listener { return s.listeners }

// Sandbox is a fake sandbox.
type Sandbox struct {
	l     *Launcher
	name  string
	upper *os.File
	tree  *tree
	done  chan struct{}
	// ports are the addresses of the listeners by the port that the sandbox sees.
	listeners []net.Listener
	ports     map[string]string

	mu     sync.Mutex
	fate   sandbox.Fate
	ended  bool
	closed bool
	procs  map[*process]bool
	wg     sync.WaitGroup
	thawed chan struct{} // nil while not frozen
}

var (
	_ runner.Sandbox = (*Sandbox)(nil)
	_ runner.Breaker = (*Sandbox)(nil)
)

// Files acts on the tree.
func (s *Sandbox) Files() runner.Files { return s.tree }

// Done is closed when the sandbox has ended.
func (s *Sandbox) Done() <-chan struct{} { return s.done }

// Fate says how.
func (s *Sandbox) Fate() sandbox.Fate {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fate
}

// Upper is the writable layer.
func (s *Sandbox) Upper() *os.File { return s.upper }

// Usage is nothing: goroutines are not accounted for.
func (s *Sandbox) Usage(context.Context) (sandbox.Usage, error) { return sandbox.Usage{}, nil }

// Freeze stops processes between their commands.
func (s *Sandbox) Freeze(_ context.Context, frozen bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case frozen && s.thawed == nil:
		s.thawed = make(chan struct{})
	case !frozen && s.thawed != nil:
		close(s.thawed)
		s.thawed = nil
	}
	return nil
}

// Die ends the sandbox with a fate, as an event from inside or outside would.
func (s *Sandbox) Die(f sandbox.Fate) {
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		return
	}
	s.ended, s.fate = true, f
	for p := range s.procs {
		p.Kill()
	}
	s.mu.Unlock()
	_ = s.Freeze(context.Background(), false)
	s.wg.Wait()
	close(s.done)
}

// Break is a SIGKILL from outside.
func (s *Sandbox) Break() error {
	s.Die(sandbox.Fate{Kind: sandbox.Killed, Evidence: "SIGKILL from outside"})
	return nil
}

// Stop ends every process.
func (s *Sandbox) Stop(context.Context) error {
	s.Die(sandbox.Fate{Kind: sandbox.Stopped}) //nolint:contextcheck // the end goes on whatever becomes of ctx
	<-s.done
	return nil
}

// Close removes everything.
func (s *Sandbox) Close() error {
	if err := s.Stop(context.Background()); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	s.l.mu.Lock()
	delete(s.l.live, s.name)
	s.l.mu.Unlock()
	return errors.Join(s.closeListeners(), s.upper.Close(), os.RemoveAll(s.tree.upper))
}

// process is a goroutine that runs a script; its children are goroutines too.
type process struct {
	s    *Sandbox
	cmd  sandbox.Command
	kill chan struct{}
	once sync.Once
	end  chan sandbox.Exit

	mu       sync.Mutex
	children int
	killed   bool
	timedOut bool
}

// Start starts a command.
func (s *Sandbox) Start(_ context.Context, cmd sandbox.Command) (sandbox.Process, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return nil, errors.New("the sandbox has ended")
	}
	if cmd.PTY != nil {
		return nil, sandbox.Info{Name: "fake"}.Lacks("pty")
	}
	p := &process{s: s, cmd: cmd, kill: make(chan struct{}), end: make(chan sandbox.Exit, 1)}
	s.procs[p] = true
	s.wg.Add(1)
	go p.main() //nolint:contextcheck // a process outlives the request that started it
	return p, nil
}

// Kill ends the process and its children.
func (p *process) Kill() {
	p.once.Do(func() {
		p.mu.Lock()
		p.killed = true
		p.mu.Unlock()
		close(p.kill)
	})
}

// Wait returns how it ended.
func (p *process) Wait() sandbox.Exit { return <-p.end }

// Resize does nothing.
func (p *process) Resize(sandbox.WindowSize) error { return nil }

func (p *process) main() {
	defer p.s.wg.Done()
	if p.cmd.Timeout > 0 {
		t := time.AfterFunc(p.cmd.Timeout, func() {
			p.mu.Lock()
			p.timedOut = true
			p.mu.Unlock()
			p.Kill()
		})
		defer t.Stop()
	}
	began := time.Now()
	var exit sandbox.Exit
	if fail := p.startFailure(); fail != nil {
		exit.NotStarted = fail
	} else {
		code, sig := p.program()
		p.mu.Lock()
		switch {
		case p.killed:
			exit.Signal, exit.TimedOut = 9, p.timedOut
		case sig != 0:
			exit.Signal = sig
		default:
			exit.Code = &code
		}
		exit.Leftover = p.children
		exit.OutputHeld = p.children > 0 && p.cmd.Leftovers != sandbox.KillLeftovers
		p.mu.Unlock()
		if p.cmd.Leftovers == sandbox.KillLeftovers {
			p.Kill()
		}
	}
	exit.Usage.Wall = time.Since(began)
	p.end <- exit
}

var programs = map[string]bool{"true": true, "false": true, "echo": true, "cat": true, "sleep": true, "nc": true, "sh": true, "/bin/sh": true}

func (p *process) startFailure() *sandbox.StartFailure {
	p.s.tree.mu.Lock()
	_, fi, err := p.s.tree.find(p.cmd.Dir)
	p.s.tree.mu.Unlock()
	switch {
	case err != nil:
		return &sandbox.StartFailure{Kind: "cwd_not_found", Path: p.cmd.Dir}
	case !fi.IsDir():
		return &sandbox.StartFailure{Kind: "cwd_not_a_directory", Path: p.cmd.Dir}
	case len(p.cmd.Argv) == 0 || !programs[p.cmd.Argv[0]]:
		return &sandbox.StartFailure{Kind: "command_not_found", Path: strings.Join(p.cmd.Argv[:min(1, len(p.cmd.Argv))], "")}
	}
	return nil
}

func (p *process) program() (code, sig int) {
	out, errOut, fd3 := or(p.cmd.Stdout), or(p.cmd.Stderr), or(p.cmd.FD3)
	sh := &shell{p: p, out: out, err: errOut, fd3: fd3}
	if strings.HasSuffix(p.cmd.Argv[0], "sh") {
		if len(p.cmd.Argv) < 3 || p.cmd.Argv[1] != "-c" {
			return 127, 0
		}
		return sh.script(p.cmd.Argv[2])
	}
	return sh.simple(p.cmd.Argv)
}

func or(w io.Writer) io.Writer {
	if w == nil {
		return io.Discard
	}
	return w
}
