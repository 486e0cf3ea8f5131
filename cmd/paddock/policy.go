package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/paddock-run/paddock/api"
	"github.com/paddock-run/paddock/policies"
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
		Use: "check FILE", Short: "Check a policy file for --policy-dir, and say what it means", Args: args(cobra.ExactArgs(1)),
		RunE: func(_ *cobra.Command, a []string) error {
			p, err := checkPolicyFile(a[0])
			if err != nil {
				return err
			}
			return c.show(p.Words(), func(w io.Writer) {
				fmt.Fprintf(w, "%s, version %d: %s\n%s\n", p.Name(), p.Version(), p.Description(), p.Hash())
				for _, words := range p.Words() {
					writeWords(w, words.Topic, words.Lines)
				}
			})
		},
	}, &cobra.Command{
		Use: "show NAME", Short: "Say in plain words what a policy means; with --json also the OCI runtime-spec that it makes", Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			p, err := c.client().Policy(cmd.Context(), a[0])
			if err != nil {
				return err
			}
			return c.show(p, func(w io.Writer) { showPolicy(w, p) })
		},
	})
}

// checkPolicyFile reads a policy as --policy-dir does, but for the rule that its name is
// not one that is built in.
func checkPolicyFile(file string) (*policies.Policy, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	p, err := policies.Check(data)
	if err != nil {
		return nil, fmt.Errorf("policy file %s: %w", file, err)
	}
	if want := p.Name() + ".json"; filepath.Base(file) != want {
		return nil, fmt.Errorf("policy file %s: its name is %q, so it has to be called %s", file, p.Name(), want)
	}
	return p, nil
}

func showPolicy(w io.Writer, p api.Policy) {
	from := "built in"
	if !p.BuiltIn {
		from = "added by this host's operator"
	}
	fmt.Fprintf(w, "%s, version %d, %s: %s\n%s\n", p.Name, p.Version, from, p.Description, p.Hash)
	for _, words := range p.Words {
		writeWords(w, words.Topic, words.Lines)
	}
	writeWords(w, "environment", p.Env)
}

// writeWords writes one topic of a policy.
func writeWords(w io.Writer, topic string, lines []string) {
	fmt.Fprintf(w, "\n%s:\n", topic)
	for _, line := range lines {
		fmt.Fprintln(w, "  "+plain(line))
	}
}
