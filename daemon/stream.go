package daemon

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/paddock-run/paddock/api"
)

// writeTimeout bounds how long one line of a stream may wait for a reader that has
// stopped reading. What the line told is kept by the runner.
const writeTimeout = 30 * time.Second

// maxChunk bounds the bytes of one line of output.
const maxChunk = 64 << 10

// stream writes NDJSON: one JSON value a line, flushed at once. Its methods may be called
// from any goroutine.
type stream struct {
	q  *request
	rc *http.ResponseController

	mu  sync.Mutex
	err error
}

// stream begins an answer of lines.
func (q *request) stream() *stream {
	s := &stream{q: q, rc: http.NewResponseController(q.w)}
	// Without this, net/http reads the request's body to its end before it answers, and
	// stdin could not go in while output comes out.
	_ = s.rc.EnableFullDuplex()
	q.began = true
	q.w.Header().Set("Content-Type", api.MediaStream)
	q.w.WriteHeader(q.status)
	_ = s.rc.Flush()
	return s
}

// send writes one line. After an error all later lines are dropped with the same error.
func (s *stream) send(v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return s.err
	}
	_ = s.rc.SetWriteDeadline(time.Now().Add(writeTimeout))
	_, werr := s.q.w.Write(append(line, '\n'))
	s.err = errors.Join(werr, s.rc.Flush())
	_ = s.rc.SetWriteDeadline(time.Time{})
	return s.err
}

// sender takes the lines of a stream.
type sender interface{ send(v any) error }

// lazyStream begins the answer with its first line, so that until then an error can be an
// answer of its own, with a status.
type lazyStream struct {
	q     *request
	once  sync.Once
	under *stream
}

func (l *lazyStream) send(v any) error {
	l.once.Do(func() { l.under = l.q.stream() })
	return l.under.send(v)
}

// chunks sends what is written to it as output events. A character that is split over
// two writes is sent whole.
type chunks struct {
	to   sender
	name string
	held []byte
}

// Write sends p, but for the beginning of a character at its end.
func (c *chunks) Write(p []byte) (int, error) {
	rest := p
	if len(c.held) > 0 {
		rest = slices.Concat(c.held, p)
		c.held = nil
	}
	for len(rest) > 0 {
		n := min(len(rest), maxChunk)
		whole := n - unfinished(rest[:n])
		if whole == 0 {
			c.held = append([]byte(nil), rest...)
			break
		}
		if err := c.send(rest[:whole]); err != nil {
			return 0, err
		}
		rest = rest[whole:]
	}
	return len(p), nil
}

// close sends what is held: the output has ended in the middle of a character.
func (c *chunks) close() {
	if len(c.held) > 0 {
		_ = c.send(c.held)
		c.held = nil
	}
}

func (c *chunks) send(b []byte) error {
	event := api.CallEvent{Type: c.name}
	if text, lossless := api.Text(b); lossless == nil {
		event.Text = text
	} else {
		event.B64 = b
	}
	return c.to.send(event)
}

// unfinished is how many bytes at the end of b may be the beginning of a character.
func unfinished(b []byte) int {
	for n := 1; n <= min(utf8.UTFMax-1, len(b)); n++ {
		tail := b[len(b)-n:]
		if utf8.RuneStart(tail[0]) {
			if tail[0] >= utf8.RuneSelf && !utf8.FullRune(tail) {
				return n
			}
			return 0
		}
	}
	return 0
}
