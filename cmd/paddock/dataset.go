package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/paddock-run/paddock/api"
)

func datasetCommand(c *cli) *cobra.Command {
	ls := &cobra.Command{
		Use: "ls", Short: "List the data sets", Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := c.client().Datasets(cmd.Context())
			if err != nil {
				return err
			}
			return c.show(all, func(w io.Writer) { showDatasets(w, all...) })
		},
	}
	rm := &cobra.Command{
		Use: "rm DATASET", Short: "Remove a data set and its names", Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error { return c.client().RemoveDataset(cmd.Context(), a[0]) },
	}
	return group("dataset", "Keep sets of problems, sample them, score completions", datasetPut(c), ls, datasetSample(c), datasetScore(c), rm)
}

func showDatasets(w io.Writer, all ...api.Dataset) {
	rows := [][]string{{"DIGEST", "NAMES", "PROBLEMS", "BYTES"}}
	for _, d := range all {
		rows = append(rows, []string{short(d.Digest), strings.Join(d.Names, " "), strconv.Itoa(d.Problems), api.Size(d.Bytes).String()})
	}
	table(w, rows...)
}

func datasetPut(c *cli) *cobra.Command {
	var spec api.PutDataset
	cmd := &cobra.Command{
		Use: "put FILE", Short: "Keep a file's problems, and print their digest",
		Long: "Keep the problems of a file: JSONL, JSON, CSV or Parquet, by the ending of its name. Columns are id, prompt, answer\n" +
			"and tests; all others become metadata. Equal problems have the equal digest, whatever file they came in.",
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			f, err := os.Open(a[0])
			if err != nil {
				return err
			}
			defer func() { _ = f.Close() }()
			if spec.Format == "" {
				spec.Format = strings.TrimPrefix(filepath.Ext(a[0]), ".")
			}
			set, err := c.client().PutDataset(cmd.Context(), spec, f)
			if err != nil {
				return err
			}
			return c.show(set, func(w io.Writer) { fmt.Fprintln(w, set.Digest) })
		},
	}
	f := cmd.Flags()
	f.StringVar(&spec.Name, "name", "", "name to point at it")
	f.StringVar(&spec.Format, "format", "", "jsonl, json, csv or parquet")
	f.StringVar(&spec.ID, "id", "", "column of ids")
	f.StringVar(&spec.Prompt, "prompt", "", "column of prompts")
	f.StringVar(&spec.Answer, "answer", "", "column of answers")
	f.StringVar(&spec.Tests, "tests", "", "column of tests")
	return cmd
}

func datasetSample(c *cli) *cobra.Command {
	var spec api.SampleSpec
	cmd := &cobra.Command{
		Use: "sample DATASET --iteration I -n N", Short: "Print the problems of an iteration, one a line as JSON",
		Long: "Print the problems of an iteration. They are a function of the set, n, seed, order and iteration alone, so a trainer\n" +
			"that goes on after a stop asks for its next iteration and has to remember nothing else.",
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			s, err := c.client().Sample(cmd.Context(), a[0], spec)
			if err != nil {
				return err
			}
			if c.json {
				return c.show(s, nil)
			}
			out := json.NewEncoder(c.out)
			out.SetEscapeHTML(false)
			for _, p := range s.Problems {
				if err := out.Encode(p); err != nil {
					return err
				}
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.Int64Var(&spec.Iteration, "iteration", 0, "from 0")
	f.IntVarP(&spec.N, "n", "n", 1, "problems of one iteration")
	f.Uint32Var(&spec.Seed, "seed", 0, "of the orders of epochs")
	f.StringVar(&spec.Order, "order", "", "shuffle (default) or rotate")
	return cmd
}

func datasetScore(c *cli) *cobra.Command {
	var spec api.ScoreItems
	var ways []string
	cmd := &cobra.Command{
		Use: "score FILE --rule RULE [--dataset DATASET]", Short: "Score completions, one a line as JSON; - is standard input",
		Long: "Score completions: each line of FILE is {\"id\", \"completion\"}, or has its own \"answer\" or \"tests\". Scores are printed\n" +
			"as they are found, one a line as JSON; the last line on standard error is their mean.",
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			for _, w := range ways {
				spec.Extract = append(spec.Extract, api.Extract{Kind: w})
			}
			if err := readItems(c, a[0], &spec); err != nil {
				return err
			}
			return orPaddock(printScores(cmd.Context(), c, spec))
		},
	}
	f := cmd.Flags()
	f.StringVar(&spec.Dataset, "dataset", "", "digest or name")
	f.StringVar(&spec.Rule, "rule", "", "exact, text, choice, number, math, regex or code")
	f.StringSliceVar(&ways, "extract", nil, "how to find the answer, the first that finds one: boxed, last_number, tag, after, code, last_line, whole")
	f.Float64Var(&spec.Abs, "abs", 0, "tolerance of number and math")
	f.Float64Var(&spec.Rel, "rel", 0, "relative tolerance of number and math")
	return cmd
}

func readItems(c *cli, name string, spec *api.ScoreItems) error {
	in := c.in
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		in = f
	}
	lines := json.NewDecoder(in)
	for {
		var item api.ScoreItem
		err := lines.Decode(&item)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: item %d: %w", name, len(spec.Items), err)
		}
		spec.Items = append(spec.Items, item)
	}
}

func printScores(ctx context.Context, c *cli, spec api.ScoreItems) error {
	out := json.NewEncoder(c.out)
	sum, n := 0.0, 0
	all, err := c.client().ScoreItems(ctx, spec, func(s api.ItemScore) { _ = out.Encode(s) })
	if err != nil {
		return err
	}
	for _, s := range all {
		if s.Score != nil {
			sum += *s.Score
			n++
		}
	}
	fmt.Fprintf(c.errs, "paddock: %d of %d scored, mean %.4g\n", n, len(all), sum/float64(max(n, 1)))
	return nil
}
