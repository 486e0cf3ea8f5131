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
	if no := r.permits(t); no != nil {
		return nil, no
	}
	if t.addr.IsValid() { // permits has found the entry that grants it
		return []netip.AddrPort{netip.AddrPortFrom(t.addr, t.port)}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	found, err := h.Resolver.LookupNetIP(ctx, "ip", t.name)
	if err != nil || len(found) == 0 {
		return nil, refuse(Unresolved, "%s has no address that the host's resolver knows", t.name)
	}
	var own []netip.Addr
	if h.Own != nil {
		own = h.Own()
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
