package main

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/paddock-run/paddock/api"
	"github.com/paddock-run/paddock/internal/engine"
	"github.com/paddock-run/paddock/overlay"
)

// importDocker has a Docker Engine save an image and sends that along: the engine is asked
// with the rights of who runs paddock, never with the daemon's.
func (c *cli) importDocker(ctx context.Context, name string, in api.ImportSpec, progress func(api.Progress)) (api.World, error) {
	e, err := engine.Dial(ctx, "")
	if err != nil {
		return api.World{}, err
	}
	defer func() { _ = e.Close() }()
	archive, err := e.Save(ctx, name)
	if err != nil {
		return api.World{}, err
	}
	defer func() { _ = archive.Close() }()
	return c.client().ImportWorld(ctx, in, archive, progress)
}

// exportDocker loads a world into a Docker Engine under a name.
func (c *cli) exportDocker(ctx context.Context, name string, export func(io.Writer) error) error {
	e, err := engine.Dial(ctx, "")
	if err != nil {
		return err
	}
	defer func() { _ = e.Close() }()
	exported, out := io.Pipe()
	go func() { out.CloseWithError(export(out)) }()
	defer func() { _ = exported.Close() }() // ends the goroutines when the engine stops reading
	tagged, in := io.Pipe()
	go func() { in.CloseWithError(tagArchive(in, exported, overlay.FullName(name))) }()
	defer func() { _ = tagged.Close() }()
	if err := e.Load(ctx, tagged); err != nil {
		return err
	}
	id, err := e.ImageID(ctx, name)
	if err != nil {
		return err
	}
	return c.show(map[string]string{"image": id, "name": name}, func(w io.Writer) { fmt.Fprintln(w, id) })
}

// tagArchive copies an export and gives its image a name, for the engines that read
// manifest.json and for those that read index.json.
func tagArchive(w io.Writer, r io.Reader, name string) error {
	edits := map[string]func([]byte) ([]byte, error){
		"manifest.json": func(text []byte) ([]byte, error) {
			var list []map[string]any
			if err := json.Unmarshal(text, &list); err != nil {
				return nil, err
			}
			for _, one := range list {
				one["RepoTags"] = []string{name}
			}
			return json.Marshal(list)
		},
		"index.json": func(text []byte) ([]byte, error) {
			var index map[string]any
			if err := json.Unmarshal(text, &index); err != nil {
				return nil, err
			}
			list, _ := index["manifests"].([]any)
			for _, one := range list {
				if d, ok := one.(map[string]any); ok {
					d["annotations"] = map[string]string{"io.containerd.image.name": name}
				}
			}
			return json.Marshal(index)
		},
	}
	tr, tw := tar.NewReader(r), tar.NewWriter(w)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return tw.Close()
		}
		if err != nil {
			return err
		}
		body := io.Reader(tr)
		if edit := edits[h.Name]; edit != nil {
			text, err := io.ReadAll(tr)
			if err == nil {
				text, err = edit(text)
			}
			if err != nil {
				return fmt.Errorf("%s: %w", h.Name, err)
			}
			h.Size, body = int64(len(text)), bytes.NewReader(text)
		}
		if err := tw.WriteHeader(h); err != nil {
			return err
		}
		if _, err := io.Copy(tw, body); err != nil {
			return err
		}
	}
}
