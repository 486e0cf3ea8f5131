// Package mount holds every mount system call of the project, as detached mounts that
// live as long as a descriptor: nothing appears in a mount table unless Attach says so.
package mount

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Attributes that every mount made for a sandbox has at least.
const (
	NoSUID   = unix.MOUNT_ATTR_NOSUID
	NoDev    = unix.MOUNT_ATTR_NODEV
	NoExec   = unix.MOUNT_ATTR_NOEXEC
	ReadOnly = unix.MOUNT_ATTR_RDONLY
)

// Option is one option of a new file system; one without a value is a flag.
type Option struct{ Key, Value string }

// New makes a detached mount of a new file system.
func New(fstype string, attrs int, opts ...Option) (*os.File, error) {
	fs, err := unix.Fsopen(fstype, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("open file system %s: %w", fstype, err)
	}
	defer func() { _ = unix.Close(fs) }()
	for _, o := range opts {
		set := func() error { return unix.FsconfigSetString(fs, o.Key, o.Value) }
		if o.Value == "" {
			set = func() error { return unix.FsconfigSetFlag(fs, o.Key) }
		}
		if err := set(); err != nil {
			return nil, fmt.Errorf("%s option %s=%s: %w", fstype, o.Key, o.Value, err)
		}
	}
	return create(fs, fstype, attrs)
}

func create(fs int, fstype string, attrs int) (*os.File, error) {
	if err := unix.FsconfigCreate(fs); err != nil {
		return nil, fmt.Errorf("create %s: %w", fstype, err)
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, attrs)
	if err != nil {
		return nil, fmt.Errorf("mount %s: %w", fstype, err)
	}
	return os.NewFile(uintptr(fd), fstype), nil
}

// Tmpfs makes a detached tmpfs with both bounds.
func Tmpfs(bytes, inodes int64, mode uint32, attrs int) (*os.File, error) {
	return New("tmpfs", attrs,
		Option{"size", strconv.FormatInt(bytes, 10)},
		Option{"nr_inodes", strconv.FormatInt(inodes, 10)},
		Option{"mode", fmt.Sprintf("%o", mode)})
}

// Clone makes a detached mount of the directory or file that dir names.
func Clone(dir *os.File) (*os.File, error) { return clone(int(dir.Fd()), "", unix.AT_EMPTY_PATH) }

// ClonePath is Clone by path; a final symlink is not followed.
func ClonePath(path string) (*os.File, error) {
	return clone(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW)
}

// CloneAt is ClonePath below dir.
func CloneAt(dir *os.File, path string) (*os.File, error) {
	return clone(int(dir.Fd()), path, unix.AT_SYMLINK_NOFOLLOW)
}

func clone(dirfd int, path string, flags uint) (*os.File, error) {
	fd, err := unix.OpenTree(dirfd, path, flags|unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("clone mount %q: %w", path, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

// SetAttrs adds attributes to a detached mount and, when userns is not nil, maps its
// owners by that user namespace.
func SetAttrs(mnt *os.File, attrs uint64, userns *os.File) error {
	a := unix.MountAttr{Attr_set: attrs}
	if userns != nil {
		a.Attr_set |= unix.MOUNT_ATTR_IDMAP
		a.Userns_fd = uint64(userns.Fd())
	}
	if err := unix.MountSetattr(int(mnt.Fd()), "", unix.AT_EMPTY_PATH, &a); err != nil {
		return fmt.Errorf("set mount attributes: %w", err)
	}
	return nil
}

// Attach puts a detached mount on path in the caller's mount namespace.
func Attach(mnt *os.File, path string) error {
	err := unix.MoveMount(int(mnt.Fd()), "", unix.AT_FDCWD, path, unix.MOVE_MOUNT_F_EMPTY_PATH)
	if err != nil {
		return fmt.Errorf("attach at %s: %w", path, err)
	}
	return nil
}

// Detach removes the mount on path; it lives on while something uses it.
func Detach(path string) error {
	if err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("detach %s: %w", path, err)
	}
	return nil
}

// PrivateNamespace gives the calling thread a mount namespace of its own whose changes
// reach no other. The caller must be locked to its thread.
func PrivateNamespace() error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("unshare mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	return nil
}

// overlayOptions refuse whatever in a layer could lead out of it.
var overlayOptions = []Option{
	{"redirect_dir", "nofollow"}, {"metacopy", "off"}, {"index", "off"}, {"xino", "off"},
}

// Overlay makes a detached overlay of detached mounts, the topmost lower first.
// ErrNeedsPaths says that this kernel wants OverlayPaths.
func Overlay(lowers []*os.File, upper, work *os.File) (*os.File, error) {
	fs, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("open file system overlay: %w", err)
	}
	defer func() { _ = unix.Close(fs) }()
	for _, l := range lowers {
		if err := unix.FsconfigSetFd(fs, "lowerdir+", int(l.Fd())); err != nil {
			if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
				return nil, fmt.Errorf("%w: %w", ErrNeedsPaths, err)
			}
			return nil, fmt.Errorf("overlay lower: %w", err)
		}
	}
	for _, d := range []struct {
		key string
		f   *os.File
	}{{"upperdir", upper}, {"workdir", work}} {
		if err := unix.FsconfigSetFd(fs, d.key, int(d.f.Fd())); err != nil {
			return nil, fmt.Errorf("overlay %s: %w", d.key, err)
		}
	}
	for _, o := range overlayOptions {
		if err := unix.FsconfigSetString(fs, o.Key, o.Value); err != nil {
			return nil, fmt.Errorf("overlay option %s=%s: %w", o.Key, o.Value, err)
		}
	}
	if err := unix.FsconfigSetFlag(fs, "volatile"); err != nil {
		return nil, fmt.Errorf("overlay option volatile: %w", err)
	}
	return create(fs, "overlay", NoSUID|NoDev)
}

// ErrNeedsPaths says: the kernel (before 6.13) takes an overlay's layers by path only.
var ErrNeedsPaths = errors.New("overlay layers by descriptor are not supported")

// OverlayPaths makes the same overlay of attached directories. at is an empty directory
// where it is mounted for a moment.
func OverlayPaths(lowers []string, upper, work, at string) (*os.File, error) {
	opts := []string{"lowerdir=" + strings.Join(lowers, ":"), "upperdir=" + upper, "workdir=" + work, "volatile"}
	for _, o := range overlayOptions {
		opts = append(opts, o.Key+"="+o.Value)
	}
	data := strings.Join(opts, ",")
	if len(data) >= os.Getpagesize() {
		return nil, fmt.Errorf("overlay of %d layers: options of %d bytes, at most %d", len(lowers), len(data), os.Getpagesize()-1)
	}
	if err := unix.Mount("overlay", at, "overlay", unix.MS_NOSUID|unix.MS_NODEV, data); err != nil {
		return nil, fmt.Errorf("mount overlay: %w", err)
	}
	fd, err := unix.OpenTree(unix.AT_FDCWD, at, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if uerr := Detach(at); err == nil {
		err = uerr
	}
	if err != nil {
		return nil, fmt.Errorf("clone overlay: %w", err)
	}
	return os.NewFile(uintptr(fd), "overlay"), nil
}
