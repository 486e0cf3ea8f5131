package overlay

import (
	"bufio"
	"bytes"
	"errors"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	specs "github.com/opencontainers/image-spec/specs-go/v1"
)

const (
	// zstdMemory bounds the window that an archive may ask for.
	zstdMemory = 256 << 20
	// bombBytes and bombRatio: a stream that grows to more than both is a bomb.
	bombBytes = 1 << 30
	bombRatio = 200
)

// decompress reads a stream that is plain, gzip or zstd, told apart by its first bytes.
func decompress(r io.Reader, limits Limits) (io.Reader, func(), error) {
	in := &counted{r: r}
	b := bufio.NewReaderSize(in, 128<<10)
	out := &bounded{in: in, max: 2*limits.Bytes + 64<<20}
	head, err := b.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, err
	}
	switch {
	case isGzip(head):
		z, err := gzip.NewReader(b)
		if err != nil {
			return nil, nil, refuse("bad_archive", "", "gzip: %v", err)
		}
		out.r, out.packed = z, true
		return out, func() { _ = z.Close() }, nil
	case isZstd(head):
		z, err := zstd.NewReader(b, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(zstdMemory), zstd.WithDecoderMaxWindow(zstdMemory))
		if err != nil {
			return nil, nil, refuse("bad_archive", "", "zstd: %v", err)
		}
		out.r, out.packed = z, true
		return out, z.Close, nil
	}
	out.r = b
	return out, func() {}, nil
}

// Compressed says whether a stream that begins so is gzip or zstd.
func Compressed(head []byte) bool { return isGzip(head) || isZstd(head) }

func isGzip(head []byte) bool { return bytes.HasPrefix(head, []byte{0x1f, 0x8b}) }

// isZstd knows a frame, and a skippable one that some writers begin with.
func isZstd(head []byte) bool {
	if len(head) < 4 {
		return false
	}
	return bytes.Equal(head[:4], []byte{0x28, 0xb5, 0x2f, 0xfd}) || (head[0]&0xf0 == 0x50 && bytes.Equal(head[1:4], []byte{0x2a, 0x4d, 0x18}))
}

// layerMedia is the media type of a layer that begins so.
func layerMedia(head []byte) string {
	switch {
	case isGzip(head):
		return specs.MediaTypeImageLayerGzip
	case isZstd(head):
		return specs.MediaTypeImageLayerZstd
	}
	return specs.MediaTypeImageLayer
}

type counted struct {
	r io.Reader
	n int64
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

// bounded ends a stream that unpacks to too much.
type bounded struct {
	r      io.Reader
	in     *counted
	packed bool
	n, max int64
}

func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	b.n += int64(n)
	if b.n > b.max {
		return n, refuse("world_too_large", "", "unpacks to more than %d bytes", b.max)
	}
	if b.packed && b.n > bombBytes && b.n > bombRatio*b.in.n {
		return n, refuse("world_too_large", "", "unpacks to more than %d times its size", bombRatio)
	}
	return n, err
}
