package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/paddock-run/paddock/api"
)

func episodeCommand(c *cli) *cobra.Command {
	return group("episode", "Create, drive and look at episodes",
		episodeCreate(c), episodeCall(c), episodeFinish(c), episodeAbort(c), episodeShow(c), episodeDiff(c), episodeCalls(c), episodeExchanges(c),
		episodeList(c), episodeRemove(c), episodePut(c), episodeGet(c),
		episodeVerb(c, "pause", "Freeze an episode and its clocks", (*api.Client).Pause),
		episodeVerb(c, "resume", "Let a paused episode go on", (*api.Client).Resume),
		episodeFork(c),
		episodeVerb(c, "keepalive", "Renew an episode's lease", (*api.Client).KeepAlive))
}

// runFlag adds --run and gives the key of an id.
func runFlag(cmd *cobra.Command) func(id string) api.Key {
	run := cmd.Flags().String("run", api.DefaultRun, "run in which the id lives")
	return func(id string) api.Key { return api.Key{Run: *run, ID: id} }
}

func episodeCreate(c *cli) *cobra.Command {
	var e episodeFlags
	var next bool
	cmd := &cobra.Command{
		Use: "create WORLD", Short: "Create an episode, or get what is kept of its id", Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			spec, err := e.make(a[0])
			if err != nil {
				return err
			}
			if next {
				spec.Attempt = "next"
			}
			created, err := c.client().Create(cmd.Context(), spec)
			if err != nil {
				return err
			}
			return c.show(created, func(w io.Writer) { fmt.Fprintln(w, created.Episode.ID) })
		},
	}
	e.add(cmd.Flags())
	f := cmd.Flags()
	f.StringArrayVar(&e.graders, "grader", nil, "digest of a grader; the first counts; may be repeated")
	f.IntVar(&e.spec.Retries, "retries", 0, "attempts beside the first where the agent cannot have caused the end")
	f.Float64Var(&e.spec.Lease.TTLS, "ttl", 0, "seconds that the episode lives without a call")
	f.StringVar(&e.spec.OnConflict, "on-conflict", "", "supersede: keep what another spec made as history, and start anew")
	f.BoolVar(&next, "next", false, "start a new attempt after an end that is kept otherwise")
	return cmd
}

func episodeFork(c *cli) *cobra.Command {
	var ids []string
	var n int
	cmd := &cobra.Command{
		Use: "fork ID", Short: "Make episodes that go on from a live one's files", Args: args(cobra.ExactArgs(1)),
		Long: "Seal the files of a live episode as they are now and make episodes that go on from them, with the same spec.\n" +
			"The live one goes on, too. Only files are taken along: processes are held still meanwhile and stay where they are.\n\n" +
			"  paddock episode fork ep-1 -n 4             # ep-1/1 to ep-1/4\n" +
			"  paddock episode fork ep-1 --id left --id right",
	}
	key := runFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, a []string) error {
		if len(ids) == 0 {
			for i := range n {
				ids = append(ids, fmt.Sprintf("%s/%d", a[0], i+1))
			}
		}
		forked, err := c.client().Fork(cmd.Context(), key(a[0]), api.ForkSpec{IDs: ids})
		if err != nil {
			return err
		}
		return c.show(forked, func(w io.Writer) {
			for _, e := range forked.Episodes {
				fmt.Fprintln(w, e.Episode.ID)
			}
		})
	}
	cmd.Flags().StringArrayVar(&ids, "id", nil, "id of a new episode; may be repeated")
	cmd.Flags().IntVarP(&n, "number", "n", 1, "how many, where no --id is given")
	return cmd
}

