// Package egress is the one way out of a sandbox that has no network: an HTTP proxy with an
// allow list, and endpoints, which are fixed doors to services that the client names. Both
// serve a listener that somebody opened inside the sandbox's network namespace; the
// connections out are made here, by the daemon.
//
//	program -> 127.0.0.1:PORT (sandbox) => read a request, strictly
//	        -> is host and port on the list?      no: 403, and nothing is looked up
//	        -> look the name up, once             none: 502
//	        -> is the address a refused range?    yes: 403
//	        -> dial that very address             the name is never looked up again
//	        -> forward one request, or tunnel     budgets cut both
//
// Every destination asked for is in the Ledger with its verdict. A connection serves one
// request, so there is no second one that could be smuggled in behind the first; what goes
// out is written anew from what was understood.
//
// Nothing here knows of episodes: who holds a listener and Rules can serve it.
package egress

import (
	"context"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"time"
)

// Resolver looks names up. *net.Resolver is one.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Dialer makes connections. *net.Dialer is one.
type Dialer interface {
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
}

// Host is the outside as proxies and endpoints reach it. Its fields are fixed before its
// first use.
type Host struct {
	Resolver Resolver
	Dialer   Dialer
	// Own are the host's own addresses, asked anew for every request: no name may lead to
	// them, whatever the ranges say. Nil is none.
	Own func() []netip.Addr
	// Secrets may be named by Rules.
	Secrets Secrets
	// Roots are what certificates are held against where the proxy speaks TLS itself; nil is
	// the host's.
	Roots *x509.CertPool
	Log   *slog.Logger
	// bodies are those of all endpoints that are kept for the moment.
	bodies keeper
	// foreign lets endpoints lead to sockets of this very process, which serve tests.
	foreign bool
}

// NewHost is the host as its kernel and its resolver show it.
func NewHost(secrets Secrets, log *slog.Logger) *Host {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Host{
		Resolver: net.DefaultResolver, Dialer: &net.Dialer{Timeout: dialTimeout}, Own: ownAddresses,
		Secrets: secrets, Log: log,
	}
}

// Bounds of every connection out.
const (
	dialTimeout    = 10 * time.Second
	resolveTimeout = 10 * time.Second
)

func ownAddresses() []netip.Addr {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	var own []netip.Addr
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok {
			if addr, ok := netip.AddrFromSlice(n.IP); ok {
				own = append(own, addr.Unmap())
			}
		}
	}
	return own
}

// Verdict is what became of a request. The words are stable.
type Verdict string

// The verdicts of a proxy.
const (
	Allowed Verdict = "allowed"
	// HostRefused: the host is not on the list. It was not looked up.
	HostRefused Verdict = "host_refused"
	// PortRefused: the host is, with other ports.
	PortRefused Verdict = "port_refused"
	// AddressRefused: the name leads to addresses that no name may lead to.
	AddressRefused Verdict = "address_refused"
	// BadRequest: it could not be understood in one way alone, or is larger than may be.
	BadRequest Verdict = "bad_request"
	// Unresolved and Unreachable: the name or the address did not answer.
	Unresolved  Verdict = "unresolved"
	Unreachable Verdict = "unreachable"
	// BudgetRequests and BudgetBytes: the budget was used up before, or cut it off.
	BudgetRequests Verdict = "budget_requests"
	BudgetBytes    Verdict = "budget_bytes"
	// BudgetTime: a connection was cut off for its age or its silence.
	BudgetTime Verdict = "budget_time"
)

// The verdicts of an endpoint.
const (
	// Carried: the service took the connection.
	Carried Verdict = "carried"
	// Down: nobody is there to take it, though it was tried again.
	Down Verdict = "endpoint_down"
	// Busy: it was not taken in time, or the host has no room for it. Floods bring that about.
	Busy Verdict = "endpoint_busy"
	// Broken: it took the connection and gave no whole answer.
	Broken Verdict = "endpoint_broken"
)

// refusal is a request that is not served.
type refusal struct {
	verdict Verdict
	detail  string
}

func (r *refusal) Error() string { return string(r.verdict) + ": " + r.detail }

func refuse(v Verdict, format string, args ...any) *refusal {
	return &refusal{verdict: v, detail: fmt.Sprintf(format, args...)}
}

// statuses are what a client is told of a refusal.
var statuses = map[Verdict]string{
	HostRefused: "403 Forbidden", PortRefused: "403 Forbidden", AddressRefused: "403 Forbidden",
	BadRequest: "400 Bad Request", Unresolved: "502 Bad Gateway", Unreachable: "502 Bad Gateway",
	BudgetRequests: "429 Too Many Requests", BudgetBytes: "429 Too Many Requests", BudgetTime: "504 Gateway Timeout",
	Busy: "503 Service Unavailable", Down: "502 Bad Gateway", Broken: "502 Bad Gateway",
}

// answer is the whole response to a request that is not served.
func (r *refusal) answer() []byte {
	status := statuses[r.verdict]
	body := "paddock: " + string(r.verdict) + ": " + r.detail + "\n"
	return fmt.Appendf(nil, "HTTP/1.1 %s\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\nPaddock-Verdict: %s\r\nConnection: close\r\n\r\n%s",
		status, len(body), r.verdict, body)
}
