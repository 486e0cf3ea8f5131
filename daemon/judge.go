package daemon

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/paddock-run/paddock/api"
	"github.com/paddock-run/paddock/daemon/fusion"
	"github.com/paddock-run/paddock/runner/judge"
)

// judge judges code, and streams the cases where that was asked for.
func (s *Server) judge(q *request) error {
	var in api.JudgeSpec
	if err := decodeBody(q.Request, q.route.maxBody, &in); err != nil {
		return err
	}
	if err := s.ownWorld(q.Context(), q.owner(), &in); err != nil {
		return err
	}
	spec, err := s.judgeSpec(&in)
	if err != nil {
		return err
	}
	if !strings.Contains(q.Header.Get("Accept"), api.MediaStream) {
		res, err := s.cfg.Judge.Judge(q.Context(), spec, nil)
		if err != nil {
			return err
		}
		return q.answer(wireJudged(res))
	}
	out := &lazyStream{q: q}
	res, err := s.cfg.Judge.Judge(q.Context(), spec, func(c judge.CaseResult) {
		wire := wireCase(c)
		_ = out.send(api.JudgeEvent{Case: &wire})
	})
	if err != nil && !q.began {
		return err
	}
	if err != nil {
		_ = out.send(api.JudgeEvent{Error: s.problem(q.route.ID, err)})
		return nil
	}
	wire := wireJudged(res)
	wire.Cases = []api.JudgeCaseResult{} // they have all been sent
	_ = out.send(api.JudgeEvent{Result: &wire})
	return nil
}

// ownWorld makes the name of a world what it means to the client.
func (s *Server) ownWorld(ctx context.Context, owner string, in *api.JudgeSpec) error {
	if in.World == "" {
		return nil
	}
	w, err := s.run.World(ctx, owner, in.World)
	if err != nil {
		return err
	}
	in.World = w.ID
	return nil
}

// serveFusion leaves the request to the other interface, whose errors have its own form.
func (s *Server) serveFusion(q *request) error {
	q.began = true
	s.fusion.ServeHTTP(q.w, q.Request)
	return nil
}

// Fusion is the handler of /run_code and its kin, for a port of its own.
func (s *Server) Fusion() *fusion.Handler { return s.fusion }

func (s *Server) listLanguages(*request, empty) (api.Languages, error) {
	return api.Languages{Languages: mapAll(judge.Languages(), wireLanguage)}, nil
}

func wireLanguage(l judge.Language) api.Language {
	out := api.Language{
		Name: l.Name, Aliases: l.Aliases, Packages: l.Packages, Source: l.Source, Compile: l.Compile, Run: l.Run, Cases: []string{"stdout"},
	}
	for _, kind := range []struct {
		name string
		has  bool
	}{{"call", l.Call != nil}, {"assert", l.Assert != nil}, {"test", l.Test != nil}} {
		if kind.has {
			out.Cases = append(out.Cases, kind.name)
		}
	}
	return out
}

func (s *Server) judgeSpec(in *api.JudgeSpec) (judge.Spec, error) {
	world := in.World
	if world == "" {
		world = s.cfg.JudgeWorld
	}
	files, err := judgeFiles("/files", in.Files)
	if err != nil {
		return judge.Spec{}, err
	}
	out := judge.Spec{
		Source: judge.Source{
			World: world, Language: in.Language, Code: in.Code, Files: files, Env: in.Env, CompileLimits: judgeLimits(in.CompileLimits),
		},
		Stdin: []byte(in.Stdin), Limits: judgeLimits(in.Limits), Parallel: in.Parallel, StopEarly: in.StopEarly, Keep: int(in.Keep),
	}
	if out.Compare, err = judgeCompare("/compare", in.Compare); err != nil {
		return judge.Spec{}, err
	}
	for i := range in.Cases {
		c, err := judgeCase(fmt.Sprintf("/cases/%d", i), &in.Cases[i])
		if err != nil {
			return judge.Spec{}, err
		}
		out.Cases = append(out.Cases, c)
	}
	return out, nil
}

