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

// maxJudgeFile bounds what `paddock judge` reads of one file.
const maxJudgeFile = 64 << 20

func judgeCommand(c *cli) *cobra.Command {
	j := judging{c: c}
	cmd := &cobra.Command{
		Use:   "judge FILE [flags]",
		Short: "Judge a program by test cases, each in a clean fork",
		Long: "Judge a program: it is compiled once, and each case runs in a clean fork of what that left. FILE is the code, or,\n" +
			"with --spec, a whole request as JSON (as POST /v1/judge takes it; - is standard input). The exit code is 0 when\n" +
			"every case passed, 1 when one did not, and 125 when paddock could not tell.\n\n" +
			"  paddock judge main.py --world py --case 1.in:1.out --case 2.in:2.out\n" +
			"  paddock judge main.cpp --world cpp --cases tests      # every NAME.in with its NAME.out or NAME.ans\n" +
			"  paddock judge --spec request.json\n" +
			"  paddock judge --languages                             # what is known, and the packages that bring the tools",
		Args: args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error { return j.do(cmd.Context(), a) },
	}
	f := cmd.Flags()
	f.StringVar(&j.spec.World, "world", "", "world with the language's tools; the daemon's --judge-world by default")
	f.StringVar(&j.spec.Language, "language", "", "language; by the ending of FILE's name by default")
	f.StringArrayVar(&j.pairs, "case", nil, "INPUT[:OUTPUT], files of one case; may be repeated")
	f.StringVar(&j.dir, "cases", "", "directory of cases: NAME.in, and NAME.out or NAME.ans")
	f.StringVar(&j.rule, "compare", "", "exact, trailing (default), tokens or floats")
	f.Var((*secondsValue)(&j.spec.Limits.CPUS), "cpu-seconds", "CPU time of a case")
	f.Var((*secondsValue)(&j.spec.Limits.WallS), "wall-seconds", "wall time of a case")
	f.StringVar(&j.memory, "memory", "", "memory of a case, such as 256MiB")
	f.IntVar(&j.spec.Parallel, "parallel", 0, "cases at once")
	f.BoolVar(&j.spec.StopEarly, "stop-early", false, "skip what has not begun once a case has failed")
	f.StringVar(&j.whole, "spec", "", "file with the whole request, in place of FILE and the other flags")
	f.BoolVar(&j.list, "languages", false, "list the languages")
	return cmd
}

// judging is `paddock judge`.
type judging struct {
	c         *cli
	spec      api.JudgeSpec
	pairs     []string
	dir, rule string
	memory    string
	whole     string
	list      bool
}

func (j *judging) do(ctx context.Context, a []string) error {
	if j.list {
		return j.languages(ctx)
	}
	if err := j.read(a); err != nil {
		return err
	}
	var done func(api.JudgeCaseResult)
	if !j.c.json {
		done = j.line
	}
	res, err := j.c.client().Judge(ctx, j.spec, done)
	if err != nil {
		return orPaddock(err)
	}
	if err := j.c.show(res, func(w io.Writer) { showJudged(w, res) }); err != nil {
		return err
	}
	switch {
	case res.Score == nil:
		return exitError{code: exitPaddock}
	case res.Passed < len(res.Cases):
		return exitError{code: exitFailed}
	}
	return nil
}

// read makes the request that the arguments ask for.
func (j *judging) read(a []string) error {
	if (j.whole == "") == (len(a) == 0) {
		return usageError{errors.New("judge: want FILE, or --spec")}
	}
	if j.whole != "" {
		text, err := j.file(j.whole)
		if err != nil {
			return err
		}
		if err := json.Unmarshal(text, &j.spec); err != nil {
			return fmt.Errorf("%s: %w", j.whole, err)
		}
		return nil
	}
	code, err := j.file(a[0])
	if err != nil {
		return err
	}
	j.spec.Code = string(code)
	if j.spec.Language == "" {
		j.spec.Language = strings.TrimPrefix(filepath.Ext(a[0]), ".")
	}
	if j.rule != "" {
		j.spec.Compare = &api.JudgeCompare{Rule: j.rule}
	}
	if j.memory != "" {
		if j.spec.Limits.Memory, err = api.ParseSize(j.memory); err != nil {
			return usageError{err}
		}
	}
	return j.readCases()
}

