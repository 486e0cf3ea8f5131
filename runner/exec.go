package runner

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/paddock-run/paddock/policies"
	"github.com/paddock-run/paddock/sandbox"
)

const shellPath = "/bin/sh"

// maxUserFile bounds how much of a world's passwd and group files is read.
const maxUserFile = 1 << 20

// exec runs argv, or a text by the world's shell.
func (a *attempt) exec(ctx context.Context, c *callState) error {
	argv := c.spec.Argv
	if c.spec.Shell != "" {
		argv = []string{shellPath, "-c", c.spec.Shell}
	}
	return a.runProgram(ctx, c, argv)
}

// worldTool runs a tool's command with the arguments, which the tool's schema must take, as
// JSON on stdin.
func (a *attempt) worldTool(ctx context.Context, c *callState) error {
	if c.res.Error = checkArguments(c.tool, c.spec.Args); c.res.Error != nil {
		return nil
	}
	return a.runProgram(ctx, c, c.tool.Command)
}

func (a *attempt) runProgram(ctx context.Context, c *callState, argv []string) error {
	cmd, cerr := a.command(ctx, c, argv)
	if cerr != nil {
		c.res.Error = cerr
		return nil
	}
	out := programOutput(outputCap(c.spec.MaxStdout), c.io.Stdout, a.countOutput)
	errOut := programOutput(outputCap(c.spec.MaxStderr), c.io.Stderr, a.countOutput)
	cmd.Stdout, cmd.Stderr = out, errOut
	if c.stdin != nil {
		cmd.Stdin = c.stdin
	}
	if c.spec.PTY != nil {
		cmd.PTY = &sandbox.WindowSize{Rows: c.spec.PTY.Rows, Cols: c.spec.PTY.Cols}
	}
	p, err := a.sb.Start(ctx, cmd)
	if err != nil {
		return fmt.Errorf("start: %w", err)
	}
	exit, expired := a.waitProgram(ctx, c, p)
	a.fill(c, exit, expired)
	c.res.Stdout, c.res.Stderr = out.output(), errOut.output()
	if c.spec.Shell != "" && exit.NotStarted != nil && exit.NotStarted.Kind == "command_not_found" {
		c.res.Error = &CallError{Kind: "no_shell", Path: shellPath, Detail: "the world has no shell; use argv"}
	}
	if (exit.Code == nil || *exit.Code != 0) && exit.NotStarted == nil {
		tail := append(append([]byte(nil), c.res.Stderr.Head...), c.res.Stderr.Tail...)
		c.res.Hints = a.policy.Explain(tail, a.workdir)
	}
	return nil
}

// waitProgram waits for the end of a program and kills it when the call's time, the
// client or the episode ends. expired is the budget that ran out.
func (a *attempt) waitProgram(ctx context.Context, c *callState, p sandbox.Process) (exit sandbox.Exit, expired string) {
	done := make(chan sandbox.Exit, 1)
	go func() { done <- p.Wait() }()
	select {
	case exit = <-done:
		return exit, ""
	case <-c.clock.fired:
		expired = "call_s"
	case <-a.agent.fired:
		expired = "agent_s"
	case <-a.stop:
	case <-ctx.Done():
	}
	p.Kill()
	exit = <-done
	if exit.Code != nil { // it ended by itself in the same instant
		expired = ""
	}
	return exit, expired
}

