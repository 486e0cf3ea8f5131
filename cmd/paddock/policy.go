package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/paddock-run/paddock/api"
)

func policyCommand(c *cli) *cobra.Command {
	return group("policy", "Look at the named lock-downs", &cobra.Command{
		Use: "ls", Short: "List the policies", Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := c.client().Policies(cmd.Context())
			if err != nil {
				return err
			}
			return c.show(all, func(w io.Writer) {
				rows := [][]string{{"NAME", "NETWORK", "UID", "CPUS", "MEMORY", "DISK", "PIDS", "DESCRIPTION"}}
				for _, p := range all {
					rows = append(rows, []string{
						p.Name, p.Network, strconv.Itoa(int(p.UID)), strconv.FormatFloat(p.Defaults.CPUs, 'g', -1, 64),
						api.Size(p.Defaults.Memory).String(), api.Size(p.Defaults.Disk).String(), strconv.FormatInt(p.Defaults.Pids, 10), p.Description,
					})
				}
				table(w, rows...)
			})
		},
	}, &cobra.Command{
		Use: "show NAME", Short: "Show a policy; with --json also the OCI runtime-spec that it makes", Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			p, err := c.client().Policy(cmd.Context(), a[0])
			if err != nil {
				return err
			}
			return c.show(p, func(w io.Writer) { showPolicy(w, p) })
		},
	})
}

func showPolicy(w io.Writer, p api.Policy) {
	fmt.Fprintf(w, "%s: %s\n%s\n\n", p.Name, p.Description, p.Hash)
	table(w,
		[]string{"user", fmt.Sprintf("%d:%d", p.UID, p.GID)},
		[]string{"network", p.Network},
		[]string{"writable", strings.Join(p.Writable, ", ")},
		[]string{"cpus", strconv.FormatFloat(p.Defaults.CPUs, 'g', -1, 64)},
		[]string{"memory", api.Size(p.Defaults.Memory).String()},
		[]string{"disk", api.Size(p.Defaults.Disk).String()},
		[]string{"inodes", strconv.FormatInt(p.Defaults.Inodes, 10)},
		[]string{"pids", strconv.FormatInt(p.Defaults.Pids, 10)},
	)
	fmt.Fprintln(w, "\nrefused:")
	for _, r := range p.Refusals {
		fmt.Fprintln(w, "  "+r)
	}
	fmt.Fprintln(w, "\nenvironment:")
	for _, e := range p.Env {
		fmt.Fprintln(w, "  "+e)
	}
}
