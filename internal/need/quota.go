package need

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// quotaVariable lists directories on file systems with project quotas.
const quotaVariable = "PADDOCK_TEST_QUOTA_DIRS"

// ProjectQuota returns directories on file systems that are mounted with project quotas.
func ProjectQuota(tb testing.TB) []string {
	tb.Helper()
	dirs := filepath.SplitList(os.Getenv(quotaVariable))
	if len(dirs) == 0 {
		tb.Fatalf("need file systems mounted with prjquota: run `make test-v2`, or set %s", quotaVariable)
	}
	return dirs
}

// Below makes a directory below dir that goes with the test.
func Below(tb testing.TB, dir string) string {
	tb.Helper()
	//nolint:usetesting // TempDir is somewhere else
	own, err := os.MkdirTemp(dir, strings.Map(func(r rune) rune {
		if r == '/' {
			return '-'
		}
		return r
	}, tb.Name())+"-*")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := os.RemoveAll(own); err != nil {
			tb.Error(err)
		}
	})
	return own
}
