package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paddock-run/paddock/api"
)

// ownDaemon is a daemon that a command (demo, bench) started for itself, or found running
// in its directory after an earlier such command was killed.
type ownDaemon struct {
	dir    string
	client *api.Client
	pid    int
	// ended is closed when a daemon that was started here is gone.
	ended chan struct{}
	err   error
}

func (d *ownDaemon) store() string  { return filepath.Join(d.dir, "store") }
func (d *ownDaemon) socket() string { return filepath.Join(d.dir, "paddock.sock") }
func (d *ownDaemon) log() string    { return filepath.Join(d.dir, "daemon.log") }

// program is a copy of this program that any user may run: agents are run by users who
// may not enter the directory that this one lies in.
func (d *ownDaemon) program() string { return filepath.Join(d.dir, "paddock") }

// startOwnDaemon starts a daemon with its store, socket and log in dir, or attaches to the
// one that runs there.
func startOwnDaemon(ctx context.Context, dir string, flags ...string) (*ownDaemon, error) {
	return startOwnDaemonBy(ctx, nil, dir, flags...)
}

// startOwnDaemonBy is startOwnDaemon, where a command that ends in an exec of its arguments
// starts the daemon.
func startOwnDaemonBy(ctx context.Context, by []string, dir string, flags ...string) (*ownDaemon, error) {
	d := &ownDaemon{dir: dir}
	d.client = api.NewClient(d.socket())
	if v, err := d.client.Version(ctx); err == nil {
		d.pid = v.PID
		return d, nil
	}
	if err := copyProgram(d.program()); err != nil {
		return nil, fmt.Errorf("copy paddock to %s: %w", dir, err)
	}
	log, err := os.OpenFile(d.log(), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	argv := slices.Concat(by, []string{d.program(), "serve", "--root", d.store(), "--socket", d.socket()}, flags)
	// Not bound to ctx: the daemon is asked to end, and outlives this program's death.
	cmd := exec.Command(argv[0], argv[1:]...) //nolint:noctx,gosec // see above; the program is a copy of this one
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the daemon: %w", err)
	}
	d.pid, d.ended = cmd.Process.Pid, make(chan struct{})
	go func() {
		d.err = cmd.Wait()
		close(d.ended)
	}()
	if err := d.ready(ctx); err != nil {
		return nil, errors.Join(err, d.stop(ctx))
	}
	return d, nil
}

// ready waits until the daemon answers.
func (d *ownDaemon) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 30*time.Second, errors.New("the daemon does not answer; see "+d.log()))
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := d.client.Version(ctx); err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-d.ended:
			return fmt.Errorf("the daemon ended at once: %w; %s", d.err, lastLine(d.log()))
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// stop asks the daemon to end and waits for it.
func (d *ownDaemon) stop(ctx context.Context) error {
	d.client.Close()
	fd, err := unix.PidfdOpen(d.pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("stop the daemon: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	for _, step := range []struct {
		signal unix.Signal
		grace  time.Duration
	}{{unix.SIGTERM, 20 * time.Second}, {unix.SIGKILL, 5 * time.Second}} {
		if err := unix.PidfdSendSignal(fd, step.signal, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("stop the daemon: %w", err)
		}
		if waitPidfd(context.WithoutCancel(ctx), fd, step.grace) {
			if step.signal == unix.SIGKILL {
				return errors.New("the daemon did not end when asked to and was killed; see " + d.log())
			}
			return nil
		}
	}
	return errors.New("the daemon does not end; see " + d.log())
}

// waitPidfd says whether the process ended in time.
func waitPidfd(ctx context.Context, fd int, grace time.Duration) bool {
	deadline := time.Now().Add(grace)
	for ctx.Err() == nil {
		left := time.Until(deadline)
		if left <= 0 {
			return false
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(left.Milliseconds())+1) //nolint:gosec // a descriptor
		if err == nil && n > 0 {
			return true
		}
		if err != nil && !errors.Is(err, syscall.EINTR) {
			return false
		}
	}
	return false
}

// copyProgram copies the running program to path, whole or not at all.
func copyProgram(path string) (err error) {
	from, err := os.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }()
	part := path + ".part"
	if err := os.Remove(part); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	to, err := os.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755) //nolint:gosec // a program for everyone
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	err = errors.Join(err, to.Chmod(0o755), to.Close())
	if err != nil {
		return err
	}
	return os.Rename(part, path)
}

// lastLine is the end of a log, for an error.
func lastLine(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	const enough = 1000
	if len(text) > enough {
		text = text[len(text)-enough:]
	}
	return string(text)
}

// tmpfsDir is a directory on a tmpfs with room for a demo, else the directory for
// temporary files.
func tmpfsDir() string {
	const enough = 1 << 30
	var st unix.Statfs_t
	if err := unix.Statfs("/dev/shm", &st); err == nil && st.Type == unix.TMPFS_MAGIC && st.Bavail*uint64(st.Bsize) >= enough { //nolint:gosec // sizes
		return "/dev/shm"
	}
	return os.TempDir()
}
