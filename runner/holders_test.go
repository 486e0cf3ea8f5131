package runner_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/paddock-run/paddock/overlay"
	"github.com/paddock-run/paddock/runner"
)

const root, alice, bob = "0", "alice", "bob"

// worldOf builds a world of one file under a name, for a tenant.
func (b *bench) worldOf(owner, name, text string) string {
	b.t.Helper()
	dir := b.t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "f"), []byte(text), 0o600); err != nil {
		b.t.Fatal(err)
	}
	built, err := b.BuildWorld(b.t.Context(), owner, overlay.Recipe{Dir: dir, Name: name}, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	if !slices.Contains(built.World.Names, name) {
		b.t.Errorf("%s's %s is called %q", owner, name, built.World.Names)
	}
	return built.World.ID
}

// means is what a reference means to a tenant, or "".
func (b *bench) means(owner, ref string) string {
	b.t.Helper()
	w, err := b.World(b.t.Context(), owner, ref)
	if err != nil && runner.KindOf(err) != runner.KindUnknownWorld {
		b.t.Fatal(err)
	}
	return w.ID
}

func TestNamesOfWorldsAreEachTenantsOwn(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	of := map[string]string{root: b.worldOf(root, "box", "root's")}
	shared := of[root]
	of[alice], of[bob] = b.worldOf(alice, "box", "alice's"), b.worldOf(bob, "box", "bob's")
	for owner, want := range of {
		if got := b.means(owner, "box"); got != want {
			t.Errorf("box means %s to %s, want %s", got, owner, want)
		}
	}
	if got := b.means("carol", "box"); got != shared {
		t.Errorf("box means %s to one who has none, want root's %s", got, shared)
	}
	for _, ref := range []string{"t:alice:box", of[alice][:20]} {
		if got := b.means(bob, ref); got != "" {
			t.Errorf("%s means %s to bob, want nothing", ref, got)
		}
	}
	if got := b.means(bob, of[alice]); got != of[alice] {
		t.Errorf("alice's world by its digest means %q to bob; worlds are shared by digest", got)
	}
	if w, err := b.World(t.Context(), bob, of[alice]); err != nil || len(w.Names) != 0 {
		t.Errorf("bob learns alice's names: %q, %v", w.Names, err)
	}
	list, err := b.Worlds(t.Context(), bob)
	if err != nil || slices.ContainsFunc(list, func(w overlay.World) bool { return w.ID == of[alice] }) ||
		!slices.ContainsFunc(list, func(w overlay.World) bool { return w.ID == shared }) {
		t.Errorf("bob lists %+v, %v; want his own and root's", list, err)
	}
	for _, owner := range []string{alice, bob} {
		c, err := b.Create(t.Context(), owner, 0, runner.EpisodeSpec{ID: "e", World: "box"})
		if err != nil || c.Episode.Plan.World != of[owner] {
			t.Errorf("%s's episode is on %s, %v", owner, c.Episode.Plan.World, err)
		}
	}
	if _, err := b.BuildWorld(t.Context(), bob, overlay.Recipe{Base: "t:alice:box", Dir: t.TempDir()}, nil); runner.KindOf(err) != runner.KindUnknownWorld {
		t.Errorf("a world on alice's name: %v", err)
	}
}

func TestNoTenantRemovesAnothersWorld(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ctx := t.Context()
	shared := b.worldOf(root, "base-of-root", "x")
	both := b.worldOf(alice, "mine", "both")
	if again := b.worldOf(bob, "his", "both"); again != both {
		t.Fatal("equal contents, two worlds")
	}
	for _, ref := range []string{shared, "base-of-root"} {
		if err := b.RemoveWorld(ctx, alice, ref); runner.KindOf(err) != runner.KindPermissionDenied {
			t.Errorf("alice removes root's %s: %v", ref, err)
		}
	}
	if err := b.RemoveWorld(ctx, alice, "his"); runner.KindOf(err) != runner.KindUnknownWorld {
		t.Errorf("alice removes by bob's name: %v", err)
	}
	if err := b.RemoveWorld(ctx, alice, both); err != nil {
		t.Fatal(err)
	}
	if b.means(alice, "mine") != "" || b.means(bob, "his") != both {
		t.Errorf("after alice let go: her name means %q, bob's %q", b.means(alice, "mine"), b.means(bob, "his"))
	}
	if err := b.RemoveWorld(ctx, alice, both); runner.KindOf(err) != runner.KindPermissionDenied {
		t.Errorf("alice removes it again: %v", err)
	}
	if err := b.RemoveWorld(ctx, bob, "his"); err != nil || b.means(bob, both) != "" {
		t.Errorf("the last holder removes it: %v, it still means %q", err, b.means(bob, both))
	}
	// One of several names is only a name.
	two := b.worldOf(alice, "one", "named")
	b.worldOf(alice, "two", "named")
	if err := b.RemoveWorld(ctx, alice, "one"); err != nil || b.means(alice, "one") != "" || b.means(alice, "two") != two {
		t.Errorf("a name was removed: %v; %q and %q", err, b.means(alice, "one"), b.means(alice, "two"))
	}
	// Root may remove anything, and nothing is left of who held it.
	if err := b.RemoveWorld(ctx, root, two); err != nil {
		t.Fatal(err)
	}
	if again := b.worldOf(bob, "two", "named"); again != two {
		t.Fatal("equal contents, two worlds")
	}
	if err := b.RemoveWorld(ctx, alice, two); runner.KindOf(err) != runner.KindPermissionDenied {
		t.Errorf("alice held it before root removed it, and removes bob's: %v", err)
	}
}

func TestWorldsOfATenantTravel(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	id := b.worldOf(alice, "mine", "x")
	var tarball bytes.Buffer
	if err := b.ExportWorld(t.Context(), alice, "mine", &tarball); err != nil {
		t.Fatal(err)
	}
	if err := b.ExportWorld(t.Context(), bob, "mine", &bytes.Buffer{}); runner.KindOf(err) != runner.KindUnknownWorld {
		t.Errorf("bob exports by alice's name: %v", err)
	}
	w, err := b.ImportWorld(t.Context(), bob, overlay.Source{Stream: &tarball}, "got", nil)
	if err != nil || w.ID != id || !slices.Equal(w.Names, []string{"got"}) || b.means(bob, "got") != id {
		t.Errorf("ImportWorld() = %+v, %v", w, err)
	}
}

// What an episode wrote is its tenant's, also when it is sealed as a world.
func TestBranchIsHeldByItsTenantAlone(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	c, err := b.Create(t.Context(), alice, 0, runner.EpisodeSpec{ID: "e", World: "base"})
	if err != nil {
		t.Fatal(err)
	}
	branch, err := b.Branch(t.Context(), c.Episode.Key, runner.BranchSpec{IDs: []string{"f"}})
	if err != nil {
		t.Fatal(err)
	}
	for owner, want := range map[string]bool{alice: true, bob: false, root: true} {
		list, err := b.Worlds(t.Context(), owner)
		if err != nil || slices.ContainsFunc(list, func(w overlay.World) bool { return w.ID == branch.World }) != want {
			t.Errorf("%s sees the branch: want %v; %+v, %v", owner, want, list, err)
		}
	}
	if err := b.RemoveWorld(t.Context(), bob, branch.World); runner.KindOf(err) != runner.KindPermissionDenied {
		t.Errorf("bob removes it: %v", err)
	}
}
