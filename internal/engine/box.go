package engine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/mount"
)

// Facts are what an engine says of itself.
type Facts struct {
	// Cgroup is its cgroup driver, cgroupfs or systemd; Cgroups is 1 or 2.
	Cgroup, Cgroups string
	// Security are the names of its security options: seccomp, userns, rootless, ...
	Security []string
	// Storage is its storage driver, Root where its data is.
	Storage, Root string
}

// Facts asks the engine for them.
func (e *Engine) Facts(ctx context.Context) (Facts, error) {
	i, err := e.c.Info(ctx)
	if err != nil {
		return Facts{}, fmt.Errorf("docker engine: %w", err)
	}
	f := Facts{Cgroup: i.CgroupDriver, Cgroups: i.CgroupVersion, Storage: i.Driver, Root: i.DockerRootDir}
	for _, o := range i.SecurityOptions {
		for part := range strings.SplitSeq(o, ",") {
			if name, ok := strings.CutPrefix(part, "name="); ok {
				f.Security = append(f.Security, name)
			}
		}
	}
	return f, nil
}

// HasImage says whether the engine has an image.
func (e *Engine) HasImage(ctx context.Context, ref string) (bool, error) {
	_, err := e.c.ImageInspect(ctx, ref)
	if cerrdefs.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("inspect image %s: %w", ref, err)
	}
	return true, nil
}

// Box is a container with nothing but what is asked for: no network, no capability, no new
// privileges, a read-only root, no log, and namespaces of its own but for users.
type Box struct {
	// Name and Labels are for whoever looks at the engine, and for Labelled.
	Name   string
	Labels map[string]string
	Image  string
	Argv   []string
	// Hostname, Caps, Seccomp (a profile in JSON), Masked, ReadOnly and Shm are its
	// lock-down.
	Hostname         string
	Caps             []string
	Seccomp          string
	Masked, ReadOnly []string
	Shm              int64
	// CgroupParent is the directory that the engine makes its cgroup in, "" its default.
	CgroupParent string
	// MemoryBytes, NanoCPUs and Pids bound it.
	MemoryBytes, NanoCPUs, Pids int64
	// Source is a directory of the host that is seen at Target, read-only.
	Source, Target string
}

// Create creates a box and returns its id. It is removed when it ends, or by Discard.
func (e *Engine) Create(ctx context.Context, b Box) (string, error) {
	made, err := e.c.ContainerCreate(ctx,
		&container.Config{
			Image: b.Image, Entrypoint: b.Argv, Hostname: b.Hostname, NetworkDisabled: true, Labels: b.Labels, User: "0:0",
			Env: []string{},
		},
		&container.HostConfig{
			NetworkMode: "none", IpcMode: "private", CgroupnsMode: "private", AutoRemove: true,
			CapDrop: []string{"ALL"}, CapAdd: b.Caps, SecurityOpt: []string{"no-new-privileges", "seccomp=" + b.Seccomp},
			MaskedPaths: b.Masked, ReadonlyPaths: b.ReadOnly, ReadonlyRootfs: true, ShmSize: b.Shm,
			LogConfig: container.LogConfig{Type: "none"},
			Mounts:    []mount.Mount{{Type: mount.TypeBind, Source: b.Source, Target: b.Target, ReadOnly: true}},
			Resources: container.Resources{
				CgroupParent: b.CgroupParent, Memory: b.MemoryBytes, MemorySwap: b.MemoryBytes, NanoCPUs: b.NanoCPUs, PidsLimit: &b.Pids,
			},
		}, nil, nil, b.Name)
	if err != nil {
		return "", fmt.Errorf("create container: %w", err)
	}
	return made.ID, nil
}

// Launch starts a created box. The channel gives its exit status, or -1 when the engine
// does not tell.
func (e *Engine) Launch(ctx context.Context, id string) (<-chan int, error) {
	// Registered before the start: a box that ends is removed, and could not be asked.
	done, failed := e.c.ContainerWait(context.WithoutCancel(ctx), id, container.WaitConditionNextExit)
	status := make(chan int, 1)
	go func() {
		select {
		case end := <-done:
			status <- int(end.StatusCode)
		case err := <-failed: // whoever watches PID 1 itself knows enough
			_ = err
			status <- -1
		}
	}()
	if err := e.c.ContainerStart(ctx, id, container.StartOptions{}); err != nil {
		return nil, e.removeAfter(ctx, id, fmt.Errorf("start container: %w", err))
	}
	return status, nil
}

// PID is the process id of a running box's first process, on the engine's host.
func (e *Engine) PID(ctx context.Context, id string) (int, error) {
	i, err := e.c.ContainerInspect(ctx, id)
	if err != nil {
		return 0, fmt.Errorf("inspect container: %w", err)
	}
	if i.State == nil || i.State.Pid == 0 {
		return 0, errors.New("inspect container: it does not run")
	}
	return i.State.Pid, nil
}

// Labelled lists the containers with a label, whatever their state.
func (e *Engine) Labelled(ctx context.Context, key, value string) ([]string, error) {
	list, err := e.c.ContainerList(ctx, container.ListOptions{All: true, Filters: filters.NewArgs(filters.Arg("label", key+"="+value))})
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	var ids []string
	for _, c := range list {
		ids = append(ids, c.ID)
	}
	return ids, nil
}

// Discard kills and removes a container by its id or name, and returns when it is gone.
// One that is not there is no error.
func (e *Engine) Discard(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	for wait := 5 * time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		err := e.c.ContainerRemove(ctx, id, container.RemoveOptions{Force: true, RemoveVolumes: true})
		if cerrdefs.IsNotFound(err) {
			return nil
		}
		// Without an error it is gone; a conflict says that its own removal is under way.
		if err != nil && !cerrdefs.IsConflict(err) {
			return fmt.Errorf("remove container: %w", err)
		}
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("remove container: %w", errors.Join(err, context.Cause(ctx)))
		case <-time.After(wait):
		}
	}
}
