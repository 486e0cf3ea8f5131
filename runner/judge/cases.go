package judge

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/paddock-run/paddock/runner"
)

// Judge judges a spec. done, which may be nil, is told of each case as it ends, by one
// goroutine at a time. An error is a refused spec, or what kept paddock from judging at all;
// a failure in the middle is the verdict Platform of the cases that it struck.
func (j *Judge) Judge(ctx context.Context, spec Spec, done func(CaseResult)) (Result, error) {
	began := time.Now()
	lang, err := spec.check()
	if err != nil {
		return Result{}, err
	}
	w := &work{j: j, spec: &spec, lang: lang, results: make([]CaseResult, len(spec.Cases)), done: done}
	defer w.close()
	if err := w.prepare(ctx); err != nil {
		return Result{}, err
	}
	if err := w.all(ctx); err != nil {
		return Result{}, err
	}
	out := w.result()
	out.Wall = time.Since(began)
	return out, nil
}

func (s *Spec) check() (*Language, error) {
	lang, err := s.Source.check()
	if err != nil {
		return nil, err
	}
	switch {
	case len(s.Cases) == 0:
		return nil, badField("cases", "is missing")
	case len(s.Cases) > MaxCases:
		return nil, badField("cases", "has %d, at most %d are allowed", len(s.Cases), MaxCases)
	case s.Parallel < 0 || s.Parallel > MaxParallel:
		return nil, badField("parallel", "%d is not in 0 to %d", s.Parallel, MaxParallel)
	case s.Keep > MaxKept:
		return nil, badField("keep", "%d is more than %d", s.Keep, MaxKept)
	}
	if s.Parallel == 0 {
		s.Parallel = DefaultParallel
	}
	if s.Keep == 0 {
		s.Keep = DefaultKept
	}
	if err := s.Compare.check("compare"); err != nil {
		return nil, err
	}
	for i := range s.Cases {
		if err := s.Cases[i].check(fmt.Sprintf("cases/%d", i), lang); err != nil {
			return nil, err
		}
	}
	return lang, nil
}

func (c *Case) check(where string, lang *Language) error {
	kinds := 0
	for _, set := range []bool{c.Stdout != nil, c.Call != nil, c.Assert != "", c.Test != ""} {
		if set {
			kinds++
		}
	}
	switch {
	case kinds > 1:
		return badField(where, "has more than one of stdout, call, assert and test")
	case c.Call != nil && lang.Call == nil:
		return badField(where+"/call", "%s has no calls of functions; use a test file", lang.Name)
	case c.Call != nil && c.Call.Function == "":
		return badField(where+"/call/function", "is missing")
	case c.Call != nil && !json.Valid(c.Call.Want):
		return badField(where+"/call/want", "is missing, or is no JSON")
	case c.Assert != "" && lang.Assert == nil:
		return badField(where+"/assert", "%s has no assertions; use a test file", lang.Name)
	case c.Test != "" && lang.Test == nil:
		return badField(where+"/test", "%s has no test files", lang.Name)
	case c.Compare != nil && c.Compare.Rule == Checked && c.Stdout == nil:
		// A checker may need no answer: an empty one says so.
		return badField(where+"/stdout", "is missing; a checker's answer may be empty")
	}
	return c.Compare.check(where + "/compare")
}

func (c *Compare) check(where string) error {
	if c == nil {
		return nil
	}
	switch c.Rule {
	case "", Exact, Trailing, Tokens, Floats:
		if c.Checker != nil {
			return badField(where+"/checker", "goes with the rule %q alone", Checked)
		}
	case Checked:
		if c.Checker == nil {
			return badField(where+"/checker", "is missing")
		}
		if _, ok := findLanguage(c.Checker.Language); !ok {
			return badField(where+"/checker/language", "%q is not one of %s", c.Checker.Language, strings.Join(names(), ", "))
		}
	default:
		return badField(where+"/rule", "%q is not one of %s", c.Rule, strings.Join([]string{Exact, Trailing, Tokens, Floats, Checked}, ", "))
	}
	for field, v := range map[string]*float64{"abs": c.Abs, "rel": c.Rel} {
		if v != nil && !(*v >= 0) {
			return badField(where+"/"+field, "%v is no tolerance", *v)
		}
	}
	return nil
}

// work is one spec on its way.
type work struct {
	j    *Judge
	spec *Spec
	lang *Language
	prog *program

	mu       sync.Mutex // of what follows, and of done
	results  []CaseResult
	done     func(CaseResult)
	checkers map[*Checker]*checking

	failed atomic.Bool // a case did, for StopEarly
}

// checking is a checker that is compiled once, by the first case that needs it.
type checking struct {
	once sync.Once
	prog *program
	err  error
}

