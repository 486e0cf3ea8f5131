package mount

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Target opens what a path below root names, to mount on. No symbolic link may be on the
// way: who wrote the tree below root could lead it out of there. Nil when there is nothing.
func Target(root *os.File, path string) (*os.File, error) {
	fd, err := unix.Openat2(int(root.Fd()), path, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTDIR):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("look for %s: %w", path, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

// AttachTo puts a detached mount on what target names, in the mount namespace of the
// calling thread.
func AttachTo(mnt, target *os.File) error {
	return moveTo(int(mnt.Fd()), "", unix.MOVE_MOUNT_F_EMPTY_PATH, target)
}

// Move moves the mount at path, and what is mounted in it, to what target names.
func Move(path string, target *os.File) error { return moveTo(unix.AT_FDCWD, path, 0, target) }

func moveTo(fd int, path string, flags int, target *os.File) error {
	err := unix.MoveMount(fd, path, int(target.Fd()), "", flags|unix.MOVE_MOUNT_T_EMPTY_PATH)
	if err != nil {
		return fmt.Errorf("mount on %s: %w", target.Name(), err)
	}
	return nil
}

// Pivot makes a directory on which something is mounted the root of the calling thread's
// mount namespace, for every process in it, and takes the old root away. The thread must
// share its working directory with no other.
func Pivot(root *os.File) error {
	if err := unix.Fchdir(int(root.Fd())); err != nil {
		return fmt.Errorf("enter the new root: %w", err)
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("detach the old root: %w", err)
	}
	return unix.Chdir("/")
}
