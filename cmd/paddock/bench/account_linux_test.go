package bench

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/paddock-run/paddock/internal/need"
)

func TestAccountTellsWhatWasUsedInItAndGoes(t *testing.T) {
	t.Parallel()
	need.Root(t)
	a, err := OpenAccount(fmt.Sprintf("paddock-bench-test-%d", os.Getpid()))
	if err != nil { // a host without cgroup2 too: on such nothing accounts for the bench
		t.Fatal(err)
	}
	before, err := a.Used()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", `echo $$ >"$1" && i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; read line`, "sh", a.Procs())
	hold, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Wait() }()
	for deadline := time.Now().Add(20 * time.Second); ; {
		used, err := a.Used()
		if err != nil {
			t.Fatal(err)
		}
		if used > before {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("Used() = %v after a loop in it, want more than %v", used, before)
		}
		<-time.After(time.Millisecond)
	}
	// It ends only while Close waits for it.
	go func() {
		<-time.After(100 * time.Millisecond)
		_ = hold.Close()
	}()
	if err := a.Close(t.Context()); err != nil {
		t.Errorf("Close() = %v", err)
	}
	if _, err := os.Stat(filepath.Join(a.root, a.name)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the cgroup is still there: %v", err)
	}
}
