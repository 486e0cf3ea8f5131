package attacks

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// insideVariable is set in the process that has the namespaces.
const insideVariable = "PADDOCK_ATTACKS_INSIDE"

// The addresses of the fake hosts, all of them in the namespace of the test alone.
const (
	internet = "203.0.113.10"
	metadata = "169.254.169.254"
	gateway  = "172.31.255.1"
	v6       = "2001:db8::10"
	loopback = "127.0.0.1"
	port     = "7443"
	abstract = "paddock-attacks-host"
)

// TestMain runs the tests again in namespaces of their own, so that no case can reach a
// real address, nor leave anything in the host's IPC or mounts.
func TestMain(m *testing.M) {
	if os.Getenv(insideVariable) != "" {
		os.Exit(m.Run())
	}
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "need root: run the tests as root, as `sudo make test` does")
		os.Exit(1)
	}
	os.Exit(inside())
}

func inside() int {
	cmd := exec.CommandContext(context.Background(), "/proc/self/exe", os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), insideVariable+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Unshareflags: unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWNS,
		Pdeathsig:    unix.SIGKILL,
	}
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "namespaces for the tests:", err)
		return 1
	}
	return 0
}

// fakeNetwork gives the fake hosts their addresses and lets each answer.
func fakeNetwork(t *testing.T, busybox string) {
	t.Helper()
	steps := []string{"link set lo up"}
	for _, a := range []string{internet, metadata, gateway} {
		steps = append(steps, "addr add "+a+"/32 dev lo")
	}
	if hasIPv6 {
		steps = append(steps, "-6 addr add "+v6+"/128 dev lo")
	}
	for _, s := range steps {
		if out, err := exec.CommandContext(t.Context(), busybox, append([]string{"ip"}, strings.Fields(s)...)...).CombinedOutput(); err != nil && !strings.Contains(string(out), "File exists") {
			t.Fatalf("ip %s: %v\n%s", s, err, out)
		}
	}
	// In the namespace of the test: anybody may send an echo there.
	if err := os.WriteFile("/proc/sys/net/ipv4/ping_group_range", []byte("0 2147483647"), 0); err != nil {
		t.Fatal(err)
	}
	var lc net.ListenConfig
	for _, at := range [][2]string{{"tcp", ":" + port}, {"unix", "@" + abstract}} {
		l, err := lc.Listen(t.Context(), at[0], at[1])
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = c.Write([]byte("reached"))
				_ = c.Close()
			}
		}()
		t.Cleanup(func() {
			_ = l.Close()
			<-done
		})
	}
}
