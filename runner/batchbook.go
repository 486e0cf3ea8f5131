package runner

import (
	"context"
	"slices"
)

// memberState is where a line is.
type memberState int

const (
	waiting memberState = iota
	playing
	ended
)

// member is one line of a batch, as far as it must be known at all times.
type member struct {
	n, chunk int
	id       string
	group    *groupBook
	weights  string
	digest   string
	refillOf string
	// client says that it needs a client, to play or to score it.
	client bool
	state  memberState
	// cancel stops it while it is playing.
	cancel context.CancelCauseFunc
	// replaced: another line of this id came after it.
	replaced bool
	// ahead is what the stock is told while it waits near the front; nil before it was looked
	// up.
	ahead *expectation

	// Of its result:
	seq     int64
	attempt int
	reward  *float64
	cause   string
	// surplus: it was cancelled because its group was complete.
	surplus bool
	// lost: it is void, and no client wanted it so.
	lost bool
}

// groupBook is one group.
type groupBook struct {
	name  string
	order int
	// members are in the order in which they start.
	members []*member
	// seq is not 0 once the group is complete; counted are then the members that count.
	seq     int64
	counted []*member
}

// book is what is known of a batch's lines and groups. It is not safe for concurrent use.
type book struct {
	spec    *BatchSpec
	refills int // of a group, at most
	sealed  bool
	closing bool // nothing is refilled any more
	members []*member
	byID    map[string]*member
	groups  []*groupBook
	byName  map[string]*groupBook
	// completed are the complete groups in order of their seq; one that was opened again is
	// there more than once, and its own seq tells which counts.
	completed []completion
	seq       int64
	groupSeq  int64
}

type completion struct {
	seq   int64
	group *groupBook
}

func newBook(spec *BatchSpec, sealed bool) *book {
	refills, _ := refillsOf(spec.OnVoid)
	return &book{spec: spec, refills: refills, sealed: sealed, byID: map[string]*member{}, byName: map[string]*groupBook{}}
}

// groupName is the group of a line; a line without one is a group of its own.
func groupName(e *BatchEpisode) string {
	if e.Group != "" {
		return e.Group
	}
	return e.ID
}

// enter adds a line. One whose id is known takes the place of the earlier.
func (k *book) enter(n, chunk int, line *keptLine) *member {
	e := &line.Line
	m := &member{
		n: n, chunk: chunk, id: e.ID, weights: e.Weights, digest: line.Digest, refillOf: line.RefillOf,
		client: e.Agent.Client || clientGraded(e.Graders),
	}
	g := k.byName[groupName(e)]
	if g == nil {
		g = &groupBook{name: groupName(e), order: len(k.groups)}
		k.groups = append(k.groups, g)
		k.byName[g.name] = g
	}
	m.group = g
	k.members = append(k.members, m)
	if old := k.byID[m.id]; old != nil {
		old.replaced = true
		k.reopen(old.group)
		at := slices.Index(old.group.members, old)
		old.group.members = slices.Delete(old.group.members, at, at+1)
		if old.group == g {
			g.members = slices.Insert(g.members, at, m)
			k.byID[m.id] = m
			return m
		}
	}
	g.members = append(g.members, m)
	k.byID[m.id] = m
	return m
}

// drop leaves a line out of everything.
func (k *book) drop(m *member) {
	m.replaced = true
	m.group.members = slices.DeleteFunc(m.group.members, func(o *member) bool { return o == m })
	if k.byID[m.id] == m {
		delete(k.byID, m.id)
	}
}

// settle notes a result.
func (k *book) settle(res *BatchResult) {
	k.seq = max(k.seq, res.Seq)
	if res.Line < 0 || res.Line >= len(k.members) {
		return
	}
	m := k.members[res.Line]
	m.state, m.seq, m.attempt, m.reward, m.cause = ended, res.Seq, res.Attempt, res.Reward, causeOf(res)
	m.surplus = res.Reward == nil && res.Step == stepSurplus
	m.lost = res.Reward == nil && (res.Status != Cancelled || res.Cause != Client)
}

// unsettle takes a result back: the line will have another one.
func (k *book) unsettle(m *member) {
	m.state, m.seq, m.attempt, m.reward, m.cause, m.surplus, m.lost = waiting, 0, 0, nil, "", false, false
	k.reopen(m.group)
}

func (k *book) reopen(g *groupBook) { g.seq, g.counted = 0, nil }

