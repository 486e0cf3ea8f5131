package runner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// act lets a manifest's agent play a live attempt and returns once that has ended.
func (r *Runner) act(ctx context.Context, key Key, agent AgentSpec) error {
	a := r.liveOf(key)
	if a == nil {
		return nil // it has ended already
	}
	select {
	case <-a.ready:
	case <-ctx.Done():
	}
	var err error
	switch {
	case stopped(a.stop) || ctx.Err() != nil:
	case len(agent.Calls) > 0:
		err = r.makeCalls(ctx, a, agent.Calls)
	case agent.Command != nil:
		err = r.runCommand(ctx, a, *agent.Command)
	default:
		err = r.runHost(ctx, a, agent.Host)
	}
	if err != nil && KindOf(err) != KindEpisodeEnded && KindOf(err) != KindSuperseded && ctx.Err() == nil {
		a.ask(End{Status: Errored, Cause: Client, Step: "rollout", Evidence: []string{cut(err.Error())}})
	}
	if ctx.Err() != nil {
		end := End{Status: Cancelled, Cause: Operator, Step: "drain", Evidence: []string{"the daemon was closed"}}
		if errors.Is(context.Cause(ctx), errBatchCancelled) {
			end = End{Status: Cancelled, Cause: Client, Reason: errBatchCancelled.Error()}
		}
		a.ask(end)
	}
	<-a.over // bounded: once asked, an attempt ends whatever happens
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

func (r *Runner) makeCalls(ctx context.Context, a *attempt, calls []CallSpec) error {
	for _, c := range calls {
		c.Attempt = a.n
		if _, err := r.Call(ctx, a.key, c, CallIO{}); err != nil {
			return err
		}
	}
	_, err := r.Finish(ctx, a.key, FinishSpec{Attempt: a.n})
	return err
}

// runCommand runs an agent that is one command in the sandbox. Its exit is the end.
func (r *Runner) runCommand(ctx context.Context, a *attempt, c CallSpec) error {
	c.Tool, c.Attempt = "exec", a.n
	if c.TimeoutS == 0 {
		c.TimeoutS = a.plan.Budgets.AgentS
	}
	res, err := r.Call(ctx, a.key, c, CallIO{})
	if err != nil {
		return err
	}
	end := End{Status: OK, Cause: Agent}
	if res.Code == nil || *res.Code != 0 {
		end.Status = Failed
		if res.TimedOut {
			end.Status = Timeout
		}
		end.Evidence = []string{fmt.Sprintf("the agent's command: exit code %v, signal %d", deref(res.Code), res.Signal)}
	}
	_, err = r.endAttempt(ctx, a.key, FinishSpec{Attempt: a.n}, end)
	return err
}

func deref(code *int) any {
	if code == nil {
		return "none"
	}
	return *code
}

// runHost runs an agent that is a process of the host: as a user that nobody else is,
// with an empty environment but for what it must know, and with the episode's socket.
func (r *Runner) runHost(ctx context.Context, a *attempt, argv []string) error {
	if r.cfg.Sockets == nil {
		return errors.New("this daemon makes no sockets for agents")
	}
	ids, err := r.cfg.IDs.Acquire()
	if err != nil {
		return fmt.Errorf("a user for the agent: %w", err)
	}
	defer r.cfg.IDs.Release(ids)
	// The top of a range of its own: no sandbox has a user there, and no other agent.
	uid := ids.HostID + ids.Size - 1
	path, closeSocket, err := r.cfg.Sockets.Open(ctx, a.key, uid)
	if err != nil {
		return err
	}
	defer func() {
		if err := closeSocket(); err != nil {
			a.log.Warn("agent's socket", slog.Any("error", err))
		}
	}()
	tail := &tailWriter{max: 8 << 10}
	cmd := exec.Command(argv[0], argv[1:]...) //nolint:noctx // killed with its whole session below
	cmd.Dir, cmd.Stdout, cmd.Stderr = "/", tail, tail
	cmd.WaitDelay = time.Second
	cmd.Env = []string{
		"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/", "LANG=C.UTF-8", "PADDOCK_SOCKET=" + path,
		"PADDOCK_RUN=" + a.key.Run, "PADDOCK_EPISODE=" + a.key.ID,
		"PADDOCK_SEED=" + strconv.FormatUint(uint64(a.plan.EnvSeed), 10),
		"PADDOCK_SAMPLE_SEED=" + strconv.FormatUint(uint64(a.plan.SampleSeed), 10),
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential: &syscall.Credential{Uid: uid, Gid: uid, NoSetGroups: false},
		// In a PID namespace of its own, so that what it starts dies with it.
		Cloneflags: unix.CLONE_NEWPID, Setsid: true, Pdeathsig: unix.SIGKILL,
	}
	err = waitHost(ctx, a, cmd)
	if stopped(a.stop) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("agent %s: %w: %s", argv[0], err, tail.text())
	}
	_, err = r.Finish(ctx, a.key, FinishSpec{Attempt: a.n})
	return err
}

// waitHost runs the process until it ends, the attempt does, or the agent's budget passes.
func waitHost(ctx context.Context, a *attempt, cmd *exec.Cmd) error {
	started, done := make(chan error, 1), make(chan error, 1)
	go func() {
		// A parent's death is the death of the thread that forked: it must outlive the agent.
		// It is never unlocked: with no_new_privs set it may serve nobody else, and ends here.
		runtime.LockOSThread()
		err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
		if err == nil {
			err = cmd.Start()
		}
		started <- err
		if err == nil {
			done <- cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return err
	}
	kill := func() { _ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	budget := time.NewTimer(seconds(a.plan.Budgets.AgentS))
	defer budget.Stop()
	var err error
	select {
	case err = <-done:
	case <-a.over: // it sees its end as an answer first
		err = settle(done, kill)
	case <-budget.C:
		a.ask(timeoutEnd("agent_s", a.plan.Budgets.AgentS, seconds(a.plan.Budgets.AgentS)))
		kill()
		err = <-done
	case <-ctx.Done():
		kill()
		err = <-done
	}
	kill() // what it left behind in its session
	return err
}

// settle gives a process whose episode has ended a moment to end by itself.
func settle(done <-chan error, kill func()) error {
	const moment = 2 * time.Second
	timer := time.NewTimer(moment)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		kill()
		return <-done
	}
}

// tailWriter keeps the end of what is written.
type tailWriter struct {
	buf []byte
	max int
}

func (t *tailWriter) Write(p []byte) (int, error) {
	t.buf = append(t.buf, p...)
	if over := len(t.buf) - t.max; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
	return len(p), nil
}

func (t *tailWriter) text() string {
	return strings.ToValidUTF8(strings.TrimSpace(string(t.buf)), "\uFFFD")
}
