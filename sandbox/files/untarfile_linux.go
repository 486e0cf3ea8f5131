package files

import (
	"archive/tar"
	"bytes"
	"io"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// file makes a regular file: its contents are complete before it has its name.
func (u *unpacker) file(name string, h *tar.Header, in *archive) error {
	mode := uint32(h.Mode) & 0o1777
	sparse := isSparse(h)
	if h.Size <= smallFile {
		data := make([]byte, h.Size)
		if _, err := io.ReadFull(in.tar, data); err != nil {
			return in.fault(err)
		}
		return u.t.as(u.as, func(s *session) error {
			f, dir, base, err := u.newFile(s, name)
			if err != nil {
				return err
			}
			defer f.close()
			if err := f.write(bytes.NewReader(data), sparse); err != nil {
				return err
			}
			return f.place(dir, base, mode, h.ModTime)
		})
	}
	var f temp
	var dir int
	var base string
	if err := u.t.as(u.as, func(s *session) (err error) {
		f, dir, base, err = u.newFile(s, name)
		return err
	}); err != nil {
		return err
	}
	defer f.close()
	if err := f.write(&entryReader{ctx: u.ctx, in: in}, sparse); err != nil {
		return err
	}
	return u.t.as(u.as, func(s *session) error {
		if err := s.onDir(dir); err != nil {
			return err
		}
		return f.place(dir, base, mode, h.ModTime)
	})
}

func (u *unpacker) newFile(s *session, name string) (f temp, dir int, base string, err error) {
	dir, base, err = u.in(s, name)
	if err != nil {
		return temp{fd: -1}, -1, "", err
	}
	f, err = makeTemp(dir)
	return f, dir, base, err
}

// place gives a complete file its mode, time and name.
func (f *temp) place(dir int, base string, mode uint32, mtime time.Time) error {
	if err := f.seal(); err != nil { // while the mode lets the user
		return err
	}
	if err := f.settle(mode); err != nil {
		return err
	}
	at := unix.NsecToTimespec(clampTime(mtime).UnixNano())
	if err := unix.UtimesNanoAt(f.fd, "", []unix.Timespec{at, at}, unix.AT_EMPTY_PATH); err != nil {
		return err
	}
	err := f.link(dir, base)
	if !isErrno(err, unix.EEXIST) {
		return err
	}
	if err := f.linkAside(dir); err != nil {
		return err
	}
	if err := unix.Renameat(dir, f.name, dir, base); err != nil {
		return err
	}
	f.name = ""
	return nil
}

// clampTime keeps hostile times within what all file systems hold.
func clampTime(t time.Time) time.Time {
	if t.Before(time.Unix(0, 0)) {
		return time.Unix(0, 0)
	}
	if most := time.Unix(1<<32, 0); t.After(most) {
		return most
	}
	return t
}

// write fills the file; with sparse it leaves holes for blocks of zeros.
func (f *temp) write(r io.Reader, sparse bool) error {
	buf := chunks.Get().(*[]byte)
	defer chunks.Put(buf)
	for {
		n, end, err := fill(r, *buf)
		if err != nil {
			return err
		}
		if n == 0 && end {
			break
		}
		f.size += int64(n)
		if sparse && allZero((*buf)[:n]) {
			if _, err := unix.Seek(f.fd, int64(n), unix.SEEK_CUR); err != nil {
				return err
			}
			continue
		}
		if _, err := (&fdWriter{fd: f.fd}).Write((*buf)[:n]); err != nil {
			return err
		}
	}
	if sparse {
		return unix.Ftruncate(f.fd, f.size)
	}
	return nil
}

// fill reads until b is full or r ends. Unlike io.ReadFull it does not take a reader that
// was cut off, which says io.ErrUnexpectedEOF as well, for one that has ended.
func fill(r io.Reader, b []byte) (n int, end bool, err error) {
	for n < len(b) {
		m, err := r.Read(b[n:])
		n += m
		if err == io.EOF { // an io.Reader returns it bare; wrapped, it is a failure
			return n, true, nil
		}
		if err != nil {
			return n, false, err
		}
	}
	return n, false, nil
}

func allZero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

func isSparse(h *tar.Header) bool {
	if h.Typeflag == tar.TypeGNUSparse {
		return true
	}
	for k := range h.PAXRecords {
		if strings.HasPrefix(k, "GNU.sparse.") {
			return true
		}
	}
	return false
}
