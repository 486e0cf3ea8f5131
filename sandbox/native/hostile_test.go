package native_test

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/paddock-run/paddock/sandbox"
)

// X-P12: a leftover of the same user stops whatever it sees, also a child of PID 1 that is
// not yet its program. Each call keeps to its timeout and PID 1 goes on.
func TestStopStormHoldsUpNoOtherCall(t *testing.T) {
	s := start(t, newLauncher(t), "default", small)
	if r := run(t, s, script("(sleep 0.2; while :; do kill -STOP -1; done) >/dev/null 2>&1 & echo on")); r.out != "on\n" {
		t.Fatalf("storm did not start: %q %q", r.out, r.err)
	}
	for i := range 20 {
		cmd := sandbox.Command{Argv: []string{"/bin/true"}, Dir: "/", Timeout: 100 * time.Millisecond}
		if r := run(t, s, cmd); r.took > 3*time.Second || (code(r) != 0 && !r.TimedOut) {
			t.Fatalf("call %d: code %d signal %d after %s, want 0 or a timeout", i, code(r), r.Signal, r.took)
		}
	}
}

// A sandbox whose calls each leave a process that holds their output cannot use up the
// daemon's descriptors.
func TestHeldOutputsAreBounded(t *testing.T) {
	limits := small
	limits.Pids = 256
	s := start(t, newLauncher(t), "default", limits)
	before := descriptors(t)
	for i := range 100 {
		if r := run(t, s, script("sleep 100 & exit 0")); code(r) != 0 || !r.OutputHeld {
			t.Fatalf("call %d: code %d held %v err %q", i, code(r), r.OutputHeld, r.err)
		}
	}
	if grown := descriptors(t) - before; grown > 80 {
		t.Errorf("100 calls with held outputs keep %d descriptors", grown)
	}
	mustWork(t, s)
}

func descriptors(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// X-P13, X-P14: PID 1 shows a program nothing of itself and cannot be written to.
func TestInitIsClosedToItsPrograms(t *testing.T) {
	s := start(t, newLauncher(t), "default", small)
	for _, try := range []string{
		"cat /proc/1/environ", "readlink /proc/1/fd/2", "readlink /proc/1/fd/3", "echo x >/proc/1/fd/2", "cat /proc/1/maps", "head -c 1 /proc/1/mem", "readlink /proc/1/exe",
		"echo x >/proc/1/exe", "echo x >/proc/1/oom_score_adj", "ls /proc/1/cwd/", "cat /proc/1/root/etc/passwd",
	} {
		if r := run(t, s, script(try)); code(r) == 0 {
			t.Errorf("%s works: %q", try, r.out)
		}
	}
	mustWork(t, s)
}

// E29: a program that was just written is executed while others are being started.
func TestFreshProgramsAreNeverBusy(t *testing.T) {
	s := start(t, newLauncher(t), "default", small)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 10 {
				r := run(t, s, script(fmt.Sprintf("cp /bin/busybox /tmp/true%d && /tmp/true%d; echo $?; rm /tmp/true%d", i, i, i)))
				if strings.Contains(r.err, "busy") {
					t.Errorf("worker %d: %s", i, r.err)
				}
			}
		})
	}
	wg.Wait()
}

// A large stdin arrives whole, and a program that does not read it ends all the same.
func TestLargeStdinArrivesWhole(t *testing.T) {
	s := start(t, newLauncher(t), "default", small)
	cmd := script("wc -c")
	cmd.Stdin = bytes.NewReader(make([]byte, 50<<20))
	if r := run(t, s, cmd); strings.TrimSpace(r.out) != "52428800" {
		t.Errorf("wc counted %q, want 52428800", r.out)
	}
	cmd = script("exit 4")
	cmd.Stdin = bytes.NewReader(make([]byte, 50<<20))
	if r := run(t, s, cmd); code(r) != 4 {
		t.Errorf("code %d, want 4", code(r))
	}
}
