package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/paddock-run/paddock/api"
)

func appCommand(c *cli) *cobra.Command {
	ls := &cobra.Command{
		Use: "ls", Short: "List the apps", Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := c.client().Apps(cmd.Context())
			if err != nil {
				return err
			}
			return c.show(all, func(w io.Writer) { showApps(w, all) })
		},
	}
	show := &cobra.Command{
		Use: "show NAME", Short: "Show an app with its replicas", Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			one, err := c.client().App(cmd.Context(), a[0])
			if err != nil {
				return err
			}
			return c.show(one, func(w io.Writer) { showApp(w, one) })
		},
	}
	rm := &cobra.Command{
		Use: "rm NAME", Short: "Stop an app and forget it, its logs included", Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error { return c.client().RemoveApp(cmd.Context(), a[0]) },
	}
	return group("app", "Serve programs of worlds to many clients", appDeploy(c), ls, show, appUpdate(c), appScale(c), appLogs(c), rm)
}

// appFlags are the flags that describe an app.
type appFlags struct {
	spec         api.AppSpec
	replicas     int
	memory, disk string
	env          []string
	set          *pflag.FlagSet
}

func (f *appFlags) add(set *pflag.FlagSet) {
	f.set = set
	s := &f.spec
	set.Uint16Var(&s.Port, "port", 0, "port of 127.0.0.1 on which the program serves HTTP/1.1; also in its variable PORT")
	set.IntVar(&f.replicas, "replicas", 0, "replicas; with --max the least of them")
	set.IntVar(&s.Scale.Max, "max", 0, "most replicas, as the load needs them")
	set.IntVar(&s.Scale.Target, "target", 0, "sessions (requests, without sessions) that one replica is to have")
	set.StringVar(&s.Health.Path, "health", "", "path of a GET that a replica that is well answers with 200 to 399; by default it must take connections")
	set.Var((*secondsValue)(&s.StartS), "start", "how long a replica may take to be ready")
	set.StringVar(&s.Sessions, "sessions", "", "sticky (default): one replica serves a session's requests; or none")
	set.Var((*secondsValue)(&s.SessionIdleS), "session-idle", "how long a session lasts without a request")
	set.Var((*secondsValue)(&s.DrainS), "drain", "how long a replica that is to stop waits for its sessions to end")
	set.Var((*secondsValue)(&s.IdleS), "idle", "after how long without requests and sessions all replicas stop until the next request; never by default")
	set.IntVar(&s.MaxInFlight, "max-in-flight", 0, "requests that one replica has at a time")
	set.StringVar(&s.Policy, "policy", "", "name of the lock-down; see paddock policy ls")
	set.Float64Var(&s.Limits.CPUs, "cpus", 0, "limit of CPUs of a replica")
	set.StringVar(&f.memory, "memory", "", "limit of memory of a replica, such as 2GiB")
	set.StringVar(&f.disk, "disk", "", "limit of what a replica may write, such as 1GiB")
	set.Int64Var(&s.Limits.Pids, "pids", 0, "limit of processes of a replica")
	set.StringVar(&s.User, "user", "", "user that the program runs as")
	set.StringVar(&s.Cwd, "cwd", "", "directory that the program runs in")
	set.StringArrayVarP(&f.env, "env", "e", nil, "KEY=value of the program's environment; may be repeated")
	set.StringArrayVar(&s.Network.Allow, "allow", nil, "HOST[:PORT,...] that the replicas' proxy lets through; may be repeated; the policy is then networked-allowlist unless --policy names one")
}

// read fills in what the flags say in other words.
func (f *appFlags) read() error {
	s := &f.spec
	var err error
	for _, size := range []struct {
		text string
		to   *api.Size
	}{{f.memory, &s.Limits.Memory}, {f.disk, &s.Limits.Disk}} {
		if size.text == "" {
			continue
		}
		if *size.to, err = api.ParseSize(size.text); err != nil {
			return usageError{err}
		}
	}
	if len(s.Network.Allow) > 0 && s.Policy == "" {
		s.Policy = networkedPolicy
	}
	s.Scale.Min = f.replicas
	s.Env, err = pairs("--env", f.env)
	return err
}