// complete notes that a group was complete.
func (k *book) complete(kept *keptGroup) {
	k.groupSeq = max(k.groupSeq, kept.Seq)
	g := k.byName[kept.Group]
	if g == nil {
		return
	}
	g.seq, g.counted = kept.Seq, nil
	for _, n := range kept.Counted {
		if n >= len(k.members) || k.members[n].replaced {
			k.reopen(g) // it was complete with a line that has been replaced since
			return
		}
		g.counted = append(g.counted, k.members[n])
	}
	k.completed = append(k.completed, completion{seq: g.seq, group: g})
}

// wanted is how many valid members a group should have.
func (k *book) wanted(g *groupBook) int {
	if k.spec.GroupSize > 0 {
		return k.spec.GroupSize
	}
	n := 0
	for _, m := range g.members {
		if m.refillOf == "" && !m.surplus {
			n++
		}
	}
	return n
}

// lacking is how many refills a group should be given now, and the members they are for:
// no more than were lost, than are allowed, and than it needs to become whole.
func (k *book) lacking(g *groupBook) []*member {
	if k.refills == 0 || g.seq != 0 || k.closing {
		return nil
	}
	var lost []*member
	hopes, refilled := 0, 0
	for _, m := range g.members {
		switch {
		case m.lost:
			lost = append(lost, m)
		case m.state != ended || m.reward != nil:
			hopes++
		}
		if m.refillOf != "" {
			refilled++
		}
	}
	n := min(k.wanted(g)-hopes, k.refills-refilled, len(lost)-refilled)
	if n <= 0 {
		return nil
	}
	return lost[len(lost)-n:]
}

// decide says whether a group is complete, and then which members count.
func (k *book) decide(g *groupBook) (counted []*member, complete bool) {
	if counted, enough := k.enough(g); enough {
		return counted, true
	}
	originals := 0
	for _, m := range g.members {
		if m.state != ended {
			return nil, false
		}
		if m.refillOf == "" {
			originals++
		}
		if m.reward != nil {
			counted = append(counted, m)
		}
	}
	if originals < k.spec.GroupSize && !k.sealed { // there is more to come
		return nil, false
	}
	return counted, len(k.lacking(g)) == 0
}

// enough finds the members that make a group of a stated size complete, whatever becomes
// of the others.
func (k *book) enough(g *groupBook) (counted []*member, enough bool) {
	size := k.spec.GroupSize
	if size == 0 {
		return nil, false
	}
	all := g.members
	if k.spec.Take == takeFinished {
		all = slices.Clone(all)
		all = slices.DeleteFunc(all, func(m *member) bool { return m.state != ended })
		slices.SortFunc(all, func(a, b *member) int { return int(a.seq - b.seq) })
	}
	for _, m := range all {
		if m.state != ended {
			return nil, false // it started before others, and may count instead of them
		}
		if m.reward == nil {
			continue
		}
		if counted = append(counted, m); len(counted) == size {
			return counted, true
		}
	}
	return nil, false
}

// groupsAfter are the complete groups after a seq, in order.
func (k *book) groupsAfter(after int64) []*groupBook {
	at, _ := slices.BinarySearchFunc(k.completed, after+1, func(c completion, seq int64) int { return int(c.seq - seq) })
	var all []*groupBook
	for _, c := range k.completed[at:] {
		if c.group.seq == c.seq {
			all = append(all, c.group)
		}
	}
	return all
}

// count fills in what a batch says of its lines.
func (k *book) count(b *Batch) {
	b.Sealed, b.Seq, b.GroupSeq = k.sealed, k.seq, k.groupSeq
	b.Total, b.Done, b.Valid, b.Void, b.Surplus, b.Playing, b.Causes = 0, 0, 0, 0, 0, 0, map[string]int{}
	for _, m := range k.members {
		if m.replaced {
			continue
		}
		b.Total++
		if m.state == playing {
			b.Playing++
		}
		if m.state != ended {
			continue
		}
		b.Done++
		b.Causes[m.cause]++
		switch {
		case m.reward != nil:
			b.Valid++
		case m.surplus:
			b.Surplus++
		default:
			b.Void++
		}
	}
	latest := k.groups[max(0, len(k.groups)-MaxGroups):]
	b.MoreGroups = len(latest) < len(k.groups)
	b.Groups = nil
	for _, g := range latest {
		if len(g.members) > 0 {
			b.Groups = append(b.Groups, k.view(g))
		}
	}
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
