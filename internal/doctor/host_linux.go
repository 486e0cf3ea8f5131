package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// kernel: 6.1 is the oldest that paddock is tested on; 6.8 brought what lets the daemon
// build an overlay from descriptors alone.
func kernel() Check {
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return fail("", "uname: %v", err)
	}
	release := unix.ByteSliceToString(uts.Release[:])
	v, found := parseVersion(release)
	switch {
	case !found:
		return warn("use Linux 6.1 or newer", "unreadable release %q", release)
	case v.less(version{6, 1}):
		return fail("use Linux 6.1 or newer", "%s", release)
	case v.less(version{6, 8}):
		return ok("%s: overlays by path names, tmpfs layers cannot be idmapped before 6.3", release)
	}
	return ok("%s", release)
}

// systemCalls asks for calls that a container's filter may refuse although the kernel
// has them. Bad arguments keep them from doing anything.
func systemCalls() Check {
	const max32 = ^uint32(0)
	var missing []string
	for name, call := range map[string]func() error{
		"openat2": func() error {
			_, err := unix.Openat2(-1, "x", &unix.OpenHow{Flags: unix.O_PATH})
			return err
		},
		"pidfd_open": func() error {
			fd, err := unix.PidfdOpen(os.Getpid(), 0)
			if err == nil {
				err = unix.Close(fd)
			}
			return err
		},
		"close_range": func() error { return unix.CloseRange(uint(max32), uint(max32)-1, 0) },
	} {
		if err := call(); errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		slices.Sort(missing)
		return fail("start outside of a container, or widen its seccomp profile", "refused: %s", strings.Join(missing, ", "))
	}
	return ok("openat2, pidfd_open, close_range")
}

// namespaces makes all of them at once around a program that does nothing, as the
// launcher will around an episode.
func namespaces(ctx context.Context) Check {
	const do = "start outside of a container, or allow user namespaces (sysctl user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns)"
	exe, err := exec.LookPath("true")
	if err != nil {
		return warn("", "no program `true` to try it with")
	}
	cmd := exec.CommandContext(ctx, exe)
	id := []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET |
			unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP,
		UidMappings: id, GidMappings: id,
	}
	if err := cmd.Run(); err != nil {
		return fail(do, "%v", err)
	}
	return ok("user, mount, pid, net, ipc, uts and cgroup in one clone")
}

// cgroups says which mode the host is in and whether the needed controllers are there.
func cgroups() Check {
	const top = "/sys/fs/cgroup"
	var st unix.Statfs_t
	if err := unix.Statfs(top, &st); err != nil {
		return fail("mount the cgroup file systems", "%s: %v", top, err)
	}
	if st.Type == unix.CGROUP2_SUPER_MAGIC {
		data, err := os.ReadFile(filepath.Join(top, "cgroup.controllers"))
		if err != nil {
			return fail("mount cgroup2 at "+top, "%v", err)
		}
		return controllers("v2", strings.Fields(string(data)), []string{"cpu", "memory", "pids"})
	}
	entries, err := os.ReadDir(top)
	if err != nil {
		return fail("mount the cgroup file systems", "%v", err)
	}
	mode := "v1"
	var have []string
	for _, e := range entries {
		have = append(have, e.Name())
		if e.Name() == "unified" {
			mode = "hybrid"
		}
	}
	return controllers(mode, have, []string{"cpu", "cpuacct", "memory", "pids", "freezer"})
}

func controllers(mode string, have, want []string) Check {
	missing := slices.DeleteFunc(slices.Clone(want), func(c string) bool { return slices.Contains(have, c) })
	if len(missing) > 0 {
		return fail("enable these controllers; without them limits would not hold", "%s without %s", mode, strings.Join(missing, ", "))
	}
	if !slices.Contains(have, "cpuset") {
		return warn("enable cpuset if programs inside must see fewer CPUs than the host has", "%s with %s, without cpuset", mode, strings.Join(want, ", "))
	}
	return ok("%s with %s, cpuset", mode, strings.Join(want, ", "))
}

// FileSystem says what a directory lies on.
type FileSystem struct {
	// Type is as mount calls it.
	Type string `json:"type"`
	// Journal is false for an ext4 without one: file-heavy work there becomes many times
	// slower after deletes.
	Journal bool `json:"journal"`
	// Free counts the bytes that may still be written.
	Free int64 `json:"free"`
}

// FileSystemOf looks at the file system that holds dir, or its nearest parent that is there.
func FileSystemOf(dir string) (FileSystem, error) {
	dir = exists(dir)
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return FileSystem{}, fmt.Errorf("look at the file system of %s: %w", dir, err)
	}
	found := FileSystem{Journal: true, Free: int64(st.Bavail) * st.Bsize} //nolint:gosec // no file system has 8 EiB
	switch st.Type {
	case unix.TMPFS_MAGIC:
		found.Type = "tmpfs"
	case unix.XFS_SUPER_MAGIC:
		found.Type = "xfs"
	case unix.BTRFS_SUPER_MAGIC:
		found.Type = "btrfs"
	case unix.OVERLAYFS_SUPER_MAGIC:
		found.Type = "overlay"
	case unix.NFS_SUPER_MAGIC:
		found.Type = "nfs"
	case unix.EXT4_SUPER_MAGIC:
		found.Type = "ext4"
		var file unix.Stat_t
		if err := unix.Stat(dir, &file); err != nil {
			return FileSystem{}, fmt.Errorf("look at %s: %w", dir, err)
		}
		found.Journal = hasJournal(file.Dev)
	default:
		found.Type = fmt.Sprintf("0x%x", uint32(st.Type)) //nolint:gosec // magic numbers are 32 bit
	}
	return found, nil
}

// hasJournal looks for the kernel's journal of a block device.
func hasJournal(dev uint64) bool {
	link, err := os.Readlink(fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(dev), unix.Minor(dev)))
	if err != nil {
		return true // an unknown device is not accused
	}
	journals, err := filepath.Glob("/proc/fs/jbd2/" + filepath.Base(link) + "-*")
	return err == nil && len(journals) > 0
}

func storeCheck(store string) Check {
	const low = 2 << 30
	found, err := FileSystemOf(store)
	if err != nil {
		return fail("choose a directory for --root", "%v", err)
	}
	text := fmt.Sprintf("%s on %s, %.1f GiB free", store, found.Type, float64(found.Free)/(1<<30))
	switch {
	case found.Type == "overlay" || found.Type == "nfs":
		return fail("put the store on ext4, xfs, btrfs or tmpfs: overlayfs cannot stand on "+found.Type, "%s", text)
	case found.Type == "tmpfs":
		return warn("put the store on a disk if worlds and records must outlive a reboot", "%s", text)
	case found.Free < low:
		return warn("make room or choose another --root", "%s", text)
	case !found.Journal:
		return warn("use ext4 with a journal or xfs: without one, making files becomes many times slower after deletes", "%s without a journal", text)
	}
	return ok("%s", text)
}

func descriptors() Check {
	const wanted = 1 << 16
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return fail("", "getrlimit: %v", err)
	}
	if limit.Max < wanted {
		return warn("for thousands of episodes at once raise the hard limit: ulimit -Hn 1048576, or LimitNOFILE= in a unit", "hard limit %d", limit.Max)
	}
	return ok("hard limit %d", limit.Max)
}
