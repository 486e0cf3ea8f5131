package runner

import (
	"context"
	"errors"
	"io"

	"github.com/paddock-run/paddock/overlay"
)

// BuildWorld builds a world, which owner then holds.
func (r *Runner) BuildWorld(ctx context.Context, owner string, recipe overlay.Recipe, p overlay.Progress) (overlay.Built, error) {
	if err := r.ownRecipe(ctx, owner, &recipe); err != nil {
		return overlay.Built{}, err
	}
	built, err := r.cfg.Worlds.Build(ctx, recipe, p)
	if err != nil {
		return built, err
	}
	r.health.lift(built.World.ID)
	err = r.hold(ctx, owner, built.World)
	built.World = seenBy(owner, built.World)
	return built, err
}

// ownRecipe says in the store's words what a recipe's names mean to its owner.
func (r *Runner) ownRecipe(ctx context.Context, owner string, recipe *overlay.Recipe) error {
	recipe.Name = storedName(owner, recipe.Name)
	if recipe.Base == "" || owner == rootOwner {
		return nil
	}
	w, err := r.resolveWorld(ctx, owner, recipe.Base)
	if err == nil {
		recipe.Base = w.ID
		return nil
	}
	if _, there := r.cfg.Worlds.World(ctx, recipe.Base); there == nil {
		return worldErr(err) // another tenant's
	}
	return nil // the store says what is wrong with it
}

// ImportWorld makes an image a world, which owner then holds.
func (r *Runner) ImportWorld(ctx context.Context, owner string, from overlay.Source, name string, p overlay.Progress) (overlay.World, error) {
	w, err := r.cfg.Worlds.Import(ctx, from, storedName(owner, name), p)
	if err != nil {
		return w, err
	}
	r.health.lift(w.ID)
	return seenBy(owner, w), r.hold(ctx, owner, w)
}

// ExportWorld writes a world as an OCI image layout tar.
func (r *Runner) ExportWorld(ctx context.Context, owner, ref string, w io.Writer) error {
	if owner != rootOwner {
		found, err := r.resolveWorld(ctx, owner, ref)
		if err != nil {
			return worldErr(err)
		}
		ref = found.ID
	}
	return worldErr(r.cfg.Worlds.Export(ctx, ref, w))
}

// World resolves an id, a unique prefix of one, or a name, as owner sees them.
func (r *Runner) World(ctx context.Context, owner, ref string) (overlay.World, error) {
	w, err := r.resolveWorld(ctx, owner, ref)
	if err != nil {
		return w, worldErr(err)
	}
	return seenBy(owner, w), nil
}

// Worlds lists the worlds that owner sees: its own and root's; root sees all.
func (r *Runner) Worlds(ctx context.Context, owner string) ([]overlay.World, error) {
	all, err := r.cfg.Worlds.List(ctx)
	if err != nil || owner == rootOwner {
		return all, err
	}
	holders, err := r.holders(ctx, "")
	if err != nil {
		return nil, err
	}
	mine := []overlay.World{}
	for _, w := range all {
		if sees(owner, w, holders[w.ID]) {
			mine = append(mine, seenBy(owner, w))
		}
	}
	return mine, nil
}

// RemoveWorld removes a world that nothing uses. A tenant other than root lets go of it:
// others who hold it keep it.
func (r *Runner) RemoveWorld(ctx context.Context, owner, ref string) error {
	r.holding.Lock()
	defer r.holding.Unlock()
	w, err := r.resolveWorld(ctx, owner, ref)
	if err != nil {
		return worldErr(err)
	}
	if owner == rootOwner {
		return worldErr(r.removeWorld(ctx, ref, w))
	}
	return worldErr(r.letGo(ctx, owner, ref, w))
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
