package egress

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Rules are what a proxy lets through.
type Rules struct {
	// Allow is the list; what is not on it is refused. Empty refuses everything.
	Allow []Entry
	// Any lets every name through, with every port, and every address that is in no refused
	// range and not the host's own.
	Any bool
	// Refused are ranges that no name may lead to. Only an entry that is itself an address
	// or a range grants addresses in them.
	Refused []netip.Prefix
	// Secrets are the names of those that are injected, see Secret.
	Secrets []string
	Limits  Limits
}

// Limits bound what one proxy does, in all, over its life. Every field is needed.
type Limits struct {
	// Requests is how many are served, refused ones included.
	Requests int64
	// PerSecond is how many connections are taken in a second, over time; more wait.
	PerSecond float64
	// Connections is how many are served at a time; more wait.
	Connections int
	// BytesUp and BytesDown are sent and received, of all requests together.
	BytesUp, BytesDown int64
	// HeadBytes bounds a request's line and headers.
	HeadBytes int
	// Idle is how long a connection may be silent, Life how old it may get.
	Idle, Life time.Duration
}

// Entry is one line of an allow list:
//
//	HOST[:PORT[,PORT...]]    HOST is a name, "*." and a name (everything below it, not itself),
//	HOST:*                   an address, or a range such as 10.1.0.0/16; an IPv6 one stands in
//	                         brackets where a port follows. Without ports 80 and 443 are meant.
//
// A name lets requests for that name through, wherever it leads but the refused ranges. An
// address or range grants its addresses: to requests that name them, and to allowed names
// that lead to them.
type Entry struct {
	text   string
	name   string // lower case, no final dot; with wild, of the parent
	wild   bool
	prefix netip.Prefix
	ports  []uint16 // nil is any
}

// String is the entry in its one canonical form.
func (e Entry) String() string { return e.text }

// MaxEntries bounds an allow list, maxPorts the ports of an entry.
const (
	MaxEntries = 256
	maxPorts   = 16
)

var defaultPorts = []uint16{80, 443}

// nameForm is a host name in the letters of the DNS. The last label begins with a letter, so
// that nothing that a C library would read as an address ("127.1", "0x7f000001") is a name.
var nameForm = regexp.MustCompile(`^([a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z]([a-z0-9-]{0,61}[a-z0-9])?$`)

const maxName = 253

// ParseEntry reads an entry. The error says what is wrong with it.
func ParseEntry(text string) (Entry, error) {
	host, ports, err := splitEntry(text)
	if err != nil {
		return Entry{}, fmt.Errorf("entry %.100q: %w", text, err)
	}
	e := Entry{}
	if e.ports, err = parsePorts(ports); err != nil {
		return Entry{}, fmt.Errorf("entry %.100q: %w", text, err)
	}
	if err := e.setHost(host); err != nil {
		return Entry{}, fmt.Errorf("entry %.100q: %w", text, err)
	}
	e.text = e.canonical()
	return e, nil
}

// ParseEntries reads a list, at most MaxEntries of them.
func ParseEntries(texts []string) ([]Entry, error) {
	if len(texts) > MaxEntries {
		return nil, fmt.Errorf("%d entries, at most %d are allowed", len(texts), MaxEntries)
	}
	all := make([]Entry, 0, len(texts))
	for _, t := range texts {
		e, err := ParseEntry(t)
		if err != nil {
			return nil, err
		}
		all = append(all, e)
	}
	return all, nil
}

// splitEntry parts host and ports.
func splitEntry(text string) (host, ports string, err error) {
	if rest, ok := strings.CutPrefix(text, "["); ok {
		host, after, closed := strings.Cut(rest, "]")
		ports, given := strings.CutPrefix(after, ":")
		if !closed || (after != "" && !given) {
			return "", "", fmt.Errorf("want [ADDRESS] or [ADDRESS]:PORT")
		}
		if given && ports == "" {
			return "", "", fmt.Errorf("the port is missing")
		}
		return host, ports, nil
	}
	if strings.Count(text, ":") > 1 { // IPv6 without brackets has no port
		return text, "", nil
	}
	host, ports, given := strings.Cut(text, ":")
	if given && ports == "" {
		return "", "", fmt.Errorf("the port is missing")
	}
	return host, ports, nil
}

func parsePorts(text string) ([]uint16, error) {
	switch text {
	case "":
		return defaultPorts, nil
	case "*":
		return nil, nil
	}
	words := strings.Split(text, ",")
	if len(words) > maxPorts {
		return nil, fmt.Errorf("%d ports, at most %d are allowed", len(words), maxPorts)
	}
	var ports []uint16
	for _, w := range words {
		p, err := parsePort(w)
		if err != nil {
			return nil, err
		}
		ports = append(ports, p)
	}
	slices.Sort(ports)
	return slices.Compact(ports), nil
}

