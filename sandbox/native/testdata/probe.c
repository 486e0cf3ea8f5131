// probe tries, one after another, what a program in a sandbox should not be able to do,
// and a few things that it should. Each try runs in a child of its own, and one line says
// what the kernel answered: "NAME ok", "NAME ERRNO" or "NAME killed SIGNAL".
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <linux/netlink.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#define SYS(...) (syscall(__VA_ARGS__) < 0 ? -errno : 0)
#define CALL(x) ((x) < 0 ? -errno : 0)

static int can_open(const char *path, int flags) {
	int fd = open(path, flags | O_CLOEXEC | O_NONBLOCK);
	return fd < 0 ? -errno : 0;
}

static int has_byte(const char *path) {
	char b;
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return -errno;
	ssize_t n = read(fd, &b, 1);
	return n < 0 ? -errno : n == 0 ? -ENODATA : 0;
}

static int sock(int domain, int type, int proto) { return CALL(socket(domain, type, proto)); }

// Namespaces and mounts.
static int p_mount(void) { return CALL(mount("none", "/tmp", "tmpfs", 0, 0)); }
static int p_umount(void) { return CALL(umount2("/proc", MNT_DETACH)); }
static int p_pivot_root(void) { return SYS(SYS_pivot_root, ".", "."); }
static int p_chroot(void) { return CALL(chroot("/tmp")); }
static int p_fsopen(void) { return SYS(430, "tmpfs", 0); }
static int p_open_tree(void) { return SYS(428, AT_FDCWD, "/", 1); }
static int p_move_mount(void) { return SYS(429, -1, "", -1, "", 0); }
static int p_mount_setattr(void) { return SYS(442, AT_FDCWD, "/", 0, 0, 0); }
static int p_unshare_user(void) { return CALL(unshare(CLONE_NEWUSER)); }
static int p_unshare_net(void) { return CALL(unshare(CLONE_NEWNET)); }
static int p_clone_user(void) {
	long pid = syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0);
	if (pid == 0)
		_exit(0);
	return pid < 0 ? -errno : 0;
}
static int p_clone3_user(void) {
	struct clone_args a = {.flags = CLONE_NEWUSER, .exit_signal = SIGCHLD};
	long pid = syscall(435, &a, sizeof a);
	if (pid == 0)
		_exit(0);
	return pid < 0 ? -errno : 0;
}
static int p_setns(void) { return SYS(SYS_setns, open("/proc/self/ns/net", O_RDONLY), 0); }
static int p_open_by_handle(void) { return SYS(SYS_open_by_handle_at, AT_FDCWD, 0, 0); }

// Kernel surface.
static int p_bpf(void) { return SYS(SYS_bpf, 0, 0, 0); }
static int p_perf(void) { return SYS(SYS_perf_event_open, 0, 0, -1, -1, 0); }
static int p_io_uring(void) {
	struct io_uring_params p = {0};
	return SYS(425, 4, &p);
}
static int p_userfaultfd(void) { return SYS(SYS_userfaultfd, 1); }
static int p_keyctl(void) { return SYS(SYS_keyctl, 0, -3, 0); }
static int p_add_key(void) { return SYS(SYS_add_key, "user", "x", "y", 1, -3); }
static int p_request_key(void) { return SYS(SYS_request_key, "user", "x", 0, -3); }
static int p_kexec(void) { return SYS(SYS_kexec_load, 0, 0, 0, 0); }
static int p_init_module(void) { return SYS(SYS_init_module, 0, 0, ""); }
static int p_reboot(void) { return SYS(SYS_reboot, 0, 0, 0, 0); }
static int p_swapon(void) { return SYS(SYS_swapon, "/tmp/x", 0); }
static int p_acct(void) { return SYS(SYS_acct, 0); }
static int p_quotactl(void) { return SYS(SYS_quotactl, 0, 0, 0, 0); }
static int p_settime(void) { return SYS(SYS_clock_settime, 0, 0); }
static int p_memfd_secret(void) { return SYS(447, 0); }
static int p_personality(void) { return SYS(SYS_personality, 0x0400000); } // READ_IMPLIES_EXEC
static int p_vmsplice(void) { return SYS(SYS_vmsplice, -1, 0, 0, 0); }
static int p_unknown_syscall(void) { return SYS(4000); }
static int p_file_setattr(void) { return SYS(469, AT_FDCWD, "/tmp", 0, 0, 0); }
static int p_sethostname(void) { return CALL(sethostname("x", 1)); }
static int p_set_project(void) {
	char attr[28] = {0};
	int fd = open("/tmp", O_RDONLY);
	return CALL(ioctl(fd, 0x401c5820, attr));
}
static int p_set_project_high_bits(void) {
	char attr[28] = {0};
	int fd = open("/tmp", O_RDONLY);
	return SYS(SYS_ioctl, fd, 0x1401c5820ul, attr);
}
static int p_tiocsti(void) { return CALL(ioctl(0, TIOCSTI, "x")); }
#ifdef __x86_64__
static int p_int80(void) {
	long r;
	__asm__ volatile("int $0x80" : "=a"(r) : "a"(20) : "memory"); // getpid of the 32-bit table
	return r < 0 ? (int)r : 0;
}
static int p_x32(void) { return SYS(0x40000000 + SYS_getpid); }
#endif

