package attacks

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/paddock-run/paddock/sandbox"
	"github.com/paddock-run/paddock/sandbox/docker"
	"github.com/paddock-run/paddock/sandbox/native"
	"github.com/paddock-run/paddock/sandbox/oci"
)

// launcherVariable, runtimeVariable and pathVariable choose another launcher than native,
// as `make test-attacks LAUNCHER=oci RUNTIME=runc` does.
const (
	launcherVariable = "PADDOCK_ATTACKS_LAUNCHER"
	runtimeVariable  = "PADDOCK_ATTACKS_RUNTIME"
	pathVariable     = "PADDOCK_ATTACKS_RUNTIME_PATH"
)

// launcher is what the suite attacks.
type launcher interface {
	Start(ctx context.Context, spec sandbox.Spec) (*native.Sandbox, error)
	Info() sandbox.Info
	ProcessID() int
	Close() error
}

// under names the launcher that is attacked.
func under() string {
	name, kind := os.Getenv(launcherVariable), os.Getenv(runtimeVariable)
	switch {
	case name == "":
		return "native"
	case name == "oci" && kind == "":
		return string(oci.Runc)
	case name == "oci":
		return kind
	}
	return name
}

func chosenLauncher(t *testing.T, dir, cgroup string) launcher {
	t.Helper()
	var l launcher
	var err error
	switch name := under(); name {
	case "native":
		l, err = native.New(native.Config{Dir: dir, CgroupParent: cgroup})
	case "docker":
		l, err = docker.New(t.Context(), docker.Config{Dir: dir, CgroupParent: cgroup})
	default:
		l, err = oci.New(t.Context(), oci.Config{Dir: dir, CgroupParent: cgroup, Runtime: oci.Kind(name), Path: os.Getenv(pathVariable)})
	}
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// difference is what a case finds under a launcher and not under native.
type difference struct {
	// why says what makes it so, and why that is no way out.
	why string
	// want takes the place of what the case prints, root the same where the policy has a root.
	want, root string
	// typed, when set, takes the place of the case's, and golden with a policy's name behind it
	// that of the probe's table.
	typed  func(c call) bool
	golden string
	// shared: what the case takes all of is shared with the host.
	shared bool
	// ends: the case ends the sandbox, by the agent's own doing; mayEnd: or it does not.
	ends, mayEnd bool
	// lines takes the place of lines of the probe.
	lines map[string]string
}

// masked is a runtime's way to mask a path.
const masked = "a runtime masks a directory by an empty read-only tmpfs, a file by the null device, and makes a part of /proc read-only, " +
	"each without nosuid and nodev; there is no program in any, and none would gain by a set-id bit"

// gvisors is said of what is asked of gVisor's kernel and never reaches the host's.
const gvisors = "gVisor's own kernel answers, and what it changes is its own"

// ownInit is said of PID 1's files in /proc, which belong to root inside where a runtime has
// executed it there.
const ownInit = "PID 1's files in /proc belong to root inside, whom the kernel then refuses by its check of processes"

// rootsShare is said of what the kernel counts as the maker's of a user namespace, too.
const rootsShare = "a runtime makes the user namespace as root, whose share of inotify instances and pending signals all its sandboxes have together"

// pings is said of ping_group_range, which has nobody by default.
const pings = "anybody may make a socket for echoes, which has no way out"

const initMemory = "vm_readv EPERM\nvm_writev EPERM\nseize EPERM\nmem EACCES\ntask-mem EACCES\nsyscall EPERM\nkcmp EPERM\nfds 0\nprlimit EPERM\nsetscheduler EPERM"

// differences are all of them, by launcher and case. A case that is not here finds the same
// as under native. docs/launchers.md has them for people.
var differences = map[string]map[string]difference{
	string(oci.Runc): {"X-K24": {why: masked}, "X-P13": {why: ownInit, root: initMemory}, "X-P16b": {why: rootsShare, shared: true}},
	string(oci.Crun): {"X-K24": {why: masked}, "X-P13": {why: ownInit, root: initMemory}, "X-P16b": {why: rootsShare, shared: true}},
	string(oci.Runsc): {
		"X-P01":  {why: "threads of gVisor's own count as processes of the sandbox, so that a fork bomb that gets far ends all of it", mayEnd: true, typed: func(c call) bool { return c.TimedOut }},
		"X-P02":  {why: "to the host the sandbox is one process, which the OOM killer takes whole", want: "*", ends: true},
		"X-P03":  {why: "as X-P02", want: "*", ends: true},
		"X-P12":  {why: "gVisor lets root inside kill PID 1", want: "*", ends: true},
		"X-P16":  {why: "timers are gVisor's own memory, and end as X-P02", want: "*", ends: true},
		"X-P16b": {why: "as X-P16", want: "*", ends: true},
		"X-P07":  {why: "what left its session is not found before the sandbox's end"},
		"X-P13":  {why: gvisors, want: "vm_readv EPERM\nvm_writev EPERM\nseize EPERM\nmem EACCES\ntask-mem EACCES\nsyscall ENOENT\nkcmp EPERM\nfds 0\nprlimit EPERM\nsetscheduler ok"},
		"X-P14":  {why: gvisors + "; PID 1's program is a sealed memory file", want: "*", typed: anyEnd},
		"X-P17":  {why: gvisors, want: "shm ok\nsem ok\nmsg ok\nmq ok\nkeyring EPERM"},
		"X-P18":  {why: gvisors, want: "nice ok\nfifo EINVAL\ndeadline EINVAL\nioprio EPERM\nmlock ENOMEM\nmlockall ENOMEM\nnofile EPERM\ncore EPERM\noom ok"},
		"X-K01":  {why: gvisors, golden: "testdata/probe.runsc."},
		"X-K03":  {why: gvisors, want: "net ok\nmnt ok\nuser ok\npid ok\nipc ok\nuts ok\ncgroup ENOENT\nsetns EPERM\nbind EPERM"},
		"X-K10":  {why: gvisors, want: "char fd full fuse net null ptmx pts random shm stderr stdin stdout tty urandom zero\nmknod: /tmp/a: Operation not permitted\nmknod: /dev/a: Operation not permitted"},
		"X-K11":  {why: gvisors, want: "*"},
		"X-K24":  {why: gvisors},
		"X-F04":  {why: "FIFOs and unix sockets are gVisor's own, and in no capture"},
		"X-F08":  {why: "there are no attributes of files but user's", want: "opaque EOPNOTSUPP\nredirect EOPNOTSUPP\ncapability EOPNOTSUPP"},
		"X-N01":  {why: pings, want: strings.Replace(noNetwork, "ping "+internet+" EACCES", "ping "+internet+" ENETUNREACH", 1)},
		"X-N03":  {why: gvisors, want: "udp 224.0.0.1 ENETUNREACH\nudp 255.255.255.255 ENETUNREACH\nudp ff02::1 ENETUNREACH\ntcp fe80::1 ENETUNREACH\n1"},
	},
	"docker": {
		"X-K01": {why: "no program has a capability", lines: map[string]string{
			"chown ok": "chown EPERM", "setuid ok": "setuid EPERM", "chroot ok": "chroot EPERM",
		}},
		"X-K16":  {why: "a program sees its user's number on the host"},
		"X-K23b": {why: "no program has a capability"},
		"X-K24":  {why: masked},
		"X-N01":  {why: pings, want: strings.Replace(noNetwork, "ping "+internet+" EACCES", "ping "+internet+" ENETUNREACH", 1)},
		"X-F08":  {why: "no program has a capability, under build either", want: "opaque EPERM\nredirect EPERM\ncapability EPERM"},
	},
}

// differs is the difference of a case under the launcher that is attacked.
func (h *host) differs(id string) difference { return differences[under()][id] }

// seen is what a user of the sandbox is to itself.
func (b *box) seen(uid uint32) uint32 {
	if b.h.launcher.Info().UserNS {
		return uid
	}
	return b.ids.HostID + uid
}

// Every difference is of a case that there is, says why, and is told of to people.
func TestDifferencesAreDeclared(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/launchers.md")
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, group := range [][]attack{processes, kernel, files, network, proxied} {
		for _, a := range group {
			known[a.id] = true
		}
	}
	for launcher, all := range differences {
		for id, d := range all {
			if !known[id] || d.why == "" || !strings.Contains(string(text), id) {
				t.Errorf("%s under %s: no such case, no reason, or not in docs/launchers.md", id, launcher)
			}
		}
	}
}
