package judge_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/paddock-run/paddock/internal/need"
	"github.com/paddock-run/paddock/overlay"
	"github.com/paddock-run/paddock/overlay/image"
	"github.com/paddock-run/paddock/policies"
	"github.com/paddock-run/paddock/runner"
	"github.com/paddock-run/paddock/runner/judge"
	"github.com/paddock-run/paddock/runner/record"
	"github.com/paddock-run/paddock/sandbox"
	"github.com/paddock-run/paddock/sandbox/native"
)

type launcher struct{ *native.Launcher }

func (l launcher) Start(ctx context.Context, spec sandbox.Spec) (runner.Sandbox, error) {
	s, err := l.Launcher.Start(ctx, spec)
	if err != nil {
		return nil, err
	}
	return box{s}, nil
}

type box struct{ *native.Sandbox }

func (b box) Files() runner.Files { return b.Sandbox.Files() }

// hostStore is a real store; its forks stand on this machine's own tree, below which a
// world with compilers need not be built first.
type hostStore struct{ image.Worlds }

func (s hostStore) Fork(ctx context.Context, id string) (runner.Fork, error) {
	f, err := s.Worlds.Fork(ctx, id)
	if err != nil {
		return nil, err
	}
	return hostFork{f}, nil
}

type hostFork struct{ *overlay.Fork }

func (f hostFork) Lowers() []string { return []string{"/"} }

func (f hostFork) Track(upper *os.File, hostID uint32) runner.Tracker {
	return f.Fork.Track(upper, hostID)
}

var benches atomic.Int64

// bench is a judge on real sandboxes.
type bench struct {
	*judge.Judge
	t      *testing.T
	runner *runner.Runner
	root   string
	ids    *sandbox.IDPool
}

func newBench(t *testing.T, change ...func(*runner.Config)) *bench {
	t.Helper()
	need.Root(t)
	need.Overlay(t)
	need.Busybox(t)
	for program, debian := range map[string]string{"/usr/bin/python3": "python3", "/usr/bin/gcc": "gcc", "/bin/bash": "bash"} {
		need.Command(t, program, debian)
	}
	root := need.Tmpfs(t)
	set, err := policies.Load()
	if err != nil {
		t.Fatal(err)
	}
	store, err := overlay.Open(root, overlay.Options{})
	if err != nil {
		t.Fatal(err)
	}
	rec, err := record.Open(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	run := filepath.Join(root, "run", "launcher")
	if err := os.MkdirAll(run, 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := native.New(native.Config{Dir: run, CgroupParent: fmt.Sprintf("paddock-judge-%d-%d", os.Getpid(), benches.Add(1))})
	if err != nil {
		t.Fatal(err)
	}
	ids, err := sandbox.HostIDPool(64)
	if err != nil {
		t.Fatal(err)
	}
	cfg := runner.Config{
		Root: root, Launcher: launcher{l}, Worlds: hostStore{image.Worlds{Store: store}}, Record: rec, Policies: set, IDs: ids,
		Host: policies.Host{CPUs: 4, MemoryBytes: 16 << 30},
	}
	for _, c := range change {
		c(&cfg)
	}
	r, err := runner.New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{Judge: judge.New(r, nil), t: t, runner: r, root: root, ids: ids}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		b.Close()
		if err := errors.Join(r.Close(ctx), l.Close(), rec.Close(), store.Close()); err != nil {
			t.Errorf("close: %v", err)
		}
		if free := ids.Free(); free != 64 {
			t.Errorf("%d of 64 id ranges are free", free)
		}
		if left, _ := filepath.Glob(filepath.Join(root, "run", "scratch", "*")); len(left) > 0 {
			t.Errorf("left in the scratch directory: %v", left)
		}
	})
	if _, err := store.Build(t.Context(), overlay.Recipe{Busybox: true, Name: "host"}, nil); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *bench) judge(spec judge.Spec) judge.Result {
	b.t.Helper()
	spec.World = "host"
	res, err := b.Judge.Judge(b.t.Context(), spec, nil)
	if err != nil {
		b.t.Fatalf("Judge: %v", err)
	}
	return res
}

