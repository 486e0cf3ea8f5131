package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paddock-run/paddock/internal/engine"
	"github.com/paddock-run/paddock/internal/mount"
	"github.com/paddock-run/paddock/internal/undo"
	"github.com/paddock-run/paddock/sandbox/native"
)

// settings travel to the launcher process.
type settings struct {
	// Host is the engine's URL, Image the image of PID 1.
	Host, Image string
	// Dir is a directory of the host for sockets.
	Dir string
	// Parent is the launcher's cgroup parent, Mark tells its containers' names from others'.
	Parent, Mark string
	// Cgroupfs says that the engine takes a path as the parent of a container's cgroup.
	Cgroupfs bool
}

// patience bounds a request to the engine.
const patience = time.Minute

// starter implements native.Starter in the launcher process.
type starter struct {
	settings
	engine *engine.Engine
}

func newStarter(config json.RawMessage, _ native.Env) (native.Starter, error) {
	s := &starter{}
	if err := json.Unmarshal(config, &s.settings); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var err error
	s.engine, err = engine.Dial(ctx, s.Host)
	return s, err
}

// starting is one container on its way.
type starting struct {
	*starter
	c *native.Container

	dir      string
	listener int
	id       string
	status   <-chan int
	pid      int
	pidfd    *os.File
	// root and parts are detached mounts for the container's namespace.
	root, dev *os.File
	parts     []*os.File
}

// Start has the engine start the guest, which dials back, and puts the fork in the place of
// its root.
func (s *starter) Start(c *native.Container) (native.Started, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	p := &starting{starter: s, c: c, dir: filepath.Join(s.Dir, c.Name), listener: -1}
	defer p.close()
	err := undo.Run(
		undo.Step{Name: "listen", Do: p.listen},
		undo.Step{Name: "create", Do: func() error { return p.create(ctx) }, Undo: func() error { return s.engine.Discard(ctx, p.id) }},
		undo.Step{Name: "start", Do: func() error { return p.launch(ctx) }},
		undo.Step{Name: "hear from PID 1", Do: p.accept},
		undo.Step{Name: "clone the fork", Do: p.clone},
		undo.Step{Name: "put the fork in place", Do: func() error { return native.Enter(p.pidfd, p.enter) }},
	)
	if err != nil {
		return native.Started{}, err
	}
	return native.Started{PID: p.pid, Wait: p.wait}, nil
}

// close gives up what a container no longer needs once it runs.
func (p *starting) close() {
	if p.listener >= 0 {
		_ = unix.Close(p.listener)
	}
	for _, f := range append([]*os.File{p.pidfd, p.root, p.dev}, p.parts...) {
		if f != nil {
			_ = f.Close()
		}
	}
	_ = os.RemoveAll(p.dir)
}

// listen opens the socket that PID 1 dials. Only root can get to it.
func (p *starting) listen() error {
	if err := os.Mkdir(p.dir, 0o700); err != nil {
		return err
	}
	dir, err := os.Open(p.dir) // a path by descriptor: a socket's has at most 107 bytes
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	if p.listener, err = unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0); err != nil {
		return err
	}
	at := &unix.SockaddrUnix{Name: fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), socketName)}
	return errors.Join(unix.Bind(p.listener, at), unix.Listen(p.listener, 1))
}

func (p *starting) create(ctx context.Context) error {
	b, err := box(p.c.Name, p.settings, p.c.Parent, p.c.OCI)
	if err != nil {
		return err
	}
	b.Source = p.dir
	p.id, err = p.engine.Create(ctx, b)
	return err
}

func (p *starting) launch(ctx context.Context) (err error) {
	if p.status, err = p.engine.Launch(ctx, p.id); err != nil {
		return err
	}
	if p.pid, err = p.engine.PID(ctx, p.id); err != nil {
		return err
	}
	fd, err := unix.PidfdOpen(p.pid, 0)
	if err != nil {
		return fmt.Errorf("hold PID 1: %w", err)
	}
	p.pidfd = os.NewFile(uintptr(fd), "pidfd")
	return nil
}

