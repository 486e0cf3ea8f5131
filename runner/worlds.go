package runner

import (
	"context"
	"errors"
	"io"
	"strings"

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

// PushWorld sends a world to a registry and answers the reference of its manifest.
func (r *Runner) PushWorld(ctx context.Context, owner, ref string, to overlay.Remote, p overlay.Progress) (string, error) {
	w, err := r.resolveWorld(ctx, owner, ref)
	if err != nil {
		return "", worldErr(err)
	}
	pushed, err := r.cfg.Worlds.Push(ctx, w.ID, to, p)
	return pushed, worldErr(err)
}

// NameWorld points a name at a world, whatever it meant before. A tenant's names are its
// own; root's are everybody's.
func (r *Runner) NameWorld(ctx context.Context, owner, name, ref string) (overlay.World, error) {
	w, err := r.resolveWorld(ctx, owner, ref)
	if err != nil {
		return w, worldErr(err)
	}
	if name == "" {
		return w, badField("name", "is needed")
	}
	if w, err = r.cfg.Worlds.Name(ctx, storedName(owner, name), w.ID); err != nil {
		return w, worldErr(err)
	}
	return seenBy(owner, w), r.hold(ctx, owner, w)
}

// CollectWorlds removes worlds that nothing needs, down to a bound. What an attempt that is
// kept was made of stays, since it may go on, be scored or be replayed, and so does what a
// kept batch's lines name. in.Needed is the runner's.
func (r *Runner) CollectWorlds(ctx context.Context, in overlay.Collection) (overlay.Collected, error) {
	r.holding.Lock()
	defer r.holding.Unlock()
	in.Needed = r.neededWorlds
	done, err := r.cfg.Worlds.Collect(ctx, in)
	if in.DryRun {
		return done, err
	}
	for _, w := range done.Removed {
		r.ready.forget(w.ID)
		err = errors.Join(err, r.cfg.Record.DeleteDocuments(ctx, holdersDocuments, w.ID+"/"))
	}
	return done, err
}

func (r *Runner) neededWorlds(ctx context.Context) ([]string, error) {
	refs, err := r.cfg.Record.Worlds(ctx)
	if err != nil {
		return nil, err
	}
	for after := ""; ; {
		docs, err := r.cfg.Record.Documents(ctx, lineDocuments, "", after, chunksPage)
		if err != nil {
			return nil, err
		}
		for _, d := range docs {
			after = d.Key
			lines, err := decodeDoc[[]keptLine](lineDocuments, d.Doc)
			if err != nil {
				return nil, err
			}
			owner, _, _ := strings.Cut(d.Key, "/")
			for _, l := range lines {
				w, err := r.resolveWorld(ctx, owner, l.Line.World)
				if _, none := errors.AsType[*overlay.NotFoundError](err); none {
					continue
				}
				if err != nil {
					return nil, err
				}
				refs = append(refs, w.ID)
			}
		}
		if len(docs) < chunksPage {
			return refs, nil
		}
	}
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
