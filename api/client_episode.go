package api

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strconv"
)

// OpenRun opens a run. Requests of a client made by WithGeneration(run.Generation) are
// refused when another driver resumes the run.
func (c *Client) OpenRun(ctx context.Context, spec RunSpec) (Run, error) {
	return post[Run](ctx, c, "/v1/runs", spec)
}

// Runs lists the caller's runs.
func (c *Client) Runs(ctx context.Context) ([]Run, error) {
	out, err := get[Runs](ctx, c, "/v1/runs", nil)
	return out.Runs, err
}

// DefaultRun is the run of requests that name none.
const DefaultRun = "default"

// Key names an episode; Run is DefaultRun when empty.
type Key struct{ Run, ID string }

func (k Key) path() string {
	return runPath(k.Run) + "/episodes/" + segment(k.ID)
}

func runPath(run string) string {
	if run == "" {
		run = DefaultRun
	}
	return "/v1/runs/" + segment(run)
}

// Key is the episode's.
func (e *Episode) Key() Key { return Key{e.Run, e.ID} }

// Create makes an episode, or gets what is kept of its id. It returns when the episode is
// live or has ended.
func (c *Client) Create(ctx context.Context, spec EpisodeSpec) (Created, error) {
	return post[Created](ctx, c, runPath(spec.Run)+"/episodes", spec)
}

// Episode looks at an episode, which renews no lease.
func (c *Client) Episode(ctx context.Context, k Key) (Episode, error) {
	return get[Episode](ctx, c, k.path(), nil)
}

// ListOptions choose what Episodes lists.
type ListOptions struct {
	Run    string
	Prefix string
	// After continues a list after this id.
	After string
	// Max bounds a page; 0 is the daemon's default.
	Max int
}

// Episodes lists a page of a run's episodes in order of their ids.
func (c *Client) Episodes(ctx context.Context, o ListOptions) (Episodes, error) {
	q := url.Values{}
	for name, value := range map[string]string{"prefix": o.Prefix, "after": o.After} {
		if value != "" {
			q.Set(name, value)
		}
	}
	if o.Max > 0 {
		q.Set("max", strconv.Itoa(o.Max))
	}
	return get[Episodes](ctx, c, runPath(o.Run)+"/episodes", q)
}

// Cancel cancels live episodes of a run whose ids have the prefix.
func (c *Client) Cancel(ctx context.Context, run string, spec CancelSpec) (int, error) {
	out, err := post[Cancelled](ctx, c, runPath(run)+"/cancel", spec)
	return out.Cancelled, err
}

// Delete ends an episode and forgets it.
func (c *Client) Delete(ctx context.Context, k Key) error {
	return c.do(ctx, call{method: http.MethodDelete, path: k.path()}, nil, nil)
}

// Pause freezes an episode and its clocks.
func (c *Client) Pause(ctx context.Context, k Key) (Episode, error) {
	return post[Episode](ctx, c, k.path()+"/pause", nil)
}

// Resume lets a paused episode go on.
func (c *Client) Resume(ctx context.Context, k Key) (Episode, error) {
	return post[Episode](ctx, c, k.path()+"/resume", nil)
}

// Fork seals a live episode's files as they are and makes episodes that go on from them; the
// live one goes on, too. Processes are not taken along.
func (c *Client) Fork(ctx context.Context, k Key, spec ForkSpec) (Forked, error) {
	return post[Forked](ctx, c, k.path()+"/fork", spec)
}

// KeepAlive renews a lease of kind ttl.
func (c *Client) KeepAlive(ctx context.Context, k Key) (Episode, error) {
	return post[Episode](ctx, c, k.path()+"/keepalive", nil)
}

// Abort ends the live attempt because the client cannot go on.
func (c *Client) Abort(ctx context.Context, k Key, reason string) (Episode, error) {
	return post[Episode](ctx, c, k.path()+"/abort", Reason{Reason: reason})
}

