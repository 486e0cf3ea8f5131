package fusion_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/paddock-run/paddock/daemon/fusion"
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

// hostStore's forks stand on this machine's own tree, which has the compilers.
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

var stacks atomic.Int64

// realJudge is a judge on real sandboxes, with a world called host.
func realJudge(t *testing.T) *judge.Judge {
	t.Helper()
	need.Root(t)
	need.Overlay(t)
	need.Busybox(t)
	for program, debian := range map[string]string{"/usr/bin/python3": "python3", "/usr/bin/gcc": "gcc", "/bin/bash": "bash", "/usr/bin/g++": "g++"} {
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
	l, err := native.New(native.Config{Dir: run, CgroupParent: fmt.Sprintf("paddock-fusion-%d-%d", os.Getpid(), stacks.Add(1))})
	if err != nil {
		t.Fatal(err)
	}
	ids, err := sandbox.HostIDPool(64)
	if err != nil {
		t.Fatal(err)
	}
	r, err := runner.New(t.Context(), runner.Config{
		Root: root, Launcher: launcher{l}, Worlds: hostStore{image.Worlds{Store: store}}, Record: rec, Policies: set, IDs: ids,
		Host: policies.Host{CPUs: 4, MemoryBytes: 16 << 30},
	})
	if err != nil {
		t.Fatal(err)
	}
	j := judge.New(r, nil)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		j.Close()
		if err := errors.Join(r.Close(ctx), l.Close(), rec.Close(), store.Close()); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	if _, err := store.Build(t.Context(), overlay.Recipe{Busybox: true, Name: "host"}, nil); err != nil {
		t.Fatal(err)
	}
	return j
}

// port is a handler on a loopback port of its own.
func port(t *testing.T, runs fusion.Runs, world string) string {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	p, err := fusion.Listen(t.Context(), "127.0.0.1:0", fusion.New(runs, world, log), log)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- p.Serve() }()
	t.Cleanup(func() {
		if err := errors.Join(p.Close(context.WithoutCancel(t.Context())), <-served); err != nil {
			t.Error(err)
		}
	})
	return "http://" + p.Addr()
}

func ask(t *testing.T, method, url, body string, headers ...string) (int, []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
		if headers[i] == "Host" {
			req.Host = headers[i+1]
		}
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	out, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, out
}

