package seccomp

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/paddock-run/paddock/policies"
)

func policyProfile(tb testing.TB, name string) *specs.LinuxSeccomp {
	tb.Helper()
	set, err := policies.Load()
	if err != nil {
		tb.Fatal(err)
	}
	p, err := set.Get(name)
	if err != nil {
		tb.Fatal(err)
	}
	spec, err := p.Spec(p.Defaults(), "h", "/w")
	if err != nil {
		tb.Fatal(err)
	}
	return spec.Linux.Seccomp
}

// machine runs a program as the kernel would.
type machine struct{ vm *bpf.VM }

func newMachine(tb testing.TB, prog []unix.SockFilter) machine {
	tb.Helper()
	var insns []bpf.Instruction
	for _, f := range prog {
		insns = append(insns, bpf.RawInstruction{Op: f.Code, Jt: f.Jt, Jf: f.Jf, K: f.K}.Disassemble())
	}
	vm, err := bpf.NewVM(insns)
	if err != nil {
		tb.Fatal(err)
	}
	return machine{vm: vm}
}

type sysCall struct {
	arch, nr uint32
	args     [6]uint64
}

func (m machine) run(tb testing.TB, c sysCall) uint32 {
	tb.Helper()
	// The VM loads words big-endian, as from a packet; the kernel loads them as the host
	// has them. So each word is stored big-endian at the place where the host has it.
	var data [64]byte
	binary.BigEndian.PutUint32(data[0:], c.nr)
	binary.BigEndian.PutUint32(data[4:], c.arch)
	for i, a := range c.args {
		binary.BigEndian.PutUint32(data[16+8*i:], uint32(a))
		binary.BigEndian.PutUint32(data[20+8*i:], uint32(a>>32))
	}
	ret, err := m.vm.Run(data[:])
	if err != nil {
		tb.Fatal(err)
	}
	return uint32(ret)
}

// expected is what the package comment and the profile say, without ranges or words.
func expected(p *specs.LinuxSeccomp, numbers map[string]uint32, c sysCall) uint32 {
	name := ""
	for n, nr := range numbers {
		if nr == c.nr {
			name = n
		}
	}
	switch {
	case c.arch != unix.AUDIT_ARCH_X86_64:
		return unix.SECCOMP_RET_KILL_PROCESS
	case c.nr == 0xffffffff, name == "", name == "file_setattr":
		if c.nr >= x32Bit && c.nr != 0xffffffff {
			return unix.SECCOMP_RET_KILL_PROCESS
		}
		return retErrno(unix.ENOSYS)
	case name == "ioctl" && slices.Contains(deniedIoctls, uint32(c.args[1])):
		return retErrno(unix.EPERM)
	}
	for _, entry := range p.Syscalls {
		if !slices.Contains(entry.Names, name) {
			continue
		}
		all := true
		for _, a := range entry.Args {
			all = all && holds(a, c.args[a.Index])
		}
		if all {
			ret, err := answer(entry.Action, entry.ErrnoRet)
			if err != nil {
				panic(err)
			}
			return ret
		}
	}
	ret, err := answer(p.DefaultAction, p.DefaultErrnoRet)
	if err != nil {
		panic(err)
	}
	return ret
}

func holds(a specs.LinuxSeccompArg, v uint64) bool {
	switch a.Op {
	case specs.OpEqualTo:
		return v == a.Value
	case specs.OpNotEqual:
		return v != a.Value
	case specs.OpGreaterEqual:
		return v >= a.Value
	case specs.OpGreaterThan:
		return v > a.Value
	case specs.OpLessEqual:
		return v <= a.Value
	case specs.OpLessThan:
		return v < a.Value
	case specs.OpMaskedEqual:
		return v&a.Value == a.ValueTwo
	}
	panic("unknown operator")
}

// interesting are arguments around everything that a rule compares with.
func interesting(p *specs.LinuxSeccomp, r *rand.Rand) [6]uint64 {
	values := []uint64{0, 1, 0xffffffff, 1 << 32, ^uint64(0), unix.S_IFCHR | 0o666, unix.S_IFIFO | 0o644, unix.CLONE_NEWUSER, unix.AF_ALG}
	for _, e := range p.Syscalls {
		for _, a := range e.Args {
			for _, v := range []uint64{a.Value, a.ValueTwo} {
				values = append(values, v, v-1, v+1, v|1<<32, v|1<<63)
			}
		}
	}
	for _, cmd := range deniedIoctls {
		values = append(values, uint64(cmd), uint64(cmd)|1<<32, uint64(cmd)+1)
	}
	var args [6]uint64
	for i := range args {
		args[i] = values[r.IntN(len(values))]
	}
	return args
}

