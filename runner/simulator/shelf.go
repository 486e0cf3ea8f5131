package simulator

import (
	"container/list"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/paddock-run/paddock/runner"
)

// Bounds of the snapshots of one owner.
const (
	DefaultSnapshotBytes = 1 << 30
	maxSnapshots         = 1 << 16
)

// Snapshot is a state of an environment as its program gave it. Its bytes are the
// program's own: they are kept on disk and given back, and never looked into.
type Snapshot struct {
	ID string
	// Of is the episode that was in the state, Attempt and Seq name its call.
	Of      runner.Key
	Attempt int
	Seq     int64
	EnvSeed uint32
	// SHA256 and Bytes are those of the program's bytes.
	SHA256 string
	Bytes  int64
	// Rollouts, Steps and Return are those of the way to the state.
	Rollouts, Steps int64
	Return          float64
	// Terminated and Truncated: the rollout was over.
	Terminated, Truncated bool
	Created               time.Time
}

// SnapshotUse is what an owner's snapshots take, and the bounds of that.
type SnapshotUse struct{ Bytes, MaxBytes, Count, MaxCount int64 }

// kept is a Snapshot on a shelf.
type kept struct {
	Snapshot
	kind kind // of environments that it may be put into
	at   *list.Element
	pins int
	gone bool // from the shelf; its file goes with the last pin
}

// shelves keeps snapshots in files, those of each owner within a bound: the longest unused
// give way, but for those that a live environment came from. They are forgotten by a new
// start, as simulators are.
type shelves struct {
	dir string
	max int64 // bytes of one owner

	mu sync.Mutex
	of map[string]*shelf
}

type shelf struct {
	byID          map[string]*kept
	used          *list.List // of *kept, the last used first
	bytes, pinned int64      // of files; pinned are those that stay
}

// openShelves empties the directory and returns shelves in it.
func openShelves(dir string, most int64) (*shelves, error) {
	if err := os.RemoveAll(dir); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if most <= 0 {
		most = DefaultSnapshotBytes
	}
	return &shelves{dir: dir, max: most, of: map[string]*shelf{}}, nil
}

func (s *shelves) shelfLocked(owner string) *shelf {
	sh := s.of[owner]
	if sh == nil {
		sh = &shelf{byID: map[string]*kept{}, used: list.New()}
		s.of[owner] = sh
	}
	return sh
}

// put keeps a snapshot's bytes and names it by its contents and origin.
func (s *shelves) put(snap Snapshot, k kind, data []byte) (Snapshot, error) {
	sum := sha256.Sum256(data)
	snap.SHA256, snap.Bytes = hex.EncodeToString(sum[:]), int64(len(data))
	id := sha256.Sum256(fmt.Appendf(nil, "%q %q %q %d %d %s", snap.Of.Owner, snap.Of.Run, snap.Of.ID, snap.Attempt, snap.Seq, snap.SHA256))
	snap.ID = "snap-" + hex.EncodeToString(id[:12])
	snap.Created = time.Now().UTC()
	if err := s.room(snap.Of.Owner, snap.Bytes); err != nil {
		return Snapshot{}, err
	}
	if err := os.WriteFile(s.path(snap.ID), data, 0o600); err != nil {
		return Snapshot{}, errors.Join(fmt.Errorf("keep a snapshot: %w", err), s.remove(snap.ID))
	}
	out, err := s.add(&kept{Snapshot: snap, kind: k})
	if err != nil {
		return Snapshot{}, errors.Join(err, s.remove(snap.ID))
	}
	return snap, s.remove(out...)
}

// room refuses what would not fit even if everything went that may.
func (s *shelves) room(owner string, size int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.roomLocked(s.shelfLocked(owner), size)
}

func (s *shelves) roomLocked(sh *shelf, size int64) error {
	if sh.pinned+size > s.max {
		return &runner.Error{Kind: runner.KindTooLarge, Detail: fmt.Sprintf(
			"one user's snapshots have at most %d bytes; environments that were restored hold %d, and this one has %d", s.max, sh.pinned, size)}
	}
	return nil
}

