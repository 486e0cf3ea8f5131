package overlay

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	specsgo "github.com/opencontainers/image-spec/specs-go"
	specs "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
)

const (
	// maxMeta bounds configs, manifests and indexes.
	maxMeta = 8 << 20
	// maxBlobs bounds the files of an image layout.
	maxBlobs = 10_000
	blobsDir = "blobs/sha256/"
	// maxIndexDepth is how many indexes may lead to a manifest.
	maxIndexDepth = 3
)

// Export writes a world as an OCI image layout tar. The same world gives the same bytes.
// ErrCorrupt, noticed while writing, leaves the stream unfinished. A RecipeError says,
// before the first byte, that an image cannot hold the world.
func (s *Store) Export(ctx context.Context, ref string, w io.Writer) error {
	world, layers, release, err := s.pin(ref)
	if err != nil {
		return err
	}
	defer release()
	for _, l := range layers {
		if l.Literal != "" {
			return refuse("unsupported_entry", l.Literal, "an image cannot hold a name that begins with %s, which deletes what is below", whiteoutMark)
		}
	}
	if err := s.export(ctx, world, layers, tar.NewWriter(w)); err != nil {
		return fmt.Errorf("export world %s: %w", shortID(world.ID), err)
	}
	return nil
}

func (s *Store) export(ctx context.Context, world World, layers []layer, tw *tar.Writer) error {
	manifest, err := encodeManifest(world.ID, world.ConfigBytes, layers)
	if err != nil {
		return err
	}
	index, err := json.Marshal(specs.Index{
		Versioned: specsgo.Versioned{SchemaVersion: 2}, MediaType: specs.MediaTypeImageIndex,
		Manifests: []specs.Descriptor{{
			MediaType: specs.MediaTypeImageManifest, Digest: digest.Digest(digestPrefix + sum(manifest)), Size: int64(len(manifest)),
			Platform: &specs.Platform{Architecture: runtime.GOARCH, OS: "linux"},
		}},
	})
	if err != nil {
		return err
	}
	config, err := os.ReadFile(s.path(blobsDir + strings.TrimPrefix(world.ID, digestPrefix)))
	if err != nil {
		return err
	}
	if digestPrefix+sum(config) != world.ID {
		return ErrCorrupt
	}
	for _, f := range []struct {
		name string
		data []byte
	}{
		{specs.ImageLayoutFile, []byte(`{"imageLayoutVersion":"` + specs.ImageLayoutVersion + `"}`)},
		{specs.ImageIndexFile, index},
		{blobsDir + strings.TrimPrefix(world.ID, digestPrefix), config},
		{blobsDir + sum(manifest), manifest},
	} {
		if err := exportFile(tw, f.name, int64(len(f.data)), bytes.NewReader(f.data)); err != nil {
			return err
		}
	}
	done := map[string]bool{}
	for _, l := range layers {
		if done[l.DiffID] {
			continue
		}
		done[l.DiffID] = true
		if err := s.exportLayer(ctx, l, tw); err != nil {
			return fmt.Errorf("layer %s: %w", shortID(l.DiffID), err)
		}
	}
	return tw.Close()
}

func exportFile(tw *tar.Writer, name string, size int64, body io.Reader) error {
	if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: size, ModTime: epoch, Format: tar.FormatPAX}); err != nil {
		return err
	}
	if body == nil {
		return nil
	}
	_, err := io.CopyN(tw, body, size)
	return err
}

func (s *Store) exportLayer(ctx context.Context, l layer, tw *tar.Writer) error {
	d := l.descriptor()
	name := blobsDir + d.Digest.Encoded()
	if l.Blob != "" {
		f, err := os.Open(s.path(name))
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		return exportFile(tw, name, d.Size, f)
	}
	if err := exportFile(tw, name, d.Size, nil); err != nil {
		return err
	}
	got, err := s.digestTree(ctx, l, tw)
	if errors.Is(err, tar.ErrWriteTooLong) || (err == nil && got != l.Tree) {
		s.condemn(l)
		return ErrCorrupt
	}
	return err
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
		got, err := s.digestTree(ctx, l, nil)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil || got != l.Tree {
			s.condemn(l)
			return fmt.Errorf("verify world %s: layer %s: %w", shortID(w.ID), shortID(l.DiffID), ErrCorrupt)
		}
	}
	return nil
}

// Import reads a world from an OCI image layout tar, names it when name is not empty, and
// answers the world that is there already when it is. A refused archive is a
// *RecipeError and leaves nothing.
func (s *Store) Import(ctx context.Context, r io.Reader, name string, p Progress) (World, error) {
	if p == nil {
		p = func(string, int64, int64) {}
	}
	if name != "" {
		if err := checkName(name); err != nil {
			return World{}, err
		}
	}
	land, err := s.takeOff(ctx, fmt.Sprintf("import %p %d", r, time.Now().UnixNano())) // tells Strays that tmp is in use
	if err != nil {
		return World{}, err
	}
	defer land()
	spool, err := os.MkdirTemp(s.path("tmp"), tmpPrefix+"import-*")
	if err != nil {
		return World{}, fmt.Errorf("import: %w", err)
	}
	defer func() { _ = os.RemoveAll(spool) }()
	im := &importing{store: s, dir: spool, blobs: map[string]int64{}, progress: p}
	w, err := im.run(ctx, r)
	if err != nil {
		return World{}, err
	}
	if err := s.point(name, w.ID); err != nil {
		return World{}, err
	}
	return s.World(ctx, w.ID)
}