// fill puts a program's end into the result.
func (a *attempt) fill(c *callState, e sandbox.Exit, expired string) {
	r := &c.res
	r.Code, r.Signal, r.OOM, r.PidsLimit = e.Code, e.Signal, e.OOM, e.PidsLimit
	r.TimedOut, r.CPUTimedOut = e.TimedOut || expired != "", e.CPUTimedOut
	if e.HostOOM {
		a.ask(hostMemoryEnd([]string{fmt.Sprintf(
			"the OOM killer struck in call %d; the sandbox had never met its own memory limit", c.spec.Seq)}))
	}
	r.OutputHeld, r.Leftover, r.Usage = e.OutputHeld, e.Leftover, e.Usage
	if e.NotStarted != nil {
		r.Error = &CallError{Kind: e.NotStarted.Kind, Path: Raw(e.NotStarted.Path)}
	}
	switch {
	case expired == "agent_s":
		r.Limit = &LimitHit{Name: expired, Value: a.plan.Budgets.AgentS, Measured: a.agent.elapsed().Seconds()}
	case r.TimedOut:
		r.Limit = &LimitHit{Name: "call_s", Value: c.clock.budget.Seconds(), Measured: c.clock.elapsed().Seconds()}
	case r.CPUTimedOut:
		r.Limit = &LimitHit{Name: "cpu_s", Value: c.spec.CPUS, Measured: e.Usage.CPU.Seconds()}
	case r.OOM:
		r.Limit = &LimitHit{
			Name: "memory", Value: float64(a.plan.effective().Memory()),
			Measured: float64(e.Usage.MemoryPeakBytes),
		}
	case r.PidsLimit:
		r.Limit = &LimitHit{Name: "pids", Value: float64(a.plan.Limits.Pids), Measured: float64(a.plan.Limits.Pids)}
	case e.Full == sandbox.FullDisk:
		r.Limit = &LimitHit{Name: e.Full, Value: float64(a.plan.Limits.DiskBytes), Measured: float64(a.plan.Limits.DiskBytes)}
	case e.Full == sandbox.FullInodes:
		r.Limit = &LimitHit{Name: e.Full, Value: float64(a.plan.Limits.Inodes), Measured: float64(a.plan.Limits.Inodes)}
	}
}

// command puts together everything of a command but its streams.
func (a *attempt) command(ctx context.Context, c *callState, argv []string) (sandbox.Command, *CallError) {
	who, cerr := a.resolveUser(ctx, c.spec.User)
	if cerr != nil {
		return sandbox.Command{}, cerr
	}
	dir := c.spec.Cwd
	if dir == "" {
		dir = a.workdir
	}
	leftovers := sandbox.Leftovers(c.spec.Leftovers)
	if leftovers == "" {
		leftovers = sandbox.Leftovers(a.plan.Spec.Leftovers)
	}
	return sandbox.Command{
		Argv: argv, Env: a.callEnv(who, c.spec.Env), Dir: dir, User: who.user, Umask: a.policy.Umask(),
		CPUTime: seconds(c.spec.CPUS), Leftovers: leftovers,
	}, nil
}

// callEnv is the pinned environment, the user's home and shell, and what the call adds.
func (a *attempt) callEnv(who resolved, extra map[string]string) []string {
	return mergeEnv(a.userEnv(who), a.plan.Env, envList(extra))
}

// userEnv is what the world's passwd file says of a user.
func (a *attempt) userEnv(who resolved) []string {
	env := []string{"HOME=" + a.policy.Home(who.user.UID, who.home)}
	if who.shell != "" {
		env = append(env, "SHELL="+who.shell)
	}
	return env
}

// resolveUser finds the call's user, else the world's, else the policy's, in the world's
// own passwd and group files, which are hostile input. What was found stays true until a
// call changes something below /etc.
func (a *attempt) resolveUser(ctx context.Context, ref string) (resolved, *CallError) {
	if ref == "" {
		ref = a.world.Config.User
	}
	if ref == "" {
		uid, gid := a.policy.User()
		ref = fmt.Sprintf("%d:%d", uid, gid)
	}
	a.mu.Lock()
	known, ok := a.users[ref]
	a.mu.Unlock()
	if ok {
		return known, nil
	}
	who, err := a.lookUpUser(ctx, ref)
	if err != nil {
		kind := "invalid_user"
		if ue, ok := errors.AsType[*sandbox.UserError](err); ok {
			kind = ue.Kind
		}
		return resolved{}, &CallError{Kind: kind, Detail: err.Error()}
	}
	if err := a.policy.CheckUser(who.user.UID); err != nil {
		kind := "user_refused"
		if re, ok := errors.AsType[*policies.RefusalError](err); ok {
			kind = re.Kind
		}
		return resolved{}, &CallError{Kind: kind, Detail: err.Error()}
	}
	a.mu.Lock()
	if len(a.users) < 64 {
		a.users[ref] = who
	}
	a.mu.Unlock()
	return who, nil
}

