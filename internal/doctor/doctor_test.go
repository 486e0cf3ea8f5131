package doctor

import (
	"errors"
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
		"runc version 1.1.5+ds1\ncommit: x\nspec: 1.0.2-dev": {version{1, 1, 5, release}, true},
		"Docker version 20.10.24+dfsg1, build 297e128":       {version{20, 10, 24, release}, true},
		"6.1":               {version{6, 1, 0, release}, true},
		"6.18.5-cloud-1":    {version{6, 18, 5, release}, true},
		"1.4.0-rc.2+dev":    {version{1, 4, 0, 2}, true},
		"20.10.0-rc1":       {version{20, 10, 0, 1}, true},
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

func TestFixesAreCountedPerSeries(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]int{
		"runc 1.1.5+ds1": 2, "runc 1.1.11": 2, "runc 1.1.12": 1, "runc 1.2.7": 1, "runc 1.2.8": 0, "runc 1.3.2": 1, "runc 1.3.3": 0,
		"runc 1.4.0-rc.2": 1, "runc 1.4.0-rc.3": 0, "runc 1.4.0": 0, "runc 1.5.3": 0, "runc 2.0.0": 0, "runc of my own": 0,
		"docker 20.10.24+dfsg1": 2, "docker 24.0.9": 1, "docker 28.5.1": 1, "docker 28.5.2": 0, "docker 29.1.0": 0, "crun 1.8.1": 0,
	} {
		program, text, _ := strings.Cut(version, " ")
		if got := Unfixed(program, text); len(got) != want {
			t.Errorf("Unfixed(%q, %q) = %q, want %d", program, text, got, want)
		}
	}
}

func TestLaunchersAreReported(t *testing.T) {
	t.Parallel()
	broken := errors.New("no such thing")
	for _, c := range []struct {
		l     Launcher
		level Level
		says  string
	}{
		{Launcher{Name: "native"}, OK, "works"},
		{Launcher{Name: "native", Err: broken}, Fail, "no such thing"},
		{Launcher{Name: "oci runc", Program: "runc", Version: "1.4.0"}, OK, "runc 1.4.0"},
		{Launcher{Name: "oci runc", Program: "runc", Version: "1.1.5"}, Warn, "CVE-2024-21626 (fixed in 1.1.12); CVE-2025-31133"},
		{Launcher{Name: "oci runc", Program: "runc", Version: "1.1.5", Err: broken}, Warn, "no such thing"},
		{Launcher{Name: "docker", Program: "docker", Absent: broken}, OK, "not here: no such thing"},
	} {
		got := c.l.Check()
		if got.Level != c.level || !strings.Contains(got.Found, c.says) || got.Name != "launcher "+c.l.Name || (got.Level == OK) != (got.Do == "") {
			t.Errorf("%+v: %+v, want %s saying %q", c.l, got, c.level, c.says)
		}
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
