package dataset

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/paddock-run/paddock/runner"
)

// Store keeps sets in a directory of its own: a file for each set, called by its digest,
// and a file for each name, which holds a digest. Its methods may be called from any
// goroutine.
type Store struct {
	dir string

	mu    sync.Mutex
	sets  map[string]*Set // those in memory
	order []string        // of their use, the latest last
}

// maxLoaded bounds the sets in memory.
const maxLoaded = 16

// Info tells of a set without its problems.
type Info struct {
	Digest   string   `json:"digest"`
	Names    []string `json:"names,omitempty"`
	Problems int      `json:"problems"`
	Bytes    int64    `json:"bytes"`
}

var (
	nameForm   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:@=+~-]{0,127}$`)
	digestForm = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
)

// Open opens a store, which is made when it is not there.
func Open(dir string) (*Store, error) {
	for _, d := range []string{dir, filepath.Join(dir, "sets"), filepath.Join(dir, "names")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, fmt.Errorf("data sets: %w", err)
		}
	}
	return &Store{dir: dir, sets: map[string]*Set{}}, nil
}

// Of opens the store of a tenant, below this one and apart from it.
func (s *Store) Of(tenant string) (*Store, error) {
	if tenant == "" || !filepath.IsLocal(tenant) || filepath.Base(tenant) != tenant {
		return nil, fmt.Errorf("data sets: %q is no tenant's name", tenant)
	}
	return Open(filepath.Join(s.dir, "tenants", tenant))
}

// Put keeps a file's problems and points name, unless empty, at them. Problems that are
// kept already are not kept twice.
func (s *Store) Put(data []byte, format string, c Columns, name string) (Info, error) {
	if name != "" && (!nameForm.MatchString(name) || strings.HasPrefix(name, "sha256:")) {
		return Info{}, badField("name", "%q is not [A-Za-z0-9][A-Za-z0-9._:@=+~-]{0,127}, or begins as a digest does", name)
	}
	set, doc, err := Read(data, format, c)
	if err != nil {
		return Info{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.write(s.file(set.Digest), doc); err != nil {
		return Info{}, err
	}
	if name != "" {
		if err := s.write(filepath.Join(s.dir, "names", name), []byte(set.Digest)); err != nil {
			return Info{}, err
		}
	}
	s.keepLocked(set)
	return s.infoLocked(set)
}

func (s *Store) file(digest string) string {
	return filepath.Join(s.dir, "sets", strings.TrimPrefix(digest, "sha256:")+".jsonl")
}

// write makes a file whole or not at all.
func (s *Store) write(path string, b []byte) error {
	tmp, err := os.CreateTemp(s.dir, ".tmp-")
	if err != nil {
		return fmt.Errorf("data set: %w", err)
	}
	_, err = tmp.Write(b)
	if err = errors.Join(err, tmp.Sync(), tmp.Close()); err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		_ = os.Remove(tmp.Name())
		return fmt.Errorf("data set: %w", err)
	}
	return nil
}

// Get finds a set by digest or name.
func (s *Store) Get(ref string) (*Set, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.getLocked(ref)
}

func (s *Store) getLocked(ref string) (*Set, error) {
	digest := ref
	if !digestForm.MatchString(ref) {
		if !nameForm.MatchString(ref) {
			return nil, unknown(ref)
		}
		b, err := os.ReadFile(filepath.Join(s.dir, "names", ref))
		if errors.Is(err, fs.ErrNotExist) {
			return nil, unknown(ref)
		}
		if err != nil {
			return nil, fmt.Errorf("data set %q: %w", ref, err)
		}
		digest = string(b)
	}
	if set, ok := s.sets[digest]; ok {
		s.keepLocked(set)
		return set, nil
	}
	set, err := s.load(digest)
	if err == nil {
		s.keepLocked(set)
	}
	return set, err
}

// load reads a kept set and proves that it is the one it is called.
func (s *Store) load(digest string) (*Set, error) {
	b, err := os.ReadFile(s.file(digest))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, unknown(digest)
	}
	if err != nil {
		return nil, fmt.Errorf("data set %s: %w", digest, err)
	}
	set, _, err := Read(b, JSONL, Columns{})
	if err != nil || set.Digest != digest {
		return nil, &runner.Error{Kind: runner.KindRecordDamaged, Detail: fmt.Sprintf("data set %s is damaged: %v", digest, err)}
	}
	return set, nil
}

func unknown(ref string) error {
	return &runner.Error{Kind: KindUnknown, Field: "dataset", Detail: fmt.Sprintf("no data set %q; `paddock dataset ls` lists those here", ref)}
}

func (s *Store) keepLocked(set *Set) {
	s.order = slices.DeleteFunc(s.order, func(d string) bool { return d == set.Digest })
	s.order = append(s.order, set.Digest)
	s.sets[set.Digest] = set
	for len(s.order) > maxLoaded {
		delete(s.sets, s.order[0])
		s.order = s.order[1:]
	}
}

// Info tells of one set.
func (s *Store) Info(ref string) (Info, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	set, err := s.getLocked(ref)
	if err != nil {
		return Info{}, err
	}
	return s.infoLocked(set)
}

func (s *Store) infoLocked(set *Set) (Info, error) {
	names, err := s.namesLocked()
	return Info{Digest: set.Digest, Names: names[set.Digest], Problems: len(set.Problems), Bytes: set.Bytes}, err
}

func (s *Store) namesLocked() (map[string][]string, error) {
	list, err := os.ReadDir(filepath.Join(s.dir, "names"))
	if err != nil {
		return nil, fmt.Errorf("data sets: %w", err)
	}
	names := map[string][]string{}
	for _, e := range list {
		b, err := os.ReadFile(filepath.Join(s.dir, "names", e.Name()))
		if err != nil {
			return nil, fmt.Errorf("data sets: %w", err)
		}
		names[string(b)] = append(names[string(b)], e.Name())
	}
	return names, nil
}

// List tells of all sets, in the order of their digests.
func (s *Store) List() ([]Info, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list, err := os.ReadDir(filepath.Join(s.dir, "sets"))
	if err != nil {
		return nil, fmt.Errorf("data sets: %w", err)
	}
	var out []Info
	for _, e := range list {
		set, err := s.getLocked("sha256:" + strings.TrimSuffix(e.Name(), ".jsonl"))
		if err != nil {
			return nil, err
		}
		info, err := s.infoLocked(set)
		if err != nil {
			return nil, err
		}
		out = append(out, info)
	}
	return out, nil
}

// Remove removes a set and the names that point at it.
func (s *Store) Remove(ref string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	set, err := s.getLocked(ref)
	if err != nil {
		return err
	}
	names, err := s.namesLocked()
	if err != nil {
		return err
	}
	for _, name := range names[set.Digest] {
		if err := os.Remove(filepath.Join(s.dir, "names", name)); err != nil {
			return fmt.Errorf("data set: %w", err)
		}
	}
	delete(s.sets, set.Digest)
	s.order = slices.DeleteFunc(s.order, func(d string) bool { return d == set.Digest })
	if err := os.Remove(s.file(set.Digest)); err != nil {
		return fmt.Errorf("data set: %w", err)
	}
	return nil
}

// text is a JSON value as the text that people would write: a JSON text without its
// quotes, anything else as it is.
func text(v json.RawMessage) string {
	var s string
	if json.Unmarshal(v, &s) == nil {
		return s
	}
	return string(v)
}
