package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"strings"

	"github.com/paddock-run/paddock/api"
	"github.com/paddock-run/paddock/overlay"
	"github.com/paddock-run/paddock/policies"
)

func (s *Server) listWorlds(q *request, _ empty) (api.Worlds, error) {
	worlds, err := s.run.Worlds(q.Context(), q.owner())
	return api.Worlds{Worlds: mapAll(worlds, wireWorld)}, err
}

func (s *Server) getWorld(q *request, _ empty) (api.World, error) {
	w, err := s.run.World(q.Context(), q.owner(), q.PathValue("world"))
	if err != nil {
		return api.World{}, err
	}
	return wireWorld(w), nil
}

func (s *Server) removeWorld(q *request, _ empty) (empty, error) {
	return empty{}, s.run.RemoveWorld(q.Context(), q.owner(), q.PathValue("world"))
}

// buildWorld streams how far the build is, then what was built.
func (s *Server) buildWorld(q *request) error {
	in, discard, err := s.readRecipe(q)
	if err != nil {
		return err
	}
	defer discard()
	if in.Dockerfile != nil {
		return s.buildDockerfile(q, in)
	}
	return s.streamBuild(q, func(ctx context.Context, p overlay.Progress) (api.Built, error) {
		built, err := s.run.BuildWorld(ctx, q.owner(), recipe(in), p)
		if err != nil {
			return api.Built{}, err
		}
		return api.Built{World: wireWorld(built.World), Hit: built.Hit, Network: built.Network, TookS: built.Took.Seconds()}, nil
	})
}

// readRecipe reads a recipe, from the body or, when the body is the tar it speaks of,
// from the header. The daemon reads as root, so it opens paths of the host for root
// alone: for others that would be a way to read any file.
func (s *Server) readRecipe(q *request) (in api.Recipe, discard func(), err error) {
	if err := checkMedia(q.Request, api.MediaJSON, api.MediaTar); err != nil {
		return in, nil, err
	}
	if !strings.HasPrefix(q.Header.Get("Content-Type"), api.MediaTar) {
		if err := decodeBody(q.Request, q.route.maxBody, &in); err != nil {
			return in, nil, err
		}
		if (in.Dir != "" || in.Tar != "") && !q.peer.root() {
			return in, nil, &api.Error{
				Kind: api.PermissionDenied, Field: "/dir",
				Detail: "the daemon reads files of the host for root alone",
				Hint:   "send the directory as a tar: Content-Type application/x-tar, the recipe in the header " + api.HeaderRecipe,
			}
		}
		return in, func() {}, nil
	}
	if text := q.Header.Get(api.HeaderRecipe); text != "" {
		if err := decode([]byte(text), &in); err != nil {
			return in, nil, err
		}
	}
	if in.Dir != "" || in.Tar != "" {
		return in, nil, &api.Error{Kind: api.BadRequest, Field: api.HeaderRecipe, Detail: "the body is the tar: neither dir nor tar may be set beside it"}
	}
	in.Tar, err = s.spool(q.Body)
	if err != nil {
		return in, nil, err
	}
	return in, func() { _ = os.Remove(in.Tar) }, nil
}

// spool keeps a body in a file for as long as it is worked on.
func (s *Server) spool(body io.Reader) (path string, err error) {
	f, err := os.CreateTemp(s.cfg.Spool, "upload-*")
	if err != nil {
		return "", err
	}
	if _, err := io.Copy(f, body); err != nil {
		if _, own := errors.AsType[*fs.PathError](err); own { // the file's fault, not the client's
			return "", errors.Join(err, f.Close(), os.Remove(f.Name()))
		}
		return "", errors.Join(&api.Error{Kind: api.BadRequest, Detail: "the tar broke off: " + err.Error()}, f.Close(), os.Remove(f.Name()))
	}
	if err := f.Close(); err != nil {
		return "", errors.Join(err, os.Remove(f.Name()))
	}
	return f.Name(), nil
}

// streamBuild does long work. As long as nothing was said, an error is an answer of its
// own with a status; after that it is the stream's last line.
func (s *Server) streamBuild(q *request, work func(context.Context, overlay.Progress) (api.Built, error)) error {
	return s.streamWork(q, func(ctx context.Context, p overlay.Progress) (api.BuildEvent, error) {
		built, err := work(ctx, p)
		return api.BuildEvent{Built: &built}, err
	})
}

func (s *Server) streamWork(q *request, work func(context.Context, overlay.Progress) (api.BuildEvent, error)) error {
	return s.streamTo(q, &lazyStream{q: q}, work)
}

