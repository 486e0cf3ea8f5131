package native

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/paddock-run/paddock/sandbox"
)

// listen opens the ports that were asked for in the sandbox's network namespace. The guest
// has brought its loopback up by now, and no program runs yet that could take a port.
func (b *building) listen() error {
	if len(b.r.Listen) == 0 {
		return nil
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread stays in that namespace and ends
		done <- b.listenHere()
	}()
	return <-done
}

// listenHere takes the thread that it runs on into the sandbox's network namespace.
func (b *building) listenHere() error {
	if err := unix.Setns(int(b.pidfd.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("join its network namespace: %w", err)
	}
	for _, port := range b.r.Listen {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return err
		}
		b.listeners = append(b.listeners, os.NewFile(uintptr(fd), "listener"))
		err = unix.Bind(fd, &unix.SockaddrInet4{Port: int(port), Addr: [4]byte{127, 0, 0, 1}})
		if err == nil {
			err = unix.Listen(fd, listenBacklog)
		}
		if err != nil {
			return fmt.Errorf("port %d: %w", port, err)
		}
	}
	return nil
}

// listenBacklog is how many connections may wait to be served; the next ones try again.
const listenBacklog = 128

// checkListen says what is wrong with the ports of a spec.
func checkListen(ports []uint16) error {
	if len(ports) > sandbox.MaxListen {
		return fmt.Errorf("sandbox with %d listeners, at most %d", len(ports), sandbox.MaxListen)
	}
	seen := map[uint16]bool{}
	for _, p := range ports {
		if p == 0 || seen[p] {
			return fmt.Errorf("sandbox with the listener %d twice, or on no port", p)
		}
		seen[p] = true
	}
	return nil
}

// Listeners are the sockets of sandbox.Spec.Listen, in that order. Close closes them; a
// connection that was accepted from one keeps the sandbox's network namespace until it is
// closed by who accepted it.
func (s *Sandbox) Listeners() []net.Listener { return s.listeners }

// listenersOf takes the descriptors over.
func listenersOf(files []*os.File) ([]net.Listener, error) {
	var all []net.Listener
	var failed error
	for _, f := range files {
		l, err := net.FileListener(f) // a duplicate
		_ = f.Close()
		if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		all = append(all, l)
	}
	if failed != nil {
		closeListeners(all)
		return nil, failed
	}
	return all, nil
}

func closeListeners(all []net.Listener) {
	for _, l := range all {
		_ = l.Close()
	}
}
