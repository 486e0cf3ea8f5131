package overlay

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// tarSource is the recipe of an archive on the host.
type tarSource struct {
	placement
	file *os.File
}

func newTarSource(p string, at placement) (*tarSource, error) {
	f, err := os.OpenFile(p, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, refuse("not_found", p, "no such file")
	}
	if err != nil {
		return nil, refuse("bad_recipe", p, "%v", err)
	}
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(refuse("bad_recipe", p, "not a regular file"), f.Close())
	}
	return &tarSource{placement: at, file: f}, nil
}

func (t *tarSource) kind() string  { return "tar" }
func (t *tarSource) name() string  { return "tar" }
func (t *tarSource) network() bool { return false }

func (t *tarSource) close() {
	_ = t.file.Close()
	t.placement.close()
}

// input covers path, type, mode, link, kept attributes and bytes of every entry, and
// neither times, owners nor the form of the archive: a hit reads the archive and unpacks
// nothing.
func (t *tarSource) input(ctx context.Context, p Progress) (string, error) {
	r, end, err := decompress(io.NewSectionReader(t.file, 0, 1<<62), t.limits)
	if err != nil {
		return "", err
	}
	defer end()
	u := &unpacking{into: t.into}
	tr := tar.NewReader(&cancelled{ctx, r})
	var lines []string
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
		if err != nil {
			return "", badArchive(err)
		}
		e, err := u.describe(h)
		if err != nil {
			return "", err
		}
		if e == nil {
			continue
		}
		if int64(len(lines)) >= t.limits.Entries || e.size > t.limits.Bytes {
			return "", refuse("world_too_large", e.path, "more than %d entries or %d bytes", t.limits.Entries, t.limits.Bytes)
		}
		body := sha256.New()
		if _, err := io.Copy(body, tr); err != nil {
			return "", badArchive(err)
		}
		lines = append(lines, fmt.Sprintf("%q %s %o %q %q %x", e.path, e.kind, e.mode, e.target, e.xattrs, body.Sum(nil)))
		if len(lines)%1024 == 0 {
			p("hash", int64(len(lines)), 0)
		}
	}
	slices.Sort(lines)
	return sum([]byte(strings.Join(lines, "\n"))), nil
}

// cancelled ends a read when its context does.
type cancelled struct {
	ctx context.Context //nolint:containedctx // io.Reader has no other way
	r   io.Reader
}

func (c *cancelled) Read(p []byte) (int, error) {
	if c.ctx.Err() != nil {
		return 0, context.Cause(c.ctx)
	}
	return c.r.Read(p)
}

func (t *tarSource) fill(ctx context.Context, root int, p Progress) (layer, error) {
	r, end, err := decompress(io.NewSectionReader(t.file, 0, 1<<62), t.limits)
	if err != nil {
		return layer{}, err
	}
	defer end()
	out := newTree(root, t.limits)
	// A directory that the archive does not name is the base's, where the base has it.
	out.implied = func(p string) (*entry, error) {
		e := &entry{path: p, kind: typeDir, mode: rootMode}
		return e, t.edit(e)
	}
	parents, err := t.parents()
	if err != nil {
		return layer{}, err
	}
	for _, e := range parents {
		if err := out.add(e, nil); err != nil {
			return layer{}, err
		}
	}
	u := &unpacking{tree: out, into: t.into, step: "unpack", edit: func(e *entry) (bool, error) { return false, t.edit(e) }}
	if err := errors.Join(u.unpack(ctx, &cancelled{ctx, r}, p), out.close()); err != nil {
		return layer{}, err
	}
	return measure(ctx, root, p)
}

// measure reads a layer's tree and makes its canonical digest.
func measure(ctx context.Context, root int, p Progress) (layer, error) {
	c := newCanon(nil)
	counter := &counting{sink: c, limits: Limits{Bytes: 1 << 62, Entries: 1 << 62}, progress: p, step: "digest"}
	if err := readTree(ctx, root, counter, nil); err != nil {
		return layer{}, err
	}
	return counter.finish(c)
}
