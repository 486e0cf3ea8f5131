package api

import (
	"context"
	"encoding/json"
	"fmt"
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

// AddToBatch adds lines to an open batch, all of them or none.
func (c *Client) AddToBatch(ctx context.Context, id string, episodes ...BatchEpisode) (BatchAdded, error) {
	return post[BatchAdded](ctx, c, batchPath(id)+"/episodes", BatchLines{Episodes: episodes})
}

// SealBatch says that no more lines will be added.
func (c *Client) SealBatch(ctx context.Context, id string) (Batch, error) {
	return post[Batch](ctx, c, batchPath(id)+"/seal", nil)
}

// CancelBatch cancels what of a batch, or of the lines that spec means, has not ended.
func (c *Client) CancelBatch(ctx context.Context, id string, spec BatchCancel) (BatchCancelled, error) {
	return post[BatchCancelled](ctx, c, batchPath(id)+"/cancel", spec)
}

// RewardInBatch writes a reward that a batch waits for.
func (c *Client) RewardInBatch(ctx context.Context, id string, spec BatchReward) error {
	_, err := post[struct{}](ctx, c, batchPath(id)+"/rewards", spec)
	return err
}

// ScoreBatch scores every end state of a batch with other graders, as a new batch.
func (c *Client) ScoreBatch(ctx context.Context, id string, spec Graders) (Batch, error) {
	return post[Batch](ctx, c, batchPath(id)+"/scores", spec)
}

// Results calls yield for every result after a seq, in order of completion; with follow
// it waits for more until the batch no longer runs. After an error, go on after the last seq.
func (c *Client) Results(ctx context.Context, id string, after int64, follow bool, yield func(BatchResult) error) error {
	return streamOf(ctx, c, batchPath(id)+"/results", cursor(after, follow), yield)
}

// GroupResults calls yield for every complete group after a seq, in the order in which they
// were; with follow it waits for more until the batch no longer runs.
func (c *Client) GroupResults(ctx context.Context, id string, after int64, follow bool, yield func(GroupResult) error) error {
	return streamOf(ctx, c, batchPath(id)+"/groups", cursor(after, follow), yield)
}

// Work calls yield for whatever a batch asks of the client, until it no longer runs. lease
// is a lease that the client holds open; with "" the connection of this request is one.
// most bounds what is asked at a time; 0 leaves that to the batch.
func (c *Client) Work(ctx context.Context, id, lease string, most int, yield func(Work) error) error {
	q := url.Values{}
	if lease != "" {
		q.Set("lease", lease)
	}
	if most > 0 {
		q.Set("most", strconv.Itoa(most))
	}
	return streamOf(ctx, c, batchPath(id)+"/work", q, yield)
}

func cursor(after int64, follow bool) url.Values {
	q := url.Values{}
	if after > 0 {
		q.Set("after", strconv.FormatInt(after, 10))
	}
	if follow {
		q.Set("follow", "true")
	}
	return q
}

func streamOf[T any](ctx context.Context, c *Client, path string, q url.Values, yield func(T) error) error {
	return c.lines(ctx, call{method: http.MethodGet, path: path, query: q}, func(line []byte) error {
		var one T
		if err := json.Unmarshal(line, &one); err != nil {
			return &Error{Kind: ConnectionLost, Detail: fmt.Sprintf("a line of the stream is no %T: %v", one, err)}
		}
		return yield(one)
	})
}