func TestEveryNumberGetsTheProfilesAnswer(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"build", "default", "networked-allowlist", "strict"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := policyProfile(t, name)
			prog, err := Compile(p, "amd64")
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%s: %d instructions", name, len(prog))
			m := newMachine(t, prog)
			r := rand.New(rand.NewPCG(1, 2))
			numbers := tables["amd64"]
			check := func(c sysCall) {
				t.Helper()
				if got, want := m.run(t, c), expected(p, numbers, c); got != want {
					t.Fatalf("%+v: filter answers %#x, want %#x", c, got, want)
				}
			}
			for nr := range uint32(1024) {
				for range 40 {
					check(sysCall{unix.AUDIT_ARCH_X86_64, nr, interesting(p, r)})
				}
				check(sysCall{unix.AUDIT_ARCH_X86_64, nr | x32Bit, [6]uint64{}})
				check(sysCall{unix.AUDIT_ARCH_I386, nr, [6]uint64{}})
			}
			for _, nr := range []uint32{x32Bit - 1, x32Bit, 1 << 31, 0xfffffffe, 0xffffffff} {
				check(sysCall{unix.AUDIT_ARCH_X86_64, nr, [6]uint64{}})
			}
			for _, nr := range []string{"socket", "socketpair", "clone", "mknod", "mknodat", "personality", "ioctl"} {
				for range 5000 {
					check(sysCall{unix.AUDIT_ARCH_X86_64, numbers[nr], interesting(p, r)})
				}
			}
		})
	}
}

func TestOperatorsCompareAllBits(t *testing.T) {
	t.Parallel()
	values := []uint64{0, 1, 2, 5, 6, 7, 0xffffffff, 1 << 32, 1<<32 | 5, 1<<32 | 6, 1<<32 | 7, 2 << 32, 2<<32 | 6, ^uint64(0), 1 << 63}
	for _, op := range []specs.LinuxSeccompOperator{
		specs.OpEqualTo, specs.OpNotEqual, specs.OpGreaterEqual, specs.OpGreaterThan, specs.OpLessEqual, specs.OpLessThan, specs.OpMaskedEqual,
	} {
		for _, value := range values {
			for _, two := range []uint64{0, 6, 1<<32 | 6} {
				arg := specs.LinuxSeccompArg{Index: 3, Value: value, ValueTwo: two, Op: op}
				p := &specs.LinuxSeccomp{
					DefaultAction: specs.ActErrno, Architectures: []specs.Arch{specs.ArchX86_64},
					Syscalls: []specs.LinuxSyscall{{Names: []string{"read"}, Action: specs.ActAllow, Args: []specs.LinuxSeccompArg{arg}}},
				}
				prog, err := Compile(p, "amd64")
				if err != nil {
					t.Fatal(err)
				}
				m := newMachine(t, prog)
				for _, v := range values {
					c := sysCall{arch: unix.AUDIT_ARCH_X86_64, args: [6]uint64{3: v}}
					if got, want := m.run(t, c) == unix.SECCOMP_RET_ALLOW, holds(arg, v); got != want {
						t.Fatalf("%s %#x (%#x) of %#x: allowed %v, want %v", op, value, two, v, got, want)
					}
				}
			}
		}
	}
}

func TestIoctlFilterReadsTheLowWord(t *testing.T) {
	t.Parallel()
	prog, err := IoctlFilter("amd64")
	if err != nil {
		t.Fatal(err)
	}
	m := newMachine(t, prog)
	ioctl := tables["amd64"]["ioctl"]
	for _, cmd := range deniedIoctls {
		for _, high := range []uint64{0, 1 << 32, 0xffffffff << 32} {
			if got := m.run(t, sysCall{unix.AUDIT_ARCH_X86_64, ioctl, [6]uint64{1: uint64(cmd) | high}}); got != retErrno(unix.EPERM) {
				t.Errorf("ioctl %#x: %#x", uint64(cmd)|high, got)
			}
		}
	}
	for _, c := range []struct {
		sysCall
		want uint32
	}{
		{sysCall{unix.AUDIT_ARCH_X86_64, ioctl, [6]uint64{1: unix.TCGETS}}, unix.SECCOMP_RET_ALLOW},
		{sysCall{unix.AUDIT_ARCH_X86_64, 0, [6]uint64{1: unix.TIOCSTI}}, unix.SECCOMP_RET_ALLOW},
		{sysCall{unix.AUDIT_ARCH_X86_64, 469, [6]uint64{}}, retErrno(unix.ENOSYS)},
		{sysCall{unix.AUDIT_ARCH_I386, 0, [6]uint64{}}, unix.SECCOMP_RET_KILL_PROCESS},
		{sysCall{unix.AUDIT_ARCH_X86_64, x32Bit, [6]uint64{}}, unix.SECCOMP_RET_KILL_PROCESS},
	} {
		if got := m.run(t, c.sysCall); got != c.want {
			t.Errorf("%+v: %#x, want %#x", c.sysCall, got, c.want)
		}
	}
}

