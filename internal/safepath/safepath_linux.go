// Package safepath resolves paths that a guest chose, or that lead through a tree that a
// guest wrote, without ever leaving that tree: every step is the kernel's (openat2), so
// no link, "..", magic link or mount that appears between a check and its use leads
// elsewhere. It opens with O_PATH, which has no effect on what is opened; Reopen makes a
// descriptor that can be read or written, once the caller has seen that it is a file and
// not a FIFO or a device.
//
// Names are raw bytes. Errors are *InvalidError for a path that no tree can have, else
// the kernel's unix.Errno: EXDEV for a path that leads out of the tree or into another
// mount, ELOOP for too many links or a magic link.
package safepath

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// maxPath is the kernel's PATH_MAX without the NUL.
	maxPath = 4095
	// maxLinks is how many final links Target follows, as many as the kernel does.
	maxLinks = 40
	// maxRetries bounds the tries of a resolution that the kernel gives up because
	// something was renamed meanwhile anywhere on the host.
	maxRetries = 1000
)

// InvalidError says that a path has no meaning in any tree.
type InvalidError struct{ Reason string }

func (e *InvalidError) Error() string { return "path " + e.Reason }

// Root is a directory under which paths are resolved; the zero value is of no use. The
// descriptor stays the caller's.
type Root struct {
	fd      int
	resolve uint64
}

// InRoot resolves as if dir were /: absolute links start there and ".." ends there.
func InRoot(dir int) Root { return Root{fd: dir, resolve: unix.RESOLVE_IN_ROOT} }

// Beneath resolves relative paths and refuses with EXDEV whatever leads out of dir.
func Beneath(dir int) Root { return Root{fd: dir, resolve: unix.RESOLVE_BENEATH} }

// Plain resolves relative paths and refuses with ELOOP every symlink on the way: for trees
// that are only now being written, where a path through a link is no honest one.
func Plain(dir int) Root {
	return Root{fd: dir, resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS}
}

// Open resolves path and opens it. Without O_PATH in flags the caller has made sure that
// opening cannot block or act.
func (r Root) Open(path string, flags int) (int, error) {
	if err := check(path); err != nil {
		return -1, err
	}
	return open(r.fd, path, flags, r.resolve)
}

// Parent opens the directory that holds path's last element, which is not looked at. An
// element that names no entry ("", "." or "..") is refused; trailing slashes are ignored.
func (r Root) Parent(path string) (dir int, base string, err error) {
	if err := check(path); err != nil {
		return -1, "", err
	}
	dirPath, base := split(path)
	if err := CheckName(base); err != nil {
		return -1, "", err
	}
	dir, err = open(r.fd, dirPath, unix.O_PATH|unix.O_DIRECTORY, r.resolve)
	return dir, base, err
}

// Target is Parent of what path leads to: while its last element is a symlink, that is
// followed, whether or not there is anything at its end.
func (r Root) Target(path string) (dir int, base string, err error) {
	for range maxLinks {
		dir, base, err = r.Parent(path)
		if err != nil {
			return -1, "", err
		}
		target, err := Readlink(dir, base)
		if err != nil {
			// EINVAL is "no link", ENOENT "nothing there": the caller may make it.
			if err == unix.EINVAL || err == unix.ENOENT { //nolint:errorlint // a bare errno of this package
				return dir, base, nil
			}
			closeFD(dir)
			return -1, "", err
		}
		closeFD(dir)
		if !strings.HasPrefix(target, "/") {
			dirPath, _ := split(path)
			target = dirPath + "/" + target
		}
		path = target
	}
	return -1, "", unix.ELOOP
}

// Child opens the entry name of an open directory, never following a link.
func Child(dir int, name string, flags int) (int, error) {
	if err := CheckName(name); err != nil {
		return -1, err
	}
	return open(dir, name, flags|unix.O_NOFOLLOW, unix.RESOLVE_BENEATH)
}

// Readlink reads the target of the symlink name in dir; EINVAL says that it is none.
func Readlink(dir int, name string) (string, error) {
	buf := make([]byte, maxPath+1)
	for {
		n, err := unix.Readlinkat(dir, name, buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return "", err
		}
		return string(buf[:n]), nil
	}
}

// Reopen opens what an O_PATH descriptor stands for. The caller has seen by fstat that
// it is a regular file or a directory; O_NONBLOCK and O_NOCTTY are set all the same.
func Reopen(fd, flags int) (int, error) {
	for {
		n, err := unix.Open(ProcPath(fd), flags|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
		if err == unix.EINTR {
			continue
		}
		return n, err
	}
}

// ProcPath is a path by which a system call of this process reaches an open descriptor.
func ProcPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// CheckName says whether name can be an entry of a directory.
func CheckName(name string) error {
	switch {
	case name == "":
		return &InvalidError{Reason: "has no last element"}
	case name == "." || name == "..":
		return &InvalidError{Reason: fmt.Sprintf("ends in %q, which names no entry", name)}
	case strings.ContainsAny(name, "/\x00"):
		return &InvalidError{Reason: "element holds a slash or NUL"}
	}
	return nil
}

func check(path string) error {
	switch {
	case path == "":
		return &InvalidError{Reason: "is empty"}
	case strings.IndexByte(path, 0) >= 0:
		return &InvalidError{Reason: "holds a NUL byte"}
	case len(path) > maxPath:
		return unix.ENAMETOOLONG
	}
	return nil
}

// split parts path before its last element. The directory is "." or "/" where there is
// none, and keeps every ".." for the kernel to resolve.
func split(path string) (dir, base string) {
	path = strings.TrimRight(path, "/")
	i := strings.LastIndexByte(path, '/')
	switch {
	case i < 0:
		return ".", path
	case strings.Trim(path[:i], "/") == "":
		return "/", path[i+1:]
	}
	return path[:i], path[i+1:]
}

// ModTime is when a file says that it was changed, in UTC. Its owner may set any of the
// kernel's 64 bits; a time outside of the years 1 to 9999, which no text form has, is the
// nearest one in them.
func ModTime(st *unix.Stat_t) time.Time {
	const first, last = -62135596800, 253402300799 // 0001-01-01T00:00:00Z, 9999-12-31T23:59:59Z
	switch sec := st.Mtim.Sec; {
	case sec < first:
		return time.Unix(first, 0).UTC()
	case sec > last:
		return time.Unix(last, 0).UTC()
	default:
		return time.Unix(sec, st.Mtim.Nsec).UTC()
	}
}

func open(dir int, path string, flags int, resolve uint64) (int, error) {
	how := unix.OpenHow{
		Flags:   uint64(flags) | unix.O_CLOEXEC,
		Resolve: resolve | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	}
	var err error
	for range maxRetries {
		var fd int
		fd, err = unix.Openat2(dir, path, &how)
		if err == nil {
			return fd, nil
		}
		if err != unix.EAGAIN && err != unix.EINTR {
			break
		}
	}
	return -1, err
}

func closeFD(fd int) { _ = unix.Close(fd) }
