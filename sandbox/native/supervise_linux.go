package native

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/paddock-run/paddock/sandbox"
)

// launcherProcess is one launcher process with the sandboxes that it holds.
type launcherProcess struct {
	cmd  *exec.Cmd
	conn *conn
	gone chan struct{}

	mu      sync.Mutex
	waiting map[uint64]chan started
	held    map[uint64]*Sandbox
	early   map[uint64]uint32
	dead    bool
}

// started is the launcher's answer to one request.
type started struct {
	reply
	files []*os.File
}

func (l *Launcher) spawnLocked() (*launcherProcess, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	theirs := os.NewFile(uintptr(pair[1]), "launcher")
	defer func() { _ = theirs.Close() }()
	c, err := newConn(pair[0])
	if err != nil {
		return nil, err
	}
	arg, err := json.Marshal(l.entry)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("/proc/self/exe") //nolint:noctx // it lives until Close
	cmd.Args = []string{"paddock-launcher"}
	cmd.Env = []string{l.entry.Variable + "=" + string(arg)}
	cmd.Stderr = os.Stderr
	cmd.ExtraFiles = []*os.File{theirs}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start launcher: %w", err)
	}
	p := &launcherProcess{
		cmd: cmd, conn: c, gone: make(chan struct{}),
		waiting: map[uint64]chan started{}, held: map[uint64]*Sandbox{}, early: map[uint64]uint32{},
	}
	l.wg.Go(func() { l.listen(p) })
	return p, nil
}

// listen takes a launcher's answers until it is gone, then ends what it held.
func (l *Launcher) listen(p *launcherProcess) {
	buf := make([]byte, maxMessage)
	for {
		n, files, err := p.conn.receive(buf)
		if err != nil || n == 0 {
			break
		}
		var r reply
		if err := json.Unmarshal(buf[:n], &r); err != nil {
			closeAll(files)
			break
		}
		p.deliver(r, files)
	}
	_ = p.conn.uc.Close()
	err := p.cmd.Wait()
	p.mu.Lock()
	p.dead = true
	waiting, held := p.waiting, p.held
	p.waiting, p.held = nil, nil
	p.mu.Unlock()
	for _, w := range waiting {
		close(w)
	}
	for _, s := range held {
		l.tree.killAll(s.name)
		s.ended(sandbox.Fate{Kind: sandbox.LauncherDied, Evidence: fmt.Sprintf("launcher process %d: %v", p.cmd.Process.Pid, err)})
	}
	close(p.gone)
	if len(held) > 0 {
		l.cfg.Log.Error("launcher died", slog.Int("sandboxes", len(held)), slog.Any("error", err))
	}
}

func (p *launcherProcess) deliver(r reply, files []*os.File) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.Exited {
		if s, ok := p.held[r.ID]; ok {
			delete(p.held, r.ID)
			go s.exited(unix.WaitStatus(r.Status))
		} else {
			p.early[r.ID] = r.Status
		}
		return
	}
	w, ok := p.waiting[r.ID]
	if !ok { // its caller gave up
		closeAll(files)
		return
	}
	delete(p.waiting, r.ID)
	w <- started{reply: r, files: files}
}

// hold makes p tell s of its guest's end.
func (p *launcherProcess) hold(id uint64, s *Sandbox) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch status, ended := p.early[id]; {
	case ended:
		delete(p.early, id)
		go s.exited(unix.WaitStatus(status))
	case p.dead:
		go s.ended(sandbox.Fate{Kind: sandbox.LauncherDied, Evidence: "launcher process is gone"})
	default:
		p.held[id] = s
	}
}

// ask sends a request; what comes back is sent to the channel, which is closed when the
// launcher dies before.
func (p *launcherProcess) ask(r *request, fds []*os.File) (chan started, error) {
	answer := make(chan started, 1)
	p.mu.Lock()
	if p.dead {
		p.mu.Unlock()
		return nil, errors.New("launcher process died")
	}
	p.waiting[r.ID] = answer
	p.mu.Unlock()
	if err := p.conn.request(r, fds...); err != nil {
		return nil, fmt.Errorf("ask launcher: %w", err)
	}
	return answer, nil
}

// failure is what an answer says that went wrong; ok is false when none came.
func (a started) failure(ok bool) error {
	switch {
	case !ok:
		return errors.New("launcher process died")
	case a.Error != "":
		closeAll(a.files)
		return errors.New(a.Error)
	}
	return nil
}

// removeContainer has a launcher process remove what its starter keeps of a sandbox. One
// that died holds nothing: the next sweeps.
func (l *Launcher) removeContainer(p *launcherProcess, name string) error {
	l.mu.Lock()
	l.nextID++
	r := &request{ID: l.nextID, Remove: true, Name: name}
	l.mu.Unlock()
	answer, err := p.ask(r, nil)
	if err != nil {
		return nil //nolint:nilerr // it is gone
	}
	a, ok := <-answer
	if !ok {
		return nil
	}
	return a.failure(ok)
}

// launcher returns a live launcher process, a new one where the last has died.
func (l *Launcher) launcher() (*launcherProcess, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, ErrClosed
	}
	select {
	case <-l.proc.gone:
		p, err := l.spawnLocked()
		if err != nil {
			return nil, err
		}
		l.proc = p
	default:
	}
	return l.proc, nil
}
