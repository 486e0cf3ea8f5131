package overlay

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"maps"
	"os"
	"slices"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/paddock-run/paddock/internal/safepath"
)

// A split is what a layer's directory does not tell of the tar that it came from, so that
// the two together give the tar back byte by byte: headers, padding and whatever was not
// unpacked, and, in between, which file's bytes follow. zstd around the magic, the layer's
// diffID (two layers may differ in their files' bytes alone) and records:
//
//	'r' length bytes          bytes of the tar
//	'f' size length path      the bytes of that file of the layer
//	'e'                       the end
//
// Lengths are uvarints.
const splitMagic = "paddock-split/1\n"

const (
	recordRaw  = 'r'
	recordFile = 'f'
	recordEnd  = 'e'
	// maxRaw bounds the bytes of one record.
	maxRaw = 64 << 10
)

// splitter reads a tar for archive/tar, which reads exactly what it needs, and writes the
// tar's split.
type splitter struct {
	r    io.Reader
	out  *bufio.Writer
	zip  *zstd.Encoder
	hash hash.Hash
	raw  []byte
	// body: a file's bytes are read, which the layer's directory will have.
	body bool
	// files are the paths whose bytes the split takes from the directory.
	files map[string]bool
	// spoiled: the directory does not have them any more, so that the split is no use.
	spoiled bool
	err     error
}

func newSplitter(r io.Reader, out io.Writer, diffID string) (*splitter, error) {
	s := &splitter{r: r, hash: sha256.New(), files: map[string]bool{}, raw: make([]byte, 0, maxRaw)}
	var err error
	s.zip, err = zstd.NewWriter(io.MultiWriter(out, s.hash), zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest))
	if err != nil {
		return nil, err
	}
	s.out = bufio.NewWriterSize(s.zip, 64<<10)
	s.note([]byte(splitMagic + diffID))
	return s, nil
}

// Read gives the tar's bytes.
func (s *splitter) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if !s.body {
		for b := p[:n]; len(b) > 0; {
			k := min(len(b), maxRaw-len(s.raw))
			s.raw, b = append(s.raw, b[:k]...), b[k:]
			if len(s.raw) == maxRaw {
				s.flush()
			}
		}
	}
	return n, err
}

func (s *splitter) note(b []byte) {
	if s.err == nil {
		_, s.err = s.out.Write(b)
	}
}

func (s *splitter) number(n int) { s.note(binary.AppendUvarint(nil, uint64(n))) }

func (s *splitter) flush() {
	if len(s.raw) == 0 {
		return
	}
	s.note([]byte{recordRaw})
	s.number(len(s.raw))
	s.note(s.raw)
	s.raw = s.raw[:0]
}

// file says that the bytes of e come next, and gives the reader for them.
func (s *splitter) file(e *entry, r io.Reader) io.Reader {
	if e.size == 0 {
		return r
	}
	s.flush()
	s.note([]byte{recordFile})
	s.note(binary.AppendUvarint(nil, uint64(e.size)))
	s.number(len(e.path))
	s.note([]byte(e.path))
	s.files[e.path] = true
	return &splitBody{s, r}
}

type splitBody struct {
	s *splitter
	r io.Reader
}

func (b *splitBody) Read(p []byte) (int, error) {
	b.s.body = true
	defer func() { b.s.body = false }()
	return b.r.Read(p)
}

// replaced says that a path is not any more what the tar had there.
func (s *splitter) replaced(p string) {
	if s.files[p] {
		s.spoiled = true
		return
	}
	for known := range s.files { // a directory's; rare, and then there are few
		if len(known) > len(p) && known[:len(p)] == p && known[len(p)] == '/' {
			s.spoiled = true
			return
		}
	}
}

// done ends the split and answers its digest in hex.
func (s *splitter) done() (string, error) {
	s.flush()
	s.note([]byte{recordEnd})
	if err := errors.Join(s.err, s.out.Flush(), s.zip.Close()); err != nil {
		return "", err
	}
	return hex.EncodeToString(s.hash.Sum(nil)), nil
}

// assemble writes the tar of a split and a layer's directory. ErrCorrupt says that the
// directory does not have what the split speaks of; whether the bytes are right, the tar's
// digest tells.
func assemble(ctx context.Context, split io.Reader, diffID string, root int, w io.Writer) error {
	z, err := zstd.NewReader(split, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(zstdMemory))
	if err != nil {
		return err
	}
	defer z.Close()
	a := &assembler{in: bufio.NewReaderSize(z, 64<<10), root: root, w: w}
	magic := make([]byte, len(splitMagic)+len(diffID))
	if _, err := io.ReadFull(a.in, magic); err != nil || string(magic) != splitMagic+diffID {
		return ErrCorrupt
	}
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		more, err := a.record()
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return ErrCorrupt
		}
		if err != nil || !more {
			return err
		}
	}
}

type assembler struct {
	in   *bufio.Reader
	root int
	w    io.Writer
}

func (a *assembler) record() (more bool, err error) {
	kind, err := a.in.ReadByte()
	if err != nil {
		return false, err
	}
	switch kind {
	case recordEnd:
		return false, nil
	case recordRaw:
		n, err := a.length(maxRaw)
		if err != nil {
			return false, err
		}
		_, err = io.CopyN(a.w, a.in, n)
		return true, err
	case recordFile:
		size, err := a.length(1 << 62)
		if err != nil {
			return false, err
		}
		n, err := a.length(maxPath)
		if err != nil {
			return false, err
		}
		p := make([]byte, n)
		if _, err := io.ReadFull(a.in, p); err != nil {
			return false, err
		}
		return true, a.file(string(p), size)
	}
	return false, ErrCorrupt
}

func (a *assembler) length(limit uint64) (int64, error) {
	n, err := binary.ReadUvarint(a.in)
	if err == nil && n > limit {
		err = ErrCorrupt
	}
	return int64(n), err
}

func (a *assembler) file(p string, size int64) error {
	fd, err := safepath.Plain(a.root).Open(p, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY)
	if err != nil {
		return fmt.Errorf("%w: %q: %w", ErrCorrupt, p, err)
	}
	f := os.NewFile(uintptr(fd), p)
	defer func() { _ = f.Close() }()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() || info.Size() != size {
		return fmt.Errorf("%w: %q is another file", ErrCorrupt, p)
	}
	n, err := io.Copy(a.w, io.LimitReader(f, size))
	if err == nil && n != size {
		err = ErrCorrupt
	}
	return err
}

// attributes digests a tree without the bytes of its files.
type attributes struct{ hash hash.Hash }

func (a *attributes) add(e *entry, _ io.Reader) error {
	var b []byte
	text := func(v string) {
		b = binary.AppendUvarint(b, uint64(len(v)))
		b = append(b, v...)
	}
	text(e.path)
	text(e.kind)
	text(e.target)
	for _, v := range []uint64{uint64(e.mode), uint64(e.uid), uint64(e.gid), uint64(e.size), uint64(e.mtime.Unix()), uint64(e.mtime.Nanosecond())} {
		b = binary.AppendUvarint(b, v)
	}
	if e.opaque {
		b = append(b, 'o')
	}
	for _, name := range slices.Sorted(maps.Keys(e.xattrs)) {
		text(name)
		text(string(e.xattrs[name]))
	}
	a.hash.Write(binary.AppendUvarint(nil, uint64(len(b))))
	a.hash.Write(b)
	return nil
}

func (a *attributes) digest() string { return hex.EncodeToString(a.hash.Sum(nil)) }
