package native

import (
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/paddock-run/paddock/guest"
	"github.com/paddock-run/paddock/sandbox"
)

// nursery is the guest's program as a process that clones itself: its page tables are a
// few pages, where a Go program's are copied for a third of a millisecond, and the clone is
// a guest without another exec. The guests are children of the launcher.
type nursery struct {
	mu     sync.Mutex // one clone at a time
	socket int
	nextID uint32
	pid    int
}

// newNursery starts one. It ends with the launcher.
func newNursery(program, null *os.File) (*nursery, error) {
	h, err := startHelper(program, null)
	if err != nil {
		return nil, fmt.Errorf("start nursery: %w", err)
	}
	return &nursery{socket: h.socket, pid: h.cmd.Process.Pid}, nil
}

// helper is a process of the guest's program outside of all sandboxes. It serves the other
// end of the socket and ends with it.
type helper struct {
	socket int
	cmd    *exec.Cmd
}

func startHelper(program, null *os.File) (*helper, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	theirs := os.NewFile(uintptr(pair[1]), "socket")
	defer func() { _ = theirs.Close() }()
	// By its number in the child, where the socket may have that of the program here.
	cmd := exec.Command("/proc/self/fd/4") //nolint:noctx // our own program; it ends with its socket
	cmd.Args, cmd.Env = []string{"init"}, []string{}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = null, null, os.Stderr
	cmd.ExtraFiles = []*os.File{theirs, program}
	if err := cmd.Start(); err != nil {
		_ = unix.Close(pair[0])
		return nil, err
	}
	return &helper{socket: pair[0], cmd: cmd}, nil
}

// newborn is where and as whom a guest is to begin.
type newborn struct {
	ids    sandbox.IDMap
	socket int
	// birth is the cgroup2 directory that it is cloned into, or -1.
	birth int
	// tasks are the files of its v1 cgroups; home: the last is for after all else.
	tasks []int
	home  bool
}

// unborn is a clone that came to nothing; its pid, when there was one, is to be forgotten.
type unborn struct {
	pid   int
	errno syscall.Errno
}

func (u *unborn) Error() string { return "clone guest: " + u.errno.Error() }
func (u *unborn) Unwrap() error { return u.errno }

// clone makes a guest in namespaces of its own, which waits for SETUP.
func (n *nursery) clone(b newborn) (pid, pidfd int, err error) {
	fds := []int{b.socket}
	if b.birth >= 0 {
		fds = append(fds, b.birth)
	}
	fds = append(fds, b.tasks...)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.nextID++
	f := guest.CloneFrame{ID: n.nextID, HostID: b.ids.HostID, Size: b.ids.Size, Birth: b.birth >= 0, Home: b.home}
	if err := unix.Sendmsg(n.socket, f.Encode(), unix.UnixRights(fds...), nil, unix.MSG_NOSIGNAL); err != nil {
		return 0, -1, fmt.Errorf("ask nursery: %w", err)
	}
	buf, oob := make([]byte, 64), make([]byte, unix.CmsgSpace(4))
	size, oobn, err := receiveRaw(n.socket, buf, oob)
	if err != nil {
		return 0, -1, fmt.Errorf("nursery: %w", err)
	}
	r, err := guest.Decode(buf[:size])
	switch {
	case err != nil:
		return 0, -1, fmt.Errorf("nursery ended: %w", err)
	case r.Type == guest.Failed:
		return 0, -1, &unborn{pid: int(r.Step), errno: syscall.Errno(r.Errno)}
	case r.Type != guest.Started || r.ID != f.ID:
		return 0, -1, fmt.Errorf("nursery answered with frame %d of %d", r.Type, r.ID)
	}
	if pidfd, err = onePassed(oob[:oobn]); err != nil {
		return 0, -1, fmt.Errorf("nursery: %w", err)
	}
	return int(r.Pid), pidfd, nil
}

func receiveRaw(socket int, buf, oob []byte) (n, oobn int, err error) {
	for {
		n, oobn, _, _, err = unix.Recvmsg(socket, buf, oob, unix.MSG_CMSG_CLOEXEC)
		if err != unix.EINTR {
			return n, oobn, err
		}
	}
}

func onePassed(oob []byte) (int, error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return -1, err
	}
	if len(messages) == 1 {
		if fds, err := unix.ParseUnixRights(&messages[0]); err == nil && len(fds) == 1 {
			return fds[0], nil
		}
	}
	return -1, fmt.Errorf("%d control messages, want one descriptor", len(messages))
}
