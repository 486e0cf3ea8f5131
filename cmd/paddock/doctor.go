package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/paddock-run/paddock/internal/doctor"
)

// doctorReport is what `paddock doctor --json` prints.
type doctorReport struct {
	Level  doctor.Level   `json:"level"`
	Checks []doctor.Check `json:"checks"`
}

func doctorCommand(c *cli) *cobra.Command {
	var root string
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Say what this host lacks to run episodes, and what to do about it",
		Long: "Check the kernel, cgroups, limits, the store's file system, programs that recipes use, and each launcher by a trial. Each line says\n" +
			"ok, warn (slower, smaller or weaker than it could be) or fail (episodes cannot run). Exit code 1 on a fail.",
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			checks := append(doctor.Examine(cmd.Context(), root, diskCheck), launcherChecks(cmd.Context(), root)...)
			report := doctorReport{Level: doctor.Worst(checks), Checks: checks}
			if err := c.show(report, func(w io.Writer) { printDoctor(w, report) }); err != nil {
				return err
			}
			if report.Level == doctor.Fail {
				return exitError{code: exitFailed}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&root, "root", defaultRoot, "the store's directory")
	return cmd
}

func printDoctor(w io.Writer, report doctorReport) {
	var rows [][]string
	counts := map[doctor.Level]int{}
	for _, c := range report.Checks {
		counts[c.Level]++
		rows = append(rows, []string{string(c.Level), c.Name, c.Found})
		if c.Do != "" {
			rows = append(rows, []string{"", "", "-> " + c.Do})
		}
	}
	table(w, rows...)
	fmt.Fprintf(w, "doctor: %d ok, %d warn, %d fail\n", counts[doctor.OK], counts[doctor.Warn], counts[doctor.Fail])
}