// accept takes PID 1's connection, and nobody else's, and gives it its socket.
func (p *starting) accept() error {
	poll := []unix.PollFd{{Fd: int32(p.listener), Events: unix.POLLIN}, {Fd: int32(p.pidfd.Fd()), Events: unix.POLLIN}} //nolint:gosec // descriptors
	n, err := unix.Poll(poll, int(patience.Milliseconds()))
	for errors.Is(err, unix.EINTR) {
		n, err = unix.Poll(poll, int(patience.Milliseconds()))
	}
	switch {
	case err != nil:
		return err
	case n == 0:
		return errors.New("it does not dial")
	case poll[0].Revents == 0:
		return fmt.Errorf("it ended with status %d", <-p.status)
	}
	fd, _, err := unix.Accept4(p.listener, unix.SOCK_CLOEXEC)
	if err != nil {
		return err
	}
	peer, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err == nil && int(peer.Pid) != p.pid {
		err = fmt.Errorf("process %d dialled in place of %d", peer.Pid, p.pid)
	}
	if err == nil {
		err = unix.Sendmsg(fd, []byte("socket"), unix.UnixRights(int(p.c.Socket.Fd())), nil, unix.MSG_NOSIGNAL)
	}
	return errors.Join(err, unix.Close(fd))
}

// clone makes mounts that can be moved to another namespace, which attached ones cannot.
func (p *starting) clone() (err error) {
	if p.root, err = mount.Clone(p.c.Root); err != nil {
		return err
	}
	if p.dev, err = mount.ClonePath(p.c.Dev); err != nil {
		return err
	}
	if err := mount.SetAttrs(p.dev, mount.NoSUID|mount.NoExec|mount.ReadOnly, nil); err != nil {
		return err
	}
	for _, part := range p.c.Parts {
		m, err := mount.ClonePath(part.Source)
		if err != nil {
			return err
		}
		p.parts = append(p.parts, m)
		attrs := uint64(mount.NoSUID | mount.NoDev)
		if !part.Writable {
			attrs |= mount.ReadOnly | mount.NoExec
		}
		if err := mount.SetAttrs(m, attrs, nil); err != nil {
			return err
		}
	}
	return nil
}

// enter works in the container's mount namespace: the fork becomes its root, with a /dev
// like a native sandbox's, and the engine's /proc, terminals and shared memory go along.
func (p *starting) enter() error {
	at, err := os.OpenFile(forkDir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = at.Close() }()
	if err := mount.AttachTo(p.root, at); err != nil {
		return err
	}
	if err := p.attach(func(part native.Part) bool { return part.Writable }); err != nil {
		return err
	}
	if err := p.on("/dev", func(t *os.File) error { return mount.AttachTo(p.dev, t) }); err != nil {
		return err
	}
	for _, path := range []string{"/proc", "/dev/pts", "/dev/shm"} {
		if err := p.on(path, func(t *os.File) error { return mount.Move(path, t) }); err != nil {
			return err
		}
	}
	if err := p.attach(func(part native.Part) bool { return !part.Writable }); err != nil {
		return err
	}
	if r := p.c.OCI.Root; r != nil && r.Readonly {
		if err := mount.SetAttrs(p.root, mount.ReadOnly, nil); err != nil {
			return err
		}
	}
	return mount.Pivot(p.root)
}

// attach puts parts into the fork.
func (p *starting) attach(which func(native.Part) bool) error {
	for i, part := range p.c.Parts {
		if !which(part) {
			continue
		}
		if err := p.on(part.Destination, func(t *os.File) error { return mount.AttachTo(p.parts[i], t) }); err != nil {
			return err
		}
	}
	return nil
}

// on calls work with a place in the fork.
func (p *starting) on(path string, work func(*os.File) error) error {
	t, err := mount.Target(p.root, path)
	if err == nil && t == nil {
		err = fmt.Errorf("the world has no %s", path)
	}
	if err != nil {
		return err
	}
	defer func() { _ = t.Close() }()
	return work(t)
}

// wait gives the status of an ended PID 1 in wait(2)'s form.
func (p *starting) wait() uint32 {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	var code int
	select {
	case code = <-p.status:
	case <-timer.C:
		code = -1
	}
	const bySignal = 128
	switch {
	case code < 0: // the engine did not say
		return uint32(unix.SIGKILL)
	case code > bySignal && code < bySignal+65:
		return uint32(code - bySignal)
	}
	return uint32(code) << 8
}

// Remove has the engine remove a container.
func (s *starter) Remove(name string) error {
	return s.engine.Discard(context.Background(), "paddock-"+name+"-"+s.Mark)
}
