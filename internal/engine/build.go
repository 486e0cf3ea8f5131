package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/docker/docker/api/types/build"
)

// BuildSpec says what to build from a context.
type BuildSpec struct {
	// Dockerfile is its path in the context.
	Dockerfile string
	Args       map[string]string
	// Target is the stage to build, empty for the last.
	Target string
	// Network is none, host, or what else the engine has.
	Network string
	// NoCache has every step run.
	NoCache bool
}

// BuildError is what the engine's builder says against a Dockerfile.
type BuildError struct{ Detail string }

func (e *BuildError) Error() string { return "docker build: " + e.Detail }

// Build has the engine's classic builder build an image, tells log what the engine says, and
// returns the image's id. A *BuildError is the engine's refusal or a command's failure.
func (e *Engine) Build(ctx context.Context, spec BuildSpec, tar io.Reader, log io.Writer) (string, error) {
	args := map[string]*string{}
	for k, v := range spec.Args {
		args[k] = &v
	}
	resp, err := e.c.ImageBuild(ctx, tar, build.ImageBuildOptions{
		Dockerfile: spec.Dockerfile, BuildArgs: args, Target: spec.Target, NetworkMode: spec.Network, NoCache: spec.NoCache,
		Remove: true, ForceRemove: true, Version: build.BuilderV1,
	})
	if err != nil {
		return "", fmt.Errorf("docker build: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	return readBuild(resp.Body, log)
}

// readBuild reads the engine's stream to its end.
func readBuild(r io.Reader, log io.Writer) (id string, err error) {
	for d := json.NewDecoder(r); ; {
		var line struct {
			Stream, Error string
			Aux           struct{ ID string }
		}
		err := d.Decode(&line)
		switch {
		case errors.Is(err, io.EOF) && id == "":
			return "", errors.New("docker build: the engine told of no image")
		case errors.Is(err, io.EOF):
			return id, nil
		case err != nil:
			return "", fmt.Errorf("docker build: read progress: %w", err)
		case line.Error != "":
			return "", &BuildError{Detail: line.Error}
		}
		if line.Aux.ID != "" {
			id = line.Aux.ID
		}
		if _, err := io.WriteString(log, line.Stream); err != nil {
			return "", err
		}
	}
}
