package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/paddock-run/paddock/internal/doctor"
	"github.com/paddock-run/paddock/internal/engine"
	"github.com/paddock-run/paddock/policies"
	"github.com/paddock-run/paddock/sandbox"
	"github.com/paddock-run/paddock/sandbox/docker"
	"github.com/paddock-run/paddock/sandbox/native"
	"github.com/paddock-run/paddock/sandbox/oci"
)

// launcherChecks tries every launcher: a sandbox of each is started and ended again, in a
// directory beside the store.
func launcherChecks(ctx context.Context, root string) []doctor.Check {
	if os.Geteuid() != 0 {
		return []doctor.Check{{Name: "launchers", Level: doctor.OK, Found: "tried as root alone"}}
	}
	found := []doctor.Launcher{{Name: "native", Err: tryLauncher(ctx, root, launchOptions{name: "native"})}}
	for _, kind := range oci.Kinds() {
		l := doctor.Launcher{Name: "oci --runtime " + string(kind), Program: string(kind)}
		if _, l.Version, l.Absent = oci.Find(ctx, kind, ""); l.Absent == nil {
			l.Err = tryLauncher(ctx, root, launchOptions{name: "oci", runtime: string(kind)})
		}
		found = append(found, l)
	}
	found = append(found, dockerLauncher(ctx, root))
	var checks []doctor.Check
	for _, l := range found {
		checks = append(checks, l.Check())
	}
	return checks
}

// dockerLauncher tries an engine that answers. One that is installed only is named with its
// version.
func dockerLauncher(ctx context.Context, root string) doctor.Launcher {
	l := doctor.Launcher{Name: "docker", Program: "docker"}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	e, err := engine.Dial(ctx, "")
	if err != nil {
		l.Absent = fmt.Errorf("no engine answers%s", installedDocker(ctx))
		return l
	}
	defer func() { _ = e.Close() }()
	l.Version = e.Version
	if _, l.Err = docker.Examine(ctx, e); l.Err == nil {
		l.Err = tryLauncher(ctx, root, launchOptions{name: "docker"})
	}
	l.Says = "; userns=false"
	return l
}

func installedDocker(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "dockerd", "--version").Output()
	if err != nil {
		return ""
	}
	text := strings.TrimSpace(string(out))
	if lacks := doctor.Unfixed("docker", text); len(lacks) > 0 {
		return fmt.Sprintf("; installed is %s, which lacks, by its number, the fixes of %s", text, strings.Join(lacks, "; "))
	}
	return "; installed is " + text
}

// tryLauncher starts a sandbox on an empty world and ends it. Nothing of it is left.
func tryLauncher(ctx context.Context, root string, o launchOptions) (err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	dir, err := os.MkdirTemp(existingDir(root), "paddock-doctor-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	// The lower's owner is mapped, so others must be able to go through it.
	world := filepath.Join(dir, "world")
	for _, d := range []string{"dev", "proc", "sys"} {
		if err := os.MkdirAll(filepath.Join(world, d), 0o755); err != nil { //nolint:gosec // as any world
			return err
		}
	}
	at := native.Config{Dir: filepath.Join(dir, "run"), CgroupParent: defaultCgroupParent + "/" + filepath.Base(dir)}
	if err := os.Mkdir(at.Dir, 0o700); err != nil {
		return err
	}
	spec, err := trialSpec(world)
	if err != nil {
		return err
	}
	l, err := o.start(ctx, at)
	if err != nil {
		return err
	}
	sb, err := l.Start(ctx, spec)
	if err == nil {
		err = sb.Close()
	}
	return errors.Join(err, l.Close())
}

// trialSpec is a sandbox of the default policy on a directory.
func trialSpec(world string) (sandbox.Spec, error) {
	set, err := policies.Load()
	if err != nil {
		return sandbox.Spec{}, err
	}
	p, err := set.Get("default")
	if err != nil {
		return sandbox.Spec{}, err
	}
	eff, _, err := p.Effective(policies.Limits{MemoryBytes: 64 << 20, DiskBytes: 1 << 20}, hostLimits())
	if err != nil {
		return sandbox.Spec{}, err
	}
	oci, err := p.Spec(eff, "doctor", "/")
	if err != nil {
		return sandbox.Spec{}, err
	}
	pool, err := sandbox.HostIDPool(maxSandboxes)
	if err != nil {
		return sandbox.Spec{}, err
	}
	// The last ranges of the pool are those that a daemon of this host hands out last.
	var ids sandbox.IDMap
	for range maxSandboxes {
		m, err := pool.Acquire()
		if err != nil {
			break
		}
		ids = m
	}
	return sandbox.Spec{
		Name: "doctor", IDs: ids, OCI: oci,
		Root: sandbox.Root{Lowers: []sandbox.Lower{{Path: world}}, Upper: sandbox.Upper{Bytes: eff.DiskBytes, Inodes: eff.Inodes}},
	}, nil
}

// existingDir climbs to the nearest directory that is there.
func existingDir(dir string) string {
	for {
		if info, err := os.Stat(dir); err == nil && info.IsDir() || dir == filepath.Dir(dir) {
			return dir
		}
		dir = filepath.Dir(dir)
	}
}