func episodeCall(c *cli) *cobra.Command {
	var f callFlags
	var tool, arguments, session string
	var stdin bool
	cmd := &cobra.Command{
		Use:   "call ID [flags] -- CMD [ARG...]",
		Short: "Make one call; its output and exit code are passed on",
		Long: "Make one tool call in an episode. Output is passed on as it comes, the exit code as by `paddock run`.\n\n" +
			"  paddock episode call ep-1 -- ls -l\n" +
			"  paddock episode call ep-1 --tool search --args '{\"query\": \"x\"}'\n" +
			"  paddock episode call ep-1 --tool session_open --session main\n" +
			"  paddock episode call ep-1 --session main -- 'cd /tmp; export A=1'",
		Args: args(cobra.MinimumNArgs(1)),
	}
	key := runFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, a []string) error {
		spec := f.make(a[1:])
		spec.Session = session
		switch {
		case tool != "":
			spec.Tool = tool
			if arguments != "" {
				spec.Args = json.RawMessage(arguments)
			}
			if len(a) == 1 {
				spec.Argv = nil
			}
		case session != "":
			spec.Tool, spec.Argv, spec.Shell = "session", nil, strings.Join(a[1:], " ")
		case len(a) < 2:
			return usageError{errors.New("episode call: want a command after --, or --tool")}
		}
		cio := api.CallIO{Stdout: c.out, Stderr: c.errs}
		if c.json {
			cio = api.CallIO{}
		}
		if stdin {
			cio.Stdin = c.in
		}
		var result api.CallResult
		var err error
		if c.json && !stdin { // the result has what is kept of the output; the rest need not travel
			result, err = c.client().Call(cmd.Context(), key(a[0]), spec)
		} else {
			result, err = c.client().Stream(cmd.Context(), key(a[0]), spec, cio)
		}
		if err != nil {
			return orPaddock(err)
		}
		return orPaddock(c.showResult(result))
	}
	f.add(cmd.Flags())
	cmd.Flags().StringVar(&tool, "tool", "", "a tool of paddock or of the world, in place of a command")
	cmd.Flags().StringVar(&arguments, "args", "", "the tool's arguments, a JSON object")
	cmd.Flags().StringVar(&session, "session", "", "an open session that the words after -- are input to")
	cmd.Flags().StringVar(&f.spec.Path, "path", "", "path, for the file tools")
	cmd.Flags().Int64Var(&f.spec.Seq, "seq", 0, "idempotency key of the call")
	cmd.Flags().BoolVarP(&stdin, "stdin", "i", false, "pass standard input on")
	return cmd
}

func (c *cli) showResult(r api.CallResult) error {
	if c.json {
		if err := c.show(r, nil); err != nil {
			return err
		}
		return exitOf(io.Discard, r)
	}
	infos := r.Entries
	if r.Info != nil && len(infos) == 0 && r.Tool == "stat" {
		infos = []api.FileInfo{*r.Info}
	}
	rows := make([][]string, 0, len(infos))
	for _, i := range infos {
		rows = append(rows, []string{i.Type, fmt.Sprintf("%04o", i.Mode), fmt.Sprintf("%d:%d", i.UID, i.GID), strconv.FormatInt(i.Size, 10), i.Name})
	}
	table(c.out, rows...)
	if r.Fault == nil && r.ExitCode == nil && r.Signal == 0 && !r.TimedOut {
		return nil // a file tool: there is no program to have exited
	}
	return exitOf(c.errs, r)
}

func episodeFinish(c *cli) *cobra.Command {
	var answer, payload string
	var attempt int
	cmd := &cobra.Command{Use: "finish ID", Short: "End an attempt well, and score it where graders were given", Args: args(cobra.ExactArgs(1))}
	key := runFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, a []string) error {
		spec := api.FinishSpec{Attempt: attempt}
		if answer != "" {
			spec.Answer = json.RawMessage(answer)
			if !json.Valid(spec.Answer) {
				text, err := json.Marshal(answer)
				if err != nil {
					return err
				}
				spec.Answer = text
			}
		}
		if payload != "" {
			var err error
			if spec.Payload, err = os.ReadFile(payload); err != nil {
				return err
			}
		}
		ep, err := c.client().Finish(cmd.Context(), key(a[0]), spec)
		if err != nil {
			return err
		}
		return c.show(ep, func(w io.Writer) { showEpisode(w, ep) })
	}
	cmd.Flags().StringVar(&answer, "answer", "", "the answer: JSON, or text")
	cmd.Flags().StringVar(&payload, "payload", "", "file with the payload to keep")
	cmd.Flags().IntVar(&attempt, "attempt", 0, "number of the attempt that is meant")
	return cmd
}

func episodeAbort(c *cli) *cobra.Command {
	var reason string
	cmd := &cobra.Command{Use: "abort ID", Short: "End an attempt because the client cannot go on", Args: args(cobra.ExactArgs(1))}
	key := runFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, a []string) error {
		ep, err := c.client().Abort(cmd.Context(), key(a[0]), reason)
		if err != nil {
			return err
		}
		return c.show(ep, func(w io.Writer) { showEpisode(w, ep) })
	}
	cmd.Flags().StringVar(&reason, "reason", "", "what went wrong")
	return cmd
}

func episodeShow(c *cli) *cobra.Command {
	cmd := &cobra.Command{Use: "show ID", Short: "Show an episode and its attempts", Args: args(cobra.ExactArgs(1))}
	key := runFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, a []string) error {
		ep, err := c.client().Episode(cmd.Context(), key(a[0]))
		if err != nil {
			return err
		}
		return c.show(ep, func(w io.Writer) { showEpisode(w, ep) })
	}
	return cmd
}

