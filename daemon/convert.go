package daemon

import (
	"errors"
	"strings"

	"github.com/paddock-run/paddock/api"
	"github.com/paddock-run/paddock/internal/egress"
	"github.com/paddock-run/paddock/overlay"
	"github.com/paddock-run/paddock/policies"
	"github.com/paddock-run/paddock/runner"
	"github.com/paddock-run/paddock/sandbox"
)

// This file is where wire types and the runner's meet. Structs with the same fields are
// converted as they are, so that a field added on one side alone does not compile.

func runSpec(in api.RunSpec) runner.RunSpec { return runner.RunSpec(in) }

func wireRun(r runner.Run) api.Run { return api.Run(r) }

func episodeSpec(in api.EpisodeSpec) runner.EpisodeSpec {
	return runner.EpisodeSpec{
		Run: in.Run, ID: in.ID, Group: in.Group, Task: in.Task, World: in.World, Weights: in.Weights, Input: compact(in.Input),
		Policy: in.Policy, Env: in.Env, Limits: limits(in.Limits),
		Requests: runner.Requests{CPUs: in.Requests.CPUs, MemoryBytes: int64(in.Requests.Memory)},
		Budgets:  runner.Budgets(in.Budgets), Leftovers: in.Leftovers,
		Tools:   mapAll(in.Tools, func(t api.Tool) overlay.Tool { return overlay.Tool(t) }),
		Graders: weighted(in.Graders), Network: runner.NetworkSpec(in.Network), Endpoints: endpoints(in.Endpoints), EnvSeed: in.EnvSeed, SampleSeed: in.SampleSeed, RetrySeed: in.RetrySeed,
		Labels: in.Labels, Retries: in.Retries, Priority: in.Priority, Lease: runner.LeaseSpec(in.Lease),
		OnConflict: in.OnConflict, Attempt: in.Attempt,
	}
}

func endpoints(in map[string]api.EndpointSpec) map[string]runner.EndpointSpec {
	if in == nil {
		return nil
	}
	out := map[string]runner.EndpointSpec{}
	for name, e := range in {
		out[name] = runner.EndpointSpec(e)
	}
	return out
}

func wireSeen(all []egress.Seen) []api.Destination {
	return mapAll(all, func(s egress.Seen) api.Destination {
		return api.Destination{
			Host: s.Host, Port: s.Port, Endpoint: s.Endpoint, Address: s.Address, Method: s.Method, Verdict: string(s.Verdict),
			Count: s.Count, BytesUp: s.Up, BytesDown: s.Down,
		}
	})
}

func wireNetwork(n *runner.NetworkSummary) *api.NetworkSummary {
	if n == nil {
		return nil
	}
	return &api.NetworkSummary{Seen: notNil(wireSeen(n.Seen)), More: n.More, Refused: n.Refused}
}

func limits(in api.Limits) runner.Limits {
	return runner.Limits{
		CPUs: in.CPUs, MemoryBytes: int64(in.Memory), DiskBytes: int64(in.Disk), Inodes: in.Inodes, Pids: in.Pids,
		CPUSeconds: in.CPUSeconds, OutputBytes: int64(in.OutputTotal), Calls: in.Calls,
	}
}

func wireLimits(in runner.Limits) api.Limits {
	return api.Limits{
		CPUs: in.CPUs, Memory: api.Size(in.MemoryBytes), Disk: api.Size(in.DiskBytes), Inodes: in.Inodes, Pids: in.Pids,
		CPUSeconds: in.CPUSeconds, OutputTotal: api.Size(in.OutputBytes), Calls: in.Calls,
	}
}

func weighted(in []api.WeightedGrader) []runner.WeightedGrader {
	return mapAll(in, func(g api.WeightedGrader) runner.WeightedGrader { return runner.WeightedGrader(g) })
}

