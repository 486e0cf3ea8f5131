// Command paddock is the daemon (paddock serve) and the tools that talk to it.
//
// Exit codes: 0 done; 1 the daemon refused or the thing asked for failed; 2 wrong usage;
// 3 no daemon answers. `paddock run` and `paddock episode call` pass on the exit code of
// the program in the sandbox (128 + number for a signal, 124 for a timeout, 126 and 127
// where it could not be started), and use 125 where paddock itself failed, 130 where a
// signal stopped it.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// version is set by the linker.
var version = "dev"

// Defaults of flags that several commands have.
const (
	defaultRoot         = "/var/lib/paddock"
	defaultCgroupParent = "paddock"
)

func main() {
	ctx, stop := signalContext(context.Background())
	code := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// signalContext ends with the first signal that asks to stop.
func signalContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
}

// commands are the groups of commands, one file each. A new group is one more line here.
func commands(c *cli) []*cobra.Command {
	return []*cobra.Command{
		serveCommand(c), worldCommand(c), runWorldCommand(c), episodeCommand(c), scoreCommand(c), graderCommand(c), batchCommand(c), judgeCommand(c), datasetCommand(c), appCommand(c),
		policyCommand(c), versionCommand(c), auditCommand(c), doctorCommand(c), benchCommand(c), demoCommand(c), demoAgentCommand(),
	}
}

func rootCommand(c *cli) *cobra.Command {
	root := &cobra.Command{
		Use:   "paddock",
		Short: "Sealed worlds and locked-down sandboxes for training agents",
		Long: "paddock turns worlds into sealed layers, runs one locked-down sandbox per episode on a\n" +
			"copy-on-write fork, records what the agent does and scores the end state.\n\n" +
			"Exit codes: 0 done; 1 refused or failed; 2 wrong usage; 3 no daemon answers. `run` and `episode call` pass on\n" +
			"the exit code of the command (128 + number for a signal, 124 timeout, 126 and 127 not startable, 125 paddock failed,\n" +
			"130 interrupted).",
		SilenceUsage: true, SilenceErrors: true,
		// A name that is no command is an error, not the help with exit code 0.
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	flags := root.PersistentFlags()
	flags.StringVar(&c.socket, "socket", "", "the daemon's unix socket; else $PADDOCK_SOCKET, else /run/paddock/paddock.sock")
	flags.StringVar(&c.target.Host, "host", "", "HOST:PORT of a daemon that listens for other hosts; else $PADDOCK_HOST")
	flags.StringVar(&c.target.TokenFile, "token-file", "", "file with the token for --host; else $PADDOCK_TOKEN_FILE")
	flags.StringVar(&c.target.CAFile, "tls-ca", "", "PEM certificates that vouch for --host; else $PADDOCK_TLS_CA, else the system's")
	flags.BoolVar(&c.json, "json", false, "print JSON instead of tables")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usageError{fmt.Errorf("%s: %w", cmd.CommandPath(), err)}
	})
	root.AddCommand(commands(c)...)
	return root
}
