package main

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/paddock-run/paddock/api"
)

func worldExport(c *cli) *cobra.Command {
	var path, to string
	cmd := &cobra.Command{
		Use:   "export WORLD",
		Short: "Write a world as an image",
		Long: "Write a world as an OCI image layout tar, which `docker load` takes as well. --to sends it elsewhere:\n\n" +
			"  paddock world export box -o box.tar\n" +
			"  paddock world export box --to docker:box:latest     # into a Docker Engine\n" +
			"  paddock world export box --to oci:DIR               # an OCI image layout directory\n\n" +
			"`paddock world push` sends it to a registry.",
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			export := func(w io.Writer) error { return c.client().ExportWorld(cmd.Context(), a[0], w) }
			kind, target, _ := strings.Cut(to, ":")
			switch {
			case to != "" && path != "":
				return usageError{errors.New("--to and -o are two places; give one")}
			case kind == "docker" && target != "":
				return c.exportDocker(cmd.Context(), target, export)
			case kind == "oci" && target != "":
				return exportLayout(target, export)
			case to != "":
				return usageError{fmt.Errorf("--to %q is neither docker:NAME nor oci:DIR", to)}
			case path != "" && path != "-":
				return writeFile(path, export)
			case terminal(c.out):
				return usageError{errors.New("a tar is not for a terminal; use -o FILE")}
			}
			return export(c.out)
		},
	}
	cmd.Flags().StringVarP(&path, "output", "o", "", "file to write; - is standard output")
	cmd.Flags().StringVar(&to, "to", "", "docker:NAME or oci:DIR")
	return cmd
}

// exportLayout unpacks an export to a directory, which appears when it is whole.
func exportLayout(dir string, export func(io.Writer) error) (err error) {
	if err := os.MkdirAll(filepath.Dir(filepath.Clean(dir)), 0o755); err != nil { //nolint:gosec // a directory like any other
		return err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(filepath.Clean(dir)), ".paddock-export-")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(tmp))
		}
	}()
	pr, pw := io.Pipe()
	go func() { pw.CloseWithError(export(pw)) }()
	defer func() { _ = pr.Close() }()
	root, err := os.OpenRoot(tmp)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	tr := tar.NewReader(pr)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if err := writeMember(root, h.Name, tr); err != nil {
			return err
		}
	}
	if err := os.Chmod(tmp, 0o755); err != nil { //nolint:gosec // a layout is for others to read
		return err
	}
	return os.Rename(tmp, dir) // an empty directory is replaced, another one is an error
}

func writeMember(root *os.Root, name string, r io.Reader) error {
	if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	f, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Close())
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
		Use:   "import FILE | DIR | docker:NAME | -",
		Short: "Import an image from an archive, a layout directory or a Docker Engine",
		Long: "Import an image as a world: an archive of `docker save` of any age, or an OCI image layout as a tar or a directory; " +
			"plain, gzip or zstd. The same image is the same world in whatever form it comes. docker:NAME asks the Docker Engine " +
			"of $DOCKER_HOST, or of the default socket; - is standard input. `paddock world pull` asks a registry.",
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			return c.transfer(func(p func(api.Progress)) (api.World, error) { return c.importImage(cmd.Context(), a[0], in, p) })
		},
	}
	cmd.Flags().StringVar(&in.Name, "name", "", "name to point at the world")
	cmd.Flags().StringVar(&in.Image, "image", "", "which image, by its name, where the archive holds several")
	return cmd
}

// transfer shows how far an import is, then the world.
func (c *cli) transfer(work func(func(api.Progress)) (api.World, error)) error {
	m := c.meter()
	defer m.finish()
	o, err := work(func(p api.Progress) { m.at(p.Step, p.Done, p.Total) })
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

func (c *cli) importImage(ctx context.Context, from string, in api.ImportSpec, progress func(api.Progress)) (api.World, error) {
	if name, ok := strings.CutPrefix(from, "docker:"); ok {
		return c.importDocker(ctx, name, in, progress)
	}
	if from == "-" || os.Geteuid() != 0 {
		return c.sendImage(ctx, from, in, progress)
	}
	var err error
	if in.Path, err = filepath.Abs(from); err != nil {
		return api.World{}, err
	}
	return c.client().ImportWorldFrom(ctx, in, progress)
}

// sendImage sends the archive along, since the daemon opens files of the host for root
// alone.
func (c *cli) sendImage(ctx context.Context, from string, in api.ImportSpec, progress func(api.Progress)) (api.World, error) {
	if from == "-" {
		return c.client().ImportWorld(ctx, in, c.in, progress)
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
		return c.client().ImportWorld(ctx, in, f, progress)
	}
	pr, pw := io.Pipe()
	go func() { pw.CloseWithError(tarDir(pw, from)) }()
	defer func() { _ = pr.Close() }() // ends the goroutine when the daemon stops reading
	return c.client().ImportWorld(ctx, in, pr, progress)
}

func tarDir(w io.Writer, dir string) error {
	tw := tar.NewWriter(w)
	return errors.Join(tw.AddFS(os.DirFS(dir)), tw.Close())
}