func (w *work) close() {
	if w.prog != nil {
		w.prog.close()
	}
	for _, c := range w.checkers {
		if c.prog != nil {
			c.prog.close()
		}
	}
}

// prepare compiles the code, unless every case is a test file, which is compiled with it.
func (w *work) prepare(ctx context.Context) error {
	for i := range w.spec.Cases {
		if w.spec.Cases[i].Test == "" || len(w.lang.Test.Compile) == 0 {
			var err error
			w.prog, err = w.j.prepare(ctx, &w.spec.Source, nil, nil)
			return err
		}
	}
	return nil
}

// all runs the cases. A refusal ends them all and is the answer; what the platform did to
// one case is that case's verdict.
func (w *work) all(ctx context.Context) error {
	g, own := errgroup.WithContext(ctx)
	g.SetLimit(w.spec.Parallel)
	for i := range w.spec.Cases {
		if own.Err() != nil {
			break
		}
		g.Go(func() error {
			res, err := w.one(own, i)
			if err != nil {
				if own.Err() != nil || refused(err) {
					return at(fmt.Sprintf("cases/%d", i), err)
				}
				w.j.log.Error("judge: " + err.Error())
				res = CaseResult{Verdict: Platform, Detail: err.Error()}
			}
			w.end(i, res)
			return nil
		})
	}
	return errors.Join(g.Wait(), context.Cause(ctx))
}