func out(text string) *[]byte {
	b := []byte(text)
	return &b
}

func src(language, code string) judge.Source { return judge.Source{Language: language, Code: code} }

// ahead has sandboxes made ahead of need.
func ahead(c *runner.Config) { c.Stock = runner.Stock{Blanks: 2, Warm: 2} }

func TestVerdictsOfPrograms(t *testing.T) {
	t.Parallel()
	b := newBench(t, ahead)
	cases := []struct {
		name, language, code string
		c                    judge.Case
		want                 judge.Verdict
		detail               string
	}{
		{"right", "python", "print(int(input())*2)", judge.Case{Stdin: []byte("21\n"), Stdout: out("42")}, judge.OK, ""},
		{"wrong", "python", "print(1)\nprint(3)", judge.Case{Stdout: out("1\n2\n")}, judge.Wrong, "line 2"},
		{"no expectation", "python", "print(1)", judge.Case{}, judge.OK, ""},
		{"exit code", "python", "import sys; sys.exit(3)", judge.Case{Stdout: out("")}, judge.Crashed, "exit code 3"},
		{"exception", "python", "1/0", judge.Case{Stdout: out("")}, judge.Crashed, "exit code 1"},
		{"signal", "c", "int main(void){ volatile int *p = 0; return *p; }", judge.Case{}, judge.Crashed, "signal 11"},
		{"cpu time", "c", "int main(void){ for(volatile int i=0;;i++); }", judge.Case{Limits: judge.Limits{CPUSeconds: 0.2, WallSeconds: 60}}, judge.Time, "CPU"},
		{"wall time", "bash", "echo before; sleep 60", judge.Case{Limits: judge.Limits{WallSeconds: 0.5}}, judge.Time, "took more"},
		{"memory", "python", "b = bytearray(1 << 30)\nprint(len(b))", judge.Case{Limits: judge.Limits{MemoryBytes: 48 << 20, DiskBytes: 1 << 20}}, judge.Memory, ""},
		{"output", "python", "while True: print('x' * 1000)", judge.Case{Limits: judge.Limits{OutputBytes: 100_000}}, judge.Output, ""},
		{"a child that stays", "bash", "sleep 1000 & echo done", judge.Case{Stdout: out("done")}, judge.OK, ""},
		{"fork bomb", "bash", "f(){ f|f & }; f; sleep 60", judge.Case{Limits: judge.Limits{WallSeconds: 1, Pids: 16}}, judge.Time, ""},
		{"arguments and files", "bash", `cat "$1"`, judge.Case{Args: []string{"d/f"}, Files: map[string][]byte{"d/f": []byte("in it")}, Stdout: out("in it")}, judge.OK, ""},
		{"exact", "python", "print('a ')", judge.Case{Stdout: out("a\n"), Compare: &judge.Compare{Rule: judge.Exact}}, judge.Wrong, ""},
		{"floats", "python", "print(0.1+0.2)", judge.Case{Stdout: out("0.3"), Compare: &judge.Compare{Rule: judge.Floats}}, judge.OK, ""},
		{"compile error", "c", "int main(void){ return x; }", judge.Case{Stdout: out("")}, judge.NoBuild, "exit code 1"},
	}
	var wg sync.WaitGroup
	for _, tt := range cases {
		wg.Go(func() {
			res, err := b.Judge.Judge(t.Context(), judge.Spec{
				Source: judge.Source{World: "host", Language: tt.language, Code: tt.code}, Cases: []judge.Case{tt.c},
			}, nil)
			if err != nil {
				t.Errorf("%s: %v", tt.name, err)
				return
			}
			got := res.Cases[0]
			if got.Verdict != tt.want || !strings.Contains(got.Detail, tt.detail) {
				t.Errorf("%s: verdict %s (%s; stderr %q), want %s with %q", tt.name, got.Verdict, got.Detail, got.Stage.Stderr, tt.want, tt.detail)
			}
			if got.Passed == nil || *got.Passed != (tt.want == judge.OK) {
				t.Errorf("%s: passed is %v", tt.name, got.Passed)
			}
			if tt.want != judge.NoBuild && (got.Stage.MemoryPeakBytes == 0 || got.Stage.Wall == 0) {
				t.Errorf("%s: memory %d and wall %v, want both told", tt.name, got.Stage.MemoryPeakBytes, got.Stage.Wall)
			}
		})
	}
	wg.Wait()
}