func encode(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// command and answer hold every field of the documented answer, so that a missing or
// another one fails the decoding.
type command struct {
	Status        string   `json:"status"`
	ExecutionTime *float64 `json:"execution_time"`
	ReturnCode    *int     `json:"return_code"`
	Stdout        *string  `json:"stdout"`
	Stderr        *string  `json:"stderr"`
}

type answer struct {
	Status          string            `json:"status"`
	Message         string            `json:"message"`
	CompileResult   *command          `json:"compile_result"`
	RunResult       *command          `json:"run_result"`
	ExecutorPodName *string           `json:"executor_pod_name"`
	Files           map[string]string `json:"files"`
}

func runCode(t *testing.T, url string, request map[string]any) answer {
	t.Helper()
	status, body := ask(t, http.MethodPost, url+"/run_code", encode(t, request))
	if status != http.StatusOK {
		t.Fatalf("%v: status %d: %s", request, status, body)
	}
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(body, &keys); err != nil {
		t.Fatal(err)
	}
	want := []string{"compile_result", "executor_pod_name", "files", "message", "run_result", "status"}
	if got := slices.Sorted(maps.Keys(keys)); !slices.Equal(got, want) {
		t.Errorf("fields %v, want %v", got, want)
	}
	in := json.NewDecoder(bytes.NewReader(body))
	in.DisallowUnknownFields()
	var out answer
	if err := in.Decode(&out); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return out
}

func TestRunCodeAnswersAsItsClientsExpect(t *testing.T) {
	t.Parallel()
	url := port(t, realJudge(t), "host")
	b64 := base64.StdEncoding.EncodeToString
	type part struct {
		status         string
		code           *int
		stdout, stderr string // substrings; stdout is exact
	}
	for name, tt := range map[string]struct {
		request      map[string]any
		status       string
		compile, run *part
		files        map[string]string
	}{
		"success": {
			request: map[string]any{"code": "print(input())", "language": "python", "stdin": "hi"}, status: "Success",
			run: &part{status: "Finished", code: new(0), stdout: "hi\n"},
		},
		"no output is a text": {
			request: map[string]any{"code": "pass", "language": "python", "stdin": nil, "files": map[string]any{}, "fetch_files": []string{}, "memory_limit_MB": 1024},
			status:  "Success", run: &part{status: "Finished", code: new(0)},
		},
		"empty stdin": {
			request: map[string]any{"code": "import sys; print(repr(sys.stdin.read()))", "language": "python", "stdin": ""}, status: "Success",
			run: &part{status: "Finished", code: new(0), stdout: "''\n"},
		},
		"an exit code": {
			request: map[string]any{"code": "echo out; echo err >&2; exit 3", "language": "bash"}, status: "Failed",
			run: &part{status: "Finished", code: new(3), stdout: "out\n", stderr: "err\n"},
		},
		"an exception": {
			request: map[string]any{"code": "a=b", "language": "python"}, status: "Failed",
			run: &part{status: "Finished", code: new(1), stderr: "NameError"},
		},
		"a signal": {
			request: map[string]any{"code": "kill -9 $$", "language": "bash"}, status: "Failed",
			run: &part{status: "Finished", code: new(-9)},
		},
		"a timeout keeps what was written": {
			request: map[string]any{"code": "echo before; echo why >&2; sleep 60", "language": "bash", "run_timeout": 1}, status: "Failed",
			run: &part{status: "TimeLimitExceeded", stdout: "before\n", stderr: "why\n"},
		},
		"memory": {
			request: map[string]any{"code": "bytearray(3 << 30)", "language": "python", "memory_limit_MB": 64}, status: "Failed",
			run: &part{status: "Finished", code: new(-9)},
		},
		"compiled": {
			request: map[string]any{"code": "#include <cstdio>\nint main(){ puts(\"hi\"); }", "language": "cpp"}, status: "Success",
			compile: &part{status: "Finished", code: new(0)}, run: &part{status: "Finished", code: new(0), stdout: "hi\n"},
		},
		"a compile error runs nothing": {
			request: map[string]any{"code": "int main( {", "language": "cpp"}, status: "Failed",
			compile: &part{status: "Finished", code: new(1), stderr: "error"},
		},
		"a compilation out of time": {
			request: map[string]any{"code": "#include \"/dev/stdin\"\nint main(){}", "language": "cpp", "compile_timeout": 0.01}, status: "Failed",
			compile: &part{status: "TimeLimitExceeded"},
		},
		"files": {
			request: map[string]any{
				"code":     "open('a.txt','w').write(open('dir1/dir2/flag').read()); open('/mnt/b','wb').write(b'\\xff')",
				"language": "python", "files": map[string]any{"dir1/dir2/flag": b64([]byte("secret")), "left-out": nil},
				"fetch_files": []string{"a.txt", "/mnt/b", "missing", "/etc"},
			},
			status: "Success", run: &part{status: "Finished", code: new(0)},
			files: map[string]string{"a.txt": b64([]byte("secret")), "/mnt/b": b64([]byte("\xff"))},
		},
		"a language of another name": {
			request: map[string]any{"code": "echo 1", "language": "bash", "unknown_field": true}, status: "Success",
			run: &part{status: "Finished", code: new(0), stdout: "1\n"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := runCode(t, url, tt.request)
			if got.Status != tt.status || got.Message != "" || got.ExecutorPodName != nil {
				t.Errorf("status %s, message %q, want %s", got.Status, got.Message, tt.status)
			}
			for what, p := range map[string]struct {
				got  *command
				want *part
			}{"compile": {got.CompileResult, tt.compile}, "run": {got.RunResult, tt.run}} {
				if (p.got == nil) != (p.want == nil) {
					t.Errorf("%s %+v, want %+v", what, p.got, p.want)
					continue
				}
				if p.got == nil {
					continue
				}
				if p.got.Status != p.want.status || p.got.Stdout == nil || p.got.Stderr == nil || p.got.ExecutionTime == nil {
					t.Fatalf("%s %+v, want %+v", what, p.got, p.want)
				}
				if (p.got.ReturnCode == nil) != (p.want.code == nil) || p.want.code != nil && *p.got.ReturnCode != *p.want.code {
					t.Errorf("%s: return code %v, want %v", what, p.got.ReturnCode, p.want.code)
				}
				if what == "run" && *p.got.Stdout != p.want.stdout || !strings.Contains(*p.got.Stderr, p.want.stderr) {
					t.Errorf("%s: stdout %q, stderr %q, want %q and %q", what, *p.got.Stdout, *p.got.Stderr, p.want.stdout, p.want.stderr)
				}
			}
			if got.Files == nil || !maps.Equal(got.Files, tt.files) {
				t.Errorf("files %v, want %v", got.Files, tt.files)
			}
		})
	}
}

func TestSubmitJudgesByTheCasesOfTheRequest(t *testing.T) {
	t.Parallel()
	url := port(t, realJudge(t), "host")
	tests := []any{
		map[string]any{"input": map[string]string{"stdin": "1"}, "output": map[string]string{"stdout": "YES 2"}},
		map[string]any{"input": map[string]string{"stdin": "2"}, "output": map[string]string{"stdout": "4.0"}},
		map[string]any{"input": map[string]string{"stdin": "3"}, "output": map[string]string{"stdout": "5"}},
		map[string]any{"input": map[string]string{"stdin": "4"}, "output": map[string]string{"stdout": "8"}},
	}
	code := "n = int(input())\nprint('yes 2' if n == 1 else 2 * n)"
	submit := func(completion string, data any, extra map[string]any) (int, map[string]any) {
		status, body := ask(t, http.MethodPost, url+"/submit", encode(t, map[string]any{
			"dataset": "any", "id": 7, "completion": completion,
			"config": map[string]any{"language": "python", "provided_data": data, "extra": extra},
		}))
		var out map[string]any
		if err := json.Unmarshal(body, &out); err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		return status, out
	}
	fenced := "Try\n```js\nno\n```\nor\n```python\n" + code + "\n```\n"
	_, got := submit(fenced, map[string]any{"id": 7, "test": encode(t, tests[:2])}, nil)
	if got["accepted"] != true || got["extracted_code"] != code || got["id"] != 7.0 || len(got["tests"].([]any)) != 2 {
		t.Errorf("right: %v", got)
	}
	_, got = submit(fenced, []any{map[string]any{"id": 1, "test": []any{}}, map[string]any{"id": 7, "test": tests}}, nil)
	if all := got["tests"].([]any); got["accepted"] != false || len(all) != 3 || all[2].(map[string]any)["passed"] != false {
		t.Errorf("wrong in the third: %v", got)
	}
	_, got = submit(fenced, map[string]any{"test": tests}, map[string]any{"run_all_cases": true})
	if all := got["tests"].([]any); len(all) != 4 || all[3].(map[string]any)["passed"] != true {
		t.Errorf("all cases: %v", got)
	}
	for _, data := range []any{nil, map[string]any{"test": "x"}, []any{}, map[string]any{"test": []any{}}} {
		if status, got := submit(fenced, data, nil); status != http.StatusBadRequest || got["detail"] == nil {
			t.Errorf("data %v: status %d, %v", data, status, got)
		}
	}
}

// busy is a judge that has no turn to give, or another trouble.
type busy struct{ err error }

func (b busy) Run(context.Context, judge.RunSpec) (judge.RunResult, error) {
	return judge.RunResult{}, b.err
}

func TestWhatIsNotTheCodesHasItsStatus(t *testing.T) {
	t.Parallel()
	body := `{"code":"","language":"python"}`
	for _, tt := range []struct {
		err    error
		status int
	}{
		{&runner.Error{Kind: runner.KindOverCapacity}, http.StatusGatewayTimeout},
		{&runner.Error{Kind: runner.KindDraining}, http.StatusGatewayTimeout},
		{errors.New("no sandbox"), http.StatusInternalServerError},
	} {
		if status, out := ask(t, http.MethodPost, port(t, busy{tt.err}, "w")+"/run_code", body); status != tt.status || !bytes.Contains(out, []byte(`"detail"`)) {
			t.Errorf("%v: status %d (%s), want %d with a detail", tt.err, status, out, tt.status)
		}
	}
	for _, kind := range []string{runner.KindUnknownWorld, judge.KindNoTool, runner.KindBadRequest} {
		got := runCode(t, port(t, busy{&runner.Error{Kind: kind, Detail: "so"}}, "w"), map[string]any{"code": "", "language": "python"})
		if got.Status != "SandboxError" || !strings.Contains(got.Message, "so") || got.RunResult != nil {
			t.Errorf("%s: %+v, want a SandboxError that says why", kind, got)
		}
	}
	url := port(t, busy{}, "w")
	for _, tt := range []struct{ body, loc string }{
		{`{"language":"python"}`, "code"},
		{`{"code":""}`, "language"},
		{`{"code":"","language":"cobol"}`, "language"},
		{`{"code":"","language":"python","run_timeout":-1}`, "run_timeout"},
		{`{"code":1,"language":"python"}`, "code"},
		{`{`, "body"},
		{``, "body"},
	} {
		if status, out := ask(t, http.MethodPost, url+"/run_code", tt.body); status != http.StatusUnprocessableEntity || !bytes.Contains(out, []byte(`"`+tt.loc+`"`)) {
			t.Errorf("%s: status %d: %s, want a 422 that names %s", tt.body, status, out, tt.loc)
		}
	}
	if status, out := ask(t, http.MethodGet, url+"/v1/ping", ""); status != http.StatusOK || string(out) != `"pong"` {
		t.Errorf("ping: %d %s", status, out)
	}
	if status, _ := ask(t, http.MethodGet, url+"/list_datasets", ""); status != http.StatusNotFound {
		t.Errorf("an unknown path: %d", status)
	}
}

func TestPortIsForProgramsOfThisHostAlone(t *testing.T) {
	t.Parallel()
	log := slog.New(slog.DiscardHandler)
	for _, addr := range []string{"0.0.0.0:0", ":0", "[::]:0", "192.0.2.1:0", "example.com:80", "127.0.0.1"} {
		if p, err := fusion.Listen(t.Context(), addr, http.NotFoundHandler(), log); err == nil {
			t.Errorf("%s is taken", addr)
			_ = p.Close(t.Context())
		}
	}
	url := port(t, busy{}, "w")
	for _, headers := range [][]string{{"Origin", "http://evil.example"}, {"Host", "evil.example"}} {
		if status, _ := ask(t, http.MethodGet, url+"/v1/ping", "", headers...); status != http.StatusForbidden {
			t.Errorf("with %v: status %d, want forbidden", headers, status)
		}
	}
	if status, _ := ask(t, http.MethodGet, url+"/v1/ping", "", "Host", "localhost:80"); status != http.StatusOK {
		t.Errorf("as localhost: status %d", status)
	}
}