// add puts a snapshot whose file is there on its shelf and returns whose files are to go.
func (s *shelves) add(k *kept) (out []string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sh := s.shelfLocked(k.Of.Owner)
	if err := s.roomLocked(sh, k.Bytes); err != nil {
		return nil, err
	}
	for at := sh.used.Back(); at != nil && (sh.bytes+k.Bytes > s.max || len(sh.byID) >= maxSnapshots); {
		old, _ := at.Value.(*kept)
		if at = at.Prev(); old.pins == 0 && sh.dropLocked(old) {
			out = append(out, old.ID)
		}
	}
	sh.byID[k.ID] = k
	k.at = sh.used.PushFront(k)
	sh.bytes += k.Bytes
	return out, nil
}

// dropLocked takes a snapshot from its shelf and says whether its file is to go.
func (sh *shelf) dropLocked(k *kept) bool {
	delete(sh.byID, k.ID)
	sh.used.Remove(k.at)
	k.gone = true
	if k.pins > 0 {
		return false
	}
	sh.bytes -= k.Bytes
	return true
}

func (s *shelves) path(id string) string { return filepath.Join(s.dir, id) }

func (s *shelves) remove(ids ...string) error {
	var all []error
	for _, id := range ids {
		if err := os.Remove(s.path(id)); err != nil && !errors.Is(err, os.ErrNotExist) {
			all = append(all, err)
		}
	}
	return errors.Join(all...)
}

func (s *shelves) get(owner, id string) (*kept, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.getLocked(owner, id)
}

func (s *shelves) getLocked(owner, id string) (*kept, error) {
	if sh := s.of[owner]; sh != nil && sh.byID[id] != nil {
		return sh.byID[id], nil
	}
	return nil, &runner.Error{Kind: runner.KindNotFound, Field: "snapshot", Detail: fmt.Sprintf(
		"no snapshot %.64q is kept; the longest unused give way, and a new start of the daemon forgets all", id)}
}

// pin finds a snapshot and keeps its bytes until it is unpinned, as often as it was pinned.
func (s *shelves) pin(owner, id string) (*kept, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k, err := s.getLocked(owner, id)
	if err != nil {
		return nil, err
	}
	sh := s.of[owner]
	sh.used.MoveToFront(k.at)
	if k.pins++; k.pins == 1 {
		sh.pinned += k.Bytes
	}
	return k, nil
}

func (s *shelves) unpin(k *kept) error {
	if s.unpinned(k) {
		return s.remove(k.ID)
	}
	return nil
}

// unpinned says whether the snapshot's file is to go.
func (s *shelves) unpinned(k *kept) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	sh := s.of[k.Of.Owner]
	if k.pins--; k.pins > 0 {
		return false
	}
	sh.pinned -= k.Bytes
	if k.gone {
		sh.bytes -= k.Bytes
	}
	return k.gone
}

// read returns the bytes of a snapshot that is pinned.
func (s *shelves) read(k *kept) ([]byte, error) {
	data, err := os.ReadFile(s.path(k.ID))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("read a snapshot: %w", err)
	}
	if sum := sha256.Sum256(data); err != nil || hex.EncodeToString(sum[:]) != k.SHA256 {
		return nil, &runner.Error{Kind: runner.KindRecordDamaged, Field: "snapshot", Detail: fmt.Sprintf("the bytes of snapshot %s are not those that were kept", k.ID)}
	}
	return data, nil
}

// drop forgets a snapshot. Environments that came from it are not touched.
func (s *shelves) drop(owner, id string) error {
	s.mu.Lock()
	k, err := s.getLocked(owner, id)
	goes := err == nil && s.of[owner].dropLocked(k)
	s.mu.Unlock()
	if err != nil || !goes {
		return err
	}
	return s.remove(id)
}

// list returns an owner's snapshots by id, at most so many after one.
func (s *shelves) list(owner, after string, most int) ([]Snapshot, SnapshotUse) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sh := s.shelfLocked(owner)
	var all []Snapshot
	for id, k := range sh.byID {
		if id > after {
			all = append(all, k.Snapshot)
		}
	}
	slices.SortFunc(all, func(a, b Snapshot) int { return strings.Compare(a.ID, b.ID) })
	return all[:min(most, len(all))], SnapshotUse{Bytes: sh.bytes, MaxBytes: s.max, Count: int64(len(sh.byID)), MaxCount: maxSnapshots}
}
