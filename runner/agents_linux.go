package runner

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// maxInputEnv bounds the input that is also in the environment: one variable of a
	// process has at most 128 KiB.
	maxInputEnv = 64 << 10
	// hostOutput is how much of the end of a host agent's output is kept.
	hostOutput = 8 << 10
	// hostPatience is how long a host agent may go on after its episode has ended, so that
	// it can read the answer to its finish.
	hostPatience = 2 * time.Second
	// hostBound bounds a host agent beyond the episode's own clocks: its thinking is not
	// the agent's time, but it does not hang for ever.
	hostBound = 24 * time.Hour
)

// runHost runs an agent that is a process of the host: as a user that nobody else is, as
// the first process of a pid namespace of its own (so that nothing it starts outlives it),
// without new privileges, with a clean environment and the episode's socket. When it
// ends well without a finish, the episode is finished.
func (r *Runner) runHost(ctx context.Context, a *attempt, argv []string) (err error) {
	if r.cfg.Sockets == nil {
		return errors.New("this daemon makes no sockets for agents")
	}
	ids, err := r.cfg.IDs.Acquire()
	if err != nil {
		return fmt.Errorf("a user for the agent: %w", err)
	}
	defer r.cfg.IDs.Release(ids)
	path, closeSocket, err := r.cfg.Sockets.Open(ctx, a.key, ids.HostID)
	if err != nil {
		return err
	}
	defer func() {
		if cerr := closeSocket(); cerr != nil {
			a.log.Warn("agent's socket", slog.Any("error", cerr))
		}
	}()
	tail := &tailWriter{max: hostOutput}
	cmd := exec.Command(argv[0], argv[1:]...) //nolint:noctx // killed with its whole pid namespace below
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = "/", tail, tail, time.Second
	cmd.Stdin = bytes.NewReader(a.plan.Spec.Input)
	cmd.Env = hostEnv(a, path)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential: &syscall.Credential{Uid: ids.HostID, Gid: ids.HostID},
		Setsid:     true, Pdeathsig: unix.SIGKILL, Cloneflags: unix.CLONE_NEWPID,
	}
	err = waitHost(ctx, a, cmd)
	if stopped(a.stop) {
		return nil // it finished, or its episode ended under it
	}
	if err != nil {
		return fmt.Errorf("agent %s: %w: %s", argv[0], err, tail.text())
	}
	_, err = r.Finish(ctx, a.key, FinishSpec{Attempt: a.n})
	return err
}

// hostEnv is all that a host agent is told.
func hostEnv(a *attempt, socket string) []string {
	env := []string{
		"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/", "LANG=C.UTF-8", "TZ=UTC",
		"PADDOCK_SOCKET=" + socket, "PADDOCK_RUN=" + a.key.Run, "PADDOCK_EPISODE=" + a.key.ID,
		"PADDOCK_ATTEMPT=" + strconv.Itoa(a.n),
		"PADDOCK_SEED=" + strconv.FormatUint(uint64(a.plan.EnvSeed), 10),
		"PADDOCK_SAMPLE_SEED=" + strconv.FormatUint(uint64(a.plan.SampleSeed), 10),
		"PADDOCK_TASK=" + a.plan.Spec.Task,
	}
	if in := a.plan.Spec.Input; len(in) <= maxInputEnv {
		env = append(env, "PADDOCK_INPUT="+string(in))
	}
	return env
}

// waitHost runs the process until it ends, its episode has, or ctx is done.
func waitHost(ctx context.Context, a *attempt, cmd *exec.Cmd) error {
	started, done := make(chan error, 1), make(chan error, 1)
	go func() {
		// no_new_privs is the thread's and cannot be taken back, so the thread is never
		// unlocked and dies with this goroutine. That must be after the agent: the death of
		// the thread that forked it is its parent's death.
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
	bound := time.NewTimer(hostBound)
	defer bound.Stop()
	select {
	case err := <-done:
		return err
	case <-a.over:
		return settle(done, cmd)
	case <-bound.C:
		_ = cmd.Process.Kill()
		return errors.Join(fmt.Errorf("it did not end within %v", hostBound), <-done)
	case <-ctx.Done():
		_ = cmd.Process.Kill()
		return errors.Join(context.Cause(ctx), <-done)
	}
}

// settle gives a process whose episode has ended a moment to end by itself.
func settle(done <-chan error, cmd *exec.Cmd) error {
	timer := time.NewTimer(hostPatience)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		_ = cmd.Process.Kill()
		return <-done
	}
}

// tailWriter keeps the end of what is written.
type tailWriter struct {
	max int

	mu  sync.Mutex
	buf []byte
}

func (t *tailWriter) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(p) >= t.max {
		t.buf = append(t.buf[:0], p[len(p)-t.max:]...)
		return len(p), nil
	}
	t.buf = append(t.buf, p...)
	if over := len(t.buf) - t.max; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
	return len(p), nil
}

func (t *tailWriter) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.ToValidUTF8(strings.TrimSpace(string(t.buf)), "\uFFFD")
}
