package overlay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
)

// View is a tree to look at and to copy from: a world's, which it pins until Close, or a
// directory's of the host. It follows symlinks inside the tree alone.
type View struct {
	dirs lowerDir
	// world says that owners and attributes are the tree's own; those of the host's mean nothing.
	world   bool
	release func()
}

// View looks at a world, by id or name; an empty ref is an empty tree.
func (s *Store) View(_ context.Context, ref string) (*View, error) {
	if ref == "" {
		return &View{world: true, release: func() {}}, nil
	}
	_, layers, release, err := s.pin(ref)
	if err != nil {
		return nil, err
	}
	dirs, err := openLowers(s.own(layers))
	if err != nil {
		release()
		return nil, fmt.Errorf("open world %s: %w", shortID(ref), err)
	}
	return &View{dirs: dirs, world: true, release: release}, nil
}

// ViewDir looks at a directory of the host, which nobody should be changing.
func (s *Store) ViewDir(dir string) (*View, error) {
	fd, err := openDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, refuse("not_found", dir, "no such directory")
	}
	if err != nil {
		return nil, refuse("bad_recipe", dir, "%v", err)
	}
	return &View{dirs: lowerDir{fd}, release: func() {}}, nil
}

// own are the directories of layers without the skeleton, which is no part of a world.
func (s *Store) own(layers []layer) []string {
	all := s.lowers(layers)
	return all[:len(all)-1]
}

// Close lets go of the tree. It is called once.
func (v *View) Close() {
	v.dirs.close()
	v.release()
}

// Kind says what is at an absolute path once symlinks are followed: file, dir, ..., or
// nothing, and the path that it is then.
func (v *View) Kind(p string) (kind, real string, err error) {
	real, e, err := v.dirs.resolve(strings.TrimPrefix(p, "/"))
	if err != nil || e == nil {
		return "", "/" + real, err
	}
	return e.kind, "/" + real, nil
}

// ReadFile reads a regular file, symlinks followed, of at most limit bytes. fs.ErrNotExist.
func (v *View) ReadFile(p string, limit int64) ([]byte, error) {
	real, e, err := v.dirs.resolve(strings.TrimPrefix(p, "/"))
	if err != nil {
		return nil, err
	}
	if e == nil || e.kind != typeFile {
		return nil, &fs.PathError{Op: "read", Path: p, Err: fs.ErrNotExist}
	}
	_, f, err := v.dirs.open(real)
	if err != nil {
		return nil, err
	}
	if f == nil {
		return nil, &fs.PathError{Op: "read", Path: p, Err: fs.ErrNotExist}
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = refuse("world_too_large", p, "is larger than %d bytes", limit)
	}
	return data, err
}

// maxLinks is how many symlinks one path may lead through, as in the kernel.
const maxLinks = 40

// resolve follows the symlinks of a path, the last one's too, as a process would whose root
// is the tree. What it comes to is nil where nothing is there, and the rest of the path then
// counts as it is written.
func (d lowerDir) resolve(p string) (real string, e *entry, err error) {
	todo, links := strings.Split(p, "/"), 0
	e = &entry{kind: typeDir, mode: rootMode, mtime: epoch}
	for len(todo) > 0 {
		name := todo[0]
		todo = todo[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			real = strings.TrimPrefix(path.Dir("/"+real), "/")
			if e, err = d.dirAt(real); err != nil {
				return "", nil, err
			}
			continue
		}
		if e.kind != typeDir {
			return "", nil, refuse("invalid_path", real, "is no directory")
		}
		at := join(real, name)
		if e, err = d.at(at); err != nil {
			return "", nil, err
		}
		switch {
		case e == nil:
			rest := path.Join(append([]string{"/", at}, todo...)...)
			return strings.TrimPrefix(rest, "/"), nil, nil
		case e.kind == typeSymlink:
			if links++; links > maxLinks {
				return "", nil, refuse("invalid_path", p, "leads through more than %d symlinks", maxLinks)
			}
			if strings.HasPrefix(e.target, "/") {
				real = ""
			}
			todo = append(strings.Split(e.target, "/"), todo...)
			if e, err = d.dirAt(real); err != nil {
				return "", nil, err
			}
		default:
			real = at
		}
	}
	return real, e, nil
}

// dirAt describes a directory that was found before.
func (d lowerDir) dirAt(p string) (*entry, error) {
	if p == "" {
		return &entry{kind: typeDir, mode: rootMode, mtime: epoch}, nil
	}
	e, err := d.at(p)
	if err == nil && e == nil {
		err = gone(p)
	}
	return e, err
}

// sub opens the directory at a resolved path.
func (d lowerDir) sub(p string) (lowerDir, error) {
	if p == "" {
		return openAgain(d)
	}
	dir, node := d, (*lowerNode)(nil)
	for name := range strings.SplitSeq(p, "/") {
		next, err := dir.lookup(name)
		node.close()
		if err != nil {
			return nil, err
		}
		if next == nil || next.dirs == nil {
			next.close()
			return nil, gone(p)
		}
		node, dir = next, next.dirs
	}
	return dir, nil
}

func openAgain(d lowerDir) (lowerDir, error) {
	var out lowerDir
	for _, fd := range d {
		again, err := openSelf(fd)
		if err != nil {
			out.close()
			return nil, err
		}
		out = append(out, again)
	}
	return out, nil
}
