package api

import (
	"context"
	"encoding/json"
	"net/http"
)

// JudgeLimits bound one program; what is unset is the default, which the result echoes.
type JudgeLimits struct {
	CPUS   float64 `json:"cpu_s,omitempty" doc:"of all its processes together; 10 by default, 60 for a compilation"`
	WallS  float64 `json:"wall_s,omitempty" doc:"twice cpu_s and 5 more by default"`
	Memory Size    `json:"memory,omitempty" doc:"512 MiB by default, 2 GiB for a compilation; disk counts on top of it"`
	Disk   Size    `json:"disk,omitempty" doc:"what it may write; 64 MiB by default, 512 MiB for a compilation"`
	Pids   int64   `json:"pids,omitempty" doc:"128 by default, 256 for a compilation"`
	Output Size    `json:"output,omitempty" doc:"of stdout and of stderr, each; 16 MiB by default, 1 MiB for a compilation"`
}

// JudgeFile is a file beside the code. Text is for UTF-8, B64 for any bytes; one of them.
type JudgeFile struct {
	Text string `json:"text,omitempty"`
	B64  []byte `json:"b64,omitempty"`
}

// JudgeCompare says when an output is right.
type JudgeCompare struct {
	Rule    string        `json:"rule,omitempty" doc:"exact, trailing (default: white space at the ends of lines, and empty lines at the end, do not count), tokens, floats or checker"`
	Abs     *float64      `json:"abs,omitempty" doc:"tolerance of floats; both unset is 1e-6 for both"`
	Rel     *float64      `json:"rel,omitempty"`
	Checker *JudgeChecker `json:"checker,omitempty"`
}

// JudgeChecker is a program that judges an output, in a sandbox of its own: its arguments
// name the files input, output and answer; it exits with 0 for right, 1 or 2 for wrong.
type JudgeChecker struct {
	Language string               `json:"language"`
	Code     string               `json:"code"`
	Files    map[string]JudgeFile `json:"files,omitempty"`
	Limits   JudgeLimits          `json:"limits,omitzero"`
}

// JudgeCall calls a function of the code. What it gives is compared outside of the sandbox,
// so the code never sees want.
type JudgeCall struct {
	Function string                     `json:"function" doc:"of the code, or a method of its class Solution"`
	Args     []json.RawMessage          `json:"args,omitempty"`
	Kwargs   map[string]json.RawMessage `json:"kwargs,omitempty"`
	Want     json.RawMessage            `json:"want" doc:"the value, as JSON"`
}

// JudgeCase is one test. At most one of stdout, call, assert and test is set; with none, a
// program passes that exits with code 0.
type JudgeCase struct {
	Name     string               `json:"name,omitempty"`
	Stdin    *string              `json:"stdin,omitempty" doc:"the spec's when unset"`
	StdinB64 []byte               `json:"stdin_b64,omitempty" doc:"instead of stdin, where the bytes are no UTF-8"`
	Args     []string             `json:"args,omitempty"`
	Files    map[string]JudgeFile `json:"files,omitempty"`
	Limits   JudgeLimits          `json:"limits,omitzero"`
	Compare  *JudgeCompare        `json:"compare,omitempty" doc:"the spec's when unset"`

	Stdout    *string    `json:"stdout,omitempty" doc:"what the program shall print"`
	StdoutB64 []byte     `json:"stdout_b64,omitempty"`
	Call      *JudgeCall `json:"call,omitempty"`
	Assert    string     `json:"assert,omitempty" doc:"statements in the code's language, run after the code; they pass when they come to their end"`
	Test      string     `json:"test,omitempty" doc:"a test file that uses the code; it passes when it exits with code 0"`
}

// JudgeSpec is code and what it shall do.
type JudgeSpec struct {
	World         string               `json:"world,omitempty" doc:"with the language's tools; the daemon's own when unset (--judge-world)"`
	Language      string               `json:"language" doc:"one of GET /v1/languages"`
	Code          string               `json:"code"`
	Files         map[string]JudgeFile `json:"files,omitempty" doc:"beside the code, or at absolute paths"`
	Env           map[string]string    `json:"env,omitempty"`
	Stdin         string               `json:"stdin,omitempty" doc:"of cases that have none"`
	Limits        JudgeLimits          `json:"limits,omitzero" doc:"of each case"`
	CompileLimits JudgeLimits          `json:"compile_limits,omitzero"`
	Compare       *JudgeCompare        `json:"compare,omitempty"`
	Cases         []JudgeCase          `json:"cases"`
	Parallel      int                  `json:"parallel,omitempty" doc:"cases at once, 16 by default; the host bounds it too"`
	StopEarly     bool                 `json:"stop_early,omitempty" doc:"skip cases that have not begun once one has failed"`
	Keep          Size                 `json:"keep,omitempty" doc:"what the result keeps of each stream; 64 KiB by default, a negative number is nothing"`
}

