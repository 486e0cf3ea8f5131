// Package judge runs code against test cases. It compiles once, seals what that left as a
// layer, and runs each case in a fresh fork of it: nothing that one case does reaches
// another. It stands on the runner's trials and knows no other shape of environment.
//
//	spec -> language -> compile (a trial, sealed; kept for the next request) -> cases,
//	each a trial of its own -> compare outside of the sandbox -> verdict
//
// What a program does is a verdict. Failed and Unchecked verdicts are no judgement of the
// program: their Passed is nil, and so is the score of a result that holds one.
package judge

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/paddock-run/paddock/runner"
	"github.com/paddock-run/paddock/sandbox"
)

// Grounds is what the judge needs of a runner.
type Grounds interface {
	Ground(ctx context.Context, spec runner.GroundSpec) (*runner.Ground, error)
}

// Bounds of a spec.
const (
	MaxCases = 10_000
	// MaxParallel bounds, DefaultParallel is, how many cases of one spec run at once.
	MaxParallel     = 256
	DefaultParallel = 16
	// MaxKept bounds, DefaultKept is, what a result keeps of each stream, in bytes.
	MaxKept     = 16 << 20
	DefaultKept = 64 << 10
)

// Limits bound one program; 0 is the default.
type Limits struct {
	// CPUSeconds is of all its processes together. WallSeconds is twice that and 5 more
	// unless set, so that a busy host is not taken for a slow program.
	CPUSeconds  float64
	WallSeconds float64
	MemoryBytes int64
	// DiskBytes bounds what it may write; it counts on top of MemoryBytes.
	DiskBytes   int64
	Pids        int64
	OutputBytes int64
}

// The default limits.
var (
	// DefaultLimits are those of cases and checkers.
	DefaultLimits = Limits{CPUSeconds: 10, MemoryBytes: 512 << 20, DiskBytes: 64 << 20, Pids: 128, OutputBytes: 16 << 20}
	// DefaultCompile are those of compilations.
	DefaultCompile = Limits{CPUSeconds: 60, MemoryBytes: 2 << 30, DiskBytes: 512 << 20, Pids: 256, OutputBytes: 1 << 20}
)

// over fills what l leaves unset from d.
func (l Limits) over(d Limits) Limits {
	fill := func(v *int64, d int64) {
		if *v == 0 {
			*v = d
		}
	}
	if l.CPUSeconds == 0 {
		l.CPUSeconds = d.CPUSeconds
	}
	if l.WallSeconds == 0 {
		l.WallSeconds = d.WallSeconds
	}
	fill(&l.MemoryBytes, d.MemoryBytes)
	fill(&l.DiskBytes, d.DiskBytes)
	fill(&l.Pids, d.Pids)
	fill(&l.OutputBytes, d.OutputBytes)
	return l
}

// effective fills all that is unset.
func (l Limits) effective(d Limits) Limits {
	l = l.over(d)
	if l.WallSeconds == 0 {
		l.WallSeconds = 2*l.CPUSeconds + 5
	}
	return l
}

// Source is code in a language, with the files beside it.
type Source struct {
	World    string
	Language string
	Code     string
	// Files go beside the code, or to absolute paths.
	Files map[string][]byte
	Env   map[string]string
	// CompileLimits are over DefaultCompile.
	CompileLimits Limits
	// Patience bounds the wait for each turn (compilation, run); when it passes, the error's
	// kind is runner.KindOverCapacity. 0 is no bound.
	Patience time.Duration
}

// Spec is code and what it shall do.
type Spec struct {
	Source
	// Stdin, Limits and Compare are those of cases that have none; Limits are over
	// DefaultLimits.
	Stdin   []byte
	Limits  Limits
	Compare *Compare
	Cases   []Case
	// Parallel is how many cases run at once; 0 is DefaultParallel.
	Parallel int
	// StopEarly skips cases that have not begun once one has failed.
	StopEarly bool
	// Keep is what a result keeps of each stream; 0 is DefaultKept, less than 0 nothing.
	Keep int
}

// Case is one test: of a program's output, of one function, of an assertion, or a test
// file. At most one of Stdout, Call, Assert and Test is set; with none, a program passes
// that exits with code 0.
type Case struct {
	Name    string
	Stdin   []byte
	Args    []string
	Files   map[string][]byte
	Limits  Limits
	Compare *Compare

	Stdout *[]byte
	Call   *Call
	Assert string
	Test   string
}

// Call calls a function of the code. The value is compared outside of the sandbox, so the
// code never sees Want.
type Call struct {
	Function string
	Args     []json.RawMessage
	Kwargs   map[string]json.RawMessage
	Want     json.RawMessage
}

// Checker is a program that judges an output, in a sandbox of its own. It finds the files
// input, output and answer, whose names are its arguments, and exits with 0 for right, 1 or
// 2 for wrong; what else it does is no judgement.
type Checker struct {
	Language string
	Code     string
	Files    map[string][]byte
	Limits   Limits
}

// Verdict says how a case went.
type Verdict string

// The verdicts. Skipped is a case that StopEarly left out.
const (
	OK       Verdict = "ok"
	Wrong    Verdict = "wrong"
	Crashed  Verdict = "runtime_error"
	Time     Verdict = "time"
	Memory   Verdict = "memory"
	Output   Verdict = "output"
	NoBuild  Verdict = "compile_error"
	Skipped  Verdict = "skipped"
	Platform Verdict = "platform"
	// Unchecked: the checker itself failed.
	Unchecked Verdict = "checker_error"
)

// judged says whether the verdict is about the program.
func (v Verdict) judged() bool { return v != Platform && v != Unchecked && v != Skipped }

