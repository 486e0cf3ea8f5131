package main

import (
	"context"
	"log/slog"
	"os"

	"github.com/paddock-run/paddock/overlay"
	"github.com/paddock-run/paddock/overlay/image"
	"github.com/paddock-run/paddock/runner"
	"github.com/paddock-run/paddock/runner/dockerfile"
)

// worldStore is the store of worlds with its lock, as the runner and builds know it.
type worldStore interface {
	runner.Worlds
	dockerfile.Store
	Close() error
}

func openStore(_ context.Context, root string, log *slog.Logger) (worldStore, error) {
	s, err := overlay.Open(root, overlay.Options{Log: log})
	if err != nil {
		return nil, err
	}
	return store{image.Worlds{Store: s}}, nil
}

// store is overlay's store as the runner knows it, with images' ways in and out: its
// concrete results become the runner's interfaces.
type store struct{ image.Worlds }

func (s store) Fork(ctx context.Context, id string) (runner.Fork, error) {
	f, err := s.Worlds.Fork(ctx, id)
	if err != nil {
		return nil, err
	}
	return fork{f}, nil
}

type fork struct{ *overlay.Fork }

func (f fork) Track(upper *os.File, hostID uint32) runner.Tracker { return f.Fork.Track(upper, hostID) }
