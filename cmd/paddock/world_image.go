package main

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/paddock-run/paddock/api"
)

func worldExport(c *cli) *cobra.Command {
	var path string
	cmd := &cobra.Command{
		Use: "export WORLD", Short: "Write a world as an OCI image layout tar", Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			if path == "" || path == "-" {
				if terminal(c.out) {
					return usageError{errors.New("a tar is not for a terminal; use -o FILE")}
				}
				return c.client().ExportWorld(cmd.Context(), a[0], c.out)
			}
			return writeFile(path, func(w io.Writer) error { return c.client().ExportWorld(cmd.Context(), a[0], w) })
		},
	}
	cmd.Flags().StringVarP(&path, "output", "o", "", "file to write; - is standard output")
	return cmd
}

// writeFile writes beside path and renames: a broken export leaves nothing that looks whole.
func writeFile(path string, write func(io.Writer) error) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	if err := errors.Join(write(f), f.Chmod(0o644), f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

func worldImport(c *cli) *cobra.Command {
	var in api.ImportSpec
	cmd := &cobra.Command{
		Use:   "import FILE | DIR | -",
		Short: "Import an image from an archive or a layout directory",
		Long: "Import an image as a world: an archive of `docker save` of any age, or an OCI image layout as a tar or a directory; " +
			"plain, gzip or zstd. The same image is the same world in whatever form it comes. - is standard input.",
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error { return c.importImage(cmd, a[0], in) },
	}
	cmd.Flags().StringVar(&in.Name, "name", "", "name to point at the world")
	cmd.Flags().StringVar(&in.Image, "image", "", "which image, by its name, where the archive holds several")
	return cmd
}

func (c *cli) importImage(cmd *cobra.Command, from string, in api.ImportSpec) error {
	m := c.meter()
	defer m.finish()
	progress := func(p api.Progress) { m.at(p.Step, p.Done, p.Total) }
	var o api.World
	var err error
	switch {
	case from != "-" && os.Geteuid() == 0:
		if in.Path, err = filepath.Abs(from); err != nil {
			return err
		}
		o, err = c.client().ImportWorldFrom(cmd.Context(), in, progress)
	default:
		o, err = c.sendImage(cmd, from, in, progress)
	}
	m.finish()
	if err != nil {
		return err
	}
	return c.show(o, func(w io.Writer) {
		fmt.Fprintln(w, o.ID)
		for _, line := range o.Dropped {
			fmt.Fprintln(c.errs, "dropped:", line)
		}
	})
}

// sendImage sends the archive along, since the daemon opens files of the host for root
// alone.
func (c *cli) sendImage(cmd *cobra.Command, from string, in api.ImportSpec, progress func(api.Progress)) (api.World, error) {
	if from == "-" {
		return c.client().ImportWorld(cmd.Context(), in, c.in, progress)
	}
	info, err := os.Stat(from)
	if err != nil {
		return api.World{}, err
	}
	if !info.IsDir() {
		f, err := os.Open(from)
		if err != nil {
			return api.World{}, err
		}
		defer func() { _ = f.Close() }()
		return c.client().ImportWorld(cmd.Context(), in, f, progress)
	}
	pr, pw := io.Pipe()
	go func() { pw.CloseWithError(tarDir(pw, from)) }()
	defer func() { _ = pr.Close() }() // ends the goroutine when the daemon stops reading
	return c.client().ImportWorld(cmd.Context(), in, pr, progress)
}

func tarDir(w io.Writer, dir string) error {
	tw := tar.NewWriter(w)
	return errors.Join(tw.AddFS(os.DirFS(dir)), tw.Close())
}