func parsePort(text string) (uint16, error) {
	p, err := strconv.ParseUint(text, 10, 16)
	if err != nil || p == 0 || text[0] == '+' || text[0] == '0' {
		return 0, fmt.Errorf("port %.20q is not a number from 1 to 65535", text)
	}
	return uint16(p), nil
}

func (e *Entry) setHost(host string) error {
	if p, err := parsePrefix(host); err == nil {
		e.prefix = p
		return nil
	}
	name := strings.ToLower(strings.TrimSuffix(host, "."))
	if rest, ok := strings.CutPrefix(name, "*."); ok {
		e.wild, name = true, rest
	}
	if len(name) > maxName || !nameForm.MatchString(name) {
		return fmt.Errorf("%.100q is neither a host name (as the DNS spells it) nor an address or range", host)
	}
	e.name = name
	return nil
}

func parsePrefix(text string) (netip.Prefix, error) {
	if !strings.Contains(text, "/") {
		a, err := netip.ParseAddr(text)
		if err != nil || a.Zone() != "" {
			return netip.Prefix{}, fmt.Errorf("not an address")
		}
		a = a.Unmap()
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(text)
	if err != nil || p.Addr().Is4In6() {
		return netip.Prefix{}, fmt.Errorf("not a range")
	}
	return p.Masked(), nil
}

func (e *Entry) canonical() string {
	host := e.name
	switch {
	case e.wild:
		host = "*." + host
	case e.prefix.IsValid():
		host = e.prefix.String()
		if e.prefix.IsSingleIP() {
			host = e.prefix.Addr().String()
		}
		if e.prefix.Addr().Is6() {
			host = "[" + host + "]"
		}
	}
	if e.ports == nil {
		return host + ":*"
	}
	words := make([]string, len(e.ports))
	for i, p := range e.ports {
		words[i] = strconv.Itoa(int(p))
	}
	return host + ":" + strings.Join(words, ",")
}

func (e *Entry) hasPort(port uint16) bool { return e.ports == nil || slices.Contains(e.ports, port) }

func (e *Entry) hasName(name string) bool {
	switch {
	case e.name == "":
		return false
	case e.wild:
		return strings.HasSuffix(name, "."+e.name)
	}
	return name == e.name
}

// target is a destination as a request names it.
type target struct {
	// name is lower case without a final dot; addr is set instead where the request has an
	// address.
	name string
	addr netip.Addr
	port uint16
}

func (t target) host() string {
	if t.addr.IsValid() {
		return t.addr.String()
	}
	return t.name
}

// parseHost reads a request's host: a name, or an address (IPv6 in brackets).
func parseHost(host string) (target, *refusal) {
	if inner, ok := strings.CutPrefix(host, "["); ok {
		inner, closed := strings.CutSuffix(inner, "]")
		a, err := netip.ParseAddr(inner)
		if !closed || err != nil || !a.Is6() || a.Zone() != "" {
			return target{}, refuse(BadRequest, "host %.100q is no IPv6 address", host)
		}
		return target{addr: a.Unmap()}, nil
	}
	if a, err := netip.ParseAddr(host); err == nil && a.Is4() {
		return target{addr: a}, nil
	}
	name := strings.ToLower(strings.TrimSuffix(host, "."))
	if len(name) > maxName || !nameForm.MatchString(name) {
		return target{}, refuse(BadRequest, "host %.100q is neither a host name nor an address", host)
	}
	return target{name: name}, nil
}

// permits says whether the list lets a request for t through, before anything is looked up.
func (r *Rules) permits(t target) *refusal {
	host := false
	for i := range r.Allow {
		e := &r.Allow[i]
		if !e.names(t) {
			continue
		}
		if e.hasPort(t.port) {
			return nil
		}
		host = true
	}
	if host {
		return refuse(PortRefused, "%s is allowed, but not its port %d", t.host(), t.port)
	}
	return refuse(HostRefused, "%s is not allowed", t.host())
}

func (e *Entry) names(t target) bool {
	if t.addr.IsValid() {
		return e.prefix.IsValid() && e.prefix.Contains(t.addr)
	}
	return e.hasName(t.name)
}

// reachable says whether an address that a name led to may be dialled.
func (r *Rules) reachable(addr netip.Addr, port uint16, own []netip.Addr) bool {
	addr = addr.Unmap().WithZone("")
	for i := range r.Allow {
		if e := &r.Allow[i]; e.prefix.IsValid() && e.prefix.Contains(addr) && e.hasPort(port) {
			return true
		}
	}
	if !addr.IsValid() || slices.Contains(own, addr) {
		return false
	}
	return !slices.ContainsFunc(r.Refused, func(p netip.Prefix) bool { return p.Contains(addr) })
}
