package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/paddock-run/paddock/api"
)

// cleanupTimeout bounds what is done for an episode after a signal has come.
const cleanupTimeout = 10 * time.Second

// episodeFlags are the flags of everything that creates an episode.
type episodeFlags struct {
	spec                 api.EpisodeSpec
	memory, disk         string
	env, labels, graders []string
	endpoints            []string
	envSeed              uint32
	seedSet              func() bool
}

func (e *episodeFlags) add(f *pflag.FlagSet) {
	f.StringVar(&e.spec.Run, "run", api.DefaultRun, "run in which the episode's id lives")
	f.StringVar(&e.spec.ID, "id", "", "the episode's id; made up when not given")
	f.StringVar(&e.spec.Policy, "policy", "", "name of the lock-down; see paddock policy ls")
	f.StringVar(&e.spec.Group, "group", "", "group of episodes that are compared with each other")
	f.StringVar(&e.spec.Task, "task", "", "name of the task")
	f.StringVar(&e.spec.Weights, "weights", "", "version of the model's weights")
	f.Float64Var(&e.spec.Limits.CPUs, "cpus", 0, "limit of CPUs")
	f.StringVar(&e.memory, "memory", "", "limit of memory, such as 2GiB")
	f.StringVar(&e.disk, "disk", "", "limit of what may be written, such as 1GiB")
	f.Int64Var(&e.spec.Limits.Pids, "pids", 0, "limit of processes")
	f.Var((*secondsValue)(&e.spec.Budgets.AgentS), "agent-seconds", "time inside calls that ends the episode")
	f.Var((*secondsValue)(&e.spec.Budgets.WallS), "wall-seconds", "wall time that ends the episode")
	f.StringArrayVarP(&e.env, "env", "e", nil, "KEY=value of the episode's environment; may be repeated")
	f.StringArrayVar(&e.labels, "label", nil, "KEY=value; may be repeated")
	f.StringArrayVar(&e.spec.Network.Allow, "allow", nil,
		"HOST[:PORT,...] that the proxy lets through: a name, *.NAME, an address or a range; may be repeated; the policy is then networked-allowlist unless --policy names one")
	f.StringArrayVar(&e.spec.Network.Secrets, "secret", nil, "name of a secret of the daemon's that the proxy adds to requests; may be repeated")
	f.StringArrayVar(&e.endpoints, "endpoint", nil,
		"NAME=TARGET[,port=N][,raw][,health=/PATH]: a port of the sandbox's loopback that leads to TARGET, unix:/PATH or HOST:PORT of the daemon's host, or app:NAME; may be repeated")
	f.Uint32Var(&e.envSeed, "env-seed", 0, "PADDOCK_SEED, in place of the one made of run and group")
	e.seedSet = func() bool { return f.Changed("env-seed") }
}

// make is the spec that the flags ask for.
func (e *episodeFlags) make(world string) (api.EpisodeSpec, error) {
	s := e.spec
	s.World = world
	var err error
	for _, size := range []struct {
		text string
		to   *api.Size
	}{{e.memory, &s.Limits.Memory}, {e.disk, &s.Limits.Disk}} {
		if size.text == "" {
			continue
		}
		if *size.to, err = api.ParseSize(size.text); err != nil {
			return s, usageError{err}
		}
	}
	if s.Env, err = pairs("--env", e.env); err != nil {
		return s, err
	}
	if s.Labels, err = pairs("--label", e.labels); err != nil {
		return s, err
	}
	for _, g := range e.graders {
		s.Graders = append(s.Graders, api.WeightedGrader{Grader: g})
	}
	if e.seedSet() {
		s.EnvSeed = &e.envSeed
	}
	if len(s.Network.Allow) > 0 && s.Policy == "" {
		s.Policy = networkedPolicy
	}
	s.Endpoints, err = parseEndpoints(e.endpoints)
	return s, err
}

// networkedPolicy is the policy of commands that name hosts and no policy.
const networkedPolicy = "networked-allowlist"

// parseEndpoints reads NAME=TARGET[,port=N][,raw][,health=PATH].
func parseEndpoints(all []string) (map[string]api.EndpointSpec, error) {
	texts, err := pairs("--endpoint", all)
	if err != nil {
		return nil, err
	}
	var out map[string]api.EndpointSpec
	for name, text := range texts {
		target, options, given := strings.Cut(text, ",")
		e := api.EndpointSpec{Target: target}
		for option := range strings.SplitSeq(options, ",") {
			port, isPort := strings.CutPrefix(option, "port=")
			n, err := strconv.ParseUint(port, 10, 16)
			switch {
			case !given:
			case option == "raw":
				e.Raw = true
			case strings.HasPrefix(option, "health=/"):
				e.Health = strings.TrimPrefix(option, "health=")
			case isPort && err == nil && n > 0:
				e.Port = uint16(n)
			default:
				return nil, usageError{fmt.Errorf("--endpoint %s: option %q: want port=N, raw or health=/PATH", name, option)}
			}
		}
		if out == nil {
			out = map[string]api.EndpointSpec{}
		}
		out[name] = e
	}
	return out, nil
}

