package policies

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// Words are what a policy means under one topic, a sentence a line.
type Words struct {
	Topic string   `json:"topic"`
	Lines []string `json:"lines"`
}

// Words explains the policy in plain words, for people. All that is not named in it is
// denied. The order is fixed.
func (p *Policy) Words() []Words {
	return []Words{
		{"who", p.whoWords()},
		{"files", p.fileWords()},
		{"network", p.networkWords()},
		{"system calls", p.callWords()},
		{"limits, unless an episode sets its own", p.limitWords()},
		{"hidden of the host", p.hiddenWords()},
	}
}

func (p *Policy) whoWords() []string {
	u := p.file.User
	lines := []string{fmt.Sprintf("Calls run as user %d, group %d, unless the call or the world names another.", u.UID, u.GID)}
	if p.file.RefuseRoot {
		lines = append(lines, "User 0 is refused.")
	} else {
		lines = append(lines, "User 0 is root of the sandbox's own user namespace: outside it is a number that owns nothing.")
	}
	if p.file.Runtime != "" {
		lines = append(lines, "Sandboxes are started by "+p.file.Runtime+" alone: a daemon that has another launcher refuses this policy.")
	}
	if len(p.file.Capabilities) == 0 {
		return append(lines, "There are no capabilities, and no program brings any: set-id bits and file capabilities do nothing.")
	}
	lines = append(lines, "User 0 has these capabilities, over its own sandbox only; set-id bits and file capabilities add none:")
	for _, c := range p.file.Capabilities {
		lines = append(lines, "  "+c+": "+capabilityWords(c))
	}
	return lines
}

// capabilityNames says what a capability is good for inside a sandbox.
var capabilityNames = map[string]string{
	"CAP_CHOWN": "give files to other users", "CAP_DAC_OVERRIDE": "read and write files whatever their mode is",
	"CAP_FOWNER": "change the mode and times of other users' files", "CAP_FSETID": "keep set-id bits when a file is changed",
	"CAP_KILL": "signal other users' processes", "CAP_NET_BIND_SERVICE": "listen on ports below 1024 of its own loopback",
	"CAP_SETGID": "become another group", "CAP_SETUID": "become another user", "CAP_SETFCAP": "set file capabilities, which do nothing here",
	"CAP_SYS_CHROOT": "change the root directory of a process to one below its own",
	"CAP_SETPCAP":    "give up capabilities one by one", "CAP_SYS_NICE": "raise priorities of its own processes",
}

func capabilityWords(name string) string {
	if words, ok := capabilityNames[name]; ok {
		return words
	}
	return "see capabilities(7)"
}

func (p *Policy) fileWords() []string {
	lines := []string{"The tree is a private copy-on-write fork of the world, which nobody else sees and the world never feels."}
	if p.file.Root == "writable" {
		lines = append(lines, "All of it may be written.")
	} else {
		lines = append(lines, "It is read-only but for the working directory and "+strings.Join(p.file.Writable, ", ")+".")
	}
	return append(lines,
		fmt.Sprintf("/dev/shm holds at most %s. New files have the mode that umask %04o leaves.", bytesText(int64(p.file.Shm)), p.file.Umask),
		"Devices are null, zero, full, random, urandom, tty and terminals of its own; no other can be made or opened.")
}

func (p *Policy) networkWords() []string {
	families := strings.Join(p.file.Seccomp.SocketFamilies, ", ")
	lines := []string{"A network of its own with nothing in it but loopback: nothing outside is reached, nothing outside reaches in."}
	if e, ok := p.Egress(); ok {
		lines = append(lines, egressWords(e)...)
	}
	return append(lines,
		"Sockets may be "+families+"; netlink is for "+strings.Join(p.file.Seccomp.NetlinkProtocols, ", ")+". Every other family is refused.")
}

// egressWords say what the one way out lets through.
func egressWords(e Egress) []string {
	allowed := "no host"
	if len(e.Allow) > 0 {
		allowed = strings.Join(e.Allow, ", ")
	}
	if e.Grants {
		allowed += ", and the hosts and ports that the episode or build names itself"
	}
	ranges := make([]string, len(e.Refused))
	for i, r := range e.Refused {
		ranges[i] = r.String()
	}
	l := e.Limits
	return []string{
		fmt.Sprintf("The one way out is a proxy for HTTP and CONNECT at 127.0.0.1:%d, which HTTP_PROXY and its like name; there is no name server.", e.Port),
		"It reaches: " + allowed + ". Every other destination is refused, and all are in the record with their verdicts.",
		"A name is looked up once, outside, and the address that was judged is the one that is dialled. No name leads to an address of the host itself, nor to " +
			strings.Join(ranges, ", ") + ", unless the address or a range is itself on the list.",
		fmt.Sprintf("Budgets of one sandbox: %d requests, %s a second over time, %d at once; %s sent, %s received; a connection may be silent for %s and last for %s.",
			l.Requests, strconv.FormatFloat(l.RequestsPerSecond, 'g', -1, 64), l.Connections, bytesText(l.BytesUp), bytesText(l.BytesDown), l.Idle, l.Life),
	}
}

func (p *Policy) callWords() []string {
	names, conditional := map[string]bool{}, map[string]bool{}
	for _, c := range p.seccomp.Syscalls {
		for _, n := range c.Names {
			switch {
			case c.Action != specs.ActAllow:
			case len(c.Args) == 0:
				names[n] = true
			default:
				conditional[n] = true
			}
		}
	}
	lines := []string{
		fmt.Sprintf("%d system calls are allowed, %d more with some arguments only; every other is refused.", len(names), len(conditional)),
		"Calls of another architecture (32-bit, x32) end the process.",
		"Mounts, new namespaces, kernel modules, bpf, io_uring, perf, userfaultfd and key rings are refused.",
		"Of what Docker allows by default it refuses: " + strings.Join(p.file.Seccomp.Deny, ", ") + ".",
	}
	if len(p.file.Seccomp.Allow) > 0 {
		lines = append(lines, "Beside that it allows: "+strings.Join(p.file.Seccomp.Allow, ", ")+".")
	}
	return lines
}

func (p *Policy) limitWords() []string {
	l := p.Defaults()
	lines := []string{
		fmt.Sprintf("CPUs: %s. Memory: %s, and no swap. Written files: %s in at most %d inodes. Processes and threads: %d.",
			strconv.FormatFloat(l.CPUs, 'g', -1, 64), bytesText(l.MemoryBytes), bytesText(l.DiskBytes), l.Inodes, l.Pids),
	}
	for _, name := range rlimitNames {
		pair := p.file.Rlimits[name]
		lines = append(lines, fmt.Sprintf("rlimit %s: %d, which a process may raise to %d.", name, pair[0], pair[1]))
	}
	return lines
}

func (p *Policy) hiddenWords() []string {
	masked, readonly := slices.Sorted(slices.Values(p.file.MaskedPaths)), slices.Sorted(slices.Values(p.file.ReadonlyPaths))
	return []string{
		"Empty: " + strings.Join(masked, ", ") + ".",
		"Read-only: " + strings.Join(readonly, ", ") + "; /sys is a small read-only stand-in, and no cgroup is mounted.",
	}
}

func bytesText(n int64) string {
	for shift, unit := range map[uint]string{30: "GiB", 20: "MiB", 10: "KiB"} {
		if n >= 1<<shift && n%(1<<shift) == 0 && n>>shift < 1024 {
			return strconv.FormatInt(n>>shift, 10) + " " + unit
		}
	}
	return strconv.FormatInt(n, 10) + " bytes"
}
