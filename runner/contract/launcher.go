// Package contract holds the suites that every implementation of the runner's interfaces
// must pass: Launcher, Worlds and Record. A suite uses only what a busybox world has.
package contract

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/paddock-run/paddock/runner"
	"github.com/paddock-run/paddock/sandbox"
)

// LauncherUnderTest is a launcher with a way to ask it for sandboxes. The world has true,
// false, echo, cat, sleep, nc and sh under PATH, a directory /tmp that all may write, and a
// file /etc/passwd.
type LauncherUnderTest struct {
	Launcher runner.Launcher
	// Spec makes the spec of a new sandbox of that name; what it holds is released by
	// t.Cleanup.
	Spec func(t *testing.T, name string) sandbox.Spec
}

// patience is how long anything here may take before the suite calls it hung.
const patience = 20 * time.Second

// Launcher runs the suite of runner.Launcher.
func Launcher(t *testing.T, l LauncherUnderTest) {
	t.Helper()
	for _, c := range launcherCases {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			name := "ct-" + strings.ToLower(c.name)
			sb := startSandbox(ctx, t, l, name[:min(len(name), 36)])
			c.run(ctx, t, sb)
		})
	}
	t.Run("FreezeStopsProgress", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		freeze(ctx, t, startSandbox(ctx, t, l, "ct-freeze"), l.Launcher.Info())
	})
	t.Run("Terminal", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		terminal(ctx, t, startSandbox(ctx, t, l, "ct-terminal"), l.Launcher.Info())
	})
	t.Run("TwoSandboxesAreApart", func(t *testing.T) { twoSandboxes(t, l) })
	t.Run("ListenersAreInside", func(t *testing.T) {
		if l.Launcher.Info().Listen {
			listenersAreInside(t, l)
			return
		}
		spec := l.Spec(t, "ct-listens")
		spec.Listen = []uint16{4100}
		_, err := l.Launcher.Start(t.Context(), spec)
		refused(t, err)
	})
	t.Run("DialReachesOwnLoopback", func(t *testing.T) { dialReachesOwnLoopback(t, l) })
}

var launcherCases = []struct {
	name string
	run  func(context.Context, *testing.T, runner.Sandbox)
}{
	{"ExitCodes", exitCodes},
	{"Signals", signals},
	{"StreamsAreApart", streams},
	{"Stdin", stdin},
	{"NotStarted", notStarted},
	{"TimeoutKeepsOutput", timeoutKeepsOutput},
	{"KillEndsTheTree", killEndsTheTree},
	{"LeftoversKept", leftoversKept},
	{"LeftoversKilled", leftoversKilled},
	{"EnvAndDir", envAndDir},
	{"Descriptor3", descriptor3},
	{"ManyAtOnce", manyAtOnce},
	{"OutputBeforeExit", outputBeforeExit},
	{"FilesRoundTrip", filesRoundTrip},
	{"FileErrors", fileErrors},
	{"BrokenWriteKeepsOld", brokenWrite},
	{"Archives", archives},
	{"FilesAndProcessesShareATree", sharedTree},
	{"UpperHoldsWhatChanged", upperHolds},
	{"StopEndsEverything", stopEnds},
	{"CloseIsIdempotent", closeTwice},
}

