package files

import (
	"archive/tar"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paddock-run/paddock/internal/safepath"
	"github.com/paddock-run/paddock/sandbox"
)

const (
	// maxTarNames bounds the entries of one directory that Tar sorts.
	maxTarNames = 1 << 20
	// maxLinkSets bounds how many sets of hard links Tar remembers; links beyond are
	// written as files of their own.
	maxLinkSets = 1 << 18
)

// Tar writes path (a file or a tree) as a PAX tar; names are relative to path's parent
// (of "/": to it). Entries are in byte order, names are raw bytes, owners are the
// sandbox's ids. Symlinks are written as such, hard links once, FIFOs and devices as
// entries without being opened; sockets have no place in a tar and are left out. A file
// that changes size meanwhile is cut or filled with zeros. Trees deeper than 512 are
// too_large.
func (t *Tree) Tar(ctx context.Context, as sandbox.User, name string, w io.Writer) error {
	if err := checkAbs(name); err != nil {
		return err
	}
	p := &packer{ctx: ctx, t: t, as: as, out: tar.NewWriter(&callerWriter{w: w, path: name}), links: map[inode]string{}}
	if err := p.all(name); err != nil {
		return fail(name, err)
	}
	return fail(name, p.out.Close())
}

type inode struct{ dev, ino uint64 }

// packer is one Tar on its way.
type packer struct {
	ctx   context.Context //nolint:containedctx // lives as long as the one call
	t     *Tree
	as    sandbox.User
	out   *tar.Writer
	links map[inode]string
}

func (p *packer) all(name string) error {
	if strings.Trim(name, "/") == "" {
		fd, err := p.open(func() (int, error) { return p.t.paths().Open("/", unix.O_PATH) })
		if err != nil {
			return err
		}
		defer closeFD(fd)
		return p.children(fd, "", 0)
	}
	var base string
	dir, err := p.open(func() (dir int, err error) {
		dir, base, err = p.t.paths().Parent(name)
		return dir, err
	})
	if err != nil {
		return err
	}
	defer closeFD(dir)
	return p.entry(dir, base, base, 0)
}

// open opens something as the user.
func (p *packer) open(f func() (int, error)) (fd int, err error) {
	err = p.t.as(p.as, func(*session) error {
		fd, err = f()
		return err
	})
	return fd, err
}

// entry writes the entry name of dir, and what is below it, under the archive name as.
func (p *packer) entry(dir int, name, as string, depth int) error {
	if depth > maxDepth {
		return refuse("too_large", as[:min(len(as), 200)], fmt.Sprintf("the tree is deeper than %d", maxDepth))
	}
	fd, err := p.open(func() (int, error) { return safepath.Child(dir, name, unix.O_PATH) })
	if isErrno(err, unix.ENOENT) && depth > 0 {
		return nil // gone since the directory was listed
	}
	if err != nil {
		return fail(as, err)
	}
	defer closeFD(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fail(as, err)
	}
	h := p.header(as, &st)
	switch typeOf(&st) {
	case sandbox.RegularFile:
		return p.file(fd, h, &st)
	case sandbox.Directory:
		h.Typeflag, h.Name = tar.TypeDir, as+"/"
		if err := p.write(h); err != nil {
			return err
		}
		return p.children(fd, as+"/", depth)
	case sandbox.Symlink:
		h.Typeflag = tar.TypeSymlink
		if h.Linkname, err = safepath.Readlink(fd, ""); err != nil {
			return fail(as, err)
		}
	case sandbox.FIFO:
		h.Typeflag = tar.TypeFifo
	case sandbox.CharDevice:
		h.Typeflag = tar.TypeChar
	case sandbox.BlockDevice:
		h.Typeflag = tar.TypeBlock
	case sandbox.Socket:
		return nil
	}
	return p.write(h)
}

// header is what all types have in common. Times are whole seconds: a fraction would
// cost each entry a header of its own.
func (p *packer) header(name string, st *unix.Stat_t) *tar.Header {
	h := &tar.Header{
		Format: tar.FormatPAX, Name: name, Mode: int64(st.Mode & 0o7777),
		Uid: int(p.t.inside(st.Uid)), Gid: int(p.t.inside(st.Gid)),
		ModTime: safepath.ModTime(st).Truncate(time.Second),
	}
	if kind := st.Mode & unix.S_IFMT; kind == unix.S_IFCHR || kind == unix.S_IFBLK {
		h.Devmajor, h.Devminor = int64(unix.Major(st.Rdev)), int64(unix.Minor(st.Rdev))
	}
	return h
}

func (p *packer) write(h *tar.Header) error {
	if err := cancelled(p.ctx, h.Name); err != nil {
		return err
	}
	return fail(h.Name, p.out.WriteHeader(h))
}

func (p *packer) file(fd int, h *tar.Header, st *unix.Stat_t) error {
	h.Typeflag = tar.TypeReg
	id := inode{st.Dev, st.Ino}
	if first, seen := p.links[id]; seen && st.Nlink > 1 {
		h.Typeflag, h.Linkname = tar.TypeLink, first
		return p.write(h)
	}
	if st.Nlink > 1 && len(p.links) < maxLinkSets {
		p.links[id] = h.Name
	}
	var file int
	if err := p.t.as(p.as, func(s *session) (err error) {
		file, err = s.openRegular(fd, unix.O_RDONLY, st)
		return err
	}); err != nil {
		return fail(h.Name, err)
	}
	defer closeFD(file)
	h.Size = st.Size
	if err := p.write(h); err != nil {
		return err
	}
	n, err := copyFrom(p.ctx, h.Name, p.out, file, 0, st.Size)
	if err != nil {
		return fail(h.Name, causeOf(err))
	}
	return p.zeros(h.Name, st.Size-n)
}

// zeros fills up for a file that has become shorter.
func (p *packer) zeros(name string, n int64) error {
	buf := chunks.Get().(*[]byte)
	defer chunks.Put(buf)
	clear(*buf)
	for n > 0 {
		if err := cancelled(p.ctx, name); err != nil {
			return err
		}
		part := min(chunk, n)
		if _, err := p.out.Write((*buf)[:part]); err != nil {
			return fail(name, err)
		}
		n -= part
	}
	return nil
}

// children writes what is in an open directory, each name behind prefix.
func (p *packer) children(fd int, prefix string, depth int) error {
	var names []string
	var list int
	if err := p.t.as(p.as, func(s *session) (err error) {
		list, err = s.openDir(fd)
		return err
	}); err != nil {
		return fail(prefix, err)
	}
	names, more, err := firstNames(p.ctx, list, maxTarNames)
	closeFD(list)
	if err != nil {
		return fail(prefix, err)
	}
	if more {
		return refuse("too_large", prefix, "the directory has too many entries")
	}
	for _, name := range names {
		if err := p.entry(fd, name, prefix+name, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// callerWriter marks the errors of the caller's writer, so that a broken connection is
// told from a broken tree.
type callerWriter struct {
	w    io.Writer
	path string
}

// Write passes b on.
func (c *callerWriter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	if err != nil {
		err = callers("write", c.path, err)
	}
	return n, err
}
