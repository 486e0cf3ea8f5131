package overlay

import (
	"context"
	"errors"
	"fmt"
	"os"
)

// Fork is a pinned world on which one sandbox stands. It costs no disk: the writable
// layer is the sandbox's.
type Fork struct {
	store   *Store
	world   World
	lowers  []string
	release func()
}

// Fork pins a world's layers until Release. Where they are more than overlayfs manages well,
// the fork stands on fewer of the same contents, which takes long the first time.
func (s *Store) Fork(ctx context.Context, id string) (*Fork, error) {
	w, layers, release, err := s.pin(id)
	if err != nil {
		return nil, err
	}
	low, err := s.lowStack(ctx, w, layers)
	if err != nil {
		release()
		return nil, fmt.Errorf("fork world %s: %w", shortID(w.ID), err)
	}
	layers = low.layers
	f := &Fork{store: s, world: w, lowers: s.lowers(layers), release: func() { release(); low.release() }}
	for i, dir := range f.lowers {
		if _, err := os.Lstat(dir); err != nil {
			f.release()
			if errors.Is(err, os.ErrNotExist) && i < len(layers) {
				err = ErrCorrupt
			}
			return nil, fmt.Errorf("fork world %s: %w", shortID(w.ID), err)
		}
	}
	return f, nil
}

// World is the world that was forked.
func (f *Fork) World() World { return f.world }

// Lowers are the host directories of the layers, the topmost first, the skeleton last.
func (f *Fork) Lowers() []string { return f.lowers }

// Release lets the world be removed; it may be called again.
func (f *Fork) Release() { f.release() }
