package egress

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"hash"
	"mime"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// Exchange is one request that an endpoint carried, with its answer.
type Exchange struct {
	Endpoint string    `json:"endpoint"`
	Method   string    `json:"method"`
	Path     string    `json:"path"`
	Started  time.Time `json:"started"`
	TookS    float64   `json:"took_s"`
	// Status is 0 where there was no answer; Error then says why.
	Status  int     `json:"status,omitempty"`
	Error   string  `json:"error,omitempty"`
	Request Content `json:"request"`
	Answer  Content `json:"answer"`
	// Completion is what a language model's answer has of tokens, where it has any.
	Completion *Completion `json:"completion,omitempty"`
}

// Content is a body: its length and hash whatever it is, and all of it in one of the other
// fields, unless it was too long to be kept (Truncated).
type Content struct {
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256,omitempty"`
	// JSON is a body that is JSON, Events the data of a text/event-stream of JSON, Text
	// another text, Base64 anything else.
	JSON      json.RawMessage   `json:"json,omitempty"`
	Events    []json.RawMessage `json:"events,omitempty"`
	Text      string            `json:"text,omitempty"`
	Base64    []byte            `json:"base64,omitempty"`
	Truncated bool              `json:"truncated,omitempty"`
}

// Bounds of what is kept while exchanges are under way: of one body, of all bodies of an
// endpoint together, and of all endpoints of a host.
const (
	maxBody     = 4 << 20
	maxKept     = 16 << 20
	maxHostKept = 1 << 30
	maxPath     = 2048
)

// keeper is the memory that bodies may take: those of one endpoint, of a host's share.
type keeper struct {
	max int // unset is maxHostKept
	of  *keeper

	mu   sync.Mutex
	used int
}

func (k *keeper) take(n int) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.used+n > cmp.Or(k.max, maxHostKept) || k.of != nil && !k.of.take(n) {
		return false
	}
	k.used += n
	return true
}

func (k *keeper) give(n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.used -= n
	if k.of != nil {
		k.of.give(n)
	}
}

// kept is a body as it passes. One goroutine writes to it; finish may come from another.
type kept struct {
	mu   sync.Mutex
	k    *keeper
	sum  hash.Hash
	n    int64
	buf  []byte
	cut  bool
	over bool
}

func newKept(k *keeper) *kept { return &kept{k: k, sum: sha256.New()} }

func (b *kept) add(p []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.over {
		return
	}
	b.n += int64(len(p))
	b.sum.Write(p)
	if b.cut {
		return
	}
	if len(b.buf)+len(p) > maxBody || !b.k.take(len(p)) {
		b.cut = true
		b.k.give(len(b.buf))
		b.buf = nil
		return
	}
	b.buf = append(b.buf, p...)
}

// finish takes what was kept; nothing is added after it.
func (b *kept) finish() (Content, []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.over = true
	b.k.give(len(b.buf))
	c := Content{Bytes: b.n, Truncated: b.cut}
	if b.n > 0 {
		c.SHA256 = hex.EncodeToString(b.sum.Sum(nil))
	}
	return c, b.buf
}

// exchange is one that is under way.
type exchange struct {
	out             Exchange
	began           time.Time
	media           string // of the answer
	request, answer *kept
}

func newExchange(name string, r *request, k *keeper) *exchange {
	now := time.Now()
	return &exchange{
		out:   Exchange{Endpoint: name, Method: r.method, Path: printable(r.url.RequestURI(), maxPath), Started: now.UTC()},
		began: now, request: newKept(k), answer: newKept(k),
	}
}

func (x *exchange) drop() {
	_, _ = x.request.finish()
	_, _ = x.answer.finish()
}

// finish is the exchange as it is recorded.
func (x *exchange) finish() Exchange {
	out := x.out
	out.TookS = time.Since(x.began).Seconds()
	var body []byte
	out.Request, body = x.request.finish()
	out.Request.fill(body, "")
	out.Answer, body = x.answer.finish()
	out.Answer.fill(body, x.media)
	out.Completion = completion(&out.Answer)
	return out
}

// fill puts a body where it can be read as what it is.
func (c *Content) fill(body []byte, media string) {
	switch {
	case len(body) == 0:
		return
	case !utf8.Valid(body): // JSON's own reader lets it pass, and a line of it would be none
		c.Base64 = body
		return
	}
	if m, _, err := mime.ParseMediaType(media); err == nil && m == "text/event-stream" {
		if events := readEvents(body); len(events) > 0 {
			c.Events = events
			return
		}
	}
	var compact bytes.Buffer
	if json.Valid(body) && json.Compact(&compact, body) == nil {
		c.JSON = compact.Bytes()
	} else {
		c.Text = string(body)
	}
}

// readEvents reads the data of server-sent events that are JSON, one a line, as model
// servers send them. It is nothing where any event is something else.
func readEvents(body []byte) []json.RawMessage {
	var events []json.RawMessage
	for line := range strings.SplitSeq(string(body), "\n") {
		data, ok := strings.CutPrefix(strings.TrimSuffix(line, "\r"), "data:")
		if !ok {
			continue
		}
		data = strings.TrimSpace(data)
		if data == "[DONE]" {
			continue
		}
		if !json.Valid([]byte(data)) {
			return nil
		}
		events = append(events, json.RawMessage(data))
	}
	return events
}
