package runner

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/paddock-run/paddock/policies"
	"github.com/paddock-run/paddock/sandbox"
)

// ProgramSpec is a program of the world that an episode is prepared with: it is started
// before the episode is live, says one message when it is ready, and from then on answers
// each message (Runner.Message) with one of its own.
//
// It can be started ahead of the episodes that will have it (Runner.KeepReady), so nothing
// it sees before its first message depends on an episode: the variables that carry the
// seed are 0 in its environment, and a seed comes in a message.
type ProgramSpec struct {
	Argv []string          `json:"argv"`
	Env  map[string]string `json:"env,omitempty"`
	User string            `json:"user,omitempty"`
	Cwd  string            `json:"cwd,omitempty"`
	// MaxMessage bounds one message of the program, in bytes; DefaultFrame unless set, at
	// most MaxFrame.
	MaxMessage int64 `json:"max_message,omitempty"`
}

func checkProgram(p *ProgramSpec) error {
	if p == nil {
		return nil
	}
	if len(p.Argv) == 0 || p.Argv[0] == "" {
		return badField("prepare/argv", "is missing")
	}
	if err := checkArgv(&CallSpec{Argv: p.Argv}); err != nil {
		return inField("prepare", err)
	}
	if p.Cwd != "" && !strings.HasPrefix(p.Cwd, "/") {
		return badField("prepare/cwd", "%q is not absolute", p.Cwd)
	}
	if strings.ContainsRune(p.Cwd+p.User, 0) {
		return badField("prepare", "holds a NUL")
	}
	if p.MaxMessage < 0 || p.MaxMessage > MaxFrame {
		return badField("prepare/max_message", "%d is not in 0 to %d", p.MaxMessage, int64(MaxFrame))
	}
	return checkEnv("prepare/env", p.Env)
}

// inField puts a wrong field below the one that holds it.
func inField(outer string, err error) error {
	if e, ok := err.(*Error); ok { //nolint:errorlint // made here, unwrapped
		e.Field = outer + "/" + e.Field
	}
	return err
}

// program is a started ProgramSpec.
type program struct {
	proc   sandbox.Process
	feed   *feed
	frames *frameReader
	words  *collector    // its standard error
	hello  Frame         // what it said when it was ready
	ended  chan struct{} // closed after exit is set
	exit   sandbox.Exit
	// unasked: it said something out of turn. Whoever has the attempt's turn sets it.
	unasked bool
	// owner is whose output it is: set when an episode has it.
	owner atomic.Pointer[attempt]
}

func (p *program) count(n int) {
	if a := p.owner.Load(); a != nil {
		a.countOutput(n)
	}
}

// feed is the program's standard input: whole messages, of which one may wait.
type feed struct {
	in    chan []byte
	rest  []byte
	over  chan struct{}
	close func()
}

func newFeed() *feed {
	f := &feed{in: make(chan []byte, 1), over: make(chan struct{})}
	f.close = sync.OnceFunc(func() { close(f.over) })
	return f
}

// Read gives the next message, or what is left of the last one.
func (f *feed) Read(p []byte) (int, error) {
	if len(f.rest) == 0 {
		select {
		case f.rest = <-f.in:
		case <-f.over:
			return 0, io.EOF
		}
	}
	n := copy(p, f.rest)
	f.rest = f.rest[n:]
	return n, nil
}

// programWords bounds what is kept of a program's standard error, for evidence.
const programWords = 8 << 10

// startProgram starts the spec's program and waits until it is ready. One that does not
// get there is the world's fault.
func (a *attempt) startProgram(ctx context.Context) *End {
	spec := a.plan.Spec.Prepare
	if spec == nil {
		return nil
	}
	cmd, cerr := a.programCommand(ctx, spec)
	if cerr != nil {
		return &End{Status: Errored, Cause: WorldBad, Step: "setup", Evidence: []string{"program: " + cerr.Kind + " " + cerr.Detail}}
	}
	most := spec.MaxMessage
	if most == 0 {
		most = DefaultFrame
	}
	p := &program{feed: newFeed(), frames: newFrameReader(most), ended: make(chan struct{})}
	p.owner.Store(a)
	p.words = programOutput(programWords, nil, p.count)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = p.feed, p.frames, p.words
	proc, err := a.sb.Start(ctx, cmd)
	if err != nil {
		return &End{Status: Errored, Cause: Platform, Step: "start", Evidence: []string{fmt.Sprintf("program: %v", err)}}
	}
	p.proc = proc
	go func() { // ends with the sandbox at the latest
		p.exit = proc.Wait()
		p.feed.close()
		close(p.ended)
	}()
	a.program = p
	select {
	case p.hello = <-p.frames.out:
		return nil
	case <-p.frames.bad:
	case <-p.ended:
		if !p.exit.HostOOM {
			break
		}
		end := hostMemoryEnd([]string{"the OOM killer struck the program, which had never met its own limit"})
		return &end
	case <-ctx.Done():
	case <-a.stop:
	}
	return a.programUnready(ctx, p)
}

// programUnready is the end of an attempt whose program did not get ready.
func (a *attempt) programUnready(ctx context.Context, p *program) *End {
	if fate, dead := a.fate(); dead {
		if end := fateEnd(fate); end.Cause == Platform {
			return &end
		}
	}
	why := "it was not ready in time"
	switch {
	case stopped(p.frames.bad):
		why = p.frames.why.Kind + ": " + p.frames.why.Detail
	case stopped(p.ended):
		why = exitText(p.exit)
	case ctx.Err() != nil:
		why += ": " + context.Cause(ctx).Error()
	}
	p.proc.Kill()
	return &End{Status: Errored, Cause: WorldBad, Step: "setup", Evidence: []string{"program: " + why, p.said()}}
}

// said is the end of what the program wrote to its standard error.
func (p *program) said() string {
	out := p.words.output()
	if len(out.Tail) > 0 {
		return string(out.Tail)
	}
	return string(out.Head)
}

func (a *attempt) programCommand(ctx context.Context, spec *ProgramSpec) (sandbox.Command, *CallError) {
	who, cerr := a.resolveUser(ctx, spec.User)
	if cerr != nil {
		return sandbox.Command{}, cerr
	}
	dir := spec.Cwd
	if dir == "" {
		dir = a.workdir
	}
	return sandbox.Command{
		Argv: spec.Argv, Dir: dir, User: who.user, Umask: a.policy.Umask(), Leftovers: sandbox.KeepLeftovers,
		Env: mergeEnv(a.userEnv(who), seedless(&a.plan, a.policy, a.world.Config.Env), envList(spec.Env)),
	}, nil
}

// seedless is the pinned environment as it is before there is an episode with a seed.
func seedless(p *Plan, pol *policies.Policy, world []string) []string {
	return mergeEnv(pol.Env(0), world, envList(p.Spec.Env))
}
