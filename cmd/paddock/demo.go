package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/paddock-run/paddock/api"
	"github.com/paddock-run/paddock/examples/demo"
)

// demoMark is a file that says that a directory was made by the demo and may be cleared.
const demoMark = "paddock-demo"

// demoFaults fails one first attempt in ten.
const demoFaults = "0.1:7"

// demoOptions are the flags of `paddock demo`.
type demoOptions struct {
	root   string
	resume bool
	seed   uint32
	launch launchOptions
}

func demoCommand(c *cli) *cobra.Command {
	var o demoOptions
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Run a training loop of 64 episodes end to end and check everything that it prints",
		Long: "Starts a daemon of its own, builds three worlds of documents, runs a batch of 64 episodes whose agents are\n" +
			"processes of an unprivileged user, fails a tenth of the first attempts on purpose, scores the end states, scores\n" +
			"them again with another grader, and runs one episode again. Any claim that does not hold is an error.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runDemo(cmd.Context(), c, o) },
	}
	flags := cmd.Flags()
	flags.StringVar(&o.root, "root", "", "directory for the store and the records (default paddock-demo on a tmpfs)")
	flags.BoolVar(&o.resume, "resume", false, "go on with the batch that a killed daemon or demo left in --root")
	flags.Uint32Var(&o.seed, "seed", 1, "seed of the documents")
	o.launch.flags(flags)
	return cmd
}

// demoAgentCommand is what the daemon runs for each episode of the demo.
func demoAgentCommand() *cobra.Command {
	return &cobra.Command{
		Use: "demo-agent", Short: "The demo's agent: plays the episode that the environment names", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			client := api.NewClient(api.SocketPath(""))
			defer client.Close()
			return demo.PlayEpisode(cmd.Context(), client, api.Key{Run: os.Getenv("PADDOCK_RUN"), ID: os.Getenv("PADDOCK_EPISODE")})
		},
	}
}

func runDemo(ctx context.Context, c *cli, o demoOptions) (err error) {
	began := time.Now()
	if os.Geteuid() != 0 {
		return errors.New("the demo starts a daemon and must run as root")
	}
	if err := o.launch.check(); err != nil {
		return err
	}
	dir, err := demoDir(ctx, o)
	if err != nil {
		return err
	}
	d, err := startOwnDaemon(ctx, dir, append(o.launch.args(), "--inject-faults", demoFaults)...)
	if err != nil {
		return err
	}
	m := c.meter()
	sum, err := demo.Run(ctx, demo.Config{
		Client: d.client, Dir: dir, Agent: []string{d.program(), "demo-agent"}, Seed: o.seed, Resume: o.resume, Out: c.out,
		Progress: func(done, total int) { m.at("episodes", int64(done), int64(total)) },
	})
	m.finish()
	err = errors.Join(err, d.stop(ctx))
	if err != nil {
		return fmt.Errorf("%w\n  the daemon's log is %s; go on with `paddock demo --root %s --resume`", err, d.log(), dir)
	}
	report, err := audit(ctx, auditOptions{root: d.store(), cgroupParent: defaultCgroupParent})
	if err != nil {
		return err
	}
	if n := len(report.Strays); n > 0 {
		printAudit(c.out, report)
		return fmt.Errorf("the demo left %d strays", n)
	}
	fmt.Fprintf(c.out, "records: %s (%s), journal: %s, all in %.1f s\n", filepath.Join(d.store(), "episodes"), filepath.Join(d.store(), "paddock.db"),
		filepath.Join(dir, "completed.jsonl"), time.Since(began).Seconds())
	fmt.Fprintf(c.out, "demo ok: %d episodes, %d scored, %d retried, rerun digest equal\n", sum.Episodes, sum.Scored, sum.Retried)
	return nil
}

// demoDir makes the demo's directory, clearing what an earlier demo left unless that is
// to be resumed.
func demoDir(ctx context.Context, o demoOptions) (string, error) {
	dir := o.root
	if dir == "" {
		dir = filepath.Join(tmpfsDir(), "paddock-demo")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	// Its default place is in a directory that anybody may write to.
	if err := ours(dir); err != nil {
		return "", err
	}
	mark := filepath.Join(dir, demoMark)
	_, err = os.Stat(mark)
	switch {
	case o.resume && err != nil:
		return "", fmt.Errorf("%s holds no demo to resume: %w", dir, err)
	case o.resume:
		return dir, nil
	case err == nil:
		if err := clearDemo(ctx, dir); err != nil {
			return "", err
		}
	case !errors.Is(err, fs.ErrNotExist):
		return "", err
	}
	// Agents are users of their own and must reach their sockets and their program.
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // see above
		return "", err
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		return "", errors.Join(err, fmt.Errorf("%s is not empty and was not made by the demo", dir))
	}
	return dir, os.WriteFile(mark, []byte("made by `paddock demo`, which clears it\n"), 0o600)
}

// ours refuses a directory that another user made, or may write to.
func ours(dir string) error {
	info, err := os.Lstat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.IsDir() || int(st.Uid) != os.Geteuid() || info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("%s is not a directory that is this user's alone to write to; name another with --root", dir)
	}
	return nil
}

// clearDemo removes an earlier demo's directory, unless its daemon still runs.
func clearDemo(ctx context.Context, dir string) error {
	d := ownDaemon{dir: dir}
	d.client = api.NewClient(d.socket())
	defer d.client.Close()
	if v, err := d.client.Version(ctx); err == nil {
		return fmt.Errorf("an earlier demo's daemon, process %d, runs in %s: use --resume, or end it", v.PID, dir)
	}
	return os.RemoveAll(dir)
}