func (w *work) end(i int, res CaseResult) {
	res.Index, res.Name = i, w.spec.Cases[i].Name
	if res.Verdict.judged() {
		passed := res.Verdict == OK
		res.Passed = &passed
	}
	if res.Verdict != OK {
		w.failed.Store(true)
	}
	keep(&res.Stage, w.spec.Keep)
	if res.Checker != nil {
		keep(res.Checker, w.spec.Keep)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.results[i] = res
	if w.done != nil {
		w.done(res)
	}
}

// keep cuts what a result holds of a stage's streams.
func keep(s *Stage, n int) {
	n = max(n, 0)
	s.Stdout, s.Stderr = bytes.Clone(s.Stdout[:min(n, len(s.Stdout))]), bytes.Clone(s.Stderr[:min(n, len(s.Stderr))])
	s.said = nil
}

func (w *work) result() Result {
	out := Result{Language: w.lang.Name, Verdict: OK, Cases: w.results}
	if w.prog != nil {
		if w.prog.compile != nil {
			s := *w.prog.compile
			keep(&s, w.spec.Keep)
			out.Compile, out.Kept = &s, w.prog.found
		}
		if w.prog.ground != nil {
			out.World = w.prog.ground.World()
		}
	}
	judged := true
	for i := range w.results {
		c := &w.results[i]
		if c.Verdict == OK {
			out.Passed++
		} else if out.Verdict == OK || (out.Verdict == Skipped && c.Verdict != Skipped) {
			out.Verdict = c.Verdict
		}
		judged = judged && (c.Verdict.judged() || c.Verdict == Skipped)
	}
	if judged {
		score := float64(out.Passed) / float64(len(w.results))
		out.Score = &score
	}
	return out
}

func (w *work) one(ctx context.Context, i int) (CaseResult, error) {
	c := &w.spec.Cases[i]
	if w.spec.StopEarly && w.failed.Load() {
		return CaseResult{Verdict: Skipped}, nil
	}
	prog := w.prog
	if c.Test != "" && len(w.lang.Test.Compile) > 0 {
		own, err := w.j.prepare(ctx, &w.spec.Source, w.lang.Test, []byte(c.Test))
		if err != nil {
			return CaseResult{}, err
		}
		defer own.close()
		prog = own
	}
	if prog.failed() {
		return CaseResult{Verdict: NoBuild, Detail: prog.compile.Detail}, nil
	}
	run, err := w.runOf(c)
	if err != nil {
		return CaseResult{}, err
	}
	s, _, err := prog.run(ctx, run)
	if err != nil {
		return CaseResult{}, err
	}
	res := CaseResult{Verdict: s.Verdict, Detail: s.Detail, Stage: s}
	if s.Verdict == OK {
		err = w.judge(ctx, c, run.stdin, &res)
	}
	return res, err
}

// runOf says how a case is run.
func (w *work) runOf(c *Case) (runSpec, error) {
	r := runSpec{stdin: c.Stdin, files: maps.Clone(c.Files), limits: c.Limits.over(w.spec.Limits).effective(DefaultLimits)}
	if r.stdin == nil {
		r.stdin = w.spec.Stdin
	}
	if r.files == nil {
		r.files = map[string][]byte{}
	}
	var h *Harness
	var request map[string]any
	switch {
	case c.Call != nil:
		args, kwargs := c.Call.Args, c.Call.Kwargs
		if args == nil {
			args = []json.RawMessage{}
		}
		if kwargs == nil {
			kwargs = map[string]json.RawMessage{}
		}
		h, request = w.lang.Call, map[string]any{"function": c.Call.Function, "args": args, "kwargs": kwargs}
	case c.Assert != "":
		h, request = w.lang.Assert, map[string]any{"assert": c.Assert}
		r.files[harnessDir+"/request.json.text"] = []byte(c.Assert)
	case c.Test != "":
		r.files[w.lang.Test.Source] = []byte(c.Test)
		r.argv = append([]string{}, w.lang.Test.Run...)
	default:
		r.argv = append([]string{}, w.lang.Run...)
	}
	if h != nil {
		doc, err := json.Marshal(request)
		if err != nil {
			return r, badField("call", "%v", err)
		}
		file := harnessDir + "/" + h.Harness
		r.files[file], r.files[harnessDir+"/request.json"] = h.text, doc
		r.argv, r.said = append(append([]string{}, h.Run...), file), true
		r.env = map[string]string{"PADDOCK_HARNESS": harnessDir + "/request.json"}
	}
	r.argv = append(r.argv, c.Args...)
	return r, nil
}

// judge gives the verdict of a program that ended well.
func (w *work) judge(ctx context.Context, c *Case, stdin []byte, res *CaseResult) error {
	cmp := c.Compare
	if cmp == nil {
		cmp = w.spec.Compare
	}
	if cmp == nil {
		cmp = &Compare{}
	}
	s := &res.Stage
	switch {
	case c.Call != nil:
		if !json.Valid(s.said) {
			res.Verdict, res.Detail = Crashed, "ended before the function had returned"
			return nil
		}
		res.Value = bytes.Clone(s.said)
		if !sameValue(s.said, c.Call.Want, cmp) {
			res.Verdict, res.Detail = Wrong, "the function gave another value"
		}
	case c.Assert != "":
		if string(s.said) != `"passed"` {
			res.Verdict, res.Detail = Crashed, "ended before the assertion had"
		}
	case c.Stdout != nil && cmp.Rule == Checked:
		return w.checked(ctx, cmp.Checker, stdin, *c.Stdout, res)
	case c.Stdout != nil && !cmp.equal(s.Stdout, *c.Stdout):
		res.Verdict, res.Detail = Wrong, difference(s.Stdout, *c.Stdout)
	}
	return nil
}

// difference tells where two outputs begin to differ, in words of the output alone.
func difference(got, want []byte) string {
	n := 0
	for n < len(got) && n < len(want) && got[n] == want[n] {
		n++
	}
	return fmt.Sprintf("differs from line %d on", 1+bytes.Count(got[:n], []byte("\n")))
}

// checked lets the checker judge, in a sandbox of its own.
func (w *work) checked(ctx context.Context, c *Checker, stdin, answer []byte, res *CaseResult) error {
	p, err := w.checker(ctx, c)
	if err != nil {
		return err
	}
	if p.failed() {
		res.Verdict, res.Detail = Unchecked, "the checker does not compile: "+string(p.compile.Stderr[:min(2000, len(p.compile.Stderr))])
		return nil
	}
	s, _, err := p.run(ctx, runSpec{
		argv:   append(append([]string{}, p.lang.Run...), "input", "output", "answer"),
		files:  map[string][]byte{"input": stdin, "output": res.Stage.Stdout, "answer": answer},
		limits: c.Limits.effective(DefaultLimits),
	})
	if err != nil {
		return err
	}
	res.Checker = &s
	switch {
	case s.Verdict == OK:
	case s.Verdict == Crashed && s.ExitCode != nil && (*s.ExitCode == 1 || *s.ExitCode == 2):
		res.Verdict, res.Detail = Wrong, "the checker says so"
	default:
		res.Verdict, res.Detail = Unchecked, "the checker "+s.Detail
	}
	return nil
}

func (w *work) checker(ctx context.Context, c *Checker) (*program, error) {
	w.mu.Lock()
	if w.checkers == nil {
		w.checkers = map[*Checker]*checking{}
	}
	one := w.checkers[c]
	if one == nil {
		one = &checking{}
		w.checkers[c] = one
	}
	w.mu.Unlock()
	one.once.Do(func() {
		one.prog, one.err = w.j.prepare(ctx, &Source{World: w.spec.World, Language: c.Language, Code: c.Code, Files: c.Files}, nil, nil)
	})
	if e, ok := errors.AsType[*runner.Error](one.err); ok && e.Kind == runner.KindBadRequest {
		return nil, at("compare/checker", one.err)
	}
	return one.prog, one.err
}