// lookUpUser reads the sandbox's files. Those that nothing can have changed yet are the
// world's own, and what one episode finds there is every other's.
func (a *attempt) lookUpUser(ctx context.Context, ref string) (resolved, error) {
	untouched := a.firstLookUp()
	k := userOf{world: a.plan.World, ref: ref}
	if who, ok := a.r.users.get(k); ok && untouched {
		return who, nil
	}
	passwd, group := a.userFile(ctx, "/etc/passwd"), a.userFile(ctx, "/etc/group")
	user, home, shell, err := sandbox.LookupUser(passwd, group, ref)
	who := resolved{user: user, home: home, shell: shell}
	if err == nil && untouched {
		a.r.users.put(k, who)
	}
	return who, err
}

// firstLookUp says whether no call and no program has been in the sandbox yet but the one
// that asks, and that it has not asked before.
func (a *attempt) firstLookUp() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	first := !a.lookedUp && a.program == nil && a.rec.Calls == 0 && len(a.inflight) <= 1
	a.lookedUp = true
	return first
}

// userOf names a user in a world's own files.
type userOf struct{ world, ref string }

// worldUsers are users as worlds' own files have them.
type worldUsers struct {
	mu  sync.Mutex
	all map[userOf]resolved
}

// maxWorldUsers bounds them; past it they are read anew.
const maxWorldUsers = 1024

func (w *worldUsers) get(k userOf) (resolved, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	who, ok := w.all[k]
	return who, ok
}

func (w *worldUsers) put(k userOf, who resolved) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.all == nil || len(w.all) >= maxWorldUsers {
		w.all = map[userOf]resolved{}
	}
	w.all[k] = who
}

func (a *attempt) userFile(ctx context.Context, path string) []byte {
	var buf bytes.Buffer
	if _, err := a.sb.Files().Read(ctx, sandbox.User{}, path, &buf, 0, maxUserFile); err != nil {
		return nil // a world without the file has no names
	}
	return buf.Bytes()
}

func (a *attempt) forgetUsers() {
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.users)
}

// underWritable says whether the policy lets path be written; the daemon's own writes
// must not reach where the agent's may not.
func (a *attempt) underWritable(path string) bool {
	for _, dir := range a.policy.Writable(a.workdir) {
		if dir == "/" || path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/") {
			return true
		}
	}
	return false
}

// fileCall runs one file operation under the call's user and clocks, and turns what the
// agent did wrong into a value.
func (a *attempt) fileCall(ctx context.Context, c *callState, writes bool, do func(context.Context, Files, sandbox.User) error) error {
	who, cerr := a.resolveUser(ctx, c.spec.User)
	if cerr != nil {
		c.res.Error = cerr
		return nil
	}
	if writes && !a.underWritable(c.spec.Path) {
		c.res.Error = &CallError{
			Kind: "read_only", Path: Raw(c.spec.Path),
			Detail: "policy " + a.policy.Name() + " lets only these be written: " + strings.Join(a.policy.Writable(a.workdir), " "),
		}
		return nil
	}
	fctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	over := make(chan struct{})
	defer close(over)
	go func() {
		select {
		case <-c.clock.fired:
			cancel(errCallTime)
		case <-a.agent.fired:
			cancel(errCallTime)
		case <-a.stop:
			cancel(errors.New("the episode ended"))
		case <-over:
		}
	}()
	err := do(fctx, a.sb.Files(), who.user)
	if fe, ok := errors.AsType[*sandbox.FileError](err); ok {
		c.res.Error = &CallError{Kind: fe.Kind, Path: Raw(fe.Path), Detail: fe.Detail}
		return nil
	}
	if err != nil && errors.Is(context.Cause(fctx), errCallTime) {
		c.res.TimedOut = true
		c.res.Error = &CallError{Kind: "timeout", Path: Raw(c.spec.Path)}
		return nil
	}
	return err
}

var errCallTime = errors.New("the call's time passed")

func fileInfo(fi sandbox.FileInfo) FileInfo {
	return FileInfo{
		Name: Raw(fi.Name), Type: fi.Type, Mode: fi.Mode, UID: fi.UID, GID: fi.GID,
		Size: fi.Size, ModTime: fi.ModTime, Target: Raw(fi.Target),
	}
}

