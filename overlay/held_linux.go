package overlay

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	specs "github.com/opencontainers/image-spec/specs-go/v1"
)

// Held is a world as an image that goes out: pinned until Release.
type Held struct {
	// World is the world, Config its image config and Manifest the manifest that lists
	// Blobs. The same world has the same bytes.
	World    World
	Config   []byte
	Manifest []byte
	// Blobs are the layers as they go out, the lowest first.
	Blobs   []specs.Descriptor
	store   *Store
	layers  []layer
	release func()
}

// Hold gives a world by id, unique prefix or name as an image. ErrCorrupt; a
// RecipeError says that an image cannot hold the world.
func (s *Store) Hold(ref string) (*Held, error) {
	world, layers, release, err := s.pin(ref)
	if err != nil {
		return nil, err
	}
	for _, l := range layers {
		if l.Literal != "" {
			release()
			return nil, refuse("unsupported_entry", l.Literal, "an image cannot hold a name that begins with %s, which deletes what is below", whiteoutMark)
		}
	}
	h := &Held{World: world, store: s, layers: layers, release: release}
	if err := h.read(); err != nil {
		release()
		return nil, fmt.Errorf("export world %s: %w", shortID(world.ID), err)
	}
	return h, nil
}

func (h *Held) read() (err error) {
	if h.Config, err = os.ReadFile(h.store.path(blobsDir + strings.TrimPrefix(h.World.ID, digestPrefix))); err != nil {
		return err
	}
	if digestPrefix+sum(h.Config) != h.World.ID {
		return ErrCorrupt
	}
	for _, l := range h.layers {
		h.Blobs = append(h.Blobs, l.descriptor())
	}
	h.Manifest, err = encodeManifest(h.World.ID, h.World.ConfigBytes, h.layers)
	return err
}

// Release lets the world be removed; it may be called again.
func (h *Held) Release() { h.release() }

// Write writes the blob with number i of Blobs. ErrCorrupt, noticed while writing, leaves it
// unfinished or wrong.
func (h *Held) Write(ctx context.Context, i int, w io.Writer) error {
	l := h.layers[i]
	if l.Blob == "" {
		return h.store.writeTar(ctx, l, w)
	}
	f, err := os.Open(h.store.path(blobsDir + l.Blob))
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	n, err := io.Copy(w, f)
	if err == nil && n != l.BlobSize {
		return ErrCorrupt
	}
	return err
}