// importing is one import.
type importing struct {
	store    *Store
	dir      string
	index    []byte
	blobs    map[string]int64 // size by digest in hex; each was checked
	progress Progress
}

func (im *importing) run(ctx context.Context, r io.Reader) (World, error) {
	if err := im.spool(ctx, r); err != nil {
		return World{}, err
	}
	manifest, err := im.manifest()
	if err != nil {
		return World{}, err
	}
	config, err := im.meta(manifest.Config.Digest)
	if err != nil {
		return World{}, err
	}
	said, diffIDs, err := decodeImage(config)
	if err != nil {
		return World{}, err
	}
	if len(diffIDs) != len(manifest.Layers) {
		return World{}, refuse("bad_archive", "manifest", "%d layers, the config says %d", len(manifest.Layers), len(diffIDs))
	}
	in := sealing{
		world: World{Recipe: "oci", Created: time.Now().UTC()}, config: said, image: config,
		stages: map[string]*staging{}, blobs: map[string]string{},
	}
	defer func() {
		for _, st := range in.stages {
			st.discard()
		}
	}()
	var below lowerDir // topmost first, for directories that a layer implies
	defer func() { below.close() }()
	for i, d := range manifest.Layers {
		l, err := im.layer(ctx, &in, d, diffIDs[i], below)
		if err != nil {
			return World{}, err
		}
		in.layers = append(in.layers, l)
		place := im.store.layerDir(l)
		if st := in.stages[l.DiffID]; st != nil {
			place = st.path
		}
		fd, err := openDir(place)
		if err != nil {
			return World{}, err
		}
		below = append(lowerDir{fd}, below...)
	}
	im.progress("seal", 0, 0)
	for _, st := range in.stages {
		if err := st.sync(); err != nil {
			return World{}, err
		}
	}
	return im.store.seal(in)
}

// spool keeps an image layout's blobs in files and checks their digests.
func (im *importing) spool(ctx context.Context, r io.Reader) error {
	in, end, err := decompress(r, im.store.opts.Limits)
	if err != nil {
		return err
	}
	defer end()
	tr := tar.NewReader(&cancelled{ctx, in})
	for n := 0; ; n++ {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			return badArchive(err)
		}
		if n > maxBlobs {
			return refuse("world_too_large", "", "more than %d files in the image layout", maxBlobs)
		}
		im.progress("read", int64(n), 0)
		if err := im.file(h, tr); err != nil {
			return err
		}
	}
	if im.index == nil {
		return refuse("bad_archive", "index.json", "missing: not an OCI image layout (for an archive of `docker save`, Docker 25 or newer writes one)")
	}
	return nil
}

