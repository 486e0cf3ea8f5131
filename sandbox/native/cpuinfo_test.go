package native

import "testing"

func TestCPUInfoKeepsTheFirstProcessors(t *testing.T) {
	t.Parallel()
	const host = "processor\t: 0\nsiblings\t: 4\ncpu cores\t: 2\n\nprocessor\t: 1\nsiblings\t: 4\ncpu cores\t: 2\n\nprocessor\t: 2\nx\t: 9\n\nHardware\t: board\n"
	for n, want := range map[int]string{
		1: "processor\t: 0\nsiblings\t: 1\ncpu cores\t: 1\n\nHardware\t: board\n\n",
		2: "processor\t: 0\nsiblings\t: 2\ncpu cores\t: 2\n\nprocessor\t: 1\nsiblings\t: 2\ncpu cores\t: 2\n\nHardware\t: board\n\n",
	} {
		if got := string(firstCPUs(host, n)); got != want {
			t.Errorf("firstCPUs(%d) = %q, want %q", n, got, want)
		}
	}
}
