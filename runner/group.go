package runner

import (
	"math"
	"slices"
)

// DefaultMinValid is how many valid members a group needs unless its batch says otherwise.
const DefaultMinValid = 2

const (
	takeStarted  = "started"
	takeFinished = "finished"
	voidGroup    = "void_group"
	// stepSurplus is the step of ends of members whose group was complete without them.
	stepSurplus = "surplus"
)

// BatchGroup is what came of one group; Mean and Std are over the valid members that count
// and no others.
type BatchGroup struct {
	// Seq is the group's place in the order in which groups were complete; 0 until it is.
	Seq    int64  `json:"seq"`
	Group  string `json:"group"`
	Wanted int    `json:"wanted"`
	// Done members have a result; of these Valid ones count, Void ones have no reward, and
	// Surplus ones are left out though they may have one.
	Done    int `json:"done"`
	Valid   int `json:"valid"`
	Void    int `json:"void"`
	Surplus int `json:"surplus,omitempty"`
	// Refills members were made for void ones.
	Refills int `json:"refills,omitempty"`
	// IDs are the members in order of their lines, without surplus ones, and Rewards
	// theirs: null for void and missing ones.
	IDs     []string   `json:"ids"`
	Rewards []*float64 `json:"rewards"`
	Mean    *float64   `json:"mean"`
	// Std is the population's deviation (divided by the number of valid members).
	Std *float64 `json:"std"`
	// Spread says that not all valid rewards are equal.
	Spread bool           `json:"spread"`
	Causes map[string]int `json:"causes,omitempty"`
	// Complete says that nothing more is to come; IsVoid that it has too few valid members.
	Complete bool `json:"complete"`
	IsVoid   bool `json:"is_void"`
	// Biased says that members were taken in order of their end and others left out.
	Biased bool `json:"biased,omitempty"`
}

// GroupResult is a complete group with its members' results, those of surplus ones left
// out, in order of their lines.
type GroupResult struct {
	BatchGroup
	Results []BatchResult `json:"results"`
}

// view is what is said of a group.
func (k *book) view(g *groupBook) BatchGroup {
	v := BatchGroup{Seq: g.seq, Group: g.name, Wanted: k.wanted(g), Causes: map[string]int{}, Complete: g.seq != 0}
	for _, m := range g.members {
		if m.refillOf != "" {
			v.Refills++
		}
		if m.state == ended {
			v.Done++
			v.Causes[m.cause]++
		}
		if !g.counts(m) {
			v.Surplus++
			continue
		}
		v.IDs, v.Rewards = append(v.IDs, m.id), append(v.Rewards, m.reward)
		switch {
		case m.state != ended:
		case m.reward == nil:
			v.Void++
		default:
			v.Valid++
		}
	}
	v.Mean, v.Std, v.Spread = statistics(v.Rewards)
	v.Biased = v.Surplus > 0 && k.spec.Take == takeFinished
	least := min(k.leastValid(), v.Wanted)
	v.IsVoid = v.Complete && (v.Valid < least || (k.spec.OnVoid == voidGroup && v.Void > 0))
	return v
}

// counts says that a member is no surplus one.
func (g *groupBook) counts(m *member) bool {
	if m.surplus {
		return false
	}
	if g.seq == 0 || (m.state == ended && m.reward == nil) {
		return true
	}
	return slices.Contains(g.counted, m)
}

func (k *book) leastValid() int {
	if k.spec.MinValid == 0 {
		return DefaultMinValid
	}
	return k.spec.MinValid
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
