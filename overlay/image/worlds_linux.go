package image

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	specsgo "github.com/opencontainers/image-spec/specs-go"
	specs "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/paddock-run/paddock/overlay"
)

// Worlds is a store of worlds with its ways in and out.
type Worlds struct{ *overlay.Store }

// Import makes an image a world; see overlay.Source for where it may come from and
// Store.Add for the rest. A refused image is a *overlay.RecipeError and leaves nothing.
func (w Worlds) Import(ctx context.Context, from overlay.Source, name string, p overlay.Progress) (overlay.World, error) {
	if p == nil {
		p = func(string, int64, int64) {}
	}
	if err := from.Check(); err != nil {
		return overlay.World{}, err
	}
	if from.Remote != nil {
		return w.pull(ctx, *from.Remote, name, p)
	}
	scratch, drop, err := w.Scratch()
	if err != nil {
		return overlay.World{}, fmt.Errorf("import: %w", err)
	}
	defer drop()
	f, end, err := w.open(ctx, from, scratch, p)
	if err != nil {
		return overlay.World{}, err
	}
	defer end()
	img, err := read(f, from.Image)
	if err != nil {
		return overlay.World{}, err
	}
	return w.Add(ctx, img, name, p)
}

// open gives the members of what is imported. A stream, and an archive that is compressed
// as a whole, are first written to scratch.
func (w Worlds) open(ctx context.Context, from overlay.Source, scratch string, p overlay.Progress) (files, func(), error) {
	if from.Path == "" {
		return w.spool(ctx, from.Stream, scratch, p)
	}
	info, err := os.Stat(from.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, refuse("not_found", from.Path, "no such file or directory")
	}
	if err != nil {
		return nil, nil, refuse("bad_recipe", from.Path, "%v", err)
	}
	if info.IsDir() {
		root, err := os.OpenRoot(from.Path)
		if err != nil {
			return nil, nil, refuse("bad_recipe", from.Path, "%v", err)
		}
		return dirFiles{root}, func() { _ = root.Close() }, nil
	}
	if !info.Mode().IsRegular() {
		return nil, nil, refuse("bad_recipe", from.Path, "neither a regular file nor a directory")
	}
	f, err := os.Open(from.Path)
	if err != nil {
		return nil, nil, refuse("bad_recipe", from.Path, "%v", err)
	}
	end := func() { _ = f.Close() }
	packed, err := compressed(f)
	if err != nil {
		end()
		return nil, nil, err
	}
	if packed {
		defer end()
		return w.spool(ctx, f, scratch, p)
	}
	t, err := indexTar(ctx, f, info.Size())
	if err != nil {
		end()
		return nil, nil, err
	}
	return t, end, nil
}

// compressed says whether a file begins as no tar does.
func compressed(f io.ReaderAt) (bool, error) {
	head := make([]byte, 4)
	n, err := f.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	return overlay.Compressed(head[:n]), nil
}

// spool writes a stream, unpacked, to a file and indexes it.
func (w Worlds) spool(ctx context.Context, r io.Reader, scratch string, p overlay.Progress) (files, func(), error) {
	in, done, err := w.Decompress(r)
	if err != nil {
		return nil, nil, err
	}
	defer done()
	f, err := os.OpenFile(filepath.Join(scratch, "archive"), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return nil, nil, fmt.Errorf("import: %w", err)
	}
	end := func() { _ = f.Close() }
	src := &source{ctx: ctx, r: in, progress: p}
	n, err := io.Copy(f, src)
	if err != nil {
		end()
		if ctx.Err() != nil {
			return nil, nil, context.Cause(ctx)
		}
		if src.err != nil {
			return nil, nil, broken(src.err)
		}
		return nil, nil, fmt.Errorf("import: %w", err)
	}
	t, err := indexTar(ctx, f, n)
	if err != nil {
		end()
		return nil, nil, err
	}
	return t, end, nil
}

func broken(err error) error {
	if _, ok := errors.AsType[*overlay.RecipeError](err); ok {
		return err
	}
	return refuse("bad_archive", "", "%v", err)
}

