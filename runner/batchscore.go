package runner

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
)

// scoreRetries is how often a score that the platform or the client's judge spoiled is made
// again.
const scoreRetries = 2

// ClientGrader is what a grader of the client's is called in a spec: "client:NAME". The
// client writes its reward; until then the score is pending.
const ClientGrader = "client:"

// flagPending marks a score of the client's that was not written yet.
const flagPending = "pending"

func isClientGrader(grader string) bool { return strings.HasPrefix(grader, ClientGrader) }

func clientGraded(graders []WeightedGrader) bool {
	return slices.ContainsFunc(graders, func(g WeightedGrader) bool { return isClientGrader(g.Grader) })
}

// pendingScore stands for a reward that the client is still to write.
func pendingScore(grader string) ScoreResult {
	return ScoreResult{
		Grader: grader, Source: "client", Status: Errored, Cause: Client, Step: "judge", Flags: []string{flagPending},
		Evidence: []string{"the client has not written this reward"},
	}
}

// scorePending says that the platform spoiled a score: it alone is made again.
func scorePending(end Cause, scores []ScoreResult) bool {
	return end == Agent && slices.ContainsFunc(scores, func(s ScoreResult) bool { return s.Cause == Platform })
}

// judgePending are the names of the client's graders that gave no reward yet, or failed.
func judgePending(graders []WeightedGrader, scores []ScoreResult) []string {
	var names []string
	for _, g := range graders {
		if !isClientGrader(g.Grader) {
			continue
		}
		i := slices.IndexFunc(scores, func(s ScoreResult) bool { return s.Grader == g.Grader })
		if i < 0 || scores[i].Cause == Client {
			names = append(names, strings.TrimPrefix(g.Grader, ClientGrader))
		}
	}
	return names
}

// scoreLine makes scores that are pending: the daemon died before them, the platform
// spoiled them, or the client is to write them. No agent runs.
func (b *liveBatch) scoreLine(ctx context.Context, line *playable, ep Episode) (Episode, error) {
	for tried := range scoreRetries {
		last := ep.Last()
		pending := last.State == Ended && last.End != nil && last.End.Cause == Agent && len(line.Graders) > 0
		if ctx.Err() != nil || (!pending && (last.End == nil || !scorePending(last.End.Cause, last.Scores))) {
			break
		}
		again, err := b.r.Score(ctx, b.key(&line.BatchEpisode), last.N, line.Graders)
		switch {
		case KindOf(err) == KindNotRescorable:
			return ep, nil
		case err != nil && ctx.Err() != nil:
			return ep, nil
		case err != nil:
			return ep, err
		}
		if ep = again; !b.backOff(ctx, tried) {
			return ep, nil
		}
	}
	return b.judgeLine(ctx, line, ep)
}

// judgeLine waits for the rewards that the client is to write.
func (b *liveBatch) judgeLine(ctx context.Context, line *playable, ep Episode) (Episode, error) {
	last := ep.Last()
	if last.End == nil || last.End.Cause != Agent || !clientGraded(line.Graders) {
		return ep, nil
	}
	key := b.key(&line.BatchEpisode)
	_, err := b.judge(ctx, line, last.N, line.Graders, func(map[string]ScoreResult) ([]ScoreResult, Episode, error) {
		var err error
		if ep, err = b.r.Get(context.WithoutCancel(ctx), key); err != nil {
			return nil, ep, err
		}
		at := ep.Attempts[slices.IndexFunc(ep.Attempts, func(at Attempt) bool { return at.N == last.N })]
		return at.Scores, ep, nil
	})
	return ep, err
}

// scoresNow looks at an attempt's scores.
type scoresNow func(written map[string]ScoreResult) ([]ScoreResult, Episode, error)

// awaited are rewards of one attempt that a line waits for.
type awaited struct {
	attempt int
	names   map[string]bool
	got     chan ScoreResult
}

// judge asks the client for the rewards that now says are missing, until all are there, it
// has failed too often or its time is up. It returns the scores as they are then. now is
// told what the client wrote meanwhile.
func (b *liveBatch) judge(ctx context.Context, line *playable, attempt int, graders []WeightedGrader, now scoresNow) ([]ScoreResult, error) {
	written := map[string]ScoreResult{}
	for tried := 0; ; tried++ {
		aw := b.await(line.ID, attempt, graders) // before the look: what comes in between is seen
		scores, ep, err := now(written)
		if err != nil {
			b.unwait(line.ID, aw)
			return nil, err
		}
		names := judgePending(graders, scores)
		if len(names) == 0 || tried > scoreRetries || ctx.Err() != nil {
			b.unwait(line.ID, aw)
			return scores, nil
		}
		late, err := b.askJudge(ctx, line, aw, written, Work{Kind: WorkScore, Episode: ep, Attempt: attempt, RefillOf: line.refillOf, Graders: names})
		b.unwait(line.ID, aw)
		if err != nil {
			return nil, err
		}
		if late {
			scores, _, err = now(written)
			return scores, err
		}
	}
}

