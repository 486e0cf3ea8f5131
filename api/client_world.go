package api

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strconv"
)

// Worlds lists the worlds.
func (c *Client) Worlds(ctx context.Context) ([]World, error) {
	out, err := get[Worlds](ctx, c, "/v1/worlds", nil)
	return out.Worlds, err
}

// World finds a world by id, unique prefix of one, or name.
func (c *Client) World(ctx context.Context, ref string) (World, error) {
	return get[World](ctx, c, "/v1/worlds/"+segment(ref), nil)
}

// RemoveWorld removes a world that nothing uses.
func (c *Client) RemoveWorld(ctx context.Context, ref string) error {
	return c.do(ctx, call{method: http.MethodDelete, path: "/v1/worlds/" + segment(ref)}, nil, nil)
}

// BuildWorld builds a world; progress, which may be nil, is told how far it is.
func (c *Client) BuildWorld(ctx context.Context, recipe Recipe, progress func(Progress)) (Built, error) {
	body, err := json.Marshal(recipe)
	if err != nil {
		return Built{}, &Error{Kind: BadRequest, Detail: err.Error()}
	}
	return c.build(ctx, call{method: http.MethodPost, path: "/v1/worlds", media: MediaJSON, body: newReader(body)}, progress)
}

// BuildWorldFrom builds a world from a tar (plain, gzip or zstd) that the client sends;
// recipe says the rest. Users other than root build this way: the daemon reads no files
// of the host for them.
func (c *Client) BuildWorldFrom(ctx context.Context, recipe Recipe, tar io.Reader, progress func(Progress)) (Built, error) {
	body, err := json.Marshal(recipe)
	if err != nil {
		return Built{}, &Error{Kind: BadRequest, Detail: err.Error()}
	}
	return c.build(ctx, call{
		method: http.MethodPost, path: "/v1/worlds", media: MediaTar, body: tar,
		header: http.Header{HeaderRecipe: {ascii(body)}},
	}, progress)
}

// BuildDockerfile builds a world from a recipe with a Dockerfile. context, unless nil, is its
// context as a tar, which the client sends; log, unless nil, is told what is built and what
// commands write.
func (c *Client) BuildDockerfile(ctx context.Context, recipe Recipe, context io.Reader, log io.Writer) (Built, error) {
	body, err := json.Marshal(recipe)
	if err != nil {
		return Built{}, &Error{Kind: BadRequest, Detail: err.Error()}
	}
	r := call{method: http.MethodPost, path: "/v1/worlds", media: MediaJSON, body: newReader(body)}
	if context != nil {
		r.media, r.body, r.header = MediaTar, context, http.Header{HeaderRecipe: {ascii(body)}}
	}
	end, err := c.eventsLog(ctx, r, nil, log)
	if err != nil {
		return Built{}, err
	}
	if end.Built == nil {
		return Built{}, &Error{Kind: ConnectionLost, Detail: "the stream ended without a world"}
	}
	return *end.Built, nil
}

// ImportWorld imports an image archive that the client sends: an OCI image layout tar or
// one of `docker save`, plain, gzip or zstd. in says the rest; its Path must be empty.
func (c *Client) ImportWorld(ctx context.Context, in ImportSpec, tar io.Reader, progress func(Progress)) (World, error) {
	q := url.Values{}
	for key, value := range map[string]string{"name": in.Name, "image": in.Image} {
		if value != "" {
			q.Set(key, value)
		}
	}
	built, err := c.build(ctx, call{method: http.MethodPost, path: "/v1/imports", query: q, media: MediaTar, body: tar}, progress)
	return built.World, err
}

// ImportWorldFrom imports an image from where the daemon reads it.
func (c *Client) ImportWorldFrom(ctx context.Context, in ImportSpec, progress func(Progress)) (World, error) {
	body, err := json.Marshal(in)
	if err != nil {
		return World{}, &Error{Kind: BadRequest, Detail: err.Error()}
	}
	built, err := c.build(ctx, call{method: http.MethodPost, path: "/v1/imports", media: MediaJSON, body: newReader(body)}, progress)
	return built.World, err
}

// PushWorld sends a world to a registry as an image and answers the reference of its
// manifest.
func (c *Client) PushWorld(ctx context.Context, ref string, to Registry, progress func(Progress)) (string, error) {
	body, err := json.Marshal(to)
	if err != nil {
		return "", &Error{Kind: BadRequest, Detail: err.Error()}
	}
	end, err := c.events(ctx, call{method: http.MethodPost, path: "/v1/worlds/" + segment(ref) + "/push", media: MediaJSON, body: newReader(body)}, progress)
	return end.Pushed, err
}