func appDeploy(c *cli) *cobra.Command {
	var f appFlags
	var wait bool
	cmd := &cobra.Command{
		Use:   "deploy NAME WORLD --port N [flags] [-- CMD [ARG...]]",
		Short: "Serve a program of a world; without CMD the image's own",
		Long: "Serve a program of a world: so many replicas of it, each in a sandbox of its own, are behind one URL. It is printed,\n" +
			"and lies below the daemon's address:\n\n" +
			"  paddock app deploy shop shop-world --port 8000 --replicas 3 --health /healthz -- python3 server.py\n" +
			"  curl --unix-socket /run/paddock/paddock.sock http://paddock/apps/shop/\n\n" +
			"To deploy the same app again changes nothing; `paddock app update` changes it.",
		Args: args(cobra.MinimumNArgs(2)),
		RunE: func(cmd *cobra.Command, a []string) error {
			f.spec.Name, f.spec.World, f.spec.Command = a[0], a[1], a[2:]
			if dash := cmd.ArgsLenAtDash(); dash >= 0 && dash != 2 || dash < 0 && len(a) > 2 {
				return usageError{errors.New("app deploy: want NAME WORLD, and the program after --")}
			}
			if err := f.read(); err != nil {
				return err
			}
			one, err := c.client().DeployApp(cmd.Context(), f.spec)
			if err == nil && wait {
				one, err = c.appReady(cmd.Context(), one)
			}
			if err != nil {
				return err
			}
			return c.show(one, func(w io.Writer) { fmt.Fprintln(w, one.URL) })
		},
	}
	f.add(cmd.Flags())
	cmd.Flags().BoolVar(&wait, "wait", false, "return when every replica is ready")
	return cmd
}

// appReady waits until an app has its replicas, all of its newest revision.
func (c *cli) appReady(ctx context.Context, one api.App) (api.App, error) {
	for {
		ready := 0
		for _, r := range one.Replicas {
			if r.State == "ready" && r.Revision == one.Revision {
				ready++
			}
		}
		switch {
		case ready >= one.Wanted && len(one.Replicas) == ready:
			return one, nil
		case one.State == "failing":
			return one, &api.Error{Kind: api.AppDown, Detail: one.Failure, Hint: "see `paddock app logs " + one.Name + "`"}
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return one, context.Cause(ctx)
		}
		var err error
		if one, err = c.client().App(ctx, one.Name); err != nil {
			return one, err
		}
	}
}

func appUpdate(c *cli) *cobra.Command {
	var f appFlags
	var world string
	var wait bool
	cmd := &cobra.Command{
		Use:   "update NAME [flags] [-- CMD [ARG...]]",
		Short: "Change an app: its replicas are replaced one after another, and none of its requests is dropped",
		Long: "Change an app. What no flag names stays as it is, but a world is looked up again by --world alone. A replica of the\n" +
			"new revision is started and must be ready before one of the old is drained: it takes no new sessions, and stops when\n" +
			"those that it has have ended, or --drain has passed.",
		Args: args(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			if dash := cmd.ArgsLenAtDash(); dash >= 0 && dash != 1 || dash < 0 && len(a) > 1 {
				return usageError{errors.New("app update: want NAME, and the program after --")}
			}
			if err := f.read(); err != nil {
				return err
			}
			one, err := c.client().App(cmd.Context(), a[0])
			if err != nil {
				return err
			}
			f.over(&one.Spec)
			if world != "" {
				one.Spec.World = world
			}
			if len(a) > 1 {
				one.Spec.Command = a[1:]
			}
			one, err = c.client().UpdateApp(cmd.Context(), a[0], one.Spec)
			if err == nil && wait {
				one, err = c.appReady(cmd.Context(), one)
			}
			if err != nil {
				return err
			}
			return c.show(one, func(w io.Writer) { showApp(w, one) })
		},
	}
	f.add(cmd.Flags())
	cmd.Flags().StringVar(&world, "world", "", "world of the new replicas")
	cmd.Flags().BoolVar(&wait, "wait", false, "return when the new replicas are ready and the old have stopped")
	return cmd
}

