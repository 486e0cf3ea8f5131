package overlay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paddock-run/paddock/internal/safepath"
)

// epoch is the time of every file of a layer that paddock makes. It is not 1970: zip, and so
// Python's wheels, can hold no time before 1980, in no time zone.
var epoch = time.Date(1980, time.January, 2, 0, 0, 0, 0, time.UTC)

// maxDepth bounds descriptors and recursion on trees that a guest wrote.
const maxDepth = 512

func closeFD(fd int) {
	if fd >= 0 {
		_ = unix.Close(fd)
	}
}

func openDir(p string) (int, error) {
	fd, err := unix.Open(p, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: p, Err: err}
	}
	return fd, nil
}

// openSelf opens an open directory once more.
func openSelf(dir int) (int, error) {
	return unix.Openat(dir, ".", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
}

// look is lstat of the entry name of a directory.
func look(dir int, name string) (st unix.Stat_t, err error) {
	if err := safepath.CheckName(name); err != nil {
		return st, err
	}
	for {
		err = unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW)
		if err != unix.EINTR {
			return st, err
		}
	}
}

// gone is ENOENT for an entry that is not any more what look saw.
func gone(name string) error {
	return fmt.Errorf("%q was replaced while it was read: %w", name, unix.ENOENT)
}

// openSame opens for reading the regular file or directory that look saw. Should something
// else have come in its place, it is not waited for, not followed and not read.
func openSame(dir int, name string, st *unix.Stat_t) (int, error) {
	flags := unix.O_RDONLY | unix.O_NONBLOCK | unix.O_NOCTTY
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		flags |= unix.O_DIRECTORY
	}
	fd, err := safepath.Child(dir, name, flags)
	switch {
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ENXIO), errors.Is(err, unix.ENODEV):
		return -1, gone(name)
	case err != nil:
		return -1, err
	}
	var now unix.Stat_t
	if err := unix.Fstat(fd, &now); err != nil {
		closeFD(fd)
		return -1, err
	}
	if now.Dev != st.Dev || now.Ino != st.Ino || now.Mode&unix.S_IFMT != st.Mode&unix.S_IFMT {
		closeFD(fd)
		return -1, gone(name)
	}
	return fd, nil
}

// names lists an open directory in byte order.
func names(dir int) ([]string, error) {
	fd, err := unix.Openat(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer closeFD(fd)
	return namesOf(fd)
}

var dirents = sync.Pool{New: func() any { return new([16 << 10]byte) }}

// namesOf is names of a descriptor for reading that was not listed before.
func namesOf(fd int) ([]string, error) {
	var list []string
	buf := dirents.Get().(*[16 << 10]byte) //nolint:forcetypeassert // of our own pool
	defer dirents.Put(buf)
	for {
		n, err := unix.ReadDirent(fd, buf[:])
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, err
		}
		if n <= 0 {
			slices.Sort(list)
			return list, nil
		}
		_, _, list = unix.ParseDirent(buf[:n], -1, list)
	}
}

func kindOf(st *unix.Stat_t) string {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return typeFile
	case unix.S_IFDIR:
		return typeDir
	case unix.S_IFLNK:
		return typeSymlink
	case unix.S_IFIFO:
		return typeFIFO
	case unix.S_IFSOCK:
		return typeSocket
	case unix.S_IFBLK:
		return typeBlock
	}
	if st.Rdev == 0 {
		return typeWhiteout
	}
	return typeChar
}

// describe makes the entry of a directory that is open; the path is the caller's.
func describe(fd int, st *unix.Stat_t) (*entry, error) {
	e := entryOf(st)
	var err error
	e.xattrs, e.opaque, err = xattrs(fd)
	return e, err
}

// entryOf is what lstat tells of an entry.
func entryOf(st *unix.Stat_t) *entry {
	e := &entry{
		kind: kindOf(st), mode: st.Mode & modeBits, uid: st.Uid, gid: st.Gid,
		mtime: safepath.ModTime(st),
	}
	if e.kind == typeFile {
		e.size = st.Size
	}
	return e
}

// describeAt makes the entry that look saw. A file or directory stays open at fd, which is
// the caller's; else it is -1. With errXattrs all but the attributes is right.
func describeAt(dir int, name string, st *unix.Stat_t) (e *entry, fd int, err error) {
	e = entryOf(st)
	switch e.kind {
	case typeFile, typeDir:
		if fd, err = openSame(dir, name, st); err != nil {
			return nil, -1, err
		}
		e.xattrs, e.opaque, err = xattrs(fd)
		return e, fd, err
	case typeSymlink:
		e.target, err = safepath.Readlink(dir, name)
		if errors.Is(err, unix.EINVAL) {
			err = gone(name)
		}
	}
	return e, -1, err
}

// maxXattrs bounds what is read of one file's attributes, names and values.
const maxXattrs = 64 << 10

// errXattrs says that a file has more attributes than are read.
var errXattrs = errors.New("more than 64 KiB of extended attributes")

