package attacks

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// What this kernel has at all, found out outside of any sandbox. Where it has none of
// something, an attack by that way must be refused with just that.
var (
	// hasIPv6: User-Mode Linux of Debian has no such address family.
	hasIPv6 = there(socketOf(unix.AF_INET6), unix.EAFNOSUPPORT)
	// hasSyscallFile: nor has it /proc/PID/syscall.
	hasSyscallFile = there(stat("/proc/self/syscall"), unix.ENOENT)
	// isUML says that the kernel is a process: one slow CPU, and nothing to lose.
	isUML = strings.Contains(cpuinfo(), "User Mode Linux")
)

// there says that the kernel has something; without is the only way for it not to.
func there(err, without error) bool {
	if err != nil && !errors.Is(err, without) {
		panic("what the kernel has: " + err.Error())
	}
	return err == nil
}

func socketOf(family int) error {
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		_ = unix.Close(fd)
	}
	return err
}

func stat(path string) error {
	_, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return unix.ENOENT
	}
	return err
}

func cpuinfo() string {
	b, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		panic("what the kernel has: " + err.Error())
	}
	return string(b)
}

// either is the answer where the kernel has what an attack goes by.
func either(has bool, answer, without string) string {
	if has {
		return answer
	}
	return without
}

// six is the answer to an attack over IPv6.
func six(answer string) string { return either(hasIPv6, answer, "EAFNOSUPPORT") }

// patient is a time in which a program gets somewhere on this kernel.
func patient(d time.Duration) time.Duration {
	if isUML {
		return 8 * d
	}
	return d
}

// magicSysRq is X-K11 for real, on a kernel that is a process of its own and may be lost: the
// file is there, root outside may write to it, and nothing inside may, by whatever way.
func (h *host) magicSysRq(t *testing.T) {
	t.Helper()
	if !isUML {
		return
	}
	const file = "/proc/sysrq-trigger"
	if err := os.WriteFile(file, []byte("h"), 0); err != nil { // prints a help text
		t.Fatalf("outside of a sandbox: %v", err)
	}
	for _, policy := range h.set.Names() {
		b := h.start(t, "x-sysrq-"+policy, policy, small)
		c := b.sh(t, "for k in b c o e i; do echo $k >"+file+"; echo $k >/proc/self/root"+file+"; echo $k >/proc/1/root"+file+"; done 2>&1 | grep -vc -e 'Read-only' -e 'ermission denied' -e 'nonexistent directory'; attack reboot_now")
		if c.out != "0\nrestart EPERM\nhalt EPERM\npower EPERM\ncad EPERM\n" {
			t.Errorf("%s: sysrq and reboot: %q %q", policy, c.out, c.err)
		}
		b.close(t)
	}
}
