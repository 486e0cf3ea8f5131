package native_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paddock-run/paddock/sandbox/native"
)

// children are the processes that a launcher process has: its nursery, and guests.
func children(t *testing.T, l launcher, inNamespace bool) []int {
	t.Helper()
	var pids []int
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", l.ProcessID()))
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		list, err := os.ReadFile(task)
		if err != nil {
			continue // a thread that ended
		}
		for f := range strings.FieldsSeq(string(list)) {
			pid, err := strconv.Atoi(f)
			if err != nil {
				t.Fatal(err)
			}
			if isPID1(f) == inNamespace {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// isPID1 says whether a process is the first of a pid namespace below this one.
func isPID1(pid string) bool {
	status, err := os.ReadFile("/proc/" + pid + "/status")
	if err != nil {
		return false // it has ended
	}
	for line := range strings.Lines(string(status)) {
		if ids, ok := strings.CutPrefix(line, "NSpid:"); ok {
			return len(strings.Fields(ids)) > 1
		}
	}
	return false
}

// guests are the PID 1s that a launcher process has.
func guests(t *testing.T, l launcher) []int {
	t.Helper()
	return children(t, l, true)
}

// cgroupsNamed lists the cgroups of a sandbox's name in all hierarchies.
func cgroupsNamed(t *testing.T, name string) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir("/sys/fs/cgroup", func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && d.Name() == name {
			found = append(found, p)
		}
		return nil // others come and go
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// eventually waits until ok says so; the kernel and the launcher take their time.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("%s did not come true in 20 s", what)
		}
		<-time.After(2 * time.Millisecond)
	}
}

func TestStartUsesWhatWasPrepared(t *testing.T) {
	l := newLauncher(t)
	spec := specOf("default", small)(t, "prepared-1")
	if err := l.Prepare(t.Context(), spec.Name, spec.IDs); err != nil {
		t.Fatal(err)
	}
	before := guests(t, l)
	s, err := l.Launcher.Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	if after := guests(t, l); len(before) != 1 || !slices.Equal(after, before) {
		t.Errorf("guests %v before the start and %v after, want one and the same", before, after)
	}
	mustWork(t, s)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if left := cgroupsNamed(t, spec.Name); len(left) != 0 {
		t.Errorf("cgroups %v are left", left)
	}
}

func TestStartDoesWithoutWhatWasPrepared(t *testing.T) {
	for _, c := range []struct {
		name  string
		spoil func(*testing.T, launcher)
	}{
		{"killed from outside", func(t *testing.T, l launcher) {
			t.Helper()
			for _, pid := range guests(t, l) {
				if err := unix.Kill(pid, unix.SIGKILL); err != nil {
					t.Fatal(err)
				}
			}
			eventually(t, "the guest's end", func() bool { return len(guests(t, l)) == 0 })
		}},
		{"launcher died", func(t *testing.T, l launcher) {
			t.Helper()
			if err := unix.Kill(l.ProcessID(), unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}},
		{"nursery died", func(t *testing.T, l launcher) {
			t.Helper()
			nursery := children(t, l, false)
			if len(nursery) != 1 {
				t.Fatalf("nurseries %v, want one", nursery)
			}
			launcher := l.ProcessID()
			if err := unix.Kill(nursery[0], unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
			// A sandbox that it started in its last moment would end with it.
			eventually(t, "the end of its launcher", func() bool { return unix.Kill(launcher, 0) != nil })
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLauncher(t)
			spec := specOf("default", small)(t, "spoiled-1")
			if err := l.Prepare(t.Context(), spec.Name, spec.IDs); err != nil {
				t.Fatal(err)
			}
			c.spoil(t, l)
			var s *native.Sandbox
			eventually(t, "a start", func() (ok bool) { // one may meet the dying launcher
				var err error
				s, err = l.Launcher.Start(t.Context(), spec)
				return err == nil
			})
			mustWork(t, s)
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			if left := cgroupsNamed(t, spec.Name); len(left) != 0 {
				t.Errorf("cgroups %v are left", left)
			}
		})
	}
}

func TestPreparedForOtherIDsIsNotUsed(t *testing.T) {
	l := newLauncher(t)
	other := specOf("default", small)(t, "other-1")
	if err := l.Prepare(t.Context(), other.Name, other.IDs); err != nil {
		t.Fatal(err)
	}
	before := guests(t, l)
	s := start(t, l, "default", small)
	mustWork(t, s)
	spec := specOf("default", small)(t, other.Name)
	mine, err := l.Launcher.Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	mustWork(t, mine)
	if slices.Contains(guests(t, l), before[0]) {
		t.Error("the guest with the other ids is still there")
	}
	if err := mine.Close(); err != nil {
		t.Error(err)
	}
}

func TestDropLeavesNothing(t *testing.T) {
	l := newLauncher(t)
	spec := specOf("default", small)(t, "dropped-1")
	if err := l.Prepare(t.Context(), spec.Name, spec.IDs); err != nil {
		t.Fatal(err)
	}
	if err := l.Drop(spec.Name); err != nil {
		t.Fatal(err)
	}
	if left := cgroupsNamed(t, spec.Name); len(left) != 0 {
		t.Errorf("cgroups %v are left", left)
	}
	eventually(t, "the guest's end", func() bool { return len(guests(t, l)) == 0 })
	if err := l.Drop(spec.Name); err != nil {
		t.Errorf("Drop of nothing: %v", err)
	}
}

func TestCloseEndsWhatWasPrepared(t *testing.T) {
	l := newLauncher(t)
	spec := specOf("default", small)(t, "closed-1")
	if err := l.Prepare(t.Context(), spec.Name, spec.IDs); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if left := cgroupsNamed(t, spec.Name); len(left) != 0 {
		t.Errorf("cgroups %v are left", left)
	}
}
