package overlay

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// lowerDir is one directory of a world as its layers have it, the topmost first. It owns
// its descriptors. The zero value is a directory that is not there.
type lowerDir []int

// lowerNode is what a world has at a path.
type lowerNode struct {
	fd   int
	st   unix.Stat_t
	dirs lowerDir // fd among them, when it is a directory
}

func openLowers(paths []string) (lowerDir, error) {
	var d lowerDir
	for _, p := range paths {
		fd, err := openDir(p)
		if err != nil {
			d.close()
			return nil, err
		}
		d = append(d, fd)
	}
	return d, nil
}

func (d lowerDir) close() {
	for _, fd := range d {
		closeFD(fd)
	}
}

func (n *lowerNode) close() {
	if n == nil {
		return
	}
	if n.dirs != nil {
		n.dirs.close()
		return
	}
	closeFD(n.fd)
}

// lookup finds a name as overlayfs would; nil says that the world has none.
func (d lowerDir) lookup(name string) (*lowerNode, error) {
	var found *lowerNode
	for _, dir := range d {
		fd, st, err := child(dir, name)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			found.close()
			return nil, fmt.Errorf("look up %q in a layer: %w", name, err)
		}
		kind := kindOf(&st)
		switch {
		case kind == typeDir:
			if found == nil {
				found = &lowerNode{fd: fd, st: st}
			}
			found.dirs = append(found.dirs, fd)
			_, opaque, err := xattrs(fd)
			if err != nil && !errors.Is(err, errXattrs) {
				found.close()
				return nil, err
			}
			if opaque {
				return found, nil
			}
			continue
		case found == nil && kind != typeWhiteout:
			return &lowerNode{fd: fd, st: st}, nil
		}
		closeFD(fd)
		return found, nil
	}
	return found, nil
}

// list gives the names that the merged directory has.
func (d lowerDir) list() ([]string, error) {
	seen := map[string]bool{}
	for _, dir := range d {
		list, err := names(dir)
		if err != nil {
			return nil, err
		}
		for _, name := range list {
			if _, ok := seen[name]; ok {
				continue
			}
			var st unix.Stat_t
			if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
				return nil, err
			}
			seen[name] = kindOf(&st) != typeWhiteout
		}
	}
	var out []string
	for name, there := range seen {
		if there {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out, nil
}

// at describes what the world has at a path, following no symlink; nil when nothing.
func (d lowerDir) at(p string) (*entry, error) {
	dir := d
	var node *lowerNode
	for name := range strings.SplitSeq(p, "/") {
		next, err := dir.lookup(name)
		node.close()
		if err != nil || next == nil {
			return nil, err
		}
		node, dir = next, next.dirs
	}
	defer node.close()
	e, err := describe(node.fd, &node.st)
	if err != nil {
		return nil, err
	}
	e.path = p
	return e, nil
}
