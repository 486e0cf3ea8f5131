package oci

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/paddock-run/paddock/internal/mount"
	"github.com/paddock-run/paddock/sandbox/native"
)

// Kind is a runtime's way of being called.
type Kind string

// The runtimes.
const (
	Runc  Kind = "runc"
	Crun  Kind = "crun"
	Runsc Kind = "runsc"
)

// Kinds are all runtimes.
func Kinds() []Kind { return []Kind{Runc, Crun, Runsc} }

// starter implements native.Starter in the launcher process.
type starter struct {
	env  native.Env
	kind Kind
	path string
	// state is where the runtime keeps what it knows of containers: in the launcher's mount
	// namespace, so that it is gone with the launcher.
	state string
}

// settings travel to the launcher process.
type settings struct {
	Kind Kind
	Path string
}

func newStarter(config json.RawMessage, env native.Env) (native.Starter, error) {
	var s settings
	if err := json.Unmarshal(config, &s); err != nil {
		return nil, err
	}
	st := &starter{env: env, kind: s.Kind, path: s.Path, state: filepath.Join(env.Stage(), "state")}
	return st, os.Mkdir(st.state, 0o711) //nolint:gosec // mapped users go through it
}

// Start writes the bundle and runs the runtime, which leaves PID 1 behind as the
// launcher's child.
func (s *starter) Start(c *native.Container) (native.Started, error) {
	b, err := json.Marshal(config(c, s.kind))
	if err != nil {
		return native.Started{}, err
	}
	if err := os.WriteFile(filepath.Join(c.Dir, "config.json"), b, 0o600); err != nil {
		return native.Started{}, err
	}
	pidFile := filepath.Join(c.Dir, "pid")
	run := func() error { return s.env.Run(c.Unified, s.command(c, pidFile), c.Socket, c.Program) }
	switch {
	case s.kind == Runsc: // its processes are the sandbox
		run = func() error {
			return c.Inside(func(cgroup *os.File) error { return s.env.Run(cgroup, s.command(c, pidFile), c.Socket, c.Program) })
		}
	case s.kind == Crun && s.env.Hybrid():
		run = withoutUnified(run)
	}
	if err := run(); err != nil {
		return native.Started{}, err
	}
	text, err := os.ReadFile(pidFile)
	if err != nil {
		return native.Started{}, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return native.Started{}, fmt.Errorf("%s wrote no process id: %w", s.kind, err)
	}
	return native.Started{PID: pid}, nil
}

// command is how the runtime is told to start a container and to end itself, with
// the socket and PID 1's program passed on.
func (s *starter) command(c *native.Container, pidFile string) []string {
	argv := append([]string{s.path}, s.globals()...)
	argv = append(argv, "run", "--detach", "--bundle", c.Dir, "--pid-file", pidFile)
	if s.kind == Runsc {
		argv = append(argv, "--pass-fd", "3:3", "--exec-fd", "4")
	} else {
		argv = append(argv, "--preserve-fds", "2")
	}
	return append(argv, c.Name)
}

func (s *starter) globals() []string {
	g := []string{"--root", s.state}
	if s.kind == Runsc {
		// The root is a fork already; the daemon reads and writes it beside the sandbox; and
		// the only network is a loopback of gVisor's own.
		g = append(g, "--overlay2=none", "--file-access=shared", "--network=none", "--ignore-cgroups")
	}
	return g
}

// Remove has the runtime forget a container, and kill it if it still runs.
func (s *starter) Remove(name string) error {
	if _, err := os.Stat(filepath.Join(s.state, name)); s.kind != Runsc && errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	argv := append([]string{s.path}, s.globals()...)
	err := s.env.Run(nil, append(argv, "delete", "--force", name))
	if err != nil && strings.Contains(err.Error(), "does not exist") {
		return nil
	}
	return err
}

// withoutUnified runs work where the host's cgroup2 hierarchy is not seen: crun refuses a
// hybrid host on which that has a controller, though the ones that matter are those of v1.
func withoutUnified(work func() error) func() error {
	return func() error {
		done := make(chan error)
		go func() {
			runtime.LockOSThread() // and never unlocked: the thread's namespace ends with it
			err := mount.PrivateNamespace()
			if err == nil {
				err = mount.Detach("/sys/fs/cgroup/unified")
			}
			if err == nil {
				err = work()
			}
			done <- err
		}()
		return <-done
	}
}
