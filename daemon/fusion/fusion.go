// Package fusion answers the part of SandboxFusion's HTTP interface that needs no data of
// its own: /run_code, /submit with the test cases in the request, and /v1/ping. Field
// names, status rules and defaults are those that its clients (verl's reward client, the
// sandbox-fusion package) count on; each run is a judgement's, in a clean fork.
//
// Its clients try again after a 504 alone, so what waits too long for its turn is a 504.
// A body that is out of form is a 422, as they expect; unknown fields are let pass.
package fusion

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/paddock-run/paddock/runner"
	"github.com/paddock-run/paddock/runner/judge"
)

// Runs is what the interface needs of a judge.
type Runs interface {
	Run(ctx context.Context, spec judge.RunSpec) (judge.RunResult, error)
}

const (
	maxBody = 128 << 20
	// defaultTimeout is that of a compilation and of a run, in seconds.
	defaultTimeout = 10
	maxTimeout     = 3600
	// defaultMemory is the memory of a run that sets none.
	defaultMemory = 2 << 30
	// maxOutput bounds each stream; a program that writes more is killed.
	maxOutput = 16 << 20
	// queueMargin is how long a request may wait beside its compile timeout. verl's client
	// gives up 10 s after both timeouts; a 504 must come before that.
	queueMargin = 8 * time.Second
)

// Handler serves the interface.
type Handler struct {
	runs  Runs
	world string
	log   *slog.Logger
	mux   *http.ServeMux
}

// New returns a handler whose programs run on a world.
func New(runs Runs, world string, log *slog.Logger) *Handler {
	h := &Handler{runs: runs, world: world, log: log, mux: http.NewServeMux()}
	h.mux.HandleFunc("POST /run_code", h.runCode)
	h.mux.HandleFunc("POST /submit", h.submit)
	h.mux.HandleFunc("GET /v1/ping", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, "pong") })
	h.mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusNotFound, map[string]string{"detail": "Not Found"})
	})
	return h
}

// ServeHTTP answers one request.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) { h.mux.ServeHTTP(w, r) }

// runRequest is the body of /run_code. Pointers tell what is missing.
type runRequest struct {
	CompileTimeout *float64           `json:"compile_timeout"`
	RunTimeout     *float64           `json:"run_timeout"`
	MemoryLimitMB  *int64             `json:"memory_limit_MB"`
	Code           *string            `json:"code"`
	Stdin          *string            `json:"stdin"`
	Language       *string            `json:"language"`
	Files          map[string]*[]byte `json:"files"`
	FetchFiles     []string           `json:"fetch_files"`
}

// commandResult is how one command went; what is not known is null.
type commandResult struct {
	Status        string   `json:"status"`
	ExecutionTime *float64 `json:"execution_time"`
	ReturnCode    *int     `json:"return_code"`
	Stdout        *string  `json:"stdout"`
	Stderr        *string  `json:"stderr"`
}

// runResponse is the answer to /run_code.
type runResponse struct {
	Status          string            `json:"status"`
	Message         string            `json:"message"`
	CompileResult   *commandResult    `json:"compile_result"`
	RunResult       *commandResult    `json:"run_result"`
	ExecutorPodName *string           `json:"executor_pod_name"`
	Files           map[string][]byte `json:"files"`
}

// The words of the interface.
const (
	success      = "Success"
	failed       = "Failed"
	sandboxError = "SandboxError"
	finished     = "Finished"
	broken       = "Error"
	timedOut     = "TimeLimitExceeded"
)

func (h *Handler) runCode(w http.ResponseWriter, r *http.Request) {
	var in runRequest
	if !h.decode(w, r, &in) {
		return
	}
	if missing := in.missing(); len(missing) > 0 {
		invalid(w, missing...)
		return
	}
	res, err := h.run(r.Context(), &in)
	if err != nil {
		h.fail(w, r, err)
		return
	}
	answer(w, http.StatusOK, res)
}

func (in *runRequest) missing() []problem {
	var out []problem
	for _, f := range []struct {
		name string
		has  bool
	}{{"code", in.Code != nil}, {"language", in.Language != nil}} {
		if !f.has {
			out = append(out, problem{Type: "missing", Loc: []string{"body", f.name}, Msg: "Field required"})
		}
	}
	if in.Language != nil && !known(*in.Language) {
		out = append(out, problem{
			Type: "literal_error", Loc: []string{"body", "language"},
			Msg: fmt.Sprintf("Input should be a known language, not %q", *in.Language),
		})
	}
	for name, v := range map[string]*float64{"compile_timeout": in.CompileTimeout, "run_timeout": in.RunTimeout} {
		if v != nil && !(*v >= 0 && *v <= maxTimeout) {
			out = append(out, problem{Type: "number", Loc: []string{"body", name}, Msg: fmt.Sprintf("Input should be from 0 to %d", maxTimeout)})
		}
	}
	return out
}