// askJudge puts a scoring before the line's client and waits until each name was answered;
// late is that its time is up.
func (b *liveBatch) askJudge(ctx context.Context, line *playable, aw *awaited, written map[string]ScoreResult, w Work) (late bool, err error) {
	if !b.claim(line) {
		return false, errPutBack
	}
	d := line.driver
	done := b.ask(d, w)
	defer done()
	budget := seconds(w.Episode.Plan.Budgets.ScoreS) * time.Duration(len(w.Graders))
	timer := time.NewTimer(budget)
	defer timer.Stop()
	for missing := slices.Clone(w.Graders); len(missing) > 0; {
		select {
		case s := <-aw.got:
			written[s.Grader] = s
			missing = slices.DeleteFunc(missing, func(name string) bool { return ClientGrader+name == s.Grader })
		case <-timer.C:
			return true, nil
		case <-ctx.Done():
			return true, nil
		case <-d.conn.ended:
			return false, errPutBack
		case <-d.fenced:
			return false, errPutBack
		}
	}
	return false, nil
}

func (b *liveBatch) await(id string, attempt int, graders []WeightedGrader) *awaited {
	aw := &awaited{attempt: attempt, names: map[string]bool{}, got: make(chan ScoreResult, maxGraders)}
	for _, g := range graders {
		if isClientGrader(g.Grader) {
			aw.names[g.Grader] = true
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rewards[id] = aw
	return aw
}

func (b *liveBatch) unwait(id string, aw *awaited) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.rewards[id] == aw {
		delete(b.rewards, id)
	}
}

// deliver hands a reward to the line that waits for it; false is that none does.
func (b *liveBatch) deliver(id string, attempt int, s ScoreResult) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	aw := b.rewards[id]
	if aw == nil || (attempt != 0 && attempt != aw.attempt) || !aw.names[s.Grader] {
		return false
	}
	select {
	case aw.got <- s:
	default: // more than there are names: who waits has what it needs
	}
	return true
}

// rewarded tells batches that wait for it of a reward that an episode was given.
func (r *Runner) rewarded(key Key, attempt int, s ScoreResult) {
	r.mu.Lock()
	var all []*liveBatch
	for _, b := range r.batches {
		if b.kept.Batch.Of == "" && b.kept.Batch.Owner == key.Owner && b.kept.Batch.Run == key.Run {
			all = append(all, b)
		}
	}
	r.mu.Unlock()
	for _, b := range all {
		b.deliver(key.ID, attempt, s)
	}
}

// RewardSpec is a reward that the client itself found. Reward nil is that it could not be
// found: null by the client, never 0.
type RewardSpec struct {
	ID         string
	Attempt    int // 0 is the last
	Name       string
	Reward     *float64
	Metrics    map[string]float64
	Reason     string
	Generation int64
}

// RewardInBatch writes a reward that a batch waits for. Of a batch that scores again it is
// the batch's alone; else it is the episode's too, as WriteReward keeps it.
func (r *Runner) RewardInBatch(ctx context.Context, owner, id string, spec RewardSpec) error {
	kept, err := r.loadBatch(ctx, owner, id)
	if err != nil {
		return err
	}
	key := Key{Owner: owner, Run: kept.Batch.Run, ID: spec.ID}
	if err := r.fence(ctx, key, spec.Generation); err != nil {
		return err
	}
	if kept.Batch.Of == "" {
		_, err := r.WriteReward(ctx, key, spec)
		return err
	}
	s, err := clientScore(&spec)
	if err != nil {
		return err
	}
	if b := r.liveBatch(owner, id); b == nil || !b.deliver(spec.ID, spec.Attempt, s) {
		return &Error{Kind: KindNotLive, Field: "id", Detail: fmt.Sprintf("batch %q does not wait for reward %q of %q", id, spec.Name, spec.ID)}
	}
	return nil
}

// clientScore is a reward of the client's as a score.
func clientScore(spec *RewardSpec) (ScoreResult, error) {
	if !segment.MatchString(spec.Name) {
		return ScoreResult{}, badField("name", "%q is not [A-Za-z0-9][A-Za-z0-9._:@=+~-]{0,127}", spec.Name)
	}
	if spec.Reward != nil && !finite(*spec.Reward) {
		return ScoreResult{}, badField("reward", "%v is not finite", *spec.Reward)
	}
	for name, v := range spec.Metrics {
		if !finite(v) {
			return ScoreResult{}, badField("metrics/"+name, "%v is not finite", v)
		}
	}
	s := ScoreResult{
		Grader: ClientGrader + spec.Name, Source: "client", Status: OK, Cause: Agent,
		Reward: spec.Reward, Metrics: spec.Metrics, Reason: cut(spec.Reason), Tries: 1,
	}
	if spec.Reward == nil {
		s.Status, s.Cause, s.Step = Errored, Client, "judge"
	}
	return s, nil
}

