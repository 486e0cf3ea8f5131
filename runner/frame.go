package runner

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// Bounds of one message of a program, in bytes.
const (
	DefaultFrame = 16 << 20
	MaxFrame     = 256 << 20
)

// Frame is one message of a program: a line of JSON, without its line feed, and the raw
// bytes that the line's member "frames", a list of lengths, announces. They follow the
// line at once, one after another.
type Frame struct {
	Line []byte
	Raw  []byte
}

// frameReader cuts what a program writes into messages. It is written to by one
// goroutine, never blocks it, and holds at most two messages: the one that is asked for
// and the one that is coming.
type frameReader struct {
	max int64
	out chan Frame // has room for one
	// bad is closed when the program breaks the form; why is set before.
	bad chan struct{}
	why *CallError

	buf  []byte
	line []byte // of the message whose raw bytes are coming
	raw  int64  // how many there are
}

func newFrameReader(most int64) *frameReader {
	return &frameReader{max: most, out: make(chan Frame, 1), bad: make(chan struct{})}
}

// Write takes what the program wrote.
func (f *frameReader) Write(p []byte) (int, error) {
	if f.why != nil {
		return len(p), nil // the rest of a broken conversation is dropped
	}
	f.buf = append(f.buf, p...)
	from := len(f.buf) - len(p)
	for f.why == nil && f.next(from) {
		from = 0
	}
	if f.why == nil && int64(len(f.buf)) > f.max {
		f.fail("reply_too_large", "a message has more than %d bytes", f.max)
	}
	return len(p), nil
}

// next takes one step: a line or its raw bytes. No line feed is in buf before from.
func (f *frameReader) next(from int) bool {
	if f.line == nil {
		at := bytes.IndexByte(f.buf[from:], '\n')
		if at < 0 {
			return false
		}
		at += from
		f.line = bytes.Clone(f.buf[:at])
		f.buf = f.buf[at+1:]
		if f.raw = f.announced(); f.why != nil {
			return false
		}
	}
	if int64(len(f.buf)) < f.raw {
		return false
	}
	done := Frame{Line: f.line}
	if f.raw > 0 {
		done.Raw = bytes.Clone(f.buf[:f.raw])
	}
	// A copy, so that the big message that was does not keep its memory.
	f.buf, f.line, f.raw = append([]byte(nil), f.buf[f.raw:]...), nil, 0
	select {
	case f.out <- done:
	default:
		f.fail("bad_reply", "a message came that nobody asked for")
	}
	return len(f.buf) > 0
}

// announced is how many raw bytes follow the line.
func (f *frameReader) announced() int64 {
	if !bytes.Contains(f.line, []byte(`"frames"`)) {
		return 0
	}
	var head struct {
		Frames []int64 `json:"frames"`
	}
	if json.Unmarshal(f.line, &head) != nil {
		return 0 // whoever asked sees that the line is no message
	}
	var sum int64
	for _, n := range head.Frames {
		if n < 0 || n > f.max || sum+n > f.max {
			f.fail("reply_too_large", "a message announces more than %d raw bytes", f.max)
			return 0
		}
		sum += n
	}
	return sum
}

func (f *frameReader) fail(kind, format string, args ...any) {
	f.why = &CallError{Kind: kind, Detail: fmt.Sprintf(format, args...)}
	f.buf, f.line = nil, nil
	close(f.bad)
}
