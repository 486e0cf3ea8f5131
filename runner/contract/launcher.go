// Package contract holds the suites that every implementation of the runner's interfaces
// must pass: Launcher, Worlds and Record. A suite uses only what a busybox world has.
package contract

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
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

func filesRoundTrip(ctx context.Context, t *testing.T, sb runner.Sandbox) {
	f, as := sb.Files(), sandbox.User{}
	for _, name := range []string{"plain", "a b", "-rf", "x\ny", "\xff\xfe", strings.Repeat("n", 255)} {
		want := strings.Repeat("\x00\xff\r\n", 5000)
		if _, err := f.Write(ctx, as, "/tmp/"+name, strings.NewReader(want), 0o640); err != nil {
			t.Fatalf("Write %q: %v", name, err)
		}
		var got bytes.Buffer
		info, err := f.Read(ctx, as, "/tmp/"+name, &got, 0, -1)
		if err != nil || got.String() != want || info.Size != int64(len(want)) || info.Mode != 0o640 {
			t.Errorf("Read %q: %d bytes, info %+v, %v", name, got.Len(), info, err)
		}
	}
	var part bytes.Buffer
	if _, err := f.Read(ctx, as, "/tmp/plain", &part, 1, 3); err != nil || part.String() != "\xff\r\n" {
		t.Errorf("Read of a part = %q, %v", part.String(), err)
	}
	entries, more, err := f.List(ctx, as, "/tmp", 3)
	if err != nil || len(entries) != 3 || !more || entries[0].Name != "-rf" {
		t.Errorf("List = %v, more %v, %v; want 3 of more, in byte order", entries, more, err)
	}
	if err := f.Remove(ctx, as, "/tmp/plain"); err != nil {
		t.Errorf("Remove: %v", err)
	}
	wantFileError(t, "not_found", func() error { _, err := f.Stat(ctx, as, "/tmp/plain"); return err })
}

func wantFileError(t *testing.T, kind string, do func() error) {
	t.Helper()
	err := do()
	fe, ok := errors.AsType[*sandbox.FileError](err)
	if !ok || fe.Kind != kind {
		t.Errorf("error %v, want a FileError of kind %s", err, kind)
	}
}

func fileErrors(ctx context.Context, t *testing.T, sb runner.Sandbox) {
	f, as := sb.Files(), sandbox.User{}
	read := func(path string) func() error {
		return func() error { _, err := f.Read(ctx, as, path, io.Discard, 0, -1); return err }
	}
	wantFileError(t, "not_found", read("/no/such"))
	wantFileError(t, "is_directory", read("/tmp"))
	wantFileError(t, "not_a_directory", read("/etc/passwd/x"))
	wantFileError(t, "not_a_directory", func() error {
		_, err := f.Write(ctx, as, "/etc/passwd/x", strings.NewReader("x"), 0o644)
		return err
	})
	wantFileError(t, "not_found", func() error { _, _, err := f.List(ctx, as, "/no/such", 1); return err })
	wantFileError(t, "not_found", func() error { return f.Remove(ctx, as, "/no/such") })
}

func brokenWrite(ctx context.Context, t *testing.T, sb runner.Sandbox) {
	f, as := sb.Files(), sandbox.User{}
	if _, err := f.Write(ctx, as, "/tmp/f", strings.NewReader("old contents"), 0o644); err != nil {
		t.Fatal(err)
	}
	broken := io.MultiReader(strings.NewReader("new"), errReader{})
	if _, err := f.Write(ctx, as, "/tmp/f", broken, 0o644); err == nil {
		t.Error("Write from a broken reader succeeded")
	}
	var got bytes.Buffer
	if _, err := f.Read(ctx, as, "/tmp/f", &got, 0, -1); err != nil || got.String() != "old contents" {
		t.Errorf("after a broken write: %q, %v", got.String(), err)
	}
	entries, _, err := f.List(ctx, as, "/tmp", 100)
	if err != nil || len(entries) != 1 {
		t.Errorf("after a broken write /tmp has %v, %v; want one file", entries, err)
	}
	if _, err := f.Write(ctx, as, "/tmp/f", strings.NewReader("B"), 0o644); err != nil {
		t.Fatal(err)
	}
	got.Reset()
	if _, err := f.Read(ctx, as, "/tmp/f", &got, 0, -1); err != nil || got.String() != "B" {
		t.Errorf("short after long: %q, %v", got.String(), err)
	}
}