// rescoreLine scores a kept end state with the batch's own graders. The attempt's record
// stays as it is: the scores are this batch's.
func (b *liveBatch) rescoreLine(ctx context.Context, line *playable) (*BatchResult, error) {
	ep, err := b.r.Get(ctx, b.key(&line.BatchEpisode))
	if KindOf(err) == KindNotFound {
		return b.unmade(&line.BatchEpisode, line.refillOf, End{Status: Errored, Cause: Client, Step: "score", Evidence: []string{err.Error()}}), nil
	}
	if err != nil {
		return nil, err
	}
	at := counted(&ep)
	res := resultOf(line, &ep)
	res.Reward, res.Valid, res.Scores = nil, false, nil
	if at.End == nil || at.End.Cause != Agent {
		return &res, nil
	}
	for tried := 0; ; tried++ {
		scores, err := b.r.rescore(ctx, ep.Key, *at, b.kept.Graders)
		switch {
		case ctx.Err() != nil:
			return b.stoppedLine(ctx, line), nil
		case KindOf(err) == KindNotRescorable, KindOf(err) == KindNotFound:
			res.Status, res.Cause, res.Step = Errored, Platform, "score"
			res.Evidence = append(res.Evidence, err.Error())
			return &res, nil
		case err != nil:
			return nil, err
		}
		if scorePending(at.End.Cause, scores) && tried < scoreRetries && b.backOff(ctx, tried) {
			continue
		}
		if res.Scores, err = b.rejudge(ctx, line, &ep, at.N, scores); err != nil {
			return nil, err
		}
		if ctx.Err() != nil && len(judgePending(b.kept.Graders, res.Scores)) > 0 {
			return b.stoppedLine(ctx, line), nil
		}
		res.Reward = Reward(*at.End, res.Scores)
		res.Valid = res.Reward != nil
		return &res, nil
	}
}

// rejudge fills in the rewards that the client is to write for a batch that scores again.
func (b *liveBatch) rejudge(ctx context.Context, line *playable, ep *Episode, attempt int, scores []ScoreResult) ([]ScoreResult, error) {
	if !clientGraded(b.kept.Graders) {
		return scores, nil
	}
	return b.judge(ctx, line, attempt, b.kept.Graders, func(written map[string]ScoreResult) ([]ScoreResult, Episode, error) {
		for i, s := range scores {
			if w, ok := written[s.Grader]; ok {
				w.Weight = s.Weight
				scores[i] = w
			}
		}
		return scores, *ep, nil
	})
}

// ScoreBatch scores a batch's end states again, as a new batch; no agent runs. Attempts
// whose agent's phase has no reward to give are not scored and come as they are. A grader
// "client:NAME" asks the client, as work of the new batch.
func (r *Runner) ScoreBatch(ctx context.Context, owner, id string, graders []WeightedGrader) (Batch, error) {
	kept, err := r.loadBatch(ctx, owner, id)
	if err != nil {
		return Batch{}, err
	}
	if r.liveBatch(owner, id) != nil {
		return Batch{}, &Error{Kind: KindInUse, Detail: fmt.Sprintf("batch %q still runs", id)}
	}
	if len(graders) == 0 || len(graders) > maxGraders {
		return Batch{}, badField("graders", "has %d, must have 1 to %d", len(graders), maxGraders)
	}
	if err := r.checkGraders(ctx, graders); err != nil {
		return Batch{}, err
	}
	without, err := r.surplusOf(ctx, &kept)
	if err != nil {
		return Batch{}, err
	}
	again := keptBatch{Spec: kept.Spec, Graders: graders, Home: kept.home(), Lines: kept.Lines, Without: without, Batch: Batch{
		ID: "b-" + uuid.NewString()[:13], Owner: owner, Run: kept.Batch.Run, Of: id,
		State: BatchRunning, Sealed: true, Created: time.Now().UTC(),
	}}
	again.Spec.ID = again.Batch.ID
	// Its lines are those that counted: none more is surplus, and none is made anew.
	again.Spec.GroupSize, again.Spec.Take, again.Spec.OnVoid, again.Spec.DeadlineS = 0, "", onVoidDrop, 0
	again.Batch.rules(&again.Spec)
	return r.startBatch(ctx, again)
}

// surplusOf are the lines of a batch that did not count in their groups.
func (r *Runner) surplusOf(ctx context.Context, kept *keptBatch) ([]int, error) {
	k, err := r.loadBook(ctx, kept)
	if err != nil {
		return nil, err
	}
	without := slices.Clone(kept.Without)
	for _, g := range k.groups {
		for _, m := range g.members {
			if !g.counts(m) {
				without = append(without, m.n)
			}
		}
	}
	return without, nil
}

// checkGraders says which of a list of graders is not there.
func (r *Runner) checkGraders(ctx context.Context, graders []WeightedGrader) error {
	for i, g := range graders {
		field := fmt.Sprintf("graders/%d", i)
		if name, isClient := strings.CutPrefix(g.Grader, ClientGrader); isClient {
			if !segment.MatchString(name) {
				return badField(field, "%q is not client:NAME", g.Grader)
			}
			continue
		}
		if _, err := r.Grader(ctx, g.Grader); err != nil {
			if KindOf(err) == KindNotFound || KindOf(err) == KindUnknownGrader {
				return &Error{Kind: KindUnknownGrader, Field: field, Detail: err.Error()}
			}
			return err
		}
	}
	return nil
}