// run runs code once. What the request names and this world or daemon has not is a
// SandboxError, as every failure of the other implementation is.
func (h *Handler) run(ctx context.Context, in *runRequest) (runResponse, error) {
	spec := in.spec(h.world)
	res, err := h.runs.Run(ctx, spec)
	if e, ok := errors.AsType[*runner.Error](err); ok && e.Kind != runner.KindOverCapacity && e.Kind != runner.KindDraining {
		return runResponse{Status: sandboxError, Message: e.Error(), Files: map[string][]byte{}}, nil
	}
	if err != nil {
		return runResponse{}, err
	}
	out := runResponse{CompileResult: command(res.Compile), RunResult: command(res.Run), Files: res.Files}
	if out.Files == nil {
		out.Files = map[string][]byte{}
	}
	out.Status, out.Message = statusOf(out.CompileResult, out.RunResult)
	return out, nil
}

func (in *runRequest) spec(world string) judge.RunSpec {
	seconds := func(v *float64) float64 {
		if v == nil {
			return defaultTimeout
		}
		return max(*v, 0.001) // no time at all would be no limit
	}
	memory := int64(defaultMemory)
	if in.MemoryLimitMB != nil && *in.MemoryLimitMB > 0 {
		memory = *in.MemoryLimitMB << 20
	}
	compile, run := seconds(in.CompileTimeout), seconds(in.RunTimeout)
	spec := judge.RunSpec{
		Source: judge.Source{
			World: world, Language: *in.Language, Code: *in.Code, Files: map[string][]byte{},
			CompileLimits: judge.Limits{WallSeconds: compile, CPUSeconds: 4*compile + 1},
			Patience:      time.Duration(compile*float64(time.Second)) + queueMargin,
		},
		// The wall clock alone is the limit: CPU time has only to be bounded.
		Limits: judge.Limits{WallSeconds: run, CPUSeconds: 4*run + 1, MemoryBytes: memory, OutputBytes: maxOutput, Pids: 256, DiskBytes: 256 << 20},
		Fetch:  in.FetchFiles,
	}
	if in.Stdin != nil {
		spec.Stdin = []byte(*in.Stdin)
	}
	for name, b := range in.Files {
		if b != nil {
			spec.Files[name] = *b
		}
	}
	return spec
}

// command tells of a stage as the other implementation tells of a process: a signal is a
// negative return code, a timeout has none and keeps what was written.
func command(s *judge.Stage) *commandResult {
	if s == nil {
		return nil
	}
	wall := s.Wall.Seconds()
	stdout, stderr := text(s.Stdout), text(s.Stderr)
	c := &commandResult{Status: finished, ExecutionTime: &wall, Stdout: &stdout, Stderr: &stderr}
	switch {
	case s.Verdict == judge.Time:
		c.Status = timedOut
	case s.ExitCode != nil:
		c.ReturnCode = s.ExitCode
	case s.Signal != 0:
		code := -s.Signal
		c.ReturnCode = &code
	default:
		c.Status, c.ExecutionTime, c.Stdout = broken, nil, nil
		why := s.Detail
		c.Stderr = &why
	}
	return c
}

// statusOf is the status of a whole request by its parts.
func statusOf(parts ...*commandResult) (status, message string) {
	status = success
	for _, c := range parts {
		switch {
		case c == nil:
		case c.Status == broken:
			return sandboxError, *c.Stderr
		case c.Status == timedOut, c.ReturnCode != nil && *c.ReturnCode != 0:
			status = failed
		}
	}
	return status, ""
}

// problem is one line of a 422.
type problem struct {
	Type string   `json:"type"`
	Loc  []string `json:"loc"`
	Msg  string   `json:"msg"`
}

func invalid(w http.ResponseWriter, list ...problem) {
	answer(w, http.StatusUnprocessableEntity, map[string]any{"detail": list})
}

func (h *Handler) decode(w http.ResponseWriter, r *http.Request, out any) bool {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1))
	switch {
	case err != nil:
		invalid(w, problem{Type: "json_invalid", Loc: []string{"body"}, Msg: "the body broke off: " + err.Error()})
		return false
	case len(body) > maxBody:
		answer(w, http.StatusRequestEntityTooLarge, map[string]string{"detail": fmt.Sprintf("the body has more than %d bytes", maxBody)})
		return false
	}
	if err := json.Unmarshal(body, out); err != nil {
		loc := []string{"body"}
		if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok && e.Field != "" {
			loc = append(loc, e.Field)
		}
		invalid(w, problem{Type: "json_invalid", Loc: loc, Msg: err.Error()})
		return false
	}
	return true
}

// fail answers what no request is to blame for.
func (h *Handler) fail(w http.ResponseWriter, r *http.Request, err error) {
	switch kind := runner.KindOf(err); {
	case r.Context().Err() != nil: // nobody is there to read it
	case kind == runner.KindOverCapacity, kind == runner.KindDraining:
		answer(w, http.StatusGatewayTimeout, map[string]string{"detail": err.Error()})
	default:
		h.log.Error("run_code", slog.Any("error", err))
		answer(w, http.StatusInternalServerError, map[string]string{"detail": err.Error(), "traceback": ""})
	}
}

func answer(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil { // every value here is made of texts and numbers
		status, body = http.StatusInternalServerError, []byte(`{"detail":"unencodable","traceback":""}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(body)
}
