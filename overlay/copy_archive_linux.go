package overlay

import (
	"archive/tar"
	"bytes"
	"compress/bzip2"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
)

// unpackedTar is an archive's contents for as long as they are copied.
type unpackedTar struct {
	stage *staging
	view  *View
}

func (u *unpackedTar) close() {
	u.view.Close()
	u.stage.discard()
}

// archive unpacks a source that is an archive; nil says that it is none.
func (c *copying) archive(ctx context.Context, one *pick) (*unpackedTar, error) {
	p := &planned{item: &one.items[0], view: one.view}
	is, err := p.isArchive(c.store.opts.Limits)
	if err != nil || !is {
		return nil, err
	}
	body, end, err := p.open()
	if err != nil {
		return nil, err
	}
	defer end()
	st, err := c.store.newStage()
	if err != nil {
		return nil, err
	}
	h := sha256.New()
	whole := io.TeeReader(&cancelled{ctx, body}, h)
	if err := c.store.untar(ctx, whole, st.fd, c.progress); err != nil {
		st.discard()
		return nil, fmt.Errorf("unpack %s: %w", one.name, err)
	}
	if _, err := io.Copy(io.Discard, whole); err != nil || hex.EncodeToString(h.Sum(nil)) != p.item.sum {
		st.discard()
		return nil, errors.Join(err, fmt.Errorf("%q changed while it was copied", p.item.from))
	}
	fd, err := openDir(path.Join(st.path, unpackedDir))
	if err != nil {
		st.discard()
		return nil, err
	}
	return &unpackedTar{stage: st, view: &View{dirs: lowerDir{fd}, world: true, release: func() {}}}, nil
}

// untar unpacks a tar of any of the forms that ADD takes into an empty directory.
func (s *Store) untar(ctx context.Context, r io.Reader, root int, p Progress) error {
	plain, end, err := addForms(r, s.opts.Limits)
	if err != nil {
		return err
	}
	defer end()
	t := newTree(root, s.opts.Limits)
	if err := t.add(&entry{path: unpackedDir, kind: typeDir, mode: rootMode, mtime: epoch}, nil); err != nil {
		return errors.Join(err, t.close())
	}
	u := &unpacking{tree: t, into: unpackedDir, step: "unpack"}
	return errors.Join(u.unpack(ctx, plain, p), t.close())
}

// addForms reads plain, gzip, bzip2 or zstd, told apart by content.
func addForms(r io.Reader, limits Limits) (io.Reader, func(), error) {
	head := make([]byte, 6)
	n, err := io.ReadFull(r, head)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return nil, nil, err
	}
	whole := io.MultiReader(bytes.NewReader(head[:n]), r)
	switch {
	case bytes.HasPrefix(head, []byte("BZh")):
		return &bounded{r: bzip2.NewReader(whole), in: &counted{r: whole}, max: 2 * limits.Bytes}, func() {}, nil
	case bytes.HasPrefix(head, []byte("\xfd7zXZ\x00")):
		return nil, nil, refuse("unsupported_entry", "", "is packed by xz, which ADD does not unpack here; unpack it in a RUN")
	}
	return decompress(whole, limits)
}

// isArchive says whether a file is a tar, by its content alone, as ADD does.
func (p *planned) isArchive(limits Limits) (bool, error) {
	body, end, err := p.open()
	if err != nil {
		return false, err
	}
	defer end()
	plain, stop, err := addForms(body, limits)
	if err != nil {
		if _, refused := errors.AsType[*RecipeError](err); refused && isXZ(p) {
			return false, err
		}
		return false, nil
	}
	defer stop()
	_, err = tar.NewReader(plain).Next()
	return err == nil, nil
}

func isXZ(p *planned) bool {
	body, end, err := p.open()
	if err != nil {
		return false
	}
	defer end()
	head := make([]byte, 6)
	_, err = io.ReadFull(body, head)
	return err == nil && string(head) == "\xfd7zXZ\x00"
}

// Unpack unpacks a tar (plain, gzip, bzip2 or zstd) that anybody may have written below an
// empty directory of Scratch, and answers the directory that has the contents.
func (s *Store) Unpack(ctx context.Context, r io.Reader, dir string, p Progress) (string, error) {
	d, err := os.Open(dir)
	if err != nil {
		return "", err
	}
	defer func() { _ = d.Close() }()
	if p == nil {
		p = func(string, int64, int64) {}
	}
	return path.Join(dir, unpackedDir), s.untar(ctx, r, int(d.Fd()), p)
}
