//go:build linux

package disk

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// x/sys has no wrappers for project ids and quotactl_fd(2). The layouts are the kernel's:
// linux/fs.h and linux/quota.h.

// fsxattr is struct fsxattr.
type fsxattr struct {
	xflags, extsize, nextents, project, cowextsize uint32
	_                                              [8]byte
}

const (
	fsGetXattr     = 0x801c581f
	fsSetXattr     = 0x401c5820
	projectInherit = 0x200 // FS_XFLAG_PROJINHERIT
)

// setProject gives an empty directory a project id, which what is made in it inherits.
func setProject(dir *os.File, id uint32) error {
	var a fsxattr
	if err := ioctl(dir, fsGetXattr, unsafe.Pointer(&a)); err != nil {
		return os.NewSyscallError("get attributes", err)
	}
	a.xflags |= projectInherit
	a.project = id
	return os.NewSyscallError("set the project id", ioctl(dir, fsSetXattr, unsafe.Pointer(&a)))
}

func ioctl(f *os.File, request uintptr, arg unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), request, uintptr(arg)); errno != 0 {
		return errno
	}
	return nil
}

// quota is struct if_dqblk. Hard and soft limits are in KiB, space in bytes.
type quota struct {
	bytesHard, bytesSoft, space    uint64
	inodesHard, inodesSoft, inodes uint64
	bytesTime, inodesTime          uint64
	valid                          uint32
	_                              [4]byte
}

const (
	getQuota     = 0x800007 << 8 // Q_GETQUOTA
	setQuota     = 0x800008 << 8 // Q_SETQUOTA
	projectQuota = 2             // PRJQUOTA
	validLimits  = 1 | 4         // QIF_LIMITS
)

// quotaOf reads usage and limits of a project of dir's file system.
func quotaOf(dir *os.File, id uint32) (quota, error) {
	var q quota
	_, _, errno := unix.Syscall6(unix.SYS_QUOTACTL_FD, dir.Fd(), getQuota|projectQuota, uintptr(id), uintptr(unsafe.Pointer(&q)), 0, 0)
	if errno != 0 {
		return quota{}, os.NewSyscallError("read the project's quota", errno)
	}
	return q, nil
}

// limitProject sets both limits of a project; zeros lift them.
func limitProject(dir *os.File, id uint32, size Size) error {
	kib := uint64((size.Bytes + 1023) / 1024)
	q := quota{bytesHard: kib, bytesSoft: kib, inodesHard: uint64(size.Inodes), inodesSoft: uint64(size.Inodes), valid: validLimits}
	_, _, errno := unix.Syscall6(unix.SYS_QUOTACTL_FD, dir.Fd(), setQuota|projectQuota, uintptr(id), uintptr(unsafe.Pointer(&q)), 0, 0)
	if errno != 0 {
		return os.NewSyscallError("limit the project", errno)
	}
	return nil
}