// Stage is how one program ran: a compilation, a case or a checker.
type Stage struct {
	// Verdict is OK, Crashed, Time, Memory or Output.
	Verdict  Verdict
	Detail   string
	ExitCode *int
	Signal   int
	Stdout   []byte
	Stderr   []byte
	// StdoutBytes and StderrBytes are the lengths before what Keep left out; Flooded says
	// that the program was stopped there.
	StdoutBytes, StderrBytes int
	Flooded                  bool
	CPU                      time.Duration
	Wall                     time.Duration
	MemoryPeakBytes          int64
	// Limits are the effective ones.
	Limits Limits

	said []byte
}

// CaseResult is the verdict of one case. Its Stage is empty where the program was not run.
type CaseResult struct {
	Index int
	Name  string
	// Verdict is the case's; Passed is nil where it is no judgement of the program.
	Verdict Verdict
	Passed  *bool
	Detail  string
	Stage   Stage
	// Checker is the checker's run, nil for none.
	Checker *Stage
	// Value is what a Call gave.
	Value json.RawMessage
}

// Result is the judgement of a spec.
type Result struct {
	// World is its id, Language its one name.
	World    string
	Language string
	// Verdict is OK when every case passed, else that of the first case that did not.
	Verdict Verdict
	// Compile is nil where the language has nothing to compile, or the compiler itself
	// could not be run; Kept says that an earlier request had compiled the same.
	Compile *Stage
	Kept    bool
	Cases   []CaseResult
	Passed  int
	// Score is the share of cases that passed; nil where the platform failed.
	Score *float64
	Wall  time.Duration
}

// Judge judges. Its methods may be called from any goroutine.
type Judge struct {
	grounds Grounds
	log     *slog.Logger
	kept    *kept
}

// New returns a Judge; Close it to remove what it keeps.
func New(grounds Grounds, log *slog.Logger) *Judge {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Judge{grounds: grounds, log: log, kept: newKept()}
}

// Close removes the compiled states that are kept. No request may be under way.
func (j *Judge) Close() { j.kept.clear() }

func digest(parts ...[]byte) string {
	h := sha256.New()
	for _, p := range parts {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(p))))
		h.Write(p)
	}
	return hex.EncodeToString(h.Sum(nil))
}

func badField(field, format string, args ...any) *runner.Error {
	return &runner.Error{Kind: runner.KindBadRequest, Field: field, Detail: fmt.Sprintf(format, args...)}
}

// at puts where into the field of a refusal of the runner, whose words are those of one
// trial.
func at(where string, err error) error {
	e, ok := errors.AsType[*runner.Error](err)
	if !ok || e.Kind != runner.KindBadRequest {
		return err
	}
	c := *e
	c.Field = where + "/" + e.Field
	return &c
}

// stage makes a trial's result a verdict, before anything is compared.
func stage(t *runner.TrialResult) Stage {
	s := Stage{
		Verdict: OK, ExitCode: t.Exit.Code, Signal: t.Exit.Signal, Stdout: t.Stdout, Stderr: t.Stderr,
		StdoutBytes: len(t.Stdout), StderrBytes: len(t.Stderr), Flooded: t.Flooded,
		CPU: t.Exit.Usage.CPU, Wall: t.Exit.Usage.Wall, MemoryPeakBytes: t.Exit.Usage.MemoryPeakBytes, said: t.Said,
		Limits: Limits{
			CPUSeconds: t.Limits.CPUSeconds, WallSeconds: t.WallS, MemoryBytes: t.Limits.MemoryBytes,
			DiskBytes: t.Limits.DiskBytes, Pids: t.Limits.Pids, OutputBytes: t.Limits.OutputBytes,
		},
	}
	s.Verdict, s.Detail = endOf(t)
	return s
}

func endOf(t *runner.TrialResult) (Verdict, string) {
	e := &t.Exit
	clean := e.Code != nil && *e.Code == 0
	switch {
	case t.Flooded:
		return Output, fmt.Sprintf("wrote more than %d bytes", t.Limits.OutputBytes)
	case e.CPUTimedOut:
		return Time, fmt.Sprintf("used more than %v s of CPU time", t.Limits.CPUSeconds)
	case e.TimedOut:
		return Time, fmt.Sprintf("took more than %v s", t.WallS)
	case e.OOM && !clean:
		return Memory, fmt.Sprintf("used more than %d bytes of memory and disk", t.Limits.MemoryBytes+t.Limits.DiskBytes)
	case e.NotStarted != nil:
		return Crashed, fmt.Sprintf("could not be started: %s %s", e.NotStarted.Kind, e.NotStarted.Path)
	case e.Code == nil:
		return Crashed, fmt.Sprintf("was ended by signal %d", e.Signal)
	case !clean && e.PidsLimit:
		return Crashed, fmt.Sprintf("exit code %d; it met the limit of %d processes", *e.Code, t.Limits.Pids)
	case !clean:
		return Crashed, fmt.Sprintf("exit code %d", *e.Code)
	}
	return OK, ""
}

// missing says that the world lacks a tool of the language, which is nobody's program.
func missing(l *Language, argv []string, e *sandbox.Exit) error {
	if e.NotStarted == nil || e.NotStarted.Kind != "command_not_found" || !tool(argv) {
		return nil
	}
	return &runner.Error{
		Kind: KindNoTool, Field: "language",
		Detail: fmt.Sprintf("the world has no %s, which %s needs; Debian's packages: %v", argv[0], l.Name, l.Packages),
	}
}

// KindNoTool is the kind of a runner.Error: the world lacks a tool of the language.
const KindNoTool = "no_tool"
