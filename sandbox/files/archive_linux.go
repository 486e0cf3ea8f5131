package files

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"

	"github.com/paddock-run/paddock/sandbox"
)

const (
	// entryOverhead is what an entry may take beside its bytes: headers and padding.
	entryOverhead = 4096
	// maxZstdWindow is the window of the largest zstd level in use (--long=27).
	maxZstdWindow = 128 << 20
)

// archive is a tar being read from a caller.
type archive struct {
	tar    *tar.Reader
	raw    *bounded
	source *bodyReader
	dir    string
	stop   func()
}

// openArchive tells the compression by the first bytes.
func openArchive(ctx context.Context, dir string, r io.Reader, limits sandbox.TarLimits) (*archive, error) {
	a := &archive{source: &bodyReader{ctx: ctx, r: r}, dir: dir, stop: func() {}}
	in := bufio.NewReaderSize(a.source, 64<<10)
	magic, err := in.Peek(4)
	if err != nil && (!errors.Is(err, io.EOF) || len(magic) == 0) {
		return nil, a.fault(err)
	}
	var plain io.Reader = in
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		if plain, err = gzip.NewReader(in); err != nil {
			return nil, a.fault(err)
		}
	case bytes.Equal(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		dec, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxWindow(maxZstdWindow), zstd.WithDecoderMaxMemory(2*maxZstdWindow))
		if err != nil {
			return nil, a.fault(err)
		}
		plain, a.stop = dec, dec.Close
	}
	// Limits count what headers claim. This one is for what no entry accounts for: headers
	// without an entry, and endless padding.
	a.raw = &bounded{r: plain, left: limits.Bytes + (limits.Entries+16)*entryOverhead}
	a.tar = tar.NewReader(a.raw)
	return a, nil
}

func (a *archive) close() { a.stop() }

// next returns the next header, io.EOF at the end of the archive.
func (a *archive) next() (*tar.Header, error) {
	// What comes now is at most 511 bytes of padding before the end mark's 1024 zeros.
	a.raw.zeros = 0
	h, err := a.tar.Next()
	if errors.Is(err, io.EOF) {
		if !a.raw.endsInZeros() {
			// archive/tar takes a stream that stops between two entries for a whole one.
			return nil, refuse("invalid_archive", a.dir, "the archive ends early")
		}
		return nil, io.EOF
	}
	if err != nil {
		return nil, a.fault(err)
	}
	return h, nil
}

// finish reads what is behind the archive's end, so that the checksums of the compressed
// forms are checked and the caller's reader is at its end.
func (a *archive) finish() error {
	if _, err := io.Copy(io.Discard, a.raw); err != nil {
		return a.fault(err)
	}
	return nil
}

// fault says whose an error of reading is: the caller's reader's, a limit's or the
// archive's.
func (a *archive) fault(err error) error {
	switch {
	case a.source.err != nil:
		return callers("read", a.dir, a.source.err)
	case a.raw != nil && a.raw.left <= 0:
		return refuse("too_large", a.dir, "the archive unpacks to more than its limits")
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return refuse("invalid_archive", a.dir, "the archive ends early")
	}
	return refuse("invalid_archive", a.dir, fmt.Sprintf("not a tar archive: %v", err))
}

// entryReader reads the contents of the current entry.
type entryReader struct {
	ctx context.Context //nolint:containedctx // lives as long as the one entry
	in  *archive
}

// Read reads; an end that comes too early is an error of the archive.
func (e *entryReader) Read(b []byte) (int, error) {
	n, err := e.in.tar.Read(b)
	if err != nil && err != io.EOF { //nolint:errorlint // an io.Reader returns it bare
		err = e.in.fault(err)
	}
	return n, err
}

// bodyReader is the caller's reader; it remembers how it failed.
type bodyReader struct {
	ctx context.Context //nolint:containedctx // lives as long as the one call
	r   io.Reader
	err error
}

// Read reads unless the call is cancelled.
func (b *bodyReader) Read(p []byte) (int, error) {
	if b.ctx.Err() != nil {
		b.err = context.Cause(b.ctx)
		return 0, b.err
	}
	n, err := b.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		b.err = err
	}
	return n, err
}

// bounded reads at most left bytes and remembers the last block.
type bounded struct {
	r    io.Reader
	left int64
	// zeros counts the zero bytes at the end of what was read.
	zeros int
}

var errTooMuch = errors.New("archive is larger than its limits")

// Read reads up to the bound.
func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errTooMuch
	}
	n, err := b.r.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	tail := 0
	for tail < n && p[n-1-tail] == 0 {
		tail++
	}
	if tail == n {
		b.zeros = min(b.zeros+n, 1<<20)
	} else {
		b.zeros = tail
	}
	return n, err
}

// endsInZeros says whether a whole block of zeros was the last thing read, as the end
// mark of a tar is.
func (b *bounded) endsInZeros() bool { return b.zeros >= 512 }
