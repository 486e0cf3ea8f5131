package need

import (
	"os"
	"syscall"
	"testing"
)

// tmpfsMagic is TMPFS_MAGIC of linux/magic.h.
const tmpfsMagic = 0x01021994

// Tmpfs returns a fresh directory on a tmpfs, removed when the test ends.
func Tmpfs(tb testing.TB) string {
	tb.Helper()
	if dir := tb.TempDir(); onTmpfs(dir) {
		return dir
	}
	const shm = "/dev/shm"
	if !onTmpfs(shm) {
		tb.Fatalf("need a tmpfs: neither TMPDIR nor %s is one; run the tests by `make test`", shm)
	}
	dir, err := os.MkdirTemp(shm, "paddock-test-") //nolint:usetesting // t.TempDir is not on a tmpfs here
	if err != nil {
		tb.Fatalf("need a tmpfs: %v", err)
	}
	tb.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			tb.Errorf("remove %s: %v", dir, err)
		}
	})
	return dir
}

func onTmpfs(dir string) bool {
	var st syscall.Statfs_t
	return syscall.Statfs(dir, &st) == nil && st.Type == tmpfsMagic
}
