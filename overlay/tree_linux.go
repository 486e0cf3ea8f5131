package overlay

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paddock-run/paddock/internal/safepath"
)

// Limits bound what one layer may hold.
type Limits struct {
	Bytes   int64
	Entries int64
}

func (l Limits) orDefault() Limits {
	if l.Bytes == 0 {
		l.Bytes = 32 << 30
	}
	if l.Entries == 0 {
		l.Entries = 4_000_000
	}
	return l
}

// tree writes entries below a directory that nobody else writes to. It never follows a
// symlink, so that an archive cannot write through one of its own.
type tree struct {
	root   int
	limits Limits
	// shift is added to every owner; trusted trees of a fork have it.
	shift   uint32
	entries int64
	bytes   int64
	// implied gives a directory that was not named but is needed; nil makes 0755 of root.
	implied func(path string) (*entry, error)
	// times are set last, since writing into a directory changes its own.
	times  []dirTime
	parent string
	dir    int
	buf    []byte
}

type dirTime struct {
	path  string
	mtime time.Time
}

func newTree(root int, limits Limits) *tree {
	return &tree{root: root, limits: limits, dir: -1, buf: make([]byte, 128<<10)}
}

// add writes one entry. EEXIST is the caller's to understand.
func (t *tree) add(e *entry, body io.Reader) error { return t.write(e, body, io.Discard) }

// write is add that copies a file's bytes to also as well.
func (t *tree) write(e *entry, body io.Reader, also io.Writer) error {
	t.entries++
	t.bytes += e.size
	if t.entries > t.limits.Entries {
		return refuse("world_too_large", e.path, "more than %d entries", t.limits.Entries)
	}
	if t.bytes > t.limits.Bytes || e.size < 0 {
		return refuse("world_too_large", e.path, "more than %d bytes", t.limits.Bytes)
	}
	if e.path == "" {
		return nil
	}
	dir, err := t.in(path.Dir(e.path))
	if err != nil {
		return err
	}
	if err := t.make(dir, path.Base(e.path), e, body, also); err != nil {
		if errors.Is(err, unix.EEXIST) {
			return err
		}
		return fmt.Errorf("write %q: %w", e.path, err)
	}
	return nil
}

func (t *tree) make(dir int, name string, e *entry, body io.Reader, also io.Writer) error {
	switch e.kind {
	case typeFile:
		return t.file(dir, name, e, body, also)
	case typeDir:
		return t.mkdir(dir, name, e)
	case typeHardlink:
		from, base, err := safepath.Plain(t.root).Parent(e.target)
		if err != nil {
			return refuse("bad_archive", e.path, "hard link to %q, which is not before it", e.target)
		}
		defer closeFD(from)
		if err := unix.Linkat(from, base, dir, name, 0); err != nil {
			if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EPERM) {
				return refuse("bad_archive", e.path, "hard link to %q, which is no file before it", e.target)
			}
			return err
		}
		return nil
	case typeWhiteout:
		return unix.Mknodat(dir, name, unix.S_IFCHR, 0)
	case typeSymlink:
		if err := unix.Symlinkat(e.target, dir, name); err != nil {
			return err
		}
	case typeFIFO:
		if err := unix.Mknodat(dir, name, unix.S_IFIFO|0o600, 0); err != nil {
			return err
		}
	case typeSocket:
		if err := unix.Mknodat(dir, name, unix.S_IFSOCK|0o600, 0); err != nil {
			return err
		}
	default:
		return refuse("unsupported_entry", e.path, "a layer holds no %s", e.kind)
	}
	if err := unix.Fchownat(dir, name, int(e.uid+t.shift), int(e.gid+t.shift), unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if e.kind != typeSymlink {
		if err := unix.Fchmodat(dir, name, e.mode, 0); err != nil {
			return err
		}
	}
	return setTime(dir, name, e.mtime)
}

func (t *tree) file(dir int, name string, e *entry, body io.Reader, also io.Writer) error {
	fd, err := unix.Openat(dir, name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), e.path)
	defer func() { _ = f.Close() }()
	if err := t.copy(f, io.LimitReader(body, e.size), also, e.size); err != nil {
		return err
	}
	if err := t.attributes(fd, e); err != nil {
		return err
	}
	return setTime(dir, name, e.mtime)
}

// copy copies size bytes and leaves holes for zeros.
func (t *tree) copy(f *os.File, body io.Reader, also io.Writer, size int64) error {
	var off int64
	for off < size {
		n, err := io.ReadFull(body, t.buf[:min(int64(len(t.buf)), size-off)])
		if err != nil {
			return fmt.Errorf("after %d of %d bytes: %w", off+int64(n), size, io.ErrUnexpectedEOF)
		}
		chunk := t.buf[:n]
		if _, err := also.Write(chunk); err != nil {
			return err
		}
		if !zero(chunk) {
			if _, err := f.WriteAt(chunk, off); err != nil {
				return err
			}
		}
		off += int64(n)
	}
	return f.Truncate(size)
}

