package engine

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestDialNamesTheEngineThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	host := "unix://" + filepath.Join(t.TempDir(), "none.sock")
	e, err := Dial(t.Context(), host)
	if err == nil {
		e.Close()
		t.Fatalf("Dial(%s) found an engine", host)
	}
	if !strings.Contains(err.Error(), host) {
		t.Errorf("Dial(%s) = %v, want the host in the error", host, err)
	}
}
