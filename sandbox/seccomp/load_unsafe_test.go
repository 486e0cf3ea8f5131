package seccomp

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// install loads the program into every thread of this process.
func install(prog []unix.SockFilter) (time.Duration, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return 0, err
	}
	fprog := unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]}
	start := time.Now()
	_, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&fprog)))
	took := time.Since(start)
	if errno != 0 {
		return 0, errno
	}
	return took, nil
}

// int80 makes the 32-bit call of that number.
func int80(nr uint32) error {
	code := []byte{
		0x53,                                                          // push rbx
		0xb8, byte(nr), byte(nr >> 8), byte(nr >> 16), byte(nr >> 24), // mov eax, nr
		0xcd, 0x80, // int 0x80
		0x5b, // pop rbx
		0xc3, // ret
	}
	page, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return err
	}
	copy(page, code)
	if err := unix.Mprotect(page, unix.PROT_READ|unix.PROT_EXEC); err != nil {
		return err
	}
	// A func value points to a word that points to the code.
	entry := &page[0]
	call := *(*func())(unsafe.Pointer(&struct{ word *struct{ code *byte } }{&struct{ code *byte }{entry}}))
	call()
	return nil
}

// attempts are what the child can be asked to try; each prints an errno.
var attempts = map[string]func() error{
	"getpid":       func() error { return try(unix.SYS_GETPID, 0, 0, 0) },
	"alg":          func() error { return try(unix.SYS_SOCKET, unix.AF_ALG, unix.SOCK_SEQPACKET, 0) },
	"alg-high":     func() error { return try(unix.SYS_SOCKET, 1<<32|unix.AF_ALG, unix.SOCK_SEQPACKET, 0) },
	"vsock":        func() error { return try(unix.SYS_SOCKET, unix.AF_VSOCK, unix.SOCK_STREAM, 0) },
	"packet":       func() error { return try(unix.SYS_SOCKET, unix.AF_PACKET, unix.SOCK_RAW, 0) },
	"tipc":         func() error { return try(unix.SYS_SOCKET, unix.AF_TIPC, unix.SOCK_STREAM, 0) },
	"netfilter":    func() error { return try(unix.SYS_SOCKET, unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER) },
	"route":        func() error { return try(unix.SYS_SOCKET, unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE) },
	"sync":         func() error { return try(unix.SYS_SYNC, 0, 0, 0) },
	"unix":         func() error { return try(unix.SYS_SOCKET, unix.AF_UNIX, unix.SOCK_STREAM, 0) },
	"newuser":      func() error { return try(unix.SYS_CLONE, unix.CLONE_NEWUSER|uintptr(unix.SIGCHLD), 0, 0) },
	"clone3":       func() error { return try(unix.SYS_CLONE3, 0, 0, 0) },
	"unshare":      func() error { return try(unix.SYS_UNSHARE, unix.CLONE_NEWUSER, 0, 0) },
	"mount":        func() error { return try(unix.SYS_MOUNT, 0, 0, 0) },
	"io_uring":     func() error { return try(unix.SYS_IO_URING_SETUP, 1, 0, 0) },
	"bpf":          func() error { return try(unix.SYS_BPF, 0, 0, 0) },
	"keyctl":       func() error { return try(unix.SYS_KEYCTL, 0, 0, 0) },
	"userfaultfd":  func() error { return try(unix.SYS_USERFAULTFD, 0, 0, 0) },
	"by-handle":    func() error { return try(unix.SYS_OPEN_BY_HANDLE_AT, 0, 0, 0) },
	"memfd-secret": func() error { return try(unix.SYS_MEMFD_SECRET, 0, 0, 0) },
	"ptrace":       func() error { return try(unix.SYS_PTRACE, 0xffff, 0, 0) },
	"setattr":      func() error { return try(unix.SYS_FILE_SETATTR, 0, 0, 0) },
	"setxattr":     func() error { return try(unix.SYS_IOCTL, 0, fsIocFsSetXattr, 0) },
	"setxattr-hi":  func() error { return try(unix.SYS_IOCTL, 0, 1<<32|fsIocFsSetXattr, 0) },
	"tiocsti-hi":   func() error { return try(unix.SYS_IOCTL, 0, 1<<40|unix.TIOCSTI, 0) },
	"mknod":        func() error { return try(unix.SYS_MKNODAT, ^uintptr(0), 0, unix.S_IFBLK) },
	"unknown":      func() error { return try(900, 0, 0, 0) },
	"minus-one":    func() error { return try(^uintptr(0), 0, 0, 0) },
	"x32":          func() error { return try(x32Bit|39, 0, 0, 0) },
	"int80":        func() error { return int80(20) },
}

func try(nr, a, b, c uintptr) error {
	if _, _, errno := unix.RawSyscall(nr, a, b, c); errno != 0 {
		return errno
	}
	return nil
}

// childMain is the process that locks itself down: it loads a program and makes one call.
func childMain(prog []unix.SockFilter, attempt string) {
	took, err := install(prog)
	if err != nil {
		fmt.Println("install:", err)
		return
	}
	if attempt == "time" {
		fmt.Println(took.Nanoseconds())
		return
	}
	err = attempts[attempt]()
	fmt.Println(unix.ErrnoName(errnoOf(err)))
}

func errnoOf(err error) unix.Errno {
	if e, ok := errors.AsType[unix.Errno](err); ok {
		return e
	}
	return 0
}
