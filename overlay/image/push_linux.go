package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/gzip"
	"github.com/opencontainers/go-digest"
	specsgo "github.com/opencontainers/image-spec/specs-go"
	specs "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/paddock-run/paddock/overlay"
)

// Push sends a world to a registry as an image, under the reference's tag, and answers the
// reference of its manifest. Layers go as gzip, which every engine reads, and those that the
// registry has are not sent. *overlay.RegistryError; overlay.ErrCorrupt.
func (w Worlds) Push(ctx context.Context, ref string, to overlay.Remote, progress overlay.Progress) (string, error) {
	if progress == nil {
		progress = func(string, int64, int64) {}
	}
	target, auth, err := parse(to)
	if err != nil {
		return "", err
	}
	if _, ok := target.(name.Digest); ok {
		return "", refuse("bad_recipe", to.Ref, "a push names a tag; the digest is what comes of it")
	}
	held, err := w.Hold(ref)
	if err != nil {
		return "", err
	}
	defer held.Release()
	scratch, drop, err := w.Scratch()
	if err != nil {
		return "", fmt.Errorf("push: %w", err)
	}
	defer drop()
	img, err := pack(ctx, held, scratch, progress)
	if err != nil {
		return "", fmt.Errorf("push world %.19s: %w", held.World.ID, err)
	}
	image, err := partial.CompressedToImage(img)
	if err != nil {
		return "", err
	}
	updates := make(chan v1.Update, 64)
	told := make(chan struct{})
	go func() { // ends with the write, which closes the channel
		defer close(told)
		for u := range updates {
			if u.Error == nil {
				progress("push", u.Complete, u.Total)
			}
		}
	}()
	err = remote.Write(target, image, remote.WithContext(ctx), remote.WithAuth(auth), remote.WithProgress(updates))
	<-told
	if err != nil {
		return "", failed(ctx, to.Ref, err)
	}
	return target.Context().Digest(digest.FromBytes(img.manifest).String()).String(), nil
}

// packed is a world as an image whose layers lie compressed in files.
type packed struct {
	config, manifest []byte
	layers           map[v1.Hash]packedLayer
}

type packedLayer struct {
	specs.Descriptor
	path string
}

func pack(ctx context.Context, held *overlay.Held, scratch string, progress overlay.Progress) (*packed, error) {
	p := &packed{config: held.Config, layers: map[v1.Hash]packedLayer{}}
	m := specs.Manifest{
		Versioned: specsgo.Versioned{SchemaVersion: 2}, MediaType: specs.MediaTypeImageManifest,
		Config: specs.Descriptor{MediaType: specs.MediaTypeImageConfig, Digest: digest.FromBytes(held.Config), Size: int64(len(held.Config))},
		Layers: []specs.Descriptor{},
	}
	done := map[digest.Digest]packedLayer{}
	for i, d := range held.Blobs {
		progress("compress", int64(i), int64(len(held.Blobs)))
		l, ok := done[d.Digest]
		if !ok {
			var err error
			if l, err = packLayer(ctx, held, i, filepath.Join(scratch, fmt.Sprint(i))); err != nil {
				return nil, fmt.Errorf("layer %s: %w", d.Digest, err)
			}
			done[d.Digest] = l
		}
		p.layers[v1.Hash{Algorithm: "sha256", Hex: l.Digest.Encoded()}] = l
		m.Layers = append(m.Layers, l.Descriptor)
	}
	var err error
	p.manifest, err = json.Marshal(m)
	return p, err
}

// packLayer writes a layer to a file: gzip, unless it goes out as the blob that it came in.
func packLayer(ctx context.Context, held *overlay.Held, i int, path string) (packedLayer, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return packedLayer{}, err
	}
	defer func() { _ = f.Close() }()
	l := packedLayer{Descriptor: held.Blobs[i], path: path}
	if l.MediaType != specs.MediaTypeImageLayer {
		return l, held.Write(ctx, i, f)
	}
	sum := digest.Canonical.Digester()
	z, err := gzip.NewWriterLevel(io.MultiWriter(f, sum.Hash()), gzip.BestSpeed)
	if err != nil {
		return l, err
	}
	if err := errors.Join(held.Write(ctx, i, z), z.Close()); err != nil {
		return l, err
	}
	info, err := f.Stat()
	if err != nil {
		return l, err
	}
	l.Descriptor = specs.Descriptor{MediaType: specs.MediaTypeImageLayerGzip, Digest: sum.Digest(), Size: info.Size()}
	return l, nil
}

// RawConfigFile, MediaType, RawManifest and LayerByDigest are as of
// partial.CompressedImageCore.
func (p *packed) RawConfigFile() ([]byte, error) { return p.config, nil }

// MediaType is the manifest's.
func (p *packed) MediaType() (types.MediaType, error) { return types.OCIManifestSchema1, nil }

// RawManifest is the manifest as it is sent.
func (p *packed) RawManifest() ([]byte, error) { return p.manifest, nil }

// LayerByDigest gives a layer.
func (p *packed) LayerByDigest(h v1.Hash) (partial.CompressedLayer, error) {
	l, ok := p.layers[h]
	if !ok {
		return nil, fmt.Errorf("no layer %s", h)
	}
	return sentLayer{l}, nil
}

// sentLayer is a packedLayer as the library asks for it.
type sentLayer struct{ l packedLayer }

// Digest is of the compressed bytes.
func (s sentLayer) Digest() (v1.Hash, error) {
	return v1.Hash{Algorithm: "sha256", Hex: s.l.Digest.Encoded()}, nil
}

// Compressed gives the bytes.
func (s sentLayer) Compressed() (io.ReadCloser, error) { return os.Open(s.l.path) }

// Size is of the compressed bytes.
func (s sentLayer) Size() (int64, error) { return s.l.Size, nil }

// MediaType is the layer's.
func (s sentLayer) MediaType() (types.MediaType, error) {
	return types.MediaType(s.l.MediaType), nil
}