func TestLongTreesStillReachEverySpan(t *testing.T) {
	t.Parallel()
	// Every other number allowed is the worst case: the tree's jumps pass 255.
	p := &specs.LinuxSeccomp{DefaultAction: specs.ActErrno, Architectures: []specs.Arch{specs.ArchX86_64}}
	for name, nr := range tables["amd64"] {
		if nr%2 == 0 {
			p.Syscalls = append(p.Syscalls, specs.LinuxSyscall{
				Names: []string{name}, Action: specs.ActAllow,
				Args: []specs.LinuxSeccompArg{{Index: 0, Value: uint64(nr), Op: specs.OpGreaterThan}},
			})
		}
	}
	prog, err := Compile(p, "amd64")
	if err != nil {
		t.Fatal(err)
	}
	m := newMachine(t, prog)
	for nr := range uint32(600) {
		for _, arg := range []uint64{0, uint64(nr), uint64(nr) + 1} {
			c := sysCall{unix.AUDIT_ARCH_X86_64, nr, [6]uint64{0: arg}}
			if got, want := m.run(t, c), expected(p, tables["amd64"], c); got != want {
				t.Fatalf("%+v: %#x, want %#x", c, got, want)
			}
		}
	}
}

func TestBadProfilesAreRefused(t *testing.T) {
	t.Parallel()
	x86 := []specs.Arch{specs.ArchX86_64}
	arg := func(i uint, op specs.LinuxSeccompOperator) specs.LinuxSeccompArg {
		return specs.LinuxSeccompArg{Index: i, Op: op}
	}
	call := func(action specs.LinuxSeccompAction, args ...specs.LinuxSeccompArg) specs.LinuxSyscall {
		return specs.LinuxSyscall{Names: []string{"read"}, Action: action, Args: args}
	}
	for _, c := range []struct {
		name string
		p    *specs.LinuxSeccomp
		want string
	}{
		{"none", nil, "no profile"},
		{"other architecture", &specs.LinuxSeccomp{DefaultAction: specs.ActErrno, Architectures: []specs.Arch{specs.ArchARM}}, "not for"},
		{"no default", &specs.LinuxSeccomp{Architectures: x86}, "not supported"},
		{"listener", &specs.LinuxSeccomp{DefaultAction: specs.ActErrno, Architectures: x86, ListenerPath: "/x"}, "listeners"},
		{"notify", &specs.LinuxSeccomp{DefaultAction: specs.ActErrno, Architectures: x86, Syscalls: []specs.LinuxSyscall{call(specs.ActNotify)}}, "not supported"},
		{"argument 6", &specs.LinuxSeccomp{DefaultAction: specs.ActErrno, Architectures: x86, Syscalls: []specs.LinuxSyscall{call(specs.ActAllow, arg(6, specs.OpEqualTo))}}, "there are six"},
		{"argument twice", &specs.LinuxSeccomp{DefaultAction: specs.ActErrno, Architectures: x86, Syscalls: []specs.LinuxSyscall{call(specs.ActAllow, arg(1, specs.OpEqualTo), arg(1, specs.OpNotEqual))}}, "twice"},
		{"operator", &specs.LinuxSeccomp{DefaultAction: specs.ActErrno, Architectures: x86, Syscalls: []specs.LinuxSyscall{call(specs.ActAllow, arg(1, "SCMP_CMP_X"))}}, "unknown"},
		{"contradiction", &specs.LinuxSeccomp{DefaultAction: specs.ActErrno, Architectures: x86, Syscalls: []specs.LinuxSyscall{call(specs.ActAllow), call(specs.ActKill)}}, "contradict"},
	} {
		if _, err := Compile(c.p, "amd64"); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: Compile() = %v, want an error with %q", c.name, err, c.want)
		}
	}
	if _, err := Compile(&specs.LinuxSeccomp{}, "mips"); err == nil {
		t.Error("an architecture without a table is accepted")
	}
}

func BenchmarkCompile(b *testing.B) {
	p := policyProfile(b, "default")
	for b.Loop() {
		if _, err := Compile(p, "amd64"); err != nil {
			b.Fatal(err)
		}
	}
}
