package seccomp

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/paddock-run/paddock/policies"
)

const childVariable = "SECCOMP_TEST_CHILD"

func TestMain(m *testing.M) {
	if arg := os.Getenv(childVariable); arg != "" {
		policy, attempt, _ := strings.Cut(arg, " ")
		set, err := policies.Load()
		if err != nil {
			panic(err)
		}
		p, err := set.Get(policy)
		if err != nil {
			panic(err)
		}
		spec, err := p.Spec(p.Defaults(), "h", "/w")
		if err != nil {
			panic(err)
		}
		prog, err := Compile(spec.Linux.Seccomp, "amd64")
		if err != nil {
			panic(err)
		}
		childMain(prog, attempt)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// inChild makes one attempt under a policy's filter and returns the errno's name ("" for
// success) or the name of the signal that ended the child.
func inChild(tb testing.TB, policy, attempt string) string {
	tb.Helper()
	cmd := exec.CommandContext(tb.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), childVariable+"="+policy+" "+attempt, "GOTRACEBACK=none")
	out, err := cmd.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		status, ok := exit.Sys().(syscall.WaitStatus)
		if ok && status.Signaled() {
			return unix.SignalName(status.Signal())
		}
		return fmt.Sprintf("%v: %s%s", err, out, exit.Stderr)
	}
	if err != nil {
		tb.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

func TestKernelAnswersAsTheProfileSays(t *testing.T) {
	t.Parallel()
	for attempt, want := range map[string]string{
		"getpid": "", "sync": "", "unix": "", "route": "",
		"alg": "EPERM", "alg-high": "EPERM", "vsock": "EPERM", "packet": "EPERM", "tipc": "EPERM", "netfilter": "EPERM",
		"newuser": "EPERM", "clone3": "ENOSYS", "unshare": "EPERM", "mount": "EPERM", "io_uring": "EPERM", "bpf": "EPERM",
		"keyctl": "EPERM", "userfaultfd": "EPERM", "by-handle": "EPERM", "memfd-secret": "EPERM",
		"setattr": "ENOSYS", "setxattr": "EPERM", "setxattr-hi": "EPERM", "tiocsti-hi": "EPERM", "mknod": "EPERM",
		"unknown": "ENOSYS", "minus-one": "ENOSYS", "x32": "SIGSYS",
	} {
		for _, policy := range []string{"default", "strict"} {
			if got := inChild(t, policy, attempt); got != want {
				t.Errorf("%s under %s: %q, want %q", attempt, policy, got, want)
			}
		}
	}
	if got := inChild(t, "default", "ptrace"); got == "EPERM" {
		t.Errorf("ptrace under default: %q, want the kernel's own answer", got)
	}
	if got := inChild(t, "strict", "ptrace"); got != "EPERM" {
		t.Errorf("ptrace under strict: %q, want EPERM", got)
	}
}

// A test of its own, because User-Mode Linux has no such entry to refuse.
func TestInt80IsKilled(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{"default", "strict"} {
		if got := inChild(t, policy, "int80"); got != "SIGSYS" {
			t.Errorf("int80 under %s: %q, want SIGSYS", policy, got)
		}
	}
}

// The int 0x80 helper proves something only if the call works without the filter.
func TestInt80WorksWithoutAFilter(t *testing.T) {
	t.Parallel()
	if err := int80(20); err != nil {
		t.Fatal(err)
	}
}

func BenchmarkLoad(b *testing.B) {
	for _, policy := range []string{"default", "strict"} {
		b.Run(policy, func(b *testing.B) {
			var sum int64
			for b.Loop() {
				ns, err := strconv.ParseInt(inChild(b, policy, "time"), 10, 64)
				if err != nil {
					b.Fatal(err)
				}
				sum += ns
			}
			b.ReportMetric(float64(sum)/float64(b.N)/1000, "load-us")
		})
	}
}
