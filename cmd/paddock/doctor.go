package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/paddock-run/paddock/internal/doctor"
)

// errUnfit makes the command exit with 1 after it has said why.
var errUnfit = errors.New("this host cannot run episodes")

func newDoctorCmd() *cobra.Command {
	var root string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Say what this host lacks to run episodes, and what to do about it",
		Long: "Check the kernel, cgroups, limits, the store's file system and programs that recipes use. Each line says\n" +
			"ok, warn (slower, smaller or weaker than it could be) or fail (episodes cannot run). Exit code 1 on a fail.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			report := doctor.Examine(cmd.Context(), root)
			if err := printDoctor(cmd.OutOrStdout(), report, asJSON); err != nil {
				return err
			}
			if doctor.Worst(report) == doctor.Fail {
				return errUnfit
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&root, "root", defaultRoot, "store's root directory")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func printDoctor(w io.Writer, report []doctor.Check, asJSON bool) error {
	if asJSON {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(map[string]any{"level": doctor.Worst(report), "checks": report})
	}
	var rows strings.Builder
	counts := map[doctor.Level]int{}
	for _, c := range report {
		counts[c.Level]++
		fmt.Fprintf(&rows, "%s\t%s\t%s\n", c.Level, c.Name, c.Found)
		if c.Do != "" {
			fmt.Fprintf(&rows, "\t\t-> %s\n", c.Do)
		}
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, err := io.WriteString(table, rows.String())
	if err := errors.Join(err, table.Flush()); err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "doctor: %d ok, %d warn, %d fail\n", counts[doctor.OK], counts[doctor.Warn], counts[doctor.Fail])
	return err
}
