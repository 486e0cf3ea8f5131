package runner

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/paddock-run/paddock/sandbox"
)

// hostProcess runs a session's shell on this host: the protocol is between the runner and
// a shell, whatever sandbox stands around it.
type hostProcess struct {
	cmd  *exec.Cmd
	fd3  *os.File
	done chan struct{}
}

func startOnHost(t *testing.T, argv []string) func(sandbox.Command) (sandbox.Process, error) {
	t.Helper()
	dir := t.TempDir()
	return func(c sandbox.Command) (sandbox.Process, error) {
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.Dir, cmd.Env = dir, []string{"PATH=" + os.Getenv("PATH")}
		cmd.Stdout, cmd.Stderr = c.Stdout, c.Stderr
		stdin, err := cmd.StdinPipe() // copied here: Wait would wait for the reader of c.Stdin
		if err != nil {
			return nil, err
		}
		cmd.WaitDelay = 100 * time.Millisecond
		rd, wr, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		cmd.ExtraFiles = []*os.File{wr}
		if err := cmd.Start(); err != nil {
			return nil, errors.Join(err, rd.Close(), wr.Close())
		}
		p := &hostProcess{cmd: cmd, fd3: rd, done: make(chan struct{})}
		go func() {
			_, _ = io.Copy(stdin, c.Stdin)
			_ = stdin.Close()
		}()
		go func() {
			defer close(p.done)
			_, _ = io.Copy(c.FD3, rd)
		}()
		return p, wr.Close()
	}
}

func (p *hostProcess) Wait() sandbox.Exit {
	err := p.cmd.Wait()
	// What a child of the shell still holds open is not waited for.
	_ = p.fd3.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	<-p.done
	_ = p.fd3.Close()
	var e sandbox.Exit
	if ee, ok := errors.AsType[*exec.ExitError](err); ok && ee.ExitCode() < 0 {
		e.Signal = 9
		return e
	}
	code := p.cmd.ProcessState.ExitCode()
	e.Code = &code
	return e
}

func (p *hostProcess) Kill()                           { _ = p.cmd.Process.Kill() }
func (p *hostProcess) Resize(sandbox.WindowSize) error { return nil }

// hostShells are the shells that worlds have: bash, dash (Debian's sh), busybox ash.
func hostShells(t *testing.T) map[string][]string {
	t.Helper()
	shells := map[string][]string{"sh": {"/bin/sh"}, "bash": {"/bin/bash"}}
	if path, err := exec.LookPath("busybox"); err == nil {
		shells["busybox"] = []string{path, "sh"}
	}
	return shells
}

func TestSessionsKeepEveryByteAndEveryCode(t *testing.T) {
	t.Parallel()
	inputs := []struct {
		text, out, err string
		code           int
	}{
		{"cat <<'EOF'\nprint(1)\nEOF", "print(1)\n", "", 0},
		{"echo hi # note", "hi\n", "", 0},
		{"cat <<A; cat <<B\n1\nA\n2\nB", "1\n2\n", "", 0},
		{"echo one \\\n two", "one two\n", "", 0},
		{`printf '\n\nx\n\n\n'`, "\n\nx\n\n\n", "", 0},
		{"printf '  x'", "  x", "", 0},
		{"printf y", "y", "", 0},
		{"printf 'caf\\303'; printf '\\251 \\377\\376'", "caf\xc3\xa9 \xff\xfe", "", 0},
		{"false", "", "", 1},
		{"echo $?", "1\n", "", 0},
		{"(exit 42)", "", "", 42},
		{"cd /tmp && V=kept && f() { echo in f; }", "", "", 0},
		{"pwd; echo $V; f", "/tmp\nkept\nin f\n", "", 0},
		{"export W=x; cat", "", "", 0}, // no input is an end of file, not the script
		{"sh -c 'echo $W'", "x\n", "", 0},
		{"echo to err >&2", "", "to err\n", 0},
		{`echo "it's" 'a "quote"'`, "it's a \"quote\"\n", "", 0},
		{"", "", "", 0},
		{"exec 2>/dev/null; echo lost >&2; echo not lost", "not lost\n", "", 0},
		{"echo x >&3; echo after", "after\n", "", 0}, // not held by what it starts
		{"true", "", "", 0},
	}
	for name, argv := range hostShells(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := openOnHost(t, argv)
			for _, in := range inputs {
				out, errOut := newCollector(1<<20, nil, nil), newCollector(1<<20, nil, nil)
				t.Logf("%q", in.text)
				code, ended := s.input(in.text, out, errOut, t.Context().Done())
				if ended {
					t.Fatalf("%q ended the session: %s", in.text, exitText(s.exit))
				}
				if got, gotErr := string(out.output().Head), string(errOut.output().Head); code != in.code || got != in.out || gotErr != in.err {
					t.Errorf("%q = code %d, out %q, err %q; want %d, %q, %q", in.text, code, got, gotErr, in.code, in.out, in.err)
				}
			}
		})
	}
}

