package runner

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/paddock-run/paddock/overlay"
	"github.com/paddock-run/paddock/sandbox"
)

// Bounds of calls.
const (
	// maxInline bounds the stdin and file contents that the journal keeps as they are;
	// of longer ones it keeps length and hash.
	maxInline  = 64 << 10
	maxChanges = 256
	maxCalls   = 1 << 20
	// maxCallSeq is the largest number that JSON carries everywhere.
	maxCallSeq = 1<<53 - 1
	maxArgv    = 4096
	maxArgText = 2 << 20
)

// inflightCall is a call that is being made.
type inflightCall struct {
	clock *clock // the call's own time, frozen while the episode is paused
}

// journalLine is one line of trajectory.jsonl.
type journalLine struct {
	Seq  int64    `json:"seq"`
	Call CallSpec `json:"call"`
	// Stdin and Content stand for input that is too long to be kept, or was streamed.
	Stdin   *PayloadSummary `json:"stdin,omitempty"`
	Content *PayloadSummary `json:"content,omitempty"`
	Result  CallResult      `json:"result"`
}

// builtin are the tools that every world has.
var builtin = map[string]func(*attempt, context.Context, *callState) error{
	"exec": (*attempt).exec, "read_file": (*attempt).readFile, "write_file": (*attempt).writeFile,
	"list_dir": (*attempt).listDir, "stat": (*attempt).statFile, "remove": (*attempt).removeFile,
	"upload": (*attempt).upload, "download": (*attempt).download,
	"session_open": (*attempt).sessionOpen, "session": (*attempt).sessionInput, "session_close": (*attempt).sessionClose,
}

// reads are the tools that change nothing, after which nobody looks for changes.
var reads = map[string]bool{"read_file": true, "list_dir": true, "stat": true, "download": true, "session_close": true}

// callState is one call on its way.
type callState struct {
	spec CallSpec
	io   CallIO
	res  CallResult
	tool *overlay.Tool // of a world's or spec's tool
	// stdin is what the program or the file gets; it is hashed as it is read.
	stdin *hashedReader
	clock *clock
}

// Call makes one tool call. What the agent does wrong is in the result; an error means
// that the call was refused or that paddock could not make it. A number that was used
// before returns the kept answer.
func (r *Runner) Call(ctx context.Context, key Key, spec CallSpec, cio CallIO) (CallResult, error) {
	if err := r.fence(ctx, key, spec.Generation); err != nil {
		return CallResult{}, err
	}
	a, err := r.liveAttempt(ctx, key, spec.Attempt)
	if err != nil {
		return CallResult{}, err
	}
	c := &callState{spec: spec, io: cio}
	if err := a.checkCall(c); err != nil {
		return CallResult{}, err
	}
	select {
	case <-a.ready:
	case <-ctx.Done():
		return CallResult{}, context.Cause(ctx)
	}
	return a.call(ctx, c)
}

// Upload unpacks a tar under dir, as a call.
func (r *Runner) Upload(ctx context.Context, key Key, dir, user string, rd io.Reader) (CallResult, error) {
	return r.Call(ctx, key, CallSpec{Tool: "upload", Path: dir, User: user}, CallIO{Stdin: rd})
}

// Download writes path as a tar, as a call.
func (r *Runner) Download(ctx context.Context, key Key, path, user string, w io.Writer) (CallResult, error) {
	return r.Call(ctx, key, CallSpec{Tool: "download", Path: path, User: user}, CallIO{Stdout: w})
}