func wireEpisode(e runner.Episode) api.Episode {
	spec := e.Plan.Spec
	return api.Episode{
		Owner: e.Key.Owner, Run: e.Key.Run, ID: e.Key.ID, Group: spec.Group, Task: spec.Task, Weights: spec.Weights,
		World: e.Plan.World, Policy: e.Plan.Policy, PolicyHash: e.Plan.PolicyHash, SpecDigest: e.Plan.Digest,
		Effective: api.Effective{
			Limits:   wireLimits(e.Plan.Limits),
			Requests: api.Requests{CPUs: e.Plan.Requests.CPUs, Memory: api.Size(e.Plan.Requests.MemoryBytes)},
			Budgets:  api.Budgets(e.Plan.Budgets),
			DiskOn:   e.Plan.DiskOn,
			Network:  api.EffectiveNetwork(e.Plan.Network),
		},
		Clamped: e.Plan.Clamped, Env: e.Plan.Env, EnvSeed: e.Plan.EnvSeed, SampleSeed: e.Plan.SampleSeed,
		Labels: spec.Labels, Input: compact(spec.Input), BranchOf: (*api.BranchOf)(spec.BranchOf), State: string(e.State), QueuePosition: e.QueuePosition,
		Lease: api.LeaseState(e.Lease), Attempts: notNil(mapAll(e.Attempts, wireAttempt)), Reward: e.Reward, Valid: e.Valid,
	}
}

func wireAttempt(a runner.Attempt) api.Attempt {
	out := api.Attempt{
		N: a.N, State: string(a.State), Generation: a.Generation, SpecDigest: a.SpecDigest, SampleSeed: a.SampleSeed,
		End: wireEnd(a.End), Scores: mapAll(a.Scores, wireScore), Reward: a.Reward, Valid: a.Valid, Superseded: a.Superseded,
		Digests: api.Digests(a.Digests), Clocks: api.Clocks(a.Clocks), Usage: wireUsage(a.Usage), Calls: a.Calls,
		OutputBytes: a.Output, Answer: compact(a.Answer), Created: a.Created, Ready: a.Ready, EndedAt: a.EndedAt, DoneAt: a.DoneAt,
		Notes: a.Notes, Network: wireNetwork(a.Network),
	}
	if a.Launcher != nil {
		l := api.LauncherUsed(*a.Launcher)
		out.Launcher = &l
	}
	if a.Exchanges != nil {
		x := api.ExchangesSummary(*a.Exchanges)
		out.Exchanges = &x
	}
	if a.Capture != nil {
		c := api.CaptureSummary(*a.Capture)
		out.Capture = &c
	}
	if a.Payload != nil {
		p := api.PayloadSummary(*a.Payload)
		out.Payload = &p
	}
	return out
}

func wireEnd(e *runner.End) *api.End {
	if e == nil {
		return nil
	}
	return &api.End{
		Status: string(e.Status), Cause: string(e.Cause), Step: e.Step, Limit: wireLimitHit(e.Limit),
		Evidence: e.Evidence, Flags: e.Flags, Reason: e.Reason,
	}
}

func wireLimitHit(l *runner.LimitHit) *api.LimitHit {
	if l == nil {
		return nil
	}
	hit := api.LimitHit(*l)
	return &hit
}

func wireScore(s runner.ScoreResult) api.Score {
	return api.Score{
		Grader: s.Grader, Status: string(s.Status), Cause: string(s.Cause), Step: s.Step, Reward: s.Reward, Metrics: s.Metrics,
		Reason: s.Reason, Evidence: s.Evidence, Flags: s.Flags, Source: s.Source, Weight: s.Weight, Tries: s.Tries,
		Seconds: s.Seconds, Network: wireNetwork(s.Network), Stdout: s.Stdout, Stderr: s.Stderr,
	}
}

func wireUsage(u sandbox.Usage) api.Usage {
	return api.Usage{CPUS: u.CPU.Seconds(), WallS: u.Wall.Seconds(), MemoryPeakBytes: u.MemoryPeakBytes, RunDelayS: u.RunDelay.Seconds()}
}

func callSpec(in api.CallSpec, generation int64) runner.CallSpec {
	out := runner.CallSpec{
		Tool: in.Tool, Seq: in.Seq, Generation: generation, Attempt: in.Attempt, Weights: in.Weights, Parallel: in.Parallel, Argv: in.Argv,
		Shell: in.Shell, Stdin: in.Stdin, Cwd: in.Cwd, Env: in.Env, User: in.User, TimeoutS: in.TimeoutS, CPUS: in.CPUS,
		MaxStdout: int64(in.MaxStdout), MaxStderr: int64(in.MaxStderr), Leftovers: in.Leftovers, Session: in.Session,
		Args: compact(in.Args), Path: in.Path, Content: in.Content, Mode: in.Mode, Offset: in.Offset, Max: int64(in.Max),
	}
	if in.PathB64 != nil {
		out.Path = string(in.PathB64)
	}
	if in.PTY != nil {
		out.PTY = &runner.PTY{Rows: in.PTY.Rows, Cols: in.PTY.Cols}
	}
	return out
}

