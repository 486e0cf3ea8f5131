package overlay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// downloadAge is how long what a pull has brought is kept for the next one.
const downloadAge = 24 * time.Hour

// usedLocked notes that a world was used now. It is saved with what is saved next: a crash
// may make a world look less lately used than it was.
func (s *Store) usedLocked(id string) {
	if s.index.Used == nil {
		s.index.Used = map[string]time.Time{}
	}
	s.index.Used[id] = time.Now().UTC()
}

// Collect removes worlds, the longest unused first, until all take no more than a bound,
// and downloads that no pull came back for. A world that is needed, forked, or used since
// the collection began stays, and so does one with a name unless told otherwise. With an
// error, what was removed is removed.
func (s *Store) Collect(ctx context.Context, in Collection) (Collected, error) {
	began := time.Now().UTC()
	needed := map[string]bool{}
	if in.Needed != nil {
		refs, err := in.Needed(ctx)
		if err != nil {
			return Collected{}, fmt.Errorf("collect worlds: which are needed: %w", err)
		}
		s.mu.Lock()
		for _, ref := range refs {
			if w, err := s.resolveLocked(ref); err == nil {
				needed[w.ID] = true
			}
		}
		s.mu.Unlock()
	}
	var out Collected
	c := &collecting{store: s, Collection: in, needed: needed, began: began, out: &out}
	if err := c.downloads(); err != nil {
		return out, fmt.Errorf("collect downloads: %w", err)
	}
	if err := c.worlds(ctx); err != nil {
		return out, fmt.Errorf("collect worlds: %w", err)
	}
	return out, nil
}

type collecting struct {
	Collection
	store  *Store
	needed map[string]bool
	began  time.Time
	out    *Collected
}

func (c *collecting) downloads() error {
	list, err := os.ReadDir(c.store.Downloads())
	if err != nil {
		return err
	}
	for _, e := range list {
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue // its pull is done
		}
		if err != nil {
			return err
		}
		if c.began.Sub(info.ModTime()) < downloadAge {
			continue
		}
		c.out.FreedBytes += info.Size()
		if c.DryRun {
			continue
		}
		if err := os.Remove(filepath.Join(c.store.Downloads(), e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func (c *collecting) worlds(ctx context.Context) error {
	gone := map[string]bool{}
	c.out.Bytes = c.store.bytesWithout(gone)
	for _, w := range c.store.oldest() {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		stays := c.store.stays(w.ID, c.began)
		switch {
		case c.needed[w.ID]:
			c.out.Needed++
			continue
		case stays:
			c.out.InUse++
			continue
		case len(w.Names) > 0 && !c.All:
			c.out.Named++
			continue
		case c.out.Bytes <= c.MaxBytes:
			continue
		}
		if !c.DryRun {
			err := c.store.removeUnused(w.ID, c.began, c.All)
			if _, missing := errors.AsType[*NotFoundError](err); missing || errors.Is(err, ErrInUse) {
				c.out.InUse++
				continue
			}
			if err != nil {
				return err
			}
		}
		gone[w.ID] = true
		now := c.store.bytesWithout(gone)
		c.out.FreedBytes += c.out.Bytes - now
		c.out.Bytes = now
		c.out.Removed = append(c.out.Removed, w)
	}
	return nil
}

// oldest are the worlds, the longest unused first.
func (s *Store) oldest() []World {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := func(w World) time.Time {
		if used := s.index.Used[w.ID]; used.After(w.Created) {
			return used
		}
		return w.Created
	}
	var out []World
	for _, w := range s.index.Worlds {
		out = append(out, s.namedLocked(w))
	}
	slices.SortFunc(out, func(a, b World) int {
		return cmp.Or(last(a).Compare(last(b)), strings.Compare(a.ID, b.ID))
	})
	return out
}

// stays says whether a world is in use, or was used or made since a moment.
func (s *Store) stays(id string, since time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.staysLocked(id, since)
}

func (s *Store) staysLocked(id string, since time.Time) bool {
	return s.pins[id] > 0 || s.index.Used[id].After(since) || s.index.Worlds[id].Created.After(since)
}

// removeUnused removes a world unless it came into use, or got a name, meanwhile.
func (s *Store) removeUnused(id string, since time.Time, named bool) error {
	s.commit.Lock()
	s.mu.Lock()
	w, ok := s.index.Worlds[id]
	busy := s.staysLocked(id, since) || (!named && len(s.namedLocked(w).Names) > 0)
	s.mu.Unlock()
	if !ok || busy {
		s.commit.Unlock()
		return ErrInUse
	}
	dead, err := s.forget(id)
	s.commit.Unlock()
	for _, p := range dead {
		err = errors.Join(err, os.RemoveAll(p))
	}
	return err
}

// bytesWithout is what the layers of all worlds but some take, each counted once.
func (s *Store) bytesWithout(gone map[string]bool) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	var sum int64
	seen := map[string]bool{}
	for id, w := range s.index.Worlds {
		if gone[id] {
			continue
		}
		for _, d := range w.Layers {
			if !seen[d] {
				seen[d] = true
				l := s.index.Layers[d]
				sum += l.Size + l.BlobSize
			}
		}
	}
	return sum
}