var zeros [4096]byte

func zero(b []byte) bool {
	for len(b) > 0 {
		n := min(len(b), len(zeros))
		if !bytes.Equal(b[:n], zeros[:n]) {
			return false
		}
		b = b[n:]
	}
	return true
}

func (t *tree) mkdir(dir int, name string, e *entry) error {
	if err := unix.Mkdirat(dir, name, 0o700); err != nil {
		return err
	}
	return t.settleDir(dir, name, e)
}

// settleDir gives an existing directory an entry's attributes.
func (t *tree) settleDir(dir int, name string, e *entry) error {
	fd, err := safepath.Child(dir, name, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer closeFD(fd)
	t.times = append(t.times, dirTime{e.path, e.mtime})
	if e.opaque {
		if err := unix.Fsetxattr(fd, opaqueXattr, []byte("y"), 0); err != nil {
			return fmt.Errorf("mark opaque: %w", err)
		}
	}
	return t.attributes(fd, e)
}

func (t *tree) attributes(fd int, e *entry) error {
	if err := unix.Fchown(fd, int(e.uid+t.shift), int(e.gid+t.shift)); err != nil {
		return err
	}
	if err := unix.Fchmod(fd, e.mode); err != nil { // after chown, which clears setuid
		return err
	}
	for name, value := range e.xattrs {
		if err := unix.Fsetxattr(fd, name, value, 0); err != nil {
			return fmt.Errorf("attribute %s: %w", name, err)
		}
	}
	return nil
}

// in opens the directory that entries go to, and makes those that were not named.
func (t *tree) in(p string) (int, error) {
	if p == "." {
		return t.root, nil
	}
	if t.dir >= 0 && t.parent == p {
		return t.dir, nil
	}
	fd, err := safepath.Plain(t.root).Open(p, unix.O_PATH|unix.O_DIRECTORY)
	if errors.Is(err, unix.ENOENT) {
		if err := t.imply(p); err != nil {
			return -1, err
		}
		fd, err = safepath.Plain(t.root).Open(p, unix.O_PATH|unix.O_DIRECTORY)
	}
	switch {
	case errors.Is(err, unix.ELOOP):
		return -1, refuse("invalid_path", p, "leads through a symlink of the same archive")
	case errors.Is(err, unix.ENOTDIR):
		return -1, refuse("invalid_path", p, "is no directory but has entries below it")
	case err != nil:
		return -1, fmt.Errorf("open %q: %w", p, err)
	}
	closeFD(t.dir)
	t.parent, t.dir = p, fd
	return fd, nil
}

// imply makes a directory that the entries did not name.
func (t *tree) imply(p string) error {
	e := &entry{kind: typeDir, mode: rootMode, mtime: epoch}
	if t.implied != nil {
		known, err := t.implied(p)
		if err != nil {
			return err
		}
		if known != nil {
			e = known
		}
	}
	e.path = p
	e.opaque = false
	if err := checkPath(p); err != nil {
		return err
	}
	return t.add(e, nil)
}

// close sets the directories' times and lets go of what is open.
func (t *tree) close() error {
	closeFD(t.dir)
	t.dir = -1
	for _, d := range slices.Backward(t.times) {
		dir, base, err := safepath.Plain(t.root).Parent(d.path)
		if err != nil {
			continue // replaced since
		}
		err = setTime(dir, base, d.mtime)
		closeFD(dir)
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("set the time of %q: %w", d.path, err)
		}
	}
	return setTime(t.root, ".", epoch)
}

func setTime(dir int, name string, at time.Time) error {
	ts, err := unix.TimeToTimespec(at)
	if err != nil {
		return err
	}
	return unix.UtimesNanoAt(dir, name, []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW)
}

// layerSink writes a layer and its canonical tar in one go; without a tree it only hashes.
type layerSink struct {
	tree *tree
	tar  *canon
}

func (l *layerSink) add(e *entry, body io.Reader) error {
	if l.tree == nil {
		return l.tar.add(e, body)
	}
	if err := l.tar.header(e); err != nil {
		return err
	}
	if err := l.tree.write(e, body, l.tar.tw); err != nil {
		if errors.Is(err, unix.EEXIST) {
			return refuse("duplicate_entry", e.path, "twice in the recipe")
		}
		return err
	}
	return nil
}
