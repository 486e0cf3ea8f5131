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

	"golang.org/x/sys/unix"
)

func (s *Store) condemn(l layer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.corrupt[l.DiffID] = true
}

// Verify reads all of a world's layers again and compares them with their digests. After
// ErrCorrupt the world is not forked until it was built or imported anew.
func (s *Store) Verify(ctx context.Context, ref string, p Progress) error {
	w, layers, release, err := s.pin(ref)
	if err != nil {
		return err
	}
	defer release()
	for i, l := range layers {
		if p != nil {
			p("verify", int64(i), int64(len(layers)))
		}
		err := s.verify(ctx, l)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			s.condemn(l)
			return fmt.Errorf("verify world %s: layer %s: %w", shortID(w.ID), shortID(l.DiffID), ErrCorrupt)
		}
	}
	return nil
}

func (s *Store) verify(ctx context.Context, l layer) error {
	if l.Tree != "" {
		got, err := s.digestTree(ctx, l, nil)
		if err == nil && got != l.Tree {
			err = ErrCorrupt
		}
		return err
	}
	fd, err := openDir(s.layerDir(l))
	if err != nil {
		return err
	}
	defer closeFD(fd)
	a := &attributes{sha256.New()}
	if err := readTree(ctx, fd, a, nil); err != nil {
		return err
	}
	if a.digest() != l.Attributes {
		return ErrCorrupt
	}
	return s.writeTar(ctx, l, io.Discard)
}

// digestTree is the digest of a layer's directory as it is now.
func (s *Store) digestTree(ctx context.Context, l layer, out io.Writer) (string, error) {
	fd, err := openDir(s.layerDir(l))
	if err != nil {
		return "", err
	}
	defer closeFD(fd)
	c := newCanon(out)
	if err := readTree(ctx, fd, c, nil); err != nil {
		return "", err
	}
	got, _, err := c.done()
	return got, err
}

// writeTar writes the tar whose digest is the layer's diffID. ErrCorrupt, noticed while
// writing, leaves it unfinished or wrong, and condemns the layer.
func (s *Store) writeTar(ctx context.Context, l layer, w io.Writer) error {
	got, err := "", error(nil)
	if l.Split == "" {
		got, err = s.digestTree(ctx, l, w)
	} else {
		sum := &summing{w: w, hash: sha256.New()}
		err = s.assemble(ctx, l, sum)
		got = hex.EncodeToString(sum.hash.Sum(nil))
	}
	if errors.Is(err, ErrCorrupt) || (err == nil && got != l.hex()) {
		s.condemn(l)
		return ErrCorrupt
	}
	return err
}

type summing struct {
	w    io.Writer
	hash hash.Hash
}

func (s *summing) Write(p []byte) (int, error) {
	s.hash.Write(p)
	return s.w.Write(p)
}

func (s *Store) assemble(ctx context.Context, l layer, w io.Writer) error {
	fd, err := openDir(s.layerDir(l))
	if err != nil {
		return err
	}
	defer closeFD(fd)
	f, err := os.OpenFile(s.path(blobsDir+l.Split), os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	return assemble(ctx, f, l.DiffID, fd, w)
}
