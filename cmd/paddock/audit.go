package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/paddock-run/paddock/internal/stray"
)

// auditOptions are the flags of `paddock audit`.
type auditOptions struct {
	root, cgroupParent, socket string
	asJSON                     bool
}

// auditReport is what `paddock audit --json` prints.
type auditReport struct {
	Root   string        `json:"root"`
	Cgroup string        `json:"cgroup"`
	Daemon int           `json:"daemon_pid,omitempty"`
	Strays []stray.Stray `json:"strays"`
}

// errStrays makes the command exit with 1 after it has said what it found.
var errStrays = errors.New("there are strays")

func newAuditCmd() *cobra.Command {
	var o auditOptions
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "List what paddock left on this host: processes, cgroups, mounts, namespaces, loop devices, directories",
		Long: "List what belongs to a store but to no live daemon: processes, cgroups, mounts, namespaces, loop devices\n" +
			"and directories under run/ and tmp/. What the live episodes of a running daemon own is no stray.\n" +
			"It reads the kernel's files, not the record. Exit code 1 when there are strays.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			report, err := audit(cmd.Context(), o)
			if err != nil {
				return err
			}
			if err := printAudit(cmd.OutOrStdout(), report, o.asJSON); err != nil {
				return err
			}
			if len(report.Strays) > 0 {
				return errStrays
			}
			return nil
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.root, "root", defaultRoot, "store's root directory")
	flags.StringVar(&o.cgroupParent, "cgroup-parent", defaultCgroupParent, "cgroup below which the daemon makes its own")
	flags.StringVar(&o.socket, "socket", defaultSocket(), "daemon's socket")
	flags.BoolVar(&o.asJSON, "json", false, "print JSON")
	return cmd
}

// audit looks, and looks again when it found something.
func audit(ctx context.Context, o auditOptions) (auditReport, error) {
	root, err := filepath.Abs(o.root)
	if err != nil {
		return auditReport{}, fmt.Errorf("store %s: %w", o.root, err)
	}
	if real, err := filepath.EvalSymlinks(root); err == nil {
		root = real
	} else if !errors.Is(err, fs.ErrNotExist) {
		return auditReport{}, fmt.Errorf("store %s: %w", o.root, err)
	}
	report := auditReport{Root: root, Cgroup: filepath.Join(o.cgroupParent, storeHash(root)), Strays: []stray.Stray{}}
	// Long enough for an episode that was just starting or ending to be through with it.
	const pause = 500 * time.Millisecond
	found, err := stray.Confirm(ctx, stray.Host{}, pause, func(ctx context.Context) (stray.Scope, error) {
		live, err := liveDaemon(ctx, o.socket, root)
		if err != nil {
			return stray.Scope{}, err
		}
		report.Daemon = live.PID
		return stray.Scope{Store: root, Cgroup: report.Cgroup, Live: live}, nil
	})
	if err != nil {
		return auditReport{}, fmt.Errorf("audit %s: %w", root, err)
	}
	report.Strays = append(report.Strays, found...)
	return report, nil
}

// storeHash tells stores apart in the cgroup tree.
func storeHash(root string) string {
	sum := sha256.Sum256([]byte(root))
	return hex.EncodeToString(sum[:4])
}

func printAudit(w io.Writer, report auditReport, asJSON bool) error {
	if asJSON {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(report)
	}
	daemon := "no daemon runs on it"
	if report.Daemon != 0 {
		daemon = fmt.Sprintf("daemon is process %d", report.Daemon)
	}
	if _, err := fmt.Fprintf(w, "store %s, cgroup %s, %s\n", report.Root, report.Cgroup, daemon); err != nil {
		return err
	}
	if len(report.Strays) > 0 {
		table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		var rows strings.Builder
		rows.WriteString("KIND\tWHERE\tDETAIL\n")
		for _, s := range report.Strays {
			fmt.Fprintf(&rows, "%s\t%q\t%q\n", s.Kind, s.Where, s.Detail)
		}
		_, err := io.WriteString(table, rows.String())
		if err := errors.Join(err, table.Flush()); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(w, "audit: %d strays\n", len(report.Strays))
	return err
}
