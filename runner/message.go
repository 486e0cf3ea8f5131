package runner

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"
)

// Keeping is what the record keeps of a message and its reply. The digests cover every
// message whatever is kept of it.
type Keeping int

// KeepAll keeps both, KeepRequest the message alone with the reply's length and hash,
// KeepNothing no line at all.
const (
	KeepAll Keeping = iota
	KeepRequest
	KeepNothing
)

// Message is something to say to an episode's program. The program gets it as one line:
// Body, a JSON object, with the member "op" in front, which is Op.
type Message struct {
	Attempt    int   // 0 is the live one
	Generation int64 // 0 is not checked
	Op         string
	Body       json.RawMessage
	// Told, when set, is what the program gets in the place of Body: a JSON object that may
	// be long, or not for the record, which has Body alone.
	Told json.RawMessage
	// TimeoutS bounds the wait for the reply; 0 is the episode's call_s.
	TimeoutS float64
	// Keep, when set, says what to keep, given the reply; it must be quick.
	Keep func(Reply) Keeping
}

// Reply is what came of a Message. Without a Frame, Result.Error says why not, and the
// program is no more.
type Reply struct {
	Frame  Frame
	Result CallResult
}

// ProgramHello is what the live attempt's program said when it was ready.
func (r *Runner) ProgramHello(ctx context.Context, key Key) (Frame, error) {
	a, err := r.liveAttempt(ctx, key, 0)
	if err != nil {
		return Frame{}, err
	}
	select {
	case <-a.ready:
	case <-ctx.Done():
		return Frame{}, context.Cause(ctx)
	}
	if a.program == nil {
		return Frame{}, &Error{Kind: KindNotLive, Detail: "the episode has no program"}
	}
	return a.program.hello, nil
}

// maxMessages bounds the messages of one attempt.
const maxMessages = 1 << 26

// Message says something to the episode's program and waits for the reply, as a call: it
// takes its turn, runs the agent's clock and is on record before it is answered. A
// program that does not answer, or not in the form, is a value; the program is then gone,
// the episode is not.
func (r *Runner) Message(ctx context.Context, key Key, m Message) (Reply, error) {
	if !segment.MatchString(m.Op) {
		return Reply{}, badField("op", "%q is out of form", m.Op)
	}
	if !(m.TimeoutS >= 0 && m.TimeoutS <= maxSeconds) {
		return Reply{}, badField("timeout_s", "%v is not in 0 to %d seconds", m.TimeoutS, int(maxSeconds))
	}
	if !isObject(m.Body) {
		return Reply{}, badField("body", "is not a JSON object")
	}
	if !isObject(m.Told) {
		return Reply{}, badField("told", "is not a JSON object")
	}
	if err := r.fence(ctx, key, m.Generation); err != nil {
		return Reply{}, err
	}
	a, err := r.liveAttempt(ctx, key, m.Attempt)
	if err != nil {
		return Reply{}, err
	}
	select {
	case <-a.ready:
	case <-ctx.Done():
		return Reply{}, context.Cause(ctx)
	}
	return a.message(ctx, m)
}

func (a *attempt) message(ctx context.Context, m Message) (Reply, error) {
	if stopped(a.stop) {
		return Reply{}, a.endedError()
	}
	if a.program == nil {
		return Reply{}, &Error{Kind: KindNotLive, Detail: "the episode has no program"}
	}
	select {
	case a.serial <- struct{}{}:
		defer func() { <-a.serial }()
	case <-a.stop:
		return Reply{}, a.endedError()
	case <-ctx.Done():
		return Reply{}, context.Cause(ctx)
	}
	seq, err := a.enterMessage()
	if err != nil {
		return Reply{}, err
	}
	c := &callState{spec: CallSpec{Tool: m.Op, Seq: seq, TimeoutS: m.TimeoutS, Args: m.Body}}
	if err := a.beginCall(ctx, c); err != nil {
		return Reply{}, err
	}
	defer a.endCall(c)
	c.res = CallResult{Seq: seq, Attempt: a.n, Tool: m.Op, Started: time.Now().UTC()}
	frame := a.converse(ctx, c, line(m))
	c.res.Took = c.clock.elapsed()
	if stopped(a.stop) && c.res.Error != nil {
		return Reply{}, a.endedError()
	}
	reply := Reply{Frame: frame, Result: c.res}
	return reply, a.recordMessage(ctx, c, m, &reply)
}

// isObject says whether a part of a message is a JSON object, or is not there.
func isObject(body json.RawMessage) bool {
	return len(body) == 0 || body[0] == '{' && json.Valid(body)
}

// line is a message as the program gets it.
func line(m Message) []byte {
	body := m.Body
	if len(m.Told) > 0 {
		body = m.Told
	}
	var b bytes.Buffer
	b.Grow(len(body) + len(m.Op) + 16)
	b.WriteString(`{"op":"` + m.Op + `"`)
	if bytes.ContainsAny(body, "\n\r") {
		var one bytes.Buffer
		_ = json.Compact(&one, body) // is valid
		body = one.Bytes()
	}
	if len(body) > 0 && len(bytes.TrimSpace(body[1:len(body)-1])) > 0 {
		b.WriteByte(',')
		b.Write(body[1:])
	} else {
		b.WriteByte('}')
	}
	b.WriteByte('\n')
	return b.Bytes()
}

