package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/paddock-run/paddock/overlay"
)

// Worlds are shared by digest and named by tenant. Who built or imported a world holds it;
// equal recipes of two tenants give one world that both hold. Root's worlds and names are
// everybody's; another tenant's names are its own, come first for it, and say nothing to
// others. A full id may be used by anybody who knows it. A world is removed when its last
// holder removes it, so no tenant can take away another's.

// rootOwner is the tenant that root of the host is.
const rootOwner = "0"

// holdersDocuments are empty documents under the world's id and the tenant.
const holdersDocuments = "world_holders"

func holderKey(world, owner string) string { return world + "/" + owner + "/" }

// ownNames begins the names of tenants other than root in the store, which has one name
// space: t:TENANT:NAME.
const ownNames = "t:"

func storedName(owner, name string) string {
	if owner == rootOwner || name == "" {
		return name
	}
	return ownNames + owner + ":" + name
}

// seenBy is a world as a tenant sees it: with its own names and root's. Root sees all.
func seenBy(owner string, w overlay.World) overlay.World {
	if owner == rootOwner {
		return w
	}
	var names []string
	for _, n := range w.Names {
		if own, ok := strings.CutPrefix(n, ownNames+owner+":"); ok {
			names = append(names, own)
		} else if !strings.HasPrefix(n, ownNames) {
			names = append(names, n)
		}
	}
	slices.Sort(names)
	w.Names = slices.Compact(names)
	return w
}

// resolveWorld finds what ref means to a tenant: its own name, root's name, an id, or a part
// of the id of a world that it sees. The names of the result are the store's.
func (r *Runner) resolveWorld(ctx context.Context, owner, ref string) (overlay.World, error) {
	if owner == rootOwner {
		return r.cfg.Worlds.World(ctx, ref)
	}
	unknown := &overlay.NotFoundError{Ref: ref}
	w, err := r.cfg.Worlds.World(ctx, storedName(owner, ref))
	if _, none := errors.AsType[*overlay.NotFoundError](err); !none {
		return w, err
	}
	if strings.HasPrefix(ref, ownNames) {
		return w, unknown
	}
	if w, err = r.cfg.Worlds.World(ctx, ref); err != nil {
		return w, err
	}
	if strings.TrimPrefix(ref, "sha256:") == strings.TrimPrefix(w.ID, "sha256:") || slices.Contains(w.Names, ref) {
		return w, nil
	}
	holders, err := r.holders(ctx, w.ID)
	if err != nil {
		return w, err
	}
	if !sees(owner, w, holders[w.ID]) {
		return overlay.World{}, unknown
	}
	return w, nil
}

// sees says whether a world is listed for a tenant: what it holds, and what root holds or
// has named.
func sees(owner string, w overlay.World, holders []string) bool {
	return slices.Contains(holders, owner) || slices.Contains(holders, rootOwner) ||
		slices.ContainsFunc(w.Names, func(n string) bool { return !strings.HasPrefix(n, ownNames) })
}

// holders are the tenants that hold worlds whose ids begin with prefix, by world.
func (r *Runner) holders(ctx context.Context, prefix string) (map[string][]string, error) {
	all, after := map[string][]string{}, ""
	for {
		docs, err := r.cfg.Record.Documents(ctx, holdersDocuments, prefix, after, resultsPage)
		if err != nil {
			return nil, fmt.Errorf("look up who holds worlds: %w", err)
		}
		for _, d := range docs {
			after = d.Key
			if world, owner, ok := strings.Cut(strings.TrimSuffix(d.Key, "/"), "/"); ok {
				all[world] = append(all[world], owner)
			}
		}
		if len(docs) < resultsPage {
			return all, nil
		}
	}
}

// hold makes owner a holder of a world that was just built or imported. It may be gone
// again already, taken away by the tenant that was its last holder until now.
func (r *Runner) hold(ctx context.Context, owner string, w overlay.World) error {
	r.holding.Lock()
	defer r.holding.Unlock()
	if _, err := r.cfg.Worlds.World(ctx, w.ID); err != nil {
		return worldErr(err)
	}
	if err := r.cfg.Record.PutDocument(ctx, holdersDocuments, holderKey(w.ID, owner), json.RawMessage(`{}`), Written); err != nil {
		return fmt.Errorf("record who holds the world: %w", err)
	}
	return nil
}

// letGo takes a tenant's hold of a world, or one of several names, away; the last holder's
// takes the world away.
func (r *Runner) letGo(ctx context.Context, owner, ref string, w overlay.World) error {
	holders, err := r.holders(ctx, w.ID)
	if err != nil {
		return err
	}
	var names []string
	for _, n := range w.Names {
		if strings.HasPrefix(n, ownNames+owner+":") {
			names = append(names, n)
		}
	}
	switch name := storedName(owner, ref); {
	case len(names) > 1 && slices.Contains(names, name):
		return r.cfg.Worlds.Unname(ctx, name)
	case !slices.Contains(holders[w.ID], owner):
		return &Error{Kind: KindPermissionDenied, Field: "world", Detail: fmt.Sprintf("world %s is held by others and not by this tenant", w.ID)}
	case len(holders[w.ID]) == 1:
		return r.removeWorld(ctx, w.ID, w)
	}
	for _, n := range names {
		if err := r.cfg.Worlds.Unname(ctx, n); err != nil {
			return err
		}
	}
	return r.cfg.Record.DeleteDocuments(ctx, holdersDocuments, holderKey(w.ID, owner))
}

// removeWorld has the store remove what ref says, and forgets the holders of a world that
// is gone.
func (r *Runner) removeWorld(ctx context.Context, ref string, w overlay.World) error {
	r.stock.forget(w.ID)
	r.ready.forget(w.ID)
	if err := r.cfg.Worlds.Remove(ctx, ref); err != nil {
		return err
	}
	if _, err := r.cfg.Worlds.World(ctx, w.ID); err == nil {
		return nil // ref was one of several names
	}
	return r.cfg.Record.DeleteDocuments(ctx, holdersDocuments, w.ID+"/")
}
