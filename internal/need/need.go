// Package need holds the gates of tests that want more than a Go toolchain. A need that
// this machine does not meet fails the test and says how to get it: a skipped test would
// be a hole that nobody sees.
package need

import (
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
)

// Root fails the test unless it runs as root on Linux.
func Root(tb testing.TB) {
	tb.Helper()
	if runtime.GOOS != "linux" {
		tb.Fatalf("need Linux: this is %s", runtime.GOOS)
	}
	if os.Geteuid() != 0 {
		tb.Fatal("need root: run the tests as root, as `sudo make test` does")
	}
}

// Command returns the path of a program; debian names the package that has it.
func Command(tb testing.TB, name, debian string) string {
	tb.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		tb.Fatalf("need the program %s: run `scripts/setup.sh test`, or apt-get install %s", name, debian)
	}
	return path
}

// Busybox returns the path of busybox, which Debian's package busybox-static links
// statically; a recipe says so when another one is not.
func Busybox(tb testing.TB) string {
	tb.Helper()
	return Command(tb, "busybox", "busybox-static")
}

// Overlay fails the test unless it runs as root on a kernel with overlayfs.
func Overlay(tb testing.TB) {
	tb.Helper()
	Root(tb)
	if hasOverlay() {
		return
	}
	// Mounting would load the module; tests of overlay's users do not always mount first.
	_ = exec.CommandContext(tb.Context(), "modprobe", "overlay").Run()
	if !hasOverlay() {
		tb.Fatal("need overlayfs: /proc/filesystems has no overlay and `modprobe overlay` did not bring it")
	}
}

func hasOverlay() bool {
	list, err := os.ReadFile("/proc/filesystems")
	return err == nil && strings.Contains(string(list), "\toverlay\n")
}

// GuestBuilt fails the test when the embedded guest program is empty.
func GuestBuilt(tb testing.TB, guest []byte) {
	tb.Helper()
	if len(guest) == 0 {
		tb.Fatal("need the guest program: run `make guest` before the tests")
	}
}
