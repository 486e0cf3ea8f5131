package doctor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/paddock-run/paddock/internal/need"
)

func TestThisHostCanRunEpisodes(t *testing.T) {
	t.Parallel()
	need.Overlay(t)
	report := Examine(t.Context(), t.TempDir(), nil)
	seen := map[string]bool{}
	for _, c := range report {
		if c.Level == Fail {
			t.Errorf("%s fails: %s; %s", c.Name, c.Found, c.Do)
		}
		if c.Name == "" || c.Found == "" || seen[c.Name] {
			t.Errorf("check %+v has no name or finding of its own", c)
		}
		seen[c.Name] = true
		if (c.Level == OK) != (c.Do == "") {
			t.Errorf("check %+v: advice goes with what is not ok, and only with that", c)
		}
	}
	if Worst(report) == Fail {
		t.Error("Worst() = fail")
	}
}

func TestWorstOfAReport(t *testing.T) {
	t.Parallel()
	for want, levels := range map[Level][]Level{
		OK:   {OK, OK},
		Warn: {OK, Warn, OK},
		Fail: {Warn, Fail, Warn},
	} {
		var report []Check
		for _, l := range levels {
			report = append(report, Check{Level: l})
		}
		if got := Worst(report); got != want {
			t.Errorf("Worst(%v) = %v, want %v", levels, got, want)
		}
	}
}

func TestVersionIsFoundInWhatProgramsPrint(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		want version
		ok   bool
	}{
		"runc version 1.1.5+ds1\ncommit: x\nspec: 1.0.2-dev": {version{1, 1, 5}, true},
		"Docker version 20.10.24+dfsg1, build 297e128":       {version{20, 10, 24}, true},
		"6.1":               {version{6, 1, 0}, true},
		"6.18.5-cloud-1":    {version{6, 18, 5}, true},
		"no number":         {version{}, false},
		"7":                 {version{}, false},
		"99999999999999999": {version{}, false},
	}
	for text, c := range cases {
		got, ok := parseVersion(text)
		if got != c.want || ok != c.ok {
			t.Errorf("parseVersion(%q) = %v, %v, want %v, %v", text, got, ok, c.want, c.ok)
		}
	}
}

func TestFixedVersionsPerSeries(t *testing.T) {
	t.Parallel()
	for v, want := range map[version]bool{
		{1, 1, 5}: false, {1, 1, 99}: false, {1, 2, 7}: false, {1, 2, 8}: true,
		{1, 3, 2}: false, {1, 3, 3}: true, {1, 4, 0}: true, {1, 5, 0}: true, {2, 0, 0}: true,
	} {
		if got := runcFloors.hold(v); got != want {
			t.Errorf("runc %v fixed = %v, want %v", v, got, want)
		}
	}
}

func TestRuntimeVersionReportsOldAndBroken(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	cases := map[string]struct {
		script string
		level  Level
		says   string
	}{
		"old-runc":    {"echo runc version 1.1.5", Warn, "lacks fixes"},
		"new-runc":    {"echo runc version 1.4.0", OK, "1.4.0"},
		"mute-runc":   {"true", Warn, "names no version"},
		"broken-runc": {"exit 3", Warn, "exit status 3"},
	}
	for name, c := range cases {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+c.script+"\n"), 0o700); err != nil { //nolint:gosec // a program
			t.Fatal(err)
		}
		got := runtimeVersion(t.Context(), name, runcFloors)
		if got.Level != c.level || !strings.Contains(got.Found, c.says) {
			t.Errorf("%s: %+v, want %s saying %q", name, got, c.level, c.says)
		}
	}
	if got := runtimeVersion(t.Context(), "absent-runc", runcFloors); got.Level != OK {
		t.Errorf("an absent runtime: %+v, want ok", got)
	}
}

func TestProgramsThatCrashesStartAreNamed(t *testing.T) {
	t.Parallel()
	for pattern, level := range map[string]Level{"core": OK, "/var/crash/core.%p": OK, "": OK, "|/usr/share/apport/apport %p": Warn} {
		got := corePattern(pattern)
		if got.Level != level || level == Warn && (!strings.Contains(got.Found, "/apport/apport") || got.Do == "") {
			t.Errorf("core_pattern %q: %+v, want %s", pattern, got, level)
		}
	}
}

func TestControllersThatAreMissingFail(t *testing.T) {
	t.Parallel()
	want := []string{"cpu", "memory", "pids"}
	cases := map[string]struct {
		have  []string
		level Level
	}{
		"all":       {[]string{"cpuset", "cpu", "io", "memory", "pids"}, OK},
		"no cpuset": {[]string{"cpu", "memory", "pids"}, Warn},
		"no memory": {[]string{"cpuset", "cpu", "pids"}, Fail},
		"none":      {nil, Fail},
	}
	for name, c := range cases {
		if got := controllers("v2", c.have, want); got.Level != c.level {
			t.Errorf("%s: %+v, want %s", name, got, c.level)
		}
	}
}

func TestProcFilesAreReadByTheirKeys(t *testing.T) {
	t.Parallel()
	info := "MemTotal:       24683520 kB\nMemFree: 1 kB\nSwapTotal:             0 kB\n"
	if got := meminfo(info, "MemTotal"); got != 24683520 {
		t.Errorf("MemTotal = %d", got)
	}
	if got := meminfo(info, "Absent"); got != 0 {
		t.Errorf("Absent = %d, want 0", got)
	}
	set, err := effectiveCapabilities("Name:\tx\nCapEff:\t000001fffeffffff\n")
	if err != nil || set != 0x1fffeffffff {
		t.Errorf("effectiveCapabilities = %x, %v", set, err)
	}
	if _, err := effectiveCapabilities("Name:\tx\n"); err == nil {
		t.Error("a status without CapEff was accepted")
	}
}

func TestFileSystemOfNearestParent(t *testing.T) {
	t.Parallel()
	dir := need.Tmpfs(t)
	here, err := FileSystemOf(dir)
	if err != nil {
		t.Fatal(err)
	}
	below, err := FileSystemOf(filepath.Join(dir, "not", "there"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"tmpfs", "tmpfs"}, []string{here.Type, below.Type}); diff != "" {
		t.Error(diff)
	}
}
