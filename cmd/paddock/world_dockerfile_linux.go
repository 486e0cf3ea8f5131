package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/paddock-run/paddock/api"
	"github.com/paddock-run/paddock/internal/engine"
	"github.com/paddock-run/paddock/runner/dockerfile"
)

// dockerfileFlags are those of `world build` that go with a Dockerfile.
type dockerfileFlags struct {
	file, target, builder string
	args, network         []string
	stepS                 float64
	limits                api.Limits
}

func (d *dockerfileFlags) add(f *pflag.FlagSet) {
	f.StringVarP(&d.file, "file", "f", "", "build what this Dockerfile says, with DIR as its context; - is standard input")
	f.StringArrayVar(&d.args, "build-arg", nil, "NAME=value of an ARG, or NAME for that of the environment; may be repeated")
	f.StringVar(&d.target, "target", "", "stage to build, by name or number (default the last)")
	f.StringArrayVar(&d.network, "network", nil, "what RUN reaches: none (default); through a proxy allow:HOST[:PORT],..., or host: whatever this host reaches; may be repeated")
	f.StringVar(&d.builder, "builder", "paddock", "who builds: paddock, or docker for the Docker Engine")
	f.Float64Var(&d.stepS, "step-timeout", 0, "seconds that each RUN may take (default 3600)")
}

// unused refuses flags that mean nothing without a Dockerfile.
func (d *dockerfileFlags) unused() error {
	for flag, set := range map[string]bool{
		"build-arg": len(d.args) > 0, "target": d.target != "", "network": len(d.network) > 0, "builder": d.builder != "paddock", "step-timeout": d.stepS != 0,
	} {
		if set {
			return usageError{fmt.Errorf("--%s goes with a Dockerfile: give -f", flag)}
		}
	}
	return nil
}

// values are the build's arguments; a name without a value has the environment's.
func (d *dockerfileFlags) values() (map[string]string, error) {
	out := map[string]string{}
	for _, a := range d.args {
		name, value, given := strings.Cut(a, "=")
		if name == "" {
			return nil, usageError{fmt.Errorf("--build-arg %q is not NAME=value", a)}
		}
		if !given {
			var set bool
			if value, set = os.LookupEnv(name); !set {
				continue // as docker build does: an ARG's own default counts
			}
		}
		out[name] = value
	}
	return out, nil
}

// allow reads --network: entries of the proxy's list. What follows a comma is one more port
// where it is a number, and one more host where not.
func (d *dockerfileFlags) allow() (out []string, host bool, err error) {
	for _, n := range d.network {
		text, ok := strings.CutPrefix(n, "allow:")
		switch {
		case n == "none":
			continue
		case n == "host":
			host = true
			continue
		case !ok || text == "":
			return nil, false, usageError{fmt.Errorf("--network %q is none of none, host, and allow: with hosts", n)}
		}
		for word := range strings.SplitSeq(text, ",") {
			if isPort(word) && len(out) > 0 {
				out[len(out)-1] += "," + word
				continue
			}
			out = append(out, word)
		}
	}
	return out, host, nil
}

func isPort(word string) bool {
	return word != "" && strings.Trim(word, "0123456789") == ""
}

// context is the directory to build from, empty for none.
func (d *dockerfileFlags) context(a []string) (string, error) {
	if len(a) == 0 {
		return "", nil
	}
	dir, err := filepath.Abs(a[0])
	if err != nil {
		return "", err
	}
	info, err := os.Stat(dir)
	if err == nil && !info.IsDir() {
		err = usageError{fmt.Errorf("%s is no directory, which a Dockerfile's context is", a[0])}
	}
	return dir, err
}

// text is the Dockerfile, and its path in the context where it is there.
func (d *dockerfileFlags) text(dir string, in io.Reader) (text, inside string, err error) {
	if d.file == "-" {
		data, err := io.ReadAll(io.LimitReader(in, dockerfile.MaxText+1))
		return string(data), "", err
	}
	data, err := os.ReadFile(d.file)
	if err != nil {
		return "", "", err
	}
	if path, err := filepath.Abs(d.file); err == nil && dir != "" {
		if rel, err := filepath.Rel(dir, path); err == nil && filepath.IsLocal(rel) {
			return string(data), rel, nil
		}
	}
	return string(data), "", nil
}

