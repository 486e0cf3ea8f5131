// Package seccomp compiles the seccomp part of an OCI runtime-spec to classic BPF, as a
// balanced tree over ranges of system call numbers: the kernel runs a filter once for
// every number when it is loaded, so depth and length are what a sandbox's start pays.
//
// The program answers in this order:
//
//	another architecture's call (int 0x80)      kill the process
//	the x32 bit in the number                   kill the process
//	-1, as a tracer sets it                     ENOSYS
//	a number that is no system call known here  ENOSYS, so that programs fall back
//	ioctl with a command of deniedIoctls        EPERM, whatever the profile says
//	file_setattr                                ENOSYS
//	everything else                             what the profile says
//
// The ioctl rule is here because a profile cannot have it: its comparisons are of 64
// bits while the kernel reads the low 32, so a bit above them walks past the rule.
package seccomp

import (
	"errors"
	"fmt"
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

//go:generate go run gen_tables.go

// target is what an architecture needs of the compiler.
type target struct {
	arch    specs.Arch
	audit   uint32
	x32     bool
	numbers map[string]uint32
}

func targetFor(goarch string) (target, error) {
	switch goarch {
	case "amd64":
		return target{arch: specs.ArchX86_64, audit: unix.AUDIT_ARCH_X86_64, x32: true, numbers: tables[goarch]}, nil
	case "arm64":
		return target{arch: specs.ArchAARCH64, audit: unix.AUDIT_ARCH_AARCH64, numbers: tables[goarch]}, nil
	}
	return target{}, fmt.Errorf("no system call table for %s", goarch)
}

// deniedIoctls are commands that no sandbox may give: they set a file's quota project or
// its immutable bit, or push input into a terminal.
var deniedIoctls = []uint32{unix.FS_IOC_SETFLAGS, fsIocFsSetXattr, unix.TIOCSTI, unix.TIOCLINUX}

const fsIocFsSetXattr = 0x401c5820

// The words of struct seccomp_data, on a little-endian host.
const (
	offNumber = 0
	offArch   = 4
	offArgs   = 16
)

// x32Bit marks the calls of the x32 table in the number.
const x32Bit = 0x40000000

// Compile turns a profile into the filter program for arch (a GOARCH name). The profile
// must name that architecture; others that it names are killed all the same. Names that
// the architecture does not have are left out. What the package comment lists above the
// profile's own rules is always in the program, so nothing else need be stacked on it.
func Compile(profile *specs.LinuxSeccomp, arch string) ([]unix.SockFilter, error) {
	t, err := targetFor(arch)
	if err != nil {
		return nil, err
	}
	if err := checkProfile(profile, t); err != nil {
		return nil, err
	}
	verdicts, err := verdictsOf(profile, t)
	if err != nil {
		return nil, err
	}
	spans := rangesOf(verdicts, t, verdict{ret: retErrno(unix.ENOSYS)})
	for _, far := range []bool{false, true} {
		a := newAssembler(far)
		t.prologue(a)
		emitTree(a, spans)
		prog, err := a.program()
		if !errors.Is(err, errTooFar) {
			return prog, err
		}
	}
	return nil, errTooFar
}

// IoctlFilter is a small filter that refuses deniedIoctls and file_setattr and allows the
// rest, for launchers that hand the profile itself to somebody else.
func IoctlFilter(arch string) ([]unix.SockFilter, error) {
	t, err := targetFor(arch)
	if err != nil {
		return nil, err
	}
	allow := verdict{ret: unix.SECCOMP_RET_ALLOW}
	verdicts := slices.Repeat([]verdict{allow}, int(max(t.numbers["ioctl"], t.numbers["file_setattr"]))+1)
	verdicts[t.numbers["ioctl"]].ioctl = true
	verdicts[t.numbers["file_setattr"]].ret = retErrno(unix.ENOSYS)
	a := newAssembler(false)
	t.prologue(a)
	emitTree(a, rangesOf(verdicts, t, allow))
	return a.program()
}

func checkProfile(p *specs.LinuxSeccomp, t target) error {
	if p == nil {
		return errors.New("seccomp: no profile")
	}
	if len(p.Flags) > 0 || p.ListenerPath != "" {
		return errors.New("seccomp: flags and listeners are not supported")
	}
	if slices.Contains(p.Architectures, t.arch) {
		return nil
	}
	return fmt.Errorf("seccomp: the profile is not for %s", t.arch)
}

// prologue kills foreign calls and leaves the number in the accumulator.
func (t target) prologue(a *assembler) {
	a.load(offArch)
	a.jump(unix.BPF_JEQ, t.audit, next, a.retLabel(unix.SECCOMP_RET_KILL_PROCESS))
	a.load(offNumber)
}

// emitDeniedIoctls answers EPERM for the commands of deniedIoctls, else falls through.
// The command is the low word of the second argument: the kernel reads no more of it.
func emitDeniedIoctls(a *assembler) {
	a.load(argWord(1, false))
	for _, cmd := range deniedIoctls {
		a.jump(unix.BPF_JEQ, cmd, a.retLabel(retErrno(unix.EPERM)), next)
	}
}

func retErrno(e unix.Errno) uint32 {
	return unix.SECCOMP_RET_ERRNO | uint32(e)&unix.SECCOMP_RET_DATA
}

// argWord is the offset of the high or low word of an argument.
func argWord(index uint, high bool) uint32 {
	off := uint32(offArgs + 8*index)
	if high {
		off += 4
	}
	return off
}