// over puts what the flags name over a spec.
func (f *appFlags) over(to *api.AppSpec) {
	s := f.spec
	for name, put := range map[string]func(){
		"port": func() { to.Port = s.Port }, "replicas": func() { to.Scale.Min, to.Scale.Max = s.Scale.Min, max(s.Scale.Min, to.Scale.Max) },
		"max": func() { to.Scale.Max = s.Scale.Max }, "target": func() { to.Scale.Target = s.Scale.Target },
		"health": func() { to.Health.Path = s.Health.Path }, "start": func() { to.StartS = s.StartS }, "sessions": func() { to.Sessions = s.Sessions },
		"session-idle": func() { to.SessionIdleS = s.SessionIdleS }, "drain": func() { to.DrainS = s.DrainS }, "idle": func() { to.IdleS = s.IdleS },
		"max-in-flight": func() { to.MaxInFlight = s.MaxInFlight }, "policy": func() { to.Policy = s.Policy }, "cpus": func() { to.Limits.CPUs = s.Limits.CPUs },
		"memory": func() { to.Limits.Memory = s.Limits.Memory }, "disk": func() { to.Limits.Disk = s.Limits.Disk }, "pids": func() { to.Limits.Pids = s.Limits.Pids },
		"user": func() { to.User = s.User }, "cwd": func() { to.Cwd = s.Cwd }, "env": func() { to.Env = s.Env },
		"allow": func() { to.Network, to.Policy = s.Network, s.Policy },
	} {
		if f.set.Changed(name) {
			put()
		}
	}
}

func appScale(c *cli) *cobra.Command {
	var scale api.AppScale
	cmd := &cobra.Command{
		Use: "scale NAME REPLICAS [--max N] [--target N] [--down TIME]", Short: "Say how many replicas an app is to have", Args: args(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, a []string) error {
			n, err := strconv.Atoi(a[1])
			if err != nil || n < 1 {
				return usageError{fmt.Errorf("app scale: %q is no number of replicas", a[1])}
			}
			scale.Min = n
			one, err := c.client().ScaleApp(cmd.Context(), a[0], scale)
			if err != nil {
				return err
			}
			return c.show(one, func(w io.Writer) { showApp(w, one) })
		},
	}
	cmd.Flags().IntVar(&scale.Max, "max", 0, "most replicas, as the load needs them; REPLICAS by default")
	cmd.Flags().IntVar(&scale.Target, "target", 0, "sessions (requests, without sessions) that one replica is to have")
	cmd.Flags().Var((*secondsValue)(&scale.DownS), "down", "for how long fewer replicas must do until one is stopped")
	return cmd
}

func appLogs(c *cli) *cobra.Command {
	var replica string
	var tail int
	var follow bool
	cmd := &cobra.Command{
		Use: "logs NAME", Short: "Print what an app's replicas wrote, the oldest first", Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			out := json.NewEncoder(c.out)
			out.SetEscapeHTML(false)
			return c.client().AppLogs(cmd.Context(), a[0], replica, tail, follow, func(l api.AppLine) error {
				if c.json {
					return out.Encode(l)
				}
				text := l.Text
				if l.Bytes != nil {
					text = string(l.Bytes)
				}
				_, err := fmt.Fprintf(c.out, "%s %s %-7s %s\n", l.Time.Format(time.RFC3339), l.Replica, l.Stream, plain(strings.ReplaceAll(text, "\t", "    ")))
				return err
			})
		},
	}
	cmd.Flags().StringVar(&replica, "replica", "", "whose lines")
	cmd.Flags().IntVarP(&tail, "tail", "n", 0, "so many of the last lines")
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "wait for more")
	return cmd
}

func showApps(w io.Writer, all []api.App) {
	rows := [][]string{{"NAME", "STATE", "REPLICAS", "SESSIONS", "REQUESTS", "RESTARTS", "WORLD", "URL"}}
	for _, a := range all {
		rows = append(rows, []string{
			a.Name, a.State, fmt.Sprintf("%d of %d", len(a.Replicas), a.Wanted), strconv.Itoa(a.Sessions), strconv.Itoa(a.InFlight),
			strconv.FormatInt(a.Restarts, 10), short(a.Spec.World), a.URL,
		})
	}
	table(w, rows...)
}

func showApp(w io.Writer, a api.App) {
	fmt.Fprintf(w, "%s: %s, revision %d of world %s, at %s\n", a.Name, a.State, a.Revision, short(a.Spec.World), a.URL)
	if a.Failure != "" {
		fmt.Fprintf(w, "last failure, at %s: %s\n", a.FailureAt.Format(time.RFC3339), plain(a.Failure))
	}
	rows := [][]string{{"REPLICA", "REVISION", "STATE", "SESSIONS", "REQUESTS", "SINCE", "EPISODE"}}
	for _, r := range a.Replicas {
		rows = append(rows, []string{
			r.ID, strconv.FormatInt(r.Revision, 10), r.State, strconv.Itoa(r.Sessions), strconv.Itoa(r.InFlight), r.Since.Format(time.RFC3339), r.Episode,
		})
	}
	table(w, rows...)
}
