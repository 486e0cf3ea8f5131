package native

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/paddock-run/paddock/sandbox"
)

// The daemon and its launcher exchange one packet a message over a SOCK_SEQPACKET pair:
// JSON, and descriptors by SCM_RIGHTS. Behind the JSON of a request for a sandbox come a
// NUL and the frame that its guest is set up with.

// request asks the launcher for a sandbox. The mount of an upper on a disk goes along, and
// the descriptors of lowers that have one, in order.
type request struct {
	ID uint64
	// Release, with an ID alone, gives up an upper that was Attached; it is not answered.
	Release bool `json:",omitempty"`
	// Prepare, with Name and IDs, makes a blank: cgroups and a guest in its namespaces. Drop,
	// with Name, ends one; it is not answered.
	Prepare, Drop bool `json:",omitempty"`
	// Remove, with Name, removes what a starter keeps of an ended container.
	Remove   bool `json:",omitempty"`
	Name     string
	IDs      sandbox.IDMap
	Lowers   []lower
	Upper    sandbox.Upper
	Limits   []limit `json:",omitempty"`
	Hostname string  `json:",omitempty"`
	// VisibleCPUs is how many CPUs its programs are told they have; CPUs are those that they
	// run on, where not on all.
	VisibleCPUs int   `json:",omitempty"`
	CPUs        []int `json:",omitempty"`
	// OCI is for a starter.
	OCI *specs.Spec `json:",omitempty"`
	// Frame is the guest's SETUP.
	Frame []byte `json:"-"`
	// Listen are the ports of sandbox.Spec.
	Listen []uint16 `json:",omitempty"`
}

// encode makes the packet.
func (r *request) encode() ([]byte, error) {
	b, err := json.Marshal(r)
	if err != nil || r.Frame == nil {
		return b, err
	}
	return append(append(b, 0), r.Frame...), nil
}

// decodeRequest reads a packet, of which it keeps nothing.
func decodeRequest(b []byte) (*request, error) {
	text, frame, ok := bytes.Cut(b, []byte{0})
	r := &request{}
	if ok {
		r.Frame = bytes.Clone(frame)
	}
	return r, json.Unmarshal(text, r)
}

type lower struct {
	Path    string `json:",omitempty"`
	FD      bool   `json:",omitempty"`
	Shifted bool   `json:",omitempty"`
}

// reply answers a request (Started: root, upper, pidfd, the upper's mount, the guest's
// socket and the listeners go along) or tells that a guest is gone.
type reply struct {
	ID    uint64
	Error string `json:",omitempty"`
	Pid   int    `json:",omitempty"`
	// Attached: the upper stays in the launcher's mount namespace until it is released.
	Attached bool `json:",omitempty"`
	// Slot: the cgroups of the first call are there.
	Slot bool `json:",omitempty"`
	// Cgroup is where PID 1 is, from the hierarchy of memory on, where that is not said by
	// the sandbox's name.
	Cgroup string `json:",omitempty"`
	// Exited is set in the second reply of an ID; Status is as wait(2) gives it.
	Exited bool   `json:",omitempty"`
	Status uint32 `json:",omitempty"`
}

const (
	maxMessage = 1 << 20
	maxPassed  = 250 // the kernel's SCM_MAX_FD is 253
)

// conn is one end of a pair. Send may be called from any goroutine.
type conn struct {
	uc *net.UnixConn
	mu sync.Mutex // one packet at a time
}

func newConn(fd int) (*conn, error) {
	for _, o := range []int{unix.SO_SNDBUF, unix.SO_RCVBUF} {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, o, maxMessage) // more where the host allows
	}
	f := os.NewFile(uintptr(fd), "seqpacket")
	c, err := net.FileConn(f)
	_ = f.Close()
	if err != nil {
		return nil, err
	}
	uc, ok := c.(*net.UnixConn)
	if !ok {
		return nil, errors.New("not a unix socket")
	}
	return &conn{uc: uc}, nil
}

// request sends a request, reply a reply.
func (c *conn) request(r *request, files ...*os.File) error {
	b, err := r.encode()
	if err != nil {
		return err
	}
	return c.sendBytes(b, files...)
}

func (c *conn) reply(r reply, files ...*os.File) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return c.sendBytes(b, files...)
}

func (c *conn) sendBytes(b []byte, files ...*os.File) error {
	if len(b) > maxMessage {
		return fmt.Errorf("message of %d bytes, at most %d", len(b), maxMessage)
	}
	var oob []byte
	if len(files) > 0 {
		fds := make([]int, len(files))
		for i, f := range files {
			fds[i] = int(f.Fd())
		}
		oob = unix.UnixRights(fds...)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	_, _, err := c.uc.WriteMsgUnix(b, oob, nil)
	return err
}

// receive reads one packet; the caller owns the files.
func (c *conn) receive(buf []byte) (n int, files []*os.File, err error) {
	oob := make([]byte, unix.CmsgSpace(4*maxPassed))
	n, oobn, flags, _, err := c.uc.ReadMsgUnix(buf, oob)
	if err != nil {
		return 0, nil, err
	}
	if files, err = passedFiles(oob[:oobn]); err != nil {
		return 0, nil, err
	}
	if flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		closeAll(files)
		return 0, nil, errors.New("packet cut short")
	}
	return n, files, nil
}

func passedFiles(oob []byte) ([]*os.File, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	var files []*os.File
	for _, m := range messages {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			continue
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), "passed"))
		}
	}
	return files, nil
}
