package runner

import "math"

// DefaultMinValid is how many valid members a group needs unless its batch says otherwise.
const DefaultMinValid = 2

// summary counts a batch's results, the last one of each episode.
func summary(kept *keptBatch, results map[string]BatchResult, live bool) Batch {
	b := kept.Batch
	if b.State == BatchRunning && !live {
		b.State = BatchInterrupted
	}
	b.Causes = map[string]int{}
	for i := range kept.Spec.Episodes {
		res, ok := results[kept.Spec.Episodes[i].ID]
		if !ok {
			continue
		}
		b.Done++
		b.Seq = max(b.Seq, res.Seq)
		b.Causes[causeOf(&res)]++
		if res.Reward == nil {
			b.Void++
		} else {
			b.Valid++
		}
	}
	b.Groups = groupsOf(&kept.Spec, results)
	return b
}

// causeOf names what decided a result: the first score without a reward that counts, else
// the end of the agent's phase.
func causeOf(res *BatchResult) string {
	if res.Cause == Agent && res.Reward == nil {
		for _, s := range res.Scores {
			if s.Weight != 0 && (s.Reward == nil || s.Cause != Agent) {
				return string(s.Status) + "/" + string(s.Cause)
			}
		}
	}
	return string(res.Status) + "/" + string(res.Cause)
}

// groupName is the group of a line; a line without one is a group of its own.
func groupName(e *BatchEpisode) string {
	if e.Group != "" {
		return e.Group
	}
	return e.ID
}

// groupsOf puts results into groups, in order of the groups' first lines.
func groupsOf(spec *BatchSpec, results map[string]BatchResult) []BatchGroup {
	at := map[string]int{}
	var groups []BatchGroup
	for i := range spec.Episodes {
		e := &spec.Episodes[i]
		name := groupName(e)
		n, ok := at[name]
		if !ok {
			n = len(groups)
			at[name] = n
			groups = append(groups, BatchGroup{Group: name, Causes: map[string]int{}})
		}
		g := &groups[n]
		g.Wanted++
		res, ok := results[e.ID]
		g.Rewards = append(g.Rewards, res.Reward)
		if !ok {
			continue
		}
		g.Done++
		g.Causes[causeOf(&res)]++
		if res.Reward == nil {
			g.Void++
		} else {
			g.Valid++
		}
	}
	for i := range groups {
		groups[i].settle(spec)
	}
	return groups
}

// settle derives a group's statistics from its rewards.
func (g *BatchGroup) settle(spec *BatchSpec) {
	g.Mean, g.Std, g.Spread = statistics(g.Rewards)
	g.Complete = g.Done == g.Wanted
	least := spec.MinValid
	if least == 0 {
		least = DefaultMinValid
	}
	least = min(least, g.Wanted)
	g.IsVoid = g.Complete && (g.Valid < least || (spec.OnVoid == "void_group" && g.Void > 0))
}

// statistics is mean and deviation of the rewards that are there; a missing one is never
// taken for 0.
func statistics(rewards []*float64) (mean, std *float64, spread bool) {
	var first *float64
	var n, sum float64
	for _, x := range rewards {
		if x == nil {
			continue
		}
		if first == nil {
			first = x
		}
		spread = spread || *x != *first
		n++
		sum += *x
	}
	if n == 0 {
		return nil, nil, false
	}
	m := sum / n
	var square float64
	for _, x := range rewards {
		if x != nil {
			square += (*x - m) * (*x - m)
		}
	}
	s := math.Sqrt(square / n)
	if !spread { // equal rewards have no deviation, whatever rounding says
		m, s = *first, 0
	}
	return &m, &s, spread
}