func wireResult(r runner.CallResult) api.CallResult {
	out := api.CallResult{
		Seq: r.Seq, Attempt: r.Attempt, Tool: r.Tool, ExitCode: r.Code, Signal: r.Signal, TimedOut: r.TimedOut,
		CPUTimedOut: r.CPUTimedOut, OOM: r.OOM, PidsLimit: r.PidsLimit, OutputHeld: r.OutputHeld, Leftover: r.Leftover,
		Limit:       wireLimitHit(r.Limit),
		StdoutBytes: r.Stdout.Bytes, StdoutDropped: r.Stdout.Dropped, StdoutSHA256: r.Stdout.SHA256,
		StderrBytes: r.Stderr.Bytes, StderrDropped: r.Stderr.Dropped, StderrSHA256: r.Stderr.SHA256,
		Entries: mapAll(r.Entries, wireFile), More: r.More, Count: r.Count, Session: r.Session, Usage: wireUsage(r.Usage),
		Changes: mapAll(r.Changes, wireChanged), MoreChanges: r.MoreChanges, Network: wireSeen(r.Network), MoreNetwork: r.MoreNetwork, Hints: r.Hints, Started: r.Started,
		TookS: r.Took.Seconds(), Kept: r.Kept, End: wireEnd(r.End),
	}
	out.Stdout, out.StdoutB64 = api.Text(r.Stdout.Head)
	out.StdoutTail, out.StdoutTailB64 = api.Text(r.Stdout.Tail)
	out.Stderr, out.StderrB64 = api.Text(r.Stderr.Head)
	out.StderrTail, out.StderrTailB64 = api.Text(r.Stderr.Tail)
	if r.Error != nil {
		out.Fault = &api.CallFault{Kind: r.Error.Kind, Detail: r.Error.Detail}
		out.Fault.Path, out.Fault.PathB64 = api.Text([]byte(r.Error.Path))
	}
	if r.Info != nil {
		info := wireFile(*r.Info)
		out.Info = &info
	}
	return out
}

func wireFile(f runner.FileInfo) api.FileInfo {
	out := api.FileInfo{Type: string(f.Type), Mode: f.Mode, UID: f.UID, GID: f.GID, Size: f.Size, ModTime: f.ModTime}
	out.Name, out.NameB64 = api.Text([]byte(f.Name))
	out.Target, out.TargetB64 = api.Text([]byte(f.Target))
	return out
}

func wireChanged(c runner.FileChange) api.Changed {
	out := api.Changed{Kind: string(c.Kind), Type: c.Type, Size: c.Size}
	out.Path, out.PathB64 = api.Text([]byte(c.Path))
	return out
}

func wireCapture(c overlay.Capture) api.Capture {
	return api.Capture{
		Changes: notNil(mapAll(c.Changes, wireChange)), State: c.State, StateFull: c.StateFull, Bytes: c.Bytes, Stored: c.Stored,
		Rescorable: c.Rescorable, Truncated: c.Truncated, TookS: c.Took.Seconds(),
	}
}

func wireChange(c overlay.Change) api.Change {
	out := api.Change{
		Kind: string(c.Kind), Type: c.Type, Mode: c.Mode, UID: c.UID, GID: c.GID, Size: c.Size, SHA256: c.SHA256,
		Opaque: c.Opaque, Rdev: c.Rdev, Xattrs: c.Xattrs,
	}
	out.Path, out.PathB64 = api.Text([]byte(c.Path))
	out.Target, out.TargetB64 = api.Text([]byte(c.Target))
	out.LinkedTo, out.LinkedToB64 = api.Text([]byte(c.LinkedTo))
	return out
}

func graderSpec(in api.GraderSpec) runner.GraderSpec {
	out := runner.GraderSpec{
		Files: map[string]runner.GraderFile{}, Dir: in.Dir, Command: in.Command, Env: in.Env, User: in.User, Policy: in.Policy,
		Limits: limits(in.Limits), Network: runner.NetworkSpec(in.Network), Verdict: in.Verdict, Mode: in.Mode, Boot: in.Boot, RewardRange: in.RewardRange,
		OnNoVerdict: in.OnNoVerdict, Protected: in.Protected, OnTamper: in.OnTamper, Keep: in.Keep,
	}
	for name, f := range in.Files {
		out.Files[name] = runner.GraderFile(f)
	}
	return out
}

