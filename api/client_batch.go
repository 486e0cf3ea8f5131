package api

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
)

func batchPath(id string) string { return "/v1/batches/" + segment(id) }

// CreateBatch starts a batch.
func (c *Client) CreateBatch(ctx context.Context, spec BatchSpec) (Batch, error) {
	return post[Batch](ctx, c, "/v1/batches", spec)
}

// Batches lists the caller's batches.
func (c *Client) Batches(ctx context.Context) ([]Batch, error) {
	out, err := get[Batches](ctx, c, "/v1/batches", nil)
	return out.Batches, err
}

// Batch looks at a batch.
func (c *Client) Batch(ctx context.Context, id string) (Batch, error) {
	return get[Batch](ctx, c, batchPath(id), nil)
}

// ResumeBatch goes on with a batch that was interrupted.
func (c *Client) ResumeBatch(ctx context.Context, id string) (Batch, error) {
	return post[Batch](ctx, c, batchPath(id)+"/resume", nil)
}

// CancelBatch cancels what of a batch has not ended.
func (c *Client) CancelBatch(ctx context.Context, id, reason string) (Batch, error) {
	return post[Batch](ctx, c, batchPath(id)+"/cancel", Reason{Reason: reason})
}

// ScoreBatch scores every end state of a batch with other graders, as a new batch.
func (c *Client) ScoreBatch(ctx context.Context, id string, spec Graders) (Batch, error) {
	return post[Batch](ctx, c, batchPath(id)+"/scores", spec)
}

// Results calls yield for every result after a seq, in order of completion; with follow
// it waits for more until the batch is done. After an error, go on after the last seq.
func (c *Client) Results(ctx context.Context, id string, after int64, follow bool, yield func(BatchResult) error) error {
	q := url.Values{}
	if after > 0 {
		q.Set("after", strconv.FormatInt(after, 10))
	}
	if follow {
		q.Set("follow", "true")
	}
	return c.lines(ctx, call{method: http.MethodGet, path: batchPath(id) + "/results", query: q}, func(line []byte) error {
		var r BatchResult
		if err := json.Unmarshal(line, &r); err != nil {
			return &Error{Kind: ConnectionLost, Detail: "a line of the stream is no result: " + err.Error()}
		}
		return yield(r)
	})
}
