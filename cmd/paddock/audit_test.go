package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/paddock-run/paddock/internal/need"
)

func TestAuditFailsOnStraysAndEndsWithTheirNumber(t *testing.T) {
	t.Parallel()
	store := t.TempDir()
	code, out, errs := line(t, "audit", "--root", store)
	if code != 0 || errs != "" || !strings.HasSuffix(out, "\naudit: 0 strays\n") {
		t.Fatalf("audit of an empty store: exit code %d\n%s%s", code, out, errs)
	}
	left := filepath.Join(store, "run", "left\nover")
	if err := os.MkdirAll(left, 0o700); err != nil {
		t.Fatal(err)
	}
	code, out, errs = line(t, "audit", "--root", store)
	if code != exitFailed || errs != "" || !strings.HasSuffix(out, "\naudit: 1 strays\n") || !strings.Contains(out, `left\nover`) {
		t.Fatalf("audit with a stray: exit code %d\n%s%s", code, out, errs)
	}
	code, out, errs = line(t, "audit", "--root", store, "--json")
	var report auditReport
	if code != exitFailed || errs != "" || json.Unmarshal([]byte(out), &report) != nil {
		t.Fatalf("audit --json: exit code %d\n%s%s", code, out, errs)
	}
	if len(report.Strays) != 1 || report.Strays[0].Where != left || report.Daemon != 0 {
		t.Errorf("audit --json = %+v, want %q alone", report, left)
	}
}

func TestAuditOfAMissingStoreFindsNothing(t *testing.T) {
	t.Parallel()
	code, out, errs := line(t, "audit", "--root", filepath.Join(t.TempDir(), "none"), "--json")
	if code != 0 || !strings.Contains(out, `"strays": []`) {
		t.Errorf("audit: exit code %d\n%s%s", code, out, errs)
	}
}

func TestStoreHasOneNameWhateverThePath(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	link := filepath.Join(dir, "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	want, err := filepath.EvalSymlinks(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, rest := range []string{"", "/not/there"} {
		for _, base := range []string{dir, link, dir + "/./x/.."} {
			if got, err := resolveRoot(base + rest); err != nil || got != want+rest {
				t.Errorf("resolveRoot(%q) = %q, %v, want %q", base+rest, got, err, want+rest)
			}
		}
	}
}

func TestDoctorSaysEachCheckAndACount(t *testing.T) {
	t.Parallel()
	need.Overlay(t)
	code, out, errs := line(t, "doctor", "--root", t.TempDir())
	if code != 0 || !strings.Contains(out, " 0 fail\n") || !strings.Contains(out, "cgroups") {
		t.Errorf("doctor: exit code %d\n%s%s", code, out, errs)
	}
	code, out, errs = line(t, "doctor", "--root", t.TempDir(), "--json")
	var report doctorReport
	if code != 0 || json.Unmarshal([]byte(out), &report) != nil || len(report.Checks) < 10 {
		t.Errorf("doctor --json: exit code %d\n%s%s", code, out, errs)
	}
}
