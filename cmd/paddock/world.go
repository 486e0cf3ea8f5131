package main

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/paddock-run/paddock/api"
	"github.com/paddock-run/paddock/overlay"
)

func worldCommand(c *cli) *cobra.Command {
	return group("world", "Build and look at worlds: sealed images that episodes start from",
		worldBuild(c), worldList(c), worldInspect(c), worldRemove(c), worldAlias(c), worldGC(c), worldExport(c), worldImport(c),
		worldPull(c), worldPush(c))
}

func worldBuild(c *cli) *cobra.Command {
	var r api.Recipe
	var d dockerfileFlags
	var debian, packages, user, workdir, tools string
	var env []string
	cmd := &cobra.Command{
		Use:   "build [DIR | TAR]",
		Short: "Build a world from a directory, a tar, a Dockerfile, or a base recipe",
		Long: "Build a world. The same contents give the same world on any day and host, and a second build is a cache hit.\n\n" +
			"  paddock world build --busybox --name busybox\n" +
			"  paddock world build --debian bookworm --packages python3,git --name py\n" +
			"  paddock world build ./repo --base py --into /workdir --workdir /workdir --name task-1\n" +
			"  paddock world build -f Dockerfile --network allow:deb.debian.org --name image .   # what the Dockerfile says, by paddock's own steps",
		Args: args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			if debian != "" {
				r.Debian = &api.Debian{Suite: debian, Packages: strings.FieldsFunc(packages, func(x rune) bool { return x == ',' || x == ' ' })}
			} else if packages != "" {
				return usageError{errors.New("--packages goes with --debian")}
			}
			r.Config.Env, r.Config.User, r.Config.WorkingDir = env, user, workdir
			if d.file != "" {
				if err := readTools(tools, &r); err != nil {
					return err
				}
				return c.buildDockerfile(cmd, d, r, a)
			}
			if err := d.unused(); err != nil {
				return err
			}
			if len(a) == 0 && !r.Busybox && r.Debian == nil {
				return usageError{errors.New("paddock world build: nothing to build from: name a directory or a tar, or give -f Dockerfile, --busybox or --debian SUITE")}
			}
			if err := readTools(tools, &r); err != nil {
				return err
			}
			if err := source(a, &r); err != nil {
				return err
			}
			return c.build(cmd, r)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&r.Busybox, "busybox", false, "base recipe: the host's static busybox; done in an instant")
	f.StringVar(&debian, "debian", "", "base recipe: a minimal Debian of this suite, made by mmdebstrap")
	f.StringVar(&packages, "packages", "", "packages for --debian, separated by commas")
	f.StringVar(&r.Base, "base", "", "world to put the layer on")
	f.StringVar(&r.Into, "into", "", "directory inside the world that the contents go to (default /)")
	f.StringArrayVar(&r.Ignore, "ignore", nil, "pattern of DIR's entries to leave out; may be repeated")
	f.StringVar(&r.Name, "name", "", "name to point at the world")
	f.StringVar(&r.Version, "version", "", "salt for the cache key")
	f.StringVar(&r.Cache, "cache", "", "auto (default), off or refresh")
	f.StringArrayVar(&env, "env", nil, "KEY=value of the world's environment; may be repeated")
	f.StringVar(&user, "user", "", "user of the world's programs")
	f.StringVar(&workdir, "workdir", "", "working directory of the world's programs")
	f.StringVar(&tools, "tools", "", "JSON file with a list of the world's own tools")
	d.add(f)
	return cmd
}

// source tells a directory from a tar; the daemon wants absolute paths.
func source(a []string, r *api.Recipe) error {
	if len(a) == 0 {
		return nil
	}
	path, err := filepath.Abs(a[0])
	if err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if info.IsDir() {
		r.Dir = path
	} else {
		r.Tar = path
	}
	return nil
}

func readTools(path string, r *api.Recipe) error {
	if path == "" {
		return nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, &r.Config.Tools); err != nil {
		return fmt.Errorf("tools %s: %w", path, err)
	}
	return nil
}

func (c *cli) build(cmd *cobra.Command, r api.Recipe) error {
	m := c.meter()
	defer m.finish()
	progress := func(p api.Progress) { m.at(p.Step, p.Done, p.Total) }
	var built api.Built
	var err error
	if (r.Dir != "" || r.Tar != "") && (os.Geteuid() != 0 || !c.client().Local()) {
		built, err = c.buildFrom(cmd, r, progress)
	} else {
		built, err = c.client().BuildWorld(cmd.Context(), r, progress)
	}
	m.finish()
	if err != nil {
		return err
	}
	return c.showBuilt(built)
}

// buildFrom sends the contents along, since the daemon opens files of the host for root
// alone.
func (c *cli) buildFrom(cmd *cobra.Command, r api.Recipe, progress func(api.Progress)) (api.Built, error) {
	dir, path := r.Dir, r.Tar
	r.Dir, r.Tar = "", ""
	if path != "" {
		f, err := os.Open(path)
		if err != nil {
			return api.Built{}, err
		}
		defer func() { _ = f.Close() }()
		return c.client().BuildWorldFrom(cmd.Context(), r, f, progress)
	}
	if len(r.Ignore) > 0 {
		return api.Built{}, usageError{errors.New("--ignore works for root of the daemon's host alone; leave the entries out of the directory")}
	}
	pr, pw := io.Pipe()
	go func() {
		w := tar.NewWriter(pw)
		pw.CloseWithError(errors.Join(w.AddFS(os.DirFS(dir)), w.Close()))
	}()
	defer func() { _ = pr.Close() }() // ends the goroutine when the daemon stops reading
	return c.client().BuildWorldFrom(cmd.Context(), r, pr, progress)
}

func worldList(c *cli) *cobra.Command {
	var steps bool
	cmd := &cobra.Command{
		Use: "ls", Short: "List the worlds", Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := c.client().Worlds(cmd.Context())
			if err != nil {
				return err
			}
			return c.show(all, func(w io.Writer) {
				rows := [][]string{{"ID", "NAMES", "RECIPE", "LAYERS", "ENTRIES", "SIZE", "CREATED"}}
				for _, o := range all {
					if (o.Recipe == overlay.StepRecipe || o.Recipe == overlay.MergedRecipe) && len(o.Names) == 0 && !steps {
						continue
					}
					rows = append(rows, []string{
						short(o.ID), strings.Join(o.Names, ","), o.Recipe, strconv.Itoa(len(o.Layers)), strconv.FormatInt(o.Entries, 10),
						api.Size(o.SizeBytes).String(), o.Created.Local().Format(time.DateTime),
					})
				}
				table(w, rows...)
			})
		},
	}
	cmd.Flags().BoolVar(&steps, "steps", false, "list those between the steps of Dockerfiles and those of merged layers, too, which are kept as a cache")
	return cmd
}

func worldInspect(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "inspect WORLD", Short: "Show a world, by id, unique prefix or name, as JSON", Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			o, err := c.client().World(cmd.Context(), a[0])
			if err != nil {
				return err
			}
			e := json.NewEncoder(c.out)
			e.SetIndent("", "  ")
			return e.Encode(o)
		},
	}
}

func worldRemove(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "rm WORLD...", Short: "Remove worlds that nothing uses", Args: args(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			var failed error
			for _, ref := range a {
				failed = errors.Join(failed, c.client().RemoveWorld(cmd.Context(), ref))
			}
			if failed != nil {
				return failed
			}
			return c.show(map[string][]string{"removed": a}, func(io.Writer) {})
		},
	}
}