// Sockets.
static int p_unix(void) { return sock(AF_UNIX, SOCK_STREAM, 0); }
static int p_inet(void) { return sock(AF_INET, SOCK_STREAM, 0); }
static int p_inet6(void) { return sock(AF_INET6, SOCK_STREAM, 0); }
static int p_raw(void) { return sock(AF_INET, SOCK_RAW, 1); }
static int p_packet(void) { return sock(AF_PACKET, SOCK_RAW, 0); }
static int p_alg(void) { return sock(38, SOCK_SEQPACKET, 0); }
static int p_vsock(void) { return sock(40, SOCK_STREAM, 0); }
static int p_tipc(void) { return sock(30, SOCK_STREAM, 0); }
static int p_bluetooth(void) { return sock(31, SOCK_RAW, 0); }
static int p_route(void) { return sock(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE); }
static int p_netfilter(void) { return sock(AF_NETLINK, SOCK_RAW, NETLINK_NETFILTER); }

// PID 1 and other processes.
static int p_ptrace_init(void) { return CALL(ptrace(PTRACE_ATTACH, 1, 0, 0)); }
static int p_init_mem(void) { return can_open("/proc/1/mem", O_RDWR); }
static int p_init_exe(void) { return can_open("/proc/1/exe", O_RDONLY); }
static int p_init_fd(void) { return can_open("/proc/1/fd/3", O_RDONLY); }
static int p_init_environ(void) { return has_byte("/proc/1/environ"); }
static int p_pidfd_getfd(void) { return SYS(438, (int)syscall(434, 1, 0), 3, 0); }
static int p_nice(void) { return CALL(setpriority(PRIO_PROCESS, 0, -20)); }
static int p_fifo_sched(void) {
	struct sched_param p = {.sched_priority = 1};
	return CALL(sched_setscheduler(0, SCHED_FIFO, &p));
}
static int p_raise_nofile(void) {
	struct rlimit r = {1 << 20, 1 << 20};
	return CALL(setrlimit(RLIMIT_NOFILE, &r));
}

// Files of the kernel.
static int p_mknod_disk(void) { return CALL(mknod("/tmp/probe-disk", S_IFBLK | 0600, makedev(8, 0))); }
static int p_mknod_null(void) { return CALL(mknod("/tmp/probe-null", S_IFCHR | 0600, makedev(1, 3))); }
static int p_kmsg(void) { return has_byte("/dev/kmsg"); }
static int p_dev_mem(void) { return can_open("/dev/mem", O_RDONLY); }
static int p_core_pattern(void) { return can_open("/proc/sys/kernel/core_pattern", O_WRONLY); }
static int p_sysrq(void) { return can_open("/proc/sysrq-trigger", O_WRONLY); }
static int p_kcore(void) { return has_byte("/proc/kcore"); }
static int p_proc_keys(void) { return has_byte("/proc/keys"); }
static int p_timer_list(void) { return has_byte("/proc/timer_list"); }
static int p_interrupts(void) { return has_byte("/proc/interrupts"); }
static int p_firmware(void) { return can_open("/sys/firmware/acpi", O_RDONLY); }
static int p_cgroupfs(void) { return can_open("/sys/fs/cgroup/cgroup.procs", O_RDONLY); }
static int p_sysfs_kernel(void) { return can_open("/sys/kernel", O_RDONLY); }

