// Package files reads and writes a sandbox's tree from outside, as one of its users, so
// that owners and permission errors are the kernel's own and no process of the sandbox
// has to be trusted or even alive.
//
// What a path leads to is hostile: it is resolved inside the tree's one mount (package
// internal/safepath), opened with O_PATH first, and opened for good only when it is a
// regular file or a directory. A FIFO, a device or a socket is never opened.
package files

import (
	"context"
	"os"
	"path"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/paddock-run/paddock/internal/safepath"
	"github.com/paddock-run/paddock/sandbox"
)

// Tree is the tree below a root. Its methods may be called from any goroutine.
type Tree struct {
	root     *os.File
	ids      sandbox.IDMap
	writable []string // nil: everything
}

// New returns the tree below root, whose owners are those of ids. The caller keeps
// ownership of root, and closes it after the last call has returned.
func New(root *os.File, ids sandbox.IDMap) *Tree { return &Tree{root: root, ids: ids} }

// NewReadOnly is New for a tree of which only the directories of writable (absolute, of
// the tree) may be changed; every other change is read_only. It is for sandboxes whose
// root is read-only inside while the descriptor here is not.
func NewReadOnly(root *os.File, ids sandbox.IDMap, writable []string) *Tree {
	t := New(root, ids)
	t.writable = append([]string{}, writable...)
	return t
}

// ForSpec is New or NewReadOnly, whichever oci asks for: under a read-only root, what its
// bind mounts name as both source and destination stays writable.
func ForSpec(root *os.File, ids sandbox.IDMap, oci *specs.Spec) *Tree {
	if oci == nil || oci.Root == nil || !oci.Root.Readonly {
		return New(root, ids)
	}
	var writable []string
	for _, m := range oci.Mounts {
		if m.Type == "bind" && m.Source == m.Destination {
			writable = append(writable, m.Destination)
		}
	}
	return NewReadOnly(root, ids, writable)
}

func (t *Tree) paths() safepath.Root { return safepath.InRoot(int(t.root.Fd())) }

// checkAbs refuses paths that are not absolute, before the kernel reads them as below
// the root.
func checkAbs(p string) error {
	if !strings.HasPrefix(p, "/") {
		return refuse("invalid_path", p, "path is not absolute")
	}
	return nil
}

// mayChange refuses changes below dir, an open directory, where the tree is read-only.
func (t *Tree) mayChange(dir int, p string) error {
	if t.writable == nil {
		return nil
	}
	var st unix.Stat_t
	allowed := map[inode]bool{}
	for _, w := range t.writable {
		fd, err := t.paths().Open(w, unix.O_PATH|unix.O_DIRECTORY)
		if err != nil {
			continue // the world has no such directory
		}
		err = unix.Fstat(fd, &st)
		closeFD(fd)
		if err != nil {
			return fail(p, err)
		}
		allowed[inode{st.Dev, st.Ino}] = true
	}
	if err := unix.Fstat(int(t.root.Fd()), &st); err != nil {
		return fail(p, err)
	}
	root := inode{st.Dev, st.Ino}
	// Upwards from dir: one of the writable directories comes before the root, or not.
	at, err := unix.Dup(dir)
	if err != nil {
		return fail(p, err)
	}
	for range maxDepth {
		if err = unix.Fstat(at, &st); err != nil {
			break
		}
		here := inode{st.Dev, st.Ino}
		if allowed[here] {
			closeFD(at)
			return nil
		}
		if here == root {
			err = unix.EROFS
			break
		}
		up, upErr := unix.Openat(at, "..", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if upErr != nil {
			err = upErr
			break
		}
		closeFD(at)
		at = up
	}
	closeFD(at)
	if err == nil {
		err = unix.EROFS
	}
	return fail(p, err)
}

// maxDepth bounds how deep a tree is walked.
const maxDepth = 512

// info describes an inode in the sandbox's terms.
func (t *Tree) info(name string, st *unix.Stat_t) sandbox.FileInfo {
	return sandbox.FileInfo{
		Name: name, Type: typeOf(st), Mode: st.Mode & 0o7777,
		UID: t.inside(st.Uid), GID: t.inside(st.Gid),
		Size: st.Size, ModTime: safepath.ModTime(st),
	}
}

// overflowID is what the kernel shows for an id that a user namespace does not have.
const overflowID = 65534

func (t *Tree) inside(id uint32) uint32 {
	if n := id - t.ids.HostID; n < t.ids.Size {
		return n
	}
	return overflowID
}

func typeOf(st *unix.Stat_t) sandbox.FileType {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return sandbox.RegularFile
	case unix.S_IFDIR:
		return sandbox.Directory
	case unix.S_IFLNK:
		return sandbox.Symlink
	case unix.S_IFIFO:
		return sandbox.FIFO
	case unix.S_IFSOCK:
		return sandbox.Socket
	case unix.S_IFCHR:
		return sandbox.CharDevice
	}
	return sandbox.BlockDevice
}

// Stat does not follow a final symlink.
func (t *Tree) Stat(ctx context.Context, as sandbox.User, name string) (sandbox.FileInfo, error) {
	if err := checkAbs(name); err != nil {
		return sandbox.FileInfo{}, err
	}
	if err := cancelled(ctx, name); err != nil {
		return sandbox.FileInfo{}, err
	}
	var info sandbox.FileInfo
	err := t.as(as, func(*session) error {
		fd, err := t.paths().Open(name, unix.O_PATH|unix.O_NOFOLLOW)
		if err != nil {
			return err
		}
		defer closeFD(fd)
		info, err = t.describe(fd, path.Base(name))
		return err
	})
	return info, fail(name, err)
}

// describe stats an O_PATH descriptor.
func (t *Tree) describe(fd int, name string) (sandbox.FileInfo, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return sandbox.FileInfo{}, err
	}
	info := t.info(name, &st)
	if info.Type == sandbox.Symlink {
		target, err := safepath.Readlink(fd, "")
		if err != nil {
			return sandbox.FileInfo{}, err
		}
		info.Target = target
	}
	return info, nil
}

// openRegular opens what an O_PATH descriptor stands for, if it is a regular file.
func (s *session) openRegular(fd, flags int, st *unix.Stat_t) (int, error) {
	if err := unix.Fstat(fd, st); err != nil {
		return -1, err
	}
	if err := onlyRegular(st); err != nil {
		return -1, err
	}
	if err := s.on(st); err != nil {
		return -1, err
	}
	return safepath.Reopen(fd, flags)
}

func onlyRegular(st *unix.Stat_t) error {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return nil
	case unix.S_IFDIR:
		return unix.EISDIR
	}
	return refuse("not_a_regular_file", "", "is a "+string(typeOf(st)))
}

// openDir opens what an O_PATH descriptor stands for, if it is a directory, for listing.
func (s *session) openDir(fd int) (int, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return -1, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return -1, unix.ENOTDIR
	}
	if err := s.on(&st); err != nil {
		return -1, err
	}
	return safepath.Reopen(fd, unix.O_RDONLY|unix.O_DIRECTORY)
}

// onDir sets the session up for changes of entries of an open directory.
func (s *session) onDir(dir int) error {
	var st unix.Stat_t
	if err := unix.Fstat(dir, &st); err != nil {
		return err
	}
	return s.on(&st)
}

func closeFD(fd int) { _ = unix.Close(fd) }
