// Package engine is a thin client of the Docker Engine API: it moves images in and out, and
// for the bench that measures paddock beside it runs a container from create to remove and
// executes in a running one. The API version is negotiated down to what Debian's packages
// speak (20.10, API 1.41).
package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/client"
	"github.com/docker/docker/pkg/stdcopy"
)

// Engine is a connection to one Docker Engine.
type Engine struct {
	c *client.Client
	// Version is the engine's own, API the version agreed on.
	Version string
	API     string
}

// Dial connects to host, a URL such as unix:///run/docker.sock; empty means DOCKER_HOST
// or the default socket. An engine that does not answer is an error.
func Dial(ctx context.Context, host string) (*Engine, error) {
	opts := []client.Opt{client.FromEnv, client.WithAPIVersionNegotiation()}
	if host != "" {
		opts = append(opts, client.WithHost(host))
	}
	c, err := client.NewClientWithOpts(opts...)
	if err != nil {
		return nil, fmt.Errorf("docker engine: %w", err)
	}
	v, err := c.ServerVersion(ctx)
	if err != nil {
		_ = c.Close()
		return nil, fmt.Errorf("docker engine at %s: %w", c.DaemonHost(), err)
	}
	return &Engine{c: c, Version: v.Version, API: c.ClientVersion()}, nil
}

// Host is the URL that this connection goes to.
func (e *Engine) Host() string { return e.c.DaemonHost() }

// Close ends the connection.
func (e *Engine) Close() error { return e.c.Close() }

// Import makes an image of one layer from a tar of a root file system.
func (e *Engine) Import(ctx context.Context, ref string, tar io.Reader) error {
	rc, err := e.c.ImageImport(ctx, image.ImportSource{Source: tar, SourceName: "-"}, ref, image.ImportOptions{})
	if err != nil {
		return fmt.Errorf("import image %s: %w", ref, err)
	}
	// The engine imports while its progress is read.
	_, err = io.Copy(io.Discard, rc)
	if cerr := rc.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("import image %s: %w", ref, err)
	}
	return nil
}

// Save gives an image as the archive of `docker save`; the caller closes it.
func (e *Engine) Save(ctx context.Context, ref string) (io.ReadCloser, error) {
	rc, err := e.c.ImageSave(ctx, []string{ref})
	if err != nil {
		return nil, fmt.Errorf("save image %s: %w", ref, err)
	}
	return rc, nil
}

