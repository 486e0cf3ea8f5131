package files

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"io"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/paddock-run/paddock/internal/safepath"
	"github.com/paddock-run/paddock/sandbox"
)

// Write makes or replaces the file's contents. A final symlink is followed, inside the
// tree. The new contents are complete before they take the old ones' place, by a rename:
// a reader that breaks leaves the old, and nobody ever sees a part. An existing file keeps
// its owner and mode (less the set-id bits, unless root writes); a new one gets mode (0:
// 0644) whatever the umask. Other hard links to an existing file keep the old contents.
//
// Where the user may write the file but not its directory, as in a sticky one, the
// finished contents are copied into the file itself; then a full disk can cut it.
func (t *Tree) Write(ctx context.Context, as sandbox.User, name string, r io.Reader, mode uint32) (sandbox.FileInfo, error) {
	if err := checkAbs(name); err != nil {
		return sandbox.FileInfo{}, err
	}
	if strings.HasSuffix(name, "/") {
		return sandbox.FileInfo{}, fail(name, unix.EISDIR)
	}
	if err := cancelled(ctx, name); err != nil {
		return sandbox.FileInfo{}, err
	}
	w := &write{t: t, as: as, name: name, mode: mode & 0o7777, dir: -1, old: -1, temp: temp{fd: -1}}
	if mode == 0 {
		w.mode = 0o644
	}
	defer w.close()
	if err := t.as(as, w.prepare); err != nil {
		return sandbox.FileInfo{}, fail(name, err)
	}
	if err := w.temp.fill(ctx, name, r); err != nil {
		return sandbox.FileInfo{}, err
	}
	if err := w.commit(ctx); err != nil {
		return sandbox.FileInfo{}, fail(name, err)
	}
	return w.result, nil
}

// write is one Write on its way.
type write struct {
	t    *Tree
	as   sandbox.User
	name string
	mode uint32

	dir  int // the directory that holds the file
	base string
	old  int // the existing file as O_PATH, or -1
	was  unix.Stat_t
	// inPlace says that the directory may not be written.
	inPlace bool
	temp    temp
	result  sandbox.FileInfo
}

func (w *write) close() {
	w.temp.close()
	for _, fd := range []int{w.dir, w.old} {
		if fd >= 0 {
			closeFD(fd)
		}
	}
}

// prepare finds the place and makes the temporary file, so that what cannot work fails
// before the caller's bytes are read.
func (w *write) prepare(s *session) error {
	var err error
	if w.dir, w.base, err = w.t.paths().Target(w.name); err != nil {
		return err
	}
	if err := w.t.mayChange(w.dir, w.name); err != nil {
		return err
	}
	if w.old, err = safepath.Child(w.dir, w.base, unix.O_PATH); err != nil && !isErrno(err, unix.ENOENT) {
		return err
	}
	if w.old >= 0 {
		if err := w.checkOld(s); err != nil {
			return err
		}
	}
	if err := s.onDir(w.dir); err != nil {
		return err
	}
	w.temp, err = makeTemp(w.dir)
	if w.old >= 0 && isErrno(err, unix.EACCES, unix.EPERM) {
		w.inPlace = true
		w.temp, err = w.t.hiddenTemp(w.dir)
	}
	return err
}

// checkOld sees whether the existing file is one, and may be written by the user. It is
// asked, not tried: opening a lower layer's file for writing would copy it up.
func (w *write) checkOld(s *session) error {
	if err := unix.Fstat(w.old, &w.was); err != nil {
		return err
	}
	if err := onlyRegular(&w.was); err != nil {
		return err
	}
	if err := s.on(&w.was); err != nil {
		return err
	}
	return unix.Faccessat2(w.old, "", unix.W_OK, unix.AT_EMPTY_PATH|unix.AT_EACCESS)
}

func (w *write) commit(ctx context.Context) error {
	mode := w.mode
	if w.old >= 0 {
		mode = w.was.Mode & 0o7777
		if w.as.UID != 0 {
			mode &^= unix.S_ISUID | unix.S_ISGID
		}
	}
	if w.inPlace {
		return w.copyOver(ctx)
	}
	if err := w.t.as(w.as, func(s *session) error {
		if err := s.onDir(w.dir); err != nil {
			return err
		}
		if w.old < 0 {
			// The common case in one step.
			err := w.temp.settle(mode)
			if err == nil {
				err = w.temp.link(w.dir, w.base)
			}
			if !isErrno(err, unix.EEXIST) {
				return err
			}
		}
		return w.temp.linkAside(w.dir)
	}); err != nil {
		return err
	}
	if w.temp.name == "" { // linked in its place
		return w.describe()
	}
	err := w.replace(mode)
	if w.old >= 0 && isErrno(err, unix.EACCES, unix.EPERM) {
		return w.copyOver(ctx)
	}
	return err
}

// replace gives the linked temporary file its owner and mode and renames it.
func (w *write) replace(mode uint32) error {
	if w.old >= 0 && w.t.keepsOwner(&w.was) {
		// By descriptor, of a file that this call has made, and as the daemon: the user may
		// not give files away, but neither does a write take them.
		if err := unix.Fchownat(w.temp.fd, "", int(w.was.Uid), int(w.was.Gid), unix.AT_EMPTY_PATH); err != nil {
			return err
		}
	}
	if err := w.temp.settle(mode); err != nil {
		return err
	}
	err := w.t.as(w.as, func(s *session) error {
		if err := s.onDir(w.dir); err != nil {
			return err
		}
		return unix.Renameat(w.dir, w.temp.name, w.dir, w.base)
	})
	if err != nil {
		return err
	}
	w.temp.name = ""
	return w.describe()
}

