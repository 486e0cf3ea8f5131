package runner_test

import (
	"strings"
	"testing"

	"github.com/paddock-run/paddock/runner"
)

// What can never start is refused when it is handed in: as a scoring that fails it would
// look like a fault of the platform, and be tried again.
func TestGradersThatCannotStartAreRefused(t *testing.T) {
	t.Parallel()
	b := newRealBench(t)
	for field, specs := range map[string][]runner.GraderSpec{
		"command": {
			{},
			{Command: []string{""}},
			{Command: []string{"/bin/sh", "a\x00b"}},
			{Command: []string{"/bin/sh", strings.Repeat("x", 4<<20)}},
		},
		"boot/0": {{Command: []string{"x"}, Mode: "boot", Boot: [][]string{{}}}},
		"user":   {{Command: []string{"x"}, User: "root"}, {Command: []string{"x"}, User: "0"}, {Command: []string{"x"}, User: "70000"}},
		"files":  {{Command: []string{"x"}, Files: map[string]runner.GraderFile{strings.Repeat("n", 256): {}}}},
		"dir":    {{Command: []string{"x"}, Dir: "/" + strings.Repeat("n", 256)}},
	} {
		for _, spec := range specs {
			_, err := b.PutGrader(t.Context(), spec)
			e, ok := err.(*runner.Error) //nolint:errorlint // what the daemon is handed
			if !ok || e.Kind != runner.KindBadRequest || e.Field != field {
				t.Errorf("want bad_request of %s, got %v", field, err)
			}
		}
	}
	if _, err := b.PutGrader(t.Context(), runner.GraderSpec{Command: []string{"x"}, User: "1234:7"}); err != nil {
		t.Errorf("a user by id: %v", err)
	}
}