func (s *Server) streamTo(q *request, lines *lazyStream, work func(context.Context, overlay.Progress) (api.BuildEvent, error)) error {
	progress := func(step string, done, total int64) {
		_ = lines.send(api.BuildEvent{Progress: &api.Progress{Step: step, Done: done, Total: total}})
	}
	last, err := work(q.Context(), progress)
	if err != nil && !q.began {
		return err
	}
	if err != nil {
		last = api.BuildEvent{Error: s.problem(q.route.ID, err)}
	}
	_ = lines.send(last)
	return nil
}

// begin sends the head of an answer of raw bytes.
func (q *request) begin(media string) {
	q.began = true
	q.w.Header().Set("Content-Type", media)
	q.w.WriteHeader(q.status)
}

func (s *Server) listPolicies(*request, empty) (api.Policies, error) {
	out := api.Policies{Policies: []api.Policy{}}
	for _, name := range s.cfg.Policies.Names() {
		p, err := s.cfg.Policies.Get(name)
		if err != nil {
			return out, err
		}
		out.Policies = append(out.Policies, wirePolicy(p))
	}
	return out, nil
}

func (s *Server) getPolicy(q *request, _ empty) (api.Policy, error) {
	p, err := s.cfg.Policies.Get(q.PathValue("policy"))
	if err != nil {
		return api.Policy{}, err
	}
	out := wirePolicy(p)
	spec, err := p.Spec(p.Defaults(), "paddock", "/workdir")
	if err != nil {
		return api.Policy{}, err
	}
	text, err := json.Marshal(spec)
	if err != nil {
		return api.Policy{}, err
	}
	return out, json.Unmarshal(text, &out.Spec)
}

func wirePolicy(p *policies.Policy) api.Policy {
	uid, gid := p.User()
	d := p.Defaults()
	return api.Policy{
		Name: p.Name(), Version: p.Version(), Description: p.Description(), Hash: p.Hash(), BuiltIn: p.BuiltIn(),
		Network: p.Network(), UID: uid, GID: gid,
		Defaults: api.PolicyLimits{CPUs: d.CPUs, Memory: d.MemoryBytes, Disk: d.DiskBytes, Inodes: d.Inodes, Pids: d.Pids},
		Env:      p.Env(0), Writable: p.Writable("/"), Refusals: p.Refusals(),
		Words: mapAll(p.Words(), func(w policies.Words) api.PolicyWords { return api.PolicyWords(w) }),
	}
}

func wireWorld(w overlay.World) api.World {
	return api.World{
		ID: w.ID, Layers: w.Layers, Names: w.Names, SizeBytes: w.SizeBytes, Entries: w.Entries,
		Recipe: w.Recipe, Key: w.Key, Created: w.Created, Dropped: w.Dropped,
		Config: api.WorldConfig{
			Env: w.Config.Env, WorkingDir: w.Config.WorkingDir, User: w.Config.User, Entrypoint: w.Config.Entrypoint,
			Cmd: w.Config.Cmd, Tools: mapAll(w.Config.Tools, func(t overlay.Tool) api.Tool { return api.Tool(t) }), Setup: w.Config.Setup,
			ImageWords: wireWords(w.Config.ImageWords),
		},
	}
}

func recipe(in api.Recipe) overlay.Recipe {
	r := overlay.Recipe{
		Base: in.Base, Dir: in.Dir, Tar: in.Tar, Busybox: in.Busybox, Into: in.Into, Ignore: in.Ignore,
		Config:  config(in.Config),
		Version: in.Version, Name: in.Name, Cache: in.Cache,
	}
	if in.Debian != nil {
		r.Debian = &overlay.Debian{Suite: in.Debian.Suite, Packages: in.Debian.Packages}
	}
	return r
}

func config(in api.WorldConfig) overlay.Config {
	return overlay.Config{
		Env: in.Env, WorkingDir: in.WorkingDir, User: in.User, Entrypoint: in.Entrypoint,
		Cmd: in.Cmd, Tools: mapAll(in.Tools, func(t api.Tool) overlay.Tool { return overlay.Tool(t) }), Setup: in.Setup,
		ImageWords: words(in.ImageWords),
	}
}

// mapAll keeps nil nil.
func mapAll[A, B any](all []A, f func(A) B) []B {
	if all == nil {
		return nil
	}
	out := make([]B, len(all))
	for i, a := range all {
		out[i] = f(a)
	}
	return out
}

func (s *Server) version(*request, empty) (api.VersionInfo, error) {
	return s.info(), nil
}

func (s *Server) health(q *request, _ empty) (api.Health, error) {
	if s.draining.Load() {
		q.status = http.StatusServiceUnavailable
		return api.Health{Status: "draining"}, nil
	}
	return api.Health{Status: "ok"}, nil
}
