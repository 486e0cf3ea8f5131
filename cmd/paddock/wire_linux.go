package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	"github.com/paddock-run/paddock/daemon"
	"github.com/paddock-run/paddock/daemon/fusion"
	"github.com/paddock-run/paddock/internal/egress"
	"github.com/paddock-run/paddock/policies"
	"github.com/paddock-run/paddock/runner"
	"github.com/paddock-run/paddock/runner/app"
	"github.com/paddock-run/paddock/runner/dataset"
	"github.com/paddock-run/paddock/runner/dockerfile"
	"github.com/paddock-run/paddock/runner/judge"
	"github.com/paddock-run/paddock/runner/record"
	"github.com/paddock-run/paddock/runner/simulator"
	"github.com/paddock-run/paddock/sandbox"
)

// maxSandboxes bounds the sandboxes at a time: each has a range of user ids.
const maxSandboxes = 8192

// wire joins the daemon's parts. What was opened before a failure is closed again.
func wire(ctx context.Context, o serveOptions, faults *runner.Faults, log *slog.Logger) (s *stack, err error) {
	var closers []func() error
	closeAll := func() error {
		var failed error
		for _, c := range slices.Backward(closers) {
			failed = errors.Join(failed, c())
		}
		return failed
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, closeAll())
		}
	}()
	set, secrets, err := o.readFiles()
	if err != nil {
		return nil, err
	}
	store, err := openStore(ctx, o.root, log)
	if err != nil {
		return nil, fmt.Errorf("store %s: %w", o.root, err)
	}
	closers = append(closers, store.Close)
	rec, err := record.Open(ctx, o.root)
	if err != nil {
		return nil, err
	}
	closers = append(closers, rec.Close)
	run := filepath.Join(o.root, "run")
	// Agents that are processes of the host must get to their sockets, and nowhere else:
	// they may enter the root but not list it, and what else is in it is the daemon's alone.
	if err := os.Chmod(o.root, 0o711); err != nil { //nolint:gosec // see above
		return nil, err
	}
	sockets, err := daemon.NewSockets(filepath.Join(run, "sockets"))
	if err != nil {
		return nil, err
	}
	host := hostLimits()
	layers, err := o.disk.open(ctx, filepath.Join(run, "disk"), &host, log)
	if err != nil {
		return nil, err
	}
	closers = append(closers, func() error { return closeDisk(layers) })
	launcher, err := o.launcher(ctx, filepath.Join(run, "launcher"), layers, log)
	if err != nil {
		return nil, err
	}
	closers = append(closers, launcher.Close)
	ids, err := sandbox.HostIDPool(maxSandboxes)
	if err != nil {
		return nil, err
	}
	r, err := runner.New(ctx, runner.Config{
		Root: o.root, Launcher: launcher, Worlds: store, Record: rec, Policies: set, Host: host, IDs: ids,
		Sockets: sockets, Egress: egress.NewHost(secrets, log), Log: log, Faults: faults, Stock: o.stock,
	})
	if err != nil {
		return nil, err
	}
	judges := judge.New(r, log)
	closers = append(closers, func() error { judges.Close(); return nil })
	st, err := o.listen(ctx, rec, daemon.Config{
		Judge: judges, JudgeWorld: o.judgeWorld, Dockerfiles: dockerfile.New(r, store),
		Runner: r, Policies: set, Launcher: launcher, Sockets: sockets, Spool: filepath.Join(o.root, "tmp"), Version: version,
		Socket: daemon.SocketOptions{Path: o.socket, Group: o.socketGroup}, Remote: o.remote, Host: host, Log: log, MaxConns: o.maxConns,
	})
	if err != nil {
		return nil, errors.Join(err, r.Close(ctx))
	}
	st.close = closeAll
	return st, nil
}

// listen makes the server, with the apps that the journal has, and opens everything that
// clients can connect to.
func (o serveOptions) listen(ctx context.Context, journal app.Journal, cfg daemon.Config) (_ *stack, err error) {
	if cfg.Apps, err = app.Open(ctx, cfg.Runner, journal, filepath.Join(o.root, "apps"), cfg.Log); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, cfg.Apps.Close(ctx))
		}
	}()
	if cfg.Tenants, err = o.tenantsByUID(); err != nil {
		return nil, err
	}
	if cfg.Datasets, err = dataset.Open(filepath.Join(o.root, "datasets")); err != nil {
		return nil, err
	}
	bound, err := o.snapshotBytes()
	if err != nil {
		return nil, err
	}
	if cfg.Simulators, err = simulator.New(cfg.Runner, simulator.Options{Dir: filepath.Join(o.root, "snapshots"), SnapshotBytes: bound}); err != nil {
		return nil, err
	}
	server, err := daemon.New(cfg)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(o.socket), 0o755); err != nil {
		return nil, err
	}
	if err := server.Listen(ctx); err != nil {
		return nil, err
	}
	st := &stack{runner: cfg.Runner, apps: cfg.Apps, server: server}
	if o.appsPort != "" {
		if st.web, err = server.ListenApps(ctx, o.appsPort); err != nil {
			return nil, errors.Join(err, server.Shutdown(ctx))
		}
	}
	if o.runCode == "" {
		return st, nil
	}
	if st.port, err = fusion.Listen(ctx, o.runCode, server.Fusion(), cfg.Log); err != nil {
		if st.web != nil {
			err = errors.Join(err, st.web.Close())
		}
		return nil, errors.Join(err, server.Shutdown(ctx))
	}
	return st, nil
}

// readFiles reads the policies, and what the proxies of episodes may add to requests.
func (o serveOptions) readFiles() (*policies.Set, egress.Secrets, error) {
	set, err := loadPolicies(o.policyDir)
	if err != nil || o.secrets == "" {
		return set, nil, err
	}
	secrets, err := egress.ReadSecrets(o.secrets)
	return set, secrets, err
}
