package egress

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"
)

// Seen is one destination that was asked for, with what became of it, and how often.
type Seen struct {
	// Host is as the request named it, at most 256 bytes, Port 0 where it was not read.
	Host string `json:"host"`
	Port uint16 `json:"port,omitempty"`
	// Endpoint is set, and Host is its target, where the sandbox used an endpoint.
	Endpoint string `json:"endpoint,omitempty"`
	// Address is the one that was dialled, empty for none.
	Address string  `json:"address,omitempty"`
	Method  string  `json:"method,omitempty"`
	Verdict Verdict `json:"verdict"`
	Count   int64   `json:"count"`
	// Up and Down are bytes sent and received.
	Up   int64 `json:"bytes_up,omitempty"`
	Down int64 `json:"bytes_down,omitempty"`
}

type seenKey struct {
	host, endpoint, address, method string
	port                            uint16
	verdict                         Verdict
}

type tally struct{ count, up, down int64 }

// MaxSeen bounds the different destinations that a ledger lists; of others it keeps a count.
const MaxSeen = 256

const (
	maxHostText   = 256
	maxMethodText = 24
)

// Ledger counts what was asked for. Its methods may be called from any goroutine.
type Ledger struct {
	mu sync.Mutex
	// all is since the beginning, fresh since the last Fresh.
	all, fresh         map[seenKey]tally
	allMore, freshMore int64
	refused            int64
}

// NewLedger returns an empty ledger.
func NewLedger() *Ledger {
	return &Ledger{all: map[seenKey]tally{}, fresh: map[seenKey]tally{}}
}

func (l *Ledger) add(s Seen) {
	k := seenKey{
		host: printable(s.Host, maxHostText), endpoint: s.Endpoint, address: s.Address, method: printable(s.Method, maxMethodText),
		port: s.Port, verdict: s.Verdict,
	}
	t := tally{s.Count, s.Up, s.Down}
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.Verdict != Allowed && s.Verdict != Carried {
		l.refused += s.Count
	}
	put(l.all, k, t, &l.allMore)
	put(l.fresh, k, t, &l.freshMore)
}

func put(m map[seenKey]tally, k seenKey, t tally, more *int64) {
	old, known := m[k]
	if !known && len(m) >= MaxSeen {
		*more += t.count
		return
	}
	m[k] = tally{old.count + t.count, old.up + t.up, old.down + t.down}
}

// All is everything so far, in order of host; more is how many requests beside are not
// listed.
func (l *Ledger) All() (all []Seen, more int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return list(l.all), l.allMore
}

// Fresh is what came since the last Fresh, at most max of it.
func (l *Ledger) Fresh(max int) (all []Seen, more int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.fresh) == 0 && l.freshMore == 0 {
		return nil, 0
	}
	all, more = list(l.fresh), l.freshMore
	clear(l.fresh)
	l.freshMore = 0
	for _, s := range all[min(max, len(all)):] {
		more += s.Count
	}
	return all[:min(max, len(all))], more
}

// Refused is how many requests were not served.
func (l *Ledger) Refused() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.refused
}

func list(m map[seenKey]tally) []Seen {
	out := make([]Seen, 0, len(m))
	for k, t := range maps.All(m) {
		out = append(out, Seen{
			Host: k.host, Port: k.port, Endpoint: k.endpoint, Address: k.address, Method: k.method, Verdict: k.verdict,
			Count: t.count, Up: t.up, Down: t.down,
		})
	}
	slices.SortFunc(out, func(a, b Seen) int {
		return cmp.Or(strings.Compare(a.Endpoint, b.Endpoint), strings.Compare(a.Host, b.Host), cmp.Compare(a.Port, b.Port),
			strings.Compare(string(a.Verdict), string(b.Verdict)), strings.Compare(a.Method, b.Method), strings.Compare(a.Address, b.Address))
	})
	return out
}

// printable cuts text that a guest chose to plain ASCII of a length.
func printable(s string, max int) string {
	s = s[:min(len(s), max)]
	return strings.Map(func(r rune) rune {
		if r <= ' ' || r >= 0x7f {
			return '?'
		}
		return r
	}, s)
}
