// Package guest carries the static PID 1 of a sandbox and speaks its protocol.
//
// The guest answers on one SOCK_SEQPACKET socket, a frame a packet: u32 type, u32 id, then
// fields. Integers are little endian, a string is u32 length (with its NUL) and bytes, a
// list is u32 count and strings. Descriptors ride along by SCM_RIGHTS.
//
//	launcher -> nursery  CLONE id                     any number, one at a time
//	nursery  -> launcher STARTED id pid + pidfd | FAILED id step errno
//	daemon -> undertaker KEEP + descriptors, BURY id  any number, one at a time
//	undertaker -> daemon BURIED id                    when they are closed
//	launcher -> guest  AHEAD                          once or never, not answered
//	launcher -> guest  SETUP                          once
//	guest -> launcher  READY | FAILED errno           once
//	daemon   -> guest  EXEC id                        any number, also at once
//	guest -> daemon    STARTED id pid + pty | FAILED id step errno   where a pty is asked for
//	daemon   -> guest  SWEEP id kill                  what is left of a program's session
//	guest -> daemon    SWEPT id found
//	guest -> daemon    EXITED id status | FAILED id step errno       the program's end, or
//	                   why it did not start
//
// The nursery is the same program, started as anything else than PID 1: it clones itself
// into new namespaces, and the clones are guests. The undertaker is another such process, and
// closes what it is given. All end when their socket closes. All that comes from a guest is
// hostile input.
package guest

import (
	"embed"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
)

//go:generate sh build.sh

//go:embed bin/*
var bin embed.FS

// ErrNotBuilt says: the binary holds no guest for this architecture.
var ErrNotBuilt = errors.New("guest not built for " + runtime.GOARCH + ": run make build")

// Binary is the guest's program.
func Binary() ([]byte, error) {
	b, err := bin.ReadFile("bin/guest-linux-" + runtime.GOARCH)
	if err != nil {
		return nil, ErrNotBuilt
	}
	return b, nil
}

// MaxFrame bounds a frame; a larger EXEC travels in a memfd (InMemfd).
const MaxFrame = 64 << 10

// Type is the kind of a frame.
type Type uint32

// The frames.
const (
	Setup Type = iota + 1
	Ready
	Exec
	Started
	Failed
	Exited
	Clone
	Ahead
	Sweep
	Swept
	Keep
	Bury
	Buried
)

// Flags of SETUP and EXEC.
const (
	RootReadOnly = 1
	WithPTS      = 2
	AsItIs       = 4 // the view is made: only the bounding set is dropped

	PTY     = 1
	HasFD3  = 2
	InMemfd = 4
)

// MaxSlots bounds the slots that a guest keeps the tasks files of.
const MaxSlots = 64

// Step says where starting a program failed.
type Step int32

// The steps of a start.
const (
	StepCgroup Step = iota + 1
	StepStdio
	StepRlimit
	StepUser
	StepCwd
	StepExec
	StepFork
	StepPTY
	StepDecode
)

// SetupFrame is what the guest makes its view from. The descriptors that go with it are
// root, dev, an empty directory, sys, and one for each of Etc.
type SetupFrame struct {
	KeepCaps uint64
	Hostname string
	Flags    uint32
	ShmBytes string
	Masked   []string
	ReadOnly []string
	Writable []string
	Etc      []string
	Proc     ProcView
	Filters  [][]byte
}

// ProcView is what of /proc is hidden and what is read-only, by paths below /proc.
type ProcView struct {
	Masked, ReadOnly []string
}

func (p *ProcView) block() []byte {
	e := &encoder{}
	e.list(p.Masked)
	e.list(p.ReadOnly)
	return *e
}

// Ahead asks a guest that waits for SETUP to make a /proc of this view, which SETUP then takes
// where its own is the same. The descriptors that go with it are mounts of an empty directory
// and of dev.
func (p *ProcView) Ahead() []byte {
	e := frame(Ahead, 0)
	e.bytes(p.block())
	return *e
}

// KeepFrame has the undertaker keep the descriptors that go with it until BuryFrame has it
// close them, so that whoever sent them can close its own in between.
func KeepFrame() []byte { return *frame(Keep, 0) }

// BuryFrame has the undertaker close what it keeps, and answer.
func BuryFrame(id uint32) []byte { return *frame(Bury, id) }

// CloneFrame asks the nursery for a guest. The descriptors that go with it are the guest's
// socket, the cgroup2 directory that it is to be born in where Birth says so, and the
// tasks files of its other cgroups.
type CloneFrame struct {
	ID           uint32
	HostID, Size uint32
	Birth        bool
	// Home: the last of the tasks files is joined after the others have become the root of
	// the guest's cgroup namespace.
	Home bool
}

// Encode makes the frame.
func (c *CloneFrame) Encode() []byte {
	e := frame(Clone, c.ID)
	e.u32(c.HostID)
	e.u32(c.Size)
	var flags uint32
	if c.Birth {
		flags |= 1
	}
	if c.Home {
		flags |= 2
	}
	e.u32(flags)
	return *e
}