type errReader struct{}

func (errReader) Read([]byte) (int, error) { return 0, errors.New("connection cut") }

func archives(ctx context.Context, t *testing.T, sb runner.Sandbox) {
	f, as := sb.Files(), sandbox.User{}
	if _, err := f.Write(ctx, as, "/tmp/a", strings.NewReader("contents"), 0o600); err != nil {
		t.Fatal(err)
	}
	var tarball bytes.Buffer
	if err := f.Tar(ctx, as, "/tmp", &tarball); err != nil {
		t.Fatalf("Tar: %v", err)
	}
	n, err := f.Untar(ctx, as, "/tmp/made", bytes.NewReader(tarball.Bytes()), sandbox.TarLimits{})
	if err != nil || n < 2 {
		t.Fatalf("Untar = %d, %v; want the directory and the file", n, err)
	}
	var got bytes.Buffer
	info, err := f.Read(ctx, as, "/tmp/made/tmp/a", &got, 0, -1)
	if err != nil || got.String() != "contents" || info.Mode != 0o600 {
		t.Errorf("after Untar: %q mode %o, %v", got.String(), info.Mode, err)
	}
	if err := f.Remove(ctx, as, "/tmp/made"); err != nil {
		t.Errorf("Remove of a tree: %v", err)
	}
}

func sharedTree(ctx context.Context, t *testing.T, sb runner.Sandbox) {
	f, as := sb.Files(), sandbox.User{}
	wantCode(t, run(ctx, t, sb, sh("echo from inside > /tmp/in")), 0)
	var got bytes.Buffer
	if _, err := f.Read(ctx, as, "/tmp/in", &got, 0, -1); err != nil || got.String() != "from inside\n" {
		t.Errorf("Read of a process's file = %q, %v", got.String(), err)
	}
	if _, err := f.Write(ctx, as, "/tmp/out", strings.NewReader("from outside\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if r := run(ctx, t, sb, command("cat", "/tmp/out")); r.out != "from outside\n" {
		t.Errorf("a process read %q", r.out)
	}
}

func upperHolds(ctx context.Context, t *testing.T, sb runner.Sandbox) {
	wantCode(t, run(ctx, t, sb, sh("echo x > /tmp/new")), 0)
	if err := sb.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", sb.Upper().Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	if b, err := fs.ReadFile(root.FS(), "tmp/new"); err != nil || string(b) != "x\n" {
		t.Errorf("upper has tmp/new = %q, %v", b, err)
	}
	// Directories may have been copied up; what was put into the sandbox is in no capture.
	var files []string
	err = fs.WalkDir(root.FS(), ".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			files = append(files, path)
		}
		return err
	})
	if err != nil || !slices.Equal(files, []string{"tmp/new"}) {
		t.Errorf("upper has the files %q, %v; want that one alone", files, err)
	}
}

