package image

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"github.com/paddock-run/paddock/overlay"
)

const (
	// maxMeta bounds configs, manifests and indexes.
	maxMeta = 8 << 20
	// maxFiles bounds the members of an archive.
	maxFiles = 20_000
	// maxLinks is how many links may lead to a member: `docker save` made a layer that
	// two images share a link in the second one's directory.
	maxLinks = 4
)

// files are the members of an image archive or of a layout directory.
type files interface {
	// open gives a regular member; fs.ErrNotExist.
	open(name string) (io.ReadCloser, error)
}

// dirFiles are those of a directory; no link leads out of it.
type dirFiles struct{ root *os.Root }

func (d dirFiles) open(name string) (io.ReadCloser, error) {
	info, err := d.root.Stat(name)
	if err != nil {
		return nil, missing(name, err)
	}
	if !info.Mode().IsRegular() {
		return nil, refuse("bad_archive", name, "is no regular file")
	}
	f, err := d.root.Open(name)
	if err != nil {
		return nil, missing(name, err)
	}
	return f, nil
}

// missing keeps "not there" apart from a disk's errors.
func missing(name string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: %w", name, fs.ErrNotExist)
	}
	return refuse("bad_archive", name, "%v", err)
}

// tarFiles are those of a tar that lies in a file: they are read where they are.
type tarFiles struct {
	file    io.ReaderAt
	members map[string]member
}

type member struct {
	off, size int64
	link      string
}

// indexTar finds the members of a plain tar.
func indexTar(ctx context.Context, f io.ReaderAt, size int64) (*tarFiles, error) {
	in := io.NewSectionReader(f, 0, size)
	out := &tarFiles{file: f, members: map[string]member{}}
	tr := tar.NewReader(in)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err != nil {
			return nil, refuse("bad_archive", "", "%v", err)
		}
		off, err := in.Seek(0, io.SeekCurrent)
		if err != nil {
			return nil, err
		}
		if off+h.Size > size {
			return nil, refuse("bad_archive", h.Name, "the archive is cut short")
		}
		if err := out.add(h, off); err != nil {
			return nil, err
		}
	}
}

func (t *tarFiles) add(h *tar.Header, off int64) error {
	if strings.HasPrefix(h.Name, "/") || strings.Contains("/"+h.Name+"/", "/../") {
		return refuse("outside_root", h.Name, "leads out of the archive")
	}
	name := path.Clean(h.Name)
	m := member{off: off, size: h.Size}
	switch h.Typeflag {
	case tar.TypeReg:
	case tar.TypeSymlink:
		m.link = path.Join(path.Dir(name), h.Linkname)
	case tar.TypeLink:
		m.link = path.Clean(h.Linkname)
	default:
		return nil // directories say nothing; devices are never read
	}
	for record := range h.PAXRecords {
		if strings.HasPrefix(record, "GNU.sparse.") {
			return refuse("unsupported_entry", h.Name, "a sparse member")
		}
	}
	if _, twice := t.members[name]; twice {
		return refuse("duplicate_entry", name, "twice in the archive")
	}
	if len(t.members) >= maxFiles {
		return refuse("world_too_large", "", "more than %d files in the archive", maxFiles)
	}
	t.members[name] = m
	return nil
}

func (t *tarFiles) open(name string) (io.ReadCloser, error) {
	at := path.Clean(name)
	for range maxLinks {
		m, ok := t.members[at]
		if !ok {
			return nil, fmt.Errorf("%s: %w", name, fs.ErrNotExist)
		}
		if m.link == "" {
			return io.NopCloser(io.NewSectionReader(t.file, m.off, m.size)), nil
		}
		at = m.link
	}
	return nil, refuse("bad_archive", name, "more than %d links", maxLinks)
}

// readSmall reads a whole member of bounded size.
func readSmall(f files, name string) ([]byte, error) {
	r, err := f.open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, refuse("bad_archive", name, "missing from the archive")
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }()
	return bounded(r, name)
}

func bounded(r io.Reader, name string) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxMeta+1))
	if err != nil {
		return nil, refuse("bad_archive", name, "%v", err)
	}
	if len(text) > maxMeta {
		return nil, refuse("world_too_large", name, "more than %d bytes", maxMeta)
	}
	return text, nil
}

func refuse(kind, p, format string, args ...any) error {
	return &overlay.RecipeError{Kind: kind, Path: p, Detail: fmt.Sprintf(format, args...)}
}