// Encode makes the frame.
func (s *SetupFrame) Encode() []byte {
	e := frame(Setup, 0)
	e.u64(s.KeepCaps)
	e.str(s.Hostname)
	e.u32(s.Flags)
	e.str(s.ShmBytes)
	e.list(s.Masked)
	e.list(s.ReadOnly)
	e.list(s.Writable)
	e.list(s.Etc)
	e.bytes(s.Proc.block())
	e.u32(uint32(len(s.Filters)))
	for _, f := range s.Filters {
		e.bytes(f)
	}
	return *e
}

// Rlimit is one resource limit.
type Rlimit struct {
	Resource   uint32
	Soft, Hard uint64
}

// ExecFrame is one program. The descriptors that go with it are stdin, stdout, stderr,
// descriptor 3 where HasFD3 says so, the tasks files of its cgroups, and the memfd. The
// guest keeps the tasks files of a Slot from 1 to MaxSlots: later programs of that slot may
// come without. Slot 0 keeps none.
type ExecFrame struct {
	ID         uint32
	Flags      uint32
	Slot       uint32
	UID, GID   uint32
	Umask      uint32
	Rows, Cols uint32
	Groups     []uint32
	Rlimits    []Rlimit
	Dir        string
	Path       string
	Argv, Env  []string
}

// Encode makes the frame; when it is larger than MaxFrame, short is what to send and
// large what to put into a memfd.
func (x *ExecFrame) Encode() (short, large []byte) {
	e := &encoder{}
	e.u32(x.Flags)
	e.u32(x.Slot)
	e.u32(x.UID)
	e.u32(x.GID)
	e.u32(x.Umask)
	e.u32(x.Rows)
	e.u32(x.Cols)
	e.u32(uint32(len(x.Groups)))
	for _, g := range x.Groups {
		e.u32(g)
	}
	e.u32(uint32(len(x.Rlimits)))
	for _, r := range x.Rlimits {
		e.u32(r.Resource)
		e.u64(r.Soft)
		e.u64(r.Hard)
	}
	e.str(x.Dir)
	e.str(x.Path)
	e.list(x.Argv)
	e.list(x.Env)
	head := frame(Exec, x.ID)
	if len(*head)+len(*e) <= MaxFrame {
		return append(*head, *e...), nil
	}
	binary.LittleEndian.PutUint32(*e, x.Flags|InMemfd)
	head.u32(x.Flags | InMemfd)
	return *head, (*e)[4:]
}

// SweepFrame asks what is left in the session of a program, and has it killed.
func SweepFrame(id uint32, kill bool) []byte {
	e := frame(Sweep, id)
	if kill {
		e.u32(1)
	} else {
		e.u32(0)
	}
	return *e
}

// Reply is a frame from the guest.
type Reply struct {
	Type Type
	ID   uint32
	// Pid is inside the sandbox's pid namespace (Started).
	Pid int32
	// Step and Errno say why (Failed).
	Step  Step
	Errno int32
	// Status is as wait(2) gives it (Exited).
	Status int32
	// Found is how many processes there are of the session of a program (Swept).
	Found int32
}

// Decode reads a frame of the guest. Every error means that the guest broke the protocol.
func Decode(b []byte) (Reply, error) {
	if len(b) < 8 || len(b) > 64 || len(b)%4 != 0 {
		return Reply{}, fmt.Errorf("guest frame of %d bytes", len(b))
	}
	word := func(i int) int32 { return int32(binary.LittleEndian.Uint32(b[8+4*i:])) }
	r := Reply{Type: Type(binary.LittleEndian.Uint32(b)), ID: binary.LittleEndian.Uint32(b[4:])}
	want := map[Type]int{Ready: 0, Started: 1, Failed: 2, Exited: 1, Swept: 1, Buried: 0}
	n, known := want[r.Type]
	if !known || len(b) != 8+4*n {
		return Reply{}, fmt.Errorf("guest frame of type %d with %d bytes", r.Type, len(b))
	}
	switch r.Type {
	case Started:
		r.Pid = word(0)
	case Failed:
		r.Step, r.Errno = Step(word(0)), word(1)
	case Exited:
		r.Status = word(0)
	case Swept:
		r.Found = word(0)
	case Ready, Setup, Exec, Clone, Ahead, Sweep, Keep, Bury, Buried: // nothing beside the header
	}
	return r, nil
}

type encoder []byte

func frame(t Type, id uint32) *encoder {
	e := &encoder{}
	e.u32(uint32(t))
	e.u32(id)
	return e
}

func (e *encoder) u32(v uint32) { *e = binary.LittleEndian.AppendUint32(*e, v) }
func (e *encoder) u64(v uint64) { *e = binary.LittleEndian.AppendUint64(*e, v) }

func (e *encoder) bytes(b []byte) {
	e.u32(uint32(len(b)))
	*e = append(*e, b...)
}

func (e *encoder) str(s string) {
	e.u32(uint32(len(s) + 1))
	*e = append(append(*e, s...), 0)
}

func (e *encoder) list(v []string) {
	e.u32(uint32(len(v)))
	for _, s := range v {
		e.str(s)
	}
}