func pairs(flag string, all []string) (map[string]string, error) {
	if len(all) == 0 {
		return nil, nil
	}
	out := map[string]string{}
	for _, kv := range all {
		k, v, ok := strings.Cut(kv, "=")
		if !ok || k == "" {
			return nil, usageError{fmt.Errorf("%s %q: want KEY=value", flag, kv)}
		}
		out[k] = v
	}
	return out, nil
}

func runWorldCommand(c *cli) *cobra.Command {
	var e episodeFlags
	var keep, stdin, entrypoint bool
	var callFlags callFlags
	cmd := &cobra.Command{
		Use:   "run WORLD [flags] -- CMD [ARG...]",
		Short: "Run a command in a fresh fork of a world, and pass on its output and exit code",
		Long: "Run a command in a fresh sandbox on a fork of a world. Output is passed on as it comes, and so is the exit code:\n" +
			"128 + number for a signal, 124 for a timeout, 126 and 127 where the command could not be started; 125 means that\n" +
			"paddock itself failed. The episode is deleted afterwards unless --keep or --id is given.\n\n" +
			"  paddock run busybox -- sh -c 'echo hello; id'\n" +
			"  echo hello | paddock run busybox -i -- cat        # standard input is passed on with -i alone\n" +
			"  paddock run app --entrypoint -- --help            # what the image's ENTRYPOINT and CMD say",
		Args: args(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			spec, err := e.make(a[0])
			if err != nil {
				return err
			}
			argv, err := c.argv(cmd.Context(), a[0], entrypoint, a[1:])
			if err != nil {
				return orPaddock(err)
			}
			keep = keep || spec.ID != ""
			r := oneRun{c: c, client: c.client(), spec: spec, call: callFlags.make(argv), keep: keep, stdin: stdin}
			return orPaddock(r.do(cmd.Context()))
		},
	}
	e.add(cmd.Flags())
	callFlags.add(cmd.Flags())
	cmd.Flags().BoolVar(&keep, "keep", false, "keep the episode's record")
	cmd.Flags().BoolVar(&entrypoint, "entrypoint", false, "run the image's ENTRYPOINT, the words after -- in the place of its CMD")
	cmd.Flags().BoolVarP(&stdin, "stdin", "i", false, "pass standard input on to the command")
	return cmd
}

// argv is what to run: the words given, or, where asked, what the image's ENTRYPOINT and CMD
// make of them. Nothing of an image runs unasked.
func (c *cli) argv(ctx context.Context, world string, entrypoint bool, words []string) ([]string, error) {
	if !entrypoint {
		if len(words) == 0 {
			return nil, usageError{errors.New("paddock run: no command; --entrypoint runs the image's own")}
		}
		return words, nil
	}
	w, err := c.client().World(ctx, world)
	if err != nil {
		return nil, err
	}
	if len(words) == 0 {
		words = w.Config.Cmd
	}
	argv := append(slices.Clone(w.Config.Entrypoint), words...)
	if len(argv) == 0 {
		return nil, usageError{fmt.Errorf("world %s has neither ENTRYPOINT nor CMD", world)}
	}
	return argv, nil
}

// orPaddock gives errors of paddock's own an exit code that no command is likely to have.
func orPaddock(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[exitError](err); ok {
		return err
	}
	if _, ok := errors.AsType[usageError](err); ok {
		return err
	}
	return exitError{exitPaddock, err}
}

// oneRun is an episode of one command.
type oneRun struct {
	c           *cli
	client      *api.Client
	spec        api.EpisodeSpec
	call        api.CallSpec
	keep, stdin bool
}

func (r *oneRun) do(ctx context.Context) error {
	// The lease ends the episode when this process dies, however it dies.
	lease, err := r.client.OpenLease(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = lease.Close() }()
	r.spec.Lease = api.Lease{Kind: "connection", Conn: lease.ID}
	created, err := r.client.Create(ctx, r.spec)
	if err != nil {
		return err
	}
	key := created.Episode.Key()
	if last := created.Episode.Last(); created.Kept && last != nil && last.End != nil {
		return &api.Error{
			Kind: api.EpisodeEnded, Outcome: last.End, Detail: fmt.Sprintf("episode %q has ended already", key.ID),
			Hint: "choose another --id, or look at it with `paddock episode show`",
		}
	}
	result, err := r.exec(ctx, key)
	finish := r.finish(ctx, key, err)
	if err != nil {
		return err
	}
	if finish != nil {
		return finish
	}
	if r.c.json {
		if err := r.c.show(result, nil); err != nil {
			return err
		}
	}
	return exitOf(r.c.errs, result)
}

