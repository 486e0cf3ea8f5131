package overlay

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paddock-run/paddock/internal/safepath"
)

// epoch is the time of every file of a layer that paddock makes. It is not 1970: zip, and so
// Python's wheels, can hold no time before 1980, in no time zone.
var epoch = time.Date(1980, time.January, 2, 0, 0, 0, 0, time.UTC)

// maxDepth bounds descriptors and recursion on trees that a guest wrote.
const maxDepth = 512

const openPath = unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC

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

// child opens the entry name of a directory without any effect on it.
func child(dir int, name string) (fd int, st unix.Stat_t, err error) {
	fd, err = safepath.Child(dir, name, openPath)
	if err != nil {
		return -1, st, err
	}
	if err = unix.Fstat(fd, &st); err != nil {
		closeFD(fd)
		return -1, st, err
	}
	return fd, st, nil
}

// names lists an open directory in byte order.
func names(dir int) ([]string, error) {
	fd, err := unix.Openat(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "directory")
	defer func() { _ = f.Close() }()
	list, err := f.Readdirnames(-1)
	slices.Sort(list)
	return list, err
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

// describe makes the entry of what is open at fd; the path is the caller's.
func describe(fd int, st *unix.Stat_t) (*entry, error) {
	e := &entry{
		kind: kindOf(st), mode: st.Mode & modeBits, uid: st.Uid, gid: st.Gid,
		mtime: time.Unix(st.Mtim.Sec, st.Mtim.Nsec).UTC(),
	}
	var err error
	switch e.kind {
	case typeFile:
		e.size = st.Size
		e.xattrs, _, err = xattrs(fd)
	case typeDir:
		e.xattrs, e.opaque, err = xattrs(fd)
	case typeSymlink:
		e.target, err = safepath.Readlink(fd, "")
	}
	return e, err
}

// maxXattrs bounds what is read of one file's attributes, names and values.
const maxXattrs = 64 << 10

// errXattrs says that a file has more attributes than are read.
var errXattrs = errors.New("more than 64 KiB of extended attributes")

// xattrs reads the kept attributes of an open file or directory. With errXattrs opaque is
// right all the same.
func xattrs(fd int) (kept map[string][]byte, opaque bool, err error) {
	p := safepath.ProcPath(fd)
	n, err := unix.Listxattr(p, nil)
	if n == 0 || errors.Is(err, unix.EOPNOTSUPP) {
		return nil, false, nil
	}
	value := make([]byte, maxXattrs)
	if n, err := unix.Getxattr(p, opaqueXattr, value); err == nil {
		opaque = string(value[:n]) == "y"
	}
	list := make([]byte, maxXattrs)
	if n, err = unix.Listxattr(p, list); err != nil {
		return nil, opaque, tooManyXattrs(err)
	}
	total := 0
	for name := range strings.SplitSeq(strings.TrimRight(string(list[:n]), "\x00"), "\x00") {
		if !keptXattr(name) {
			continue
		}
		n, err := unix.Getxattr(p, name, value)
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

// open reads the regular file behind an O_PATH descriptor.
func open(fd int, name string) (*os.File, error) {
	n, err := safepath.Reopen(fd, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(n), name), nil
}

// inode names a file while its tree does not change.
type inode struct{ dev, ino uint64 }

// reader walks a tree on disk in canonical order and gives its entries to a sink.
type reader struct {
	out sink
	// edit changes or refuses an entry; skip leaves out a path and what is below it.
	edit  func(e *entry) (skip bool, err error)
	links map[inode]string
}

// readTree gives the tree at root to a sink. Hard links become typeHardlink entries.
func readTree(ctx context.Context, root int, out sink, edit func(*entry) (bool, error)) error {
	r := &reader{out: out, edit: edit, links: map[inode]string{}}
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
	fd, st, err := child(dir, name)
	if err != nil {
		return fmt.Errorf("open %q: %w", p, err)
	}
	defer closeFD(fd)
	e, err := describe(fd, &st)
	if err != nil {
		return fmt.Errorf("read %q: %w", p, err)
	}
	e.path = p
	if r.edit != nil {
		if skip, err := r.edit(e); skip || err != nil {
			return err
		}
	}
	body, err := r.body(e, fd, &st)
	if err != nil {
		return err
	}
	if body != nil {
		defer func() { _ = body.Close() }()
	}
	if err := r.out.add(e, body); err != nil {
		return err
	}
	if e.kind == typeDir {
		return r.dir(ctx, fd, p, depth+1)
	}
	return nil
}

// body opens a file's bytes, or makes e a hard link when it is one more name of a file.
func (r *reader) body(e *entry, fd int, st *unix.Stat_t) (*os.File, error) {
	if e.kind != typeFile {
		return nil, nil
	}
	id := inode{st.Dev, st.Ino}
	if first, ok := r.links[id]; ok {
		e.kind, e.target, e.size = typeHardlink, first, 0
		return nil, nil
	}
	if st.Nlink > 1 {
		r.links[id] = e.path
	}
	f, err := open(fd, e.path)
	if err != nil {
		return nil, fmt.Errorf("open %q: %w", e.path, err)
	}
	return f, nil
}

func join(prefix, name string) string {
	if prefix == "" {
		return name
	}
	return prefix + "/" + name
}