func showEpisode(w io.Writer, e api.Episode) {
	fmt.Fprintf(w, "%s/%s  %s  reward %s\n", e.Run, e.ID, e.State, number(e.Reward))
	l := e.Effective.Limits
	table(w,
		[]string{"world", short(e.World)},
		[]string{"policy", e.Policy},
		[]string{"group", e.Group},
		[]string{"limits", fmt.Sprintf("cpus %g, memory %s, disk %s (%s), pids %d", l.CPUs, l.Memory, l.Disk, e.Effective.DiskOn, l.Pids)},
		[]string{"clamped", strings.Join(e.Clamped, ", ")},
		[]string{"lease", e.Lease.Kind + deadline(e.Lease.Deadline)},
		[]string{"seeds", fmt.Sprintf("env %d, sample %d", e.EnvSeed, e.SampleSeed)},
	)
	for _, a := range e.Attempts {
		fmt.Fprintf(w, "\nattempt %d  %s\n", a.N, a.State)
		rows := [][]string{{"  end", outcome(a.End)}, {"  reward", number(a.Reward)}, {"  calls", strconv.FormatInt(a.Calls, 10)}}
		rows = append(rows, []string{"  time", fmt.Sprintf("start %s, agent %s, wall %s, score %s",
			seconds(a.Clocks.StartS), seconds(a.Clocks.AgentS), seconds(a.Clocks.WallS), seconds(a.Clocks.ScoreS))})
		if l := a.Launcher; l != nil {
			rows = append(rows, []string{"  launcher", strings.TrimSpace(l.Name+" "+l.Runtime) + fmt.Sprintf(", userns=%t", l.UserNS)})
		}
		if a.Capture != nil {
			rows = append(rows, []string{"  captured", fmt.Sprintf("%d paths, %s", a.Capture.Changes, api.Size(a.Capture.Bytes))})
		}
		rows = append(rows, networkRows(a)...)
		for _, s := range a.Scores {
			rows = append(rows, []string{"  score", fmt.Sprintf("%s  %s by %s  %s %s", short(s.Grader), s.Status, s.Cause, number(s.Reward), s.Reason)})
		}
		for _, n := range a.Notes {
			rows = append(rows, []string{"  note", n})
		}
		table(w, rows...)
	}
}

// maxNetworkRows bounds the destinations that are shown; --json has all.
const maxNetworkRows = 20

func networkRows(a api.Attempt) (rows [][]string) {
	if x := a.Exchanges; x != nil {
		rows = append(rows, []string{"  exchanges", fmt.Sprintf("%d, of which %d broken, %d not recorded", x.Count, x.Broken, x.Dropped)})
	}
	if a.Network == nil {
		return rows
	}
	more := a.Network.More
	for i, d := range a.Network.Seen {
		if i >= maxNetworkRows {
			more += d.Count
			continue
		}
		to := plain(d.Host)
		if d.Port != 0 {
			to = net.JoinHostPort(to, strconv.Itoa(int(d.Port)))
		}
		if d.Endpoint != "" {
			to = d.Endpoint + " " + to
		}
		rows = append(rows, []string{"  network", fmt.Sprintf("%s  %s  %d times, %d bytes up, %d down", to, d.Verdict, d.Count, d.BytesUp, d.BytesDown)})
	}
	if more > 0 {
		rows = append(rows, []string{"  network", fmt.Sprintf("and %d more requests", more)})
	}
	return rows
}

func deadline(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return " until " + t.Local().Format(time.DateTime)
}

func outcome(e *api.End) string {
	if e == nil {
		return "-"
	}
	s := e.Status + " by " + e.Cause
	if e.Step != "" {
		s += " in " + e.Step
	}
	if e.Limit != nil {
		s += fmt.Sprintf(" (%s %g, limit %g)", e.Limit.Name, e.Limit.Measured, e.Limit.Value)
	}
	if e.Reason != "" {
		s += ": " + e.Reason
	}
	return s
}

// number prints a reward; none is a dash and never 0.
func number(r *float64) string {
	if r == nil {
		return "-"
	}
	return strconv.FormatFloat(*r, 'g', 6, 64)
}

func episodeDiff(c *cli) *cobra.Command {
	var attempt int
	cmd := &cobra.Command{Use: "diff ID", Short: "List what an ended attempt changed", Args: args(cobra.ExactArgs(1))}
	key := runFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, a []string) error {
		capture, err := c.client().Changes(cmd.Context(), key(a[0]), attempt)
		if err != nil {
			return err
		}
		return c.show(capture, func(w io.Writer) {
			signs := map[string]string{"created": "A", "modified": "M", "deleted": "D", "type_changed": "T"}
			rows := make([][]string, 0, len(capture.Changes))
			for _, o := range capture.Changes {
				path := o.Path
				if o.Target != "" {
					path += " -> " + o.Target
				}
				rows = append(rows, []string{signs[o.Kind], o.Type, mode(o), strconv.FormatInt(o.Size, 10), path})
			}
			table(w, rows...)
			if capture.Truncated {
				fmt.Fprintln(w, "... there were more changes than a capture lists")
			}
		})
	}
	cmd.Flags().IntVar(&attempt, "attempt", 0, "number of the attempt; the last by default")
	return cmd
}