func judgeCase(at string, in *api.JudgeCase) (judge.Case, error) {
	out := judge.Case{Name: in.Name, Args: in.Args, Limits: judgeLimits(in.Limits), Assert: in.Assert, Test: in.Test}
	var err error
	if out.Files, err = judgeFiles(at+"/files", in.Files); err != nil {
		return out, err
	}
	if out.Compare, err = judgeCompare(at+"/compare", in.Compare); err != nil {
		return out, err
	}
	if in.Stdin != nil && in.StdinB64 != nil || in.Stdout != nil && in.StdoutB64 != nil {
		return out, &api.Error{Kind: api.BadRequest, Field: at, Detail: "has a stream both as text and as base64"}
	}
	out.Stdin = in.StdinB64
	if in.Stdin != nil {
		out.Stdin = []byte(*in.Stdin)
	}
	if in.Stdout != nil {
		want := []byte(*in.Stdout)
		out.Stdout = &want
	} else if in.StdoutB64 != nil {
		out.Stdout = &in.StdoutB64
	}
	if in.Call != nil {
		c := judge.Call(*in.Call)
		out.Call = &c
	}
	return out, nil
}

func judgeFiles(at string, in map[string]api.JudgeFile) (map[string][]byte, error) {
	if in == nil {
		return nil, nil
	}
	out := make(map[string][]byte, len(in))
	for name, f := range in {
		if f.Text != "" && f.B64 != nil {
			return nil, &api.Error{Kind: api.BadRequest, Field: at, Detail: fmt.Sprintf("%q is there both as text and as base64", name)}
		}
		out[name] = api.Bytes(f.Text, f.B64)
	}
	return out, nil
}

func judgeCompare(at string, in *api.JudgeCompare) (*judge.Compare, error) {
	if in == nil {
		return nil, nil
	}
	out := &judge.Compare{Rule: in.Rule, Abs: in.Abs, Rel: in.Rel}
	if c := in.Checker; c != nil {
		files, err := judgeFiles(at+"/checker/files", c.Files)
		if err != nil {
			return nil, err
		}
		out.Checker = &judge.Checker{Language: c.Language, Code: c.Code, Files: files, Limits: judgeLimits(c.Limits)}
	}
	return out, nil
}

func judgeLimits(l api.JudgeLimits) judge.Limits {
	return judge.Limits{
		CPUSeconds: l.CPUS, WallSeconds: l.WallS, MemoryBytes: int64(l.Memory), DiskBytes: int64(l.Disk), Pids: l.Pids, OutputBytes: int64(l.Output),
	}
}

func wireJudgeLimits(l judge.Limits) api.JudgeLimits {
	return api.JudgeLimits{
		CPUS: l.CPUSeconds, WallS: l.WallSeconds, Memory: api.Size(l.MemoryBytes), Disk: api.Size(l.DiskBytes), Pids: l.Pids, Output: api.Size(l.OutputBytes),
	}
}

func wireJudged(r judge.Result) api.JudgeResult {
	return api.JudgeResult{
		World: r.World, Language: r.Language, Verdict: string(r.Verdict), Compile: wireStage(r.Compile), Kept: r.Kept,
		Cases: mapAll(r.Cases, wireCase), Passed: r.Passed, Score: r.Score, WallS: r.Wall.Seconds(),
	}
}

func wireCase(c judge.CaseResult) api.JudgeCaseResult {
	out := api.JudgeCaseResult{
		Index: c.Index, Name: c.Name, Verdict: string(c.Verdict), Passed: c.Passed, Detail: c.Detail, Checker: wireStage(c.Checker), Value: c.Value,
	}
	if c.Stage.Verdict != "" {
		out.Run = wireStage(&c.Stage)
	}
	return out
}

func wireStage(s *judge.Stage) *api.JudgeStage {
	if s == nil {
		return nil
	}
	out := &api.JudgeStage{
		Verdict: string(s.Verdict), Detail: s.Detail, ExitCode: s.ExitCode, Signal: s.Signal, StdoutBytes: s.StdoutBytes, StderrBytes: s.StderrBytes,
		CPUS: s.CPU.Round(time.Microsecond).Seconds(), WallS: s.Wall.Round(time.Microsecond).Seconds(), MemoryPeak: s.MemoryPeakBytes,
		Limits: wireJudgeLimits(s.Limits),
	}
	out.Stdout, out.StdoutB64 = api.Text(s.Stdout)
	out.Stderr, out.StderrB64 = api.Text(s.Stderr)
	return out
}
