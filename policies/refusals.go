package policies

import (
	"bytes"
	"fmt"
	"strings"
)

// CheckUser answers a *RefusalError where the policy does not let uid run.
func (p *Policy) CheckUser(uid uint32) error {
	if !p.file.RefuseRoot || uid != 0 {
		return nil
	}
	return &RefusalError{
		Policy: p.file.Name, Kind: "user_refused",
		Detail: "user 0 is refused by policy " + p.file.Name,
	}
}

// Refusals lists in plain text what the policy refuses, for people.
func (p *Policy) Refusals() []string {
	all := []string{p.networkRefusal()}
	if p.file.RefuseRoot {
		all = append(all, "user 0 is refused by policy "+p.file.Name)
	}
	if p.file.Root == "read-only" {
		all = append(all, p.rootReadOnly(""))
	}
	if !p.allows("ptrace") {
		all = append(all, p.ptraceOff())
	}
	return append(all,
		fmt.Sprintf("mounts, namespaces, kernel modules, bpf, io_uring, perf and key rings are off by policy %s", p.file.Name))
}

// maxExplained bounds how much of an output Explain reads, from its end.
const maxExplained = 64 << 10

// Explain reads the end of a failed call's error output and says which of the policy's
// refusals, if any, is behind it. It is a hint for people and agents: a program may print
// anything.
func (p *Policy) Explain(stderr []byte, workdir string) []string {
	tail := bytes.ToLower(stderr[max(0, len(stderr)-maxExplained):])
	var why []string
	if containsAny(tail,
		"network is unreachable", "could not resolve", "couldn't resolve", "temporary failure in name resolution",
		"temporary failure resolving", "name or service not known", "no address associated with hostname",
		"unknown host", "bad address '", "failed to resolve", "dns error", "eai_again", "enetunreach") {
		why = append(why, p.networkHint())
	}
	if p.file.Root == "read-only" && containsAny(tail, "read-only file system", "erofs") {
		why = append(why, p.rootReadOnly(workdir))
	}
	if !p.allows("ptrace") && containsAny(tail, "ptrace") {
		why = append(why, p.ptraceOff())
	}
	return why
}

func containsAny(text []byte, phrases ...string) bool {
	for _, s := range phrases {
		if bytes.Contains(text, []byte(s)) {
			return true
		}
	}
	return false
}

func (p *Policy) networkRefusal() string {
	if e := p.file.Egress; e != nil {
		return fmt.Sprintf("there is no network by policy %s, but the proxy at 127.0.0.1:%d, which refuses every host that is not allowed, and every name that leads to a private address",
			p.file.Name, e.Port)
	}
	return "network is off by policy " + p.file.Name
}

// networkHint is for a program that could not connect or look a name up by itself.
func (p *Policy) networkHint() string {
	if e := p.file.Egress; e != nil {
		return fmt.Sprintf("hosts are reached through the proxy at http://127.0.0.1:%d (HTTP_PROXY) alone, by policy %s", e.Port, p.file.Name)
	}
	return p.networkRefusal()
}

func (p *Policy) ptraceOff() string { return "ptrace is off by policy " + p.file.Name }

func (p *Policy) rootReadOnly(workdir string) string {
	where := strings.Join(p.Writable(workdir), ", ")
	if workdir == "" {
		where = "the working directory, " + where
	}
	return fmt.Sprintf("the root is read-only by policy %s; writable: %s", p.file.Name, where)
}
