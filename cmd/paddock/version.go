package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/paddock-run/paddock/api"
)

func versionCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the versions of this program and of the daemon", Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			out := struct {
				Client string           `json:"client"`
				API    string           `json:"api"`
				Daemon *api.VersionInfo `json:"daemon"`
			}{Client: version, API: api.Version}
			info, err := c.client().Version(cmd.Context())
			p, typed := errors.AsType[*api.Error](err)
			if err != nil && (!typed || p.Kind != api.Unavailable) {
				return err
			}
			if err == nil {
				out.Daemon = &info
			}
			return c.show(out, func(w io.Writer) {
				fmt.Fprintf(w, "paddock %s, API %s\n", out.Client, out.API)
				if out.Daemon == nil {
					fmt.Fprintln(w, "no daemon answers")
					return
				}
				fmt.Fprintf(w, "daemon %s, pid %d, launcher %s on cgroup %s, disk %s, up %s\n",
					info.Version, info.PID, info.Launcher.Name, info.Launcher.Cgroup, info.Launcher.Disk, seconds(info.UptimeS))
			})
		},
	}
}
