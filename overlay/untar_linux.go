package overlay

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/paddock-run/paddock/internal/safepath"
)

// unpacking reads one tar into a directory.
type unpacking struct {
	tree *tree
	// whiteouts: names of the form .wh.x hide x of lower layers, as in OCI layers.
	whiteouts bool
	into      string
	// edit changes or refuses an entry after the common checks.
	edit func(e *entry) (skip bool, err error)
	step string
	// body, when set, is told of every file whose bytes are read, and gives them.
	body func(e *entry, r io.Reader) io.Reader
	// dropped is told what of an entry a layer does not hold.
	dropped func(p, what string)
}

// unpack writes a tar's entries. Errors of reading are the archive's fault.
func (u *unpacking) unpack(ctx context.Context, r io.Reader, p Progress) error {
	tr := tar.NewReader(r)
	for n := int64(1); ; n++ {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if n%1024 == 0 {
			p(u.step, n, 0)
		}
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return badArchive(err)
		}
		if err := u.entry(h, tr); err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return err
		}
	}
}

// badArchive says that a stream could not be read to its end.
func badArchive(err error) error {
	if _, ok := errors.AsType[*RecipeError](err); ok {
		return err
	}
	return refuse("bad_archive", "", "%v", err)
}

func (u *unpacking) entry(h *tar.Header, body io.Reader) error {
	e, err := u.describe(h)
	if err != nil || e == nil || e.path == "" {
		return err
	}
	if u.edit != nil {
		if skip, err := u.edit(e); skip || err != nil {
			return err
		}
	}
	if err := checkEntry(e); err != nil {
		return err
	}
	if u.body != nil && e.kind == typeFile {
		body = u.body(e, body)
	}
	src := &faulty{r: body}
	err = u.tree.add(e, src)
	if src.err != nil {
		return badArchive(src.err)
	}
	if errors.Is(err, unix.EEXIST) {
		return u.again(e, src)
	}
	return err
}

// faulty remembers an error of reading, which is not one of writing.
type faulty struct {
	r   io.Reader
	err error
}

func (f *faulty) Read(p []byte) (int, error) {
	n, err := f.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		f.err = err
	}
	return n, err
}

var tarKinds = map[byte]string{
	tar.TypeReg: typeFile, tar.TypeRegA: typeFile, tar.TypeGNUSparse: typeFile, tar.TypeCont: typeFile, //nolint:staticcheck // old archives have TypeRegA
	tar.TypeDir: typeDir, tar.TypeSymlink: typeSymlink, tar.TypeLink: typeHardlink,
	tar.TypeFifo: typeFIFO, tar.TypeChar: typeChar, tar.TypeBlock: typeBlock,
}

// describe makes a header an entry; nil is one to leave out.
func (u *unpacking) describe(h *tar.Header) (*entry, error) {
	kind, ok := tarKinds[h.Typeflag]
	if !ok {
		if h.Typeflag == tar.TypeXGlobalHeader {
			return nil, nil
		}
		return nil, refuse("unsupported_entry", h.Name, "tar entry of type %q", h.Typeflag)
	}
	p, err := cleanPath(h.Name)
	if err != nil {
		return nil, err
	}
	if p == "" {
		if kind != typeDir {
			return nil, refuse("invalid_path", h.Name, "the root must be a directory")
		}
		return &entry{kind: typeDir}, nil
	}
	e := &entry{path: join(u.into, p), kind: kind, mode: uint32(h.Mode) & modeBits, mtime: h.ModTime.UTC()}
	if e.mtime.Unix() < 0 || e.mtime.Year() > 2200 {
		e.mtime = epoch
	}
	if h.Uid < 0 || h.Gid < 0 || h.Uid > 1<<31 || h.Gid > 1<<31 {
		return nil, refuse("world_invalid", e.path, "owner %d:%d", h.Uid, h.Gid)
	}
	e.uid, e.gid = uint32(h.Uid), uint32(h.Gid)
	switch kind {
	case typeFile:
		e.size = h.Size
	case typeSymlink:
		e.target = h.Linkname
	case typeHardlink:
		if e.target, err = cleanPath(h.Linkname); err != nil {
			return nil, err
		}
		if e.target == "" {
			return nil, refuse("bad_archive", e.path, "hard link to the root")
		}
		e.target = join(u.into, e.target)
	}
	if u.whiteouts && strings.HasPrefix(path.Base(e.path), whiteoutMark) {
		return e, u.whiteout(e)
	}
	for record, value := range h.PAXRecords {
		name, ok := strings.CutPrefix(record, paxXattr)
		if !ok || kind == typeHardlink {
			continue // a hard link's are those of its first name
		}
		if !keptXattr(name) || (kind != typeFile && kind != typeDir) {
			if u.dropped != nil {
				u.dropped(e.path, "attribute "+name)
			}
			continue
		}
		if e.xattrs == nil {
			e.xattrs = map[string][]byte{}
		}
		e.xattrs[name] = []byte(value)
	}
	return e, nil
}

