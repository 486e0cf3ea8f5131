package runner

import (
	"context"
	"errors"
	"io"

	"github.com/paddock-run/paddock/overlay"
)

// BuildWorld builds a world.
func (r *Runner) BuildWorld(ctx context.Context, recipe overlay.Recipe, p overlay.Progress) (overlay.Built, error) {
	built, err := r.cfg.Worlds.Build(ctx, recipe, p)
	if err == nil {
		r.health.lift(built.World.ID)
	}
	return built, err
}

// ImportWorld makes an image a world.
func (r *Runner) ImportWorld(ctx context.Context, from overlay.Source, name string, p overlay.Progress) (overlay.World, error) {
	w, err := r.cfg.Worlds.Import(ctx, from, name, p)
	if err == nil {
		r.health.lift(w.ID)
	}
	return w, err
}

// ExportWorld writes a world as an OCI image layout tar.
func (r *Runner) ExportWorld(ctx context.Context, ref string, w io.Writer) error {
	return worldErr(r.cfg.Worlds.Export(ctx, ref, w))
}

// World resolves an id, a unique prefix of one, or a name.
func (r *Runner) World(ctx context.Context, ref string) (overlay.World, error) {
	w, err := r.cfg.Worlds.World(ctx, ref)
	return w, worldErr(err)
}

// Worlds lists the worlds.
func (r *Runner) Worlds(ctx context.Context) ([]overlay.World, error) {
	return r.cfg.Worlds.List(ctx)
}

// RemoveWorld removes a world that nothing uses.
func (r *Runner) RemoveWorld(ctx context.Context, ref string) error {
	if w, err := r.cfg.Worlds.World(ctx, ref); err == nil {
		r.stock.forget(w.ID)
		r.ready.forget(w.ID)
	}
	return worldErr(r.cfg.Worlds.Remove(ctx, ref))
}

func worldErr(err error) error {
	if nf, ok := errors.AsType[*overlay.NotFoundError](err); ok {
		return &Error{
			Kind: KindUnknownWorld, Field: "world",
			Detail: nf.Error() + "; `paddock world ls` lists those here, `paddock world build` and `paddock world import` make one",
		}
	}
	if errors.Is(err, overlay.ErrInUse) {
		return &Error{Kind: KindInUse, Detail: err.Error()}
	}
	return err
}