// CancelCall ends a numbered call that nobody waits for, whose connection alone does not
// end it; one that was answered stays as it is.
func (c *Client) CancelCall(ctx context.Context, k Key, call CancelCall) error {
	_, err := post[struct{}](ctx, c, k.path()+"/calls/cancel", call)
	return err
}

// Call makes one tool call. How the program ended is in the result; an error means that
// there is none.
func (c *Client) Call(ctx context.Context, k Key, spec CallSpec) (CallResult, error) {
	return post[CallResult](ctx, c, k.path()+"/calls", spec)
}

// CallIO streams a call's input and output; each field may be nil.
type CallIO struct {
	// Stdin is sent as it is read; the call's Stdin must be unset.
	Stdin          io.Reader
	Stdout, Stderr io.Writer
}

// Stream makes one tool call with its input and output streamed.
func (c *Client) Stream(ctx context.Context, k Key, spec CallSpec, cio CallIO) (CallResult, error) {
	body, err := json.Marshal(spec)
	if err != nil {
		return CallResult{}, &Error{Kind: BadRequest, Detail: err.Error()}
	}
	r := call{method: http.MethodPost, path: k.path() + "/calls", media: MediaJSON, body: newReader(body)}
	if cio.Stdin != nil {
		r.media, r.body, r.header = MediaBytes, cio.Stdin, http.Header{HeaderCall: {ascii(body)}}
	}
	var result *CallResult
	err = c.lines(ctx, r, func(line []byte) error {
		var e CallEvent
		if err := json.Unmarshal(line, &e); err != nil {
			return &Error{Kind: ConnectionLost, Detail: "a line of the stream is no event: " + err.Error()}
		}
		var to io.Writer
		switch e.Type {
		case "stdout":
			to = cio.Stdout
		case "stderr":
			to = cio.Stderr
		case "result":
			result = e.Result
		case "error":
			return e.Error
		}
		if to == nil {
			return nil
		}
		_, err := to.Write(Bytes(e.Text, e.B64))
		return err
	})
	if err == nil && result == nil {
		err = &Error{Kind: ConnectionLost, Detail: "the stream ended without a result"}
	}
	if err != nil {
		return CallResult{}, err
	}
	return *result, nil
}

// Upload unpacks a tar (plain, gzip or zstd) under dir, as user ("" is the episode's).
func (c *Client) Upload(ctx context.Context, k Key, dir, user string, tar io.Reader) (CallResult, error) {
	return ask[CallResult](ctx, c, call{
		method: http.MethodPut, path: k.path() + "/archive", query: archiveQuery(dir, user), media: MediaTar, body: tar,
	}, nil)
}

// Download writes a file or tree as a tar to w. Where the path does not exist or a part of
// the tree cannot be read it is an *Error of kind NotFound, and nothing was written.
func (c *Client) Download(ctx context.Context, k Key, path, user string, w io.Writer) error {
	return c.copy(ctx, call{method: http.MethodGet, path: k.path() + "/archive", query: archiveQuery(path, user)}, w)
}

func archiveQuery(path, user string) url.Values {
	q := url.Values{"path": {path}}
	if user != "" {
		q.Set("user", user)
	}
	return q
}

// Finish ends an attempt. It returns when the outcome and the payload are on disk and the
// scores, where graders were given, are there. The payload travels as it is.
func (c *Client) Finish(ctx context.Context, k Key, spec FinishSpec) (Episode, error) {
	payload := spec.Payload
	spec.Payload = nil
	if len(payload) == 0 {
		return post[Episode](ctx, c, k.path()+"/finish", spec)
	}
	head, err := json.Marshal(spec)
	if err != nil {
		return Episode{}, &Error{Kind: BadRequest, Detail: err.Error()}
	}
	if len(head) > maxHeaderValue {
		spec.Payload = payload
		return post[Episode](ctx, c, k.path()+"/finish", spec)
	}
	return ask[Episode](ctx, c, call{
		method: http.MethodPost, path: k.path() + "/finish", media: MediaBytes, body: newReader(payload),
		header: http.Header{HeaderFinish: {ascii(head)}},
	}, nil)
}