// NameWorld points a name at a world, whatever it meant before.
func (c *Client) NameWorld(ctx context.Context, name, ref string) (World, error) {
	return post[World](ctx, c, "/v1/worlds/"+segment(ref)+"/names", WorldName{Name: name})
}

// CollectWorlds removes worlds that nothing needs.
func (c *Client) CollectWorlds(ctx context.Context, in Collection) (Collected, error) {
	return post[Collected](ctx, c, "/v1/collections", in)
}

// ExportWorld writes a world as an OCI image layout tar that `docker load` takes as well.
func (c *Client) ExportWorld(ctx context.Context, ref string, w io.Writer) error {
	return c.copy(ctx, call{method: http.MethodGet, path: "/v1/worlds/" + segment(ref) + "/export"}, w)
}

func (c *Client) build(ctx context.Context, r call, progress func(Progress)) (Built, error) {
	end, err := c.events(ctx, r, progress)
	if err != nil {
		return Built{}, err
	}
	if end.Built == nil {
		return Built{}, &Error{Kind: ConnectionLost, Detail: "the stream ended without a world"}
	}
	return *end.Built, nil
}

// events reads a stream to its last event, which is no progress.
func (c *Client) events(ctx context.Context, r call, progress func(Progress)) (BuildEvent, error) {
	return c.eventsLog(ctx, r, progress, io.Discard)
}

func (c *Client) eventsLog(ctx context.Context, r call, progress func(Progress), log io.Writer) (BuildEvent, error) {
	var last *BuildEvent
	err := c.lines(ctx, r, func(line []byte) error {
		var e BuildEvent
		if err := json.Unmarshal(line, &e); err != nil {
			return &Error{Kind: ConnectionLost, Detail: "a line of the stream is no event: " + err.Error()}
		}
		switch {
		case e.Error != nil:
			return e.Error
		case e.Built != nil, e.Pushed != "":
			last = &e
		case e.Progress != nil && progress != nil:
			progress(*e.Progress)
		case e.Log != "" && log != nil:
			_, err := io.WriteString(log, e.Log)
			return err
		}
		return nil
	})
	if err != nil {
		return BuildEvent{}, err
	}
	if last == nil {
		return BuildEvent{}, &Error{Kind: ConnectionLost, Detail: "the stream ended without a result"}
	}
	return *last, nil
}

// copy writes a raw answer to w.
func (c *Client) copy(ctx context.Context, r call, w io.Writer) error {
	resp, err := c.send(ctx, r)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if _, err := io.Copy(w, resp.Body); err != nil {
		return c.explain(ctx, err)
	}
	return nil
}

// Policies lists the policies.
func (c *Client) Policies(ctx context.Context) ([]Policy, error) {
	out, err := get[Policies](ctx, c, "/v1/policies", nil)
	return out.Policies, err
}

// Policy shows one policy with the runtime-spec that it makes.
func (c *Client) Policy(ctx context.Context, name string) (Policy, error) {
	return get[Policy](ctx, c, "/v1/policies/"+segment(name), nil)
}

// OpenSimulator makes sure that a kind of environment works and keeps sandboxes ready for
// it. Asked again it takes them up anew.
func (c *Client) OpenSimulator(ctx context.Context, spec SimulatorSpec) (Simulator, error) {
	return post[Simulator](ctx, c, "/v1/simulators", spec)
}

// Simulator returns an open simulator.
func (c *Client) Simulator(ctx context.Context, id string) (Simulator, error) {
	return get[Simulator](ctx, c, "/v1/simulators/"+segment(id), nil)
}

// Snapshots lists snapshots of environments in order of their ids: at most so many, 1000
// unless more than 0, after an id.
func (c *Client) Snapshots(ctx context.Context, after string, most int) (Snapshots, error) {
	q := url.Values{}
	if after != "" {
		q.Set("after", after)
	}
	if most > 0 {
		q.Set("max", strconv.Itoa(most))
	}
	return get[Snapshots](ctx, c, "/v1/snapshots", q)
}

// Snapshot returns a snapshot of an environment.
func (c *Client) Snapshot(ctx context.Context, id string) (Snapshot, error) {
	return get[Snapshot](ctx, c, "/v1/snapshots/"+segment(id), nil)
}

// DropSnapshot forgets a snapshot. Environments that were restored from it go on.
func (c *Client) DropSnapshot(ctx context.Context, id string) error {
	return c.do(ctx, call{method: http.MethodDelete, path: "/v1/snapshots/" + segment(id)}, nil, nil)
}