// call serves one call of a live attempt, once per number.
func (a *attempt) call(ctx context.Context, c *callState) (CallResult, error) {
	body, err := callBody(&c.spec)
	if err != nil {
		return CallResult{}, badField("args", "%v", err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	entry, first, err := a.enterCall(c, body, cancel)
	if err != nil {
		return CallResult{}, err
	}
	if !first {
		return a.keptAnswer(ctx, entry)
	}
	res, err := a.serve(ctx, c, entry)
	a.mu.Lock()
	if err != nil { // nothing was done under this number
		delete(a.calls, c.spec.Seq)
		entry.err = err
	}
	a.mu.Unlock()
	close(entry.done)
	return res, err
}

// CancelCall ends a numbered call that its client no longer waits for, and returns when it
// is over: its program is killed, and the record says so unless it had just been started.
// Where the call comes later than this, it is refused. One that has been answered stays as it is.
func (r *Runner) CancelCall(ctx context.Context, key Key, attempt int, seq, generation int64) error {
	if err := r.fence(ctx, key, generation); err != nil {
		return err
	}
	if seq <= 0 || seq > maxCallSeq {
		return badField("seq", "%d is not in 1 to %d", seq, int64(maxCallSeq))
	}
	a, err := r.liveAttempt(ctx, key, attempt)
	if err != nil {
		return err
	}
	e, err := a.callOff(seq)
	if err != nil || e == nil {
		return err
	}
	select {
	case <-e.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// callOff cancels the call of a number, which is returned, or refuses the one that comes.
func (a *attempt) callOff(seq int64) (*callEntry, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if e := a.calls[seq]; e != nil {
		e.cancel(callCancelled(seq))
		return e, nil
	}
	if len(a.calledOff) >= maxCalls {
		return nil, &Error{Kind: KindTooLarge, Detail: fmt.Sprintf("an attempt has at most %d calls", maxCalls)}
	}
	a.calledOff[seq] = struct{}{}
	return nil, nil
}

func callCancelled(seq int64) error {
	return &Error{Kind: KindCallCancelled, Field: "seq", Detail: fmt.Sprintf("call %d was cancelled", seq)}
}

// callBody identifies what was asked, for the check of a repeated number.
func callBody(s *CallSpec) ([sha256.Size]byte, error) {
	c := *s
	c.Seq, c.Attempt, c.Generation = 0, 0, 0
	b, err := json.Marshal(c)
	return sha256.Sum256(b), err
}

func (a *attempt) enterCall(c *callState, body [sha256.Size]byte, cancel context.CancelCauseFunc) (e *callEntry, first bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, off := a.calledOff[c.spec.Seq]; off {
		return nil, false, callCancelled(c.spec.Seq)
	}
	if e, ok := a.calls[c.spec.Seq]; ok && c.spec.Seq > 0 {
		if e.body != body {
			return nil, false, &Error{Kind: KindCallConflict, Field: "seq", Detail: fmt.Sprintf("call %d was another one", c.spec.Seq)}
		}
		return e, false, nil
	}
	if err := a.roomLocked(); err != nil {
		return nil, false, err
	}
	if len(a.calls) >= maxCalls {
		return nil, false, &Error{Kind: KindTooLarge, Detail: fmt.Sprintf("an attempt has at most %d calls", maxCalls)}
	}
	if c.spec.Seq == 0 {
		c.spec.Seq = a.nextSeq + 1
	}
	a.nextSeq = max(a.nextSeq, c.spec.Seq)
	e = &callEntry{body: body, cancel: cancel, done: make(chan struct{})}
	a.calls[c.spec.Seq] = e
	return e, true, nil
}

// roomLocked says why no call can be made any more; nil is that one can. The call that is
// over the limit ends the episode.
func (a *attempt) roomLocked() error {
	if a.endAsked != nil {
		return &Error{Kind: KindEpisodeEnded, Detail: fmt.Sprintf("attempt %d has ended", a.n), End: a.endAsked}
	}
	if l := a.plan.Limits.Calls; l > 0 && a.madeLocked() >= l {
		a.askLocked(End{Status: Limit, Cause: Agent, Limit: &LimitHit{Name: "calls", Value: float64(l), Measured: float64(l + 1)}})
		return &Error{Kind: KindEpisodeEnded, Detail: "the limit of calls has been reached", End: a.endAsked}
	}
	return nil
}

// madeLocked is how many calls and messages were made or are being made.
func (a *attempt) madeLocked() int64 { return int64(len(a.calls)) + a.messages }

// keptAnswer waits for the first request with this number and reads its answer back.
func (a *attempt) keptAnswer(ctx context.Context, e *callEntry) (CallResult, error) {
	select {
	case <-e.done:
	case <-ctx.Done():
		return CallResult{}, context.Cause(ctx)
	}
	if e.err != nil {
		return CallResult{}, e.err
	}
	raw, err := a.journal.Line(e.offset)
	if err != nil {
		return CallResult{}, fmt.Errorf("read kept answer: %w", err)
	}
	var line journalLine
	if err := json.Unmarshal(raw, &line); err != nil {
		return CallResult{}, &Error{Kind: KindRecordDamaged, Detail: err.Error()}
	}
	line.Result.Kept = true
	return line.Result, nil
}

// serve takes its turn, makes the call and records it before it is answered.
func (a *attempt) serve(ctx context.Context, c *callState, entry *callEntry) (CallResult, error) {
	if !c.spec.Parallel {
		select {
		case a.serial <- struct{}{}:
			defer func() { <-a.serial }()
		case <-a.stop:
			return CallResult{}, a.endedError()
		case <-ctx.Done():
			return CallResult{}, context.Cause(ctx)
		}
	}
	if err := a.beginCall(ctx, c); err != nil {
		return CallResult{}, err
	}
	defer a.endCall(c)
	err := a.perform(ctx, c)
	if err != nil {
		return CallResult{}, err
	}
	return c.res, a.record(ctx, c, entry)
}

// perform makes the call itself.
func (a *attempt) perform(ctx context.Context, c *callState) error {
	c.res = CallResult{Seq: c.spec.Seq, Attempt: a.n, Tool: c.spec.Tool, Started: time.Now().UTC()}
	in := c.io.Stdin
	switch {
	case c.tool != nil && len(c.spec.Args) > 0:
		in = strings.NewReader(string(c.spec.Args))
	case c.tool != nil:
		in = strings.NewReader("{}")
	case c.spec.Tool == "write_file" && in == nil:
		in = strings.NewReader(string(c.spec.Content))
	case len(c.spec.Stdin) > 0:
		in = strings.NewReader(string(c.spec.Stdin))
	}
	if in != nil {
		c.stdin = &hashedReader{r: in, sum: sha256.New()}
	}
	do := builtin[c.spec.Tool]
	if c.tool != nil {
		do = (*attempt).worldTool
	}
	err := do(a, ctx, c)
	c.res.Took = c.clock.elapsed()
	if err == nil {
		return nil
	}
	if fate, dead := a.fate(); dead { // the sandbox died under the call
		end := fateEnd(fate)
		a.ask(end)
		return a.endedError()
	}
	if stopped(a.stop) {
		return a.endedError()
	}
	a.log.Error("call", slog.String("tool", c.spec.Tool), slog.Int64("seq", c.spec.Seq), slog.Any("error", err))
	return fmt.Errorf("%s: %w", c.spec.Tool, err)
}

// beginCall counts the call as in flight and starts its clocks.
func (a *attempt) beginCall(ctx context.Context, c *callState) error {
	limit := c.spec.TimeoutS
	if c.tool != nil && limit == 0 {
		limit = c.tool.TimeoutS
	}
	if limit == 0 {
		limit = a.plan.Budgets.CallS
	}
	c.clock = newClock(seconds(limit))
	in := &inflightCall{clock: c.clock}
	a.mu.Lock()
	if a.endAsked != nil {
		a.mu.Unlock()
		return a.endedError()
	}
	n := a.madeLocked()
	if len(a.inflight) == 0 {
		a.idle = make(chan struct{})
	}
	a.inflight[in] = struct{}{}
	a.lease.renew()
	if a.rec.State == Live {
		a.agent.start()
		c.clock.start()
	}
	a.mu.Unlock()
	if a.breakAt >= 0 && n > a.breakAt {
		a.breakNow(ctx)
	}
	return nil
}

// endCall is beginCall's end.
func (a *attempt) endCall(c *callState) {
	c.clock.stop()
	a.mu.Lock()
	defer a.mu.Unlock()
	for in := range a.inflight {
		if in.clock == c.clock {
			delete(a.inflight, in)
		}
	}
	a.lease.renew()
	if len(a.inflight) == 0 {
		a.agent.stop()
		close(a.idle)
	}
}

// record writes the call into the journal, looks what it changed, and counts it. A
// journal that cannot be written ends the episode: nothing unrecorded is answered.
func (a *attempt) record(ctx context.Context, c *callState, entry *callEntry) error {
	ctx = context.WithoutCancel(ctx)
	a.writing <- struct{}{}
	defer func() { <-a.writing }()
	if !reads[c.spec.Tool] {
		a.findChanges(ctx, c)
	}
	a.noteNetwork(c)
	a.checkLimits(ctx, c)
	line := journalLine{Seq: c.spec.Seq, Call: c.spec, Result: c.res}
	stdinSHA := ""
	if c.stdin != nil {
		sum := c.stdin.summary()
		stdinSHA = sum.SHA256
		if len(c.spec.Content) == 0 && (c.io.Stdin != nil || len(c.spec.Stdin) > maxInline) {
			line.Stdin, line.Call.Stdin = &sum, nil
		}
	}
	if n := len(c.spec.Content); n > maxInline {
		line.Content, line.Call.Content = &PayloadSummary{Bytes: int64(n), SHA256: hexSum(c.spec.Content)}, nil
	}
	raw, err := json.Marshal(line)
	if err != nil {
		return fmt.Errorf("encode call: %w", err)
	}
	offset, err := a.journal.Append(raw)
	if err != nil {
		a.ask(storageEnd("host_disk", err))
		return a.endedError()
	}
	action, errA := actionSum(&c.spec, stdinSHA)
	seen, errO := observationSum(&c.res)
	if err := errors.Join(errA, errO); err != nil {
		return fmt.Errorf("digest call: %w", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	entry.offset = offset
	a.ledger.actions[c.spec.Seq], a.ledger.observations[c.spec.Seq] = action, seen
	a.rec.Calls++
	a.rec.Usage.CPU += c.res.Usage.CPU
	a.rec.Usage.MemoryPeakBytes = max(a.rec.Usage.MemoryPeakBytes, c.res.Usage.MemoryPeakBytes)
	a.rec.Usage.Wall += c.res.Took
	a.rec.Usage.RunDelay += c.res.Usage.RunDelay
	return nil
}

func (a *attempt) findChanges(ctx context.Context, c *callState) {
	changes, more, err := a.tracker.Changes(ctx, maxChanges)
	if err != nil {
		a.log.Warn("changes of a call", slog.Any("error", err))
		c.res.MoreChanges = true
		a.forgetUsers()
		return
	}
	c.res.MoreChanges = more
	if more {
		a.forgetUsers()
	}
	for _, ch := range changes {
		c.res.Changes = append(c.res.Changes, FileChange{Path: Raw(ch.Path), Kind: ch.Kind, Type: ch.Type, Size: ch.Size})
		if strings.HasPrefix(ch.Path, "/etc") {
			a.forgetUsers()
		}
	}
}

// checkLimits ends the episode where a limit that ends it was passed.
func (a *attempt) checkLimits(ctx context.Context, c *callState) {
	l := &a.plan.Limits
	if l.CPUSeconds > 0 {
		if u, err := a.sb.Usage(ctx); err == nil && u.CPU > seconds(l.CPUSeconds) {
			a.ask(End{Status: Limit, Cause: Agent, Limit: &LimitHit{Name: "cpu_s", Value: l.CPUSeconds, Measured: u.CPU.Seconds()}})
		}
	}
	if fate, dead := a.fate(); dead {
		a.ask(fateEnd(fate))
	}
	// The clocks are the attempt's goroutine's to watch; a call that used one up is told here.
	if stopped(a.agent.fired) {
		a.ask(timeoutEnd("agent_s", a.plan.Budgets.AgentS, a.agent.elapsed()))
	}
	a.mu.Lock()
	c.res.End = a.endAsked
	a.mu.Unlock()
}

// countOutput ends the episode when its total output passes the limit.
func (a *attempt) countOutput(n int) {
	total := a.outputTotal.Add(int64(n))
	if l := a.plan.Limits.OutputBytes; l > 0 && total > l {
		a.ask(End{Status: Limit, Cause: Agent, Limit: &LimitHit{Name: "output_total", Value: float64(l), Measured: float64(total)}})
	}
}

// hashedReader hashes what is read through it.
type hashedReader struct {
	r   io.Reader
	n   int64
	sum hash.Hash
}

func (h *hashedReader) Read(p []byte) (int, error) {
	n, err := h.r.Read(p)
	h.sum.Write(p[:n])
	h.n += int64(n)
	return n, err
}

func (h *hashedReader) summary() PayloadSummary {
	return PayloadSummary{Bytes: h.n, SHA256: hex.EncodeToString(h.sum.Sum(nil))}
}

// resolved is a user with its home, as the world's files had it.
type resolved struct {
	user        sandbox.User
	home, shell string
}
