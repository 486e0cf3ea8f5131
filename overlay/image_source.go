package overlay

import (
	"context"
	"io"
)

// Image is an image from elsewhere, as Store.Add takes it.
type Image struct {
	// Config is the image config as it came: its digest is the world's id.
	Config []byte
	// Layers are the layers, the lowest first, as many as the config has diffIDs.
	Layers []Blob
	// Origin says to people what it came from; it becomes World.Recipe.
	Origin string
}

// Blob is one layer of an Image: a tar, plain, gzip or zstd, whatever MediaType says.
type Blob struct {
	// Digest is of the bytes as they come, "sha256:..."; empty where nobody said one. It is
	// held against them.
	Digest string
	// MediaType and Size are what the image says of them; they may be empty and 0.
	MediaType string
	Size      int64
	// Open gives the bytes from the first one on. It is called for a layer that the store
	// does not have, twice when the layer's blob has to be kept.
	Open func(ctx context.Context) (io.ReadCloser, error)
}

// Source is where an image is imported from: exactly one of Path, Stream and Remote.
type Source struct {
	// Path is an archive or an OCI layout directory of this host.
	Path string
	// Stream is an archive's bytes.
	Stream io.Reader
	// Remote is an image of a registry.
	Remote *Remote
	// Image picks one by its name where an archive holds several.
	Image string
}

// Remote names an image of a registry, and how to ask for it.
type Remote struct {
	// Ref is as HOST/NAME:TAG or HOST/NAME@sha256:...; short forms mean docker.io.
	Ref string
	// Username and Password, or Token, authenticate; without, the request is anonymous.
	// They are used for this one transfer and never kept or logged.
	Username, Password string
	Token              string
	// Config: where none is given, use those of the usual Docker config of this process's
	// user.
	Config bool
	// PlainHTTP says that the registry speaks no TLS; one on loopback need not say so.
	PlainHTTP bool
}

// Check refuses what is not exactly one source.
func (s Source) Check() error {
	n := 0
	for _, set := range []bool{s.Path != "", s.Stream != nil, s.Remote != nil} {
		if set {
			n++
		}
	}
	if n != 1 {
		return refuse("bad_recipe", "", "exactly one of path, stream and remote must be set, not %d", n)
	}
	if s.Remote != nil && s.Image != "" {
		return refuse("bad_recipe", "", "image picks one of an archive's; a registry's is named by its reference")
	}
	return nil
}
