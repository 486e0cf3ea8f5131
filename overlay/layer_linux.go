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
	"path"
	"strings"
)

// layerUnpacking makes one layer's tar a directory and what gives the tar again.
type layerUnpacking struct {
	store    *Store
	blob     Blob
	diffID   string
	progress Progress
	into     *arrived
	written  *flusher
	below    func() (lowerDir, error)
	asked    bool // below was called
	borrowed bool // a file came from below
	dropped  notes
}

func (u *layerUnpacking) close() {
	if !u.asked {
		return
	}
	if d, err := u.below(); err == nil {
		d.close()
	}
}

func (u *layerUnpacking) lowers() (lowerDir, error) {
	u.asked = true
	return u.below()
}

func (u *layerUnpacking) run(ctx context.Context) error {
	split, err := os.CreateTemp(u.store.path("tmp"), tmpPrefix+"split-*")
	if err != nil {
		return err
	}
	digest, spoiled, err := u.unpack(ctx, split)
	if err = errors.Join(err, split.Close()); err != nil {
		return errors.Join(err, os.Remove(split.Name()))
	}
	u.into.layer.DiffID, u.into.layer.Dropped = u.diffID, u.dropped.all()
	if spoiled {
		if err := os.Remove(split.Name()); err != nil {
			return err
		}
		return u.keep(ctx)
	}
	u.into.layer.Split = digest
	u.into.blobs[digest] = split.Name()
	u.into.whole = u.borrowed
	return nil
}

// unpack answers the digest of the tar's split, and whether it is no use.
func (u *layerUnpacking) unpack(ctx context.Context, out io.Writer) (digest string, spoiled bool, err error) {
	// Where the blob is the tar itself, its digest is the diffID, which is checked anyway; and
	// one that nobody told has nothing to be held against.
	blob, err := u.open(ctx, u.blob.Digest == "" || u.blob.Digest == u.diffID)
	if err != nil {
		return "", false, err
	}
	defer func() { _ = blob.Close() }()
	plain, end, err := decompress(blob, u.store.opts.Limits)
	if err != nil {
		return "", false, err
	}
	ahead := newReadAhead(&cancelled{ctx, plain})
	defer func() {
		ahead.close()
		end()
	}()
	split, err := newSplitter(ahead, out, u.diffID)
	if err != nil {
		return "", false, err
	}
	if err := u.entries(ctx, split); err != nil {
		return "", false, err
	}
	if _, err := io.Copy(io.Discard, split); err != nil { // padding belongs to the digest
		return "", false, badArchive(err)
	}
	if got := digestPrefix + ahead.digest(); got != u.diffID {
		return "", false, refuse("bad_archive", u.label(), "unpacks to %s, the config says %s", got, u.diffID)
	}
	u.into.layer.TarSize = ahead.size
	if err := blob.check(u.blob.Digest, u.label()); err != nil {
		return "", false, err
	}
	digest, err = split.done()
	return digest, split.spoiled, err
}

// label names the layer in messages.
func (u *layerUnpacking) label() string {
	if u.blob.Digest != "" {
		return "layer " + u.blob.Digest
	}
	return "layer " + u.diffID
}

// entries writes what the tar holds.
func (u *layerUnpacking) entries(ctx context.Context, split *splitter) error {
	t := newTree(u.into.stage.fd, u.store.opts.Limits)
	t.lastWins, t.replaced = true, split.replaced
	t.implied = func(p string) (*entry, error) {
		below, err := u.lowers()
		if err != nil {
			return nil, err
		}
		e, err := below.at(p)
		if err != nil || e == nil || e.kind != typeDir {
			return nil, err
		}
		return e, nil
	}
	t.borrow = func(p string) (bool, error) { return u.borrow(t, p) }
	un := &unpacking{
		tree: t, whiteouts: true, step: "unpack", dropped: func(p, what string) { u.dropped.add("/" + p + ": " + what) },
		edit: func(e *entry) (bool, error) {
			// /dev is the sandbox's own; images made from old root file systems have nodes there.
			return strings.HasPrefix(e.path, "dev/") && (e.kind == typeChar || e.kind == typeBlock), nil
		},
		body: func(e *entry, r io.Reader) io.Reader {
			u.written.add(t.root, e.size)
			return split.file(e, r)
		},
	}
	return errors.Join(un.unpack(ctx, split, u.progress), t.close())
}

// borrow copies a file of the lower layers, which a hard link of this one shares, as
// overlayfs does when a file of a lower layer gets one more name.
func (u *layerUnpacking) borrow(t *tree, p string) (bool, error) {
	below, err := u.lowers()
	if err != nil {
		return false, err
	}
	e, f, err := below.open(p)
	if err != nil || e == nil {
		return false, err
	}
	defer func() { _ = f.Close() }()
	u.borrowed = true
	return true, t.add(e, f)
}

// open finds a regular file as overlayfs would; nil says that there is none.
func (d lowerDir) open(p string) (*entry, *os.File, error) {
	dir, node := d, (*lowerNode)(nil)
	var parent *lowerNode
	defer func() { node.close(); parent.close() }()
	for name := range strings.SplitSeq(p, "/") {
		next, err := dir.lookup(name)
		if err != nil || next == nil {
			return nil, nil, err
		}
		parent.close()
		parent, node, dir = node, next, next.dirs
	}
	if kindOf(&node.st) != typeFile {
		return nil, nil, nil
	}
	e, fd, err := describeAt(node.dir, path.Base(p), &node.st)
	if err != nil {
		closeFD(fd)
		return nil, nil, fmt.Errorf("read %q of a lower layer: %w", p, err)
	}
	e.path = p
	return e, os.NewFile(uintptr(fd), p), nil
}

// keep keeps the layer's blob as it came, since the tar cannot be made from the directory.
func (u *layerUnpacking) keep(ctx context.Context) error {
	blob, err := u.open(ctx, false)
	if err != nil {
		return err
	}
	defer func() { _ = blob.Close() }()
	p, n, err := u.store.copyAll(blob)
	if err != nil {
		return err
	}
	digest := hex.EncodeToString(blob.hash.Sum(nil))
	u.into.blobs[digest] = p
	if err := blob.check(u.blob.Digest, u.label()); err != nil {
		return err
	}
	media, err := mediaOf(p)
	u.into.layer.Blob, u.into.layer.BlobSize, u.into.layer.BlobType = digest, n, media
	return err
}

// mediaOf tells a layer's media type by its content.
func mediaOf(p string) (string, error) {
	f, err := os.Open(p)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	head := make([]byte, 4)
	n, err := io.ReadFull(f, head)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return "", err
	}
	return layerMedia(head[:n]), nil
}

// hashedBlob hashes a blob while it is read.
type hashedBlob struct {
	io.ReadCloser
	hash hash.Hash
	skip bool
}

func (u *layerUnpacking) open(ctx context.Context, skip bool) (*hashedBlob, error) {
	rc, err := u.blob.Open(ctx)
	return &hashedBlob{ReadCloser: rc, hash: sha256.New(), skip: skip}, err
}

// Read gives the blob's bytes.
func (b *hashedBlob) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if !b.skip {
		b.hash.Write(p[:n])
	}
	return n, err
}

// check reads a blob to its end and holds its digest against what was said.
func (b *hashedBlob) check(said, label string) error {
	if said == "" || b.skip {
		return nil
	}
	if _, err := io.Copy(io.Discard, b); err != nil {
		return badArchive(err)
	}
	if got := digestPrefix + hex.EncodeToString(b.hash.Sum(nil)); got != said {
		return refuse("bad_archive", label, "its bytes have the digest %s", got)
	}
	return nil
}