// Load takes an archive of `docker save`'s form.
func (e *Engine) Load(ctx context.Context, archive io.Reader) error {
	resp, err := e.c.ImageLoad(ctx, archive, client.ImageLoadWithQuiet(true))
	if err != nil {
		return fmt.Errorf("load image: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	// The engine loads while its progress is read, and tells of an error there.
	for d := json.NewDecoder(resp.Body); ; {
		var line struct{ Error string }
		err := d.Decode(&line)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("load image: read progress: %w", err)
		}
		if line.Error != "" {
			return fmt.Errorf("load image: %s", line.Error)
		}
	}
}

// ImageID is the id of an image that the engine has.
func (e *Engine) ImageID(ctx context.Context, ref string) (string, error) {
	i, err := e.c.ImageInspect(ctx, ref)
	if err != nil {
		return "", fmt.Errorf("inspect image %s: %w", ref, err)
	}
	return i.ID, nil
}

// RemoveImage forgets an image.
func (e *Engine) RemoveImage(ctx context.Context, ref string) error {
	_, err := e.c.ImageRemove(ctx, ref, image.RemoveOptions{Force: true})
	return err
}

// Container says what to run: a command of an image, without a network.
type Container struct {
	Image string
	Argv  []string
	// Dir and Env, each NAME=VALUE, are those of the command and of what Exec runs beside it;
	// empty is the image's.
	Dir string
	Env []string
	// CgroupParent is where the engine puts the container's cgroups; empty is its default.
	CgroupParent string
}

// Timings are the parts of one container's life.
type Timings struct {
	Create, Start, Wait, Remove time.Duration
}

// Total is the whole life.
func (t Timings) Total() time.Duration { return t.Create + t.Start + t.Wait + t.Remove }

// Run creates a container, starts it, waits for its end and removes it.
func (e *Engine) Run(ctx context.Context, c Container) (Timings, error) {
	var t Timings
	t0 := time.Now()
	id, err := e.create(ctx, c)
	if err != nil {
		return t, err
	}
	// Registered before the start, or a short command could end unseen.
	done, failed := e.c.ContainerWait(ctx, id, container.WaitConditionNextExit)
	t1 := time.Now()
	t.Create = t1.Sub(t0)
	if err := e.c.ContainerStart(ctx, id, container.StartOptions{}); err != nil {
		return t, e.removeAfter(ctx, id, fmt.Errorf("start container: %w", err))
	}
	t2 := time.Now()
	t.Start = t2.Sub(t1)
	select {
	case err := <-failed:
		return t, e.removeAfter(ctx, id, fmt.Errorf("wait for container: %w", err))
	case end := <-done:
		if end.StatusCode != 0 {
			return t, e.removeAfter(ctx, id, fmt.Errorf("%q in a container exited %d", c.Argv, end.StatusCode))
		}
	}
	t3 := time.Now()
	t.Wait = t3.Sub(t2)
	err = e.Remove(ctx, id)
	t.Remove = time.Since(t3)
	return t, err
}

func (e *Engine) create(ctx context.Context, c Container) (string, error) {
	made, err := e.c.ContainerCreate(ctx,
		&container.Config{Image: c.Image, Cmd: c.Argv, WorkingDir: c.Dir, Env: c.Env, NetworkDisabled: true},
		&container.HostConfig{NetworkMode: "none", Resources: container.Resources{CgroupParent: c.CgroupParent}},
		nil, nil, "")
	if err != nil {
		return "", fmt.Errorf("create container: %w", err)
	}
	return made.ID, nil
}

// Start creates and starts a container and returns its id. Remove it in the end.
func (e *Engine) Start(ctx context.Context, c Container) (string, error) {
	id, err := e.create(ctx, c)
	if err != nil {
		return "", err
	}
	if err := e.c.ContainerStart(ctx, id, container.StartOptions{}); err != nil {
		return "", e.removeAfter(ctx, id, fmt.Errorf("start container: %w", err))
	}
	return id, nil
}

// RunOutput runs a container to its end, removes it, and returns its exit code and what it
// wrote, standard output and standard error in one. More than a mebibyte is an error.
func (e *Engine) RunOutput(ctx context.Context, c Container) (exit int, said string, err error) {
	id, err := e.create(ctx, c)
	if err != nil {
		return 0, "", err
	}
	defer func() { err = errors.Join(err, e.Remove(ctx, id)) }()
	done, failed := e.c.ContainerWait(ctx, id, container.WaitConditionNextExit) // see Run
	if err := e.c.ContainerStart(ctx, id, container.StartOptions{}); err != nil {
		return 0, "", fmt.Errorf("start container: %w", err)
	}
	select {
	case err := <-failed:
		return 0, "", fmt.Errorf("wait for container: %w", err)
	case end := <-done:
		exit = int(end.StatusCode)
	}
	stream, err := e.c.ContainerLogs(ctx, id, container.LogsOptions{ShowStdout: true, ShowStderr: true})
	if err != nil {
		return exit, "", fmt.Errorf("read logs: %w", err)
	}
	defer func() { _ = stream.Close() }()
	said, err = readOutput(stream)
	return exit, said, err
}

// readOutput reads both streams of a command.
func readOutput(stream io.Reader) (string, error) {
	const most = 1 << 20
	var out bytes.Buffer
	limited := &io.LimitedReader{R: stream, N: most}
	_, err := stdcopy.StdCopy(&out, &out, limited)
	if limited.N == 0 {
		return "", fmt.Errorf("the command wrote more than %d bytes", most)
	}
	return out.String(), err
}

// Exec runs a command in a running container, from create to its exit code.
func (e *Engine) Exec(ctx context.Context, id string, argv []string) (exit int, err error) {
	return e.exec(ctx, id, argv, func(stream io.Reader) error {
		_, err := io.Copy(io.Discard, stream)
		return err
	})
}

// ExecOutput is Exec with what the command wrote, standard output and standard error in
// one. More than a mebibyte is an error.
func (e *Engine) ExecOutput(ctx context.Context, id string, argv []string) (exit int, said string, err error) {
	exit, err = e.exec(ctx, id, argv, func(stream io.Reader) (err error) {
		said, err = readOutput(stream)
		return err
	})
	return exit, said, err
}

func (e *Engine) exec(ctx context.Context, id string, argv []string, read func(io.Reader) error) (exit int, err error) {
	made, err := e.c.ContainerExecCreate(ctx, id, container.ExecOptions{Cmd: argv, AttachStdout: true, AttachStderr: true})
	if err != nil {
		return 0, fmt.Errorf("create exec: %w", err)
	}
	// Attaching starts it; the stream ends with the command.
	stream, err := e.c.ContainerExecAttach(ctx, made.ID, container.ExecAttachOptions{})
	if err != nil {
		return 0, fmt.Errorf("start exec: %w", err)
	}
	err = read(stream.Reader)
	stream.Close()
	if err != nil {
		return 0, fmt.Errorf("read exec: %w", err)
	}
	is, err := e.c.ContainerExecInspect(ctx, made.ID)
	if err != nil {
		return 0, fmt.Errorf("inspect exec: %w", err)
	}
	return is.ExitCode, nil
}

// Changes lists what a container changed, and returns how many paths.
func (e *Engine) Changes(ctx context.Context, id string) (int, error) {
	changes, err := e.c.ContainerDiff(ctx, id)
	if err != nil {
		return 0, fmt.Errorf("list changes: %w", err)
	}
	return len(changes), nil
}

// Commit makes an image of a container's files and returns its id. Remove it in the end.
func (e *Engine) Commit(ctx context.Context, id string) (string, error) {
	made, err := e.c.ContainerCommit(ctx, id, container.CommitOptions{Pause: true})
	if err != nil {
		return "", fmt.Errorf("commit container: %w", err)
	}
	return made.ID, nil
}

// Remove kills a container and removes it.
func (e *Engine) Remove(ctx context.Context, id string) error {
	err := e.c.ContainerRemove(context.WithoutCancel(ctx), id, container.RemoveOptions{Force: true, RemoveVolumes: true})
	if err != nil {
		return fmt.Errorf("remove container: %w", err)
	}
	return nil
}

// removeAfter keeps the first error: a container left behind is the lesser news.
func (e *Engine) removeAfter(ctx context.Context, id string, first error) error {
	_ = e.Remove(ctx, id)
	return first
}
