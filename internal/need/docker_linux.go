package need

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience bounds how long a program may take to answer.
const patience = time.Minute

// Registry is a docker-registry of a test, with its data in the test's directory.
type Registry struct {
	// Addr is HOST:PORT on loopback, the same after a restart.
	Addr string
	tb   testing.TB
	dir  string
	cmd  *exec.Cmd
	log  said
}

// said is a buffer for several goroutines.
type said struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *said) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *said) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// StartRegistry starts an empty registry.
func StartRegistry(tb testing.TB) *Registry {
	tb.Helper()
	Command(tb, "docker-registry", "docker-registry")
	l, err := (&net.ListenConfig{}).Listen(tb.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	r := &Registry{tb: tb, Addr: l.Addr().String(), dir: tb.TempDir()}
	config := fmt.Sprintf("version: 0.1\nstorage:\n  filesystem:\n    rootdirectory: %s\nhttp:\n  addr: %s\n", r.dir, r.Addr)
	if err := errors.Join(l.Close(), os.WriteFile(filepath.Join(r.dir, "config.yml"), []byte(config), 0o600)); err != nil {
		tb.Fatal(err)
	}
	r.Start()
	tb.Cleanup(r.Kill)
	return r
}

// Start starts it again after Kill.
func (r *Registry) Start() {
	r.tb.Helper()
	r.cmd = exec.CommandContext(context.WithoutCancel(r.tb.Context()), "docker-registry", "serve", filepath.Join(r.dir, "config.yml"))
	r.cmd.Stdout, r.cmd.Stderr = &r.log, &r.log
	if err := r.cmd.Start(); err != nil {
		r.tb.Fatal(err)
	}
	await(r.tb, "docker-registry", &r.log, http.DefaultClient, "http://"+r.Addr+"/v2/")
}

// Kill is kill -9. It may be called again.
func (r *Registry) Kill() {
	if r.cmd != nil {
		_ = r.cmd.Process.Kill()
		_ = r.cmd.Wait()
		r.cmd = nil
	}
}

// Log is what the registry has said, its accesses included.
func (r *Registry) Log() string { return r.log.String() }

// await waits until something answers at a URL.
func await(tb testing.TB, name string, words fmt.Stringer, client *http.Client, url string) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), patience)
	defer cancel()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			tb.Fatal(err)
		}
		resp, err := client.Do(req)
		if err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
			return
		}
		select {
		case <-ctx.Done():
			tb.Fatalf("%s does not answer: %v\n%s", name, err, words)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// StartEngine starts a Docker Engine without a network, its mounts in a mount namespace of
// its own, and returns its URL.
func StartEngine(tb testing.TB) (host string) {
	tb.Helper()
	Root(tb)
	Overlay(tb)
	Command(tb, "dockerd", "docker.io")
	dir, err := os.MkdirTemp("", "dockerd") //nolint:usetesting // TempDir's names are too long for a socket
	if err != nil {
		tb.Fatal(err)
	}
	socket := filepath.Join(dir, "s")
	parent := "paddock-" + filepath.Base(dir)
	cmd := exec.CommandContext(context.WithoutCancel(tb.Context()), "dockerd",
		"--host", "unix://"+socket, "--data-root", dir+"/data", "--exec-root", dir+"/exec", "--pidfile", dir+"/pid",
		"--cgroup-parent", parent, "--bridge", "none", "--iptables=false", "--storage-driver", "overlay2")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	out := &said{}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		stop := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait()
		stop.Stop()
		removeCgroups(parent)
		if err := os.RemoveAll(dir); err != nil {
			tb.Error(err)
		}
	})
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}}
	defer client.CloseIdleConnections()
	await(tb, "dockerd", out, client, "http://docker/_ping")
	return "unix://" + socket
}

// removeCgroups removes the empty cgroups that an engine leaves in every hierarchy.
func removeCgroups(parent string) {
	var found []string
	_ = filepath.WalkDir("/sys/fs/cgroup", func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && d.Name() == parent {
			found = append(found, p)
			return fs.SkipDir
		}
		return nil
	})
	for _, p := range found {
		_ = os.Remove(p)
	}
}
