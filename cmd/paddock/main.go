// Command paddock is the daemon and the command line of paddock. It is the only place
// that wires implementations together.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// Defaults of flags that several commands have.
const (
	defaultRoot         = "/var/lib/paddock"
	defaultCgroupParent = "paddock"
)

func defaultSocket() string {
	if path := os.Getenv("PADDOCK_SOCKET"); path != "" {
		return path
	}
	return "/run/paddock/paddock.sock"
}

func newRootCmd() *cobra.Command {
	root := &cobra.Command{
		Use:           "paddock",
		Short:         "Sealed worlds, one locked-down sandbox per episode, capture and scores",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(newAuditCmd(), newDoctorCmd())
	return root
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := newRootCmd().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "paddock:", err)
		os.Exit(1)
	}
}
