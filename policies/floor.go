package policies

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// The floor is what no policy may let through, whoever wrote it: a file that an operator
// adds can lock down further than the embedded ones, or loosen what is harmless, but it
// cannot open the host.

// neverAllowed are system calls that no profile may allow. Most are not in the base at
// all; they stand here for the day on which a newer base has them.
var neverAllowed = []string{
	"acct", "add_key", "bpf", "delete_module", "fanotify_init", "fanotify_mark", "file_setattr", "finit_module", "fsconfig",
	"fsmount", "fsopen", "fspick", "init_module", "io_uring_enter", "io_uring_register", "io_uring_setup", "ioperm", "iopl",
	"kcmp", "kexec_file_load", "kexec_load", "keyctl", "listmount", "lookup_dcookie", "mbind", "memfd_secret",
	"migrate_pages", "modify_ldt", "mount", "mount_setattr", "move_mount", "move_pages", "nfsservctl", "open_by_handle_at",
	"open_tree", "open_tree_attr", "perf_event_open", "pidfd_getfd", "pivot_root", "process_madvise", "quotactl",
	"quotactl_fd", "reboot", "request_key", "set_mempolicy", "setdomainname", "sethostname", "setns", "settimeofday",
	"socketcall", "statmount", "swapoff", "swapon", "syslog", "umount", "umount2", "unshare", "uretprobe", "userfaultfd",
	"vhangup", "vmsplice",
}

// alwaysMasked are paths that tell of the host and that every policy hides.
var alwaysMasked = []string{
	"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/pressure",
	"/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats", "/sys/devices/virtual/powercap", "/sys/firmware",
}

// alwaysReadonly are paths that steer the host.
var alwaysReadonly = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}

func (f *file) checkFloor(profile *specs.LinuxSeccomp) error {
	for _, call := range profile.Syscalls {
		for _, name := range call.Names {
			if call.Action == specs.ActAllow && slices.Contains(neverAllowed, name) {
				return fmt.Errorf("seccomp: deny lacks %q, which no policy may allow", name)
			}
		}
	}
	if miss := missing(f.MaskedPaths, alwaysMasked); len(miss) > 0 {
		return fmt.Errorf("masked_paths: lacks %s", strings.Join(miss, ", "))
	}
	if miss := missing(slices.Concat(f.ReadonlyPaths, f.MaskedPaths), alwaysReadonly); len(miss) > 0 {
		return fmt.Errorf("readonly_paths: lacks %s", strings.Join(miss, ", "))
	}
	if f.Rlimits["core"] != [2]size{} {
		return errors.New("rlimit core: want [0, 0]; what a core file is and where it goes is the host's to say")
	}
	for _, dir := range f.Writable {
		for _, r := range replaced {
			if within(r, dir) {
				return fmt.Errorf("writable %q: %s is the launcher's", dir, r)
			}
		}
	}
	return nil
}

func missing(have, want []string) []string {
	return slices.DeleteFunc(slices.Clone(want), func(w string) bool { return slices.Contains(have, w) })
}
