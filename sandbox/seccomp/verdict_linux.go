package seccomp

import (
	"fmt"
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// verdict is what the filter answers for one system call number.
type verdict struct {
	// ret is the answer, or the one when no rule matches.
	ret uint32
	// rules are looked at in order; the first whose conditions all hold answers.
	rules []rule
	// ioctl asks for the check of deniedIoctls before anything else.
	ioctl bool
}

type rule struct {
	ret  uint32
	args []specs.LinuxSeccompArg
}

// plain says that the verdict looks at no argument.
func (v verdict) plain() bool { return len(v.rules) == 0 && !v.ioctl }

// verdictsOf gives the verdict for each number up to the highest known one; from the
// length of the slice on it is ENOSYS.
func verdictsOf(p *specs.LinuxSeccomp, t target) ([]verdict, error) {
	byDefault, err := answer(p.DefaultAction, p.DefaultErrnoRet)
	if err != nil {
		return nil, err
	}
	top := uint32(0)
	for _, n := range t.numbers {
		top = max(top, n)
	}
	verdicts := make([]verdict, top+1)
	for i := range verdicts {
		verdicts[i].ret = retErrno(unix.ENOSYS)
	}
	for _, n := range t.numbers {
		verdicts[n].ret = byDefault
	}
	settled := map[uint32]bool{}
	for _, call := range p.Syscalls {
		if err := addCall(verdicts, settled, call, t); err != nil {
			return nil, err
		}
	}
	if n, ok := t.numbers["ioctl"]; ok {
		verdicts[n].ioctl = true
	}
	if n, ok := t.numbers["file_setattr"]; ok {
		verdicts[n] = verdict{ret: retErrno(unix.ENOSYS)}
	}
	return verdicts, nil
}

// addCall adds one entry of a profile. An entry without conditions settles a call; two
// that disagree are refused, because which one wins would be anybody's guess.
func addCall(verdicts []verdict, settled map[uint32]bool, call specs.LinuxSyscall, t target) error {
	ret, err := answer(call.Action, call.ErrnoRet)
	if err != nil {
		return err
	}
	if err := checkArgs(call.Args); err != nil {
		return fmt.Errorf("seccomp: %v: %w", call.Names, err)
	}
	for _, name := range call.Names {
		n, ok := t.numbers[name]
		if !ok {
			continue
		}
		v := &verdicts[n]
		switch {
		case len(call.Args) > 0 && settled[n] && v.ret == ret:
			// Already so, whatever the arguments.
		case len(call.Args) > 0 && !settled[n]:
			v.rules = append(v.rules, rule{ret: ret, args: call.Args})
		case len(call.Args) == 0 && (!settled[n] || v.ret == ret):
			v.ret = ret
			v.rules = slices.DeleteFunc(v.rules, func(r rule) bool { return r.ret == ret })
			settled[n] = true
		default:
			return fmt.Errorf("seccomp: two entries for %s contradict each other", name)
		}
		if settled[n] && len(v.rules) > 0 {
			return fmt.Errorf("seccomp: two entries for %s contradict each other", name)
		}
	}
	return nil
}

func checkArgs(args []specs.LinuxSeccompArg) error {
	var seen [6]bool
	for _, a := range args {
		if a.Index > 5 {
			return fmt.Errorf("argument %d: there are six", a.Index)
		}
		// libseccomp and runc read a repeated argument in two ways.
		if seen[a.Index] {
			return fmt.Errorf("argument %d is compared twice in one entry", a.Index)
		}
		seen[a.Index] = true
		switch a.Op {
		case specs.OpEqualTo, specs.OpNotEqual, specs.OpGreaterEqual, specs.OpGreaterThan, specs.OpLessEqual,
			specs.OpLessThan, specs.OpMaskedEqual:
		default:
			return fmt.Errorf("operator %q is unknown", a.Op)
		}
	}
	return nil
}

// answer is the filter's return value for an action.
func answer(action specs.LinuxSeccompAction, errno *uint) (uint32, error) {
	switch action {
	case specs.ActAllow:
		return unix.SECCOMP_RET_ALLOW, nil
	case specs.ActErrno:
		if errno == nil {
			return retErrno(unix.EPERM), nil
		}
		if *errno > 4095 {
			return 0, fmt.Errorf("seccomp: errno %d is none", *errno)
		}
		return retErrno(unix.Errno(*errno)), nil
	case specs.ActKillProcess:
		return unix.SECCOMP_RET_KILL_PROCESS, nil
	case specs.ActKill, specs.ActKillThread:
		return unix.SECCOMP_RET_KILL_THREAD, nil
	case specs.ActTrap:
		return unix.SECCOMP_RET_TRAP, nil
	case specs.ActLog:
		return unix.SECCOMP_RET_LOG, nil
	case specs.ActTrace, specs.ActNotify:
	}
	return 0, fmt.Errorf("seccomp: action %q is not supported", action)
}

// span is a run of numbers from low to the next span's low, all with one verdict.
type span struct {
	low uint32
	verdict
}

// rangesOf joins neighbours with equal plain verdicts. Numbers without a verdict get
// rest, and the x32 table's the death of the process.
func rangesOf(verdicts []verdict, t target, rest verdict) []span {
	var spans []span
	add := func(low uint32, v verdict) {
		if n := len(spans); n > 0 && v.plain() && spans[n-1].plain() && spans[n-1].ret == v.ret {
			return
		}
		spans = append(spans, span{low: low, verdict: v})
	}
	for n, v := range verdicts {
		add(uint32(n), v)
	}
	add(uint32(len(verdicts)), rest)
	if t.x32 {
		add(x32Bit, verdict{ret: unix.SECCOMP_RET_KILL_PROCESS})
		// A tracer sets -1 to leave a call out; it is of no table.
		add(0xffffffff, verdict{ret: retErrno(unix.ENOSYS)})
	}
	return spans
}
