package runner

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"

	"github.com/paddock-run/paddock/sandbox"
)

// maxSessions bounds the open sessions of one attempt.
const maxSessions = 32

// session is a shell that keeps its directory and variables between calls. The shell
// reads its script from descriptor 0; every input is one line of it:
//
//	command eval '<text, quoted>' </dev/null 3>&- 4>&- 5>&-; ...report
//
// Quoted in one word, the text cannot swallow the report, whatever heredoc, comment or
// continuation it ends in. The report sends the exit code to descriptor 3 and, after it, a
// mark drawn for this input alone to descriptors 4 and 5, which are the first stdout and
// stderr: a pipe keeps its order, so what came before the mark is the input's output,
// byte for byte. Nothing the text starts holds any of these descriptors.
type session struct {
	name  string
	proc  sandbox.Process
	stdin *io.PipeWriter
	out   *markedWriter
	err   *markedWriter
	codes chan int      // from descriptor 3
	ended chan struct{} // closed after exit is set
	exit  sandbox.Exit
	// turn is held by the input being run; last is the code of the one before.
	turn  chan struct{}
	last  int
	begun bool
}

const sessionPreamble = "exec 4>&1 5>&2\n"

// sessionLine is the script line for one input. mark is hexadecimal.
func sessionLine(text, mark string, last int) string {
	if last != 0 {
		// So that $? is what the input before left. The report has changed it.
		text = "(exit " + strconv.Itoa(last) + ")\n" + text
	}
	quoted := "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
	// The mark is in two halves: a trace (set -x) of this line does not hold it whole.
	half := len(mark) / 2
	show := fmt.Sprintf("printf '\\001%%s%%s\\001' %s %s", mark[:half], mark[half:])
	return "command eval " + quoted + " </dev/null 3>&- 4>&- 5>&-; printf '%s\\n' \"$?\" >&3; " +
		show + " >&4; " + show + " >&5\n"
}

// markedWriter passes a stream on to the input being run, up to that input's mark.
type markedWriter struct {
	mu   sync.Mutex
	mark []byte
	to   io.Writer
	seen chan struct{}
	held []byte // what may be the beginning of the mark
}

// expect begins an input: what comes now, up to mark, goes to w.
func (m *markedWriter) expect(mark string, w io.Writer) <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mark, m.to, m.seen = []byte("\x01"+mark+"\x01"), w, make(chan struct{})
	pending := m.held
	m.held = nil
	m.passLocked(pending)
	return m.seen
}

func (m *markedWriter) Write(p []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.passLocked(append(m.held, p...))
	return len(p), nil
}

// maxBetween bounds what is kept of output that comes while no input runs.
const maxBetween = 1 << 20

func (m *markedWriter) passLocked(data []byte) {
	m.held = nil
	if m.to == nil { // between inputs: it is shown with the next one
		m.held = data[:min(len(data), maxBetween)]
		return
	}
	if i := bytes.Index(data, m.mark); i >= 0 {
		m.emit(data[:i])
		m.held = append([]byte(nil), data[i+len(m.mark):]...)
		m.to = nil
		close(m.seen)
		return
	}
	keep := len(data) - partial(data, m.mark)
	m.emit(data[:keep])
	m.held = append([]byte(nil), data[keep:]...)
}

func (m *markedWriter) emit(p []byte) {
	if len(p) > 0 {
		_, _ = m.to.Write(p) // a collector, which never fails
	}
}

// flush gives the input what was held back; the stream has ended.
func (m *markedWriter) flush() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.to != nil {
		m.emit(m.held)
		m.held, m.to = nil, nil
	}
}

// partial is the length of the longest end of data that begins mark.
func partial(data, mark []byte) int {
	for n := min(len(data), len(mark)-1); n > 0; n-- {
		if bytes.HasPrefix(mark, data[len(data)-n:]) {
			return n
		}
	}
	return 0
}

// codeReader takes the lines of descriptor 3.
type codeReader struct {
	line  []byte
	codes chan int
}

func (r *codeReader) Write(p []byte) (int, error) {
	for _, b := range p {
		if b != '\n' {
			if len(r.line) < 16 {
				r.line = append(r.line, b)
			}
			continue
		}
		code, err := strconv.Atoi(string(r.line))
		r.line = r.line[:0]
		if err != nil {
			code = -1
		}
		select {
		case r.codes <- code:
		default: // nobody asked: only the shell itself can have been tampered with
		}
	}
	return len(p), nil
}

