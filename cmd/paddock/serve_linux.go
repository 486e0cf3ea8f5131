package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/paddock-run/paddock/api"
	"github.com/paddock-run/paddock/daemon"
	"github.com/paddock-run/paddock/daemon/fusion"
	"github.com/paddock-run/paddock/internal/monitor"
	"github.com/paddock-run/paddock/internal/mount"
	"github.com/paddock-run/paddock/runner"
	"github.com/paddock-run/paddock/runner/app"
)

// privateEnv says to a daemon that it is in a mount namespace of its own already.
const privateEnv = "PADDOCK_PRIVATE_MOUNTS"

// serveOptions are the flags of `paddock serve`.
type serveOptions struct {
	root, socket, socketGroup string
	cgroupParent              string
	policyDir, secrets        string
	remote                    daemon.RemoteOptions
	tenants                   []string
	faults                    string
	logLevel, logFormat       string
	maxConns                  int
	judgeWorld, runCode       string
	appsPort                  string
	drain                     time.Duration
	profiles                  string
	stock                     runner.Stock
	snapshots                 string
	disk                      diskOptions
	launch                    launchOptions
}

func serveCommand(c *cli) *cobra.Command {
	var o serveOptions
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the daemon",
		Long: "Run the daemon in the foreground, in a mount namespace of its own, so that its death unmounts what it mounted.\n" +
			"SIGTERM or SIGINT drains: new episodes are refused, and live ones may end until --drain-timeout, then they are\n" +
			"cancelled (by the operator, so they may be retried). A second signal ends the draining at once.",
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.socket = api.SocketPath(c.socket)
			return o.serve(cmd.Context(), c.errs)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.root, "root", defaultRoot, "the store's directory")
	f.StringVar(&o.socketGroup, "socket-group", "", "group whose members may connect; root alone by default")
	f.StringVar(&o.remote.Address, "listen", "", "HOST:PORT for clients of other hosts, over TLS and with a token; nowhere by default")
	f.StringVar(&o.remote.CertFile, "tls-cert", "", "PEM certificate for --listen; clients may ask for its names alone")
	f.StringVar(&o.remote.KeyFile, "tls-key", "", "PEM key of --tls-cert")
	f.StringVar(&o.remote.TokenFile, "token-file", "", "file with a line TENANT TOKEN for each client of --listen; read again when it changes")
	f.StringArrayVar(&o.tenants, "tenant", nil, "NAME=UID[,UID...]: local users who share their runs; by default each user is a tenant of its own")
	f.StringVar(&o.cgroupParent, "cgroup-parent", defaultCgroupParent, "cgroup below which the daemon makes its own")
	f.StringVar(&o.secrets, "secrets", "", "file of headers that the proxies of episodes may add to requests, so that no sandbox holds them; see docs/network.md")
	f.StringVar(&o.policyDir, "policy-dir", "", "directory of policies of your own, NAME.json each; `paddock policy check FILE` checks one")
	f.StringVar(&o.faults, "inject-faults", "", "SHARE[:SEED]: kill the sandboxes of a share (0 to 1) of first attempts from outside, to prove retries")
	f.StringVar(&o.logLevel, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&o.logFormat, "log-format", "text", "text or json")
	f.IntVar(&o.maxConns, "max-connections", daemon.DefaultMaxConns, "cap of open connections")
	f.IntVar(&o.stock.Blanks, "blanks", 2, "sandboxes kept begun for any world and policy (namespaces, cgroups, PID 1), each used once")
	f.IntVar(&o.stock.Warm, "warm", 4, "most sandboxes kept ready for each world, policy and limits asked for lately or by the next episodes of batches, each used once")
	f.StringVar(&o.snapshots, "snapshots", "1GiB", "what the snapshots of one tenant's environments may take; the longest unused give way")
	f.StringVar(&o.disk.kind, "disk", "auto", "what holds the files of episodes with large disk limits: auto, tmpfs (memory), project (quotas of an XFS or ext4\nmounted with prjquota), loop (an image each), btrfs, none; auto is the first of project, btrfs, loop that works here")
	f.StringVar(&o.disk.above, "disk-above", "", "keep disk limits up to this in memory; by default a quarter of the host's memory with auto, else 0")
	f.BoolVar(&o.disk.unlimited, "i-want-no-disk-limits", false, "must go with --disk none, which lets any episode fill the store's disk")
	o.launch.flags(f)
	f.StringVar(&o.judgeWorld, "judge-world", "judge", "world of judgements that name none, and of /run_code")
	f.StringVar(&o.runCode, "run-code-port", "", "loopback ADDRESS:PORT that serves SandboxFusion's /run_code to every user of this host")
	f.StringVar(&o.appsPort, "apps-port", "", "loopback ADDRESS:PORT that serves /apps/NAME/ and /openenv/... to those users whom the socket lets in, each its tenant's")
	f.StringVar(&o.profiles, "pprof", "", "unix socket, of root alone, at which to serve /debug/pprof; off by default")
	f.DurationVar(&o.drain, "drain-timeout", 30*time.Second, "how long live episodes may take to end after a signal")
	return cmd
}