func (j *judging) readCases() error {
	for _, pair := range j.pairs {
		in, out, _ := strings.Cut(pair, ":")
		if err := j.add(in, out); err != nil {
			return err
		}
	}
	if j.dir != "" {
		inputs, err := filepath.Glob(filepath.Join(j.dir, "*.in"))
		if err != nil {
			return usageError{err}
		}
		for _, in := range inputs {
			out := strings.TrimSuffix(in, ".in") + ".out"
			if _, err := os.Stat(out); err != nil {
				out = strings.TrimSuffix(in, ".in") + ".ans"
			}
			if err := j.add(in, out); err != nil {
				return err
			}
		}
	}
	if len(j.spec.Cases) == 0 {
		return usageError{errors.New("judge: want at least one --case, or --cases with a directory that has NAME.in")}
	}
	return nil
}

// add adds a case; without out its program need only exit with code 0.
func (j *judging) add(in, out string) error {
	stdin, err := j.file(in)
	if err != nil {
		return err
	}
	c := api.JudgeCase{Name: in, StdinB64: stdin}
	if out != "" {
		if c.StdoutB64, err = j.file(out); err != nil {
			return err
		}
	}
	j.spec.Cases = append(j.spec.Cases, c)
	return nil
}

// file reads a file, never nil; - is standard input.
func (j *judging) file(name string) ([]byte, error) {
	in := j.c.in
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer func() { _ = f.Close() }()
		in = f
	}
	text, err := io.ReadAll(io.LimitReader(in, maxJudgeFile+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", name, err)
	case len(text) > maxJudgeFile:
		return nil, fmt.Errorf("%s: has more than %s", name, api.Size(maxJudgeFile))
	}
	return text, nil
}

// line tells of one case as it ends.
func (j *judging) line(c api.JudgeCaseResult) {
	name := c.Name
	if name == "" {
		name = strconv.Itoa(c.Index)
	}
	used := ""
	if c.Run != nil {
		used = fmt.Sprintf("  %.3f s CPU, %s", c.Run.CPUS, api.Size(c.Run.MemoryPeak))
	}
	detail := ""
	if c.Detail != "" {
		detail = "  " + plain(c.Detail)
	}
	fmt.Fprintf(j.c.out, "%-13s  %s%s%s\n", c.Verdict, plain(name), used, detail)
}

func showJudged(w io.Writer, r api.JudgeResult) {
	if r.Compile != nil && r.Compile.Verdict != "ok" {
		for line := range strings.SplitSeq(strings.TrimRight(r.Compile.Stderr, "\n"), "\n") {
			fmt.Fprintln(w, plain(line))
		}
	}
	score := "none: the platform or a checker failed"
	if r.Score != nil {
		score = strconv.FormatFloat(*r.Score, 'g', 4, 64)
	}
	fmt.Fprintf(w, "%s: %d of %d passed, score %s\n", r.Verdict, r.Passed, len(r.Cases), score)
}

func (j *judging) languages(ctx context.Context) error {
	all, err := j.c.client().Languages(ctx)
	if err != nil {
		return err
	}
	return j.c.show(all, func(w io.Writer) {
		rows := [][]string{{"NAME", "ALSO", "CASES", "PACKAGES"}}
		for _, l := range all {
			rows = append(rows, []string{l.Name, strings.Join(l.Aliases, " "), strings.Join(l.Cases, " "), strings.Join(l.Packages, " ")})
		}
		table(w, rows...)
	})
}
