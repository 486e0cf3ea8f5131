package contract

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/paddock-run/paddock/runner"
	"github.com/paddock-run/paddock/sandbox"
)

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
