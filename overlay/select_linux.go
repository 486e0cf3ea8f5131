package overlay

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
)

// Selecting says what of a view is to be copied.
type Selecting struct {
	// Sources are paths of the view, relative to its root or absolute, with *, ? and [] as of
	// path.Match. Each must match something. A symlink that is named is followed; one that is
	// met below a directory is copied.
	Sources []string
	// Skip leaves paths out as if they were not there; prune says that all below goes, too.
	Skip func(path string) (skip, prune bool)
	// Files are added to the sources.
	Files []InlineFile
}

// InlineFile is a file whose contents the recipe itself has.
type InlineFile struct {
	Name string
	Data []byte
}

// Selection is what was selected, in order. It is good as long as its view is open.
type Selection struct {
	// Digest covers path, type, mode, link and bytes of everything selected, and of a
	// world's files the owners and attributes; times are in it no more than in any digest.
	Digest string
	picks  []pick
	bytes  int64
}

// Len is how many sources there are, each match of a pattern counted.
func (s *Selection) Len() int { return len(s.picks) }

// pick is one source: a file, or a directory with all below it.
type pick struct {
	view *View
	name string // the last element of the source as it was named
	dir  bool
	// items are what is below a directory, or the one file, under the path "".
	items []picked
}

// picked is one entry of a pick.
type picked struct {
	entry  // path is relative to the pick
	from   string
	id     inode // of a file with several names
	sum    string
	inline []byte
}

// Select finds and reads what is to be copied. What is not there, or may not be in a world,
// is a *RecipeError.
func (v *View) Select(ctx context.Context, in Selecting, p Progress) (*Selection, error) {
	s := &selecting{view: v, skip: in.Skip, progress: p, out: &Selection{}, hash: sha256.New()}
	if s.skip == nil {
		s.skip = func(string) (bool, bool) { return false, false }
	}
	if s.progress == nil {
		s.progress = func(string, int64, int64) {}
	}
	for _, source := range in.Sources {
		if err := s.source(ctx, source); err != nil {
			return nil, err
		}
	}
	for _, f := range in.Files {
		e := entry{kind: typeFile, mode: 0o644, size: int64(len(f.Data)), mtime: epoch}
		s.out.picks = append(s.out.picks, pick{view: v, name: f.Name, items: []picked{{entry: e, sum: sum(f.Data), inline: f.Data}}})
	}
	s.digest()
	return s.out, nil
}

type selecting struct {
	view     *View
	skip     func(string) (bool, bool)
	progress Progress
	out      *Selection
	hash     hash.Hash
	n        int64
}

func (s *selecting) source(ctx context.Context, source string) error {
	clean := strings.TrimPrefix(path.Clean("/"+source), "/")
	if !wild(clean) {
		return s.match(ctx, source, clean)
	}
	found, err := s.expand(ctx, s.view.dirs, "", strings.Split(clean, "/"))
	if err != nil {
		return err
	}
	if len(found) == 0 {
		return refuse("not_found", source, "matches nothing to copy")
	}
	for _, f := range found {
		if err := s.match(ctx, source, f); err != nil {
			return err
		}
	}
	return nil
}

func wild(p string) bool {
	for i := 0; i < len(p); i++ {
		switch p[i] {
		case '\\':
			i++
		case '*', '?', '[':
			return true
		}
	}
	return false
}

// expand finds what the elements of a pattern match below a directory. It passes through no
// symlink.
func (s *selecting) expand(ctx context.Context, dir lowerDir, prefix string, elements []string) ([]string, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	list, err := dir.list()
	if err != nil {
		return nil, err
	}
	var found []string
	for _, name := range list {
		ok, err := path.Match(elements[0], name)
		if err != nil {
			return nil, refuse("bad_recipe", elements[0], "is no pattern")
		}
		if !ok {
			continue
		}
		at := join(prefix, name)
		skip, prune := s.skip(at)
		if len(elements) == 1 {
			if !skip {
				found = append(found, at)
			}
			continue
		}
		if skip && prune {
			continue
		}
		node, err := dir.lookup(name)
		if err != nil {
			return nil, err
		}
		if node == nil || node.dirs == nil {
			continue
		}
		more, err := s.expand(ctx, node.dirs, at, elements[1:])
		node.close()
		if err != nil {
			return nil, err
		}
		found = append(found, more...)
	}
	return found, nil
}

