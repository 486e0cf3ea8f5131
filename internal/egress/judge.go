package egress

import (
	"context"
	"net"
	"net/netip"
	"strconv"
)

// maxTries bounds the addresses of one name that are dialled.
const maxTries = 4

// judge says where a request for t may go: the addresses to dial, in order. The name is
// looked up once, after the list has let it through; its addresses are judged as they came.
func (h *Host) judge(ctx context.Context, r *Rules, t target) ([]netip.AddrPort, *refusal) {
	var own []netip.Addr
	if h.Own != nil {
		own = h.Own()
	}
	no := r.permits(t)
	switch {
	case no == nil, r.Any && !t.addr.IsValid():
	case r.Any && r.reachable(t.addr, t.port, own):
	case r.Any:
		return nil, refuse(AddressRefused, "%s is an address that only an entry of its own grants", t.host())
	default:
		return nil, no
	}
	if t.addr.IsValid() {
		return []netip.AddrPort{netip.AddrPortFrom(t.addr, t.port)}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	found, err := h.Resolver.LookupNetIP(ctx, "ip", t.name)
	if err != nil || len(found) == 0 {
		return nil, refuse(Unresolved, "%s has no address that the host's resolver knows", t.name)
	}
	var good []netip.AddrPort
	for _, a := range found {
		if r.reachable(a, t.port, own) && len(good) < maxTries {
			good = append(good, netip.AddrPortFrom(a.Unmap().WithZone(""), t.port))
		}
	}
	if len(good) == 0 {
		return nil, refuse(AddressRefused, "%s leads to %s, which no name may lead to", t.name, found[0].Unmap())
	}
	return good, nil
}

// dial connects to the first of the addresses that answers.
func (h *Host) dial(ctx context.Context, t target, to []netip.AddrPort) (net.Conn, netip.AddrPort, *refusal) {
	for _, at := range to {
		dctx, cancel := context.WithTimeout(ctx, dialTimeout)
		c, err := h.Dialer.DialContext(dctx, "tcp", at.String())
		cancel()
		if err == nil {
			return c, at, nil
		}
	}
	return nil, to[0], refuse(Unreachable, "%s does not answer", net.JoinHostPort(t.host(), strconv.Itoa(int(t.port))))
}
