package overlay

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/paddock-run/paddock/internal/safepath"
)

const (
	// zstdMemory bounds the window that an archive may ask for.
	zstdMemory = 256 << 20
	// bombBytes and bombRatio: a stream that grows to more than both is a bomb.
	bombBytes = 1 << 30
	bombRatio = 200
)

// decompress reads a stream that is plain, gzip or zstd, told apart by its first bytes.
func decompress(r io.Reader, limits Limits) (io.Reader, func(), error) {
	in := &counted{r: r}
	b := bufio.NewReaderSize(in, 128<<10)
	out := &bounded{in: in, max: 2*limits.Bytes + 64<<20}
	head, err := b.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, err
	}
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(b)
		if err != nil {
			return nil, nil, refuse("bad_archive", "", "gzip: %v", err)
		}
		out.r, out.packed = z, true
		return out, func() { _ = z.Close() }, nil
	case bytes.Equal(head, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		z, err := zstd.NewReader(b, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(zstdMemory), zstd.WithDecoderMaxWindow(zstdMemory))
		if err != nil {
			return nil, nil, refuse("bad_archive", "", "zstd: %v", err)
		}
		out.r, out.packed = z, true
		return out, z.Close, nil
	}
	out.r = b
	return out, func() {}, nil
}

type counted struct {
	r io.Reader
	n int64
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

// bounded ends a stream that unpacks to too much.
type bounded struct {
	r      io.Reader
	in     *counted
	packed bool
	n, max int64
}

func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	b.n += int64(n)
	if b.n > b.max {
		return n, refuse("world_too_large", "", "unpacks to more than %d bytes", b.max)
	}
	if b.packed && b.n > bombBytes && b.n > bombRatio*b.in.n {
		return n, refuse("world_too_large", "", "unpacks to more than %d times its size", bombRatio)
	}
	return n, err
}

// unpacking reads one tar into a directory.
type unpacking struct {
	tree *tree
	// whiteouts: names of the form .wh.x hide x of lower layers, as in OCI layers.
	whiteouts bool
	into      string
	// edit changes or refuses an entry after the common checks.
	edit func(e *entry) (skip bool, err error)
	step string
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
		if ok && keptXattr(name) && (kind == typeFile || kind == typeDir) {
			if e.xattrs == nil {
				e.xattrs = map[string][]byte{}
			}
			e.xattrs[name] = []byte(value)
		}
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
// after what is in it, or be hidden and made anew. Anything else is refused, since
// programs differ in which of the two they keep.
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
		return u.tree.settleDir(dir, base, e)
	case e.kind == typeWhiteout && old == typeDir:
		return u.opaque(e.path)
	case e.kind == typeWhiteout && u.whiteouts:
		return nil // the file is in the way of the lower one by itself
	case old == typeWhiteout && u.whiteouts:
		if err := unix.Unlinkat(dir, base, 0); err != nil {
			return err
		}
		e.opaque = e.kind == typeDir
		return u.tree.add(e, body) // nothing of the body was read yet
	}
	return refuse("duplicate_entry", e.path, "twice in the archive")
}

// tarSource is the recipe of an archive on the host.
type tarSource struct {
	placement
	file *os.File
}

func newTarSource(p string, at placement) (*tarSource, error) {
	f, err := os.OpenFile(p, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, refuse("not_found", p, "no such file")
	}
	if err != nil {
		return nil, refuse("bad_recipe", p, "%v", err)
	}
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(refuse("bad_recipe", p, "not a regular file"), f.Close())
	}
	return &tarSource{placement: at, file: f}, nil
}

func (t *tarSource) kind() string  { return "tar" }
func (t *tarSource) name() string  { return "tar" }
func (t *tarSource) network() bool { return false }

func (t *tarSource) close() {
	_ = t.file.Close()
	t.placement.close()
}

// input covers path, type, mode, link, kept attributes and bytes of every entry, and
// neither times, owners nor the form of the archive: a hit reads the archive and unpacks
// nothing.
func (t *tarSource) input(ctx context.Context, p Progress) (string, error) {
	r, end, err := decompress(io.NewSectionReader(t.file, 0, 1<<62), t.limits)
	if err != nil {
		return "", err
	}
	defer end()
	u := &unpacking{into: t.into}
	tr := tar.NewReader(&cancelled{ctx, r})
	var lines []string
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
		if err != nil {
			return "", badArchive(err)
		}
		e, err := u.describe(h)
		if err != nil {
			return "", err
		}
		if e == nil {
			continue
		}
		if int64(len(lines)) >= t.limits.Entries || e.size > t.limits.Bytes {
			return "", refuse("world_too_large", e.path, "more than %d entries or %d bytes", t.limits.Entries, t.limits.Bytes)
		}
		body := sha256.New()
		if _, err := io.Copy(body, tr); err != nil {
			return "", badArchive(err)
		}
		lines = append(lines, fmt.Sprintf("%q %s %o %q %q %x", e.path, e.kind, e.mode, e.target, e.xattrs, body.Sum(nil)))
		if len(lines)%1024 == 0 {
			p("hash", int64(len(lines)), 0)
		}
	}
	slices.Sort(lines)
	return sum([]byte(strings.Join(lines, "\n"))), nil
}

// cancelled ends a read when its context does.
type cancelled struct {
	ctx context.Context //nolint:containedctx // io.Reader has no other way
	r   io.Reader
}

func (c *cancelled) Read(p []byte) (int, error) {
	if c.ctx.Err() != nil {
		return 0, context.Cause(c.ctx)
	}
	return c.r.Read(p)
}

func (t *tarSource) fill(ctx context.Context, root int, p Progress) (layer, error) {
	r, end, err := decompress(io.NewSectionReader(t.file, 0, 1<<62), t.limits)
	if err != nil {
		return layer{}, err
	}
	defer end()
	out := newTree(root, t.limits)
	// A directory that the archive does not name is the base's, where the base has it.
	out.implied = func(p string) (*entry, error) {
		e := &entry{path: p, kind: typeDir, mode: rootMode}
		return e, t.edit(e)
	}
	parents, err := t.parents()
	if err != nil {
		return layer{}, err
	}
	for _, e := range parents {
		if err := out.add(e, nil); err != nil {
			return layer{}, err
		}
	}
	u := &unpacking{tree: out, into: t.into, step: "unpack", edit: func(e *entry) (bool, error) { return false, t.edit(e) }}
	if err := errors.Join(u.unpack(ctx, &cancelled{ctx, r}, p), out.close()); err != nil {
		return layer{}, err
	}
	return measure(ctx, root, p)
}

// measure reads a layer's tree and makes its canonical digest.
func measure(ctx context.Context, root int, p Progress) (layer, error) {
	c := newCanon(nil)
	counter := &counting{sink: c, limits: Limits{Bytes: 1 << 62, Entries: 1 << 62}, progress: p, step: "digest"}
	if err := readTree(ctx, root, counter, nil); err != nil {
		return layer{}, err
	}
	return counter.finish(c)
}
