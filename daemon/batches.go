package daemon

import (
	"fmt"
	"math"
	"net/http"

	"github.com/paddock-run/paddock/api"
	"github.com/paddock-run/paddock/runner"
)

const maxWork = 4096

func (s *Server) createBatch(q *request, in api.BatchSpec) (api.Batch, error) {
	generation, err := q.generation()
	if err != nil {
		return api.Batch{}, err
	}
	if err := checkHostAgents(q.peer, in.Episodes); err != nil {
		return api.Batch{}, err
	}
	b, err := s.run.CreateBatch(q.Context(), q.owner(), batchSpec(in, generation))
	if err != nil {
		return api.Batch{}, err
	}
	q.status = http.StatusCreated
	return wireBatch(b), nil
}

// checkHostAgents refuses programs of this host to those who have no user on it: a token
// is for sandboxes.
func checkHostAgents(p peer, lines []api.BatchEpisode) error {
	if p.remote == "" {
		return nil
	}
	for i, e := range lines {
		if len(e.Agent.Host) > 0 {
			return &api.Error{
				Kind: api.PermissionDenied, Field: fmt.Sprintf("/episodes/%d/agent/host", i),
				Detail: "programs of the daemon's host are run for its own users alone",
				Hint:   "run the agent where the client is, or in the sandbox with agent.command",
			}
		}
	}
	return nil
}

func batchOr(b runner.Batch, err error) (api.Batch, error) {
	if err != nil {
		return api.Batch{}, err
	}
	return wireBatch(b), nil
}

func (s *Server) getBatch(q *request, _ empty) (api.Batch, error) {
	return batchOr(s.run.Batch(q.Context(), q.owner(), q.PathValue("batch")))
}

func (s *Server) listBatches(q *request, _ empty) (api.Batches, error) {
	all, err := s.run.Batches(q.Context(), q.owner())
	if err != nil {
		return api.Batches{}, err
	}
	return api.Batches{Batches: notNil(mapAll(all, wireBatch))}, nil
}

func (s *Server) addToBatch(q *request, in api.BatchLines) (api.BatchAdded, error) {
	generation, err := q.generation()
	if err != nil {
		return api.BatchAdded{}, err
	}
	if err := checkHostAgents(q.peer, in.Episodes); err != nil {
		return api.BatchAdded{}, err
	}
	a, err := s.run.AddToBatch(q.Context(), q.owner(), q.PathValue("batch"), generation, mapAll(in.Episodes, batchEpisode))
	if err != nil {
		return api.BatchAdded{}, err
	}
	return api.BatchAdded{Added: a.Added, Known: a.Known, Batch: wireBatch(a.Batch)}, nil
}

func (s *Server) sealBatch(q *request, _ empty) (api.Batch, error) {
	generation, err := q.generation()
	if err != nil {
		return api.Batch{}, err
	}
	return batchOr(s.run.SealBatch(q.Context(), q.owner(), q.PathValue("batch"), generation))
}

func (s *Server) resumeBatch(q *request, _ empty) (api.Batch, error) {
	generation, err := q.generation()
	if err != nil {
		return api.Batch{}, err
	}
	return batchOr(s.run.ResumeBatch(q.Context(), q.owner(), q.PathValue("batch"), generation))
}

func (s *Server) cancelBatch(q *request, in api.BatchCancel) (api.BatchCancelled, error) {
	generation, err := q.generation()
	if err != nil {
		return api.BatchCancelled{}, err
	}
	b, n, err := s.run.CancelBatch(q.Context(), q.owner(), q.PathValue("batch"), runner.BatchCancel{
		Reason: in.Reason, Prefix: in.Prefix, Group: in.Group, Weights: in.Weights, WeightsBefore: in.WeightsBefore, Generation: generation,
	})
	if err != nil {
		return api.BatchCancelled{}, err
	}
	return api.BatchCancelled{Batch: wireBatch(b), Cancelled: n}, nil
}

func (s *Server) scoreBatch(q *request, in api.Graders) (api.Batch, error) {
	b, err := s.run.ScoreBatch(q.Context(), q.owner(), q.PathValue("batch"), weighted(in.Graders))
	if err != nil {
		return api.Batch{}, err
	}
	q.status = http.StatusCreated
	return wireBatch(b), nil
}

func (s *Server) rewardInBatch(q *request, in api.BatchReward) (empty, error) {
	generation, err := q.generation()
	if err != nil {
		return empty{}, err
	}
	return empty{}, s.run.RewardInBatch(q.Context(), q.owner(), q.PathValue("batch"), rewardSpec(in.ID, in.RewardSpec, generation))
}

