package oci_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/paddock-run/paddock/internal/need"
	"github.com/paddock-run/paddock/policies"
	"github.com/paddock-run/paddock/runner/contract"
	"github.com/paddock-run/paddock/sandbox"
	"github.com/paddock-run/paddock/sandbox/oci"
)

// cgroupsOf are the directories that a launcher has in the cgroup hierarchies.
func cgroupsOf(t *testing.T, parent string) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir("/sys/fs/cgroup", func(p string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case d.IsDir() && strings.Contains(p+"/", "/"+parent+"/"):
			all = append(all, p)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestNothingIsLeftOfAClosedLauncher(t *testing.T) {
	need.Root(t)
	need.Command(t, "runc", "runc")
	dir, parent := need.Tmpfs(t), "paddock-oci-strays"
	others := stagesOf(t)
	l, err := oci.New(t.Context(), oci.Config{Dir: dir, CgroupParent: parent, Runtime: oci.Runc})
	if err != nil {
		t.Fatal(err)
	}
	// Other tests of this host may begin and end theirs meanwhile.
	stages := slices.DeleteFunc(stagesOf(t), func(s string) bool { return slices.Contains(others, s) })
	sb, err := l.Start(t.Context(), contract.SpecOf("default", policies.Limits{})(t, "left"))
	if err != nil {
		t.Fatal(err)
	}
	if len(cgroupsOf(t, parent)) == 0 || len(stages) == 0 {
		t.Fatal("no cgroups and no stage found while a sandbox runs: the test looks in the wrong place")
	}
	if err := errors.Join(sb.Close(), l.Close()); err != nil {
		t.Fatal(err)
	}
	if left := cgroupsOf(t, parent); len(left) > 0 {
		t.Errorf("cgroups are left: %v", left)
	}
	left := stagesOf(t)
	if gone := func(s string) bool { return !slices.Contains(left, s) }; !slices.ContainsFunc(stages, gone) {
		t.Errorf("stages before the end %v, after it %v", stages, left)
	}
}

func stagesOf(t *testing.T) []string {
	t.Helper()
	all, err := filepath.Glob("/run/paddock-oci-*")
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// What a launcher process that died had is ended with it, and the next sandbox is none the
// worse.
func TestDeathOfTheLauncherEndsItsContainers(t *testing.T) {
	need.Root(t)
	need.Command(t, "runc", "runc")
	parent := "paddock-oci-death"
	l, err := oci.New(t.Context(), oci.Config{Dir: need.Tmpfs(t), CgroupParent: parent, Runtime: oci.Runc})
	if err != nil {
		t.Fatal(err)
	}
	spec := contract.SpecOf("default", policies.Limits{})
	sb, err := l.Start(t.Context(), spec(t, "orphan"))
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(l.ProcessID(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-sb.Done()
	if got := sb.Fate().Kind; got != sandbox.LauncherDied {
		t.Errorf("fate %s, want %s", got, sandbox.LauncherDied)
	}
	if err := sb.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	again, err := l.Start(context.WithoutCancel(t.Context()), spec(t, "again"))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(again.Close(), l.Close()); err != nil {
		t.Error(err)
	}
	if left := cgroupsOf(t, parent); len(left) > 0 {
		t.Errorf("cgroups are left: %v", left)
	}
}

func TestAbsentAndUnknownRuntimesAreNamed(t *testing.T) {
	t.Parallel()
	for kind, path := range map[oci.Kind]string{"podman": "", oci.Runc: "/no/such/runc", oci.Crun: os.DevNull} {
		_, err := oci.New(t.Context(), oci.Config{Dir: t.TempDir(), CgroupParent: "paddock-oci-none", Runtime: kind, Path: path})
		if err == nil || !strings.Contains(err.Error(), string(kind)) {
			t.Errorf("New(%s at %q) = %v, want an error that names it", kind, path, err)
		}
	}
}