// refused holds that what a launcher says it lacks is a typed error, not done by halves.
func refused(t *testing.T, err error) {
	t.Helper()
	if _, ok := errors.AsType[*sandbox.UnsupportedError](err); !ok {
		t.Errorf("error %v, want an UnsupportedError", err)
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

func twoSandboxes(t *testing.T, l LauncherUnderTest) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	a, b := startSandbox(ctx, t, l, "ct-a"), startSandbox(ctx, t, l, "ct-b")
	wantCode(t, run(ctx, t, a, sh("echo a > /tmp/f")), 0)
	wantFileError(t, "not_found", func() error {
		_, err := b.Files().Stat(ctx, sandbox.User{}, "/tmp/f")
		return err
	})
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	wantCode(t, run(ctx, t, b, command("true")), 0)
}

// listenersAreInside holds that a port of Spec.Listen is the sandbox's own loopback's, open
// before its first program, and that the same port of two sandboxes is two.
func listenersAreInside(t *testing.T, l LauncherUnderTest) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	names := []string{"ct-listens-a", "ct-listens-b"}
	for _, name := range names {
		spec := l.Spec(t, name)
		spec.Listen = []uint16{4100, 4101}
		sb, err := l.Launcher.Start(ctx, spec)
		if err != nil {
			t.Fatalf("Start: %v", err)
		}
		t.Cleanup(func() { _ = sb.Close() })
		all := sb.Listeners()
		if len(all) != 2 {
			t.Fatalf("Listeners() = %d, want 2", len(all))
		}
		answer := func(l net.Listener, text string) {
			c, err := l.Accept()
			if err != nil {
				return
			}
			line, _ := bufio.NewReader(c).ReadString('\n')
			_, _ = fmt.Fprintf(c, "%s heard %s", text, line)
			_ = c.Close()
		}
		go answer(all[0], name+" first")
		go answer(all[1], name+" second")
		for port, which := range map[string]string{"4100": "first", "4101": "second"} {
			cmd := command("nc", "127.0.0.1", port)
			cmd.Stdin = strings.NewReader("hello\n")
			if got, want := run(ctx, t, sb, cmd).out, name+" "+which+" heard hello\n"; got != want {
				t.Errorf("port %s said %q, want %q", port, got, want)
			}
		}
		if err := sb.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		if _, err := all[0].Accept(); err == nil {
			t.Error("a listener outlived its sandbox")
		}
	}
	spec := l.Spec(t, "ct-listens-c")
	sb, err := l.Launcher.Start(ctx, spec)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sb.Close() }()
	if n := len(sb.Listeners()); n != 0 {
		t.Errorf("a sandbox that asked for none has %d listeners", n)
	}
}

// dialReachesOwnLoopback holds that a dial ends in this sandbox's loopback and in no other,
// and says what was wrong, one that the launcher lacks included.
func dialReachesOwnLoopback(t *testing.T, l LauncherUnderTest) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	const port = 4200
	a, b := startSandbox(ctx, t, l, "ct-dial-a"), startSandbox(ctx, t, l, "ct-dial-b")
	inA, can := a.(runner.Dialer)
	if !can {
		return
	}
	if !l.Launcher.Info().Listen {
		_, err := inA.Dial(ctx, port)
		refused(t, err)
		return
	}
	inB, can := b.(runner.Dialer)
	if !can {
		t.Fatal("one sandbox of the launcher can be dialled and another cannot")
	}
	for name, d := range map[string]runner.Dialer{"a": inA, "b": inB} {
		if c, err := d.Dial(ctx, port); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%s: Dial() = %v, %v before anybody listens, want ECONNREFUSED", name, c, err)
		}
	}
	for name, sb := range map[string]runner.Sandbox{"a": a, "b": b} {
		cmd := command("sh", "-c", fmt.Sprintf("echo %s | nc -l -p %d", name, port))
		p, err := sb.Start(ctx, cmd)
		if err != nil {
			t.Fatal(err)
		}
		go p.Wait()
	}
	for name, d := range map[string]runner.Dialer{"a": inA, "b": inB} {
		var c net.Conn
		var err error
		for c == nil {
			if c, err = d.Dial(ctx, port); err != nil && !errors.Is(err, syscall.ECONNREFUSED) {
				t.Fatalf("%s: Dial() = %v", name, err)
			}
			<-time.After(time.Millisecond)
		}
		got, err := bufio.NewReader(c).ReadString('\n')
		_ = c.Close()
		if got != name+"\n" {
			t.Errorf("%s: the dial reached %q, %v", name, got, err)
		}
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if c, err := inA.Dial(ctx, port); !errors.Is(err, sandbox.ErrGone) {
		t.Errorf("Dial() = %v, %v after the end, want ErrGone", c, err)
	}
}
