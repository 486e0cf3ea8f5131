// Package oci starts sandboxes by an OCI runtime: runc, crun, or gVisor's runsc.
//
// The launcher process of sandbox/native makes cgroups, layers and the overlay; where that
// would clone, this package writes a bundle (config.json) from the same runtime-spec and
// has the runtime start the guest in it:
//
//	launcher --run--detach--> runtime --> PID 1 (the guest), then the launcher's child
//
// A container's root is the fork's own overlay, so captures, disk limits and layered end
// states are those of a native sandbox. Nothing of a bundle or of the runtime's state is
// on the host: both are in the launcher's mount namespace.
package oci

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"regexp"
	"slices"
	"time"

	"github.com/paddock-run/paddock/sandbox"
	"github.com/paddock-run/paddock/sandbox/disk"
	"github.com/paddock-run/paddock/sandbox/native"
)

// Config is where a launcher works and what it calls.
type Config struct {
	// Dir, CgroupParent, Disk and Log are as in native.Config.
	Dir          string
	CgroupParent string
	Disk         disk.Backend
	Log          *slog.Logger
	// Runtime is runc, crun or runsc; Path is the program, by default the one of that name
	// in PATH.
	Runtime Kind
	Path    string
}

// Launcher implements runner.Launcher.
type Launcher struct{ l *native.Launcher }

// New looks at the runtime and starts the launcher process.
func New(ctx context.Context, cfg Config) (*Launcher, error) {
	if !slices.Contains(Kinds(), cfg.Runtime) {
		return nil, fmt.Errorf("runtime %q: want one of %v", cfg.Runtime, Kinds())
	}
	path, version, err := Find(ctx, cfg.Runtime, cfg.Path)
	if err != nil {
		return nil, err
	}
	origin := &native.Origin{
		Info: info(cfg.Runtime, version), Variable: entryVariable,
		Config: settings{Kind: cfg.Runtime, Path: path}, Stage: stage(cfg.Dir),
	}
	if cfg.Runtime == Runsc {
		origin.ReserveBytes, origin.ReservePids = sentryBytes, sentryPids
		origin.Rebind = []string{"/tmp"} // an empty one would get a tmpfs of gVisor's, which is in no capture
	}
	l, err := native.New(native.Config{Dir: cfg.Dir, CgroupParent: cfg.CgroupParent, Disk: cfg.Disk, Log: cfg.Log, Origin: origin})
	if err != nil {
		return nil, err
	}
	return &Launcher{l}, nil
}

// What gVisor's own processes need, beside those of the sandbox that they hold: 77 MB were
// measured, and threads by the dozen.
const (
	sentryBytes = 192 << 20
	sentryPids  = 512
)

// info is what a runtime can do.
func info(kind Kind, version string) sandbox.Info {
	i := sandbox.Info{
		Name: "oci", Runtime: string(kind) + " " + version, UserNS: true, Root: true, PTY: true, Freeze: true, Listen: true, PerCall: true,
	}
	if kind == Runsc {
		// No descriptor leaves gVisor but what came in, its loopback is its own, and to the
		// host all its processes are one.
		i.PTY, i.Listen, i.PerCall = false, false, false
	}
	return i
}

// stage is a directory that users of other namespaces can get to, which one below a store
// may not be.
func stage(dir string) string {
	sum := sha256.Sum256([]byte(dir))
	return "/run/paddock-oci-" + hex.EncodeToString(sum[:6])
}

var versionForm = regexp.MustCompile(`version (\S+)`)

// Find finds a runtime and asks it for its version.
func Find(ctx context.Context, kind Kind, path string) (found, version string, err error) {
	if path == "" {
		path = string(kind)
	}
	if path, err = exec.LookPath(path); err != nil {
		return "", "", fmt.Errorf("runtime %s: %w", kind, err)
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, "--version").Output()
	if err != nil {
		return "", "", fmt.Errorf("%s --version: %w", path, err)
	}
	m := versionForm.FindSubmatch(out)
	if m == nil {
		return "", "", errors.New(path + " --version names no version")
	}
	return path, string(m[1]), nil
}

// Start builds a sandbox and returns when its guest answers.
func (l *Launcher) Start(ctx context.Context, spec sandbox.Spec) (*native.Sandbox, error) {
	return l.l.Start(ctx, spec)
}

// Info says what this launcher can do here.
func (l *Launcher) Info() sandbox.Info { return l.l.Info() }

// Close ends every sandbox and the launcher process.
func (l *Launcher) Close() error { return l.l.Close() }

// ProcessID is the launcher process's, for people and tests.
func (l *Launcher) ProcessID() int { return l.l.ProcessID() }
