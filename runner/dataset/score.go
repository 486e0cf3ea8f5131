package dataset

import (
	"container/list"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/paddock-run/paddock/runner"
)

// The rules of a scoring.
const (
	// Exact compares texts byte for byte.
	Exact = "exact"
	// Text compares texts without case, punctuation, articles and white space.
	Text = "text"
	// Choice compares the letter of a choice.
	Choice = "choice"
	// Number compares numbers within a tolerance, and their units where the answer has one.
	Number = "number"
	// Math compares numbers, fractions, sets, tuples, intervals and formulas.
	Math = "math"
	// Regex passes what the answer, a regular expression (RE2), matches.
	Regex = "regex"
	// Code runs the problem's tests.
	Code = "code"
)

// Bounds of a scoring.
const (
	MaxItems      = 100_000
	maxCompletion = 4 << 20
	parallelTexts = 4
	parallelCode  = 16
	// DefaultTolerance is that of Number, relative, where none is given.
	DefaultTolerance = 1e-6
)

// ScoreSpec asks for the scores of completions.
type ScoreSpec struct {
	// Dataset is a set's digest or name; empty when each item has what it needs.
	Dataset string
	Items   []Item
	Rule    string
	// Extract are the ways to find the answer in a completion; none are the rule's own.
	Extract []Extract
	// Abs and Rel are tolerances of Number and Math.
	Abs, Rel float64
}

// Item is one completion of one problem. Answer and Tests stand in for the problem's.
type Item struct {
	ID         string
	Completion string
	Answer     json.RawMessage
	Tests      json.RawMessage
}

// Score is the score of one item.
type Score struct {
	Index int
	ID    string
	// Score is from 0 to 1; nil where something failed that is not the completion's.
	Score *float64
	// Extracted is the answer that was found; Found says that there was one.
	Extracted string
	Found     bool
	Detail    string
	// Cached: the same was run before.
	Cached bool
}

// CodeJudge runs a problem's tests on code. An error is one of paddock, or of the tests: it
// says nothing about the code.
type CodeJudge func(ctx context.Context, tests json.RawMessage, code string) (score *float64, detail string, err error)

// Scorer scores. Its methods may be called from any goroutine.
type Scorer struct {
	store *Store
	code  CodeJudge
	cache cache
}

// NewScorer returns a scorer over a store; code may be nil where nothing is run.
func NewScorer(store *Store, code CodeJudge) *Scorer {
	return &Scorer{store: store, code: code, cache: cache{byKey: map[string]*list.Element{}, order: list.New()}}
}

// Score scores items. done is told of each as it ends, by one goroutine at a time, in no
// order. An error is a refused spec; nothing was scored then.
func (s *Scorer) Score(ctx context.Context, spec ScoreSpec, done func(Score)) error {
	work, err := s.plan(&spec)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	g, own := errgroup.WithContext(ctx)
	g.SetLimit(parallelTexts)
	if spec.Rule == Code {
		g.SetLimit(parallelCode)
	}
	// Many small comparisons go to one goroutine at a time; what runs code goes alone.
	chunk := 64
	if spec.Rule == Code {
		chunk = 1
	}
	for from := 0; from < len(work) && own.Err() == nil; from += chunk {
		part := work[from:min(from+chunk, len(work))]
		g.Go(func() error {
			for i := range part {
				res, err := s.one(own, &spec, &part[i])
				if e, ok := errors.AsType[*runner.Error](err); ok && e.Kind == runner.KindBadRequest {
					c := *e
					c.Field = fmt.Sprintf("items/%d/%s", from+i, e.Field)
					return &c
				}
				if err != nil {
					return err
				}
				res.Index, res.ID = from+i, part[i].ID
				mu.Lock()
				done(res)
				mu.Unlock()
			}
			return nil
		})
	}
	return errors.Join(g.Wait(), context.Cause(ctx))
}

// plan checks a spec and gives each item its answer.
func (s *Scorer) plan(spec *ScoreSpec) ([]Item, error) {
	if _, known := defaultExtract[spec.Rule]; !known {
		return nil, badField("rule", "%q is not one of %s", spec.Rule, strings.Join([]string{Exact, Text, Choice, Number, Math, Regex, Code}, ", "))
	}
	if n := len(spec.Items); n == 0 || n > MaxItems {
		return nil, badField("items", "has %d, must have 1 to %d", n, MaxItems)
	}
	if !(spec.Abs >= 0) || !(spec.Rel >= 0) {
		return nil, badField("tolerance", "%v and %v are no tolerances", spec.Abs, spec.Rel)
	}
	if spec.Rule == Code && s.code == nil {
		return nil, badField("rule", "there is nothing to run code with")
	}
	if len(spec.Extract) == 0 {
		spec.Extract = append([]Extract{}, defaultExtract[spec.Rule]...)
	}
	for i := range spec.Extract {
		if err := spec.Extract[i].check(fmt.Sprintf("extract/%d", i)); err != nil {
			return nil, err
		}
	}
	var set *Set
	if spec.Dataset != "" {
		var err error
		if set, err = s.store.Get(spec.Dataset); err != nil {
			return nil, err
		}
	}
	work := make([]Item, len(spec.Items))
	for i, item := range spec.Items {
		if err := item.complete(set, spec.Rule); err != nil {
			e := *err
			e.Field = fmt.Sprintf("items/%d/%s", i, e.Field)
			return nil, &e
		}
		work[i] = item
	}
	return work, nil
}

