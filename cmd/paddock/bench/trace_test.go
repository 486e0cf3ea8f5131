package bench

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/paddock-run/paddock/internal/timing"
)

func TestTraceHasThirtyCallsThatSayWhatMustComeOfThem(t *testing.T) {
	t.Parallel()
	calls, err := readTrace()
	if err != nil {
		t.Fatal(err)
	}
	if len(calls) != 30 {
		t.Errorf("%d calls, want 30", len(calls))
	}
	kinds := map[string]int{}
	for _, c := range calls {
		if c.Run == "" || c.Says == "" {
			t.Errorf("%+v says too little", c)
		}
		for _, kind := range []string{"git ", "grep ", "sed -i", "python3 -c", "pytest"} {
			if strings.Contains(c.Run, kind) {
				kinds[kind]++
			}
		}
	}
	if len(kinds) != 5 {
		t.Errorf("kinds of calls %v, want all five", kinds)
	}
	// The tests must fail before the agent mends what they test, and pass in the end.
	pytest := slices.DeleteFunc(calls, func(c traceCall) bool { return !strings.Contains(c.Run, "pytest") })
	if first, last := pytest[0], pytest[len(pytest)-1]; first.Exit != 1 || last.Exit != 0 {
		t.Errorf("pytest exits %d first and %d last, want 1 and 0", first.Exit, last.Exit)
	}
}

func TestCheckRefusesWrongAnswers(t *testing.T) {
	t.Parallel()
	c := traceCall{Run: "pytest", Exit: 1, Says: "7 failed"}
	for _, test := range []struct {
		name string
		exit int
		said string
		ok   bool
	}{
		{"as recorded", 1, "== 7 failed, 11 passed ==", true},
		{"another exit code", 0, "== 7 failed, 11 passed ==", false},
		{"another output", 1, "No module named pytest", false},
		{"no output", 1, "", false},
	} {
		if err := c.check(test.exit, test.said); (err == nil) != test.ok {
			t.Errorf("%s: check() = %v", test.name, err)
		}
	}
}

func TestTraceContextHasTheWholeRepository(t *testing.T) {
	t.Parallel()
	b, err := traceContext()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for r := tar.NewReader(b); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
	}
	for _, want := range []string{"repo/.gitignore", "repo/ledger/money.py", "repo/ledger/__init__.py", "repo/tests/__init__.py"} {
		if !slices.Contains(names, want) {
			t.Errorf("%s is not in the context %v", want, names)
		}
	}
	if i := slices.IndexFunc(names, func(n string) bool { return strings.Contains(n, "hidden") }); i >= 0 {
		t.Errorf("the agent finds %s, which it is scored by", names[i])
	}
}

func TestTraceVsBareComparesCPUTime(t *testing.T) {
	t.Parallel()
	cpu := func(wall int, cpu float64) Row {
		r := row(wall)
		r.CPUMs = &cpu
		return r
	}
	r := Report{Rows: map[string]Row{"trace8": cpu(10, 1150), "bare_trace8": cpu(9, 1000), "docker_trace8": row(30)}}
	r.computeRatios()
	if v := r.Ratios["trace_vs_bare"]; v == nil || *v != 1.15 {
		t.Errorf("trace_vs_bare = %v, want 1.15", v)
	}
	if v := r.Ratios["trace_vs_docker"]; v == nil || *v != 3 {
		t.Errorf("trace_vs_docker = %v, want 3", v)
	}
	r.Rows["trace8"] = row(10)
	r.computeRatios()
	if v := r.Ratios["trace_vs_bare"]; v != nil {
		t.Errorf("trace_vs_bare = %v without a CPU time, want null", *v)
	}
}

func TestLayersComeInOrder(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, manifest string
		want           []string
	}{
		{"two", `[{"Layers":["blobs/a","blobs/b"]}]`, []string{"blobs/a", "blobs/b"}},
		{"no layer", `[{"Layers":[]}]`, nil},
		{"two images", `[{"Layers":["a"]},{"Layers":["b"]}]`, nil},
		{"outside", `[{"Layers":["../../etc/passwd"]}]`, nil},
		{"no JSON", `x`, nil},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "manifest.json"), []byte(test.manifest), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := layersOf(dir)
		if (err == nil) != (test.want != nil) {
			t.Errorf("%s: layersOf() = %v, %v", test.name, got, err)
			continue
		}
		for i, l := range got {
			if l != filepath.Join(dir, test.want[i]) {
				t.Errorf("%s: layer %d is %s, want %s", test.name, i, l, test.want[i])
			}
		}
	}
}

func TestUsageOfACgroup(t *testing.T) {
	t.Parallel()
	got, err := usage("usage_usec 1500\nuser_usec 1000\nsystem_usec 500\n")
	if err != nil || got != 1500*time.Microsecond {
		t.Errorf("usage() = %v, %v, want 1.5ms", got, err)
	}
	if _, err := usage("user_usec 1000\n"); err == nil {
		t.Error("usage() of a file without it is no error")
	}
}

func TestTurnsMeasureBatchesAfterOneThatDoesNotCount(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &bench{Config: Config{Progress: func(string, int, int) {}}, report: Report{Rows: map[string]Row{}}}
		var spent time.Duration
		err := b.turns(t.Context(), []arm{{
			name: "a",
			one: func(ctx context.Context, _ int) error {
				spent += 10 * time.Millisecond
				return pause(ctx, time.Second)
			},
			cpu: func() (time.Duration, error) { return spent, nil },
		}}, 1, 1)
		if err != nil {
			t.Fatal(err)
		}
		got := b.report.Rows["a"]
		want := timing.Sample{time.Second}.Summarize()
		if got.Summary != want || got.CPUMs == nil || *got.CPUMs != 10 {
			t.Errorf("row %+v with CPU %v, want %+v with 10 ms", got.Summary, got.CPUMs, want)
		}
	})
}

func TestTurnsQuoteNothingOfAnArmWithAWrongAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &bench{Config: Config{Progress: func(string, int, int) {}}, report: Report{Rows: map[string]Row{}}}
		wrong := errors.New("wrong answer")
		err := b.turns(t.Context(), []arm{{name: "fast", one: func(context.Context, int) error { return wrong }}}, 1, 8)
		if !errors.Is(err, wrong) || len(b.report.Rows) != 0 {
			t.Errorf("turns() = %v with rows %v, want the wrong answer and none", err, b.report.Rows)
		}
	})
}
