package runner

import (
	"context"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/paddock-run/paddock/overlay"
)

// maxKeep bounds the directories that a grader takes of an end state.
const maxKeep = 64

// checkKeep checks the directories of an end state that a grader asks for.
func (g *GraderSpec) checkKeep() error {
	if len(g.Keep) > maxKeep {
		return badField("keep", "has %d, at most %d are allowed", len(g.Keep), maxKeep)
	}
	for i, dir := range g.Keep {
		field := fmt.Sprintf("keep/%d", i)
		if !path.IsAbs(dir) || path.Clean(dir) != dir || dir == "/" || strings.ContainsRune(dir, 0) || !shortNames(dir) {
			return badField(field, "%q is not a clean absolute path below /", dir)
		}
		for _, other := range []string{"/proc", "/dev", "/sys", g.Dir, InputDir} {
			if isWithin(other, dir) {
				return badField(field, "%q is not the agent's: %s is put in place for the grader", dir, other)
			}
		}
	}
	return nil
}

func isWithin(dir, p string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }

// takeKept narrows the end state to the directories that the grader keeps, where it names
// any: the rest of its tree, with the shell, the loader and the libraries that it runs on,
// is then the world's as it was sealed, whatever the agent replaced. release gives back
// what that took. whole is false where the bytes of those directories were not all kept,
// which is the agent's doing: it wrote more than a capture holds.
func (g *grading) takeKept(ctx context.Context) (release func(), whole bool, err error) {
	release = func() {}
	if len(g.spec.Keep) == 0 || g.in.Upper == nil {
		return release, true, nil
	}
	// Where the world has no directory above one that is kept, nothing of it can be taken
	// away there, and no layer can say so.
	for _, gone := range []bool{true, false} {
		in := *g.in
		in.Capture = keptOf(g.in.Capture, g.spec.Keep, gone)
		if !in.Capture.Rescorable {
			return release, false, nil
		}
		layer, merr := g.r.scratch("keep")
		if merr != nil {
			return release, false, merr
		}
		err = in.Fork.Restore(ctx, in.Capture, filepath.Join(in.Dir, packFile), layer.dir, in.IDs.HostID)
		if err == nil {
			in.Upper = layer.dir
			g.in = &in
			return layer.remove, true, nil
		}
		layer.remove()
	}
	return release, false, fmt.Errorf("directories that the grader keeps: %w", err)
}

// keptOf is the part of a capture at and below dirs, as a capture. Directories above them
// that the agent made come along, without which there would be nothing to hold them; where
// it took one away, what the world has there of dirs is gone, too, if that is asked for.
func keptOf(c overlay.Capture, dirs []string, gone bool) overlay.Capture {
	k := keeping{dirs: dirs, gone: gone, first: map[string]string{}, source: map[string]*overlay.Change{}}
	for i := range c.Changes {
		k.take(&c.Changes[i])
	}
	slices.SortFunc(k.kept, func(a, b overlay.Change) int { return strings.Compare(a.Path, b.Path) })
	k.kept = slices.CompactFunc(k.kept, func(a, b overlay.Change) bool { return a.Path == b.Path })
	c.Rescorable = !c.Truncated && !slices.ContainsFunc(k.kept, func(ch overlay.Change) bool {
		return ch.Type == "file" && ch.LinkedTo == "" && ch.Offset < 0
	})
	c.Changes = k.kept
	return c
}

// keeping gathers the changes to keep. Of a file with several names the first that is kept
// holds the bytes.
type keeping struct {
	dirs   []string
	gone   bool
	kept   []overlay.Change
	first  map[string]string
	source map[string]*overlay.Change
}

func (k *keeping) take(ch *overlay.Change) {
	if ch.Type == "file" && ch.LinkedTo == "" {
		k.source[ch.Path] = ch
	}
	for _, dir := range k.dirs {
		switch {
		case isWithin(dir, ch.Path):
			k.keep(*ch)
			return
		case !isWithin(ch.Path, dir):
		case ch.Type == "dir" && ch.Kind != overlay.Modified:
			k.kept = append(k.kept, *ch)
		case ch.Type != "dir" && k.gone:
			// What held it is gone, or something else now.
			k.kept = append(k.kept, overlay.Change{Path: dir, Kind: overlay.Deleted, Offset: -1})
		}
	}
}

func (k *keeping) keep(ch overlay.Change) {
	origin := ch.LinkedTo
	if origin == "" {
		origin = ch.Path
	}
	switch first, known := k.first[origin]; {
	case ch.Type != "file" || ch.Kind == overlay.Deleted:
	case known:
		ch.LinkedTo = first
	case ch.LinkedTo == "":
		k.first[origin] = ch.Path
	default:
		if s := k.source[origin]; s != nil { // its first name is not kept
			at, kind := ch.Path, ch.Kind
			ch = *s
			ch.Path, ch.Kind = at, kind
		}
		k.first[origin] = ch.Path
	}
	k.kept = append(k.kept, ch)
}
