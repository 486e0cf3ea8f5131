package native_test

import (
	"strings"
	"testing"
)

const lookAtCgroups = "cat /proc/self/cgroup /proc/1/cgroup"

// A retried episode sees the same cgroups, whatever its sandbox is called.
func TestCgroupsDoNotTellTheSandboxsName(t *testing.T) {
	l := newLauncher(t)
	first := run(t, start(t, l, "default", small), script(lookAtCgroups))
	second := run(t, start(t, l, "default", small), script(lookAtCgroups))
	if first.out != second.out || !strings.Contains(first.out, ":/") {
		t.Errorf("cgroups differ between sandboxes:\n%s\n%s", first.out, second.out)
	}
	if strings.Contains(first.out, "case-") {
		t.Errorf("cgroups tell the sandbox's name:\n%s", first.out)
	}
}

// Each call has a peak of its own, and the sandbox's is the highest of them.
func TestPeakOfTheSandboxIsThatOfItsHighestCall(t *testing.T) {
	s := start(t, newLauncher(t), "default", small)
	high := run(t, s, script("head -c 24000000 /dev/zero | tail >/dev/null")).Usage.MemoryPeakBytes
	low := run(t, s, script("true")).Usage.MemoryPeakBytes
	whole, err := s.Usage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if high < 20<<20 || low > 8<<20 {
		t.Errorf("peaks of a large and a small call are %d and %d bytes", high, low)
	}
	if whole.MemoryPeakBytes < high {
		t.Errorf("the sandbox's peak is %d bytes, that of a call was %d", whole.MemoryPeakBytes, high)
	}
}