// complete fills what the item lacks from its problem, and refuses an item that cannot be
// scored.
func (it *Item) complete(set *Set, rule string) *runner.Error {
	if len(it.Completion) > maxCompletion {
		return badField("completion", "has %d bytes, at most %d are allowed", len(it.Completion), maxCompletion)
	}
	if set != nil {
		p, ok := set.Find(it.ID)
		if !ok {
			return badField("id", "%q is no problem of the set", it.ID)
		}
		if it.Answer == nil {
			it.Answer = p.Answer
		}
		if it.Tests == nil {
			it.Tests = p.Tests
		}
	}
	if rule == Code {
		if len(it.Tests) == 0 {
			return badField("tests", "is missing, here and in the problem")
		}
		return nil
	}
	if len(it.Answer) == 0 {
		return badField("answer", "is missing, here and in the problem")
	}
	if rule == Regex {
		for _, want := range answers(it.Answer) {
			if _, err := compile(want); err != nil {
				return badField("answer", "%v", err)
			}
		}
	}
	return nil
}

// answers are the texts of which each is right.
func answers(v json.RawMessage) []string {
	var several []json.RawMessage
	if json.Unmarshal(v, &several) != nil {
		return []string{text(v)}
	}
	out := make([]string, len(several))
	for i, one := range several {
		out[i] = text(one)
	}
	return out
}

func (s *Scorer) one(ctx context.Context, spec *ScoreSpec, it *Item) (Score, error) {
	if ctx.Err() != nil {
		return Score{}, context.Cause(ctx)
	}
	var out Score
	for i := range spec.Extract {
		if out.Extracted, out.Found = spec.Extract[i].find(it.Completion); out.Found {
			break
		}
	}
	zero, one := 0.0, 1.0
	if out.Score = &zero; !out.Found {
		out.Detail = "no answer was found"
		return out, nil
	}
	if spec.Rule == Code {
		return s.run(ctx, it, out)
	}
	for _, want := range answers(it.Answer) {
		if right, detail := spec.right(out.Extracted, want); right {
			out.Score, out.Detail = &one, ""
			break
		} else if detail != "" {
			out.Detail = detail
		}
	}
	return out, nil
}

// right compares one extracted answer with one right one.
func (s *ScoreSpec) right(got, want string) (bool, string) {
	switch s.Rule {
	case Exact:
		return got == want, ""
	case Text:
		return normal(got) == normal(want), ""
	case Choice:
		a, b := choice(got), choice(want)
		return a != "" && a == b, ""
	case Number:
		return sameQuantity(got, want, s.Abs, s.Rel)
	case Math:
		return sameMath(got, want, s.Abs, s.Rel), ""
	case Regex:
		re, err := compile(want)
		return err == nil && re.MatchString(got), ""
	}
	return false, ""
}

// run runs tests, unless the same code was run on them before.
func (s *Scorer) run(ctx context.Context, it *Item, out Score) (Score, error) {
	key := string(sum(it.Tests)) + string(sum([]byte(out.Extracted)))
	if kept, ok := s.cache.get(key); ok {
		out.Score, out.Detail, out.Cached = kept.Score, kept.Detail, true
		return out, nil
	}
	score, detail, err := s.code(ctx, it.Tests, out.Extracted)
	if err != nil {
		if _, refused := errors.AsType[*runner.Error](err); refused || ctx.Err() != nil {
			return out, err
		}
		score, detail = nil, err.Error()
	}
	out.Score, out.Detail = score, detail
	if score != nil {
		s.cache.put(key, out)
	}
	return out, nil
}

func sum(b []byte) []byte {
	d := sha256.Sum256(b)
	return d[:]
}

// maxCached bounds the kept scores of code.
const maxCached = 50_000

// cache keeps the last scores of code.
type cache struct {
	mu    sync.Mutex
	byKey map[string]*list.Element
	order *list.List // of *cachedScore, the latest first
}

type cachedScore struct {
	key   string
	score Score
}

func (c *cache) get(key string) (Score, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.byKey[key]
	if !ok {
		return Score{}, false
	}
	c.order.MoveToFront(e)
	kept, _ := e.Value.(*cachedScore) // nothing else is put in
	return kept.score, true
}

func (c *cache) put(key string, s Score) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.byKey[key]; ok {
		return
	}
	c.byKey[key] = c.order.PushFront(&cachedScore{key: key, score: s})
	for c.order.Len() > maxCached {
		last, _ := c.order.Remove(c.order.Back()).(*cachedScore)
		delete(c.byKey, last.key)
	}
}
