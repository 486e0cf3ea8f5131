package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"github.com/spf13/cobra"

	"github.com/paddock-run/paddock/api"
)

// maxGraderBytes bounds what a grader's files may come to.
const maxGraderBytes = 64 << 20

func scoreCommand(c *cli) *cobra.Command {
	var graders []string
	var attempt int
	cmd := &cobra.Command{
		Use: "score ID --grader DIGEST...", Short: "Score an ended episode with graders; no agent runs",
		Long: "Score the kept end state of an episode. Graders are made by `paddock grader put`; the first given counts.",
		Args: args(cobra.ExactArgs(1)),
	}
	key := runFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, a []string) error {
		if len(graders) == 0 {
			return usageError{errors.New("score: want at least one --grader; make one with `paddock grader put`")}
		}
		spec := api.Graders{Attempt: attempt}
		for _, g := range graders {
			spec.Graders = append(spec.Graders, api.WeightedGrader{Grader: g})
		}
		ep, err := c.client().Score(cmd.Context(), key(a[0]), spec)
		if err != nil {
			return err
		}
		return c.show(ep, func(w io.Writer) { showEpisode(w, ep) })
	}
	cmd.Flags().StringArrayVar(&graders, "grader", nil, "digest of a grader; may be repeated")
	cmd.Flags().IntVar(&attempt, "attempt", 0, "number of the attempt; the last by default")
	return cmd
}

func graderCommand(c *cli) *cobra.Command {
	return group("grader", "Keep and look at graders", graderPut(c), graderShow(c))
}

func graderPut(c *cli) *cobra.Command {
	var spec api.GraderSpec
	cmd := &cobra.Command{
		Use: "put DIR [flags] -- CMD [ARG...]", Short: "Keep a grader, and print its digest",
		Long: "Keep a grader: the files of DIR, which scoring puts under /grader, and the command that prints its verdict to the\n" +
			"descriptor named in PADDOCK_VERDICT_FD.",
		Args: args(cobra.MinimumNArgs(2)),
		RunE: func(cmd *cobra.Command, a []string) error {
			var err error
			if spec.Files, err = readFiles(a[0]); err != nil {
				return err
			}
			spec.Command = a[1:]
			digest, err := c.client().PutGrader(cmd.Context(), spec)
			if err != nil {
				return err
			}
			return c.show(api.GraderRef{Grader: digest}, func(w io.Writer) { fmt.Fprintln(w, digest) })
		},
	}
	f := cmd.Flags()
	f.StringVar(&spec.Verdict, "verdict", "", "json (default) or exit_code")
	f.StringVar(&spec.Policy, "policy", "", "lock-down of the scoring; strict by default")
	f.StringVar(&spec.User, "user", "", "as whom it runs")
	f.StringArrayVar(&spec.Protected, "protect", nil, "path that the agent should not write; may be repeated")
	f.StringVar(&spec.OnTamper, "on-tamper", "", "report (default) or zero")
	return cmd
}

// readFiles reads the regular files below dir.
func readFiles(dir string) (map[string]api.GraderFile, error) {
	files := map[string]api.GraderFile{}
	var total int64
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if !info.Mode().IsRegular() {
			return fmt.Errorf("%s: a grader is made of regular files and directories alone", path)
		}
		if total += info.Size(); total > maxGraderBytes {
			return fmt.Errorf("%s: the files of a grader come to more than %s", dir, api.Size(maxGraderBytes))
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		files[filepath.ToSlash(name)] = api.GraderFile{Bytes: text, Mode: uint32(info.Mode().Perm())}
		return nil
	})
	return files, err
}

func graderShow(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "show DIGEST", Short: "Show a grader", Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			g, err := c.client().Grader(cmd.Context(), a[0])
			if err != nil {
				return err
			}
			return c.show(g, func(w io.Writer) {
				names := make([]string, 0, len(g.Files))
				for name := range g.Files {
					names = append(names, name)
				}
				sort.Strings(names)
				table(w,
					[]string{"command", strings.Join(g.Command, " ")}, []string{"verdict", g.Verdict}, []string{"mode", g.Mode},
					[]string{"policy", g.Policy}, []string{"files", strings.Join(names, ", ")})
			})
		},
	}
}
