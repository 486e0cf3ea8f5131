package daemon

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/paddock-run/paddock/runner"
)

// maxEpisodeConns caps the connections of one episode's socket.
const maxEpisodeConns = 64

// Sockets makes sockets that reach one episode each, for agents that are processes of the
// host and are not trusted with the daemon's socket. It is the runner's EpisodeSockets.
type Sockets struct {
	dir string
	srv atomic.Pointer[Server]
}

// NewSockets makes sockets in dir, a directory of the daemon's alone that each agent's
// user may enter but not list. What a dead daemon left there is removed: the caller holds
// the store's lock, so no other is alive.
func NewSockets(dir string) (*Sockets, error) {
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return nil, err
	}
	left, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range left {
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return nil, err
		}
	}
	return &Sockets{dir: dir}, os.Chmod(dir, 0o711)
}

func (s *Sockets) attach(srv *Server) { s.srv.Store(srv) }

// Open makes a socket that only uid (and root) may connect to and that serves the calls,
// the finish and the abort of this one episode. close takes it away and ends its requests.
func (s *Sockets) Open(ctx context.Context, key runner.Key, uid uint32) (path string, closeAll func() error, err error) {
	srv := s.srv.Load()
	if srv == nil {
		return "", nil, errors.New("episode socket: the daemon does not serve yet")
	}
	sum := sha256.Sum256([]byte(key.Owner + "\x00" + key.Run + "\x00" + key.ID))
	path = filepath.Join(s.dir, hex.EncodeToString(sum[:8])+".sock")
	l, err := ownedSocket{path: path, uid: int(uid), gid: -1, mode: 0o600}.listen(ctx)
	if err != nil {
		return "", nil, fmt.Errorf("episode socket: %w", err)
	}
	g := newGate(-1)
	g.only = &uid
	server := srv.httpServer(srv.mux(srv.routes, &key))
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := server.Serve(srv.newListener(l, g, maxEpisodeConns)); !errors.Is(err, http.ErrServerClosed) {
			srv.log.Error("episode socket", slog.String("episode", key.ID), slog.Any("error", err))
		}
	})
	return path, sync.OnceValue(func() error {
		err := errors.Join(removeIfThere(path), server.Close())
		wg.Wait()
		return err
	}), nil
}

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
