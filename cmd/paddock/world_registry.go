package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/paddock-run/paddock/api"
	"github.com/paddock-run/paddock/overlay/image"
)

func worldPull(c *cli) *cobra.Command {
	var in api.ImportSpec
	var to api.Registry
	cmd := &cobra.Command{
		Use:   "pull REF",
		Short: "Pull an image from a registry as a world",
		Long: "Pull an image as a world, under the name that it is pulled by unless --name gives another. Layers that are here are not " +
			"asked for; a pull that broke off goes on where it ended. Credentials are those of `docker login`.",
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			if err := fillRegistry(&to, a[0]); err != nil {
				return err
			}
			in.Registry = &to
			if in.Name == "" && !strings.Contains(to.Ref, "@") {
				in.Name = to.Ref
			}
			return c.transfer(func(p func(api.Progress)) (api.World, error) { return c.client().ImportWorldFrom(cmd.Context(), in, p) })
		},
	}
	cmd.Flags().StringVar(&in.Name, "name", "", "name to point at the world (default REF)")
	cmd.Flags().BoolVar(&to.PlainHTTP, "plain-http", false, "the registry speaks no TLS; one on loopback need not say so")
	return cmd
}

func worldPush(c *cli) *cobra.Command {
	var to api.Registry
	cmd := &cobra.Command{
		Use: "push WORLD REF", Short: "Push a world to a registry as an image", Args: args(cobra.ExactArgs(2)),
		Long: "Push a world as an image under a tag, and print the reference of its manifest. Credentials are those of `docker login`.",
		RunE: func(cmd *cobra.Command, a []string) error {
			if err := fillRegistry(&to, a[1]); err != nil {
				return err
			}
			m := c.meter()
			defer m.finish()
			pushed, err := c.client().PushWorld(cmd.Context(), a[0], to, func(p api.Progress) { m.at(p.Step, p.Done, p.Total) })
			m.finish()
			if err != nil {
				return err
			}
			return c.show(map[string]string{"pushed": pushed}, func(w io.Writer) { fmt.Fprintln(w, pushed) })
		},
	}
	cmd.Flags().BoolVar(&to.PlainHTTP, "plain-http", false, "the registry speaks no TLS; one on loopback need not say so")
	return cmd
}

// fillRegistry adds what the user's Docker config says of the registry.
func fillRegistry(to *api.Registry, ref string) (err error) {
	to.Ref = ref
	to.Username, to.Password, to.Token, err = image.Credentials(ref)
	return err
}

func worldAlias(c *cli) *cobra.Command {
	return &cobra.Command{
		Use:   "alias NAME WORLD",
		Short: "Point a name, such as an image's, at a world",
		Long: "Point a name at a world, whatever it meant before. A task that names an image then gets the world, with no registry. " +
			"Short forms are understood as engines do: python:3.12 is also docker.io/library/python:3.12. `paddock world rm NAME` takes one of several names away.",
		Args: args(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, a []string) error {
			o, err := c.client().NameWorld(cmd.Context(), a[0], a[1])
			if err != nil {
				return err
			}
			return c.show(o, func(w io.Writer) { fmt.Fprintf(w, "%s  %s\n", o.ID, strings.Join(o.Names, ",")) })
		},
	}
}

func worldGC(c *cli) *cobra.Command {
	var in api.Collection
	var bound string
	cmd := &cobra.Command{
		Use:   "gc",
		Short: "Remove worlds that nothing needs, down to a bound",
		Long: "Remove worlds, the longest unused first, until all take no more than --max. What an episode, a capture, a score or a batch " +
			"needs stays, and so does what has a name unless --all is given. Downloads that no pull came back for in a day go too.",
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if bound != "" {
				var err error
				if in.MaxBytes, err = api.ParseSize(bound); err != nil {
					return usageError{errors.New("--max: " + err.Error())}
				}
			}
			done, err := c.client().CollectWorlds(cmd.Context(), in)
			if err != nil {
				return err
			}
			return c.show(done, func(w io.Writer) {
				for _, o := range done.Removed {
					fmt.Fprintf(w, "%s  %s\n", o.ID, strings.Join(o.Names, ","))
				}
				fmt.Fprintf(w, "freed %s, %s taken; stayed: %d needed, %d in use, %d named\n",
					api.Size(done.FreedBytes), api.Size(done.Bytes), done.Needed, done.InUse, done.Named)
			})
		},
	}
	cmd.Flags().StringVar(&bound, "max", "", "what worlds may take, such as 20GiB (default nothing)")
	cmd.Flags().BoolVar(&in.All, "all", false, "also worlds that have a name")
	cmd.Flags().BoolVar(&in.DryRun, "dry-run", false, "only tell what would go")
	return cmd
}