func TestTimeoutKeepsWhatWasWritten(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	res := b.judge(judge.Spec{Source: src("bash", "echo before; echo why >&2; sleep 60"), Cases: []judge.Case{{Limits: judge.Limits{WallSeconds: 1}}}})
	if s := res.Cases[0].Stage; string(s.Stdout) != "before\n" || string(s.Stderr) != "why\n" {
		t.Errorf("stdout %q, stderr %q of a program that ran out of time", s.Stdout, s.Stderr)
	}
}

// The code writes where all cases could see it: beside itself, into /tmp, over its own
// binary. None sees what another did.
func TestCasesRunInCleanForksOfOneCompilation(t *testing.T) {
	t.Parallel()
	b := newBench(t, ahead)
	code := `#include <stdio.h>
#include <unistd.h>
int main(void){
  if (access("mark", F_OK) == 0 || access("/tmp/judge-mark", F_OK) == 0) { puts("dirty"); return 0; }
  fclose(fopen("mark", "w")); fclose(fopen("/tmp/judge-mark", "w"));
  unlink("main"); rename("main.c", "gone");
  puts("clean"); return 0; }`
	cases := make([]judge.Case, 24)
	for i := range cases {
		cases[i].Stdout = out("clean")
	}
	var told atomic.Int64
	spec := judge.Spec{Source: src("c", code), Cases: cases, Parallel: 8}
	spec.World = "host"
	res, err := b.Judge.Judge(t.Context(), spec, func(judge.CaseResult) { told.Add(1) })
	if err != nil {
		t.Fatal(err)
	}
	if res.Passed != len(cases) || res.Score == nil || *res.Score != 1 || res.Verdict != judge.OK || told.Load() != 24 {
		t.Errorf("%d of %d passed, verdict %s, %d told: %+v", res.Passed, len(cases), res.Verdict, told.Load(), res.Cases[0])
	}
	if res.Compile == nil || res.Compile.Verdict != judge.OK || res.Kept {
		t.Errorf("compile %+v, kept %v, want a compilation of its own", res.Compile, res.Kept)
	}
	if again := b.judge(spec); !again.Kept || again.Passed != len(cases) {
		t.Errorf("the same again: kept %v, %d passed; want the compiled state of before", again.Kept, again.Passed)
	}
	spec.CompileLimits.CPUSeconds = 59
	if other := b.judge(spec); other.Kept {
		t.Error("with other limits of the compilation: kept, want compiled anew")
	}
}

