package api

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strconv"
)

// Problem is one problem of a data set.
type Problem struct {
	ID       string          `json:"id"`
	Prompt   json.RawMessage `json:"prompt,omitempty" doc:"any JSON: a text, or a list of messages"`
	Answer   json.RawMessage `json:"answer,omitempty" doc:"any JSON; a list means that each of its entries is right"`
	Tests    json.RawMessage `json:"tests,omitempty" doc:"for the rule code: a JudgeSpec, in whose code {{completion}} stands for what was extracted"`
	Metadata json.RawMessage `json:"metadata,omitempty"`
}

// Dataset is a set of problems.
type Dataset struct {
	Digest   string   `json:"digest" doc:"of its canonical form: equal problems have the equal digest, whatever file they came in"`
	Names    []string `json:"names,omitempty"`
	Problems int      `json:"problems"`
	Bytes    int64    `json:"bytes"`
}

// Datasets is the answer to a list.
type Datasets struct {
	Datasets []Dataset `json:"datasets"`
}

// Sample is the problems of one iteration.
type Sample struct {
	Digest   string    `json:"digest"`
	Epoch    int64     `json:"epoch" doc:"of the first of them, from 0"`
	Position int       `json:"position" doc:"problems of that epoch that came before"`
	Problems []Problem `json:"problems"`
}

// Extract is one way to find the answer in a completion; of several, the first that finds
// something counts.
type Extract struct {
	Kind     string `json:"kind" doc:"boxed, last_number, tag, after, regex, code, last_line or whole"`
	Tag      string `json:"tag,omitempty" doc:"of tag; answer by default"`
	Marker   string `json:"marker,omitempty" doc:"of after; #### by default"`
	Pattern  string `json:"pattern,omitempty" doc:"of regex, in RE2's syntax"`
	Language string `json:"language,omitempty" doc:"of code: the fence's word"`
}

// ScoreItem is one completion of one problem.
type ScoreItem struct {
	ID         string          `json:"id,omitempty" doc:"of the problem, when there is a data set"`
	Completion string          `json:"completion"`
	Answer     json.RawMessage `json:"answer,omitempty" doc:"in place of the problem's"`
	Tests      json.RawMessage `json:"tests,omitempty" doc:"in place of the problem's"`
}

// ScoreItems asks for the scores of completions.
type ScoreItems struct {
	Dataset string      `json:"dataset,omitempty" doc:"digest or name; unset when each item has its answer or tests"`
	Items   []ScoreItem `json:"items"`
	Rule    string      `json:"rule" doc:"exact, text, choice, number, math, regex or code"`
	Extract []Extract   `json:"extract,omitempty" doc:"the rule's own when unset"`
	Abs     float64     `json:"abs,omitempty" doc:"tolerance of number and math"`
	Rel     float64     `json:"rel,omitempty" doc:"1e-6 for number and 1e-9 for math when neither is set"`
}

// ItemScore is the score of one item.
type ItemScore struct {
	Index     int      `json:"index"`
	ID        string   `json:"id,omitempty"`
	Score     *float64 `json:"score" doc:"from 0 to 1; null where something failed that is not the completion's"`
	Extracted string   `json:"extracted"`
	Found     bool     `json:"found" doc:"an answer was found"`
	Detail    string   `json:"detail,omitempty"`
	Cached    bool     `json:"cached,omitempty" doc:"the same code was run on the same tests before"`
}

// ItemScores are the scores of all items, in their order.
type ItemScores struct {
	Scores []ItemScore `json:"scores"`
}

// ItemScoreEvent is one line of a streamed scoring: scores as they come, then the end: a
// line with count, or an error.
type ItemScoreEvent struct {
	Score *ItemScore `json:"score,omitempty"`
	Count int        `json:"count,omitempty"`
	Error *Error     `json:"error,omitempty"`
}

// PutDataset says how a file becomes a data set.
type PutDataset struct {
	// Format is jsonl, json, csv or parquet.
	Format string
	Name   string
	// ID, Prompt, Answer and Tests are names of columns where they are others than these.
	ID, Prompt, Answer, Tests string
}

// PutDataset keeps a file's problems.
func (c *Client) PutDataset(ctx context.Context, spec PutDataset, file io.Reader) (Dataset, error) {
	q := url.Values{}
	for name, v := range map[string]string{
		"format": spec.Format, "name": spec.Name, "id": spec.ID, "prompt": spec.Prompt, "answer": spec.Answer, "tests": spec.Tests,
	} {
		if v != "" {
			q.Set(name, v)
		}
	}
	return ask[Dataset](ctx, c, call{method: http.MethodPost, path: "/v1/datasets", query: q, media: MediaBytes, body: file}, nil)
}

// Datasets lists the data sets.
func (c *Client) Datasets(ctx context.Context) ([]Dataset, error) {
	out, err := get[Datasets](ctx, c, "/v1/datasets", nil)
	return out.Datasets, err
}

// Dataset tells of one, by digest or name.
func (c *Client) Dataset(ctx context.Context, ref string) (Dataset, error) {
	return get[Dataset](ctx, c, "/v1/datasets/"+segment(ref), nil)
}

// RemoveDataset removes one with its names.
func (c *Client) RemoveDataset(ctx context.Context, ref string) error {
	return c.do(ctx, call{method: http.MethodDelete, path: "/v1/datasets/" + segment(ref)}, nil, nil)
}

// SampleSpec asks for the problems of one iteration.
type SampleSpec struct {
	Iteration int64
	N         int
	Seed      uint32
	// Order is shuffle (default: each epoch in an order of its own, drawn from the seed) or rotate.
	Order string
}

// Sample gives the problems of an iteration: a function of its arguments alone.
func (c *Client) Sample(ctx context.Context, ref string, spec SampleSpec) (Sample, error) {
	q := url.Values{"iteration": {strconv.FormatInt(spec.Iteration, 10)}, "n": {strconv.Itoa(spec.N)}}
	if spec.Seed != 0 {
		q.Set("seed", strconv.FormatUint(uint64(spec.Seed), 10))
	}
	if spec.Order != "" {
		q.Set("order", spec.Order)
	}
	return get[Sample](ctx, c, "/v1/datasets/"+segment(ref)+"/sample", q)
}

// ScoreItems scores completions. done, which may be nil, is told of each as it ends; the
// result has all of them, in the items' order.
func (c *Client) ScoreItems(ctx context.Context, spec ScoreItems, done func(ItemScore)) ([]ItemScore, error) {
	if done == nil {
		out, err := post[ItemScores](ctx, c, "/v1/scores", spec)
		return out.Scores, err
	}
	body, err := json.Marshal(spec)
	if err != nil {
		return nil, &Error{Kind: BadRequest, Detail: err.Error()}
	}
	scores, count := make([]ItemScore, len(spec.Items)), 0
	r := call{method: http.MethodPost, path: "/v1/scores", media: MediaJSON, body: newReader(body)}
	err = c.lines(ctx, r, func(line []byte) error {
		var e ItemScoreEvent
		if err := json.Unmarshal(line, &e); err != nil {
			return &Error{Kind: ConnectionLost, Detail: "a line of the stream is no event: " + err.Error()}
		}
		switch {
		case e.Error != nil:
			return e.Error
		case e.Score != nil && e.Score.Index >= 0 && e.Score.Index < len(scores):
			scores[e.Score.Index] = *e.Score
			done(*e.Score)
		default:
			count = e.Count
		}
		return nil
	})
	if err == nil && count != len(scores) {
		err = &Error{Kind: ConnectionLost, Detail: "the stream ended without its last line"}
	}
	return scores, err
}