// startSession starts a shell with start, which gives the command its streams.
func startSession(name string, cmd sandbox.Command, start func(sandbox.Command) (sandbox.Process, error)) (*session, error) {
	rd, wr := io.Pipe()
	s := &session{
		name: name, stdin: wr, out: &markedWriter{}, err: &markedWriter{},
		codes: make(chan int, 1), ended: make(chan struct{}), turn: make(chan struct{}, 1),
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.FD3 = rd, s.out, s.err, &codeReader{codes: s.codes}
	p, err := start(cmd)
	if err != nil {
		return nil, err
	}
	s.proc = p
	go func() {
		s.exit = p.Wait()
		_ = rd.CloseWithError(io.ErrClosedPipe)
		close(s.ended)
	}()
	return s, nil
}

// input runs one text. ended says that the shell is gone; stop makes it so.
func (s *session) input(text string, out, errOut io.Writer, stop <-chan struct{}) (code int, ended bool) {
	var raw [16]byte
	_, _ = rand.Read(raw[:]) // never fails
	mark := hex.EncodeToString(raw[:])
	select { // of an input that was given up
	case <-s.codes:
	default:
	}
	outDone, errDone := s.out.expect(mark, out), s.err.expect(mark, errOut)
	line := sessionLine(text, mark, s.last)
	if !s.begun {
		s.begun = true
		line = sessionPreamble + line
	}
	go func() { // ends with the shell at the latest: its end closes the pipe
		_, _ = io.WriteString(s.stdin, line)
	}()
	for _, wait := range []<-chan struct{}{nil, outDone, errDone} {
		if wait == nil {
			select {
			case code = <-s.codes:
			case <-s.ended:
				s.flush()
				return 0, true
			case <-stop:
				s.kill()
				return 0, true
			}
			continue
		}
		select {
		case <-wait:
		case <-s.ended:
			s.flush()
			return 0, true
		case <-stop:
			s.kill()
			return 0, true
		}
	}
	s.last = code
	return code, false
}

func (s *session) flush() {
	s.out.flush()
	s.err.flush()
}

// kill ends the shell and what it started, and returns when they are gone.
func (s *session) kill() {
	s.proc.Kill()
	_ = s.stdin.Close()
	<-s.ended
	s.flush()
}

func (a *attempt) sessionOpen(ctx context.Context, c *callState) error {
	name := c.spec.Session
	a.mu.Lock()
	if name == "" {
		name = "s" + strconv.FormatInt(c.spec.Seq, 10)
	}
	_, known := a.sessions[name]
	full := len(a.sessions) >= maxSessions
	a.mu.Unlock()
	c.res.Session = name
	switch {
	case known:
		c.res.Error = &CallError{Kind: "session_exists", Detail: name}
		return nil
	case full:
		c.res.Error = &CallError{Kind: "too_many_sessions", Detail: fmt.Sprintf("at most %d are open at once", maxSessions)}
		return nil
	}
	shell := ""
	for _, path := range []string{"/bin/bash", shellPath} {
		if _, err := a.sb.Files().Stat(ctx, sandbox.User{}, path); err == nil {
			shell = path
			break
		}
	}
	if shell == "" {
		c.res.Error = &CallError{Kind: "no_shell", Path: shellPath, Detail: "the world has neither /bin/bash nor /bin/sh"}
		return nil
	}
	cmd, cerr := a.command(ctx, c, []string{shell})
	if cerr != nil {
		c.res.Error = cerr
		return nil
	}
	s, err := startSession(name, cmd, func(cmd sandbox.Command) (sandbox.Process, error) {
		return a.sb.Start(context.WithoutCancel(ctx), cmd)
	})
	if err != nil {
		return fmt.Errorf("start: %w", err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil) // ends callOver's goroutine with the call
	// One empty input tells whether the shell runs at all.
	_, ended := s.input(":", io.Discard, io.Discard, a.callOver(ctx, c))
	if ended {
		a.fill(c, s.exit, "")
		if c.res.Error == nil {
			c.res.Error = &CallError{Kind: "session_ended", Path: Raw(shell), Detail: exitText(s.exit)}
		}
		return nil
	}
	a.mu.Lock()
	a.sessions[name] = s
	a.mu.Unlock()
	zero := 0
	c.res.Code = &zero
	return nil
}

// callOver is closed when the call's time, the client or the episode ends, or the call is
// answered.
func (a *attempt) callOver(ctx context.Context, c *callState) <-chan struct{} {
	over := make(chan struct{})
	go func() {
		defer close(over)
		select {
		case <-c.clock.fired:
		case <-a.agent.fired:
		case <-a.stop:
		case <-ctx.Done():
		case <-a.over:
		}
	}()
	return over
}

func (a *attempt) sessionInput(ctx context.Context, c *callState) error {
	c.res.Session = c.spec.Session
	a.mu.Lock()
	s := a.sessions[c.spec.Session]
	a.mu.Unlock()
	if s == nil {
		c.res.Error = &CallError{Kind: "session_unknown", Detail: c.spec.Session}
		return nil
	}
	if stopped(s.ended) {
		c.res.Error = &CallError{Kind: "session_ended", Detail: exitText(s.exit)}
		return nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil) // ends callOver's goroutine with the call
	over := a.callOver(ctx, c)
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-over:
		c.res.TimedOut = true
		return nil
	}
	out := programOutput(outputCap(c.spec.MaxStdout), c.io.Stdout, a.countOutput)
	errOut := programOutput(outputCap(c.spec.MaxStderr), c.io.Stderr, a.countOutput)
	code, ended := s.input(c.spec.Shell, out, errOut, over)
	c.res.Stdout, c.res.Stderr = out.output(), errOut.output()
	if !ended {
		c.res.Code = &code
		return nil
	}
	expired := ""
	switch {
	case stopped(c.clock.fired):
		expired = "call_s"
	case stopped(a.agent.fired):
		expired = "agent_s"
	}
	a.fill(c, s.exit, expired)
	c.res.Error = &CallError{Kind: "session_ended", Detail: exitText(s.exit)}
	return nil
}

func (a *attempt) sessionClose(_ context.Context, c *callState) error {
	c.res.Session = c.spec.Session
	a.mu.Lock()
	s := a.sessions[c.spec.Session]
	delete(a.sessions, c.spec.Session)
	a.mu.Unlock()
	if s == nil {
		c.res.Error = &CallError{Kind: "session_unknown", Detail: c.spec.Session}
		return nil
	}
	s.kill()
	zero := 0
	c.res.Code = &zero
	return nil
}

// closeSessions ends the shells and the program with the attempt.
func (a *attempt) closeSessions() {
	if a.program != nil {
		a.program.proc.Kill()
		a.program.feed.close()
	}
	a.mu.Lock()
	all := a.sessions
	a.sessions = map[string]*session{}
	a.mu.Unlock()
	for _, s := range all {
		s.proc.Kill()
		_ = s.stdin.Close()
	}
}