func TestCallsAssertionsAndTestFiles(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	raw := func(args ...string) (all []json.RawMessage) {
		for _, a := range args {
			all = append(all, json.RawMessage(a))
		}
		return all
	}
	py := `
import os, sys
def add(a, b): return a + b
def pair(x, y=1): return (x, {"y": y})
def quit(): os._exit(0)
def tell(): os.write(3, b'7')
def boom(): raise ValueError("no")
class Solution:
    def twice(self, x): return 2.0 * x
if __name__ == "__main__": sys.exit(9)
`
	res := b.judge(judge.Spec{Source: src("python", py), Cases: []judge.Case{
		{Name: "ok", Call: &judge.Call{Function: "add", Args: raw("1", "2"), Want: json.RawMessage("3")}},
		{Name: "wrong", Call: &judge.Call{Function: "add", Args: raw("1", "2"), Want: json.RawMessage("4")}},
		{Name: "ok", Call: &judge.Call{Function: "pair", Args: raw(`"x"`), Kwargs: map[string]json.RawMessage{"y": raw("2")[0]}, Want: json.RawMessage(`["x",{"y":2.0}]`)}},
		{Name: "ok", Call: &judge.Call{Function: "twice", Args: raw("2"), Want: json.RawMessage("4")}},
		{Name: "runtime_error", Call: &judge.Call{Function: "quit", Want: json.RawMessage("null")}},
		{Name: "runtime_error", Call: &judge.Call{Function: "tell", Want: json.RawMessage("7")}},
		{Name: "runtime_error", Call: &judge.Call{Function: "boom", Want: json.RawMessage("null")}},
		{Name: "runtime_error", Call: &judge.Call{Function: "missing", Want: json.RawMessage("null")}},
		{Name: "ok", Assert: "assert add(2, 2) == 4"},
		{Name: "runtime_error", Assert: "assert add(2, 2) == 5"},
		{Name: "runtime_error", Assert: "quit()\nassert False"},
		{Name: "ok", Test: "import main\nassert main.add(1, 1) == 2"},
		{Name: "runtime_error", Test: "import main\nassert main.add(1, 1) == 3"},
	}})
	for i, c := range res.Cases {
		if string(c.Verdict) != c.Name {
			t.Errorf("python case %d: %s (%s; %s), want %s", i, c.Verdict, c.Detail, c.Stage.Stderr, c.Name)
		}
	}
	test := "#include \"main.c\"\n#include <assert.h>\nint main(void){ assert(add(1,1)==%d); return 0; }"
	res = b.judge(judge.Spec{Source: src("c", "int add(int a, int b){ return a+b; }"), Cases: []judge.Case{
		{Test: fmt.Sprintf(test, 2)}, {Test: fmt.Sprintf(test, 3)}, {Test: "int main(void){ return nothing; }"},
	}})
	for i, want := range []judge.Verdict{judge.OK, judge.Crashed, judge.NoBuild} {
		if got := res.Cases[i]; got.Verdict != want {
			t.Errorf("test file %d: %s (%s), want %s", i, got.Verdict, got.Detail, want)
		}
	}
	res = b.judge(judge.Spec{Source: src("bash", "add() { echo $(($1+$2)); }"), Cases: []judge.Case{
		{Assert: `[ "$(add 1 2)" = 3 ]`}, {Assert: `[ "$(add 1 2)" = 4 ]`}, {Assert: "exit 0"},
	}})
	for i, want := range []judge.Verdict{judge.OK, judge.Crashed, judge.Crashed} {
		if got := res.Cases[i]; got.Verdict != want {
			t.Errorf("bash assertion %d: %s (%s; %s), want %s", i, got.Verdict, got.Detail, got.Stage.Stderr, want)
		}
	}
}

func TestCheckerJudgesInASandboxOfItsOwn(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	checker := func(code string) *judge.Compare {
		return &judge.Compare{Rule: judge.Checked, Checker: &judge.Checker{Language: "python", Code: code}}
	}
	// Right is any pair whose sum is the input; the code cannot have left anything for it.
	sum := checker(`import os, sys
if os.path.exists("/tmp/judge-forged"): sys.exit(0)
a, b = map(int, open(sys.argv[2]).read().split())
sys.exit(0 if a + b == int(open(sys.argv[1]).read()) and open(sys.argv[3]).read() == "any" else 1)`)
	c := func(compare *judge.Compare) judge.Case {
		return judge.Case{Stdin: []byte("10"), Stdout: out("any"), Compare: compare}
	}
	for _, tt := range []struct {
		code string
		c    judge.Case
		want judge.Verdict
	}{
		{"print(3, 7)", c(sum), judge.OK},
		{"open('/tmp/judge-forged', 'w'); open('output', 'w').write('5 5'); print(3, 8)", c(sum), judge.Wrong},
		{"print(1)", c(checker("import sys; sys.exit(2)")), judge.Wrong},
		{"print(1)", c(checker("import sys; sys.exit(3)")), judge.Unchecked},
		{"print(1)", c(checker("1/0")), judge.Wrong}, // an exception exits with 1, as a checker that says wrong
		{"print(1)", c(&judge.Compare{Rule: judge.Checked, Checker: &judge.Checker{Language: "c", Code: "no"}}), judge.Unchecked},
	} {
		res := b.judge(judge.Spec{Source: src("python", tt.code), Cases: []judge.Case{tt.c}})
		got := res.Cases[0]
		if got.Verdict != tt.want {
			t.Errorf("%s: %s (%s; %+v), want %s", tt.code, got.Verdict, got.Detail, got.Checker, tt.want)
		}
		if tt.want == judge.Unchecked && (got.Passed != nil || res.Score != nil) {
			t.Errorf("%s: passed %v, score %v of a checker that failed, want neither", tt.code, got.Passed, res.Score)
		}
	}
}

