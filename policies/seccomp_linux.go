package policies

import (
	"fmt"
	"slices"

	moby "github.com/moby/profiles/seccomp"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// arches are the architectures that a profile can be made for, by GOARCH. One profile
// serves one: a second call table is a second thing to lock down.
var arches = map[string]specs.Arch{"amd64": specs.ArchX86_64, "arm64": specs.ArchAARCH64}

var (
	socketFamilies   = map[string]uint64{"unix": unix.AF_UNIX, "inet": unix.AF_INET, "inet6": unix.AF_INET6}
	netlinkProtocols = map[string]uint64{"route": unix.NETLINK_ROUTE}
)

// conditional are the system calls for which this package has rules of its own, so those
// of the base are dropped.
var conditional = []string{"clone", "clone3", "mknod", "mknodat", "prlimit64", "socket", "socketcall", "socketpair", "sync"}

// namespaceFlags are those that clone(2) reads; CLONE_NEWTIME shares a bit with the exit
// signal there and is only read by unshare and clone3.
const namespaceFlags = unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER |
	unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWCGROUP

// profile is the allow list for a GOARCH: what the base allows a container without any
// capability, less Deny, with own rules for the calls of conditional.
func (s *fileSeccomp) profile(goarch string) (*specs.LinuxSeccomp, error) {
	arch, ok := arches[goarch]
	if !ok {
		return nil, fmt.Errorf("seccomp: no profile for %s", goarch)
	}
	plain, rules := splitBase(goarch)
	plain = append(plain, s.Allow...)
	for _, name := range s.Deny {
		before := len(plain) + len(rules)
		plain = slices.DeleteFunc(plain, func(n string) bool { return n == name })
		rules = slices.DeleteFunc(rules, func(r specs.LinuxSyscall) bool { return r.Names[0] == name })
		if before == len(plain)+len(rules) {
			return nil, fmt.Errorf("seccomp: deny %q: the base does not allow it", name)
		}
	}
	slices.Sort(plain)
	own, err := s.socketRules()
	if err != nil {
		return nil, err
	}
	eperm := uint(unix.EPERM)
	calls := slices.Concat([]specs.LinuxSyscall{{Names: slices.Compact(plain), Action: specs.ActAllow}}, rules, own, ownRules())
	return &specs.LinuxSeccomp{
		DefaultAction: specs.ActErrno, DefaultErrnoRet: &eperm,
		Architectures: []specs.Arch{arch}, Syscalls: calls,
	}, nil
}

// splitBase returns what the base allows without a capability: the names allowed
// whatever the arguments are, and the rules with conditions, one name each.
func splitBase(goarch string) (plain []string, rules []specs.LinuxSyscall) {
	for _, call := range moby.DefaultProfile().Syscalls {
		if call.Action != specs.ActAllow || !applies(call, goarch) {
			continue
		}
		for _, name := range call.Names {
			switch {
			case slices.Contains(conditional, name):
			case len(call.Args) == 0:
				plain = append(plain, name)
			default:
				rules = append(rules, specs.LinuxSyscall{Names: []string{name}, Action: specs.ActAllow, Args: call.Args})
			}
		}
	}
	return plain, rules
}

// applies says whether a rule of the base holds for a container with no capability, on
// any kernel that paddock supports.
func applies(call *moby.Syscall, goarch string) bool {
	if in := call.Includes; in != nil {
		if len(in.Caps) > 0 || len(in.Arches) > 0 && !slices.Contains(in.Arches, goarch) {
			return false
		}
	}
	return call.Excludes == nil || !slices.Contains(call.Excludes.Arches, goarch)
}

func (s *fileSeccomp) socketRules() ([]specs.LinuxSyscall, error) {
	var rules []specs.LinuxSyscall
	for _, name := range s.SocketFamilies {
		family, ok := socketFamilies[name]
		if !ok {
			return nil, fmt.Errorf("seccomp: socket family %q: not one that a policy may give", name)
		}
		rules = append(rules, allow("socket", equal(0, family)))
	}
	for _, name := range s.NetlinkProtocols {
		protocol, ok := netlinkProtocols[name]
		if !ok {
			return nil, fmt.Errorf("seccomp: netlink protocol %q: not one that a policy may give", name)
		}
		rules = append(rules, allow("socket", equal(0, unix.AF_NETLINK), equal(2, protocol)))
	}
	return rules, nil
}

// ownRules are the rules that every policy has.
func ownRules() []specs.LinuxSyscall {
	enosys, success, unsupported := uint(unix.ENOSYS), uint(0), uint(unix.EPROTONOSUPPORT)
	rules := []specs.LinuxSyscall{
		// TIPC and others offer pairs as well, and nobody needs them.
		allow("socketpair", equal(0, unix.AF_UNIX)),
		allow("clone", masked(0, namespaceFlags, 0)),
		// Its flags are behind a pointer. ENOSYS makes libc fall back to clone.
		{Names: []string{"clone3"}, Action: specs.ActErrno, ErrnoRet: &enosys},
		// As a kernel without auditing answers. useradd and its kin end at any other error.
		{Names: []string{"socket"}, Action: specs.ActErrno, ErrnoRet: &unsupported, Args: []specs.LinuxSeccompArg{equal(0, unix.AF_NETLINK), equal(2, unix.NETLINK_AUDIT)}},
		// Limits are a process's own to set. The kernel lets a process of PID 1's user take
		// PID 1's descriptors away, which ends the sandbox.
		allow("prlimit64", equal(0, 0)),
		allow("prlimit64", equal(2, 0)),
		// It writes out every disk of the host, and nothing of a sandbox is on one: a
		// sandbox that calls it in a loop would only stall the others.
		{Names: []string{"sync"}, Action: specs.ActErrno, ErrnoRet: &success},
	}
	// mkfifo needs mknod, and no mode but a device's is of any harm.
	for _, kind := range []uint64{0, unix.S_IFREG, unix.S_IFIFO, unix.S_IFSOCK} {
		rules = append(rules, allow("mknod", masked(1, unix.S_IFMT, kind)), allow("mknodat", masked(2, unix.S_IFMT, kind)))
	}
	return rules
}

func allow(name string, args ...specs.LinuxSeccompArg) specs.LinuxSyscall {
	return specs.LinuxSyscall{Names: []string{name}, Action: specs.ActAllow, Args: args}
}

func equal(index uint, value uint64) specs.LinuxSeccompArg {
	return specs.LinuxSeccompArg{Index: index, Value: value, Op: specs.OpEqualTo}
}

func masked(index uint, mask, value uint64) specs.LinuxSeccompArg {
	return specs.LinuxSeccompArg{Index: index, Value: mask, ValueTwo: value, Op: specs.OpMaskedEqual}
}

// allows says whether the profile allows the call, whatever its arguments.
func (p *Policy) allows(name string) bool {
	return slices.ContainsFunc(p.seccomp.Syscalls, func(c specs.LinuxSyscall) bool {
		return c.Action == specs.ActAllow && len(c.Args) == 0 && slices.Contains(c.Names, name)
	})
}
