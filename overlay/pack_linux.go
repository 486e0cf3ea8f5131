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
)

// pack is the file that a capture's bytes go to; without a path it only counts.
type pack struct {
	path   string
	file   *os.File
	max    int64
	off    int64
	buf    []byte
	hashed int64
}

func newPack(p string, limit int64) *pack {
	if limit == 0 {
		limit = DefaultCaptureBytes
	}
	return &pack{path: p, max: limit, buf: make([]byte, 256<<10)}
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

// add hashes a file and keeps its bytes when they fit; offset is -1 when not.
func (k *pack) add(ctx context.Context, f *os.File, size int64) (digest string, offset int64, err error) {
	if size <= sparseBytes && k.hashed <= sparseTotal {
		k.hashed += size
	}
	if size > sparseBytes || k.hashed > sparseTotal {
		digest, err = k.sparse(ctx, f, size)
		return digest, -1, err
	}
	offset = -1
	if k.path != "" && size <= k.max-k.off {
		offset = k.off
	}
	if offset >= 0 && size > 0 {
		if err := k.begin(); err != nil {
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
func (k *pack) sparse(ctx context.Context, f *os.File, size int64) (string, error) {
	h := sha256.New()
	_, _ = fmt.Fprintf(h, "%d\n", size)
	fd := int(f.Fd())
	for off := int64(0); off < size; {
		start, err := unix.Seek(fd, off, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break
		}
		if err != nil {
			return "", err
		}
		end, err := unix.Seek(fd, start, unix.SEEK_HOLE)
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
	err := k.file.Truncate(k.off)
	err = errors.Join(err, k.file.Sync(), k.file.Close())
	if err == nil {
		err = os.Rename(k.file.Name(), k.path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("seal the pack: %w", err), os.Remove(k.file.Name()))
	}
	k.file = nil
	return syncDir(filepath.Dir(k.path))
}

// discard removes a pack that was not sealed.
func (k *pack) discard() {
	if k.file != nil {
		_ = k.file.Close()
		_ = os.Remove(k.file.Name())
	}
}
