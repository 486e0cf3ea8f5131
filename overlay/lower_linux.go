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
	dir  int // of the topmost layer that has it; the lowerDir's
	name string
	st   unix.Stat_t
	dirs lowerDir // when it is a directory
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
	if n != nil {
		n.dirs.close()
	}
}

// lookup finds a name as overlayfs would; nil says that the world has none.
func (d lowerDir) lookup(name string) (*lowerNode, error) {
	node, _, err := d.find(name, false)
	return node, err
}

// find is lookup in the upper part of a stack: closed says that what further layers have at
// the name is hidden, and a node of nil is then a whiteout. It is asked for with part; else
// it may be false.
func (d lowerDir) find(name string, part bool) (found *lowerNode, closed bool, err error) {
	for i, dir := range d {
		st, err := look(dir, name)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			found.close()
			return nil, false, fmt.Errorf("look up %q in a layer: %w", name, err)
		}
		kind := kindOf(&st)
		if kind != typeDir {
			if found == nil && kind != typeWhiteout {
				found = &lowerNode{dir: dir, name: name, st: st}
			}
			return found, true, nil
		}
		if found == nil {
			found = &lowerNode{dir: dir, name: name, st: st}
		}
		opaque, err := found.merge(dir, &st, !part && i == len(d)-1)
		if err != nil {
			found.close()
			return nil, false, fmt.Errorf("open %q in a layer: %w", name, err)
		}
		if opaque {
			return found, true, nil
		}
	}
	return found, false, nil
}

// merge adds one layer's directory; below the last one it does not matter what is hidden.
func (n *lowerNode) merge(dir int, st *unix.Stat_t, last bool) (opaque bool, err error) {
	fd, err := openSame(dir, n.name, st)
	if err != nil {
		return false, err
	}
	n.dirs = append(n.dirs, fd)
	if last {
		return false, nil
	}
	if _, opaque, err = xattrs(fd); errors.Is(err, errXattrs) {
		err = nil
	}
	return opaque, err
}

// describe makes the entry of a node.
func (n *lowerNode) describe() (*entry, error) {
	if n.dirs != nil {
		return describe(n.dirs[0], &n.st)
	}
	e, fd, err := describeAt(n.dir, n.name, &n.st)
	closeFD(fd)
	return e, err
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
			st, err := look(dir, name)
			if err != nil {
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
	var node, parent *lowerNode // a node is of its parent's directories
	defer func() { node.close(); parent.close() }()
	for name := range strings.SplitSeq(p, "/") {
		next, err := dir.lookup(name)
		if err != nil || next == nil {
			return nil, err
		}
		parent.close()
		parent, node, dir = node, next, next.dirs
	}
	e, err := node.describe()
	if err != nil {
		return nil, err
	}
	e.path = p
	return e, nil
}