func (r *oneRun) exec(ctx context.Context, key api.Key) (api.CallResult, error) {
	cio := api.CallIO{Stdout: r.c.out, Stderr: r.c.errs}
	if r.c.json && !r.stdin { // the result has what is kept of the output; the rest need not travel
		return r.client.Call(ctx, key, r.call)
	}
	if r.c.json {
		cio = api.CallIO{}
	}
	if r.stdin {
		cio.Stdin = r.c.in
	}
	return r.client.Stream(ctx, key, r.call, cio)
}

// finish ends the episode and, unless it is kept, forgets it, also after a signal.
func (r *oneRun) finish(ctx context.Context, key api.Key, failed error) error {
	interrupted := ctx.Err() != nil
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	if !r.keep {
		return r.client.Delete(ctx, key)
	}
	var err error
	if failed != nil || interrupted {
		_, err = r.client.Abort(ctx, key, "the command line was interrupted")
	} else {
		_, err = r.client.Finish(ctx, key, api.FinishSpec{})
	}
	if errors.Is(err, &api.Error{Kind: api.EpisodeEnded}) {
		return nil
	}
	return err
}

// exitOf is a call's result as an exit code, with a line on stderr where a code says too
// little.
func exitOf(errs io.Writer, r api.CallResult) error {
	for _, h := range r.Hints {
		fmt.Fprintf(errs, "paddock: %s\n", plain(h))
	}
	switch {
	case r.TimedOut, r.CPUTimedOut:
		fmt.Fprintf(errs, "paddock: the time limit of the call has passed\n")
		return exitError{code: exitTimeout}
	case r.Fault != nil:
		return faultExit(errs, *r.Fault)
	case r.OOM && (r.ExitCode == nil || *r.ExitCode != 0):
		fmt.Fprintf(errs, "paddock: the kernel killed a process of the call for memory\n")
	}
	switch {
	case r.ExitCode == nil && r.Signal == 0:
		return exitError{exitPaddock, errors.New("the call ended without an exit code")}
	case r.ExitCode == nil:
		return exitError{code: 128 + r.Signal}
	case *r.ExitCode != 0:
		return exitError{code: *r.ExitCode}
	}
	return nil
}

func faultExit(errs io.Writer, f api.CallFault) error {
	fmt.Fprintf(errs, "paddock: %s", f.Kind)
	if f.Path != "" {
		fmt.Fprintf(errs, ": %s", plain(f.Path))
	}
	if detail := strings.TrimSuffix(f.Detail, ": "+f.Kind); detail != "" {
		fmt.Fprintf(errs, ": %s", plain(detail))
	}
	fmt.Fprintln(errs)
	switch f.Kind {
	case "command_not_found":
		return exitError{code: exitNotFound}
	case "permission_denied", "not_executable", "cwd_not_found", "cwd_not_a_directory", "user_not_found", "user_refused":
		return exitError{code: exitNotRunnable}
	}
	return exitError{code: exitFailed}
}

// secondsValue is a flag of a time: a number of seconds, or a duration such as 90s or 1m30s.
type secondsValue float64

func (s *secondsValue) String() string {
	if *s == 0 {
		return "" // the default is the policy's
	}
	return strconv.FormatFloat(float64(*s), 'g', -1, 64)
}

func (s *secondsValue) Set(text string) error {
	n, err := strconv.ParseFloat(text, 64)
	if err != nil {
		var d time.Duration
		d, err = time.ParseDuration(text)
		n = d.Seconds()
	}
	if err != nil || math.IsNaN(n) || math.IsInf(n, 0) {
		return errors.New("want seconds as a number, or a time such as 90s or 1m30s")
	}
	*s = secondsValue(n)
	return nil
}

func (s *secondsValue) Type() string { return "seconds" }

// callFlags are the flags of everything that makes a call.
type callFlags struct {
	spec api.CallSpec
}

func (f *callFlags) add(set *pflag.FlagSet) {
	set.StringVar(&f.spec.User, "user", "", "name or uid inside the world, optionally :group")
	set.StringVar(&f.spec.Cwd, "cwd", "", "working directory")
	set.Var((*secondsValue)(&f.spec.TimeoutS), "timeout", "time after which the call is killed, such as 2.5 (seconds) or 1m")
}

func (f *callFlags) make(argv []string) api.CallSpec {
	s := f.spec
	s.Tool, s.Argv = "exec", argv
	return s
}
