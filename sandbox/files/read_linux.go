package files

import (
	"container/heap"
	"context"
	"io"
	"path"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/paddock-run/paddock/internal/safepath"
	"github.com/paddock-run/paddock/sandbox"
)

// chunk is how much is moved at a time; between chunks the context is looked at.
const chunk = 256 << 10

var chunks = sync.Pool{New: func() any { b := make([]byte, chunk); return &b }}

// Read copies at most max bytes from offset off to w (max < 0: all there were when it was
// opened). A file that shrinks meanwhile ends early.
func (t *Tree) Read(ctx context.Context, as sandbox.User, name string, w io.Writer, off, max int64) (sandbox.FileInfo, error) {
	if err := checkAbs(name); err != nil {
		return sandbox.FileInfo{}, err
	}
	if off < 0 {
		return sandbox.FileInfo{}, fail(name, unix.EINVAL)
	}
	var fd int
	var st unix.Stat_t
	err := t.as(as, func(s *session) error {
		at, err := t.paths().Open(name, unix.O_PATH)
		if err != nil {
			return err
		}
		defer closeFD(at)
		fd, err = s.openRegular(at, unix.O_RDONLY, &st)
		return err
	})
	if err != nil {
		return sandbox.FileInfo{}, fail(name, err)
	}
	defer closeFD(fd)
	n := st.Size - off
	if max >= 0 {
		n = min(n, max)
	}
	if _, err := copyFrom(ctx, name, w, fd, off, n); err != nil {
		return sandbox.FileInfo{}, err
	}
	return t.info(path.Base(name), &st), nil
}

// copyFrom copies n bytes from offset off of an open file, fewer where it ends before.
func copyFrom(ctx context.Context, name string, w io.Writer, fd int, off, n int64) (copied int64, err error) {
	buf := chunks.Get().(*[]byte)
	defer chunks.Put(buf)
	for copied < n {
		if err := cancelled(ctx, name); err != nil {
			return copied, err
		}
		got, err := unix.Pread(fd, (*buf)[:min(chunk, n-copied)], off+copied)
		if isErrno(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return copied, fail(name, err)
		}
		if got == 0 {
			break
		}
		if _, err := w.Write((*buf)[:got]); err != nil {
			return copied, callers("write", name, err)
		}
		copied += int64(got)
	}
	return copied, nil
}

const (
	// maxListed bounds List whatever the caller asks.
	maxListed = 100_000
	// maxNames bounds how many names of one directory are looked at: more than any
	// tmpfs of a sandbox holds, but a directory that grows while it is read has no end.
	maxNames = 8 << 20
)

// List lists a directory in byte order, at most max entries (max <= 0: the most there may
// be, 100,000). Entries that vanish meanwhile are left out.
func (t *Tree) List(ctx context.Context, as sandbox.User, name string, max int) (entries []sandbox.FileInfo, more bool, err error) {
	if err := checkAbs(name); err != nil {
		return nil, false, err
	}
	if max <= 0 || max > maxListed {
		max = maxListed
	}
	err = t.as(as, func(s *session) error {
		at, err := t.paths().Open(name, unix.O_PATH)
		if err != nil {
			return err
		}
		defer closeFD(at)
		dir, err := s.openDir(at)
		if err != nil {
			return err
		}
		defer closeFD(dir)
		var names []string
		names, more, err = firstNames(ctx, dir, max)
		if err != nil {
			return err
		}
		entries, err = t.describeAll(at, names)
		return err
	})
	if err != nil {
		return nil, false, fail(name, err)
	}
	return entries, more, nil
}

func (t *Tree) describeAll(dir int, names []string) ([]sandbox.FileInfo, error) {
	entries := make([]sandbox.FileInfo, 0, len(names))
	for _, n := range names {
		fd, err := safepath.Child(dir, n, unix.O_PATH)
		if isErrno(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return nil, err
		}
		info, err := t.describe(fd, n)
		closeFD(fd)
		if err != nil {
			return nil, err
		}
		entries = append(entries, info)
	}
	return entries, nil
}

// firstNames returns the first max names in byte order, in memory for max names.
func firstNames(ctx context.Context, dir, max int) (names []string, more bool, err error) {
	var top lastFirst
	list := lister{fd: dir}
	for seen := 0; ; seen++ {
		name, err := list.next(ctx)
		if err != nil {
			return nil, false, err
		}
		if name == "" {
			break
		}
		if seen == maxNames {
			return nil, false, refuse("too_large", "", "the directory has too many entries")
		}
		switch {
		case len(top) < max:
			heap.Push(&top, name)
		case name < top[0]:
			top[0] = name
			heap.Fix(&top, 0)
			more = true
		default:
			more = true
		}
	}
	slices.Sort(top)
	return top, more, nil
}

// lastFirst is a heap with the greatest name on top.
type lastFirst []string

func (h lastFirst) Len() int           { return len(h) }
func (h lastFirst) Less(i, j int) bool { return h[i] > h[j] }
func (h lastFirst) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }

// Push is for package heap.
func (h *lastFirst) Push(x any) { *h = append(*h, x.(string)) }

// Pop is for package heap.
func (h *lastFirst) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}

// lister reads the names of an open directory, without "." and "..".
type lister struct {
	fd    int
	buf   []byte
	names []string
}

// next returns the next name, "" at the end.
func (l *lister) next(ctx context.Context) (string, error) {
	for len(l.names) == 0 {
		if err := cancelled(ctx, ""); err != nil {
			return "", err
		}
		if l.buf == nil {
			l.buf = make([]byte, 32<<10)
		}
		n, err := unix.Getdents(l.fd, l.buf)
		if isErrno(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return "", err
		}
		if n == 0 {
			return "", nil
		}
		_, _, l.names = unix.ParseDirent(l.buf[:n], -1, l.names[:0])
	}
	name := l.names[0]
	l.names = l.names[1:]
	return name, nil
}

// rewind starts again from the directory as it is now.
func (l *lister) rewind() error {
	l.names = nil
	_, err := unix.Seek(l.fd, 0, unix.SEEK_SET)
	return err
}