func startSandbox(ctx context.Context, t *testing.T, l LauncherUnderTest, name string) runner.Sandbox {
	t.Helper()
	sb, err := l.Launcher.Start(ctx, l.Spec(t, name))
	if err != nil {
		t.Fatalf("Start: %v", err)
	}
	t.Cleanup(func() {
		if err := sb.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return sb
}

// ran is what a command left behind.
type ran struct {
	sandbox.Exit
	out, err string
}

func command(argv ...string) sandbox.Command {
	return sandbox.Command{Argv: argv, Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, Dir: "/"}
}

func sh(script string) sandbox.Command { return command("sh", "-c", script) }

// lockedBuffer may be read while its writer is still at work.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func run(ctx context.Context, t *testing.T, sb runner.Sandbox, cmd sandbox.Command) ran {
	t.Helper()
	var out, errOut lockedBuffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	p, err := sb.Start(ctx, cmd)
	if err != nil {
		t.Fatalf("Start %q: %v", cmd.Argv, err)
	}
	exit := waitFor(ctx, t, p)
	return ran{Exit: exit, out: out.String(), err: errOut.String()}
}

func waitFor(ctx context.Context, t *testing.T, p sandbox.Process) sandbox.Exit {
	t.Helper()
	done := make(chan sandbox.Exit, 1)
	go func() { done <- p.Wait() }()
	select {
	case e := <-done:
		return e
	case <-ctx.Done():
		p.Kill()
		t.Fatal("command did not end")
		return sandbox.Exit{}
	}
}

func wantCode(t *testing.T, got ran, want int) {
	t.Helper()
	if got.Code == nil || *got.Code != want {
		t.Errorf("exit = %s (out %q, err %q), want code %d", describe(got.Exit), got.out, got.err, want)
	}
}

func describe(e sandbox.Exit) string {
	code := "nil"
	if e.Code != nil {
		code = fmt.Sprint(*e.Code)
	}
	return fmt.Sprintf("code %s signal %d notstarted %+v timedout %v oom %v held %v leftover %d",
		code, e.Signal, e.NotStarted, e.TimedOut, e.OOM, e.OutputHeld, e.Leftover)
}

func exitCodes(ctx context.Context, t *testing.T, sb runner.Sandbox) {
	wantCode(t, run(ctx, t, sb, command("true")), 0)
	wantCode(t, run(ctx, t, sb, command("false")), 1)
	wantCode(t, run(ctx, t, sb, sh("exit 7")), 7)
	wantCode(t, run(ctx, t, sb, sh("exit 255")), 255)
}

func signals(ctx context.Context, t *testing.T, sb runner.Sandbox) {
	got := run(ctx, t, sb, sh("kill -9 $$"))
	if got.Code != nil || got.Signal != 9 {
		t.Errorf("kill -9 $$: %s, want no code and signal 9", describe(got.Exit))
	}
	wantCode(t, run(ctx, t, sb, command("true")), 0)
}

func streams(ctx context.Context, t *testing.T, sb runner.Sandbox) {
	got := run(ctx, t, sb, sh("echo out; echo err >&2; exit 3"))
	wantCode(t, got, 3)
	if got.out != "out\n" || got.err != "err\n" {
		t.Errorf("out %q err %q, want out and err apart", got.out, got.err)
	}
}

func stdin(ctx context.Context, t *testing.T, sb runner.Sandbox) {
	want := strings.Repeat("0123456789abcde\n", 1<<16)
	cmd := command("cat")
	cmd.Stdin = strings.NewReader(want)
	got := run(ctx, t, sb, cmd)
	wantCode(t, got, 0)
	if got.out != want {
		t.Errorf("cat gave %d bytes, want the %d of stdin", len(got.out), len(want))
	}
	wantCode(t, run(ctx, t, sb, command("cat")), 0) // no stdin is EOF at once
	unread := command("true")
	unread.Stdin = strings.NewReader(want)
	wantCode(t, run(ctx, t, sb, unread), 0)
	open, wr := io.Pipe() // a stdin that stays open holds no ended program
	defer func() { _ = wr.Close() }()
	unread.Stdin = open
	wantCode(t, run(ctx, t, sb, unread), 0)
}

func notStarted(ctx context.Context, t *testing.T, sb runner.Sandbox) {
	nowhere := command("true")
	nowhere.Dir = "/no/such/dir"
	onFile := command("true")
	onFile.Dir = "/etc/passwd"
	for want, cmd := range map[string]sandbox.Command{
		"command_not_found": command("no-such-command"), "cwd_not_found": nowhere, "cwd_not_a_directory": onFile,
	} {
		got := run(ctx, t, sb, cmd)
		if got.NotStarted == nil || got.NotStarted.Kind != want || got.Code != nil {
			t.Errorf("%s: %s", want, describe(got.Exit))
		}
	}
}

func timeoutKeepsOutput(ctx context.Context, t *testing.T, sb runner.Sandbox) {
	cmd := sh("echo partial; echo e >&2; sleep 60")
	cmd.Timeout = 300 * time.Millisecond
	got := run(ctx, t, sb, cmd)
	if !got.TimedOut || got.Code != nil || got.out != "partial\n" || got.err != "e\n" {
		t.Errorf("%s out %q err %q, want timed out with both outputs", describe(got.Exit), got.out, got.err)
	}
	wantCode(t, run(ctx, t, sb, command("true")), 0)
}

func killEndsTheTree(ctx context.Context, t *testing.T, sb runner.Sandbox) {
	p, err := sb.Start(ctx, sh("sleep 60 & sleep 60"))
	if err != nil {
		t.Fatal(err)
	}
	p.Kill()
	p.Kill()
	if e := waitFor(ctx, t, p); e.Code != nil || e.TimedOut {
		t.Errorf("killed: %s, want no code", describe(e))
	}
}

func leftoversKept(ctx context.Context, t *testing.T, sb runner.Sandbox) {
	got := run(ctx, t, sb, sh("sleep 60 & echo hi"))
	wantCode(t, got, 0)
	if got.out != "hi\n" || !got.OutputHeld || got.Leftover < 1 {
		t.Errorf("%s out %q, want output held by a leftover", describe(got.Exit), got.out)
	}
	wantCode(t, run(ctx, t, sb, command("true")), 0)
}

func leftoversKilled(ctx context.Context, t *testing.T, sb runner.Sandbox) {
	cmd := sh("sleep 60 & echo hi")
	cmd.Leftovers = sandbox.KillLeftovers
	got := run(ctx, t, sb, cmd)
	wantCode(t, got, 0)
	if got.out != "hi\n" || got.OutputHeld || got.Leftover < 1 {
		t.Errorf("%s out %q, want the leftover killed", describe(got.Exit), got.out)
	}
}

func envAndDir(ctx context.Context, t *testing.T, sb runner.Sandbox) {
	cmd := sh("echo $X; pwd")
	cmd.Env = append(cmd.Env, "X=some value")
	cmd.Dir = "/tmp"
	if got := run(ctx, t, sb, cmd); got.out != "some value\n/tmp\n" {
		t.Errorf("out %q, want the variable and the directory", got.out)
	}
}

func descriptor3(ctx context.Context, t *testing.T, sb runner.Sandbox) {
	var fd3 lockedBuffer
	cmd := sh("echo x >&3; echo y")
	cmd.FD3 = &fd3
	got := run(ctx, t, sb, cmd)
	if fd3.String() != "x\n" || got.out != "y\n" {
		t.Errorf("descriptor 3 %q, stdout %q, want x and y", fd3.String(), got.out)
	}
}

func manyAtOnce(ctx context.Context, t *testing.T, sb runner.Sandbox) {
	var wg sync.WaitGroup
	outs := make([]string, 16)
	for i := range outs {
		wg.Go(func() {
			var out lockedBuffer
			cmd := command("echo", fmt.Sprint(i))
			cmd.Stdout = &out
			p, err := sb.Start(ctx, cmd)
			if err != nil {
				outs[i] = err.Error()
				return
			}
			p.Wait()
			outs[i] = out.String()
		})
	}
	wg.Wait()
	for i, out := range outs {
		if out != fmt.Sprintln(i) {
			t.Errorf("command %d printed %q", i, out)
		}
	}
}

func outputBeforeExit(ctx context.Context, t *testing.T, sb runner.Sandbox) {
	want := strings.Repeat("a", 300000)
	for range 10 {
		cmd := sh("cat; exit 7")
		cmd.Stdin = strings.NewReader(want)
		got := run(ctx, t, sb, cmd)
		wantCode(t, got, 7)
		if got.out != want {
			t.Fatalf("%d bytes at the exit, want %d", len(got.out), len(want))
		}
	}
}

func freeze(ctx context.Context, t *testing.T, sb runner.Sandbox, info sandbox.Info) {
	if !info.Freeze {
		refused(t, sb.Freeze(ctx, true))
		return
	}
	p, err := sb.Start(ctx, sh("sleep 0.3; echo done > /tmp/done"))
	if err != nil {
		t.Fatal(err)
	}
	if err := sb.Freeze(ctx, true); err != nil {
		t.Fatalf("Freeze: %v", err)
	}
	ended := make(chan struct{})
	go func() { p.Wait(); close(ended) }()
	select {
	case <-ended:
		t.Error("a frozen command ended")
	case <-time.After(time.Second):
	}
	if err := sb.Freeze(ctx, false); err != nil {
		t.Fatalf("thaw: %v", err)
	}
	select {
	case <-ended:
	case <-ctx.Done():
		t.Error("a thawed command did not end")
	}
}

// terminal holds that a program has a terminal of the size that was asked for, on which
// both of its outputs are.
func terminal(ctx context.Context, t *testing.T, sb runner.Sandbox, info sandbox.Info) {
	cmd := sh("test -t 0 && test -t 1 && test -t 2 && stty size; echo e >&2")
	cmd.PTY = &sandbox.WindowSize{Rows: 33, Cols: 77}
	if !info.PTY {
		_, err := sb.Start(ctx, cmd)
		refused(t, err)
		return
	}
	got := run(ctx, t, sb, cmd)
	wantCode(t, got, 0)
	if got.out != "33 77\r\ne\r\n" {
		t.Errorf("on a terminal: out %q, want its size and both outputs", got.out)
	}
}

func stopEnds(ctx context.Context, t *testing.T, sb runner.Sandbox) {
	p, err := sb.Start(ctx, sh("echo x > /tmp/kept; sleep 60"))
	if err != nil {
		t.Fatal(err)
	}
	for { // the file is there once the command runs
		if _, err := sb.Files().Stat(ctx, sandbox.User{}, "/tmp/kept"); err == nil || ctx.Err() != nil {
			break
		}
	}
	select {
	case <-sb.Done():
		t.Fatal("Done before Stop")
	default:
	}
	if err := sb.Stop(ctx); err != nil {
		t.Fatalf("Stop: %v", err)
	}
	if err := sb.Stop(ctx); err != nil {
		t.Errorf("second Stop: %v", err)
	}
	if e := waitFor(ctx, t, p); e.Code != nil {
		t.Errorf("stopped command: %s", describe(e))
	}
	select {
	case <-sb.Done():
	default:
		t.Error("Stop returned before Done")
	}
	if got := sb.Fate(); got.Kind != sandbox.Stopped {
		t.Errorf("Fate = %+v, want stopped", got)
	}
	var got bytes.Buffer
	if _, err := sb.Files().Read(ctx, sandbox.User{}, "/tmp/kept", &got, 0, -1); err != nil {
		t.Errorf("Files after Stop: %v", err)
	}
	if _, err := sb.Start(ctx, command("true")); err == nil {
		t.Error("a stopped sandbox started a command")
	}
}

func closeTwice(_ context.Context, t *testing.T, sb runner.Sandbox) {
	for range 2 {
		if err := sb.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	select {
	case <-sb.Done():
	default:
		t.Error("closed but not done")
	}
}
