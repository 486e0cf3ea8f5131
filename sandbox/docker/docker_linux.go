// Package docker starts sandboxes by a Docker Engine of this host.
//
// The launcher process of sandbox/native makes cgroups, layers and the overlay; where that
// would clone, this package asks the engine for a container whose image holds the guest
// alone. The engine gives it namespaces, capabilities, a seccomp profile, limits and no
// network. PID 1 then dials the launcher, which puts the fork in the place of the image:
//
//	launcher --create, start--> engine --> PID 1 (the guest), a child of the engine's
//	launcher <--dial a socket that is mounted into the image-- PID 1, which is given its own
//	launcher --setns, move the fork and /proc, pivot_root--> PID 1 sees the fork
//
// So captures, disk limits and layered end states are those of a native sandbox, whatever
// the engine's storage driver is. There is no user namespace: users are the host's, each
// sandbox's in the range that a map would give it, and none has a capability.
package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/paddock-run/paddock/guest"
	"github.com/paddock-run/paddock/internal/engine"
	"github.com/paddock-run/paddock/sandbox"
	"github.com/paddock-run/paddock/sandbox/disk"
	"github.com/paddock-run/paddock/sandbox/native"
)

// Config is where a launcher works and what it talks to.
type Config struct {
	// Dir, CgroupParent, Disk and Log are as in native.Config. Dir is in a directory that the
	// engine sees, too.
	Dir          string
	CgroupParent string
	Disk         disk.Backend
	Log          *slog.Logger
	// Host is the engine's URL; empty means DOCKER_HOST or the default socket.
	Host string
}

// Launcher implements runner.Launcher.
type Launcher struct {
	l    *native.Launcher
	host string
	// parent marks its containers.
	parent string
	// sockets is the directory that PID 1s dial in.
	sockets string
}

// New asks the engine what it is, removes the containers that a dead daemon left, and
// starts the launcher process. The image of PID 1 stays with the engine.
func New(ctx context.Context, cfg Config) (*Launcher, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	e, err := engine.Dial(ctx, cfg.Host)
	if err != nil {
		return nil, err
	}
	defer func() { _ = e.Close() }()
	facts, err := Examine(ctx, e)
	if err != nil {
		return nil, err
	}
	image, err := guestImage(ctx, e)
	if err != nil {
		return nil, err
	}
	if err := sweep(ctx, e, cfg.CgroupParent, cfg.Log); err != nil {
		return nil, err
	}
	sockets := filepath.Join(cfg.Dir, "sockets")
	if err := errors.Join(os.RemoveAll(sockets), os.MkdirAll(sockets, 0o700)); err != nil {
		return nil, err
	}
	sum := sha256.Sum256([]byte(cfg.CgroupParent))
	s := settings{
		Host: e.Host(), Image: image, Dir: sockets, Parent: cfg.CgroupParent, Mark: hex.EncodeToString(sum[:4]),
		Cgroupfs: facts.Cgroup == "cgroupfs",
	}
	l, err := native.New(native.Config{
		Dir: cfg.Dir, CgroupParent: cfg.CgroupParent, Disk: cfg.Disk, Log: cfg.Log,
		Origin: &native.Origin{
			Info: sandbox.Info{
				Name: "docker", Runtime: "docker " + e.Version, PTY: true, Freeze: true, Listen: true, PerCall: true,
			},
			Variable: entryVariable, Config: s, Stage: filepath.Join(cfg.Dir, "stage"), Powerless: true,
		},
	})
	if err != nil {
		return nil, err
	}
	return &Launcher{l: l, host: s.Host, parent: cfg.CgroupParent, sockets: sockets}, nil
}

// Examine refuses an engine that could not start a sandbox as it is meant to be.
func Examine(ctx context.Context, e *engine.Engine) (engine.Facts, error) {
	f, err := e.Facts(ctx)
	switch {
	case err != nil:
		return f, err
	case !strings.HasPrefix(e.Host(), "unix://"):
		return f, fmt.Errorf("docker engine at %s: want one of this host, by a unix socket", e.Host())
	case slices.Contains(f.Security, "userns") || slices.Contains(f.Security, "rootless"):
		return f, errors.New("docker engine remaps users (userns-remap or rootless), so that its containers' are not the host's")
	case !slices.Contains(f.Security, "seccomp"):
		return f, errors.New("docker engine has no seccomp")
	}
	return f, nil
}

// sweep removes the containers of a launcher that is gone.
func sweep(ctx context.Context, e *engine.Engine, parent string, log *slog.Logger) error {
	left, err := e.Labelled(ctx, label, parent)
	if err != nil {
		return err
	}
	for _, id := range left {
		if err := e.Discard(ctx, id); err != nil {
			return err
		}
	}
	if len(left) > 0 {
		log.Info("removed containers of a dead daemon", slog.Int("count", len(left)))
	}
	return nil
}

// guestImage gives the engine the image of PID 1, unless it has it, and says its name.
func guestImage(ctx context.Context, e *engine.Engine) (string, error) {
	program, err := guest.Binary()
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(program)
	ref := "paddock-guest:" + hex.EncodeToString(sum[:8])
	there, err := e.HasImage(ctx, ref)
	if err != nil || there {
		return ref, err
	}
	archive, err := guestTar(program)
	if err != nil {
		return "", err
	}
	return ref, e.Import(ctx, ref, archive)
}

// guestTar is the image's one layer: PID 1, and the directories that something is mounted on.
func guestTar(program []byte) (io.Reader, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, dir := range []string{"dev", "proc", "sys", "etc", socketDir[1:], forkDir[1:]} {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755}); err != nil {
			return nil, err
		}
	}
	h := &tar.Header{Typeflag: tar.TypeReg, Name: guestPath[1:], Mode: 0o555, Size: int64(len(program))}
	if err := w.WriteHeader(h); err != nil {
		return nil, err
	}
	if _, err := w.Write(program); err != nil {
		return nil, err
	}
	return &b, w.Close()
}

// Start builds a sandbox and returns when its guest answers.
func (l *Launcher) Start(ctx context.Context, spec sandbox.Spec) (*native.Sandbox, error) {
	return l.l.Start(ctx, spec)
}

// Info says what this launcher can do here.
func (l *Launcher) Info() sandbox.Info { return l.l.Info() }

// Close ends every sandbox and the launcher process, and removes what containers a launcher
// process that died has left.
func (l *Launcher) Close() error {
	err := errors.Join(l.l.Close(), os.RemoveAll(l.sockets))
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	e, derr := engine.Dial(ctx, l.host)
	if derr != nil {
		return errors.Join(err, derr)
	}
	return errors.Join(err, sweep(ctx, e, l.parent, slog.New(slog.DiscardHandler)), e.Close())
}

// ProcessID is the launcher process's, for people and tests.
func (l *Launcher) ProcessID() int { return l.l.ProcessID() }
