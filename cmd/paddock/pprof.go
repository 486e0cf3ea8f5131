package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"time"
)

// serveProfiles answers /debug/pprof on a unix socket of its own, which root alone may use,
// until stop is called. `curl --unix-socket PATH http://localhost/debug/pprof/profile` gets
// a CPU profile for `go tool pprof`.
func serveProfiles(ctx context.Context, path string) (stop func() error, err error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	mux := http.NewServeMux()
	for pattern, h := range map[string]http.HandlerFunc{
		"/debug/pprof/": pprof.Index, "/debug/pprof/profile": pprof.Profile, "/debug/pprof/symbol": pprof.Symbol, "/debug/pprof/trace": pprof.Trace,
	} {
		mux.HandleFunc(pattern, h)
	}
	s := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	return func() error {
		err := s.Close()
		if served := <-done; !errors.Is(served, http.ErrServerClosed) {
			err = errors.Join(err, served)
		}
		return err
	}, nil
}
