package daemon

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/paddock-run/paddock/api"
)

// refuseTimeout bounds how long a refused connection may take to read why.
const refuseTimeout = 100 * time.Millisecond

// caps bound the open connections: a cap for all, and one for each account but root's, so
// that one user's idle connections leave room for the others.
type caps struct {
	max, perAccount int
	// count is of those that are open, where it is not nil; refused of those beyond a cap.
	count   prometheus.Gauge
	refused prometheus.Counter

	mu   sync.Mutex
	open map[string]int
	all  int
}

func (s *Server) newCaps(most int) *caps {
	return &caps{max: most, perAccount: max(1, most*3/4), count: s.metrics.conns, refused: s.metrics.refusedConns, open: map[string]int{}}
}

// admit counts a connection until release is called.
func (c *caps) admit(account string, root bool) (release func(), ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all >= c.max || !root && c.open[account] >= c.perAccount {
		c.refused.Inc()
		return nil, false
	}
	c.all++
	c.open[account]++
	c.counted(1)
	return sync.OnceFunc(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.all--
		if c.open[account]--; c.open[account] == 0 {
			delete(c.open, account)
		}
		c.counted(-1)
	}), true
}

func (c *caps) counted(n float64) {
	if c.count != nil {
		c.count.Add(n)
	}
}

// listener accepts connections, asks the kernel who they are, and holds them to the caps.
type listener struct {
	*net.UnixListener
	gate gate
	caps *caps
	log  *slog.Logger
}

// peerConn is a connection with its peer.
type peerConn struct {
	net.Conn
	peer    peer
	release func()
}

// Accept returns the next connection that is within the caps.
func (l *listener) Accept() (net.Conn, error) {
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		who, err := l.gate.check(conn)
		if err != nil {
			l.log.Warn("connection without credentials", slog.Any("error", err))
			_ = conn.Close()
			continue
		}
		if release, ok := l.caps.admit(fmt.Sprintf("uid %d", who.uid), who.uid == 0); ok {
			return &peerConn{Conn: conn, peer: who, release: release}, nil
		}
		l.refuse(conn, who)
	}
}

// refuse answers without reading the request: whoever is over the cap costs one write.
func (l *listener) refuse(conn *net.UnixConn, who peer) {
	problem := &api.Error{
		Kind:   api.TooManyConns,
		Detail: fmt.Sprintf("the daemon holds at most %d connections, %d of one user (uid %d)", l.caps.max, l.caps.perAccount, who.uid),
		Hint:   "close idle connections, or raise --max-connections",
	}
	finishProblem(problem)
	body, err := json.Marshal(problem)
	if err == nil {
		var b bytes.Buffer
		fmt.Fprintf(&b, "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s",
			problem.Status, http.StatusText(problem.Status), api.MediaProblem, len(body), body)
		_ = conn.SetDeadline(time.Now().Add(refuseTimeout))
		_, _ = conn.Write(b.Bytes())
	}
	_ = conn.Close()
}

// Close gives the connection's place back.
func (c *peerConn) Close() error {
	defer c.release()
	return c.Conn.Close()
}

type peerKey struct{}

func withPeer(ctx context.Context, conn net.Conn) context.Context {
	if t, ok := conn.(*tls.Conn); ok {
		conn = t.NetConn()
	}
	if c, ok := conn.(*peerConn); ok {
		return context.WithValue(ctx, peerKey{}, c.peer)
	}
	return ctx
}