func (a *attempt) enterMessage() (seq int64, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.roomLocked(); err != nil {
		return 0, err
	}
	if a.messages >= maxMessages {
		return 0, &Error{Kind: KindTooLarge, Detail: fmt.Sprintf("an attempt has at most %d messages", int64(maxMessages))}
	}
	a.messages++
	a.nextSeq++
	return a.nextSeq, nil
}

// converse sends the line and waits for the reply. Without one the program is killed: what it
// would say later belongs to nobody.
func (a *attempt) converse(ctx context.Context, c *callState, text []byte) Frame {
	p := a.program
	if why := p.gone(); why != nil {
		a.programGone(c, why, "")
		return Frame{}
	}
	select {
	case <-p.frames.out:
		p.unasked = true
		p.proc.Kill()
		<-p.ended
		a.programGone(c, p.gone(), "")
		return Frame{}
	default:
	}
	p.feed.in <- text // one fits, and none waits: every message before was read and answered
	expired := ""
	select {
	case f := <-p.frames.out:
		return f
	case <-p.frames.bad:
	case <-p.ended:
		select { // it answered and went
		case f := <-p.frames.out:
			return f
		default:
		}
	case <-a.sb.Done():
	case <-c.clock.fired:
		expired = "call_s"
	case <-a.agent.fired:
		expired = "agent_s"
	case <-a.stop:
	case <-ctx.Done():
	}
	p.proc.Kill()
	<-p.ended
	a.programGone(c, p.gone(), expired)
	if fate, dead := a.fate(); dead {
		a.ask(fateEnd(fate))
	}
	return Frame{}
}

// gone says why the program can be talked to no more; nil is that it can.
func (p *program) gone() *CallError {
	switch {
	case p.unasked:
		return &CallError{Kind: "bad_reply", Detail: "a message came that nobody asked for"}
	case stopped(p.frames.bad):
		return p.frames.why
	case stopped(p.ended):
		return &CallError{Kind: "program_ended", Detail: strings.TrimSpace(exitText(p.exit) + "\n" + p.said())}
	}
	return nil
}

func (a *attempt) programGone(c *callState, why *CallError, expired string) {
	if stopped(a.program.ended) {
		a.fill(c, a.program.exit, expired)
	}
	c.res.Error = why
	if expired != "" {
		c.res.Error = &CallError{Kind: "timeout", Detail: "the program did not answer in time"}
	}
}

// recordMessage is record for a message.
func (a *attempt) recordMessage(ctx context.Context, c *callState, m Message, reply *Reply) error {
	out := &c.res.Stdout
	out.Bytes = int64(len(reply.Frame.Line) + len(reply.Frame.Raw))
	sum := sha256.New()
	sum.Write(reply.Frame.Line)
	sum.Write(reply.Frame.Raw)
	var seen [sha256.Size]byte
	sum.Sum(seen[:0])
	out.SHA256 = hex.EncodeToString(seen[:])
	a.countOutput(int(out.Bytes))
	a.checkLimits(context.WithoutCancel(ctx), c)
	reply.Result = c.res
	keep := KeepAll
	if m.Keep != nil {
		keep = m.Keep(*reply)
	}
	if keep == KeepAll {
		out.Head = reply.Frame.Line
		if n := len(reply.Frame.Raw); n > 0 {
			out.Head = append(append(bytes.Clone(reply.Frame.Line), '\n'), reply.Frame.Raw...)
		}
		if len(out.Head) > MaxOutput {
			out.Head, out.Dropped = nil, out.Bytes
		}
	} else {
		out.Dropped = out.Bytes
	}
	if keep != KeepNothing {
		if err := a.appendMessage(c); err != nil {
			return err
		}
	}
	a.chainMessage(c, m, seen)
	return nil
}

func (a *attempt) appendMessage(c *callState) error {
	raw, err := json.Marshal(journalLine{Seq: c.spec.Seq, Call: c.spec, Result: c.res})
	if err != nil {
		return fmt.Errorf("encode message: %w", err)
	}
	a.writing <- struct{}{}
	defer func() { <-a.writing }()
	if _, err := a.journal.Append(raw); err != nil {
		a.log.Error("journal", slog.Any("error", err))
		a.ask(storageEnd("host_disk", err))
		return a.endedError()
	}
	return nil
}

// chainMessage counts a message and takes it into the digests. There may be millions, so
// all messages are one chain, in the place of the first.
func (a *attempt) chainMessage(c *callState, m Message, seen [sha256.Size]byte) {
	kind := ""
	if c.res.Error != nil {
		kind = c.res.Error.Kind
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.firstMessage == 0 {
		a.firstMessage = c.spec.Seq
	}
	a.ledger.actions[a.firstMessage] = chained(a.ledger.actions[a.firstMessage], []byte(m.Op), m.Body)
	a.ledger.observations[a.firstMessage] = chained(a.ledger.observations[a.firstMessage], []byte(kind), seen[:])
	a.rec.Calls++
	a.rec.Usage.Wall += c.res.Took
}

// chained hashes parts, each with its length, onto what was before.
func chained(before [sha256.Size]byte, parts ...[]byte) (sum [sha256.Size]byte) {
	h := sha256.New()
	h.Write(before[:])
	for _, p := range parts {
		h.Write(strconv.AppendInt(nil, int64(len(p)), 10))
		h.Write([]byte{':'})
		h.Write(p)
	}
	h.Sum(sum[:0])
	return sum
}
