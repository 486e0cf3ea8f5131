package monitor_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/paddock-run/paddock/internal/monitor"
)

const childVariable = "PADDOCK_TEST_CALM"

// TestMain makes the test program, started anew, one that calms its monitor at once.
func TestMain(m *testing.M) {
	if os.Getenv(childVariable) == "" {
		os.Exit(m.Run())
	}
	if err := monitor.Calm(); err != nil {
		os.Stderr.WriteString(err.Error())
		os.Exit(1)
	}
	threads, err := filepath.Glob("/proc/self/task/*")
	if err != nil {
		os.Exit(1)
	}
	for _, thread := range threads {
		tid := filepath.Base(thread)
		slack, err := os.ReadFile("/proc/" + tid + "/timerslack_ns")
		if err != nil {
			continue // it ended
		}
		os.Stdout.WriteString(tid + " " + string(slack))
	}
	os.Exit(0)
}

func TestCalmSlowsOneThreadDownThatIsNotMain(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), childVariable+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	calm := 0
	for line := range strings.Lines(string(out)) {
		tid, slack, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch {
		case slack == "1000000" && tid == strconv.Itoa(cmd.Process.Pid):
			t.Error("the main thread has the slack")
		case slack == "1000000":
			calm++
		}
	}
	if calm != 1 {
		t.Errorf("%d threads have the slack, want one:\n%s", calm, out)
	}
}