// What ordinary programs need.
static int p_null(void) { return can_open("/dev/null", O_RDWR); }
static int p_urandom(void) { return has_byte("/dev/urandom"); }
static int p_tmp(void) {
	int fd = open("/tmp/probe-tmp", O_CREAT | O_RDWR | O_TRUNC, 0600);
	if (fd < 0)
		return -errno;
	unlink("/tmp/probe-tmp");
	return 0;
}
static int p_shm(void) {
	int fd = open("/dev/shm/probe", O_CREAT | O_RDWR, 0600);
	if (fd < 0)
		return -errno;
	unlink("/dev/shm/probe");
	return 0;
}
static int p_etc(void) {
	int fd = open("/etc/probe", O_CREAT | O_RDWR, 0600);
	if (fd < 0)
		return -errno;
	unlink("/etc/probe");
	return 0;
}
static int p_chown(void) {
	int fd = open("/tmp/probe-own", O_CREAT | O_RDWR, 0600);
	if (fd < 0)
		return -errno;
	int r = CALL(fchown(fd, 5, 5));
	unlink("/tmp/probe-own");
	return r;
}
static int p_setuid(void) { return CALL(setuid(1234)); }
static int p_fork(void) {
	pid_t p = fork();
	if (p == 0)
		_exit(0);
	return p < 0 ? -errno : (waitpid(p, 0, 0), 0);
}
static int p_memfd(void) { return SYS(SYS_memfd_create, "x", 0); }
static int p_meminfo(void) { return has_byte("/proc/meminfo"); }

static const struct {
	const char *name;
	int (*run)(void);
} probes[] = {
#define P(n) {#n, p_##n}
	P(mount), P(umount), P(pivot_root), P(chroot), P(fsopen), P(open_tree), P(move_mount),
	P(mount_setattr), P(unshare_user), P(unshare_net), P(clone_user), P(clone3_user), P(setns),
	P(open_by_handle), P(bpf), P(perf), P(io_uring), P(userfaultfd), P(keyctl), P(add_key),
	P(request_key), P(kexec), P(init_module), P(reboot), P(swapon), P(acct), P(quotactl),
	P(settime), P(memfd_secret), P(personality), P(vmsplice), P(unknown_syscall), P(file_setattr),
	P(sethostname), P(set_project), P(set_project_high_bits), P(tiocsti),
#ifdef __x86_64__
	P(int80), P(x32),
#endif
	P(unix), P(inet), P(inet6), P(raw), P(packet), P(alg), P(vsock), P(tipc), P(bluetooth),
	P(route), P(netfilter), P(ptrace_init), P(init_mem), P(init_exe), P(init_fd),
	P(init_environ), P(pidfd_getfd), P(nice), P(fifo_sched), P(raise_nofile), P(mknod_disk),
	P(mknod_null), P(kmsg), P(dev_mem), P(core_pattern), P(sysrq), P(kcore), P(proc_keys),
	P(timer_list), P(interrupts), P(firmware), P(cgroupfs), P(sysfs_kernel), P(null),
	P(urandom), P(tmp), P(shm), P(etc), P(chown), P(setuid), P(fork), P(memfd), P(meminfo),
};

// Arguments are the names of the only probes to run.
static int wanted(const char *name, char **only) {
	if (!*only)
		return 1;
	for (; *only; only++)
		if (!strcmp(name, *only))
			return 1;
	return 0;
}

int main(int argc, char **argv) {
	(void)argc;
	for (unsigned i = 0; i < sizeof probes / sizeof *probes; i++) {
		if (!wanted(probes[i].name, argv + 1))
			continue;
		int status, fds[2], answer = -ECHILD;
		if (pipe2(fds, O_CLOEXEC))
			return 1;
		pid_t pid = fork();
		if (pid == 0) {
			int r = probes[i].run();
			if (write(fds[1], &r, sizeof r) != sizeof r)
				_exit(1);
			_exit(0);
		}
		close(fds[1]);
		ssize_t n = read(fds[0], &answer, sizeof answer);
		close(fds[0]);
		waitpid(pid, &status, 0);
		if (n != sizeof answer && WIFSIGNALED(status))
			printf("%s killed %s\n", probes[i].name, sigabbrev_np(WTERMSIG(status)));
		else
			printf("%s %s\n", probes[i].name, answer ? strerrorname_np(-answer) : "ok");
	}
	return 0;
}
