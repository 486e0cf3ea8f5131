package record

import (
	"errors"
	"syscall"
	"testing"

	"github.com/paddock-run/paddock/runner"
)

// A full disk is told as one, and once there is room again the same record goes on.
func TestFullDiskIsNamedAndPasses(t *testing.T) {
	t.Parallel()
	r, err := Open(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}()
	pages := func(max string) {
		t.Helper()
		if err := r.do(t.Context(), runner.Written, write{query: "PRAGMA max_page_count = " + max}); err != nil {
			t.Fatal(err)
		}
	}
	big := []byte(`"` + string(make([]byte, 1<<20)) + `"`)
	pages("1") // as many as there are
	if err := r.PutDocument(t.Context(), "c", "k", big, runner.Synced); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("want ENOSPC, got %v", err)
	}
	pages("1000000")
	if err := r.PutDocument(t.Context(), "c", "k", []byte(`"x"`), runner.Synced); err != nil {
		t.Error(err)
	}
	if doc, err := r.Document(t.Context(), "c", "k"); err != nil || string(doc) != `"x"` {
		t.Errorf("got %s, %v", doc, err)
	}
}
