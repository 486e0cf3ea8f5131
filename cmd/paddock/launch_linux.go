package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/paddock-run/paddock/runner"
	"github.com/paddock-run/paddock/sandbox"
	"github.com/paddock-run/paddock/sandbox/disk"
	"github.com/paddock-run/paddock/sandbox/docker"
	"github.com/paddock-run/paddock/sandbox/native"
	"github.com/paddock-run/paddock/sandbox/oci"
)

// launcherNames are what --launcher can be.
var launcherNames = []string{"native", "oci", "docker"}

// launchOptions are the flags that say who starts sandboxes.
type launchOptions struct {
	name, runtime, path, engine string
}

func (o *launchOptions) flags(f *pflag.FlagSet) {
	f.StringVar(&o.name, "launcher", "native", "who starts sandboxes: native (this program), oci (a runtime), docker (a Docker Engine of this host)")
	f.StringVar(&o.runtime, "runtime", "", "runtime of --launcher oci: runc (default), crun or runsc")
	f.StringVar(&o.path, "runtime-path", "", "program of --runtime; by default the one of that name in PATH")
	f.StringVar(&o.engine, "docker-host", "", "engine of --launcher docker, unix://PATH; by default DOCKER_HOST or the usual socket")
}

// args are the flags again, for a daemon of this program's own.
func (o *launchOptions) args() []string {
	var args []string
	for _, f := range [][2]string{{"--launcher", o.name}, {"--runtime", o.runtime}, {"--runtime-path", o.path}, {"--docker-host", o.engine}} {
		if f[1] != "" {
			args = append(args, f[0], f[1])
		}
	}
	return args
}

// check finds what makes no sense before anything is opened.
func (o *launchOptions) check() error {
	switch {
	case !slices.Contains(launcherNames, o.name):
		return usageError{fmt.Errorf("--launcher %q: want one of %s", o.name, strings.Join(launcherNames, ", "))}
	case o.name != "oci" && (o.runtime != "" || o.path != ""):
		return usageError{errors.New("--runtime and --runtime-path go with --launcher oci")}
	case o.name != "docker" && o.engine != "":
		return usageError{errors.New("--docker-host goes with --launcher docker")}
	case o.runtime != "" && !slices.Contains(oci.Kinds(), oci.Kind(o.runtime)):
		return usageError{fmt.Errorf("--runtime %q: want one of %v", o.runtime, oci.Kinds())}
	}
	return nil
}

// startingLauncher is what all launchers have.
type startingLauncher interface {
	Start(ctx context.Context, spec sandbox.Spec) (*native.Sandbox, error)
	Info() sandbox.Info
	Close() error
}

// launcher starts the launcher that was asked for.
func (o *serveOptions) launcher(ctx context.Context, dir string, layers disk.Backend, log *slog.Logger) (runner.Launcher, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	return o.launch.start(ctx, native.Config{Dir: dir, CgroupParent: filepath.Join(o.cgroupParent, storeHash(o.root)), Disk: layers, Log: log})
}

func (o *launchOptions) start(ctx context.Context, at native.Config) (runner.Launcher, error) {
	var l startingLauncher
	var err error
	switch o.name {
	case "oci":
		kind := oci.Runc
		if o.runtime != "" {
			kind = oci.Kind(o.runtime)
		}
		l, err = oci.New(ctx, oci.Config{Dir: at.Dir, CgroupParent: at.CgroupParent, Disk: at.Disk, Log: at.Log, Runtime: kind, Path: o.path})
	case "docker":
		l, err = docker.New(ctx, docker.Config{Dir: at.Dir, CgroupParent: at.CgroupParent, Disk: at.Disk, Log: at.Log, Host: o.engine})
	default:
		n, err := native.New(at)
		if err != nil {
			return nil, err
		}
		return preparingLauncher{launcher{n}, n}, nil
	}
	if err != nil {
		return nil, err
	}
	return launcher{l}, nil
}

// launcher and box give the launchers' types as the runner's interfaces, which they do not
// know.
type launcher struct{ startingLauncher }

// Start starts a sandbox.
func (l launcher) Start(ctx context.Context, spec sandbox.Spec) (runner.Sandbox, error) {
	s, err := l.startingLauncher.Start(ctx, spec)
	if err != nil {
		return nil, err
	}
	return box{s}, nil
}

// preparingLauncher is one that makes blanks, too.
type preparingLauncher struct {
	launcher
	runner.Preparer
}

type box struct{ *native.Sandbox }

// Files are the sandbox's files.
func (s box) Files() runner.Files { return s.Sandbox.Files() }
