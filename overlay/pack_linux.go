package overlay

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

const (
	// sparseBytes and sparseTotal are from where a file is hashed by its data alone: its
	// size, or that of it and all files before it that are not larger than that. Both are about content, so equal trees
	// have equal digests, and a tree of holes costs no more than its data.
	sparseBytes = 4 << 30
	sparseTotal = 16 << 30
	// sparsePrefix marks a digest over size and non-zero blocks instead of over all bytes.
	sparsePrefix = "sparse:"
	sparseBlock  = 4096
	// maxVector is how many pieces the kernel takes in one write.
	maxVector = 1024
)

// pack is the file that a capture's bytes go to; without a path it only counts.
type pack struct {
	path string
	file *os.File
	// passing: it need not outlive a crash.
	passing bool
	max     int64
	off     int64
	last    [][]byte // of the small files before off, not written yet
	behind  int64    // the bytes of last
	buf     []byte
	hashed  int64
}

func newPack(p string, limit int64) *pack {
	if limit == 0 {
		limit = DefaultCaptureBytes
	}
	return &pack{path: p, max: limit}
}

// begin makes the file, which a capture without bytes does not need.
func (k *pack) begin() error {
	if k.file != nil {
		return nil
	}
	f, err := os.CreateTemp(filepath.Dir(k.path), ".pack-*")
	if err != nil {
		return fmt.Errorf("make the pack: %w", err)
	}
	k.file = f
	return nil
}

// whole says whether the next file, of that size, is hashed by all its bytes.
func (k *pack) whole(size int64) bool {
	if size <= sparseBytes && k.hashed <= sparseTotal {
		k.hashed += size
	}
	return size <= sparseBytes && k.hashed <= sparseTotal
}

// place is where a file of that size goes, -1 when it does not fit.
func (k *pack) place(size int64) (int64, error) {
	if k.path == "" || size > k.max-k.off {
		return -1, nil
	}
	if size > 0 {
		if err := k.begin(); err != nil {
			return -1, err
		}
	}
	return k.off, nil
}

// keep stores the bytes of a file that was hashed already, which must stay until flush;
// offset is -1 when they do not fit.
func (k *pack) keep(data []byte) (offset int64, err error) {
	offset, err = k.place(int64(len(data)))
	if offset < 0 || err != nil {
		return -1, err
	}
	if zero(data) { // a hole
		err = k.flush()
		k.off += int64(len(data))
		return offset, err
	}
	k.last = append(k.last, data)
	k.behind += int64(len(data))
	k.off += int64(len(data))
	return offset, nil
}

// flush writes what keep was given.
func (k *pack) flush() error {
	all := k.last
	for len(k.last) > 0 {
		some := k.last[:min(len(k.last), maxVector)]
		n, err := unix.Pwritev(int(k.file.Fd()), some, k.off-k.behind)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err == nil && n == 0 {
			err = io.ErrShortWrite
		}
		if err != nil {
			return fmt.Errorf("write the pack: %w", err)
		}
		k.behind -= int64(n)
		for n > 0 {
			part := min(n, len(k.last[0]))
			if k.last[0] = k.last[0][part:]; len(k.last[0]) == 0 {
				k.last = k.last[1:]
			}
			n -= part
		}
	}
	clear(all)
	k.last = all[:0]
	return nil
}

// add hashes a file and keeps its bytes when they fit; offset is -1 when not.
func (k *pack) add(ctx context.Context, f *fdReader, size int64, whole bool) (digest string, offset int64, err error) {
	if k.buf == nil {
		k.buf = make([]byte, 256<<10)
	}
	if !whole {
		digest, err = k.sparse(ctx, f, size)
		return digest, -1, err
	}
	if offset, err = k.place(size); err != nil {
		return "", -1, err
	}
	if offset >= 0 {
		if err := k.flush(); err != nil {
			return "", -1, err
		}
	}
	h := sha256.New()
	for done := int64(0); done < size; {
		if ctx.Err() != nil {
			return "", -1, context.Cause(ctx)
		}
		n, err := io.ReadFull(f, k.buf[:min(int64(len(k.buf)), size-done)])
		if err != nil {
			return "", -1, fmt.Errorf("read %d of %d bytes: %w", done+int64(n), size, io.ErrUnexpectedEOF)
		}
		h.Write(k.buf[:n])
		if offset >= 0 && !zero(k.buf[:n]) {
			if _, err := k.file.WriteAt(k.buf[:n], offset+done); err != nil {
				return "", -1, fmt.Errorf("write the pack: %w", err)
			}
		}
		done += int64(n)
	}
	if offset >= 0 {
		k.off += size
	}
	return hex.EncodeToString(h.Sum(nil)), offset, nil
}

// sparse hashes a file's size and its non-zero blocks.
func (k *pack) sparse(ctx context.Context, f *fdReader, size int64) (string, error) {
	h := sha256.New()
	_, _ = fmt.Fprintf(h, "%d\n", size)
	for off := int64(0); off < size; {
		start, err := unix.Seek(f.fd, off, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break
		}
		if err != nil {
			return "", err
		}
		end, err := unix.Seek(f.fd, start, unix.SEEK_HOLE)
		if err != nil {
			return "", err
		}
		off = start - start%sparseBlock
		for end = min(end, size); off < end; {
			if ctx.Err() != nil {
				return "", context.Cause(ctx)
			}
			n, err := f.ReadAt(k.buf[:min(int64(len(k.buf)), size-off)], off)
			if n == 0 {
				return "", fmt.Errorf("read at %d: %w", off, err)
			}
			hashBlocks(h, k.buf[:n], off)
			off += int64(n)
		}
	}
	return sparsePrefix + hex.EncodeToString(h.Sum(nil)), nil
}

func hashBlocks(h hash.Hash, b []byte, off int64) {
	for len(b) > 0 {
		n := min(len(b), sparseBlock)
		if !zero(b[:n]) {
			_, _ = fmt.Fprintf(h, "%d %d\n", off, n)
			h.Write(b[:n])
		}
		b, off = b[n:], off+int64(n)
	}
}

// seal puts the pack at its path.
func (k *pack) seal() error {
	if k.file == nil {
		return nil
	}
	err := errors.Join(k.flush(), k.file.Truncate(k.off))
	if err == nil && !k.passing {
		err = k.file.Sync()
	}
	if err = errors.Join(err, k.file.Close()); err == nil {
		err = os.Rename(k.file.Name(), k.path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("seal the pack: %w", err), os.Remove(k.file.Name()))
	}
	k.file = nil
	if k.passing {
		return nil
	}
	return syncDir(filepath.Dir(k.path))
}

// discard removes a pack that was not sealed.
func (k *pack) discard() {
	if k.file != nil {
		_ = k.file.Close()
		_ = os.Remove(k.file.Name())
	}
}
