package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/user"
	"strconv"
	"strings"
	"syscall"

	jsonv2 "github.com/go-json-experiment/json"
	jsonv1 "github.com/go-json-experiment/json/v1"
)

// Client talks to a daemon, over its unix socket or over TLS. It sets no timeouts and no
// bound on connections: deadlines are the daemon's and the context's. Its methods may be
// called from any goroutine. Errors are *Error, or the context's.
type Client struct {
	// socket is empty, and host set, of a client of another host.
	socket, host string
	token        string
	// failed is what every request ends in, of a client whose target was wrong.
	failed error
	http   *http.Client
	// generation is sent with every request when above 0.
	generation int64
}

// SocketPath is where to find the daemon: flag, else PADDOCK_SOCKET, else the default.
func SocketPath(flag string) string {
	if flag != "" {
		return flag
	}
	if env := os.Getenv(SocketEnv); env != "" {
		return env
	}
	return DefaultSocket
}

// NewClient makes a client of the daemon at socket. It connects when first used.
func NewClient(socket string) *Client {
	var d net.Dialer
	return &Client{socket: socket, http: httpClient(&http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return d.DialContext(ctx, "unix", socket)
		},
	})}
}

func httpClient(t *http.Transport) *http.Client {
	t.MaxIdleConns, t.MaxIdleConnsPerHost, t.DisableCompression = 0, 4096, true
	return &http.Client{
		Transport:     t,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// WithGeneration returns a client whose requests carry a run's generation, so that they
// are refused when a later driver has resumed the run.
func (c *Client) WithGeneration(generation int64) *Client {
	other := *c
	other.generation = generation
	return &other
}

// Close closes idle connections.
func (c *Client) Close() {
	if c.http != nil {
		c.http.CloseIdleConnections()
	}
}

// Local says whether the daemon is this host's, reached by its socket.
func (c *Client) Local() bool { return c.host == "" }

// segment escapes one segment of a path.
func segment(s string) string { return url.PathEscape(s) }

// call is one request.
type call struct {
	method, path string
	query        url.Values
	header       http.Header
	body         io.Reader
	media        string
	accept       string
}

// send sends a request and returns an answer that is a success; its body is the
// caller's to close.
func (c *Client) send(ctx context.Context, r call) (*http.Response, error) {
	if c.failed != nil {
		return nil, c.failed
	}
	u := c.base() + r.path
	if len(r.query) > 0 {
		u += "?" + r.query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, r.method, u, r.body)
	if err != nil {
		return nil, &Error{Kind: BadRequest, Detail: err.Error()}
	}
	maps.Copy(req.Header, r.header)
	if r.media != "" {
		req.Header.Set("Content-Type", r.media)
	}
	if r.accept != "" {
		req.Header.Set("Accept", r.accept)
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	if c.generation > 0 {
		req.Header.Set(HeaderGeneration, strconv.FormatInt(c.generation, 10))
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.explain(ctx, err)
	}
	if resp.StatusCode/100 == 2 {
		return resp, nil
	}
	defer func() { _ = resp.Body.Close() }()
	return nil, readProblem(resp)
}

// base is what every URL begins with.
func (c *Client) base() string {
	if c.host != "" {
		return "https://" + c.host
	}
	return "http://paddock"
}

// readProblem reads an answer that is no success.
func readProblem(resp *http.Response) error {
	body, err := io.ReadAll(io.LimitReader(resp.Body, 16<<20))
	p := &Error{}
	if err != nil || json.Unmarshal(body, p) != nil || p.Kind == "" {
		return &Error{
			Kind: Internal, Status: resp.StatusCode,
			Detail: fmt.Sprintf("status %s without a problem document; is this paddock?", resp.Status),
		}
	}
	return p
}

// explain makes an error of the transport one that says what to do.
func (c *Client) explain(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if c.host != "" {
		if p := c.explainRemote(err); p != nil {
			return p
		}
	}
	var dial *net.OpError
	if errors.As(err, &dial) && dial.Op == "dial" {
		return c.explainDial(err)
	}
	return &Error{
		Kind: ConnectionLost, Detail: "the connection to the daemon broke off: " + err.Error(),
		Hint: "ask again under the same id or sequence number: what was done is not done twice",
	}
}

func (c *Client) explainDial(err error) error {
	p := &Error{Kind: Unavailable, Detail: fmt.Sprintf("socket %s: %v", c.socket, err)}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		p.Detail = fmt.Sprintf("there is no socket %s", c.socket)
		p.Hint = "start the daemon with `paddock serve`, or name its socket with --socket or " + SocketEnv
	case errors.Is(err, syscall.ECONNREFUSED):
		p.Detail = fmt.Sprintf("nobody listens on %s", c.socket)
		p.Hint = "the daemon is not running; start it with `paddock serve`"
	case errors.Is(err, fs.ErrPermission):
		p.Kind = PermissionDenied
		p.Detail, p.Hint = c.explainDenied()
	}
	return p
}

// explainDenied says who may connect, which the socket's owner and mode tell.
func (c *Client) explainDenied() (detail, hint string) {
	detail = fmt.Sprintf("uid %d may not connect to %s", os.Getuid(), c.socket)
	info, err := os.Stat(c.socket)
	if err != nil {
		return detail + ": its directory is closed to this user", "run as root, or as a user who may enter the directory"
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || st.Gid == 0 {
		return detail + ": only root may", "run as root, or start the daemon with --socket-group GROUP and join that group"
	}
	group := strconv.FormatUint(uint64(st.Gid), 10)
	if g, err := user.LookupGroupId(group); err == nil {
		group = g.Name
	}
	return fmt.Sprintf("%s: only root and members of group %s may", detail, group),
		fmt.Sprintf("join it with `usermod -aG %s USER` and log in again, or run as root", group)
}

// do sends in as JSON, unless it is nil, and reads the answer into out, unless that is nil.
func (c *Client) do(ctx context.Context, r call, in, out any) error {
	if in != nil {
		body, err := json.Marshal(in)
		if err != nil {
			return &Error{Kind: BadRequest, Detail: err.Error()}
		}
		r.body, r.media = bytes.NewReader(body), MediaJSON
	}
	resp, err := c.send(ctx, r)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if out == nil || resp.StatusCode == http.StatusNoContent {
		_, err := io.Copy(io.Discard, resp.Body)
		return err
	}
	body := bytes.NewBuffer(make([]byte, 0, max(bytes.MinRead, resp.ContentLength+bytes.MinRead)))
	if _, err := body.ReadFrom(resp.Body); err != nil {
		return c.explain(ctx, err)
	}
	// The same as encoding/json does, in three fifths of its time for a small result.
	if err := jsonv2.Unmarshal(body.Bytes(), out, jsonv1.DefaultOptionsV1()); err != nil {
		return c.explain(ctx, err)
	}
	return nil
}

// maxLine bounds a line of a stream: a capture or a payload may be in it.
const maxLine = 256 << 20

// lines calls yield for each line of a stream until it is at its end.
func (c *Client) lines(ctx context.Context, r call, yield func(line []byte) error) error {
	r.accept = MediaStream
	resp, err := c.send(ctx, r)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	in := bufio.NewScanner(resp.Body)
	in.Buffer(make([]byte, 64<<10), maxLine)
	for in.Scan() {
		if len(in.Bytes()) == 0 {
			continue // the daemon's sign of life
		}
		if err := yield(in.Bytes()); err != nil {
			return err
		}
	}
	if err := in.Err(); err != nil {
		return c.explain(ctx, err)
	}
	return nil
}

func newReader(b []byte) io.Reader { return bytes.NewReader(b) }

// ascii escapes what is not ASCII in JSON text, so that it may travel in a header.
func ascii(body []byte) string {
	var b strings.Builder
	for _, r := range string(body) {
		switch {
		case r < 0x80:
			b.WriteRune(r)
		case r < 0x10000:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			r -= 0x10000
			fmt.Fprintf(&b, `\u%04x\u%04x`, 0xd800+(r>>10), 0xdc00+(r&0x3ff))
		}
	}
	return b.String()
}

// ask is do for an answer of type T.
func ask[T any](ctx context.Context, c *Client, r call, in any) (T, error) {
	var out T
	err := c.do(ctx, r, in, &out)
	return out, err
}

func get[T any](ctx context.Context, c *Client, path string, query url.Values) (T, error) {
	return ask[T](ctx, c, call{method: http.MethodGet, path: path, query: query}, nil)
}

func post[T any](ctx context.Context, c *Client, path string, in any) (T, error) {
	return ask[T](ctx, c, call{method: http.MethodPost, path: path}, in)
}

// Version says what answers.
func (c *Client) Version(ctx context.Context) (VersionInfo, error) {
	return get[VersionInfo](ctx, c, "/v1/version", nil)
}
