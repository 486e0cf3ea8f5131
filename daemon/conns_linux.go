package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/paddock-run/paddock/api"
)

// refuseTimeout bounds how long a refused connection may take to read why.
const refuseTimeout = 100 * time.Millisecond

// listener accepts connections, asks the kernel who they are, and holds them to the caps:
// a cap for all, and one for each user but root, so that one user's idle connections
// leave room for the others.
type listener struct {
	*net.UnixListener
	gate    gate
	max     int
	perUser int
	log     *slog.Logger
	metrics *metrics

	mu   sync.Mutex
	open map[uint32]int
	all  int
}

// peerConn is a connection with its peer.
type peerConn struct {
	*net.UnixConn
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
		if release, ok := l.admit(who); ok {
			return &peerConn{UnixConn: conn, peer: who, release: release}, nil
		}
		l.metrics.refusedConns.Inc()
		l.refuse(conn, who)
	}
}

func (l *listener) admit(who peer) (release func(), ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all >= l.max || who.uid != 0 && l.open[who.uid] >= l.perUser {
		return nil, false
	}
	l.all++
	l.open[who.uid]++
	l.metrics.conns.Inc()
	return sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.all--
		if l.open[who.uid]--; l.open[who.uid] == 0 {
			delete(l.open, who.uid)
		}
		l.metrics.conns.Dec()
	}), true
}

// refuse answers without reading the request: whoever is over the cap costs one write.
func (l *listener) refuse(conn *net.UnixConn, who peer) {
	problem := &api.Error{
		Kind:   api.TooManyConns,
		Detail: fmt.Sprintf("the daemon holds at most %d connections, %d of one user (uid %d)", l.max, l.perUser, who.uid),
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
	return c.UnixConn.Close()
}

type peerKey struct{}

func withPeer(ctx context.Context, conn net.Conn) context.Context {
	if c, ok := conn.(*peerConn); ok {
		return context.WithValue(ctx, peerKey{}, c.peer)
	}
	return ctx
}
