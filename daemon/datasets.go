package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/paddock-run/paddock/api"
	"github.com/paddock-run/paddock/runner"
	"github.com/paddock-run/paddock/runner/dataset"
	"github.com/paddock-run/paddock/runner/judge"
)

func (s *Server) putDataset(q *request) error {
	if err := checkMedia(q.Request, api.MediaBytes, api.MediaJSON, api.MediaStream); err != nil {
		return err
	}
	data, err := io.ReadAll(io.LimitReader(q.Body, q.route.maxBody+1))
	switch {
	case err != nil:
		return &api.Error{Kind: api.BadRequest, Detail: "the file broke off: " + err.Error()}
	case int64(len(data)) > q.route.maxBody:
		return &api.Error{Kind: api.TooLarge, Detail: fmt.Sprintf("the file has more than %d bytes", q.route.maxBody)}
	}
	c := dataset.Columns{ID: q.query.text("id"), Prompt: q.query.text("prompt"), Answer: q.query.text("answer"), Tests: q.query.text("tests")}
	sets, err := s.problemsOf(q.owner())
	if err != nil {
		return err
	}
	info, err := sets.store.Put(data, q.query.text("format"), c, q.query.text("name"))
	if err != nil {
		return err
	}
	return q.answer(api.Dataset(info))
}

func (s *Server) listDatasets(q *request, _ empty) (api.Datasets, error) {
	sets, err := s.problemsOf(q.owner())
	if err != nil {
		return api.Datasets{}, err
	}
	list, err := sets.store.List()
	return api.Datasets{Datasets: notNil(mapAll(list, func(i dataset.Info) api.Dataset { return api.Dataset(i) }))}, err
}

func (s *Server) getDataset(q *request, _ empty) (api.Dataset, error) {
	sets, err := s.problemsOf(q.owner())
	if err != nil {
		return api.Dataset{}, err
	}
	info, err := sets.store.Info(q.PathValue("dataset"))
	return api.Dataset(info), err
}

func (s *Server) removeDataset(q *request, _ empty) (empty, error) {
	sets, err := s.problemsOf(q.owner())
	if err != nil {
		return empty{}, err
	}
	return empty{}, sets.store.Remove(q.PathValue("dataset"))
}

func (s *Server) sampleDataset(q *request, _ empty) (api.Sample, error) {
	spec := dataset.SampleSpec{
		Iteration: q.query.number("iteration", 0, math.MaxInt64), N: int(q.query.number("n", 1, dataset.MaxSample)),
		Seed: uint64(q.query.number("seed", 0, math.MaxUint32)), Order: q.query.text("order"),
	}
	if q.query.err != nil {
		return api.Sample{}, q.query.err
	}
	sets, err := s.problemsOf(q.owner())
	if err != nil {
		return api.Sample{}, err
	}
	set, err := sets.store.Get(q.PathValue("dataset"))
	if err != nil {
		return api.Sample{}, err
	}
	got, err := set.Sample(spec)
	if err != nil {
		return api.Sample{}, err
	}
	return api.Sample{
		Digest: set.Digest, Epoch: got.Epoch, Position: got.Position,
		Problems: mapAll(got.Problems, func(p dataset.Problem) api.Problem { return api.Problem(p) }),
	}, nil
}

// scoreItems scores completions, and streams the scores where that was asked for.
func (s *Server) scoreItems(q *request) error {
	var in api.ScoreItems
	if err := decodeBody(q.Request, q.route.maxBody, &in); err != nil {
		return err
	}
	spec := dataset.ScoreSpec{Dataset: in.Dataset, Rule: in.Rule, Abs: in.Abs, Rel: in.Rel}
	spec.Items = mapAll(in.Items, func(i api.ScoreItem) dataset.Item { return dataset.Item(i) })
	for _, e := range in.Extract {
		spec.Extract = append(spec.Extract, dataset.Extract{Kind: e.Kind, Tag: e.Tag, Marker: e.Marker, Pattern: e.Pattern, Language: e.Language})
	}
	sets, err := s.problemsOf(q.owner())
	if err != nil {
		return err
	}
	if !strings.Contains(q.Header.Get("Accept"), api.MediaStream) {
		out := api.ItemScores{Scores: make([]api.ItemScore, len(in.Items))}
		if err := sets.scorer.Score(q.Context(), spec, func(one dataset.Score) { out.Scores[one.Index] = api.ItemScore(one) }); err != nil {
			return err
		}
		return q.answer(out)
	}
	out := &lazyStream{q: q}
	err = sets.scorer.Score(q.Context(), spec, func(one dataset.Score) {
		wire := api.ItemScore(one)
		_ = out.send(api.ItemScoreEvent{Score: &wire})
	})
	if err != nil && !q.began {
		return err
	}
	if err != nil {
		_ = out.send(api.ItemScoreEvent{Error: s.problem(q.route.ID, err)})
		return nil
	}
	_ = out.send(api.ItemScoreEvent{Count: len(in.Items)})
	return nil
}

// completionMark stands for what was extracted from a completion in the code of tests.
const completionMark = "{{completion}}"

// runTests judges code by a problem's tests: a JudgeSpec whose code, when it has any, holds
// completionMark.
func (s *Server) runTests(ctx context.Context, owner string, tests json.RawMessage, code string) (*float64, string, error) {
	var in api.JudgeSpec
	if err := decode(tests, &in); err != nil {
		if p, ok := errors.AsType[*api.Error](err); ok {
			return nil, "", &runner.Error{Kind: runner.KindBadRequest, Field: "tests" + p.Field, Detail: p.Detail}
		}
		return nil, "", err
	}
	if in.Code == "" {
		in.Code = completionMark
	}
	in.Code = strings.ReplaceAll(in.Code, completionMark, code)
	in.Keep = -1
	if err := s.ownWorld(ctx, owner, &in); err != nil {
		return nil, "", err
	}
	spec, err := s.judgeSpec(&in)
	if err != nil {
		return nil, "", err
	}
	res, err := s.cfg.Judge.Judge(ctx, spec, nil)
	if err != nil {
		return nil, "", err
	}
	return res.Score, tested(res), nil
}

// tested says in a line how tests went.
func tested(r judge.Result) string {
	line := fmt.Sprintf("%s: %d of %d", r.Verdict, r.Passed, len(r.Cases))
	for _, c := range r.Cases {
		if c.Verdict != judge.OK && c.Detail != "" {
			return line + "; case " + fmt.Sprint(c.Index) + " " + c.Detail
		}
	}
	return line
}
