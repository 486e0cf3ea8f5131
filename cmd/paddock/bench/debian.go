package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/paddock-run/paddock/api"
)

const debianWorld = "bench-debian"

// heavy measures whole tasks, where there is a Debian for them.
func (b *bench) heavy(ctx context.Context) error {
	if !b.Rows.Heavy() {
		return nil
	}
	b.Progress("Debian with git, python3 and pytest", 0, 1)
	if err := b.buildDebian(ctx); err != nil {
		return fmt.Errorf("build the Debian world: %w", err)
	}
	if b.report.Absent[debianWorld] != "" {
		return nil
	}
	return b.steps(ctx, []step{
		{RowTrace, "coding traces", b.traces}, {RowJudge, "judge", b.judges}, {RowHumanEval, "HumanEval", b.humanEvals},
	})
}

// buildDebian makes the world that tasks stand on. That there can be none is no error.
func (b *bench) buildDebian(ctx context.Context) error {
	if b.Debian != "" {
		_, err := b.Heavy.ImportWorldFrom(ctx, api.ImportSpec{Path: b.Debian, Name: debianWorld}, nil)
		return err
	}
	if _, err := exec.LookPath("mmdebstrap"); err != nil {
		b.report.Absent[debianWorld] = "mmdebstrap is not installed, and no --debian was given"
		return nil
	}
	_, err := b.Heavy.BuildWorld(ctx, api.Recipe{
		Debian: &api.Debian{Suite: "bookworm", Packages: []string{"git", "python3", "python3-pytest"}}, Name: debianWorld,
	}, nil)
	if e, ok := errors.AsType[*api.Error](err); ok && e.Kind == api.BuildFailed { // no mirror answers
		b.report.Absent[debianWorld] = e.Detail
		return nil
	}
	return err
}

// buildOn builds a world by a Dockerfile; files, unless nil, are its context.
func (b *bench) buildOn(ctx context.Context, name, dockerfile string, files io.Reader) (string, error) {
	var log bytes.Buffer
	built, err := b.Heavy.BuildDockerfile(ctx, api.Recipe{Dockerfile: &api.Dockerfile{Text: dockerfile}, Name: name}, files, &log)
	if err != nil {
		return "", fmt.Errorf("build the world %s: %w: %.2000s", name, err, log.String())
	}
	return built.World.ID, nil
}

// unpackWorld writes a world's files, with owners, below dir and returns their root.
func unpackWorld(ctx context.Context, client *api.Client, world, dir string) (root string, err error) {
	image := filepath.Join(dir, "image")
	root = filepath.Join(dir, "root")
	if err := errors.Join(os.MkdirAll(image, 0o700), os.MkdirAll(root, 0o755)); err != nil { //nolint:gosec // a root directory as any
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(image)) }()
	archive := filepath.Join(image, "archive.tar")
	f, err := os.OpenFile(archive, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", err
	}
	if err := errors.Join(client.ExportWorld(ctx, world, f), f.Close()); err != nil {
		return "", err
	}
	if err := run(ctx, "tar", "-x", "-f", archive, "-C", image); err != nil {
		return "", err
	}
	layers, err := layersOf(image)
	if err != nil {
		return "", err
	}
	for _, layer := range layers {
		if err := run(ctx, "tar", "-x", "-p", "--numeric-owner", "-f", layer, "-C", root); err != nil {
			return "", err
		}
	}
	return root, errors.Join(noWhiteouts(root), devices(root))
}

// layersOf is the files of an unpacked image's layers, the lowest first.
func layersOf(image string) ([]string, error) {
	text, err := os.ReadFile(filepath.Join(image, "manifest.json"))
	if err != nil {
		return nil, err
	}
	var manifest []struct{ Layers []string }
	if err := json.Unmarshal(text, &manifest); err != nil {
		return nil, fmt.Errorf("manifest.json: %w", err)
	}
	if len(manifest) != 1 || len(manifest[0].Layers) == 0 {
		return nil, fmt.Errorf("manifest.json has %d images, want one with layers", len(manifest))
	}
	var layers []string
	for _, l := range manifest[0].Layers {
		if !filepath.IsLocal(l) {
			return nil, fmt.Errorf("manifest.json names the layer %q", l)
		}
		layers = append(layers, filepath.Join(image, l))
	}
	return layers, nil
}

// noWhiteouts makes sure that unpacking layers one over the other was right: tar knows
// nothing of files that an upper layer removes.
func noWhiteouts(root string) error {
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasPrefix(d.Name(), ".wh.") {
			err = fmt.Errorf("%s: a layer removes a file of one below", path)
		}
		return err
	})
}

// devices makes what git and pytest open.
func devices(root string) error {
	dev := filepath.Join(root, "dev")
	if err := os.MkdirAll(dev, 0o755); err != nil { //nolint:gosec // as on every host
		return err
	}
	for name, minor := range map[string]uint32{"null": 3, "zero": 5, "random": 8, "urandom": 9} {
		path := filepath.Join(dev, name)
		if err := unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(1, minor))); err != nil { //nolint:gosec // a small number
			return fmt.Errorf("make %s: %w", path, err)
		}
		if err := os.Chmod(path, 0o666); err != nil { //nolint:gosec // as on every host
			return err
		}
	}
	return nil
}

// importTree has Docker import the files of a root, so that it runs the same as paddock.
func (b *bench) importTree(ctx context.Context, ref, root string) (remove func() error, err error) {
	cmd := exec.CommandContext(ctx, "tar", "-c", "--numeric-owner", "--exclude=./dev/*", "-C", root, ".")
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	err = b.docker.Import(ctx, ref, out)
	if err != nil {
		_ = out.Close() // ends tar
	}
	if err := errors.Join(err, cmd.Wait()); err != nil {
		return nil, err
	}
	return func() error { return b.docker.RemoveImage(context.WithoutCancel(ctx), ref) }, nil
}

// run runs one of the host's programs.
func run(ctx context.Context, argv ...string) error {
	out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput() //nolint:gosec // the bench's own command lines
	if err != nil {
		return fmt.Errorf("%s: %w: %.500s", strings.Join(argv, " "), err, out)
	}
	return nil
}
