package policies

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// Egress is what leaves a sandbox whose network is an allow list: what its proxy is asked to
// hold. The proxy itself is not this package's.
type Egress struct {
	// Port is the proxy's, on the sandbox's 127.0.0.1.
	Port uint16
	// Allow are the entries that every sandbox of the policy has; Grants says whether a
	// request may add others.
	Allow  []string
	Grants bool
	// Refused are ranges of addresses that no name may lead to.
	Refused []netip.Prefix
	Limits  EgressLimits
}

// EgressLimits bound what one sandbox's proxy does, over its whole life.
type EgressLimits struct {
	Requests          int64
	RequestsPerSecond float64
	// Connections is how many are served at a time.
	Connections        int
	BytesUp, BytesDown int64
	// HeadBytes bounds a request's line and headers.
	HeadBytes int64
	// Idle is how long a connection may be silent, Life how old it may get.
	Idle, Life time.Duration
}

// fileEgress is Egress in a policy's file; every field is required.
type fileEgress struct {
	Port          uint16           `json:"port"`
	Allow         []string         `json:"allow"`
	Grants        bool             `json:"grants"`
	RefusedRanges []netip.Prefix   `json:"refused_ranges"`
	Limits        fileEgressLimits `json:"limits"`
}

type fileEgressLimits struct {
	Requests          int64   `json:"requests"`
	RequestsPerSecond float64 `json:"requests_per_second"`
	Connections       int     `json:"connections"`
	BytesUp           size    `json:"bytes_up"`
	BytesDown         size    `json:"bytes_down"`
	Head              size    `json:"head"`
	IdleS             float64 `json:"idle_s"`
	LifeS             float64 `json:"life_s"`
}

var egressFields, egressLimitFields = []string{"port", "allow", "grants", "refused_ranges", "limits"},
	[]string{"requests", "requests_per_second", "connections", "bytes_up", "bytes_down", "head", "idle_s", "life_s"}

// checkEgressFields holds that nothing is missing: no list of ranges would read as none
// refused.
func checkEgressFields(raw json.RawMessage) error {
	if raw == nil {
		return nil
	}
	var present, limits map[string]json.RawMessage
	if err := json.Unmarshal(raw, &present); err != nil {
		return fmt.Errorf("egress: %w", err)
	}
	for _, f := range egressFields {
		if _, ok := present[f]; !ok {
			return fmt.Errorf("field egress/%s is missing", f)
		}
	}
	if err := json.Unmarshal(present["limits"], &limits); err != nil {
		return fmt.Errorf("egress/limits: %w", err)
	}
	for _, f := range egressLimitFields {
		if _, ok := limits[f]; !ok {
			return fmt.Errorf("field egress/limits/%s is missing", f)
		}
	}
	return nil
}

// mustRefuse are addresses that every list of ranges has to cover: the host's own loopback,
// the metadata services of clouds, and private networks.
var mustRefuse = []string{
	"127.0.0.1", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.0.1", "100.64.0.1", "169.254.169.254", "224.0.0.1",
	"255.255.255.255", "::", "::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "fc00::1", "fd00:ec2::254", "fe80::1", "ff02::1", "2002:7f00:1::",
}

// maxConnections bounds what one sandbox may hold of the daemon's descriptors.
const maxConnections = 1024

func (e *fileEgress) check() error {
	if e == nil {
		return nil
	}
	l := e.Limits
	switch {
	case e.Port == 0:
		return errors.New("egress/port: want 1 to 65535")
	case l.Requests <= 0 || l.BytesUp <= 0 || l.BytesDown <= 0:
		return errors.New("egress/limits: want more than 0")
	case l.Connections <= 0 || l.Connections > maxConnections:
		return fmt.Errorf("egress/limits/connections: want 1 to %d", maxConnections)
	case !(l.RequestsPerSecond > 0) || l.RequestsPerSecond > 1e6:
		return errors.New("egress/limits/requests_per_second: want more than 0, at most a million")
	case l.Head < 1024 || l.Head > 1<<20:
		return errors.New("egress/limits/head: want 1KiB to 1MiB")
	case !(l.IdleS > 0) || !(l.LifeS > 0) || l.IdleS > 1e6 || l.LifeS > 1e6:
		return errors.New("egress/limits: idle_s and life_s: want more than 0, at most a million seconds")
	}
	for _, p := range e.RefusedRanges {
		if p != p.Masked() || p.Addr().Is4In6() {
			return fmt.Errorf("egress/refused_ranges: %s: want the range itself, not an address in it", p)
		}
	}
	for _, text := range mustRefuse {
		addr := netip.MustParseAddr(text).Unmap()
		if !slices.ContainsFunc(e.RefusedRanges, func(p netip.Prefix) bool { return p.Contains(addr) }) {
			return fmt.Errorf("egress/refused_ranges: %s is in none; no policy may let a name lead there", addr)
		}
	}
	return nil
}

// Egress is what a sandbox of the policy reaches through its proxy; false where its network
// is none.
func (p *Policy) Egress() (Egress, bool) {
	f := p.file.Egress
	if f == nil {
		return Egress{}, false
	}
	seconds := func(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
	return Egress{
		Port: f.Port, Allow: slices.Clone(f.Allow), Grants: f.Grants, Refused: slices.Clone(f.RefusedRanges),
		Limits: EgressLimits{
			Requests: f.Limits.Requests, RequestsPerSecond: f.Limits.RequestsPerSecond, Connections: f.Limits.Connections,
			BytesUp: int64(f.Limits.BytesUp), BytesDown: int64(f.Limits.BytesDown), HeadBytes: int64(f.Limits.Head),
			Idle: seconds(f.Limits.IdleS), Life: seconds(f.Limits.LifeS),
		},
	}, true
}
