package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/paddock-run/paddock/api"
)

// maxManifestLine bounds one line of a manifest.
const maxManifestLine = 64 << 20

func batchCommand(c *cli) *cobra.Command {
	return group("batch", "Run many episodes, from a manifest or as an open queue, and resume them",
		batchRun(c), batchOpen(c), batchAdd(c), batchSeal(c), batchResume(c), batchShow(c), batchList(c), batchResults(c), batchGroups(c),
		batchWork(c), batchCancel(c), batchScore(c))
}

// batchRules are the flags of a new batch.
func batchRules(cmd *cobra.Command, spec *api.BatchSpec) {
	f := cmd.Flags()
	f.StringVar(&spec.ID, "id", "", "the batch's id; made up when not given")
	f.StringVar(&spec.Run, "run", "", "run of its episodes")
	f.Uint32Var(&spec.Seed, "seed", 0, "seed of a new run")
	f.IntVar(&spec.Parallel, "parallel", 0, "episodes at a time")
	f.Float64Var(&spec.DeadlineS, "deadline", 0, "seconds after which the rest is cancelled")
	f.IntVar(&spec.GroupSize, "group-size", 0, "valid members that make a group complete; what it has beyond them is surplus")
	f.StringVar(&spec.Take, "take", "", "which valid members count, with --group-size: started (default) or finished")
	f.StringVar(&spec.OnVoid, "on-void", "", "drop (default), refill:K or void_group")
	f.IntVar(&spec.MinValid, "min-valid", 0, "members below which a group is void")
}

func batchOpen(c *cli) *cobra.Command {
	spec := api.BatchSpec{Open: true}
	cmd := &cobra.Command{
		Use:   "open",
		Short: "Open a queue: a batch that takes lines until it is sealed",
		Long:  "Open a queue and print its id. Add lines with `paddock batch add`, and end it with `paddock batch seal`.",
		Args:  args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			b, err := c.client().CreateBatch(cmd.Context(), spec)
			if err != nil {
				return err
			}
			return c.show(b, func(w io.Writer) { fmt.Fprintln(w, b.ID) })
		},
	}
	batchRules(cmd, &spec)
	return cmd
}

func batchAdd(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "add ID MANIFEST", Short: "Add a manifest's lines to an open batch, all or none; - is standard input", Args: args(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, a []string) error {
			lines, err := c.readManifest(a[1])
			if err != nil {
				return err
			}
			added, err := c.client().AddToBatch(cmd.Context(), a[0], lines...)
			if err != nil {
				return err
			}
			return c.show(added, func(w io.Writer) { fmt.Fprintf(w, "%d added, %d known\n", added.Added, added.Known) })
		},
	}
}

func batchSeal(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "seal ID", Short: "Add no more: the batch is done when each line has its result", Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			b, err := c.client().SealBatch(cmd.Context(), a[0])
			if err != nil {
				return err
			}
			return c.show(b, func(w io.Writer) { showBatch(w, b) })
		},
	}
}

func batchGroups(c *cli) *cobra.Command {
	var after int64
	var follow bool
	cmd := &cobra.Command{
		Use: "groups ID", Short: "Print complete groups as they come; with --json one object a line, results included", Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			return c.client().GroupResults(cmd.Context(), a[0], after, follow, func(g api.GroupResult) error {
				if c.json {
					return json.NewEncoder(c.out).Encode(g)
				}
				_, err := fmt.Fprintln(c.out, plain(groupLine(g.Group)))
				return err
			})
		},
	}
	cmd.Flags().Int64Var(&after, "after", 0, "continue after this group's seq")
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "wait for more until the batch no longer runs")
	return cmd
}

func groupLine(g api.Group) string {
	s := fmt.Sprintf("%d  %s  %d of %d valid  mean %s  std %s", g.Seq, g.Group, g.Valid, g.Wanted, number(g.Mean), number(g.Std))
	if g.IsVoid {
		s += "  void"
	}
	return s
}

func batchWork(c *cli) *cobra.Command {
	var most int
	cmd := &cobra.Command{
		Use:   "work ID",
		Short: "Print what a batch asks of its client, one JSON object a line, until it no longer runs",
		Long: "Print the work of lines whose agent is the client, one JSON object a line: episodes to play, and rewards to write. While this\n" +
			"command runs, it is the client: when it ends, what it was asked and has not done begins again for the next.",
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			return c.client().Work(cmd.Context(), a[0], "", most, func(w api.Work) error { return json.NewEncoder(c.out).Encode(w) })
		},
	}
	cmd.Flags().IntVar(&most, "most", 0, "at most so many at a time")
	return cmd
}

