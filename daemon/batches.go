package daemon

import (
	"github.com/paddock-run/paddock/api"
	"github.com/paddock-run/paddock/runner"
)

func batchSpec(in api.BatchSpec) (runner.BatchSpec, error) {
	return runner.BatchSpec{
		Run: in.Run, Seed: in.Seed, Parallel: in.Parallel,
		Episodes: mapAll(in.Episodes, func(e api.BatchEpisode) runner.BatchEpisode {
			return runner.BatchEpisode{EpisodeSpec: episodeSpec(e.EpisodeSpec), Agent: agentSpec(e.Agent)}
		}),
	}, nil
}

func agentSpec(in api.AgentSpec) runner.AgentSpec {
	out := runner.AgentSpec{Calls: mapAll(in.Calls, agentCall), Host: in.Host}
	if in.Command != nil {
		c := agentCall(*in.Command)
		out.Command = &c
	}
	return out
}

// agentCall is a call that the daemon itself makes: no generation is checked.
func agentCall(in api.CallSpec) runner.CallSpec { return callSpec(in, 0) }

func wireBatch(b runner.Batch) api.Batch {
	return api.Batch{
		ID: b.ID, Owner: b.Owner, Run: b.Run, State: string(b.State), Of: b.Of, Created: b.Created, Total: b.Total, Done: b.Done,
		Valid: b.Valid, Void: b.Void, Causes: b.Causes, Error: b.Error,
		Groups: mapAll(b.Groups, func(g runner.BatchGroup) api.BatchGroup { return api.BatchGroup(g) }),
	}
}

func wireBatchResult(r runner.BatchResult) api.BatchResult {
	return api.BatchResult{
		Seq: r.Seq, Run: r.Run, ID: r.ID, Group: r.Group, Task: r.Task, Attempt: r.Attempt, Status: string(r.Status), Cause: string(r.Cause),
		Step: r.Step, Reward: r.Reward, Valid: r.Valid, Scores: mapAll(r.Scores, wireScore), Digests: api.Digests(r.Digests), Evidence: r.Evidence,
	}
}
