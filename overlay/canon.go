package overlay

import (
	"archive/tar"
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"maps"
	"path"
)

const (
	paxXattr = "SCHILY.xattr."
	// paxLiteral marks, in a digest, a name that an image would take for a deletion.
	paxLiteral = "PADDOCK.literal"
)

// canon writes the canonical tar of a layer: entries in canonical order, PAX, no names of
// owners. The digest of an uncompressed layer tar is the layer's diffID.
type canon struct {
	tw   *tar.Writer
	buf  *bufio.Writer
	hash hash.Hash
	size int64
	out  io.Writer
	// literal is the first name that begins as a whiteout's does and is none.
	literal string
}

// newCanon hashes a tar, and writes it to out unless that is nil.
func newCanon(out io.Writer) *canon {
	c := &canon{hash: sha256.New(), out: out}
	c.buf = bufio.NewWriterSize((*canonRaw)(c), 64<<10)
	c.tw = tar.NewWriter(c.buf)
	return c
}

type canonRaw canon

func (c *canonRaw) Write(p []byte) (int, error) {
	c.size += int64(len(p))
	c.hash.Write(p)
	if c.out == nil {
		return len(p), nil
	}
	return c.out.Write(p)
}

func (c *canon) add(e *entry, body io.Reader) error {
	if err := c.header(e); err != nil {
		return err
	}
	if e.kind == typeFile {
		if _, err := io.CopyN(c.tw, body, e.size); err != nil {
			return fmt.Errorf("read %q: %w", e.path, err)
		}
	}
	return nil
}

// header writes all of an entry but a file's bytes.
func (c *canon) header(e *entry) error {
	if e.path == "" {
		return nil // every layer's root is the same
	}
	h := &tar.Header{
		Format: tar.FormatPAX, Name: e.path, Mode: int64(e.mode), Uid: int(e.uid), Gid: int(e.gid),
		ModTime: e.mtime, Linkname: e.target,
	}
	switch e.kind {
	case typeFile:
		h.Typeflag, h.Size = tar.TypeReg, e.size
	case typeDir:
		h.Typeflag, h.Name = tar.TypeDir, e.path+"/"
	case typeSymlink:
		h.Typeflag = tar.TypeSymlink
	case typeHardlink:
		h.Typeflag = tar.TypeLink
	case typeFIFO:
		h.Typeflag = tar.TypeFifo
	case typeWhiteout:
		return c.marker(path.Join(path.Dir(e.path), whiteoutMark+path.Base(e.path)))
	default:
		return refuse("unsupported_entry", e.path, "a layer holds no %s", e.kind)
	}
	if len(e.xattrs) > 0 && e.kind != typeHardlink {
		h.PAXRecords = map[string]string{}
		for name, value := range maps.All(e.xattrs) {
			h.PAXRecords[paxXattr+name] = string(value)
		}
	}
	if e.literal() {
		if c.literal == "" {
			c.literal = e.path
		}
		if h.PAXRecords == nil {
			h.PAXRecords = map[string]string{}
		}
		h.PAXRecords[paxLiteral] = "1"
	}
	if err := c.tw.WriteHeader(h); err != nil {
		return fmt.Errorf("write tar entry %q: %w", e.path, err)
	}
	if e.opaque {
		return c.marker(e.path + "/" + opaqueMark)
	}
	return nil
}

func (c *canon) marker(name string) error {
	return c.tw.WriteHeader(&tar.Header{Format: tar.FormatPAX, Typeflag: tar.TypeReg, Name: name, ModTime: epoch})
}

// done ends the tar and returns its digest in hex and its size.
func (c *canon) done() (digest string, size int64, err error) {
	if err := c.tw.Close(); err != nil {
		return "", 0, err
	}
	if err := c.buf.Flush(); err != nil {
		return "", 0, err
	}
	return hex.EncodeToString(c.hash.Sum(nil)), c.size, nil
}