func batchRun(c *cli) *cobra.Command {
	var spec api.BatchSpec
	var detach bool
	cmd := &cobra.Command{
		Use:   "run MANIFEST",
		Short: "Run a batch from a JSONL manifest; - is standard input",
		Long: "Run a batch. Each line of the manifest is an episode and its agent: a list of calls, a command in the sandbox, or\n" +
			"a program of this host that is handed a socket of its episode.\n\n" +
			`  {"id": "t1/s0", "group": "t1", "world": "busybox", "graders": [{"grader": "sha256:..."}],` + "\n" +
			`   "agent": {"command": {"tool": "exec", "argv": ["sh", "-c", "echo 42 > answer.txt"]}}}` + "\n\n" +
			"The batch belongs to the daemon: when this command is interrupted it goes on. Exit code 1 unless it is done.",
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			var err error
			if spec.Episodes, err = c.readManifest(a[0]); err != nil {
				return err
			}
			b, err := c.client().CreateBatch(cmd.Context(), spec)
			if err != nil {
				return err
			}
			if detach {
				return c.show(b, func(w io.Writer) { fmt.Fprintln(w, b.ID) })
			}
			return c.follow(cmd.Context(), b)
		},
	}
	batchRules(cmd, &spec)
	cmd.Flags().BoolVarP(&detach, "detach", "d", false, "print the batch's id and do not wait")
	return cmd
}

// readManifest reads a manifest strictly, and names the line of what is wrong.
func (c *cli) readManifest(path string) ([]api.BatchEpisode, error) {
	in := c.in
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer func() { _ = f.Close() }()
		in = f
	}
	lines := bufio.NewScanner(in)
	lines.Buffer(make([]byte, 64<<10), maxManifestLine)
	all := []api.BatchEpisode{}
	for n := 1; lines.Scan(); n++ {
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		var e api.BatchEpisode
		d := json.NewDecoder(bytes.NewReader(lines.Bytes()))
		d.DisallowUnknownFields()
		if err := d.Decode(&e); err != nil {
			return nil, fmt.Errorf("manifest %s, line %d: %w", path, n, err)
		}
		if d.More() {
			return nil, fmt.Errorf("manifest %s, line %d: there is more than one value", path, n)
		}
		all = append(all, e)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("manifest %s: %w", path, err)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("manifest %s: no episode is in it", path)
	}
	return all, nil
}

// follow shows results as they complete, then the whole.
func (c *cli) follow(ctx context.Context, b api.Batch) error {
	m := c.meter()
	defer m.finish()
	done := int64(0)
	err := c.client().Results(ctx, b.ID, b.Seq, true, func(r api.BatchResult) error {
		done++
		m.at("episodes", int64(b.Done)+done, int64(b.Total))
		if c.json {
			return json.NewEncoder(c.out).Encode(r)
		}
		if m.w == nil {
			fmt.Fprintln(c.errs, plain(resultLine(r)))
		}
		return nil
	})
	m.finish()
	if err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("interrupted; the batch goes on: `paddock batch show %s`, `paddock batch cancel %s`", b.ID, b.ID)
		}
		return err
	}
	if b, err = c.client().Batch(ctx, b.ID); err != nil {
		return err
	}
	if err := c.show(b, func(w io.Writer) { showBatch(w, b) }); err != nil {
		return err
	}
	if b.State != "done" {
		return exitError{exitFailed, fmt.Errorf("batch %s is %s; go on with `paddock batch resume %s`", b.ID, b.State, b.ID)}
	}
	return nil
}

func resultLine(r api.BatchResult) string {
	s := fmt.Sprintf("%d  %s  attempt %d  %s by %s  reward %s", r.Seq, r.ID, r.Attempt, r.Status, r.Cause, number(r.Reward))
	if len(r.Evidence) > 0 && r.Reward == nil {
		s += "  " + strings.Join(r.Evidence, "; ")
	}
	return s
}

func showBatch(w io.Writer, b api.Batch) {
	open := ""
	if !b.Sealed {
		open = ", open"
	}
	fmt.Fprintf(w, "batch %s  run %s  %s%s\n", b.ID, b.Run, b.State, open)
	if b.Error != "" {
		fmt.Fprintln(w, plain(b.Error))
	}
	fmt.Fprintf(w, "%d of %d episodes, %d with a reward, %d without\n", b.Done, b.Total, b.Valid, b.Void)
	for _, cause := range slices.Sorted(maps.Keys(b.Causes)) {
		fmt.Fprintf(w, "  %s: %d\n", cause, b.Causes[cause])
	}
	if len(b.Groups) == 0 {
		return
	}
	rows := [][]string{{"GROUP", "WANTED", "VALID", "VOID", "MEAN", "STD", "STATE"}}
	for _, g := range b.Groups {
		state := "incomplete"
		if g.Complete {
			state = "complete"
		}
		if g.IsVoid {
			state += ", void"
		}
		rows = append(rows, []string{
			g.Group, strconv.Itoa(g.Wanted), strconv.Itoa(g.Valid), strconv.Itoa(g.Void), number(g.Mean), number(g.Std), state,
		})
	}
	table(w, rows...)
}