// source is a stream that ends with its context, keeps its error apart from those of
// writing, and tells how much was read.
type source struct {
	ctx      context.Context //nolint:containedctx // io.Reader has no other way
	r        io.Reader
	progress overlay.Progress
	n, said  int64
	err      error
}

const tellEvery = 4 << 20

// Read is as of io.Reader.
func (s *source) Read(p []byte) (int, error) {
	if s.ctx.Err() != nil {
		return 0, context.Cause(s.ctx)
	}
	n, err := s.r.Read(p)
	if s.n += int64(n); s.n-s.said >= tellEvery {
		s.said = s.n
		s.progress("read", s.n, 0)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = err
	}
	return n, err
}

// Export writes a world as an OCI image layout tar that `docker load` of any age takes as
// well. The same world gives the same bytes. overlay.ErrCorrupt, noticed while writing,
// leaves the stream unfinished.
func (w Worlds) Export(ctx context.Context, ref string, out io.Writer) error {
	held, err := w.Hold(ref)
	if err != nil {
		return err
	}
	defer held.Release()
	e := &exporting{held: held, tw: tar.NewWriter(out)}
	if err := e.run(ctx); err != nil {
		return fmt.Errorf("export world %.19s: %w", held.World.ID, err)
	}
	return nil
}

type exporting struct {
	held *overlay.Held
	tw   *tar.Writer
}

func (e *exporting) run(ctx context.Context) error {
	meta, err := e.meta()
	if err != nil {
		return err
	}
	for _, m := range meta {
		if err := e.head(m.name, int64(len(m.data))); err != nil {
			return err
		}
		if _, err := io.Copy(e.tw, bytes.NewReader(m.data)); err != nil {
			return err
		}
	}
	done := map[digest.Digest]bool{}
	for i, d := range e.held.Blobs {
		if done[d.Digest] {
			continue
		}
		done[d.Digest] = true
		if err := e.head(blobsDir+d.Digest.Encoded(), d.Size); err != nil {
			return err
		}
		err := e.held.Write(ctx, i, e.tw)
		if errors.Is(err, tar.ErrWriteTooLong) {
			err = overlay.ErrCorrupt
		}
		if err != nil {
			return fmt.Errorf("layer %s: %w", d.Digest, err)
		}
	}
	return e.tw.Close()
}

type metaFile struct {
	name string
	data []byte
}

// meta are the small files of the archive.
func (e *exporting) meta() ([]metaFile, error) {
	manifest := digest.FromBytes(e.held.Manifest)
	index, err := json.Marshal(specs.Index{
		Versioned: specsgo.Versioned{SchemaVersion: 2}, MediaType: specs.MediaTypeImageIndex,
		Manifests: []specs.Descriptor{{
			MediaType: specs.MediaTypeImageManifest, Digest: manifest, Size: int64(len(e.held.Manifest)),
			Platform: &specs.Platform{Architecture: runtime.GOARCH, OS: "linux"},
		}},
	})
	if err != nil {
		return nil, err
	}
	config := blobsDir + strings.TrimPrefix(e.held.World.ID, digestPrefix)
	list := []saved{{Config: config, Layers: []string{}}}
	for _, d := range e.held.Blobs {
		list[0].Layers = append(list[0].Layers, blobsDir+d.Digest.Encoded())
	}
	docker, err := json.Marshal(list)
	if err != nil {
		return nil, err
	}
	return []metaFile{
		{specs.ImageLayoutFile, []byte(`{"imageLayoutVersion":"` + specs.ImageLayoutVersion + `"}`)},
		{specs.ImageIndexFile, index},
		{dockerManifest, docker},
		{config, e.held.Config},
		{blobsDir + manifest.Encoded(), e.held.Manifest},
	}, nil
}

// epoch is the time of every member of an export.
var epoch = time.Date(1980, time.January, 2, 0, 0, 0, 0, time.UTC)

func (e *exporting) head(name string, size int64) error {
	return e.tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: size, ModTime: epoch, Format: tar.FormatPAX})
}
