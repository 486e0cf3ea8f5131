package overlay

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"maps"
	"slices"
	"strings"
)

// Volatile are the names of files and directories, anywhere in a world, that Capture.State
// leaves out with all that is below: caches that programs write on the side and that
// differ between equal runs. A name that begins with * is an ending.
func Volatile() []string {
	return []string{
		"__pycache__", "*.pyc", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".cache", ".npm",
		".bash_history", ".python_history", ".ash_history", ".sqlite_history", ".viminfo", ".lesshst",
	}
}

var volatileNames, volatileEndings = func() (map[string]bool, []string) {
	names := map[string]bool{}
	var endings []string
	for _, v := range Volatile() {
		if end, ok := strings.CutPrefix(v, "*"); ok {
			endings = append(endings, end)
			continue
		}
		names[v] = true
	}
	return names, endings
}()

func volatilePath(p string) bool {
	for name := range strings.SplitSeq(p, "/") {
		if volatileNames[name] {
			return true
		}
		for _, end := range volatileEndings {
			if strings.HasSuffix(name, end) {
				return true
			}
		}
	}
	return false
}

// state is the digest of changes in canonical order, version 1: of each path the type,
// mode, owner, bytes or target, kept attributes and hard-link set, or that it is gone.
type state struct {
	hash  hash.Hash
	skip  func(path string) bool
	links map[inode]string
	buf   []byte // of one change
}

func newState(skip func(string) bool) *state {
	s := &state{hash: sha256.New(), skip: skip, links: map[inode]string{}}
	s.text("paddock-state/1")
	s.write()
	return s
}

func (s *state) text(v string) {
	s.number(uint64(len(v)))
	s.buf = append(s.buf, v...)
}

func (s *state) number(v uint64) { s.buf = binary.BigEndian.AppendUint64(s.buf, v) }

func (s *state) write() {
	s.hash.Write(s.buf)
	s.buf = s.buf[:0]
}

// add takes a change; id is its inode where it has several names, else zero.
func (s *state) add(c *Change, id inode) {
	if s.skip(c.Path) {
		return
	}
	defer s.write()
	s.text(c.Path)
	if c.Kind == Deleted {
		s.text("")
		return
	}
	s.text(c.Type)
	s.number(uint64(c.Mode))
	s.number(uint64(c.UID)<<32 | uint64(c.GID))
	s.number(c.Rdev)
	s.text(c.SHA256)
	s.text(c.Target)
	first := ""
	if id != (inode{}) {
		if first = s.links[id]; first == "" {
			s.links[id] = c.Path
		}
	}
	s.text(first)
	s.number(uint64(len(c.Xattrs)))
	if len(c.Xattrs) == 0 {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(c.Xattrs)) {
		s.text(name)
		s.text(string(c.Xattrs[name]))
	}
}

func (s *state) digest() string { return digestPrefix + hex.EncodeToString(s.hash.Sum(nil)) }