// maxHeaderValue is how much of JSON goes into a header rather than into the body.
const maxHeaderValue = 16 << 10

func attemptQuery(n int) url.Values {
	if n == 0 {
		return nil
	}
	return url.Values{"attempt": {strconv.Itoa(n)}}
}

// Changes is what an ended attempt changed; attempt 0 is the last.
func (c *Client) Changes(ctx context.Context, k Key, attempt int) (Capture, error) {
	return get[Capture](ctx, c, k.path()+"/changes", attemptQuery(attempt))
}

// Trajectory writes the calls of an attempt, one JSON object a line; attempt 0 is the last.
func (c *Client) Trajectory(ctx context.Context, k Key, attempt int, w io.Writer) error {
	return c.copy(ctx, call{method: http.MethodGet, path: k.path() + "/trajectory", query: attemptQuery(attempt)}, w)
}

// Exchanges writes what the endpoints of an attempt carried, one JSON object a line; attempt
// 0 is the last.
func (c *Client) Exchanges(ctx context.Context, k Key, attempt int, w io.Writer) error {
	return c.copy(ctx, call{method: http.MethodGet, path: k.path() + "/exchanges", query: attemptQuery(attempt)}, w)
}

// Payload writes what finish was given; attempt 0 is the last.
func (c *Client) Payload(ctx context.Context, k Key, attempt int, w io.Writer) error {
	return c.copy(ctx, call{method: http.MethodGet, path: k.path() + "/payload", query: attemptQuery(attempt)}, w)
}

// PutGrader keeps a grader and returns its digest, which is its name.
func (c *Client) PutGrader(ctx context.Context, spec GraderSpec) (string, error) {
	out, err := post[GraderRef](ctx, c, "/v1/graders", spec)
	return out.Grader, err
}

// Grader is a grader by its digest.
func (c *Client) Grader(ctx context.Context, digest string) (GraderSpec, error) {
	return get[GraderSpec](ctx, c, "/v1/graders/"+segment(digest), nil)
}

// Score scores a kept end state; no agent runs.
func (c *Client) Score(ctx context.Context, k Key, spec Graders) (Episode, error) {
	return post[Episode](ctx, c, k.path()+"/scores", spec)
}

// WriteReward writes a reward that the client itself found.
func (c *Client) WriteReward(ctx context.Context, k Key, spec RewardSpec) (Episode, error) {
	return post[Episode](ctx, c, k.path()+"/rewards", spec)
}

// LeaseConn is a lease for as long as this process holds its connection. The kernel ends
// it with the process; episodes that name its ID then end after the grace.
type LeaseConn struct {
	ID     string
	GraceS float64
	body   io.Closer
	cancel context.CancelCauseFunc
}

// OpenLease opens a lease connection, which lasts until Close whatever becomes of ctx.
func (c *Client) OpenLease(ctx context.Context) (*LeaseConn, error) {
	held, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	resp, err := c.send(held, call{method: http.MethodPost, path: "/v1/leases", accept: MediaStream})
	if err != nil {
		cancel(err)
		return nil, err
	}
	var event LeaseEvent
	if err := json.NewDecoder(resp.Body).Decode(&event); err != nil {
		_ = resp.Body.Close()
		cancel(err)
		return nil, c.explain(held, err)
	}
	stop()
	return &LeaseConn{ID: event.Lease, GraceS: event.GraceS, body: resp.Body, cancel: cancel}, nil
}

// Close lets the lease go; its grace begins.
func (l *LeaseConn) Close() error {
	l.cancel(context.Canceled)
	return l.body.Close()
}

// Capacity is what there is.
func (c *Client) Capacity(ctx context.Context) (Capacity, error) {
	return get[Capacity](ctx, c, "/v1/capacity", nil)
}