// readFile keeps what was read as the call's standard output: head, tail and hash. Max
// bounds what is read, MaxStdout what is kept.
func (a *attempt) readFile(ctx context.Context, c *callState) error {
	n := c.spec.Max
	if n <= 0 {
		n = -1
	}
	out := newCollector(outputCap(c.spec.MaxStdout), c.io.Stdout, a.countOutput)
	return a.fileCall(ctx, c, false, func(ctx context.Context, f Files, as sandbox.User) error {
		info, err := f.Read(ctx, as, c.spec.Path, out, c.spec.Offset, n)
		c.res.Stdout = out.output()
		if err == nil {
			fi := fileInfo(info)
			c.res.Info = &fi
		}
		return err
	})
}

func (a *attempt) writeFile(ctx context.Context, c *callState) error {
	mode := c.spec.Mode
	if mode == 0 {
		mode = 0o644
	}
	return a.fileCall(ctx, c, true, func(ctx context.Context, f Files, as sandbox.User) error {
		info, err := f.Write(ctx, as, c.spec.Path, c.stdin, mode)
		if err == nil {
			fi := fileInfo(info)
			c.res.Info = &fi
		}
		return err
	})
}

// maxEntries bounds what list_dir lists.
const maxEntries = 10000

func (a *attempt) listDir(ctx context.Context, c *callState) error {
	n := int(min(c.spec.Max, maxEntries))
	if n <= 0 {
		n = maxEntries
	}
	return a.fileCall(ctx, c, false, func(ctx context.Context, f Files, as sandbox.User) error {
		entries, more, err := f.List(ctx, as, c.spec.Path, n)
		c.res.More = more
		for _, e := range entries {
			c.res.Entries = append(c.res.Entries, fileInfo(e))
		}
		return err
	})
}

func (a *attempt) statFile(ctx context.Context, c *callState) error {
	return a.fileCall(ctx, c, false, func(ctx context.Context, f Files, as sandbox.User) error {
		info, err := f.Stat(ctx, as, c.spec.Path)
		if err == nil {
			fi := fileInfo(info)
			c.res.Info = &fi
		}
		return err
	})
}

func (a *attempt) removeFile(ctx context.Context, c *callState) error {
	return a.fileCall(ctx, c, true, func(ctx context.Context, f Files, as sandbox.User) error {
		return f.Remove(ctx, as, c.spec.Path)
	})
}

func (a *attempt) upload(ctx context.Context, c *callState) error {
	if c.stdin == nil {
		c.res.Error = &CallError{Kind: "invalid_archive", Path: Raw(c.spec.Path), Detail: "there is no archive"}
		return nil
	}
	return a.fileCall(ctx, c, true, func(ctx context.Context, f Files, as sandbox.User) error {
		body := interruptible(ctx, c.stdin.r)
		defer func() { _ = body.Close() }()
		c.stdin.r = body
		var err error
		c.res.Count, err = f.Untar(ctx, as, c.spec.Path, c.stdin, sandbox.TarLimits{})
		return err
	})
}

// interruptible reads from r until ctx is over, also while r itself is stuck with a client
// that sends nothing. The goroutine ends with r, which its owner closes after the call.
func interruptible(ctx context.Context, r io.Reader) io.ReadCloser {
	pr, pw := io.Pipe()
	go func() {
		_, err := io.Copy(pw, r)
		pw.CloseWithError(err)
	}()
	context.AfterFunc(ctx, func() { _ = pr.CloseWithError(context.Cause(ctx)) })
	return pr
}

func (a *attempt) download(ctx context.Context, c *callState) error {
	to := c.io.Stdout
	if to == nil {
		to = io.Discard
	}
	sum := newCollector(1, nil, a.countOutput)
	return a.fileCall(ctx, c, false, func(ctx context.Context, f Files, as sandbox.User) error {
		err := f.Tar(ctx, as, c.spec.Path, io.MultiWriter(to, sum))
		c.res.Stdout = sum.output()
		c.res.Stdout.Head, c.res.Stdout.Tail, c.res.Stdout.Dropped = nil, nil, 0
		return err
	})
}