func (s *Server) batchResults(q *request) error {
	after, follow := q.query.number("after", 0, math.MaxInt64), q.query.flag("follow")
	if q.query.err != nil {
		return q.query.err
	}
	if _, err := s.run.Batch(q.Context(), q.owner(), q.PathValue("batch")); err != nil {
		return err
	}
	ctx, stop := s.untilEnding(q.Context())
	defer stop()
	out := q.stream()
	return s.run.Results(ctx, q.owner(), q.PathValue("batch"), after, follow, func(r runner.BatchResult) error {
		return out.send(wireBatchResult(r))
	})
}

func (s *Server) batchGroups(q *request) error {
	after, follow := q.query.number("after", 0, math.MaxInt64), q.query.flag("follow")
	if q.query.err != nil {
		return q.query.err
	}
	if _, err := s.run.Batch(q.Context(), q.owner(), q.PathValue("batch")); err != nil {
		return err
	}
	ctx, stop := s.untilEnding(q.Context())
	defer stop()
	out := q.stream()
	return s.run.Groups(ctx, q.owner(), q.PathValue("batch"), after, follow, func(g runner.GroupResult) error {
		return out.send(api.GroupResult{Group: wireGroup(g.BatchGroup), Results: mapAll(g.Results, wireBatchResult)})
	})
}

// batchWork hands out work for as long as somebody reads it. Without a lease of the
// client's process, this very connection is the lease.
func (s *Server) batchWork(q *request) error {
	generation, err := q.generation()
	if err != nil {
		return err
	}
	spec := runner.WorkSpec{Generation: generation, Lease: q.query.text("lease"), Most: int(q.query.number("most", 1, maxWork))}
	if q.query.err != nil {
		return q.query.err
	}
	if spec.Lease == "" {
		id, release := s.run.OpenLease(q.owner())
		defer release()
		spec.Lease = id
	}
	ctx, stop := s.untilEnding(q.Context())
	defer stop()
	return s.run.Work(ctx, q.owner(), q.PathValue("batch"), spec, func() func(runner.Work) error {
		out := q.stream()
		return func(w runner.Work) error {
			return out.send(api.Work{
				Kind: w.Kind, ID: w.Episode.Key.ID, Attempt: w.Attempt, RefillOf: w.RefillOf, Graders: w.Graders, Episode: wireEpisode(w.Episode),
			})
		}
	})
}

func batchSpec(in api.BatchSpec, generation int64) runner.BatchSpec {
	return runner.BatchSpec{
		ID: in.ID, Run: in.Run, Seed: in.Seed, Generation: generation, Open: in.Open, Parallel: in.Parallel, DeadlineS: in.DeadlineS,
		GroupSize: in.GroupSize, Take: in.Take, OnVoid: in.OnVoid, MinValid: in.MinValid, Episodes: mapAll(in.Episodes, batchEpisode),
	}
}

func rewardSpec(id string, in api.RewardSpec, generation int64) runner.RewardSpec {
	return runner.RewardSpec{
		ID: id, Attempt: in.Attempt, Name: in.Name, Reward: in.Reward, Metrics: in.Metrics, Reason: in.Reason, Generation: generation,
	}
}

func batchEpisode(in api.BatchEpisode) runner.BatchEpisode {
	agent := runner.AgentSpec{
		Calls: mapAll(in.Agent.Calls, func(c api.CallSpec) runner.CallSpec { return callSpec(c, 0) }),
		Host:  in.Agent.Host, Client: in.Agent.Client, Answer: compact(in.Agent.Answer),
	}
	if in.Agent.Command != nil {
		c := callSpec(*in.Agent.Command, 0)
		agent.Command = &c
	}
	return runner.BatchEpisode{EpisodeSpec: episodeSpec(in.EpisodeSpec), Agent: agent}
}

func wireBatch(b runner.Batch) api.Batch {
	return api.Batch{
		ID: b.ID, Owner: b.Owner, Run: b.Run, State: string(b.State), Sealed: b.Sealed, Of: b.Of, Created: b.Created,
		Parallel: b.Parallel, DeadlineS: b.DeadlineS, GroupSize: b.GroupSize, Take: b.Take, OnVoid: b.OnVoid, MinValid: b.MinValid,
		Total: b.Total, Done: b.Done, Valid: b.Valid, Void: b.Void, Surplus: b.Surplus, Playing: b.Playing, Clients: b.Clients,
		Causes: b.Causes, Error: b.Error, Seq: b.Seq, GroupSeq: b.GroupSeq,
		Groups: mapAll(b.Groups, wireGroup), MoreGroups: b.MoreGroups,
	}
}

func wireGroup(g runner.BatchGroup) api.Group {
	out := api.Group(g)
	out.IDs, out.Rewards = notNil(g.IDs), notNil(g.Rewards)
	return out
}

func wireBatchResult(r runner.BatchResult) api.BatchResult {
	out := api.BatchResult{
		Seq: r.Seq, Line: r.Line, RefillOf: r.RefillOf, Run: r.Run, ID: r.ID, Group: r.Group, Task: r.Task, Weights: r.Weights, Attempt: r.Attempt,
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