// snapshotBytes bounds the snapshots of one tenant.
func (o serveOptions) snapshotBytes() (int64, error) {
	n, err := api.ParseSize(o.snapshots)
	if err == nil && n <= 0 {
		err = errors.New("want more than 0")
	}
	if err != nil {
		return 0, usageError{errors.New("--snapshots: " + err.Error())}
	}
	return int64(n), nil
}

func (o serveOptions) serve(ctx context.Context, errs io.Writer) error {
	log, err := o.logger(errs)
	if err != nil {
		return err
	}
	faults, err := parseFaults(o.faults)
	if err != nil {
		return err
	}
	if _, err := o.tenantsByUID(); err != nil {
		return err
	}
	if _, err := o.snapshotBytes(); err != nil {
		return err
	}
	if err := o.checkRemote(); err != nil {
		return err
	}
	if err := errors.Join(o.disk.check(), o.launch.check()); err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return errors.New("serve: want root; the daemon makes sandboxes. `paddock doctor` says what this host lacks")
	}
	if !isPrivate() {
		return enterPrivate()
	}
	if err := monitor.Calm(); err != nil {
		log.Info("calls will take a little longer", slog.Any("error", err))
	}
	if o.root, err = resolveRoot(o.root); err != nil {
		return err
	}
	s, err := wire(ctx, o, faults, log)
	if err != nil {
		return err
	}
	stop := func() error { return nil }
	if o.profiles != "" {
		if stop, err = serveProfiles(ctx, o.profiles); err != nil {
			return errors.Join(err, s.apps.Close(ctx), s.runner.Close(ctx), s.close())
		}
	}
	return errors.Join(s.run(ctx, o, log), stop(), s.close())
}

// init pins the main goroutine of a daemon to the process's first thread. Threads that enter
// a sandbox's namespaces, or become another user, are never used again; were one of them the
// first, /proc/self would show that to the whole process.
func init() { //nolint:gochecknoinits // only before main is the main goroutine sure to be on the first thread
	if isPrivate() {
		runtime.LockOSThread()
	}
}

// isPrivate says whether enterPrivate started this program.
func isPrivate() bool { return os.Getenv(privateEnv) == strconv.Itoa(os.Getpid()) }

// enterPrivate starts this program again, as the same process, in a mount namespace of its
// own. Only a fresh program image has all of its threads there.
func enterPrivate() error {
	runtime.LockOSThread()
	if err := mount.PrivateNamespace(); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	env := append(os.Environ(), privateEnv+"="+strconv.Itoa(os.Getpid()))
	return fmt.Errorf("start again in a mount namespace of its own: %w", syscall.Exec(self, os.Args, env))
}

func (o serveOptions) logger(w io.Writer) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(o.logLevel)); err != nil {
		return nil, usageError{fmt.Errorf("--log-level %q: want debug, info, warn or error", o.logLevel)}
	}
	options := &slog.HandlerOptions{Level: level}
	switch o.logFormat {
	case "text":
		return slog.New(slog.NewTextHandler(w, options)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, options)), nil
	}
	return nil, usageError{fmt.Errorf("--log-format %q: want text or json", o.logFormat)}
}

