// Package dockerfile builds worlds from Dockerfiles. Parsing and planning are pure: Parse
// takes a file whole or refuses it by name and line, and a stage's state says, instruction by
// instruction, what is to be done to its files. What is done is a RUN, which is a step of the
// runner under the policy "build", or a copy, which the store makes; both give a world, which
// is found again by a key of everything that went into it.
//
//	FROM base            world by name, earlier stage, or nothing (scratch)
//	RUN argv             key(layers, argv, environment, user, directory, network) -> world
//	COPY, ADD, WORKDIR   key(layers, digest of what is copied, where, whose)      -> world
//	others               change the config alone
//
// The rules are those of Docker 20.10's builder, against which the tests hold them.
package dockerfile

import (
	"context"
	"io"
	"time"

	"github.com/paddock-run/paddock/overlay"
	"github.com/paddock-run/paddock/runner"
)

// Steps is what runs commands and knows who sees which world. *runner.Runner is one.
type Steps interface {
	Step(ctx context.Context, spec runner.StepSpec) (runner.StepResult, error)
	CheckStepNetwork(n runner.StepNetwork) error
	BuildPolicyHash() (string, error)
	World(ctx context.Context, owner, ref string) (overlay.World, error)
	KeepWorld(ctx context.Context, owner, id, name string) (overlay.World, error)
}

// Store is what holds the worlds and copies files into them. *overlay.Store is one.
type Store interface {
	Views
	Cached(key string) (overlay.World, bool)
	// Once waits until nobody else is at a key.
	Once(ctx context.Context, key string) (done func(), err error)
	Copy(ctx context.Context, in overlay.CopyInput, p overlay.Progress) (overlay.World, error)
	Configure(ctx context.Context, base string, in overlay.Sealed) (overlay.World, error)
}

// Views are the trees that a build looks at.
type Views interface {
	View(ctx context.Context, ref string) (*overlay.View, error)
	ViewDir(dir string) (*overlay.View, error)
	Scratch() (dir string, drop func(), err error)
	Unpack(ctx context.Context, r io.Reader, dir string, p overlay.Progress) (string, error)
}

// Builder builds. Its methods may be called from any goroutine.
type Builder struct {
	steps Steps
	store Store
}

// New makes a builder.
func New(steps Steps, store Store) *Builder { return &Builder{steps: steps, store: store} }

// Recipe is what a world is built from.
type Recipe struct {
	// Text is the Dockerfile; where it is empty, File is read from the context.
	Text string
	// File is the Dockerfile's path in the context; "Dockerfile" by default.
	File string
	// Dir is the context as a directory of this host, Tar as an archive of it; at most one is
	// set.
	Dir string
	Tar io.Reader
	// Args are the values of ARGs.
	Args map[string]string
	// Target is the stage to build, the last by default.
	Target  string
	Network Network
	// Config, where set, replaces in the end what the file says, field by field.
	Config overlay.Config
	// Version is a salt for every key.
	Version string
	Name    string
	// Cache is "auto" (default), "off" or "refresh".
	Cache  string
	Limits runner.Limits
	// StepS bounds each RUN, in seconds; 0 is the runner's default.
	StepS float64
}

// Network is what the RUNs of a build reach; the zero value is nothing.
type Network struct {
	// Allow are hosts, HOST[:PORT,...], that a proxy leads to.
	Allow []string
	// Host has it lead to every host that this one reaches, but for addresses of private
	// networks and its own, which Allow may name.
	Host bool
}

// Result is what a build did.
type Result struct {
	World overlay.World
	// Hit says that the cache had everything.
	Hit bool
	// Network says that some RUN of it had a network, now or when the cache was filled.
	Network bool
	Steps   []Step
	Took    time.Duration
}

// Step is one instruction that touched files.
type Step struct {
	// Line and Text are the instruction's.
	Line int
	Text string
	// Hit says that the cache had it.
	Hit  bool
	Took time.Duration
	// Network is what a RUN asked for, nil for nothing.
	Network *runner.NetworkSummary
}