// keepsOwner says whether the owner of an existing file is one that may be given.
func (t *Tree) keepsOwner(st *unix.Stat_t) bool {
	return st.Uid-t.ids.HostID < t.ids.Size && st.Gid-t.ids.HostID < t.ids.Size
}

// copyOver writes the finished contents into the existing file.
func (w *write) copyOver(ctx context.Context) error {
	var fd int
	err := w.t.as(w.as, func(s *session) error {
		var st unix.Stat_t
		var err error
		fd, err = s.openRegular(w.old, unix.O_WRONLY|unix.O_TRUNC, &st)
		return err
	})
	if err != nil {
		return err
	}
	defer closeFD(fd)
	if _, err := copyFrom(ctx, w.name, &fdWriter{fd: fd}, w.temp.fd, 0, w.temp.size); err != nil {
		return causeOf(err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	w.result = w.t.info(path.Base(w.name), &st)
	return nil
}

func (w *write) describe() error {
	var st unix.Stat_t
	if err := unix.Fstat(w.temp.fd, &st); err != nil {
		return err
	}
	w.result = w.t.info(path.Base(w.name), &st)
	return nil
}

// temp is a file that is not in its place yet: without a name where the file system can
// do that, else under a name of its own.
type temp struct {
	fd   int // to write, and once filled to read
	dir  int // of name; not owned
	name string
	size int64
}

// makeTemp makes a temporary file in dir, owned by the session's user.
func makeTemp(dir int) (temp, error) {
	fd, err := unix.Openat(dir, ".", unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err == nil {
		return temp{fd: fd, dir: dir}, nil
	}
	if !isErrno(err, unix.EOPNOTSUPP, unix.EISDIR, unix.ENOENT) {
		return temp{fd: -1}, err
	}
	name := tempName()
	fd, err = unix.Openat(dir, name, unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return temp{fd: -1}, err
	}
	return temp{fd: fd, dir: dir, name: name}, nil
}

// hiddenTemp makes a file without a name in dir as the daemon, on a thread of its own:
// only its contents are ever seen.
func (t *Tree) hiddenTemp(dir int) (temp, error) {
	type made struct {
		temp
		err error
	}
	done := make(chan made, 1)
	go func() {
		fd, err := unix.Openat(dir, ".", unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
		done <- made{temp{fd: fd, dir: dir}, err}
	}()
	m := <-done
	return m.temp, m.err
}

// tempName is a name that no other file has. It starts with a dot and says whose it is.
func tempName() string {
	var b [12]byte
	_, _ = rand.Read(b[:]) // never fails
	return ".paddock-" + hex.EncodeToString(b[:])
}

// fill writes r's bytes. Afterwards nothing has the file open for writing, so that a
// program can be run as soon as it has its name.
func (f *temp) fill(ctx context.Context, name string, r io.Reader) error {
	buf := chunks.Get().(*[]byte)
	defer chunks.Put(buf)
	for {
		if err := cancelled(ctx, name); err != nil {
			return err
		}
		n, err := r.Read(*buf)
		if n > 0 {
			if _, err := (&fdWriter{fd: f.fd}).Write((*buf)[:n]); err != nil {
				return fail(name, err)
			}
			f.size += int64(n)
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return callers("read", name, err)
		}
	}
	return fail(name, f.seal())
}

// seal exchanges the descriptor for one that cannot write.
func (f *temp) seal() error {
	fd, err := safepath.Reopen(f.fd, unix.O_RDONLY)
	if err != nil {
		return err
	}
	closeFD(f.fd)
	f.fd = fd
	return nil
}

// settle sets the final mode.
func (f *temp) settle(mode uint32) error { return unix.Fchmod(f.fd, mode) }

// link gives the file a name in dir; EEXIST where there is one.
func (f *temp) link(dir int, name string) error {
	if f.name == "" {
		return unix.Linkat(unix.AT_FDCWD, safepath.ProcPath(f.fd), dir, name, unix.AT_SYMLINK_FOLLOW)
	}
	err := unix.Renameat2(dir, f.name, dir, name, unix.RENAME_NOREPLACE)
	if err == nil {
		f.name = ""
	}
	return err
}

// linkAside gives the file a temporary name in dir.
func (f *temp) linkAside(dir int) error {
	if f.name != "" {
		return nil
	}
	name := tempName()
	if err := f.link(dir, name); err != nil {
		return err
	}
	f.name = name
	return nil
}

// close drops the file, and its temporary name if it still has one.
func (f *temp) close() {
	if f.fd < 0 {
		return
	}
	if f.name != "" {
		// As the daemon: the user may have lost the right meanwhile. It unlinks a random
		// name in an open directory, never what that name leads to.
		_ = unix.Unlinkat(f.dir, f.name, 0)
	}
	closeFD(f.fd)
	f.fd = -1
}

// fdWriter writes to an open file.
type fdWriter struct{ fd int }

// Write writes all of b.
func (w *fdWriter) Write(b []byte) (int, error) {
	done := 0
	for done < len(b) {
		n, err := unix.Write(w.fd, b[done:])
		if isErrno(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return done, err
		}
		done += n
	}
	return done, nil
}

// causeOf undoes callers for a writer that is the tree itself.
func causeOf(err error) error {
	if e, ok := err.(*sandbox.FileError); ok && e.Err != nil { //nolint:errorlint // copyFrom returns it bare
		return e.Err
	}
	return err
}
