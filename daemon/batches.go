package daemon

import (
	"github.com/paddock-run/paddock/api"
	"github.com/paddock-run/paddock/runner"
)

func batchSpec(in api.BatchSpec) runner.BatchSpec {
	return runner.BatchSpec{
		ID: in.ID, Run: in.Run, Seed: in.Seed, Parallel: in.Parallel, DeadlineS: in.DeadlineS, OnVoid: in.OnVoid,
		MinValid: in.MinValid, Episodes: mapAll(in.Episodes, batchEpisode),
	}
}

func batchEpisode(in api.BatchEpisode) runner.BatchEpisode {
	agent := runner.AgentSpec{
		Calls: mapAll(in.Agent.Calls, func(c api.CallSpec) runner.CallSpec { return callSpec(c, 0) }),
		Host:  in.Agent.Host, Answer: compact(in.Agent.Answer),
	}
	if in.Agent.Command != nil {
		c := callSpec(*in.Agent.Command, 0)
		agent.Command = &c
	}
	return runner.BatchEpisode{EpisodeSpec: episodeSpec(in.EpisodeSpec), Agent: agent}
}

func wireBatch(b runner.Batch) api.Batch {
	return api.Batch{
		ID: b.ID, Owner: b.Owner, Run: b.Run, State: string(b.State), Of: b.Of, Created: b.Created, Total: b.Total, Done: b.Done,
		Valid: b.Valid, Void: b.Void, Causes: b.Causes, Error: b.Error, Seq: b.Seq,
		Groups: mapAll(b.Groups, func(g runner.BatchGroup) api.Group { return api.Group(g) }),
	}
}

func wireBatchResult(r runner.BatchResult) api.BatchResult {
	out := api.BatchResult{
		Seq: r.Seq, Run: r.Run, ID: r.ID, Group: r.Group, Task: r.Task, Weights: r.Weights, Attempt: r.Attempt,
		Status: string(r.Status), Cause: string(r.Cause), Step: r.Step, Flags: r.Flags, Reason: r.Reason, Reward: r.Reward,
		Valid: r.Valid, Scores: mapAll(r.Scores, wireScore), Digests: api.Digests(r.Digests), Clocks: api.Clocks(r.Clocks),
		Calls: r.Calls, Answer: compact(r.Answer), Evidence: r.Evidence, At: r.At,
	}
	if r.Payload != nil {
		p := api.PayloadSummary(*r.Payload)
		out.Payload = &p
	}
	return out
}
