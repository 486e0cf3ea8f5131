package overlay

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paddock-run/paddock/internal/safepath"
)

// SealInput says what of a fork becomes a world.
type SealInput struct {
	// Upper is the fork's upper directory; nothing may be writing to it.
	Upper *os.File
	// HostID is what to subtract from owners.
	HostID uint32
	// Config is the new world's, whole.
	Config Config
	// Recipe says to people what the world was made from.
	Recipe string
	// Name to point at the result; optional.
	Name string
	// Key, unless empty, is what Cached finds the world by.
	Key string
	// Harmless leaves out set-id bits and capabilities of files: in a sandbox they are
	// nothing, and another program that is handed the world may honour them.
	Harmless bool
	// Branch says that more may be sealed on top of the new world, and so on without end. Of
	// layers that branches left, no more than 32 lie on one another: before there are more,
	// the topmost become one.
	Branch bool
}

// Seal makes a world of the fork's own and one layer more: what the upper directory
// changed, times included, so that a build inside goes on where it was. Sockets, which
// nobody listens to any more, are left out. A fork that changed nothing gives no layer. A
// tree beyond the store's limits is a *RecipeError, and nothing is left of it.
func (f *Fork) Seal(ctx context.Context, in SealInput) (World, error) {
	if in.Name != "" {
		if err := checkName(in.Name); err != nil {
			return World{}, err
		}
	}
	if err := in.Config.check(); err != nil {
		return World{}, err
	}
	below, layers, release, err := f.store.pin(f.world.ID)
	if err != nil {
		return World{}, err
	}
	defer release()
	made := sealing{
		world:  World{Recipe: in.Recipe, Key: in.Key, Created: time.Now().UTC(), Branched: below.Branched},
		config: in.Config, layers: slices.Clone(layers), stages: map[string]*staging{}, key: in.Key != "",
	}
	st, l, err := f.sealUpper(ctx, in)
	if err != nil {
		return World{}, err
	}
	if st != nil {
		defer st.discard()
		if in.Branch {
			short, err := f.store.shortChain(ctx, below, layers)
			if err != nil {
				return World{}, err
			}
			defer short.release()
			made.layers, made.world.Branched = slices.Clone(short.layers), short.world.Branched+1
		}
		made.layers, made.stages[l.DiffID] = append(made.layers, l), st
	}
	if len(made.layers) > maxLayers {
		return World{}, refuse("world_too_large", "", "the world has %d layers already", len(layers))
	}
	w, err := f.store.seal(made)
	if err != nil {
		return World{}, err
	}
	if err := f.store.point(in.Name, w.ID); err != nil {
		return World{}, err
	}
	return f.store.World(ctx, w.ID)
}

// sealUpper writes the layer; nil is none.
func (f *Fork) sealUpper(ctx context.Context, in SealInput) (*staging, layer, error) {
	pack, err := f.store.newStage()
	if err != nil {
		return nil, layer{}, err
	}
	defer pack.discard()
	limits := f.store.opts.Limits
	c, err := f.Capture(ctx, CaptureInput{
		Upper: in.Upper, HostID: in.HostID, Pack: pack.path + "/pack", Passing: true, MaxBytes: limits.Bytes, MaxEntries: limits.Entries,
	})
	if err != nil {
		return nil, layer{}, err
	}
	if !c.Rescorable {
		return nil, layer{}, refuse("world_too_large", "", "what was changed is more than the %d entries and %d bytes of a layer", limits.Entries, limits.Bytes)
	}
	c.Changes = slices.DeleteFunc(c.Changes, func(c Change) bool { return c.Type == typeSocket })
	if in.Harmless {
		for i := range c.Changes {
			c.Changes[i].disarm()
		}
	}
	if len(c.Changes) == 0 {
		return nil, layer{}, nil
	}
	st, err := f.store.newStage()
	if err != nil {
		return nil, layer{}, err
	}
	l, err := f.writeLayer(ctx, c, pack.path+"/pack", st)
	if err != nil {
		st.discard()
		return nil, layer{}, err
	}
	return st, l, nil
}

// disarm takes from a file what would give whoever runs it its owner's rights. A directory's
// bits say only whose new files in it are.
func (c *Change) disarm() {
	if c.Type == typeDir {
		return
	}
	c.Mode &^= unix.S_ISUID | unix.S_ISGID
	delete(c.Xattrs, capability)
}

// writeLayer writes the layer and digests it on the way.
func (f *Fork) writeLayer(ctx context.Context, c Capture, pack string, st *staging) (layer, error) {
	none := func(string, int64, int64) {}
	tar := newCanon(nil)
	count := &counting{limits: Limits{Bytes: 1 << 62, Entries: 1 << 62}, progress: none, step: "seal"}
	err := f.restore(ctx, c, pack, st.fd, 0, func(t *tree) sink {
		count.sink = &layerSink{tree: t, tar: tar}
		return count
	})
	if err != nil {
		return layer{}, err
	}
	l, err := count.finish(tar)
	if err == nil && !timesKept(st.fd, c.Changes) { // the file system knows no such times
		l, err = measure(ctx, st.fd, none)
	}
	if err == nil {
		err = os.Remove(pack) // before the sync, which would have the disk write it
		if errors.Is(err, fs.ErrNotExist) {
			err = nil // there were no bytes
		}
	}
	if err != nil {
		return layer{}, err
	}
	return l, st.sync()
}

// timesKept says whether what was written has the times that it was given.
func timesKept(root int, changes []Change) bool {
	var st unix.Stat_t
	for i := range changes {
		c := &changes[i]
		p := strings.TrimPrefix(c.Path, "/")
		if p == "" || c.Kind == Deleted || c.Type == typeChar || c.Type == typeBlock {
			continue
		}
		if err := unix.Fstatat(root, p, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil || !safepath.ModTime(&st).Equal(c.ModTime) {
			return false
		}
	}
	return true
}
