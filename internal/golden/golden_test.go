package golden_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/paddock-run/paddock/internal/golden"
)

// judged is a test that only notes whether it failed.
type judged struct {
	testing.TB
	said string
}

func (j *judged) Helper()                   {}
func (j *judged) Errorf(f string, _ ...any) { j.said = f }

func TestAFileThatDiffersFailsAndIsWrittenAnewOnlyWhenAsked(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f.golden.json")
	if err := os.WriteFile(file, []byte("1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	golden.JSON(t, file, 1)
	j := &judged{TB: t}
	golden.JSON(j, file, 2)
	if !strings.Contains(j.said, "-update") {
		t.Errorf("another value: %q", j.said)
	}
	if err := flag.Set("update", "true"); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = flag.Set("update", "false") }()
	golden.JSON(t, file, 2)
	if text, err := os.ReadFile(file); err != nil || string(text) != "2\n" {
		t.Errorf("the file has %q (%v), want the new value", text, err)
	}
}
