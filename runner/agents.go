package runner

import (
	"context"
	"fmt"
)

// act lets a manifest's agent play a live attempt and returns once that is over. What goes
// wrong ends the attempt: by the agent, or as the client's error where its program failed.
// When ctx is done, the attempt is asked to end as stopEnd says.
func (r *Runner) act(ctx context.Context, a *attempt, agent *AgentSpec, stopEnd func() End) {
	unhook := context.AfterFunc(ctx, func() { a.ask(stopEnd()) })
	defer unhook()
	select {
	case <-a.ready:
	case <-a.over:
	}
	var err error
	switch {
	case stopped(a.stop):
	case agent.Command != nil:
		err = r.runCommand(ctx, a, agent)
	case agent.Host != nil:
		err = r.runHost(ctx, a, agent.Host)
	default:
		err = r.makeCalls(ctx, a, agent)
	}
	switch {
	case ctx.Err() != nil:
		a.ask(stopEnd()) // the hook may still be on its way
	case err != nil && KindOf(err) != KindEpisodeEnded && KindOf(err) != KindSuperseded:
		a.ask(End{Status: Errored, Cause: Client, Step: "rollout", Evidence: []string{cut(err.Error())}})
	}
	<-a.over // an attempt that was asked to end does, within its own bounds
}

func (r *Runner) makeCalls(ctx context.Context, a *attempt, agent *AgentSpec) error {
	for i := range agent.Calls {
		c := agent.Calls[i]
		c.Attempt = a.n
		if _, err := r.Call(ctx, a.key, c, CallIO{}); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx) // it was cut short: what it returned is no end of the agent's
		}
	}
	_, err := r.Finish(ctx, a.key, FinishSpec{Attempt: a.n, Answer: agent.Answer})
	return err
}

// callSlack is how much longer than the agent's budget a command agent's call may take, so
// that it is always the budget that ends it.
const callSlack = 60

// runCommand runs an agent that is one command in the sandbox. Its exit is the end.
func (r *Runner) runCommand(ctx context.Context, a *attempt, agent *AgentSpec) error {
	c := *agent.Command
	c.Tool, c.Attempt = "exec", a.n
	if c.TimeoutS == 0 {
		c.TimeoutS = min(a.plan.Budgets.AgentS+callSlack, maxSeconds)
	}
	res, err := r.Call(ctx, a.key, c, CallIO{})
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx) // as in makeCalls
	}
	if err != nil {
		return err
	}
	_, err = r.endAttempt(ctx, a.key, FinishSpec{Attempt: a.n, Answer: agent.Answer}, commandEnd(&res))
	return err
}

// commandEnd is the end of an agent that was one command.
func commandEnd(res *CallResult) End {
	end := End{Status: OK, Cause: Agent}
	switch {
	case res.TimedOut, res.CPUTimedOut:
		end.Status = Timeout
	case res.Code != nil && *res.Code == 0:
		return end
	case res.OOM:
		end.Status = OOM
	default:
		end.Status = Failed
	}
	end.Limit = res.Limit
	switch {
	case res.Error != nil:
		end.Evidence = []string{fmt.Sprintf("the agent's command: %s %s %s", res.Error.Kind, res.Error.Path, res.Error.Detail)}
	case res.Code != nil:
		end.Evidence = []string{fmt.Sprintf("the agent's command: exit code %d", *res.Code)}
	default:
		end.Evidence = []string{fmt.Sprintf("the agent's command: signal %d", res.Signal)}
	}
	return end
}