// JudgeStage is how one program ran.
type JudgeStage struct {
	Verdict     string      `json:"verdict" doc:"ok, runtime_error, time, memory or output"`
	Detail      string      `json:"detail,omitempty"`
	ExitCode    *int        `json:"exit_code" doc:"null when the program was ended by a signal, or never began"`
	Signal      int         `json:"signal,omitempty"`
	Stdout      string      `json:"stdout"`
	StdoutB64   []byte      `json:"stdout_b64,omitempty"`
	StdoutBytes int         `json:"stdout_bytes" doc:"of all that was written, up to the limit"`
	Stderr      string      `json:"stderr"`
	StderrB64   []byte      `json:"stderr_b64,omitempty"`
	StderrBytes int         `json:"stderr_bytes"`
	CPUS        float64     `json:"cpu_s"`
	WallS       float64     `json:"wall_s"`
	MemoryPeak  int64       `json:"memory_peak"`
	Limits      JudgeLimits `json:"limits" doc:"the effective ones"`
}

// JudgeCaseResult is the verdict of one case.
type JudgeCaseResult struct {
	Index   int    `json:"index"`
	Name    string `json:"name,omitempty"`
	Verdict string `json:"verdict" doc:"ok, wrong, runtime_error, time, memory, output, compile_error, skipped, platform or checker_error"`
	Passed  *bool  `json:"passed" doc:"null where the verdict does not judge the program: skipped, platform, checker_error"`
	Detail  string `json:"detail,omitempty"`
	// Run is nil where the program was not run.
	Run     *JudgeStage     `json:"run,omitempty"`
	Checker *JudgeStage     `json:"checker,omitempty"`
	Value   json.RawMessage `json:"value,omitempty" doc:"what a call gave"`
}

// JudgeResult is the judgement of a spec.
type JudgeResult struct {
	World    string            `json:"world" doc:"its id"`
	Language string            `json:"language"`
	Verdict  string            `json:"verdict" doc:"ok when every case passed, else that of the first case that did not"`
	Compile  *JudgeStage       `json:"compile,omitempty"`
	Kept     bool              `json:"kept,omitempty" doc:"the same was compiled before"`
	Cases    []JudgeCaseResult `json:"cases"`
	Passed   int               `json:"passed"`
	Score    *float64          `json:"score" doc:"share of the cases that passed; null where the platform or a checker failed"`
	WallS    float64           `json:"wall_s"`
}

// JudgeEvent is one line of a streamed judgement: cases in order of completion, then, always
// last, the result without them, or an error.
type JudgeEvent struct {
	Case   *JudgeCaseResult `json:"case,omitempty"`
	Result *JudgeResult     `json:"result,omitempty"`
	Error  *Error           `json:"error,omitempty"`
}

// Language is one that the judge knows.
type Language struct {
	Name     string   `json:"name"`
	Aliases  []string `json:"aliases,omitempty"`
	Packages []string `json:"packages" doc:"of Debian, that bring its tools"`
	Source   string   `json:"source" doc:"the name that the code gets"`
	Compile  []string `json:"compile,omitempty"`
	Run      []string `json:"run"`
	Cases    []string `json:"cases" doc:"which of stdout, call, assert and test its cases may have"`
}

// Languages is the answer to a list.
type Languages struct {
	Languages []Language `json:"languages"`
}

// Judge judges code. done, which may be nil, is told of each case as it ends; the result
// has them all, in the order of the spec.
func (c *Client) Judge(ctx context.Context, spec JudgeSpec, done func(JudgeCaseResult)) (JudgeResult, error) {
	if done == nil {
		return post[JudgeResult](ctx, c, "/v1/judge", spec)
	}
	body, err := json.Marshal(spec)
	if err != nil {
		return JudgeResult{}, &Error{Kind: BadRequest, Detail: err.Error()}
	}
	var result *JudgeResult
	cases := make([]JudgeCaseResult, len(spec.Cases))
	r := call{method: http.MethodPost, path: "/v1/judge", media: MediaJSON, body: newReader(body)}
	err = c.lines(ctx, r, func(line []byte) error {
		var e JudgeEvent
		if err := json.Unmarshal(line, &e); err != nil {
			return &Error{Kind: ConnectionLost, Detail: "a line of the stream is no event: " + err.Error()}
		}
		switch {
		case e.Error != nil:
			return e.Error
		case e.Result != nil:
			result = e.Result
		case e.Case != nil && e.Case.Index >= 0 && e.Case.Index < len(cases):
			cases[e.Case.Index] = *e.Case
			done(*e.Case)
		}
		return nil
	})
	if err != nil {
		return JudgeResult{}, err
	}
	if result == nil {
		return JudgeResult{}, &Error{Kind: ConnectionLost, Detail: "the stream ended without a result"}
	}
	result.Cases = cases
	return *result, nil
}

// Languages lists what the judge knows.
func (c *Client) Languages(ctx context.Context) ([]Language, error) {
	out, err := get[Languages](ctx, c, "/v1/languages", nil)
	return out.Languages, err
}
