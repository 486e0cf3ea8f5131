package overlay

import (
	"bytes"
	"errors"
	"fmt"
	"io"
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
	// lastWins: what is in an entry's way is removed, as a later entry of an image's layer
	// wins; replaced is told of each such path.
	lastWins bool
	replaced func(path string)
	// borrow, when set, copies a file of the lower layers to the same path here, as the
	// first name of a hard link whose other name is in this layer; false: there is none.
	borrow func(path string) (bool, error)
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
		return t.link(dir, name, e)
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

// link makes one more name of a file that came before, or that the lower layers have.
func (t *tree) link(dir int, name string, e *entry) error {
	err := t.linkHere(dir, name, e.target)
	if errors.Is(err, unix.ENOENT) && t.borrow != nil {
		borrowed, berr := t.borrow(e.target)
		if berr != nil {
			return berr
		}
		if borrowed {
			// Borrowing may have made and so changed the cached directory.
			return t.linkTo(e)
		}
	}
	return linkError(e, err)
}

func (t *tree) linkTo(e *entry) error {
	dir, err := t.in(path.Dir(e.path))
	if err != nil {
		return err
	}
	return linkError(e, t.linkHere(dir, path.Base(e.path), e.target))
}

func linkError(e *entry, err error) error {
	for _, no := range []error{unix.ENOENT, unix.EPERM, unix.ENOTDIR, unix.ELOOP} {
		if errors.Is(err, no) {
			return refuse("bad_archive", e.path, "hard link to %q, which is no file before it", e.target)
		}
	}
	return err
}

func (t *tree) linkHere(dir int, name, target string) error {
	from, base, err := safepath.Plain(t.root).Parent(target)
	if err != nil {
		return err
	}
	defer closeFD(from)
	st, err := look(from, base)
	if err != nil {
		return err
	}
	if kindOf(&st) == typeWhiteout {
		return unix.ENOENT
	}
	return unix.Linkat(from, base, dir, name, 0)
}

func (t *tree) file(dir int, name string, e *entry, body io.Reader, also io.Writer) error {
	// The bits that a new file may have already, which saves a change later.
	fd, err := unix.Openat(dir, name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, e.mode&0o777)
	if err != nil {
		return err
	}
	defer closeFD(fd)
	f := &filling{fd: fd}
	if err := t.copy(f, body, also, e.size); err != nil {
		return err
	}
	return t.finish(f, e)
}

// finish gives a file of which all bytes came its length and its attributes.
func (t *tree) finish(f *filling, e *entry) error {
	if err := f.extend(); err != nil {
		return err
	}
	if err := t.attributes(f.fd, e); err != nil {
		return err
	}
	return setFileTime(f.fd, e.mtime)
}

// copy copies size bytes.
func (t *tree) copy(f *filling, body io.Reader, also io.Writer, size int64) error {
	for f.off < size {
		chunk, err := readChunk(body, t.buf, f.off, size)
		if err != nil {
			return err
		}
		if _, err := also.Write(chunk); err != nil {
			return err
		}
		if err := f.put(chunk); err != nil {
			return err
		}
	}
	return nil
}

// readChunk reads what comes at off of a file of size bytes, as much as fits.
func readChunk(body io.Reader, buf []byte, off, size int64) ([]byte, error) {
	n, err := io.ReadFull(body, buf[:min(int64(len(buf)), size-off)])
	if err != nil {
		return nil, fmt.Errorf("after %d of %d bytes: %w", off+int64(n), size, io.ErrUnexpectedEOF)
	}
	return buf[:n], nil
}

// filling is a new file whose bytes are coming, with holes for zeros.
type filling struct {
	fd  int
	off int64 // of the next byte
	end int64 // of what was written
}

func (f *filling) put(chunk []byte) error {
	at := f.off
	f.off += int64(len(chunk))
	if zero(chunk) {
		return nil
	}
	f.end = f.off
	return pwrite(f.fd, chunk, at)
}

// extend makes a hole at the end part of the file.
func (f *filling) extend() error {
	if f.end == f.off {
		return nil // a truncation to the size it has costs a journal's transaction
	}
	return unix.Ftruncate(f.fd, f.off)
}

func pwrite(fd int, p []byte, off int64) error {
	for len(p) > 0 {
		n, err := unix.Pwrite(fd, p, off)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		p, off = p[n:], off+int64(n)
	}
	return nil
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

// attributes changes what is not right already: a look is cheap, a change is a journal's
// transaction.
func (t *tree) attributes(fd int, e *entry) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	owned := st.Uid == e.uid+t.shift && st.Gid == e.gid+t.shift
	if !owned {
		if err := unix.Fchown(fd, int(e.uid+t.shift), int(e.gid+t.shift)); err != nil {
			return err
		}
	}
	if !owned || st.Mode&modeBits != e.mode { // after chown, which clears setuid
		if err := unix.Fchmod(fd, e.mode); err != nil {
			return err
		}
	}
	for name, value := range e.xattrs {
		err := unix.Fsetxattr(fd, name, value, 0)
		if errors.Is(err, unix.E2BIG) || errors.Is(err, unix.ERANGE) || errors.Is(err, unix.ENOSPC) {
			return refuse("world_invalid", e.path, "attribute %s of %d bytes does not fit the store's file system", name, len(value))
		}
		if err != nil {
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
	if t.lastWins && (errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR)) {
		if err := t.makeWay(p); err != nil {
			return -1, err
		}
		fd, err = safepath.Plain(t.root).Open(p, unix.O_PATH|unix.O_DIRECTORY)
	}
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

// makeWay puts a directory where something else is on the way to p.
func (t *tree) makeWay(p string) error {
	for i := range len(p) + 1 {
		if i < len(p) && p[i] != '/' {
			continue
		}
		at := p[:i]
		dir, base, err := safepath.Plain(t.root).Parent(at)
		if err != nil {
			return err
		}
		st, err := look(dir, base)
		if err == nil && kindOf(&st) != typeDir {
			err = t.remove(dir, base, at)
			closeFD(dir)
			if err != nil {
				return err
			}
			return t.add(&entry{path: at, kind: typeDir, mode: rootMode, mtime: epoch, opaque: true}, nil)
		}
		closeFD(dir)
		if err != nil {
			return err
		}
	}
	return nil
}

// remove takes away what a later entry replaces, with all below it.
func (t *tree) remove(dir int, base, p string) error {
	if t.replaced != nil {
		t.replaced(p)
	}
	closeFD(t.dir) // it may be below
	t.dir = -1
	t.forgetTimes(p)
	if err := removeAll(dir, base, 0); err != nil {
		return fmt.Errorf("replace %q: %w", p, err)
	}
	return nil
}

// forgetTimes forgets what was to be set of a directory that comes again or is gone; what
// was below one that is gone is passed over in the end.
func (t *tree) forgetTimes(p string) {
	t.times = slices.DeleteFunc(t.times, func(d dirTime) bool { return d.path == p })
}

func removeAll(dir int, name string, depth int) error {
	err := unix.Unlinkat(dir, name, 0)
	if !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM) {
		return err
	}
	if depth > maxDepth {
		return refuse("world_too_large", name, "deeper than %d directories", maxDepth)
	}
	fd, err := safepath.Child(dir, name, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer closeFD(fd)
	list, err := namesOf(fd)
	if err != nil {
		return err
	}
	for _, child := range list {
		if err := removeAll(fd, child, depth+1); err != nil {
			return err
		}
	}
	return unix.Unlinkat(dir, name, unix.AT_REMOVEDIR)
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

// setFileTime is setTime of an open file, with no name to look up.
func setFileTime(fd int, at time.Time) error {
	ts, err := unix.TimeToTimespec(at)
	if err != nil {
		return err
	}
	return unix.UtimesNanoAt(fd, "", []unix.Timespec{ts, ts}, unix.AT_EMPTY_PATH)
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
