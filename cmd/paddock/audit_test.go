package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/paddock-run/paddock/internal/need"
)

// runCommand runs a command line and returns what it printed.
func runCommand(tb testing.TB, args ...string) (string, error) {
	tb.Helper()
	var out bytes.Buffer
	root := newRootCmd()
	root.SetArgs(args)
	root.SetOut(&out)
	root.SetErr(&out)
	err := root.ExecuteContext(tb.Context())
	return out.String(), err
}

func TestAuditFailsOnStraysAndEndsWithTheirNumber(t *testing.T) {
	t.Parallel()
	store := t.TempDir()
	nobody := filepath.Join(t.TempDir(), "no.sock")
	out, err := runCommand(t, "audit", "--root", store, "--socket", nobody)
	if err != nil || !strings.HasSuffix(out, "\naudit: 0 strays\n") {
		t.Fatalf("audit of an empty store: %v\n%s", err, out)
	}
	left := filepath.Join(store, "run", "left\nover")
	if err := os.MkdirAll(left, 0o700); err != nil {
		t.Fatal(err)
	}
	out, err = runCommand(t, "audit", "--root", store, "--socket", nobody)
	if !errors.Is(err, errStrays) || !strings.HasSuffix(out, "\naudit: 1 strays\n") || !strings.Contains(out, `left\nover`) {
		t.Fatalf("audit with a stray: %v\n%s", err, out)
	}
	out, err = runCommand(t, "audit", "--root", store, "--socket", nobody, "--json")
	var report auditReport
	if !errors.Is(err, errStrays) || json.Unmarshal([]byte(out), &report) != nil {
		t.Fatalf("audit --json: %v\n%s", err, out)
	}
	if len(report.Strays) != 1 || report.Strays[0].Where != left || report.Daemon != 0 {
		t.Errorf("audit --json = %+v, want %q alone", report, left)
	}
}

func TestAuditOfAMissingStoreFindsNothing(t *testing.T) {
	t.Parallel()
	out, err := runCommand(t, "audit", "--root", filepath.Join(t.TempDir(), "none"), "--socket", "/none", "--json")
	if err != nil || !strings.Contains(out, `"strays": []`) {
		t.Errorf("audit: %v\n%s", err, out)
	}
}

func TestDoctorSaysEachCheckAndACount(t *testing.T) {
	t.Parallel()
	need.Overlay(t)
	out, err := runCommand(t, "doctor", "--root", t.TempDir())
	if err != nil || !strings.Contains(out, " 0 fail\n") || !strings.Contains(out, "cgroups") {
		t.Errorf("doctor: %v\n%s", err, out)
	}
	out, err = runCommand(t, "doctor", "--root", t.TempDir(), "--json")
	var report struct {
		Level  string `json:"level"`
		Checks []struct{ Name, Level string }
	}
	if err != nil || json.Unmarshal([]byte(out), &report) != nil || len(report.Checks) < 10 {
		t.Errorf("doctor --json: %v\n%s", err, out)
	}
}