// parseFaults reads SHARE[:SEED].
func parseFaults(text string) (*runner.Faults, error) {
	if text == "" {
		return nil, nil
	}
	share, seed, seeded := strings.Cut(text, ":")
	f := &runner.Faults{}
	var err error
	if f.Share, err = strconv.ParseFloat(share, 64); err != nil || !(f.Share >= 0 && f.Share <= 1) {
		return nil, usageError{fmt.Errorf("--inject-faults %q: want a share from 0 to 1, then :SEED if any", text)}
	}
	if seeded {
		n, err := strconv.ParseUint(seed, 10, 32)
		if err != nil {
			return nil, usageError{fmt.Errorf("--inject-faults %q: seed %q is no number from 0 to 4294967295", text, seed)}
		}
		f.Seed = uint32(n)
	}
	return f, nil
}

// checkRemote refuses a listener that would be less than it has to be.
func (o serveOptions) checkRemote() error {
	r := o.remote
	if r == (daemon.RemoteOptions{}) || r.Address != "" && r.CertFile != "" && r.KeyFile != "" && r.TokenFile != "" {
		return nil
	}
	return usageError{errors.New("--listen, --tls-cert, --tls-key and --token-file go together: there is no listener without TLS and tokens")}
}

// tenantsByUID reads NAME=UID[,UID...].
func (o serveOptions) tenantsByUID() (map[uint32]string, error) {
	all := map[uint32]string{}
	for _, text := range o.tenants {
		name, uids, _ := strings.Cut(text, "=")
		if err := daemon.CheckTenant(name); err != nil {
			return nil, usageError{fmt.Errorf("--tenant %q: %w", text, err)}
		}
		if _, err := strconv.ParseUint(name, 10, 64); err == nil {
			return nil, usageError{fmt.Errorf("--tenant %q: a name of digits is that of the user with this number", text)}
		}
		for u := range strings.SplitSeq(uids, ",") {
			uid, err := strconv.ParseUint(u, 10, 32)
			if err != nil || uid == 0 {
				return nil, usageError{fmt.Errorf("--tenant %q: want NAME=UID[,UID...], and root (0) is in none", text)}
			}
			if other, twice := all[uint32(uid)]; twice {
				return nil, usageError{fmt.Errorf("--tenant %q: uid %d is of tenant %s already", text, uid, other)}
			}
			all[uint32(uid)] = name
		}
	}
	return all, nil
}

// stack is the daemon's parts, joined.
type stack struct {
	runner *runner.Runner
	apps   *app.Service
	server *daemon.Server
	port   *fusion.Port     // nil is none
	web    *daemon.AppsPort // nil is none
	// close takes the rest down; the runner is closed by run.
	close func() error
}

// run serves until a signal comes or the server breaks, then drains.
func (s *stack) run(ctx context.Context, o serveOptions, log *slog.Logger) error {
	broken := make(chan error, 3)
	go func() { broken <- s.server.Serve() }()
	ready := []any{slog.String("socket", o.socket), slog.String("root", o.root), slog.String("version", version)}
	if at := s.server.RemoteAddr(); at != nil {
		ready = append(ready, slog.String("listen", at.String()))
	}
	if s.port != nil {
		ready = append(ready, slog.String("run_code", s.port.Addr()))
		go func() {
			if err := s.port.Serve(); err != nil {
				broken <- err
			}
		}()
	}
	if s.web != nil {
		ready = append(ready, slog.String("apps", s.web.Addr().String()))
		go func() {
			if err := s.web.Serve(); err != nil {
				broken <- err
			}
		}()
	}
	log.Info("ready", ready...)
	var failed error
	select {
	case failed = <-broken:
	case <-ctx.Done():
		log.Info("draining", slog.Duration("timeout", o.drain))
		s.drain(ctx, o.drain, log)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	// The runner before the server: it ends the calls in flight, whose answers the server then
	// sends. The apps before the runner, which would otherwise be asked for new replicas.
	failed = errors.Join(failed, s.apps.Close(ctx), s.runner.Close(ctx), s.server.Shutdown(ctx))
	if s.port != nil {
		failed = errors.Join(failed, s.port.Close(ctx))
	}
	if s.web != nil {
		failed = errors.Join(failed, s.web.Shutdown(ctx))
	}
	log.Info("stopped")
	return failed
}

// drain waits until live episodes have ended, the time is over, or another signal comes.
func (s *stack) drain(ctx context.Context, timeout time.Duration, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	ctx, stop := signalContext(ctx)
	defer stop()
	s.server.Drain()
	if err := s.runner.Drain(ctx); err != nil {
		log.Warn("drain", slog.Any("error", err))
	}
}