func (c *cli) buildDockerfile(cmd *cobra.Command, d dockerfileFlags, r api.Recipe, a []string) error {
	dir, err := d.context(a)
	if err != nil {
		return err
	}
	text, inside, err := d.text(dir, c.in)
	if err != nil {
		return err
	}
	values, err := d.values()
	if err != nil {
		return err
	}
	switch d.builder {
	case "paddock":
	case "docker":
		return c.buildByDocker(cmd.Context(), d, r, byDocker{dir: dir, text: text, inside: inside, args: values})
	default:
		return usageError{fmt.Errorf("--builder %q is neither paddock nor docker", d.builder)}
	}
	allow, host, err := d.allow()
	if err != nil {
		return err
	}
	r.Dockerfile = &api.Dockerfile{File: inside, Args: values, Target: d.target, Allow: allow, Host: host, Limits: d.limits, StepS: d.stepS}
	if inside == "" {
		r.Dockerfile.Text = text
	}
	if host {
		fmt.Fprintln(c.errs, "paddock: WARNING: the build's commands reach whatever this host reaches, through a proxy: --network host")
	}
	if len(allow) > 0 {
		fmt.Fprintf(c.errs, "paddock: the build's commands have a network: %s\n", strings.Join(allow, " "))
	}
	built, err := c.runDockerfile(cmd.Context(), r, dir, text)
	if err != nil {
		return withoutLog(err)
	}
	return c.showBuilt(built)
}

// withoutLog is a failed step's error without the command's last words, which were shown as
// they came.
func withoutLog(err error) error {
	p, ok := errors.AsType[*api.Error](err)
	if !ok || p.Kind != api.BuildFailed {
		return err
	}
	short := *p
	lines := strings.Split(p.Detail, "\n")
	short.Detail, short.Hint = lines[0], ""
	for _, l := range lines[1:] {
		if !strings.HasPrefix(l, "it asked for ") {
			break
		}
		short.Detail += "\n" + l
	}
	return &short
}

// runDockerfile has the daemon read the context, or sends it.
func (c *cli) runDockerfile(ctx context.Context, r api.Recipe, dir, text string) (api.Built, error) {
	if dir == "" || (os.Geteuid() == 0 && c.client().Local()) {
		r.Dir = dir
		return c.client().BuildDockerfile(ctx, r, nil, c.errs)
	}
	if r.Dockerfile.Text != "" {
		r.Dockerfile.Text, r.Dockerfile.File = "", dockerfile.SentDockerfile
	}
	inside := r.Dockerfile.File
	if inside == dockerfile.SentDockerfile {
		inside = ""
	}
	pr, pw := io.Pipe()
	go func() { pw.CloseWithError(dockerfile.Context{Dir: dir, File: inside, Text: text}.Write(ctx, pw)) }()
	defer func() { _ = pr.Close() }() // ends the goroutine when the daemon stops reading
	return c.client().BuildDockerfile(ctx, r, pr, c.errs)
}

func (c *cli) showBuilt(built api.Built) error {
	return c.show(built, func(w io.Writer) {
		how := "built in " + seconds(built.TookS)
		if built.Hit {
			how = "from the cache in " + seconds(built.TookS)
		}
		if built.Network {
			how += ", with a network"
		}
		fmt.Fprintf(w, "%s  %s, %d entries, %s\n", built.World.ID, strings.Join(built.World.Names, ","), built.World.Entries, how)
	})
}

// byDocker is a Dockerfile for a Docker Engine.
type byDocker struct {
	dir, text, inside string
	args              map[string]string
}

// buildByDocker has a Docker Engine build, with the rights of who runs paddock, and imports
// the image.
func (c *cli) buildByDocker(ctx context.Context, d dockerfileFlags, r api.Recipe, in byDocker) error {
	network := "none"
	if len(d.network) > 1 {
		return usageError{errors.New("the Docker Engine takes one --network")}
	}
	if len(d.network) == 1 {
		if network = d.network[0]; strings.HasPrefix(network, "allow:") {
			return usageError{errors.New("the Docker Engine has no allow list; its --network is none, bridge, host, or a network of its own")}
		}
		fmt.Fprintf(c.errs, "paddock: the build's commands have the engine's network %s\n", network)
	}
	if in.dir == "" {
		return usageError{errors.New("--builder docker wants the context's directory")}
	}
	began := time.Now()
	e, err := engine.Dial(ctx, "")
	if err != nil {
		return err
	}
	defer func() { _ = e.Close() }()
	pr, pw := io.Pipe()
	go func() {
		pw.CloseWithError(dockerfile.Context{Dir: in.dir, File: in.inside, Text: in.text, ForEngine: true}.Write(ctx, pw))
	}()
	defer func() { _ = pr.Close() }()
	path := in.inside
	if path == "" {
		path = dockerfile.SentDockerfile
	}
	id, err := e.Build(ctx, engine.BuildSpec{Dockerfile: path, Args: in.args, Target: d.target, Network: network, NoCache: r.Cache == "off" || r.Cache == "refresh"}, pr, c.errs)
	if err != nil {
		return err
	}
	w, err := c.importDocker(ctx, id, api.ImportSpec{Name: r.Name}, func(api.Progress) {})
	if err != nil {
		return err
	}
	return c.showBuilt(api.Built{World: w, Network: network != "none", TookS: time.Since(began).Seconds()})
}