// whiteout makes the mark of a deletion what overlayfs wants; marks with another meaning
// are left out by an empty path.
func (u *unpacking) whiteout(e *entry) error {
	dir, name := path.Split(e.path)
	dir = strings.TrimSuffix(dir, "/")
	hidden := strings.TrimPrefix(name, whiteoutMark)
	*e = entry{kind: typeWhiteout, mtime: epoch}
	switch {
	case name == opaqueMark:
		return u.opaque(dir)
	case strings.HasPrefix(hidden, whiteoutMark):
		return nil // AUFS's own housekeeping
	case hidden == "" || hidden == "." || hidden == "..":
		return refuse("invalid_path", join(dir, name), "hides nothing")
	}
	e.path = join(dir, hidden)
	return nil
}

func (u *unpacking) opaque(p string) error {
	if p == "" {
		return refuse("unsupported_entry", opaqueMark, "a layer cannot hide the root")
	}
	if _, err := u.tree.in(p); err != nil {
		return err
	}
	fd, err := safepath.Plain(u.tree.root).Open(p, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer closeFD(fd)
	return unix.Fsetxattr(fd, opaqueXattr, []byte("y"), 0)
}

// again settles an entry at a path that has one: a directory may come twice, be named
// after what is in it, or be hidden and made anew. Beyond that the last entry of an image's
// layer wins, whatever came before it; a recipe's tar is refused, since programs differ in
// which of the two they keep.
func (u *unpacking) again(e *entry, body io.Reader) error {
	dir, base, err := safepath.Plain(u.tree.root).Parent(e.path)
	if err != nil {
		return err
	}
	defer closeFD(dir)
	st, err := look(dir, base)
	if err != nil {
		return err
	}
	old := kindOf(&st)
	switch {
	case e.kind == typeDir && old == typeDir:
		u.tree.forgetTimes(e.path)
		return u.tree.settleDir(dir, base, e)
	case !u.whiteouts:
		return refuse("duplicate_entry", e.path, "twice in the archive")
	case e.kind == typeWhiteout && old == typeDir:
		return u.opaque(e.path)
	case e.kind == typeWhiteout:
		return nil // the file is in the way of the lower one by itself
	case e.kind == typeHardlink && sameFile(u.tree.root, e.target, &st):
		return nil
	}
	if err := u.tree.remove(dir, base, e.path); err != nil {
		return err
	}
	// What was there hid the lower layers' directory, so the new one does not show it.
	e.opaque = e.kind == typeDir
	return u.tree.add(e, body) // nothing of the body was read yet
}

// sameFile says whether a path of the tree is the file that st is of.
func sameFile(root int, p string, st *unix.Stat_t) bool {
	dir, base, err := safepath.Plain(root).Parent(p)
	if err != nil {
		return false
	}
	defer closeFD(dir)
	other, err := look(dir, base)
	return err == nil && other.Dev == st.Dev && other.Ino == st.Ino
}
