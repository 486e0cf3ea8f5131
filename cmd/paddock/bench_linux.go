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

// benchDaemons are those that the rows need.
type benchDaemons struct {
	cold, warm *ownDaemon
	heavy      *accounted
}

// startBenchDaemons starts them with their stores below dir.
func startBenchDaemons(ctx context.Context, dir string, rows bench.Rows) (d benchDaemons, err error) {
	if d.cold, err = startOwnDaemon(ctx, dir, "--warm", "0"); err != nil {
		return d, err
	}
	if rows[bench.RowRounds] {
		if d.warm, err = startBesideDaemon(ctx, filepath.Join(dir, "warm"), "--warm", "4"); err != nil {
			return d, errors.Join(err, d.stop(ctx))
		}
	}
	if rows.Heavy() {
		if d.heavy, err = startAccounted(ctx, filepath.Join(dir, "heavy")); err != nil {
			return d, errors.Join(err, d.stop(ctx))
		}
	}
	return d, nil
}

func (d benchDaemons) config() bench.Config {
	cfg := bench.Config{Client: d.cold.client, Store: d.cold.store()}
	if d.warm != nil {
		cfg.Warm = d.warm.client
	}
	if d.heavy != nil {
		cfg.Heavy, cfg.HeavyCPU = d.heavy.client, d.heavy.cpu()
	}
	return cfg
}

func (d benchDaemons) stop(ctx context.Context) (err error) {
	if d.heavy != nil {
		err = d.heavy.stop(ctx)
	}
	if d.warm != nil {
		err = errors.Join(err, d.warm.stop(ctx))
	}
	return errors.Join(err, d.cold.stop(ctx))
}

// startBesideDaemon starts one more daemon, in a directory that it makes.
func startBesideDaemon(ctx context.Context, dir string, flags ...string) (*ownDaemon, error) {
	if err := os.Mkdir(dir, 0o755); err != nil { //nolint:gosec // agents reach their sockets through it
		return nil, err
	}
	return startOwnDaemon(ctx, dir, flags...)
}

// accounted is a daemon beside a cgroup that tells what it and its sandboxes use.
type accounted struct {
	*ownDaemon
	// account is nil where the host has none.
	account *bench.Account
}

// startAccounted starts a daemon in a directory that it makes.
func startAccounted(ctx context.Context, dir string) (*accounted, error) {
	if err := os.Mkdir(dir, 0o755); err != nil { //nolint:gosec // agents reach their sockets through it
		return nil, err
	}
	a := &accounted{}
	var by, flags []string
	var err error
	if a.account, err = bench.OpenAccount(fmt.Sprintf("paddock-bench-%d", os.Getpid())); err != nil && !errors.Is(err, bench.ErrNoAccount) {
		return nil, err
	}
	if a.account != nil {
		// Before the program begins: what it starts first must be in the account, too.
		by = []string{"/bin/sh", "-c", `echo $$ >"$1" && shift && exec "$@"`, "sh", a.account.Procs()}
		flags = []string{"--cgroup-parent", a.account.CgroupParent()}
	}
	if a.ownDaemon, err = startOwnDaemonBy(ctx, by, dir, flags...); err != nil {
		return nil, errors.Join(err, a.close(ctx))
	}
	return a, nil
}

// cpu is what the daemon and its sandboxes used; nil where that is not told.
func (a *accounted) cpu() func() (time.Duration, error) {
	if a.account == nil {
		return nil
	}
	return a.account.Used
}

func (a *accounted) stop(ctx context.Context) error {
	return errors.Join(a.ownDaemon.stop(ctx), a.close(ctx))
}

func (a *accounted) close(ctx context.Context) error {
	if a.account == nil {
		return nil
	}
	return a.account.Close(ctx)
}

// measure runs the bench with a launcher of its own beside the daemons, for what the
// daemon's part of a call is told from.
func measure(ctx context.Context, cfg bench.Config) (report bench.Report, err error) {
	if !cfg.Rows[bench.RowRounds] {
		return bench.Run(ctx, cfg)
	}
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
