package overlay

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"

	"golang.org/x/sys/unix"
)

// met is one entry of the upper directory beside what the world has there.
type met struct {
	path  string
	dir   int // that has it in the upper
	name  string
	st    unix.Stat_t
	below *lowerNode // nil: the world has nothing
	old   string     // the kind of what the world has
	// gone: the world's is deleted. again: one more name of a file that came before.
	gone  bool
	again bool
	id    inode // of a file of several names

	entry entry
	// same: as the world has it, but for a file's bytes unless they were read.
	same bool
	// hides: a directory made anew where the world has one.
	hides bool
	// cut: it has more attributes than are read.
	cut    bool
	read   bool // data and digest are a file's whole bytes
	data   []byte
	digest [sha256.Size]byte
	err    error
}

// small says that all its bytes are read at once.
func (m *met) small() bool {
	return m.st.Mode&unix.S_IFMT == unix.S_IFREG && m.st.Size <= batchSmall && !m.again && !m.gone
}

// describe notes what the guest's tree has.
func (m *met) describe(e *entry, owner func(uint32) uint32, err error) error {
	if errors.Is(err, errXattrs) {
		e.xattrs, m.cut, err = nil, true, nil
	}
	if err != nil {
		return err
	}
	m.entry = *e
	m.entry.uid, m.entry.gid = owner(e.uid), owner(e.gid)
	return nil
}

// directory reads an open directory and compares it with the world's, which may be nil.
func (m *met) directory(fd int, owner func(uint32) uint32, old *entry) error {
	e, err := describe(fd, &m.st)
	if err := m.describe(e, owner, err); err != nil {
		return err
	}
	m.same = old != nil && sameAttributes(&m.entry, old)
	return nil
}

// learn reads an entry that is no directory; buf is room for the world's bytes, if any yet.
func (m *met) learn(owner func(uint32) uint32, buf []byte) []byte {
	if m.gone || m.entry.kind == typeDir {
		return buf
	}
	if m.again { // all but the owner was told already
		m.err = m.describe(entryOf(&m.st), owner, nil)
		return buf
	}
	e, fd, err := describeAt(m.dir, m.name, &m.st)
	defer closeFD(fd)
	if m.err = m.describe(e, owner, err); m.err != nil {
		return buf
	}
	if m.err = m.compare(); m.err != nil || !m.small() {
		return buf
	}
	if m.err = readWhole(fd, m.data); m.err != nil {
		return buf
	}
	m.read = true
	if m.same {
		if buf == nil {
			buf = make([]byte, batchSmall)
		}
		if m.same, m.err = m.sameAsWorld(buf[:len(m.data)]); m.same || m.err != nil {
			return buf
		}
	}
	m.digest = sha256.Sum256(m.data)
	return buf
}

// compare sees whether all but the bytes is as in the world. What has several names is
// never the same, since the names belong together.
func (m *met) compare() error {
	e := &m.entry
	if m.old != e.kind || m.id != (inode{}) {
		return nil
	}
	old := entryOf(&m.below.st)
	if old.mode != e.mode || old.uid != e.uid || old.gid != e.gid || old.size != e.size {
		return nil
	}
	if e.kind != typeFile && e.kind != typeSymlink {
		return nil
	}
	old, err := m.below.describe()
	if err != nil {
		return fmt.Errorf("the world's: %w", err)
	}
	m.same = old.target == e.target && sameAttributes(e, old)
	return nil
}

func sameAttributes(a, b *entry) bool {
	return a.mode == b.mode && a.uid == b.uid && a.gid == b.gid && maps.EqualFunc(a.xattrs, b.xattrs, bytes.Equal)
}

// sameAsWorld compares bytes that were read with the world's.
func (m *met) sameAsWorld(buf []byte) (bool, error) {
	fd, err := openSame(m.below.dir, m.below.name, &m.below.st)
	if err != nil {
		return false, fmt.Errorf("the world's: %w", err)
	}
	defer closeFD(fd)
	if err := readWhole(fd, buf); err != nil {
		return false, fmt.Errorf("the world's: %w", err)
	}
	return bytes.Equal(m.data, buf), nil
}

// readWhole fills data from a file that is as long.
func readWhole(fd int, data []byte) error {
	n, err := (&fdReader{fd: fd}).ReadAt(data, 0)
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("%d of %d bytes: %w", n, len(data), io.ErrUnexpectedEOF)
	}
	return err
}

// sameBytes compares a large file with the world's of the same size.
func (m *met) sameBytes(ctx context.Context) (bool, error) {
	if m.entry.size > sparseBytes {
		return false, nil
	}
	a, err := openSame(m.dir, m.name, &m.st)
	if err != nil {
		return false, err
	}
	defer closeFD(a)
	b, err := openSame(m.below.dir, m.below.name, &m.below.st)
	if err != nil {
		return false, fmt.Errorf("the world's: %w", err)
	}
	defer closeFD(b)
	return equalFiles(ctx, &fdReader{fd: a}, &fdReader{fd: b})
}

func equalFiles(ctx context.Context, a, b io.Reader) (bool, error) {
	bufA, bufB := make([]byte, 64<<10), make([]byte, 64<<10)
	for ctx.Err() == nil {
		n, errA := io.ReadFull(a, bufA)
		m, errB := io.ReadFull(b, bufB)
		if n != m || !bytes.Equal(bufA[:n], bufB[:m]) {
			return false, nil
		}
		if errA != nil || errB != nil {
			eof := func(err error) bool {
				return err == nil || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
			}
			if !eof(errA) {
				return false, errA
			}
			if !eof(errB) {
				return false, errB
			}
			return true, nil
		}
	}
	return false, context.Cause(ctx)
}

func (m *met) change() Change {
	e := &m.entry
	change := Change{
		Path: m.path, Kind: Created, Type: e.kind, Mode: e.mode, UID: e.uid, GID: e.gid, Size: e.size,
		Target: e.target, Xattrs: e.xattrs, ModTime: e.mtime, Offset: -1,
	}
	if e.kind == typeChar || e.kind == typeBlock {
		change.Rdev = m.st.Rdev
	}
	switch m.old {
	case "":
	case e.kind:
		change.Kind = Modified
	default:
		change.Kind = TypeChanged
	}
	return change
}
