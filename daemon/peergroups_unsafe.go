//go:build linux

package daemon

import (
	"os/user"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxGroups is the kernel's bound of a process's groups (NGROUPS_MAX).
const maxGroups = 65536

// peerGroups are the supplementary groups of the process at the other end, as they were
// when it connected. x/sys has no wrapper for this option.
func peerGroups(fd int) ([]uint32, error) {
	for n := 64; ; n = maxGroups {
		groups := make([]uint32, n)
		size := uint32(n) * 4
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(&groups[0])), uintptr(unsafe.Pointer(&size)), 0)
		switch {
		case errno == 0:
			return groups[:size/4], nil
		case errno != unix.ERANGE || n == maxGroups:
			return nil, errno
		}
	}
}

func groupName(gid int) string {
	id := strconv.Itoa(gid)
	if g, err := user.LookupGroupId(id); err == nil {
		return g.Name
	}
	return id
}