// xattrs reads the kept attributes of an open file or directory. With errXattrs opaque is
// right all the same.
func xattrs(fd int) (kept map[string][]byte, opaque bool, err error) {
	var small [512]byte
	list := small[:]
	n, err := unix.Flistxattr(fd, list)
	if n == 0 || errors.Is(err, unix.EOPNOTSUPP) {
		return nil, false, nil
	}
	value := make([]byte, maxXattrs)
	if n, err := unix.Fgetxattr(fd, opaqueXattr, value); err == nil {
		opaque = string(value[:n]) == "y"
	}
	if errors.Is(err, unix.ERANGE) {
		list = make([]byte, maxXattrs)
		n, err = unix.Flistxattr(fd, list)
	}
	if err != nil {
		return nil, opaque, tooManyXattrs(err)
	}
	total := 0
	for name := range strings.SplitSeq(strings.TrimRight(string(list[:n]), "\x00"), "\x00") {
		if !keptXattr(name) {
			continue
		}
		n, err := unix.Fgetxattr(fd, name, value)
		if errors.Is(err, unix.ENODATA) {
			continue
		}
		if err != nil {
			return nil, opaque, tooManyXattrs(err)
		}
		if total += len(name) + n; total > maxXattrs {
			return nil, opaque, errXattrs
		}
		if kept == nil {
			kept = map[string][]byte{}
		}
		kept[name] = slices.Clone(value[:n])
	}
	return kept, opaque, nil
}

// tooManyXattrs tells the kernel's bounds from other errors.
func tooManyXattrs(err error) error {
	if errors.Is(err, unix.ERANGE) || errors.Is(err, unix.E2BIG) {
		return errXattrs
	}
	return fmt.Errorf("read extended attributes: %w", err)
}

// inode names a file while its tree does not change.
type inode struct{ dev, ino uint64 }

// reader walks a tree on disk in canonical order and gives its entries to a sink.
type reader struct {
	out sink
	// edit changes or refuses an entry; skip leaves out a path and what is below it.
	edit  func(e *entry) (skip bool, err error)
	links links
}

// readTree gives the tree at root to a sink. Hard links become typeHardlink entries.
func readTree(ctx context.Context, root int, out sink, edit func(*entry) (bool, error)) error {
	r := &reader{out: out, edit: edit, links: links{}}
	return r.dir(ctx, root, "", 0)
}

func (r *reader) dir(ctx context.Context, dir int, prefix string, depth int) error {
	if depth > maxDepth {
		return refuse("world_too_large", prefix, "deeper than %d directories", maxDepth)
	}
	list, err := names(dir)
	if err != nil {
		return fmt.Errorf("list %q: %w", prefix, err)
	}
	for _, name := range list {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		if err := r.entry(ctx, dir, name, join(prefix, name), depth); err != nil {
			return err
		}
	}
	return nil
}

func (r *reader) entry(ctx context.Context, dir int, name, p string, depth int) error {
	st, err := look(dir, name)
	if err != nil {
		return fmt.Errorf("look at %q: %w", p, err)
	}
	e, fd, err := describeAt(dir, name, &st)
	defer closeFD(fd)
	if err != nil {
		return fmt.Errorf("read %q: %w", p, err)
	}
	e.path = p
	if r.edit != nil {
		if skip, err := r.edit(e); skip || err != nil {
			return err
		}
	}
	var body io.Reader
	if e.kind == typeFile && !r.links.linked(e, &st) {
		body = &fdReader{fd: fd}
	}
	if err := r.out.add(e, body); err != nil {
		return err
	}
	if e.kind == typeDir {
		return r.dir(ctx, fd, p, depth+1)
	}
	return nil
}

// links are the files of several names that came already, by their first name.
type links map[inode]string

// linked makes e a hard link when it is one more name of a file.
func (l links) linked(e *entry, st *unix.Stat_t) bool {
	id := inode{st.Dev, st.Ino}
	if first, ok := l[id]; ok {
		e.kind, e.target, e.size = typeHardlink, first, 0
		return true
	}
	if st.Nlink > 1 {
		l[id] = e.path
	}
	return false
}

// fdReader reads a regular file from its beginning; the descriptor is the caller's.
type fdReader struct {
	fd  int
	off int64
}

func (r *fdReader) Read(p []byte) (int, error) {
	n, err := r.ReadAt(p, r.off)
	r.off += int64(n)
	return n, err
}

// ReadAt is as of io.ReaderAt.
func (r *fdReader) ReadAt(p []byte, off int64) (done int, err error) {
	for done < len(p) {
		n, err := unix.Pread(r.fd, p[done:], off+int64(done))
		switch {
		case err == unix.EINTR:
		case err != nil:
			return done, err
		case n == 0:
			return done, io.EOF
		default:
			done += n
		}
	}
	return done, nil
}

func join(prefix, name string) string {
	if prefix == "" {
		return name
	}
	return prefix + "/" + name
}