func batchResume(c *cli) *cobra.Command {
	var detach bool
	cmd := &cobra.Command{
		Use: "resume ID", Short: "Go on with a batch that was interrupted or cancelled", Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			b, err := c.client().ResumeBatch(cmd.Context(), a[0])
			if err != nil {
				return err
			}
			if detach {
				return c.show(b, func(w io.Writer) { showBatch(w, b) })
			}
			return c.follow(cmd.Context(), b)
		},
	}
	cmd.Flags().BoolVarP(&detach, "detach", "d", false, "do not wait")
	return cmd
}

func batchShow(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "show ID", Short: "Show a batch, its counts and its groups", Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			b, err := c.client().Batch(cmd.Context(), a[0])
			if err != nil {
				return err
			}
			return c.show(b, func(w io.Writer) { showBatch(w, b) })
		},
	}
}

func batchList(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "ls", Short: "List the batches", Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := c.client().Batches(cmd.Context())
			if err != nil {
				return err
			}
			return c.show(all, func(w io.Writer) {
				rows := [][]string{{"ID", "RUN", "STATE", "DONE", "TOTAL", "VALID", "VOID", "CREATED"}}
				for _, b := range all {
					rows = append(rows, []string{
						b.ID, b.Run, b.State, strconv.Itoa(b.Done), strconv.Itoa(b.Total), strconv.Itoa(b.Valid), strconv.Itoa(b.Void),
						b.Created.Local().Format(time.DateTime),
					})
				}
				table(w, rows...)
			})
		},
	}
}

func batchResults(c *cli) *cobra.Command {
	var after int64
	var follow bool
	cmd := &cobra.Command{
		Use: "results ID", Short: "Print results in order of completion; with --json one object a line", Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			return c.client().Results(cmd.Context(), a[0], after, follow, func(r api.BatchResult) error {
				if c.json {
					return json.NewEncoder(c.out).Encode(r)
				}
				_, err := fmt.Fprintln(c.out, plain(resultLine(r)))
				return err
			})
		},
	}
	cmd.Flags().Int64Var(&after, "after", 0, "continue after this seq")
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "wait for more until the batch is done")
	return cmd
}

func batchCancel(c *cli) *cobra.Command {
	var spec api.BatchCancel
	cmd := &cobra.Command{
		Use: "cancel ID", Short: "Cancel what of a batch, or of some of its lines, has not ended", Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			b, err := c.client().CancelBatch(cmd.Context(), a[0], spec)
			if err != nil {
				return err
			}
			return c.show(b, func(w io.Writer) {
				fmt.Fprintf(w, "%d cancelled\n", b.Cancelled)
				showBatch(w, b.Batch)
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&spec.Reason, "reason", "", "why")
	f.StringVar(&spec.Prefix, "prefix", "", "only lines whose ids are this or below it")
	f.StringVar(&spec.Group, "group", "", "only lines of this group")
	f.StringVar(&spec.Weights, "weights", "", "only lines made by these weights")
	f.StringVar(&spec.WeightsBefore, "weights-before", "", "only lines made by weights that the run used before these")
	return cmd
}

func batchScore(c *cli) *cobra.Command {
	var graders []string
	var detach bool
	cmd := &cobra.Command{
		Use: "score ID --grader DIGEST...", Short: "Score every end state of a batch again, as a new batch; no agent runs", Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			if len(graders) == 0 {
				return usageError{errors.New("batch score: want at least one --grader")}
			}
			var spec api.Graders
			for _, g := range graders {
				spec.Graders = append(spec.Graders, api.WeightedGrader{Grader: g})
			}
			b, err := c.client().ScoreBatch(cmd.Context(), a[0], spec)
			if err != nil {
				return err
			}
			if detach {
				return c.show(b, func(w io.Writer) { fmt.Fprintln(w, b.ID) })
			}
			return c.follow(cmd.Context(), b)
		},
	}
	cmd.Flags().StringArrayVar(&graders, "grader", nil, "digest of a grader; may be repeated")
	cmd.Flags().BoolVarP(&detach, "detach", "d", false, "print the new batch's id and do not wait")
	return cmd
}
