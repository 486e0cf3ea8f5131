package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/paddock-run/paddock/cmd/paddock/bench"
	"github.com/paddock-run/paddock/policies"
	"github.com/paddock-run/paddock/sandbox"
	"github.com/paddock-run/paddock/sandbox/native"
)

// startBesideDaemon starts one more daemon, in a directory that it makes.
func startBesideDaemon(ctx context.Context, dir string, flags ...string) (*ownDaemon, error) {
	if err := os.Mkdir(dir, 0o755); err != nil { //nolint:gosec // agents reach their sockets through it
		return nil, err
	}
	return startOwnDaemon(ctx, dir, flags...)
}

// measure runs the bench with a launcher of its own beside the daemons, for what the
// daemon's part of a call is told from.
func measure(ctx context.Context, cfg bench.Config) (report bench.Report, err error) {
	d, err := newDirect(ctx, filepath.Join(cfg.Scratch, "direct"))
	if err != nil {
		return report, fmt.Errorf("a launcher without a daemon: %w", err)
	}
	defer func() { err = errors.Join(err, d.close()) }() //nolint:contextcheck // it ends with a deadline of its own
	cfg.Direct = d.execTrue
	return bench.Run(ctx, cfg)
}

// direct is one sandbox without a daemon.
type direct struct {
	launcher *native.Launcher
	sandbox  *native.Sandbox
}

func newDirect(ctx context.Context, dir string) (*direct, error) {
	root, err := busyboxRoot(filepath.Join(dir, "root"))
	if err != nil {
		return nil, err
	}
	set, err := policies.Load()
	if err != nil {
		return nil, err
	}
	pol, err := set.Get("default")
	if err != nil {
		return nil, err
	}
	eff, _, err := pol.Effective(policies.Limits{}, hostLimits())
	if err != nil {
		return nil, err
	}
	oci, err := pol.Spec(eff, "bench", "/")
	if err != nil {
		return nil, err
	}
	pool, err := sandbox.HostIDPool(maxSandboxes)
	if err != nil {
		return nil, err
	}
	// The last range: the daemons take theirs from the front.
	var ids sandbox.IDMap
	for pool.Free() > 0 {
		if ids, err = pool.Acquire(); err != nil {
			return nil, err
		}
	}
	l, err := native.New(native.Config{Dir: dir, CgroupParent: filepath.Join(defaultCgroupParent, fmt.Sprintf("bench-%d", os.Getpid()))})
	if err != nil {
		return nil, err
	}
	s, err := l.Start(ctx, sandbox.Spec{
		Name: "direct", IDs: ids, OCI: oci,
		Root: sandbox.Root{Lowers: []sandbox.Lower{{Path: root}}, Upper: sandbox.Upper{Bytes: eff.DiskBytes, Inodes: eff.Inodes}},
	})
	if err != nil {
		return nil, errors.Join(err, l.Close()) //nolint:contextcheck // as above
	}
	return &direct{launcher: l, sandbox: s}, nil
}

func (d *direct) execTrue(ctx context.Context) (time.Duration, error) {
	began := time.Now()
	p, err := d.sandbox.Start(ctx, sandbox.Command{Argv: []string{"/bin/true"}, Dir: "/"})
	if err != nil {
		return 0, err
	}
	exit := p.Wait()
	took := time.Since(began)
	if exit.Code == nil || *exit.Code != 0 {
		return 0, fmt.Errorf("true ended with %+v", exit)
	}
	return took, nil
}

func (d *direct) close() error { return errors.Join(d.sandbox.Close(), d.launcher.Close()) }

// busyboxRoot makes the smallest root directory with a true.
func busyboxRoot(root string) (string, error) {
	path, err := exec.LookPath("busybox")
	if err != nil {
		return "", err
	}
	program, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	for _, dir := range []string{"bin", "dev", "proc", "sys", "etc", "tmp"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil { //nolint:gosec // a root directory as any
			return "", err
		}
	}
	return root, errors.Join(
		os.WriteFile(filepath.Join(root, "bin/busybox"), program, 0o755), //nolint:gosec // a program
		os.Symlink("busybox", filepath.Join(root, "bin/true")))
}