// match selects what is at one path.
func (s *selecting) match(ctx context.Context, source, at string) error {
	real, e, err := s.view.dirs.resolve(at)
	if err != nil {
		return err
	}
	if e == nil || s.hidden(at) || s.hidden(real) {
		return refuse("not_found", source, "is not there, or is ignored")
	}
	one := pick{view: s.view, name: path.Base("/" + at), dir: e.kind == typeDir}
	if !one.dir {
		item := picked{entry: *e, from: real}
		item.path = ""
		if err := s.read(ctx, &item); err != nil {
			return err
		}
		one.items = append(one.items, item)
	} else if err := s.below(ctx, &one, real); err != nil {
		return err
	}
	s.out.picks = append(s.out.picks, one)
	return nil
}

func (s *selecting) hidden(p string) bool {
	if p == "" {
		return false
	}
	skip, _ := s.skip(p)
	return skip
}

func (s *selecting) below(ctx context.Context, one *pick, real string) error {
	dir, err := s.view.dirs.sub(real)
	if err != nil {
		return err
	}
	defer dir.close()
	return s.walk(ctx, one, dir, real, "", 0)
}

func (s *selecting) walk(ctx context.Context, one *pick, dir lowerDir, real, rel string, depth int) error {
	if depth > maxDepth {
		return refuse("world_too_large", real, "deeper than %d directories", maxDepth)
	}
	list, err := dir.list()
	if err != nil {
		return fmt.Errorf("list %q: %w", real, err)
	}
	for _, name := range list {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := s.child(ctx, one, dir, join(real, name), join(rel, name), depth); err != nil {
			return err
		}
	}
	return nil
}

func (s *selecting) child(ctx context.Context, one *pick, dir lowerDir, real, rel string, depth int) error {
	skip, prune := s.skip(real)
	if skip && prune {
		return nil
	}
	node, err := dir.lookup(path.Base(rel))
	if err != nil || node == nil {
		return err
	}
	defer node.close()
	e, err := node.describe()
	if err != nil {
		return fmt.Errorf("read %q: %w", real, err)
	}
	if e.kind == typeSocket {
		return nil // nobody listens to it where it would come to
	}
	if !skip {
		item := picked{entry: *e, from: real}
		item.path = rel
		if e.kind == typeFile && node.st.Nlink > 1 {
			item.id = inode{node.st.Dev, node.st.Ino}
		}
		if err := s.read(ctx, &item); err != nil {
			return err
		}
		one.items = append(one.items, item)
	}
	if e.kind != typeDir {
		return nil
	}
	return s.walk(ctx, one, node.dirs, real, rel, depth+1)
}

// read digests a file's bytes and judges an entry.
func (s *selecting) read(ctx context.Context, item *picked) error {
	item.opaque = false
	if !s.view.world {
		item.uid, item.gid, item.xattrs = 0, 0, nil
	}
	maps.DeleteFunc(item.xattrs, func(name string, _ []byte) bool { return name != capability })
	judged := item.entry
	judged.path = item.from
	if judged.kind == typeChar || judged.kind == typeBlock {
		return checkEntry(&judged)
	}
	if s.n++; s.n%256 == 0 {
		s.progress("hash", s.n, 0)
	}
	if item.kind != typeFile {
		return nil
	}
	_, f, err := s.view.dirs.open(item.from)
	if err != nil {
		return fmt.Errorf("read %q: %w", item.from, err)
	}
	if f == nil {
		return gone(item.from)
	}
	h := sha256.New()
	n, err := io.Copy(h, &cancelled{ctx, f})
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("read %q: %w", item.from, err)
	}
	item.size, item.sum = n, hex.EncodeToString(h.Sum(nil))
	s.out.bytes += n
	return nil
}

// capability is the one attribute that a copy takes along, as Docker's does.
const capability = "security.capability"

// digest covers the selection.
func (s *selecting) digest() {
	var buf []byte
	number := func(v uint64) { buf = binary.BigEndian.AppendUint64(buf, v) }
	text := func(v string) { number(uint64(len(v))); buf = append(buf, v...) }
	text("paddock-copy/1")
	for _, one := range s.out.picks {
		text(one.name)
		number(uint64(len(one.items)))
		links := map[inode]string{}
		for i := range one.items {
			e := &one.items[i]
			text(e.path)
			text(e.kind)
			number(uint64(e.mode))
			number(uint64(e.uid)<<32 | uint64(e.gid))
			text(e.sum)
			text(e.target)
			text(links[e.id])
			if e.id != (inode{}) && links[e.id] == "" {
				links[e.id] = e.path
			}
			number(uint64(len(e.xattrs)))
			for _, name := range slices.Sorted(maps.Keys(e.xattrs)) {
				text(name)
				text(string(e.xattrs[name]))
			}
			s.hash.Write(buf)
			buf = buf[:0]
		}
		s.hash.Write(buf)
		buf = buf[:0]
	}
	s.out.Digest = digestPrefix + hex.EncodeToString(s.hash.Sum(nil))
}
