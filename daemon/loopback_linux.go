package daemon

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"
)

// AppsPort serves apps and OpenEnv's views on a port of the host's loopback, for clients that
// know no unix socket. Who connects is who the kernel says that its socket is of, and must be
// one whom the unix socket would let in, too: a tenant's apps are nobody else's.
type AppsPort struct {
	*net.TCPListener
	s    *Server
	gate gate
	caps *caps
	http *http.Server
}

// ListenApps opens the port, which must be of a loopback address. Listen comes first.
func (s *Server) ListenApps(ctx context.Context, addr string) (*AppsPort, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil || !loopbackHost(host) {
		return nil, fmt.Errorf("apps address %q: want 127.0.0.1:PORT or [::1]:PORT", addr)
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("apps address %s: %w", addr, err)
	}
	s.mu.Lock()
	g := s.conns.gate
	s.mu.Unlock()
	p := &AppsPort{TCPListener: l.(*net.TCPListener), s: s, gate: g, caps: s.newCaps(max(1, s.cfg.MaxConns/2))}
	served := slices.DeleteFunc(slices.Clone(s.routes), func(r route) bool {
		return !strings.HasPrefix(r.Path, appsPrefix) && !strings.HasPrefix(r.Path, "/openenv/")
	})
	p.http = s.httpServer(s.mux(served, nil))
	return p, nil
}

func loopbackHost(host string) bool {
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}

// Serve answers until Shutdown.
func (p *AppsPort) Serve() error {
	if err := p.http.Serve(p); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Shutdown ends the requests under way, then the rest.
func (p *AppsPort) Shutdown(ctx context.Context) error {
	if err := p.http.Shutdown(ctx); err != nil {
		return errors.Join(err, p.http.Close())
	}
	return nil
}

// Accept returns the next connection whose user is known.
func (p *AppsPort) Accept() (net.Conn, error) {
	for {
		conn, err := p.AcceptTCP()
		if err != nil {
			return nil, err
		}
		who, err := p.whoIs(conn)
		if err == nil {
			if release, ok := p.caps.admit(fmt.Sprintf("uid %d", who.uid), who.uid == 0); ok {
				return &peerConn{Conn: conn, peer: who, release: release}, nil
			}
		} else if !errors.Is(err, errNoUser) {
			p.s.log.Warn("connection to the apps' port", slog.Any("error", err))
		}
		_ = conn.Close()
	}
}

// errNoUser says that a client has gone: its socket is nobody's any more.
var errNoUser = errors.New("the socket is of no user")

// whoIs asks the kernel whose the other end of a connection of this host is.
func (p *AppsPort) whoIs(conn *net.TCPConn) (peer, error) {
	local, remote := addrOf(conn.LocalAddr()), addrOf(conn.RemoteAddr())
	var uid uint32
	err := errNoUser
	// A socket that is there may be passed over while others come and go, so look again.
	for range 10 {
		for _, table := range []string{"/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"} {
			if uid, err = ownerIn(table, remote, local); !errors.Is(err, errNoUser) {
				break
			}
		}
		if !errors.Is(err, errNoUser) {
			break
		}
	}
	if err != nil {
		return peer{}, err
	}
	who := peer{uid: uid, gid: noID, tenant: p.gate.tenant(uid), loopback: true}
	if !p.gate.admits(who, nil) && !p.gate.admits(who, groupsOf(uid)) {
		who.refusal = p.gate.refusal(who)
	}
	return who, nil
}

func addrOf(a net.Addr) netip.AddrPort {
	t, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	ap := t.AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}

// groupsOf are the groups that a user has by the host's files.
func groupsOf(uid uint32) (all []uint32) {
	u, err := user.LookupId(strconv.FormatUint(uint64(uid), 10))
	if err != nil {
		return nil
	}
	ids, err := u.GroupIds()
	if err != nil {
		return nil
	}
	for _, id := range ids {
		if n, err := strconv.ParseUint(id, 10, 32); err == nil {
			all = append(all, uint32(n))
		}
	}
	return all
}

// ownerIn finds whose a socket is in one of the kernel's tables.
func ownerIn(table string, local, remote netip.AddrPort) (uint32, error) {
	f, err := os.Open(table)
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }()
	return ownerOf(f, local, remote)
}

// ownerOf reads such a table. A socket that no process holds any more, as that of a client that
// has just ended, is shown as user 0's: its inode, which is 0 then, tells.
func ownerOf(table io.Reader, local, remote netip.AddrPort) (uint32, error) {
	lines := bufio.NewScanner(table)
	for lines.Scan() {
		// sl local remote st tx:rx tr:when retransmits uid timeout inode
		w := strings.Fields(lines.Text())
		if len(w) < 10 || procAddr(w[1]) != local || procAddr(w[2]) != remote {
			continue
		}
		uid, err := strconv.ParseUint(w[7], 10, 32)
		if err != nil {
			return 0, fmt.Errorf("the kernel's table says user %.32q", w[7])
		}
		if w[9] == "0" {
			return 0, errNoUser
		}
		return uint32(uid), nil
	}
	if err := lines.Err(); err != nil {
		return 0, err
	}
	return 0, errNoUser
}

// procAddr reads an address as the kernel's table has it: words of four bytes in the machine's
// order, little-endian on all that paddock runs on, then the port.
func procAddr(text string) netip.AddrPort {
	host, port, ok := strings.Cut(text, ":")
	raw, err := hex.DecodeString(host)
	n, perr := strconv.ParseUint(port, 16, 16)
	if !ok || err != nil || perr != nil || len(raw)%4 != 0 {
		return netip.AddrPort{}
	}
	for i := 0; i < len(raw); i += 4 {
		slices.Reverse(raw[i : i+4])
	}
	ip, ok := netip.AddrFromSlice(raw)
	if !ok {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(ip.Unmap(), uint16(n))
}
