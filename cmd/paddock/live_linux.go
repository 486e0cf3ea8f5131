package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paddock-run/paddock/internal/stray"
)

// liveDaemon finds the daemon that listens on socket and serves the store at root; the
// zero value when there is none.
func liveDaemon(ctx context.Context, socket, root string) (stray.Live, error) {
	dialer := net.Dialer{Timeout: 5 * time.Second}
	conn, err := dialer.DialContext(ctx, "unix", socket)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return stray.Live{}, nil
	}
	if err != nil {
		return stray.Live{}, fmt.Errorf("ask for the daemon at %s: %w", socket, err)
	}
	defer func() { _ = conn.Close() }()
	pid, err := peerPID(conn)
	if err != nil {
		return stray.Live{}, fmt.Errorf("ask who listens at %s: %w", socket, err)
	}
	live, ok, err := stray.Host{}.Daemon(pid, root)
	if err != nil || !ok {
		return stray.Live{}, err
	}
	return live, nil
}

// peerPID is the process that made the listening socket.
func peerPID(conn net.Conn) (int, error) {
	unixConn, ok := conn.(*net.UnixConn)
	if !ok {
		return 0, errors.New("not a unix socket")
	}
	raw, err := unixConn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) //nolint:gosec // a descriptor fits an int
	}); err != nil {
		return 0, err
	}
	if credErr != nil {
		return 0, credErr
	}
	return int(cred.Pid), nil
}
