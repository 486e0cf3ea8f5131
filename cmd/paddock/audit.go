package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/paddock-run/paddock/internal/stray"
	"github.com/paddock-run/paddock/sandbox/native"
)

// auditOptions are the flags of `paddock audit`.
type auditOptions struct {
	root, cgroupParent string
	// sandboxes asks a live daemon for the names of its sandboxes.
	sandboxes func(ctx context.Context, pid int) []string
}

// auditReport is what `paddock audit --json` prints.
type auditReport struct {
	Root   string        `json:"root"`
	Cgroup string        `json:"cgroup"`
	Daemon int           `json:"daemon_pid,omitempty"`
	Strays []stray.Stray `json:"strays"`
}

func auditCommand(c *cli) *cobra.Command {
	var o auditOptions
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "List what paddock left on this host: processes, cgroups, mounts, namespaces, loop devices, directories",
		Long: "List what belongs to a store but to no live daemon: processes, cgroups, mounts, namespaces, loop devices\n" +
			"and directories under run/ and tmp/. What a running daemon of the store owns is no stray; asked over\n" +
			"--socket, it names its sandboxes, and any other is a stray even below it. The rest is read from the\n" +
			"kernel's files, not from the record. Exit code 1 when there are strays.",
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.sandboxes = c.sandboxes
			report, err := audit(cmd.Context(), o)
			if err != nil {
				return err
			}
			if err := c.show(report, func(w io.Writer) { printAudit(w, report) }); err != nil {
				return err
			}
			if len(report.Strays) > 0 {
				return exitError{code: exitFailed}
			}
			return nil
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.root, "root", defaultRoot, "the store's directory")
	flags.StringVar(&o.cgroupParent, "cgroup-parent", defaultCgroupParent, "cgroup below which the daemon makes its own")
	return cmd
}

// audit looks, and looks again when it found something.
func audit(ctx context.Context, o auditOptions) (auditReport, error) {
	root, err := resolveRoot(o.root)
	if err != nil {
		return auditReport{}, fmt.Errorf("store %s: %w", o.root, err)
	}
	report := auditReport{Root: root, Cgroup: filepath.Join(o.cgroupParent, storeHash(root)), Strays: []stray.Stray{}}
	// Long enough for an episode that was just starting or ending to be through with it.
	const pause = 500 * time.Millisecond
	found, err := stray.Confirm(ctx, stray.Host{}, pause, func(ctx context.Context) (stray.Scope, error) {
		live, err := stray.Host{}.Daemon(ctx, root)
		if err != nil {
			return stray.Scope{}, err
		}
		report.Daemon = live.PID
		if live.PID != 0 && o.sandboxes != nil {
			if live.Sandboxes = o.sandboxes(ctx, live.PID); live.Sandboxes != nil {
				live.Sandboxes = append(live.Sandboxes, native.Undertaker)
			}
		}
		return stray.Scope{Store: root, Cgroup: report.Cgroup, Live: live}, nil
	})
	if err != nil {
		return auditReport{}, fmt.Errorf("audit %s: %w", root, err)
	}
	report.Strays = append(report.Strays, found...)
	return report, nil
}

// sandboxes asks the daemon at the socket, if it is the one with this process id. Nil when
// it is not, or does not answer.
func (c *cli) sandboxes(ctx context.Context, pid int) []string {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	client := c.client()
	if v, err := client.Version(ctx); err != nil || v.PID != pid {
		return nil
	}
	capacity, err := client.Capacity(ctx)
	if err != nil {
		return nil
	}
	return capacity.Sandboxes
}

// resolveRoot gives the one name by which a store is known, whether it exists or not.
func resolveRoot(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	rest := ""
	for dir := path; ; dir = filepath.Dir(dir) {
		there, err := filepath.EvalSymlinks(dir)
		if err == nil {
			return filepath.Join(there, rest), nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		rest = filepath.Join(filepath.Base(dir), rest)
	}
}

// storeHash tells stores apart in the cgroup tree.
func storeHash(root string) string {
	sum := sha256.Sum256([]byte(root))
	return hex.EncodeToString(sum[:4])
}

func printAudit(w io.Writer, report auditReport) {
	daemon := "no daemon runs on it"
	if report.Daemon != 0 {
		daemon = fmt.Sprintf("its daemon is process %d", report.Daemon)
	}
	fmt.Fprintf(w, "store %s, cgroup %s, %s\n", report.Root, report.Cgroup, daemon)
	if len(report.Strays) > 0 {
		rows := [][]string{{"KIND", "WHERE", "DETAIL"}}
		for _, s := range report.Strays {
			rows = append(rows, []string{string(s.Kind), strconv.Quote(s.Where), strconv.Quote(s.Detail)})
		}
		table(w, rows...)
	}
	fmt.Fprintf(w, "audit: %d strays\n", len(report.Strays))
}
