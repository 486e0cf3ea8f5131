package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/paddock-run/paddock/cmd/paddock/bench"
)

// hostileOptions are the flags of `paddock bench hostile`.
type hostileOptions struct {
	root, cgroupParent       string
	episodes, atOnce, beside int
	idle                     time.Duration
	only                     []string
}

// hostileReport is what `paddock bench hostile --json` prints.
type hostileReport struct {
	bench.HostileReport
	Strays int
}

func benchHostile(c *cli) *cobra.Command {
	var o hostileOptions
	cmd := &cobra.Command{
		Use:   "hostile",
		Short: "Measure what ordinary episodes notice of fork bombs, memory bombs, floods and disk fills beside them",
		Long: "Starts a daemon of its own. Ordinary episodes call and think, first alone, then beside hostile episodes, then\n" +
			"alone again. Exit code 1 when a result of either kind is not the typed one that it must be, or the audit\n" +
			"afterwards finds strays; times are printed, not judged.",
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), c) },
	}
	f := cmd.Flags()
	f.StringVar(&o.root, "root", "", "directory for the store, removed again (default on a tmpfs)")
	f.StringVar(&o.cgroupParent, "cgroup-parent", defaultCgroupParent, "cgroup below which the daemon makes its own")
	f.IntVar(&o.episodes, "episodes", 216, "hostile episodes in all")
	f.IntVar(&o.atOnce, "at-once", 12, "hostile episodes at a time")
	f.IntVar(&o.beside, "ordinary", 20, "ordinary episodes")
	f.StringSliceVar(&o.only, "only", nil, "kinds of hostile episodes, such as flood; all by default")
	f.DurationVar(&o.idle, "idle", 15*time.Second, "how long the ordinary ones are alone, before and after")
	return cmd
}

func (o hostileOptions) run(ctx context.Context, c *cli) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("the bench starts a daemon and must run as root")
	}
	if o.episodes < 1 || o.atOnce < 1 || o.beside < 1 {
		return usageError{errors.New("--episodes, --at-once and --ordinary: want at least 1")}
	}
	parent := o.root
	if parent == "" {
		parent = tmpfsDir()
	}
	dir, err := os.MkdirTemp(parent, "paddock-hostile-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	d, err := startOwnDaemon(ctx, dir, "--cgroup-parent", o.cgroupParent)
	if err != nil {
		return err
	}
	m := c.meter()
	report, err := bench.Hostile(ctx, bench.HostileConfig{
		Client: d.client, Hostile: o.episodes, AtOnce: o.atOnce, Ordinary: o.beside, Idle: o.idle, Only: o.only,
		Progress: func(step string, done, total int) { m.at(step, int64(done), int64(total)) },
	})
	m.finish()
	live, auditErr := audit(ctx, auditOptions{root: d.store(), cgroupParent: o.cgroupParent})
	if err := errors.Join(err, auditErr, d.stop(ctx)); err != nil {
		return fmt.Errorf("%w; the daemon said: %s", err, lastLine(d.log()))
	}
	after, err := audit(ctx, auditOptions{root: d.store(), cgroupParent: o.cgroupParent})
	if err != nil {
		return err
	}
	out := hostileReport{HostileReport: report, Strays: len(live.Strays) + len(after.Strays)}
	if err := c.show(out, func(w io.Writer) {
		_, _ = io.WriteString(w, report.Text())
		fmt.Fprintf(w, "audit: %d strays beside the daemon, %d after it\n", len(live.Strays), len(after.Strays))
	}); err != nil {
		return err
	}
	if out.Strays > 0 || len(report.Wrong) > 0 {
		return exitError{code: exitFailed}
	}
	return nil
}
