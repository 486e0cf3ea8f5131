package fusion

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// Port serves the interface on a loopback port, for clients that know no unix socket. Every
// user of this host may connect.
type Port struct {
	listener net.Listener
	http     *http.Server
}

// Listen opens the port; it must be of a loopback address.
func Listen(ctx context.Context, addr string, h http.Handler, log *slog.Logger) (*Port, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("run-code address %q: want 127.0.0.1:PORT or [::1]:PORT: %w", addr, err)
	}
	if !loopback(host) {
		return nil, fmt.Errorf("run-code address %q is no loopback address: who can connect can run programs", addr)
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("run-code address %s: %w", addr, err)
	}
	return &Port{listener: l, http: &http.Server{
		Handler: guard(h), ReadHeaderTimeout: 5 * time.Second, IdleTimeout: 5 * time.Minute,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}}, nil
}

// Addr is where it listens.
func (p *Port) Addr() string { return p.listener.Addr().String() }

// Serve answers until Close.
func (p *Port) Serve() error {
	if err := p.http.Serve(p.listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Close ends the requests under way, then the rest.
func (p *Port) Close(ctx context.Context) error {
	if err := p.http.Shutdown(ctx); err != nil {
		return errors.Join(err, p.http.Close())
	}
	return nil
}

func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// guard keeps web pages out: a browser on this host would send them here.
func guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := r.Host
		if h, _, err := net.SplitHostPort(host); err == nil {
			host = h
		}
		if r.Header.Get("Origin") != "" || !loopback(host) {
			answer(w, http.StatusForbidden, map[string]string{"detail": "this port is for programs of this host"})
			return
		}
		next.ServeHTTP(w, r)
	})
}
