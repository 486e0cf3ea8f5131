package daemon

import (
	"context"
	"path/filepath"
	"strings"

	"github.com/paddock-run/paddock/api"
	"github.com/paddock-run/paddock/overlay"
)

func (s *Server) importWorld(q *request) error {
	from, name, err := readImport(q)
	if err != nil {
		return err
	}
	return s.streamBuild(q, func(ctx context.Context, p overlay.Progress) (api.Built, error) {
		w, err := s.run.ImportWorld(ctx, q.owner(), from, name, p)
		if err != nil {
			return api.Built{}, err
		}
		return api.Built{World: wireWorld(w)}, nil
	})
}

// readImport reads which image to import: the body, or what it names.
func readImport(q *request) (from overlay.Source, name string, err error) {
	if err := checkMedia(q.Request, api.MediaBytes, api.MediaTar, api.MediaJSON); err != nil {
		return from, "", err
	}
	if !strings.HasPrefix(q.Header.Get("Content-Type"), api.MediaJSON) {
		return overlay.Source{Stream: q.Body, Image: q.query.text("image")}, q.query.text("name"), nil
	}
	var in api.ImportSpec
	if err := decodeBody(q.Request, smallBody, &in); err != nil {
		return from, "", err
	}
	if in.Path != "" && !q.peer.root() {
		return from, "", &api.Error{
			Kind: api.PermissionDenied, Field: "/path", Detail: "the daemon reads files of the host for root alone",
			Hint: "send the archive as the body: Content-Type application/x-tar",
		}
	}
	if in.Path != "" && !filepath.IsAbs(in.Path) {
		return from, "", &api.Error{Kind: api.BadRequest, Field: "/path", Detail: "must be absolute"}
	}
	from = overlay.Source{Path: in.Path, Image: in.Image}
	if in.Registry != nil {
		from.Remote, err = registryOf(q, *in.Registry)
	}
	return from, in.Name, err
}

// registryOf is what a request says of a registry. The daemon asks registries for those on its
// host alone: for others that would be a way to reach its network.
func registryOf(q *request, in api.Registry) (*overlay.Remote, error) {
	if q.peer.remote != "" {
		return nil, &api.Error{
			Kind: api.PermissionDenied, Field: "/registry", Detail: "registries are asked for clients on the daemon's host alone",
			Hint: "send the image's archive as the body: Content-Type application/x-tar",
		}
	}
	return &overlay.Remote{
		Ref: in.Ref, Username: in.Username, Password: in.Password, Token: in.Token, PlainHTTP: in.PlainHTTP, Config: q.peer.root(),
	}, nil
}

// pushWorld streams how far the transfer is, then what was pushed.
func (s *Server) pushWorld(q *request) error {
	var in api.Registry
	if err := decodeBody(q.Request, smallBody, &in); err != nil {
		return err
	}
	to, err := registryOf(q, in)
	if err != nil {
		return err
	}
	return s.streamWork(q, func(ctx context.Context, p overlay.Progress) (api.BuildEvent, error) {
		pushed, err := s.run.PushWorld(ctx, q.owner(), q.PathValue("world"), *to, p)
		return api.BuildEvent{Pushed: pushed}, err
	})
}

func (s *Server) exportWorld(q *request) error {
	return s.run.ExportWorld(q.Context(), q.owner(), q.PathValue("world"), &firstByte{q: q})
}

func (s *Server) nameWorld(q *request, in api.WorldName) (api.World, error) {
	w, err := s.run.NameWorld(q.Context(), q.owner(), in.Name, q.PathValue("world"))
	if err != nil {
		return api.World{}, err
	}
	return wireWorld(w), nil
}

func (s *Server) collectWorlds(q *request, in api.Collection) (api.Collected, error) {
	if in.MaxBytes < 0 {
		return api.Collected{}, &api.Error{Kind: api.BadRequest, Field: "/max_bytes", Detail: "must not be negative"}
	}
	if !q.peer.root() {
		return api.Collected{}, &api.Error{
			Kind: api.PermissionDenied, Detail: "a collection takes away worlds of all tenants, so it is root's",
			Hint: "remove worlds of your own with `paddock world rm`",
		}
	}
	done, err := s.run.CollectWorlds(q.Context(), overlay.Collection{MaxBytes: int64(in.MaxBytes), All: in.All, DryRun: in.DryRun})
	if err != nil {
		return api.Collected{}, err
	}
	out := api.Collected{Removed: []api.World{}, FreedBytes: done.FreedBytes, Bytes: done.Bytes, Needed: done.Needed, InUse: done.InUse, Named: done.Named}
	for _, w := range done.Removed {
		out.Removed = append(out.Removed, wireWorld(w))
	}
	return out, nil
}