func (im *importing) file(h *tar.Header, body io.Reader) error {
	p, err := cleanPath(h.Name)
	if err != nil || h.Typeflag != tar.TypeReg {
		return err // directories say nothing; links and devices are never read
	}
	if p == specs.ImageIndexFile {
		if h.Size > maxMeta {
			return refuse("world_too_large", p, "more than %d bytes", maxMeta)
		}
		if im.index != nil {
			return refuse("duplicate_entry", p, "twice in the archive")
		}
		if im.index, err = io.ReadAll(body); err != nil {
			return badArchive(err)
		}
		return nil
	}
	name, ok := strings.CutPrefix(p, blobsDir)
	if !ok {
		return nil
	}
	if digest.Digest(digestPrefix+name).Validate() != nil {
		return refuse("bad_archive", p, "name is no digest")
	}
	if _, twice := im.blobs[name]; twice {
		return refuse("duplicate_entry", p, "twice in the archive")
	}
	f, err := os.OpenFile(filepath.Join(im.dir, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("import: %w", err)
	}
	defer func() { _ = f.Close() }()
	hash := sha256.New()
	src := &faulty{r: body}
	n, err := io.Copy(io.MultiWriter(f, hash), src)
	if src.err != nil {
		return badArchive(src.err)
	}
	if err != nil {
		return fmt.Errorf("import: %w", err)
	}
	if hex.EncodeToString(hash.Sum(nil)) != name {
		return refuse("bad_archive", p, "contents do not match the digest")
	}
	im.blobs[name] = n
	return nil
}

// meta reads a small blob.
func (im *importing) meta(d digest.Digest) ([]byte, error) {
	if d.Validate() != nil || d.Algorithm() != digest.SHA256 {
		return nil, refuse("bad_archive", "", "digest %q", d)
	}
	size, ok := im.blobs[d.Encoded()]
	if !ok {
		return nil, refuse("bad_archive", blobsDir+d.Encoded(), "missing from the archive")
	}
	if size > maxMeta {
		return nil, refuse("world_too_large", blobsDir+d.Encoded(), "more than %d bytes", maxMeta)
	}
	return os.ReadFile(filepath.Join(im.dir, d.Encoded()))
}

// manifest finds the image of this host's platform.
func (im *importing) manifest() (specs.Manifest, error) {
	text := im.index
	for range maxIndexDepth {
		var index specs.Index
		if err := json.Unmarshal(text, &index); err != nil {
			return specs.Manifest{}, refuse("bad_archive", "index.json", "%v", err)
		}
		d, err := choose(index.Manifests)
		if err != nil {
			return specs.Manifest{}, err
		}
		if text, err = im.meta(d.Digest); err != nil {
			return specs.Manifest{}, err
		}
		var m specs.Manifest
		if err := json.Unmarshal(text, &m); err != nil {
			return specs.Manifest{}, refuse("bad_archive", "manifest", "%v", err)
		}
		if m.Config.Digest != "" {
			return m, nil
		}
	}
	return specs.Manifest{}, refuse("bad_archive", "index.json", "no manifest after %d indexes", maxIndexDepth)
}

func choose(list []specs.Descriptor) (specs.Descriptor, error) {
	var fit []specs.Descriptor
	for _, d := range list {
		if d.Annotations["vnd.docker.reference.type"] != "" {
			continue // an attestation, no image
		}
		if d.Platform == nil || (d.Platform.OS == "linux" && d.Platform.Architecture == runtime.GOARCH) {
			fit = append(fit, d)
		}
	}
	if len(fit) != 1 {
		return specs.Descriptor{}, refuse("bad_archive", "index.json", "%d images for linux/%s among %d; one is needed", len(fit), runtime.GOARCH, len(list))
	}
	return fit[0], nil
}

// layer unpacks a layer that the store does not have.
func (im *importing) layer(ctx context.Context, in *sealing, d specs.Descriptor, diffID string, below lowerDir) (layer, error) {
	for _, l := range in.layers {
		if l.DiffID == diffID {
			return l, nil // an empty layer may come twice
		}
	}
	if l, ok := im.store.have(diffID); ok {
		return l, nil
	}
	if d.Digest.Validate() != nil {
		return layer{}, refuse("bad_archive", "manifest", "digest %q", d.Digest)
	}
	name := d.Digest.Encoded()
	if _, ok := im.blobs[name]; !ok {
		return layer{}, refuse("bad_archive", blobsDir+name, "missing from the archive")
	}
	blob := filepath.Join(im.dir, name)
	st, err := im.store.newStage()
	if err != nil {
		return layer{}, err
	}
	in.stages[diffID] = st
	got, err := im.unpack(ctx, blob, st.fd, below)
	if err != nil {
		return layer{}, err
	}
	if got != diffID {
		return layer{}, refuse("bad_archive", blobsDir+name, "unpacks to %s, the config says %s", got, diffID)
	}
	l, err := measure(ctx, st.fd, im.progress)
	if err != nil {
		return layer{}, err
	}
	l.DiffID = diffID
	if digestPrefix+l.Tree != diffID {
		// Not the canonical tar: kept as it came, since it cannot be made again.
		l.Blob, l.BlobType, l.BlobSize = name, d.MediaType, im.blobs[name]
		in.blobs[name] = blob
	}
	return l, nil
}

func (s *Store) have(diffID string) (layer, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l, ok := s.index.Layers[diffID]
	return l, ok && !s.corrupt[diffID]
}

// unpack writes an OCI layer and answers the digest of the whole tar.
func (im *importing) unpack(ctx context.Context, blob string, root int, below lowerDir) (string, error) {
	f, err := os.OpenFile(blob, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	r, end, err := decompress(f, im.store.opts.Limits)
	if err != nil {
		return "", err
	}
	defer end()
	hash := sha256.New()
	all := io.TeeReader(&cancelled{ctx, r}, hash)
	t := newTree(root, im.store.opts.Limits)
	t.implied = func(p string) (*entry, error) {
		e, err := below.at(p)
		if err != nil || e == nil || e.kind != typeDir {
			return nil, err
		}
		return e, nil
	}
	u := &unpacking{tree: t, whiteouts: true, step: "unpack", edit: func(e *entry) (bool, error) {
		// /dev is the sandbox's own; images made from old root file systems have nodes there.
		return strings.HasPrefix(e.path, "dev/") && (e.kind == typeChar || e.kind == typeBlock), nil
	}}
	if err := errors.Join(u.unpack(ctx, all, im.progress), t.close()); err != nil {
		return "", err
	}
	if _, err := io.Copy(io.Discard, all); err != nil { // padding belongs to the digest
		return "", badArchive(err)
	}
	return digestPrefix + hex.EncodeToString(hash.Sum(nil)), nil
}