func TestRunFetchesFilesAndTellsOfBothStages(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	run := func(spec judge.RunSpec) judge.RunResult {
		t.Helper()
		spec.World = "host"
		res, err := b.Run(t.Context(), spec)
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	res := run(judge.RunSpec{
		Source: judge.Source{Language: "python", Code: "open('a','w').write(open('d/in').read()); open('/mnt/b','w').write('b')", Files: map[string][]byte{"d/in": []byte("\x00x")}},
		Fetch:  []string{"a", "/mnt/b", "missing", "../etc", "/proc/self/environ"},
	})
	if res.Compile != nil || res.Run == nil || res.Run.Verdict != judge.OK || string(res.Files["a"]) != "\x00x" || string(res.Files["/mnt/b"]) != "b" || len(res.Files) != 2 {
		t.Errorf("run %+v, files %q", res.Run, res.Files)
	}
	res = run(judge.RunSpec{Source: judge.Source{Language: "c", Code: "int main"}})
	if res.Compile == nil || res.Compile.Verdict != judge.Crashed || len(res.Compile.Stderr) == 0 || res.Run != nil {
		t.Errorf("what does not compile: %+v, run %+v", res.Compile, res.Run)
	}
}

func TestRefusalsNameTheField(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ok := []judge.Case{{}}
	for _, tt := range []struct {
		spec  judge.Spec
		kind  string
		field string
	}{
		{judge.Spec{Source: src("", "")}, runner.KindBadRequest, "language"},
		{judge.Spec{Source: src("cobol", "")}, runner.KindBadRequest, "language"},
		{judge.Spec{Source: src("python", "")}, runner.KindBadRequest, "cases"},
		{judge.Spec{Source: src("python", ""), Cases: ok, Parallel: -1}, runner.KindBadRequest, "parallel"},
		{judge.Spec{Source: src("python", ""), Cases: []judge.Case{{Stdout: out(""), Assert: "x"}}}, runner.KindBadRequest, "cases/0"},
		{judge.Spec{Source: src("c", ""), Cases: []judge.Case{{}, {Assert: "x"}}}, runner.KindBadRequest, "cases/1/assert"},
		{judge.Spec{Source: src("python", ""), Cases: []judge.Case{{Call: &judge.Call{Function: "f"}}}}, runner.KindBadRequest, "cases/0/call/want"},
		{judge.Spec{Source: src("python", ""), Cases: ok, Compare: &judge.Compare{Rule: "like"}}, runner.KindBadRequest, "compare/rule"},
		{judge.Spec{Source: src("python", ""), Cases: []judge.Case{{Limits: judge.Limits{MemoryBytes: 1}}}}, runner.KindBadRequest, "cases/0/limits/memory"},
		{judge.Spec{Source: src("python", ""), Cases: []judge.Case{{Files: map[string][]byte{"../x": nil}}}}, runner.KindBadRequest, "cases/0/files"},
		{judge.Spec{Source: judge.Source{Language: "lua", Env: map[string]string{"PATH": "/nowhere"}}, Cases: ok}, judge.KindNoTool, "language"},
		{judge.Spec{Source: judge.Source{Language: "c", Env: map[string]string{"PATH": "/nowhere"}}, Cases: ok}, judge.KindNoTool, "language"},
	} {
		tt.spec.World = "host"
		_, err := b.Judge.Judge(t.Context(), tt.spec, nil)
		if e, ok := errors.AsType[*runner.Error](err); !ok || e.Kind != tt.kind || e.Field != tt.field {
			t.Errorf("%+v: %v, want %s at %s", tt.spec, err, tt.kind, tt.field)
		}
	}
	_, err := b.Judge.Judge(t.Context(), judge.Spec{Source: judge.Source{World: "none", Language: "python"}, Cases: ok}, nil)
	if runner.KindOf(err) != runner.KindUnknownWorld {
		t.Errorf("a world that is not there: %v", err)
	}
}

func TestStopEarlySkipsWhatHasNotBegun(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	res := b.judge(judge.Spec{Source: src("bash", "exit 1"), Cases: make([]judge.Case, 5), Parallel: 1, StopEarly: true})
	if res.Cases[0].Verdict != judge.Crashed || res.Cases[4].Verdict != judge.Skipped || res.Cases[4].Passed != nil || res.Score == nil || *res.Score != 0 {
		t.Errorf("first %s, last %s, score %v", res.Cases[0].Verdict, res.Cases[4].Verdict, res.Score)
	}
}

// No sandbox can be started: that is nobody's program, and no score.
func TestPlatformFaultIsNoVerdictOnTheCode(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for i := range 64 { // every range of ids is taken, so no sandbox can start
		taken, err := b.ids.Acquire()
		if err != nil {
			t.Fatalf("range %d: %v", i, err)
		}
		defer b.ids.Release(taken)
	}
	spec := judge.Spec{Source: src("bash", "echo"), Cases: make([]judge.Case, 2)}
	spec.World = "host"
	res, err := b.Judge.Judge(ctx, spec, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range res.Cases {
		if c.Verdict != judge.Platform || c.Passed != nil {
			t.Errorf("verdict %s, passed %v, want the platform's and neither", c.Verdict, c.Passed)
		}
	}
	if res.Score != nil || res.Verdict != judge.Platform {
		t.Errorf("score %v, verdict %s of a judgement that the platform spoiled", res.Score, res.Verdict)
	}
}

// Clients of some interfaces must hear in time that no turn will come.
func TestWhoHasNoPatienceIsRefusedWhenNoTurnComes(t *testing.T) {
	t.Parallel()
	b := newBench(t, func(c *runner.Config) { c.Host.CPUs = 1 })
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	spec := judge.Spec{Source: src("bash", "echo; sleep 1000"), Limits: judge.Limits{WallSeconds: 1000}, Cases: make([]judge.Case, 16), Parallel: 16}
	spec.World = "host"
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = b.Judge.Judge(ctx, spec, nil) })
	deadline := time.Now().Add(time.Minute)
	for len(b.runner.Sandboxes()) < 16 {
		if time.Now().After(deadline) {
			t.Fatalf("%d sandboxes run, want 16", len(b.runner.Sandboxes()))
		}
		runtime.Gosched()
	}
	_, err := b.Run(t.Context(), judge.RunSpec{Source: judge.Source{World: "host", Language: "bash", Code: "echo", Patience: 50 * time.Millisecond}})
	if runner.KindOf(err) != runner.KindOverCapacity {
		t.Errorf("with every place taken: %v, want over_capacity", err)
	}
	cancel(nil)
	wg.Wait()
	if _, err := b.Run(t.Context(), judge.RunSpec{Source: judge.Source{World: "host", Language: "bash", Code: "echo"}}); err != nil {
		t.Errorf("once the others are gone: %v", err)
	}
}