func openOnHost(t *testing.T, argv []string) *session {
	t.Helper()
	s, err := startSession("s", sandbox.Command{}, startOnHost(t, argv))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.kill)
	return s
}

func TestSessionThatExitsSaysSo(t *testing.T) {
	t.Parallel()
	for name, argv := range hostShells(t) {
		for text, want := range map[string]int{"echo last; exit 5": 5, "echo last; set -e; false": 1} {
			t.Run(name+" "+text, func(t *testing.T) {
				t.Parallel()
				s := openOnHost(t, argv)
				out := newCollector(100, nil, nil)
				_, ended := s.input(text, out, io.Discard, t.Context().Done())
				if !ended || s.exit.Code == nil || *s.exit.Code != want || string(out.output().Head) != "last\n" {
					t.Errorf("ended %v, %s, out %q; want exit %d after its output", ended, exitText(s.exit), out.output().Head, want)
				}
			})
		}
	}
}

func TestSessionSyntaxErrorIsACode(t *testing.T) {
	t.Parallel()
	for name, argv := range hostShells(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := openOnHost(t, argv)
			errOut := newCollector(1000, nil, nil)
			code, ended := s.input("echo ( broken", io.Discard, errOut, t.Context().Done())
			if ended { // a shell may end at a syntax error; it must say so, not hang
				if s.exit.Code == nil || *s.exit.Code == 0 {
					t.Errorf("ended with %s", exitText(s.exit))
				}
				return
			}
			if code == 0 || errOut.output().Bytes == 0 {
				t.Errorf("code %d, stderr %q", code, errOut.output().Head)
			}
		})
	}
}

func TestSessionStopsWhenTold(t *testing.T) {
	t.Parallel()
	s := openOnHost(t, []string{"/bin/sh"})
	stop := make(chan struct{})
	time.AfterFunc(100*time.Millisecond, func() { close(stop) })
	out := newCollector(100, nil, nil)
	if _, ended := s.input("echo partial; exec sleep 60", out, io.Discard, stop); !ended || string(out.output().Head) != "partial\n" {
		t.Errorf("ended %v with %q, want the partial output", ended, out.output().Head)
	}
}

func TestMarkSplitAnywhereIsFound(t *testing.T) {
	t.Parallel()
	const stream = "out\x01ab\x01\x01mark\x01next"
	for at := range len(stream) {
		m := &markedWriter{}
		out := newCollector(100, nil, nil)
		seen := m.expect("mark", out)
		for _, part := range []string{stream[:at], stream[at:]} {
			_, _ = m.Write([]byte(part))
		}
		if !stopped(seen) || string(out.output().Head) != "out\x01ab\x01" || string(m.held) != "next" {
			t.Errorf("split at %d: seen %v, out %q, held %q", at, stopped(seen), out.output().Head, m.held)
		}
	}
}

func TestCollectorKeepsHeadAndTail(t *testing.T) {
	t.Parallel()
	text := strings.Repeat("0123456789", 100)
	for _, limit := range []int{1, 2, 7, 10, 999, 1000, 2000} {
		for _, step := range []int{1, 3, 64, 1000} {
			c := newCollector(limit, nil, nil)
			for rest := text; rest != ""; {
				n := min(step, len(rest))
				_, _ = c.Write([]byte(rest[:n]))
				rest = rest[n:]
			}
			got := c.output()
			kept := len(got.Head) + len(got.Tail)
			if int64(kept)+got.Dropped != 1000 || got.Bytes != 1000 || kept != min(limit, 1000) {
				t.Fatalf("limit %d step %d: head %d tail %d dropped %d", limit, step, len(got.Head), len(got.Tail), got.Dropped)
			}
			if !strings.HasPrefix(text, string(got.Head)) || !strings.HasSuffix(text, string(got.Tail)) {
				t.Errorf("limit %d step %d: head %q tail %q", limit, step, got.Head, got.Tail)
			}
			if got.SHA256 != hexSum([]byte(text)) {
				t.Errorf("limit %d step %d: hash of something else", limit, step)
			}
		}
	}
}
