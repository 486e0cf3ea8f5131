package overlay

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// skeletonName changes with the contents, so that a store of an older paddock gets the new.
const skeletonName = "layers/skeleton-1"

// Skeleton is the directory that lies below every world: the directories and files that
// a launcher mounts on, so that it never has to make them in an upper.
func (s *Store) Skeleton() string { return s.path(skeletonName) }

func (s *Store) makeSkeleton() error {
	if _, err := os.Stat(s.Skeleton()); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return s.stage(func(root int) error {
		t := newTree(root, Limits{}.orDefault())
		for _, p := range []string{"dev", "proc", "sys", "tmp", "run", "etc", "root", "etc/hosts", "etc/hostname", "etc/resolv.conf"} {
			e := &entry{path: p, kind: typeDir, mode: 0o755, mtime: epoch}
			switch {
			case p == "tmp":
				e.mode = 0o1777
			case p == "root":
				e.mode = 0o700
			case strings.HasPrefix(p, "etc/"):
				e.kind, e.mode = typeFile, 0o644
			}
			if err := t.add(e, strings.NewReader("")); err != nil {
				return err
			}
		}
		return t.close()
	}, s.Skeleton())
}

// stage makes a directory below tmp, has it filled, and renames it to its place when all
// of it is on the disk. An existing place is left as it is.
func (s *Store) stage(fill func(root int) error, place string) error {
	st, err := s.newStage()
	if err != nil {
		return err
	}
	defer st.discard()
	if err := fill(st.fd); err != nil {
		return err
	}
	if err := st.sync(); err != nil {
		return err
	}
	return st.move(place)
}

// staging is a directory that is being made.
type staging struct {
	path string
	fd   int
}

func (s *Store) newStage() (*staging, error) {
	p, err := os.MkdirTemp(s.path("tmp"), tmpPrefix+"*")
	if err != nil {
		return nil, fmt.Errorf("make a directory to build in: %w", err)
	}
	fd, err := unix.Open(p, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, errors.Join(err, os.Remove(p))
	}
	return &staging{path: p, fd: fd}, nil
}

// sync makes the tree survive a crash.
func (st *staging) sync() error {
	if err := unix.Fchmod(st.fd, rootMode); err != nil {
		return err
	}
	if err := unix.Syncfs(st.fd); err != nil {
		return fmt.Errorf("sync the layer: %w", err)
	}
	return nil
}

// move puts the tree at its place, unless there is one already.
func (st *staging) move(place string) error {
	err := os.Rename(st.path, place)
	if errors.Is(err, unix.EEXIST) || errors.Is(err, unix.ENOTEMPTY) {
		return nil
	}
	return err
}

// discard removes what was not moved.
func (st *staging) discard() {
	closeFD(st.fd)
	_ = os.RemoveAll(st.path)
}
