package seccomp

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// maxProgram is the kernel's bound on a filter, BPF_MAXINSNS.
const maxProgram = 4096

// errTooFar says that a jump does not fit the 8 bits of a comparison's offsets.
var errTooFar = errors.New("seccomp: a jump is too far")

// label is a place in the program, to be marked later; next is the instruction after.
type label int

const next label = 0

// assembler builds a program of instructions with symbolic forward jumps.
type assembler struct {
	// far makes comparisons jump by way of unconditional jumps, which reach everywhere.
	far   bool
	insns []insn
	// places holds, per label, the index of the instruction it marks; 0 is unmarked.
	places []int
	// rets are the shared returns, emitted at the end.
	rets     map[uint32]label
	retOrder []uint32
}

type insn struct {
	unix.SockFilter
	yes, no, always label
}

func newAssembler(far bool) *assembler {
	return &assembler{far: far, places: []int{0}, rets: map[uint32]label{}}
}

func (a *assembler) newLabel() label {
	a.places = append(a.places, 0)
	return label(len(a.places) - 1)
}

// mark says that l is the instruction that comes next.
func (a *assembler) mark(l label) { a.places[l] = len(a.insns) }

func (a *assembler) emit(code uint16, k uint32) {
	a.insns = append(a.insns, insn{SockFilter: unix.SockFilter{Code: code, K: k}})
}

func (a *assembler) load(off uint32) { a.emit(unix.BPF_LD|unix.BPF_W|unix.BPF_ABS, off) }

func (a *assembler) and(mask uint32) { a.emit(unix.BPF_ALU|unix.BPF_AND|unix.BPF_K, mask) }

func (a *assembler) ret(value uint32) { a.emit(unix.BPF_RET|unix.BPF_K, value) }

// retLabel is the place of a return that all who answer value share.
func (a *assembler) retLabel(value uint32) label {
	l, ok := a.rets[value]
	if !ok {
		l = a.newLabel()
		a.rets[value] = l
		a.retOrder = append(a.retOrder, value)
	}
	return l
}

// jump compares the accumulator with k.
func (a *assembler) jump(op uint16, k uint32, yes, no label) {
	in := insn{SockFilter: unix.SockFilter{Code: unix.BPF_JMP | op | unix.BPF_K, K: k}}
	if !a.far {
		in.yes, in.no = yes, no
		a.insns = append(a.insns, in)
		return
	}
	switch {
	case yes == next:
		in.Jt = 1
	case no == next:
		in.Jf = 1
	default:
		in.Jf = 1
	}
	a.insns = append(a.insns, in)
	for _, l := range []label{yes, no} {
		if l != next {
			a.goTo(l)
		}
	}
}

func (a *assembler) goTo(l label) {
	a.insns = append(a.insns, insn{SockFilter: unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JA}, always: l})
}

// program emits the shared returns and resolves the labels.
func (a *assembler) program() ([]unix.SockFilter, error) {
	for _, value := range a.retOrder {
		a.mark(a.rets[value])
		a.ret(value)
	}
	if len(a.insns) > maxProgram {
		return nil, fmt.Errorf("seccomp: %d instructions, the kernel takes %d", len(a.insns), maxProgram)
	}
	out := make([]unix.SockFilter, len(a.insns))
	for i, in := range a.insns {
		f := in.SockFilter
		if in.always != next {
			f.K = uint32(a.places[in.always] - i - 1)
		}
		for _, j := range []struct {
			to  label
			off *uint8
		}{{in.yes, &f.Jt}, {in.no, &f.Jf}} {
			if j.to == next {
				continue
			}
			d := a.places[j.to] - i - 1
			if d > 255 {
				return nil, errTooFar
			}
			*j.off = uint8(d)
		}
		out[i] = f
	}
	return out, nil
}