func wireGrader(in runner.GraderSpec) api.GraderSpec {
	out := api.GraderSpec{
		Files: map[string]api.GraderFile{}, Dir: in.Dir, Command: in.Command, Env: in.Env, User: in.User, Policy: in.Policy,
		Limits: wireLimits(in.Limits), Network: api.NetworkSpec(in.Network), Verdict: in.Verdict, Mode: in.Mode, Boot: in.Boot, RewardRange: in.RewardRange,
		OnNoVerdict: in.OnNoVerdict, Protected: in.Protected, OnTamper: in.OnTamper, Keep: in.Keep,
	}
	for name, f := range in.Files {
		out.Files[name] = api.GraderFile(f)
	}
	return out
}

// pointer makes the name of a field a JSON pointer.
func pointer(field string) string {
	if field == "" || field[0] == '/' {
		return field
	}
	return "/" + field
}

// runnerKinds are the runner's kinds whose wire name is another.
var runnerKinds = map[string]api.Kind{
	runner.KindNotLive:       api.WrongState,
	runner.KindRecordDamaged: api.Corrupt,
}

// translateRunner gives the wire form of the typed errors below the daemon, nil for one
// it does not know.
func translateRunner(err error) *api.Error {
	if e, ok := errors.AsType[*runner.Error](err); ok {
		p := &api.Error{Kind: api.Kind(e.Kind), Detail: e.Detail, Field: pointer(e.Field), Outcome: wireEnd(e.End), RetryAfter: e.RetryAfter.Seconds()}
		if other, renamed := runnerKinds[e.Kind]; renamed {
			p.Kind = other
		}
		for _, d := range e.Diffs {
			p.Pointers = append(p.Pointers, api.Difference{Pointer: d.Pointer, Old: d.Old, New: d.New})
		}
		for _, a := range e.Attempts {
			if a.End != nil {
				p.Outcomes = append(p.Outcomes, *wireEnd(a.End))
			}
		}
		return p
	}
	if e, ok := errors.AsType[*policies.UnknownError](err); ok {
		return &api.Error{Kind: api.UnknownPolicy, Detail: e.Error()}
	}
	if e, ok := errors.AsType[*policies.LimitError](err); ok {
		return &api.Error{Kind: api.BadRequest, Field: "/limits/" + e.Field, Detail: e.Error()}
	}
	if e, ok := errors.AsType[*policies.RefusalError](err); ok {
		return &api.Error{Kind: api.RefusedByPolicy, Detail: e.Error()}
	}
	if e, ok := errors.AsType[*sandbox.UnsupportedError](err); ok {
		return &api.Error{Kind: api.Unsupported, Detail: e.Error()}
	}
	if e, ok := errors.AsType[*sandbox.UserError](err); ok {
		return &api.Error{Kind: api.UnknownUser, Detail: e.Error()}
	}
	return translateStore(err)
}

func translateStore(err error) *api.Error {
	if e, ok := errors.AsType[*overlay.NotFoundError](err); ok {
		return &api.Error{Kind: api.UnknownWorld, Detail: e.Error()}
	}
	if e, ok := errors.AsType[*overlay.RegistryError](err); ok {
		return &api.Error{Kind: api.Kind(e.Kind), Field: "/registry/ref", Detail: strings.TrimPrefix(e.Error(), e.Kind+" ")}
	}
	if e, ok := errors.AsType[*overlay.RecipeError](err); ok {
		kind := api.BadRecipe
		switch e.Kind {
		case "bad_archive", "duplicate_entry", "outside_root", "invalid_path":
			kind = api.BadArchive
		case "build_failed":
			kind = api.BuildFailed
		}
		return &api.Error{Kind: kind, Field: e.Kind, Detail: strings.TrimLeft(strings.TrimPrefix(e.Error(), string(kind)), ": ")}
	}
	switch {
	case errors.Is(err, overlay.ErrInUse):
		return &api.Error{Kind: api.InUse, Detail: err.Error()}
	case errors.Is(err, overlay.ErrCorrupt):
		return &api.Error{Kind: api.Corrupt, Detail: err.Error()}
	}
	return translateSystem(err)
}
