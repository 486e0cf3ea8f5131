//go:build linux

package disk

import (
	"os"
	"unsafe"
)

// The layouts are the kernel's: linux/btrfs.h.

// volArgs is struct btrfs_ioctl_vol_args.
type volArgs struct {
	_    int64
	name [4088]byte
}

// treeArgs is struct btrfs_ioctl_ino_lookup_args.
type treeArgs struct {
	tree, object uint64
	_            [4080]byte
}

// qgroupLimit is struct btrfs_ioctl_qgroup_limit_args.
type qgroupLimit struct {
	group, flags, maxReferenced, maxExclusive, _, _ uint64
}

// qgroupCreate is struct btrfs_ioctl_qgroup_create_args.
type qgroupCreate struct{ create, group uint64 }

const (
	subvolCreate  = 0x5000940e
	subvolDestroy = 0x5000940f
	inoLookup     = 0xd0009412
	groupCreate   = 0x4010942a
	groupLimit    = 0x8030942b

	firstFree     = 256 // BTRFS_FIRST_FREE_OBJECTID
	maxReferenced = 1   // BTRFS_QGROUP_LIMIT_MAX_RFER
)

// subvolume makes or destroys a subvolume of that name in dir.
func subvolume(dir *os.File, request uintptr, name string) error {
	var a volArgs
	copy(a.name[:len(a.name)-1], name)
	return os.NewSyscallError("subvolume", ioctl(dir, request, unsafe.Pointer(&a)))
}

// subvolumeID is the id of the subvolume that dir is the root of.
func subvolumeID(dir *os.File) (uint64, error) {
	a := treeArgs{object: firstFree}
	err := ioctl(dir, inoLookup, unsafe.Pointer(&a))
	return a.tree, os.NewSyscallError("look up the subvolume", err)
}

// limitSubvolume bounds what the subvolume that dir is in refers to.
func limitSubvolume(dir *os.File, bytes int64) error {
	a := qgroupLimit{flags: maxReferenced, maxReferenced: uint64(bytes)} //nolint:gosec // never negative
	return os.NewSyscallError("limit the subvolume", ioctl(dir, groupLimit, unsafe.Pointer(&a)))
}

// forgetGroup removes the accounting of a subvolume that is gone.
func forgetGroup(dir *os.File, id uint64) error {
	a := qgroupCreate{group: id}
	return os.NewSyscallError("remove the qgroup", ioctl(dir, groupCreate, unsafe.Pointer(&a)))
}
