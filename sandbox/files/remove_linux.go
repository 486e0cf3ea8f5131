package files

import (
	"context"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/paddock-run/paddock/internal/safepath"
	"github.com/paddock-run/paddock/sandbox"
)

const (
	// maxOpenDirs bounds the descriptors of one Remove; above them a directory is reached
	// again by "..".
	maxOpenDirs = 64
	// maxPasses bounds how often a directory is read again that somebody keeps filling.
	maxPasses = 100
)

// Remove deletes a file or, recursively, a directory, however deep. Links are deleted,
// never followed. What the sandbox has mounts on is busy. It stops at the first entry that the user may not delete.
func (t *Tree) Remove(ctx context.Context, as sandbox.User, name string) error {
	if err := checkAbs(name); err != nil {
		return err
	}
	return fail(name, t.as(as, func(s *session) error {
		dir, base, err := t.paths().Parent(name)
		if err != nil {
			return err
		}
		defer closeFD(dir)
		if err := t.mayChange(dir, name); err != nil {
			return err
		}
		if err := t.mayRemove(dir, base); err != nil {
			return err
		}
		if err := s.onDir(dir); err != nil {
			return err
		}
		return s.removeTree(ctx, dir, base)
	}))
}

// mounted are the directories of the root on which, or in which, the launcher mounts.
var mounted = []string{"dev", "etc", "proc", "sys"}

// mayRemove refuses to remove what the sandbox has mounts on. A program inside gets EBUSY
// for these; here, in another mount namespace, the kernel would let them go, and the mounts
// with them: the sandbox would have no /proc, or what a read-only root keeps writable would
// be gone for good.
func (t *Tree) mayRemove(dir int, base string) error {
	const detail = "the sandbox has mounts there"
	var root, at unix.Stat_t
	if err := unix.Fstat(int(t.root.Fd()), &root); err != nil {
		return err
	}
	if err := unix.Fstat(dir, &at); err != nil {
		return err
	}
	if root.Dev == at.Dev && root.Ino == at.Ino && slices.Contains(mounted, base) {
		return refuse("busy", "", detail)
	}
	var st unix.Stat_t
	if err := unix.Fstatat(dir, base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	for _, w := range t.writable {
		fd, err := t.paths().Open(w, unix.O_PATH|unix.O_DIRECTORY)
		if err != nil {
			continue // the world has no such directory
		}
		var kept unix.Stat_t
		err = unix.Fstat(fd, &kept)
		closeFD(fd)
		if err == nil && kept.Dev == st.Dev && kept.Ino == st.Ino {
			return refuse("busy", "", detail)
		}
	}
	return nil
}

// removeTree deletes the entry name of dir.
func (s *session) removeTree(ctx context.Context, dir int, name string) error {
	done, err := unlink(dir, name)
	if done || err != nil {
		return err
	}
	var stack dirStack
	defer stack.closeAll()
	if err := stack.push(s, dir, name); err != nil {
		return err
	}
	for len(stack) > 0 {
		top := &stack[len(stack)-1]
		entry, err := top.list.next(ctx)
		if err != nil {
			return err
		}
		switch {
		case entry != "":
			done, err := unlink(top.list.fd, entry)
			if err == nil && !done {
				err = stack.push(s, top.list.fd, entry)
			}
			if err != nil && !isErrno(err, unix.ENOENT) { // gone already is what was wanted
				return err
			}
		case top.passes == 0 || top.passes < maxPasses && !isEmpty(ctx, top):
			// Deleting while reading may have made the listing leave entries out.
			top.passes++
			if err := top.list.rewind(); err != nil {
				return err
			}
		default:
			if err := stack.pop(s, dir); err != nil {
				return err
			}
		}
	}
	return nil
}

// isEmpty looks whether a directory that was read to its end has entries again.
func isEmpty(ctx context.Context, d *openDirectory) bool {
	if d.list.rewind() != nil {
		return true
	}
	name, err := d.list.next(ctx)
	return err != nil || name == ""
}

// unlink deletes an entry that is no directory; done is false for a directory.
func unlink(dir int, name string) (done bool, err error) {
	err = unix.Unlinkat(dir, name, 0)
	switch {
	case err == nil:
		return true, nil
	case isErrno(err, unix.EISDIR):
		return false, nil
	}
	return false, err
}

// openDirectory is a directory that is being emptied.
type openDirectory struct {
	name     string
	dev, ino uint64
	list     lister // its fd is -1 while it is only known by name
	passes   int
}

// dirStack are the directories from the top of the removed tree to where it works.
type dirStack []openDirectory

func (d *dirStack) push(s *session, parent int, name string) error {
	at, err := safepath.Child(parent, name, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer closeFD(at)
	fd, err := s.openDir(at)
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		closeFD(fd)
		return err
	}
	*d = append(*d, openDirectory{name: name, dev: st.Dev, ino: st.Ino, list: lister{fd: fd}})
	if n := len(*d) - maxOpenDirs; n > 0 {
		far := &(*d)[n-1]
		closeFD(far.list.fd)
		far.list = lister{fd: -1}
	}
	return nil
}

// pop deletes the topmost directory, which is empty, from its parent: the next on the
// stack, or dir.
func (d *dirStack) pop(s *session, dir int) error {
	top := (*d)[len(*d)-1]
	parent := dir
	if below := len(*d) - 2; below >= 0 {
		next := &(*d)[below]
		if next.list.fd < 0 {
			if err := next.reopen(s, top.list.fd); err != nil {
				return err
			}
		}
		parent = next.list.fd
	}
	if err := s.onDir(parent); err != nil {
		return err
	}
	if err := unix.Unlinkat(parent, top.name, unix.AT_REMOVEDIR); err != nil && !isErrno(err, unix.ENOENT) {
		return err
	}
	closeFD(top.list.fd)
	*d = (*d)[:len(*d)-1]
	return nil
}

// reopen opens a directory again as the parent of its child, and makes sure that it is
// the same one: the guest may have moved the child.
func (o *openDirectory) reopen(s *session, child int) error {
	at, err := unix.Openat(child, "..", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer closeFD(at)
	var st unix.Stat_t
	if err := unix.Fstat(at, &st); err != nil {
		return err
	}
	if st.Dev != o.dev || st.Ino != o.ino {
		return refuse("io", "", "the tree was moved while it was deleted")
	}
	fd, err := s.openDir(at)
	if err != nil {
		return err
	}
	o.list = lister{fd: fd}
	return nil
}

func (d *dirStack) closeAll() {
	for _, o := range *d {
		if o.list.fd >= 0 {
			closeFD(o.list.fd)
		}
	}
}