// mode is a change's, which what is deleted has none of.
func mode(o api.Change) string {
	if o.Kind == "deleted" {
		return "-"
	}
	return fmt.Sprintf("%04o", o.Mode)
}

func episodeCalls(c *cli) *cobra.Command {
	var attempt int
	cmd := &cobra.Command{Use: "calls ID", Short: "Print the record of an attempt's calls, one JSON object a line", Args: args(cobra.ExactArgs(1))}
	key := runFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, a []string) error {
		return c.client().Trajectory(cmd.Context(), key(a[0]), attempt, c.out)
	}
	cmd.Flags().IntVar(&attempt, "attempt", 0, "number of the attempt; the last by default")
	return cmd
}

func episodeExchanges(c *cli) *cobra.Command {
	var attempt int
	cmd := &cobra.Command{Use: "exchanges ID", Short: "Print what an attempt's endpoints carried, one JSON object a line", Args: args(cobra.ExactArgs(1))}
	key := runFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, a []string) error {
		return c.client().Exchanges(cmd.Context(), key(a[0]), attempt, c.out)
	}
	cmd.Flags().IntVar(&attempt, "attempt", 0, "number of the attempt; the last by default")
	return cmd
}

func episodeList(c *cli) *cobra.Command {
	var o api.ListOptions
	cmd := &cobra.Command{
		Use: "ls [PREFIX]", Short: "List a run's episodes", Args: args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			if len(a) == 1 {
				o.Prefix = a[0]
			}
			all := []api.Episode{}
			for {
				page, err := c.client().Episodes(cmd.Context(), o)
				if err != nil {
					return err
				}
				all = append(all, page.Episodes...)
				if !page.More || len(page.Episodes) == 0 {
					break
				}
				o.After = page.Episodes[len(page.Episodes)-1].ID
			}
			return c.show(all, func(w io.Writer) {
				rows := [][]string{{"ID", "STATE", "OUTCOME", "REWARD", "ATTEMPTS", "WORLD", "GROUP"}}
				for _, e := range all {
					end := "-"
					if last := e.Last(); last != nil {
						end = outcome(last.End)
					}
					rows = append(rows, []string{e.ID, e.State, end, number(e.Reward), strconv.Itoa(len(e.Attempts)), short(e.World), e.Group})
				}
				table(w, rows...)
			})
		},
	}
	cmd.Flags().StringVar(&o.Run, "run", api.DefaultRun, "run to list")
	return cmd
}

func episodeRemove(c *cli) *cobra.Command {
	cmd := &cobra.Command{Use: "rm ID...", Short: "End episodes and forget them", Args: args(cobra.MinimumNArgs(1))}
	key := runFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, a []string) error {
		var failed error
		for _, id := range a {
			failed = errors.Join(failed, c.client().Delete(cmd.Context(), key(id)))
		}
		if failed != nil {
			return failed
		}
		return c.show(map[string][]string{"removed": a}, func(io.Writer) {})
	}
	return cmd
}

func episodePut(c *cli) *cobra.Command {
	var user string
	cmd := &cobra.Command{Use: "put ID DIR", Short: "Unpack a tar from standard input under DIR", Args: args(cobra.ExactArgs(2))}
	key := runFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, a []string) error {
		r, err := c.client().Upload(cmd.Context(), key(a[0]), a[1], user, c.in)
		if err != nil {
			return err
		}
		if err := c.show(r, func(w io.Writer) { fmt.Fprintf(w, "%d entries\n", r.Count) }); err != nil || r.Fault == nil {
			return err
		}
		return faultExit(c.errs, *r.Fault)
	}
	cmd.Flags().StringVar(&user, "user", "", "as whom")
	return cmd
}

func episodeGet(c *cli) *cobra.Command {
	var user string
	cmd := &cobra.Command{Use: "get ID PATH", Short: "Write a file or tree as a tar to standard output", Args: args(cobra.ExactArgs(2))}
	key := runFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, a []string) error {
		return c.client().Download(cmd.Context(), key(a[0]), a[1], user, c.out)
	}
	cmd.Flags().StringVar(&user, "user", "", "as whom")
	return cmd
}

// episodeVerb is a command that does one thing to an episode and shows it.
func episodeVerb(c *cli, use, short string, do func(*api.Client, context.Context, api.Key) (api.Episode, error)) *cobra.Command {
	cmd := &cobra.Command{Use: use + " ID", Short: short, Args: args(cobra.ExactArgs(1))}
	key := runFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, a []string) error {
		ep, err := do(c.client(), cmd.Context(), key(a[0]))
		if err != nil {
			return err
		}
		return c.show(ep, func(w io.Writer) { showEpisode(w, ep) })
	}
	return cmd
}
