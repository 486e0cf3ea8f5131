// PID 1 of a sandbox: it makes the sandbox's view of the file system, then starts
// programs and reaps them, and does nothing else. It talks to the launcher and then to
// the daemon over one SOCK_SEQPACKET socket, descriptor 3, and ends when that closes.
// It opens no path that a program of the sandbox could have written.
//
// Started as anything else than PID 1 it is the nursery: it clones guests of itself for the
// launcher, whose children they are. Its few pages are cloned several times as fast as
// those of a Go program, and what it clones needs no exec. As an undertaker it closes what is
// given to it: to take down the file system of a dead sandbox can keep a CPU for long.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <net/if.h>
#include <poll.h>
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
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SOCK = 3, MAX_FRAME = 64 << 10, MAX_FDS = 32, MAX_CALLS = 1024, MAX_LIST = 1 << 16 };
enum { SETUP = 1, READY, EXEC, STARTED, FAILED, EXITED, CLONE, AHEAD, SWEEP, SWEPT, KEEP, BURY, BURIED };
enum { ROOT_RO = 1, WITH_PTS = 2, AS_IT_IS = 4 }; // SETUP
enum { HAS_BIRTH = 1, HAS_HOME = 2 };             // CLONE
enum { PTY = 1, HAS_FD3 = 2, IN_MEMFD = 4 };      // EXEC

struct header { uint32_t type, id; };

// cursor reads a frame's fields; once something does not fit, ok is 0 for good.
struct cursor { const char *p, *end; int ok; };

static const void *take(struct cursor *c, size_t n) {
	if (!c->ok || (size_t)(c->end - c->p) < n) {
		c->ok = 0;
		return 0;
	}
	const void *at = c->p;
	c->p += n;
	return at;
}

static uint32_t u32(struct cursor *c) {
	uint32_t v = 0;
	const void *at = take(c, sizeof v);
	if (at)
		memcpy(&v, at, sizeof v);
	return v;
}

static uint64_t u64(struct cursor *c) {
	uint64_t v = 0;
	const void *at = take(c, sizeof v);
	if (at)
		memcpy(&v, at, sizeof v);
	return v;
}

// str reads a string that ends with NUL inside its stated length.
static const char *str(struct cursor *c) {
	uint32_t n = u32(c);
	const char *at = take(c, n);
	if (!at || n == 0 || at[n - 1] != 0) {
		c->ok = 0;
		return "";
	}
	return at;
}

// list reads a count and as many strings, and returns an array that ends with NULL.
static const char **list(struct cursor *c) {
	uint32_t n = u32(c);
	if (n > MAX_LIST)
		c->ok = 0;
	const char **v = c->ok ? calloc(n + 1, sizeof *v) : 0;
	if (!v)
		c->ok = 0;
	for (uint32_t i = 0; c->ok && i < n; i++)
		v[i] = str(c);
	return v;
}

static int saved_errno;
static const char *failed_step;

#define TRY(step, expr) \
	do { \
		if ((expr) < 0) { \
			saved_errno = errno; \
			failed_step = step; \
			return -1; \
		} \
	} while (0)

static int send_frame(uint32_t type, uint32_t id, const int32_t *words, int n, int fd) {
	char buf[64], control[CMSG_SPACE(sizeof fd)] = {0};
	struct header h = {type, id};
	memcpy(buf, &h, sizeof h);
	memcpy(buf + sizeof h, words, n * sizeof *words);
	struct iovec v = {buf, sizeof h + n * sizeof *words};
	struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
	if (fd >= 0) {
		m.msg_control = control;
		m.msg_controllen = sizeof control;
		struct cmsghdr *c = CMSG_FIRSTHDR(&m);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof fd);
		memcpy(CMSG_DATA(c), &fd, sizeof fd);
	}
	for (;;) {
		if (sendmsg(SOCK, &m, MSG_NOSIGNAL) >= 0)
			return 0;
		if (errno != EINTR)
			_exit(0); // the daemon is gone
	}
}

static int recv_frame(char *buf, size_t size, int *fds, int *nfds) {
	char control[CMSG_SPACE(MAX_FDS * sizeof(int))];
	struct iovec v = {buf, size};
	struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
	ssize_t n = recvmsg(SOCK, &m, MSG_CMSG_CLOEXEC);
	*nfds = 0;
	if (n < 0)
		return errno == EINTR || errno == EAGAIN ? -1 : 0;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		*nfds = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		memcpy(fds, CMSG_DATA(c), *nfds * sizeof(int));
	}
	if (m.msg_flags & (MSG_TRUNC | MSG_CTRUNC))
		_exit(3);
	return n;
}

// --- the sandbox's view -------------------------------------------------------------

static int stage; // the new root, before it is one

// target opens a path below the new root. Nothing on the way may be a symbolic link: the
// upper of an agent can be a lower layer here, and a link would lead out of the root.
static int target(const char *path) {
	struct { uint64_t flags, mode, resolve; } how = {O_PATH | O_CLOEXEC, 0, 0x10 | 0x04 | 0x02 /* IN_ROOT NO_SYMLINKS NO_MAGICLINKS */};
	return syscall(437 /* openat2 */, stage, path, &how, sizeof how);
}

static int move_to(int mnt, const char *path) {
	int t = target(path);
	if (t < 0)
		return -1;
	int e = syscall(SYS_move_mount, mnt, "", t, "", 0x04 | 0x40 /* F_EMPTY_PATH T_EMPTY_PATH */);
	close(t);
	close(mnt);
	return e;
}

// copy_mount makes a detached mount of what fd names.
static int copy_mount(int fd) {
	return syscall(SYS_open_tree, fd, "", 1 /* CLONE */ | O_CLOEXEC | 0x1000 /* EMPTY_PATH */);
}

static int set_read_only(int mnt, int ro) {
	struct { uint64_t set, clr, propagation, userns; } a = {.set = ro ? 1 : 0, .clr = ro ? 0 : 1};
	return syscall(442 /* mount_setattr */, mnt, "", 0x1000, &a, sizeof a);
}

// rebind mounts a directory of the new root on itself, writable or read-only.
static int rebind(const char *path, int ro) {
	int t = target(path);
	if (t < 0) // not there, or the agent put something else there
		return errno == ENOENT || errno == ELOOP || errno == ENOTDIR ? 0 : -1;
	int m = copy_mount(t);
	close(t);
	return m < 0 || set_read_only(m, ro) < 0 ? -1 : move_to(m, path);
}

enum { NOSUID = 2, NODEV = 4, NOEXEC = 8 };

// new_mount makes a detached mount of a new file system.
static int new_mount(const char *type, const char *const *opts, int attrs) {
	int fs = syscall(SYS_fsopen, type, 1);
	if (fs < 0)
		return -1;
	for (; opts && *opts; opts += 2)
		if (syscall(SYS_fsconfig, fs, 1 /* SET_STRING */, opts[0], opts[1], 0) < 0)
			return -1;
	if (syscall(SYS_fsconfig, fs, 6 /* CREATE */, 0, 0, 0) < 0)
		return -1;
	int m = syscall(SYS_fsmount, fs, 1, attrs);
	close(fs);
	return m;
}

static int mount_new(const char *type, const char *const *opts, int attrs, const char *to) {
	int m = new_mount(type, opts, attrs);
	return m < 0 ? -1 : move_to(m, to);
}

// mask hides a path: a directory under an empty read-only one, a file under null.
static int mask(const char *path, int empty, int null) {
	struct stat st;
	int t = target(path);
	if (t < 0)
		return errno == ENOENT || errno == ELOOP || errno == ENOTDIR ? 0 : -1;
	if (fstat(t, &st) < 0)
		return -1;
	close(t);
	int m = copy_mount(S_ISDIR(st.st_mode) ? empty : null);
	return m < 0 ? -1 : move_to(m, path);
}

// place attaches a mount beside the working directory, which is the launcher's and empty and
// came along with its mount namespace. Before Linux 6.15 only what is attached in this
// namespace can be copied. All of it goes with the old root.
static int place(int mnt, const char *at) {
	return syscall(SYS_move_mount, mnt, "", AT_FDCWD, at, 0x04 /* F_EMPTY_PATH */);
}

struct block { const char *p; uint32_t n; };

static struct block block(struct cursor *c) {
	struct block b = {.n = u32(c)};
	b.p = take(c, b.n);
	return b;
}

// make_proc makes a /proc with what is hidden in it and what is read-only, at a place of its
// own, and returns its mount.
static int make_proc(struct block view, int empty, int null) {
	struct cursor c = {view.p, view.p + view.n, 1};
	const char **masks = list(&c), **ros = list(&c);
	if (!c.ok)
		return errno = EINVAL, -1;
	int before = stage, failed = 0;
	int proc = new_mount("proc", 0, NOSUID | NODEV | NOEXEC);
	if (proc < 0 || place(proc, "../proc") < 0)
		return -1;
	stage = proc;
	for (const char **p = ros; !failed && *p; p++)
		failed = rebind(*p, 1) < 0;
	for (const char **p = masks; !failed && *p; p++)
		failed = mask(*p, empty, null) < 0;
	stage = before;
	free(masks);
	free(ros);
	return failed ? -1 : proc;
}

static int loopback_up(void) {
	struct ifreq r = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
	int s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (s < 0)
		return -1;
	int e = ioctl(s, SIOCSIFFLAGS, &r);
	close(s);
	return e;
}

static int drop_bounding(uint64_t keep) {
	for (int cap = 0; cap < 64; cap++)
		if (!(keep >> cap & 1) && prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) < 0 && errno != EINVAL)
			return -1;
	return 0;
}

static int join(const int *tasks, int n) {
	for (int i = 0; i < n; i++)
		if (write(tasks[i], "0", 1) != 1)
			return -1;
	return 0;
}

static int load_filters(struct cursor *c) {
	uint32_t n = u32(c);
	for (uint32_t i = 0; i < n && c->ok; i++) {
		uint32_t len = u32(c);
		const void *code = take(c, len);
		if (!code || len % sizeof(struct sock_filter))
			return errno = EINVAL, -1;
		struct sock_fprog prog = {len / sizeof(struct sock_filter), (void *)code};
		if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &prog) < 0)
			return -1;
	}
	return 0;
}

// The descriptors of SETUP, in order; then one for each entry of etc.
enum { FD_ROOT, FD_DEV, FD_EMPTY, FD_SYS, FD_ETC };

// ahead is a /proc that was made before SETUP, and of which view; -1 is none.
static struct { int proc; uint32_t n; char view[4096]; } ahead = {.proc = -1};

static int proc_for(struct block view, int empty, int null) {
	if (ahead.proc >= 0 && ahead.n == view.n && memcmp(ahead.view, view.p, view.n) == 0)
		return ahead.proc;
	return make_proc(view, empty, null);
}

static int mount_view(struct cursor *c, uint32_t flags, const int *fd, int nfds) {
	const char *shm = str(c);
	const char **masks = list(c), **ros = list(c), **rws = list(c), **etc = list(c);
	struct block view = block(c);
	int n = 0;
	if (c->ok && flags & AS_IT_IS)
		return 0;
	if (!c->ok || nfds < FD_ETC)
		return errno = EINVAL, -1;
	while (etc[n])
		n++;
	if (nfds < FD_ETC + n)
		return errno = EINVAL, -1;
	const char *const shm_opts[] = {"size", shm, "nr_inodes", "65536", "mode", "1777", 0};
	const char *const pts_opts[] = {"ptmxmode", "0666", "mode", "0620", 0};
	TRY("make mounts private", mount(0, "/", 0, MS_REC | MS_PRIVATE, 0));
	// By its path the mapped root could not reach the working directory.
	TRY("move root", place(fd[FD_ROOT], "."));
	stage = fd[FD_ROOT];
	for (const char **p = rws; *p; p++)
		TRY("rebind writable", rebind(*p, 0));
	TRY("move dev", move_to(fd[FD_DEV], "/dev"));
	int empty = fd[FD_EMPTY], null = target("/dev/null"), proc;
	TRY("place the empty directory", place(empty, "../empty"));
	TRY("make proc", proc = proc_for(view, empty, null));
	TRY("move proc", move_to(proc, "/proc"));
	TRY("move sys", move_to(fd[FD_SYS], "/sys"));
	TRY("mount shm", mount_new("tmpfs", shm_opts, NOSUID | NODEV | NOEXEC, "/dev/shm"));
	if (flags & WITH_PTS)
		TRY("mount devpts", mount_new("devpts", pts_opts, NOSUID | NOEXEC, "/dev/pts"));
	for (int i = 0; i < n; i++)
		if (move_to(fd[FD_ETC + i], etc[i]) < 0 && errno != ENOENT && errno != ELOOP && errno != ENOTDIR)
			TRY("mount etc", -1);
	for (const char **p = ros; *p; p++)
		TRY("rebind read-only", rebind(*p, 1));
	for (const char **p = masks; *p; p++)
		TRY("mask", mask(*p, empty, null));
	close(null);
	if (flags & ROOT_RO)
		TRY("read-only root", set_read_only(stage, 1));
	TRY("enter root", fchdir(stage));
	TRY("pivot root", syscall(SYS_pivot_root, ".", "."));
	TRY("detach old root", umount2(".", MNT_DETACH));
	TRY("enter new root", chdir("/"));
	return 0;
}

static int is_guest; // else it is the nursery
static int unmapped; // it was cloned before its user namespace had ids

static int become_root(void) {
	if (!unmapped)
		return 0;
	if (syscall(SYS_setgroups, 0, 0) < 0 || syscall(SYS_setresgid, 0, 0, 0) < 0 || syscall(SYS_setresuid, 0, 0, 0) < 0)
		return -1;
	unmapped = 0;
	return 0;
}

// The descriptors of AHEAD, in order.
enum { FD_AHEAD_EMPTY, FD_AHEAD_DEV, AHEAD_FDS };

// make_ahead makes what most sandboxes want of their /proc. Without it SETUP does so.
static void make_ahead(struct cursor *c, const int *fd, int nfds) {
	struct block view = block(c);
	if (!c->ok || view.n > sizeof ahead.view || nfds < AHEAD_FDS || ahead.proc >= 0)
		return;
	if (become_root() < 0 || mount(0, "/", 0, MS_REC | MS_PRIVATE, 0) < 0)
		return;
	if (place(fd[FD_AHEAD_EMPTY], "../empty") < 0 || place(fd[FD_AHEAD_DEV], "../dev") < 0)
		return;
	int null = open("../dev/null", O_PATH | O_CLOEXEC);
	if (null < 0)
		return;
	ahead.proc = make_proc(view, fd[FD_AHEAD_EMPTY], null);
	ahead.n = view.n;
	memcpy(ahead.view, view.p, view.n);
	close(null);
}

static int set_up(struct cursor *c, const int *fd, int nfds) {
	uint64_t caps = u64(c);
	const char *host = str(c);
	uint32_t flags = u32(c);
	if (!c->ok)
		return errno = EINVAL, -1;
	TRY("become root", become_root());
	if (mount_view(c, flags, fd, nfds) < 0)
		return -1;
	if (!(flags & AS_IT_IS))
		TRY("set host name", sethostname(host, strlen(host)));
	TRY("drop bounding set", drop_bounding(caps));
	TRY("hide", prctl(PR_SET_DUMPABLE, 0, 0, 0, 0));
	TRY("no new privileges", prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	TRY("load filters", load_filters(c));
	return c->ok ? 0 : (errno = EINVAL, -1);
}

// --- programs -----------------------------------------------------------------------

static struct { pid_t pid; uint32_t id; } calls[MAX_CALLS];

// failures has a place for each call where its child says why it could not become the
// program. The memory is shared and is gone from the child with its exec. The child is
// forked, not vforked: a program of the same user can stop it before its exec, and that
// must hold up this one call alone, not PID 1.
static volatile struct failure { int32_t step, error; } *failures;

struct program {
	uint32_t id, flags, uid, gid, umask, ngroups, nrlimits;
	uint16_t rows, cols;
	const uint32_t *groups;
	const char *rlimits; // {u32 resource, u64 soft, u64 hard}...
	const char *cwd, *path;
	const char **argv, **env;
	const int *std, *tasks;
	int nstd, ntasks, tty;
	volatile struct failure *failure;
};

enum { STEP_CGROUP = 1, STEP_STDIO, STEP_RLIMIT, STEP_USER, STEP_CWD, STEP_EXEC, STEP_FORK, STEP_PTY, STEP_DECODE };

static _Noreturn void fail(const struct program *p, int step) {
	p->failure->error = errno;
	p->failure->step = step;
	_exit(127);
}

static char path_buf[8192];

static void exec_in_path(const struct program *p) {
	const char *file = p->argv[0], *dir = p->path;
	int worst = ENOENT;
	if (strchr(file, '/')) {
		execve(file, (char **)p->argv, (char **)p->env);
		return;
	}
	while (*dir) {
		size_t n = strcspn(dir, ":");
		if (n && snprintf(path_buf, sizeof path_buf, "%.*s/%s", (int)n, dir, file) < (int)sizeof path_buf) {
			execve(path_buf, (char **)p->argv, (char **)p->env);
			if (errno != ENOENT && errno != ENOTDIR)
				worst = errno;
			if (errno == E2BIG || errno == ENOEXEC)
				break;
		}
		dir += n + (dir[n] == ':');
	}
	errno = worst;
}

static int become(const struct program *p) {
	if (syscall(SYS_setgroups, p->ngroups, p->groups) < 0)
		return -1;
	if (syscall(SYS_setresgid, p->gid, p->gid, p->gid) < 0)
		return -1;
	return syscall(SYS_setresuid, p->uid, p->uid, p->uid);
}

static int limit(const struct program *p) {
	const char *at = p->rlimits;
	for (uint32_t i = 0; i < p->nrlimits; i++, at += 20) {
		uint32_t resource;
		uint64_t soft, hard;
		memcpy(&resource, at, 4);
		memcpy(&soft, at + 4, 8);
		memcpy(&hard, at + 12, 8);
		struct rlimit64 { uint64_t cur, max; } r = {soft, hard};
		if (syscall(SYS_prlimit64, 0, resource, &r, 0) < 0 && errno != EPERM)
			return -1;
	}
	return 0;
}

static _Noreturn void child(const struct program *p) {
	sigset_t none;
	if (join(p->tasks, p->ntasks) < 0)
		fail(p, STEP_CGROUP);
	setsid();
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, 0);
	for (int i = 0; i < p->nstd; i++)
		if (dup2(p->std[i], i) < 0)
			fail(p, STEP_STDIO);
	if (p->tty && ioctl(0, TIOCSCTTY, 0) < 0)
		fail(p, STEP_PTY);
	syscall(SYS_close_range, p->nstd, ~0u, 4 /* CLOEXEC */);
	umask(p->umask);
	if (limit(p) < 0)
		fail(p, STEP_RLIMIT);
	if (become(p) < 0)
		fail(p, STEP_USER);
	if (chdir(p->cwd) < 0)
		fail(p, STEP_CWD);
	exec_in_path(p);
	fail(p, STEP_EXEC);
}

static int open_pty(struct program *p, int *master) {
	struct winsize w = {.ws_row = p->rows, .ws_col = p->cols};
	int unlocked = 0;
	*master = open("/dev/pts/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC);
	if (*master < 0 || ioctl(*master, TIOCSPTLCK, &unlocked) < 0)
		return -1;
	int tty = ioctl(*master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
	if (tty < 0 || ioctl(tty, TIOCSWINSZ, &w) < 0 || fchown(tty, p->uid, p->gid) < 0)
		return -1;
	return tty;
}

static void answer_failed(uint32_t id, int step, int error) {
	int32_t words[] = {step, error};
	send_frame(FAILED, id, words, 2, -1);
}

// sessions are those of the latest programs. Where no cgroup tells what is left of one,
// SWEEP asks by these, and has it killed.
static struct { uint32_t id; pid_t sid; } sessions[MAX_CALLS];

static int sweep(uint32_t id, int signal) {
	pid_t sid = sessions[id % MAX_CALLS].id == id ? sessions[id % MAX_CALLS].sid : 0;
	DIR *proc = sid ? opendir("/proc") : 0;
	int found = 0;
	for (struct dirent *e; proc && (e = readdir(proc));) {
		pid_t pid = atoi(e->d_name);
		if (pid > 1 && getsid(pid) == sid && kill(pid, signal) == 0)
			found++;
	}
	if (proc)
		closedir(proc);
	return found;
}

static void start(struct program *p) {
	int slot = 0, master = -1, tty = -1, std[4];
	while (slot < MAX_CALLS && calls[slot].pid)
		slot++;
	if (slot == MAX_CALLS)
		return answer_failed(p->id, STEP_FORK, EAGAIN);
	memcpy(std, p->std, sizeof *std * p->nstd);
	if (p->flags & PTY) {
		if ((tty = open_pty(p, &master)) < 0) {
			answer_failed(p->id, STEP_PTY, errno);
			close(master);
			return;
		}
		std[0] = std[1] = std[2] = tty;
		p->tty = 1;
	}
	p->std = std;
	p->failure = &failures[slot];
	p->failure->step = 0;
	pid_t pid = fork();
	if (pid == 0)
		child(p);
	int error = errno;
	close(tty);
	if (pid < 0) {
		answer_failed(p->id, STEP_FORK, error);
	} else {
		int32_t words[] = {pid};
		calls[slot].pid = pid;
		calls[slot].id = p->id;
		sessions[p->id % MAX_CALLS].id = p->id;
		sessions[p->id % MAX_CALLS].sid = pid;
		if (p->tty)
			send_frame(STARTED, p->id, words, 1, master);
	}
	close(master);
}

// slots keep the tasks files of call cgroups that are used again, so that they need to be
// opened and sent once.
enum { MAX_SLOTS = 64, SLOT_TASKS = 4 };
static struct { int n, tasks[SLOT_TASKS]; } slots[MAX_SLOTS];

// take_tasks finds the tasks files of a program: those that came along, which stay with the
// slot, or the slot's. Slot 0 keeps none.
static int take_tasks(struct program *p, uint32_t slot, int *given, int n) {
	p->tasks = given;
	p->ntasks = n;
	if (slot == 0)
		return n < 0 ? -1 : 0;
	if (slot > MAX_SLOTS || n < 0 || n > SLOT_TASKS)
		return -1;
	if (n > 0) {
		for (int i = 0; i < slots[slot - 1].n; i++)
			close(slots[slot - 1].tasks[i]);
		for (int i = 0; i < n; i++) {
			slots[slot - 1].tasks[i] = given[i];
			given[i] = -1; // not to be closed with the frame
		}
		slots[slot - 1].n = n;
	}
	p->tasks = slots[slot - 1].tasks;
	p->ntasks = slots[slot - 1].n;
	return p->ntasks > 0 ? 0 : -1;
}

static void exec_request(uint32_t id, struct cursor *c, int *fds, int nfds) {
	struct program p = {.id = id};
	void *big = MAP_FAILED;
	size_t big_size = 0;
	p.flags = u32(c);
	if (p.flags & IN_MEMFD && nfds > 0) {
		struct stat st;
		int fd = fds[--nfds];
		if (fstat(fd, &st) == 0 && st.st_size > 0 && st.st_size <= 16 << 20)
			big = mmap(0, big_size = st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
		*c = big == MAP_FAILED ? (struct cursor){0, 0, 0} : (struct cursor){big, (char *)big + big_size, 1};
	}
	uint32_t slot = u32(c);
	p.uid = u32(c);
	p.gid = u32(c);
	p.umask = u32(c);
	p.rows = u32(c);
	p.cols = u32(c);
	p.ngroups = u32(c);
	p.groups = p.ngroups <= 65536 ? take(c, p.ngroups * 4) : (c->ok = 0, (void *)0);
	p.nrlimits = u32(c);
	p.rlimits = p.nrlimits <= 16 ? take(c, p.nrlimits * 20) : (c->ok = 0, (void *)0);
	p.cwd = str(c);
	p.path = str(c);
	p.argv = list(c);
	p.env = list(c);
	p.std = fds;
	p.nstd = p.flags & HAS_FD3 ? 4 : 3;
	if (c->ok && p.argv[0] && take_tasks(&p, slot, fds + p.nstd, nfds - p.nstd) == 0)
		start(&p);
	else
		answer_failed(id, STEP_DECODE, EINVAL);
	free(p.argv);
	free(p.env);
	if (big != MAP_FAILED)
		munmap(big, big_size);
}

// reap takes every child that ended, adopted ones too: a zombie counts against the pids
// limit of the sandbox.
static void reap(void) {
	int status;
	pid_t pid;
	struct rusage u;
	while ((pid = wait4(-1, &status, WNOHANG, &u)) > 0) {
		for (int i = 0; i < MAX_CALLS; i++) {
			if (calls[i].pid != pid)
				continue;
			int32_t words[] = {status};
			calls[i].pid = 0;
			if (failures[i].step)
				answer_failed(calls[i].id, failures[i].step, failures[i].error);
			else
				send_frame(EXITED, calls[i].id, words, 1, -1);
			break;
		}
	}
}

// --- the life of a guest ------------------------------------------------------------

static int signals; // a signalfd of SIGCHLD

static int begin(void) {
	sigset_t mask;
	sigemptyset(&mask);
	sigaddset(&mask, SIGCHLD);
	signals = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
	failures = mmap(0, MAX_CALLS * sizeof *failures, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	is_guest = 1;
	return signals < 0 || failures == MAP_FAILED ? -1 : 0;
}

// be_born makes a fresh clone of the nursery a guest that waits for SETUP. What needs no
// ids is done now, ahead of need.
static int be_born(int socket, const int *tasks, int n, int home) {
	unmapped = 1;
	TRY("take the socket", dup2(socket, SOCK));
	TRY("join the guest's cgroups", join(tasks, n - home));
	// Not with the clone, which takes the cgroups of the cloning process for the root.
	TRY("new cgroup namespace", unshare(CLONE_NEWCGROUP));
	TRY("join all guests", join(tasks + n - home, home));
	TRY("close descriptors", syscall(SYS_close_range, SOCK + 1, ~0u, 0));
	TRY("own session", setsid());
	TRY("own name", prctl(PR_SET_NAME, "init"));
	TRY("bring up loopback", loopback_up());
	TRY("begin", begin());
	return 0;
}

static int write_map(pid_t pid, const char *file, uint32_t host, uint32_t size) {
	char path[64], map[64];
	snprintf(path, sizeof path, "/proc/%d/%s", pid, file);
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	int n = snprintf(map, sizeof map, "0 %u %u\n", host, size), e = write(fd, map, n);
	close(fd);
	return e == n ? 0 : -1;
}

// clone_guest clones this process into namespaces of its own, as a child of the launcher.
static void clone_guest(uint32_t id, struct cursor *c, const int *fds, int nfds) {
	uint32_t host = u32(c), size = u32(c), flags = u32(c);
	int pidfd = -1, birth = !!(flags & HAS_BIRTH), home = !!(flags & HAS_HOME), used = 1 + birth;
	if (!c->ok || nfds < used + home)
		return answer_failed(id, 0, EINVAL);
	struct {
		uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, set_tid_size, cgroup;
	} a = {
		.flags = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_PARENT | 0x1000 /* PIDFD */,
		.pidfd = (uintptr_t)&pidfd,
	};
	if (birth) {
		a.flags |= 0x200000000; // INTO_CGROUP
		a.cgroup = fds[1];
	}
	// The kernel counts what a sandbox takes of some things (inotify instances, pending signals,
	// locked memory) also as its user namespace's maker's: as ours, root's, one sandbox could
	// take the whole host's share of them. So its own root makes it.
	if (syscall(SYS_setresuid, -1, host, -1) < 0)
		return answer_failed(id, 0, errno);
	pid_t pid = syscall(435 /* clone3 */, &a, sizeof a);
	int failure = errno;
	if (pid != 0 && syscall(SYS_setresuid, -1, 0, -1) < 0)
		_exit(5);
	if (pid == 0) {
		if (be_born(fds[0], fds + used, nfds - used, home) < 0) {
			dprintf(2, "guest: %s: %s\n", failed_step, strerror(saved_errno));
			_exit(1);
		}
		return;
	}
	if (pid < 0)
		return answer_failed(id, 0, failure);
	int32_t words[] = {pid};
	if (write_map(pid, "uid_map", host, size) < 0 || write_map(pid, "gid_map", host, size) < 0) {
		int error = errno;
		syscall(424 /* pidfd_send_signal */, pidfd, SIGKILL, 0, 0);
		answer_failed(id, pid, error);
	} else {
		send_frame(STARTED, id, words, 1, pidfd);
	}
	close(pidfd);
}

static int ready; // SETUP is done
static int kept[MAX_FDS], kept_n; // by an undertaker until BURY

static void close_kept(void) {
	while (kept_n > 0)
		close(kept[--kept_n]);
}

static int serve_one(void) {
	static char buf[MAX_FRAME];
	int fds[MAX_FDS], nfds;
	int n = recv_frame(buf, sizeof buf, fds, &nfds);
	if (n == 0)
		_exit(0); // the daemon closed the socket, or is dead
	if (n < (int)sizeof(struct header))
		return 0;
	struct header h;
	memcpy(&h, buf, sizeof h);
	const char *frame = buf;
#ifdef __SANITIZE_ADDRESS__ // a copy of the exact size, so that a read past the frame is seen
	frame = memcpy(malloc(n), buf, n);
#endif
	struct cursor c = {frame + sizeof h, frame + n, 1};
	if (!is_guest && h.type == KEEP) {
		close_kept();
		memcpy(kept, fds, nfds * sizeof *fds);
		kept_n = nfds;
		return 0;
	}
	if (!is_guest && h.type == BURY) {
		close_kept();
		send_frame(BURIED, h.id, 0, 0, -1);
		return 0;
	}
	if (!is_guest) {
		if (h.type != CLONE)
			_exit(2);
		clone_guest(h.id, &c, fds, nfds);
		for (int i = 0; !is_guest && i < nfds; i++) // a guest has closed them by now
			close(fds[i]);
		return 0;
	}
	if (h.type == AHEAD && !ready) {
		make_ahead(&c, fds, nfds);
		for (int i = 0; i < nfds; i++)
			close(fds[i]);
		return 0;
	}
	if (h.type == SETUP && !ready) {
		int e = set_up(&c, fds, nfds);
		for (int i = 0; i < nfds; i++)
			close(fds[i]);
		if (e < 0) {
			int error = saved_errno ? saved_errno : errno;
			dprintf(2, "guest: %s: %s\n", failed_step ? failed_step : "decode", strerror(error));
			int32_t words[] = {0, error};
			send_frame(FAILED, 0, words, 2, -1);
			_exit(1);
		}
		ready = 1;
		send_frame(READY, 0, 0, 0, -1);
		return 0;
	}
	if (h.type == SWEEP) {
		int32_t found = sweep(h.id, u32(&c) ? SIGKILL : 0);
		send_frame(SWEPT, h.id, &found, 1, -1);
		return 0;
	}
	if (h.type != EXEC)
		_exit(2);
	exec_request(h.id, &c, fds, nfds);
	for (int i = 0; i < nfds; i++)
		close(fds[i]);
	return 0;
}

// dial asks the launcher for the socket, for engines that pass no descriptor on. The one that
// it dials with belongs to the sandbox's network namespace and is seen there, so it is closed.
static int dial(const char *path) {
	struct sockaddr_un to = {.sun_family = AF_UNIX};
	int s = socket(AF_UNIX, SOCK_SEQPACKET, 0);
	if (s < 0 || strlen(path) >= sizeof to.sun_path)
		return -1;
	strcpy(to.sun_path, path);
	if (connect(s, (struct sockaddr *)&to, sizeof to) < 0 || dup2(s, SOCK) < 0)
		return -1;
	char buf[16];
	int fds[MAX_FDS], n;
	return recv_frame(buf, sizeof buf, fds, &n) <= 0 || n != 1 || dup2(fds[0], SOCK) < 0 ? -1 : 0;
}

int main(int argc, char **argv) {
	sigset_t mask;
	sigfillset(&mask);
	sigprocmask(SIG_SETMASK, &mask, 0);
	if (argc > 1 && dial(argv[1]) < 0)
		return 4;
	syscall(SYS_close_range, SOCK + 1, ~0u, 0);
	prctl(PR_SET_TIMERSLACK, 50000, 0, 0, 0); // the kernel's own; threads of the launcher may have more
	for (int s = 1; s < NSIG; s++) // the launcher ignores some, and children would inherit that
		signal(s, SIG_DFL);
	fcntl(SOCK, F_SETFD, FD_CLOEXEC);
	if (getpid() == 1 && begin() < 0)
		return 1;
	if (!is_guest) // clone_guest changes its user, and keeps its capabilities; a guest has no such bit
		prctl(PR_SET_SECUREBITS, 1 << 2 /* NO_SETUID_FIXUP */, 0, 0, 0);
	for (;;) {
		struct pollfd p[] = {{SOCK, POLLIN, 0}, {signals, POLLIN, 0}};
		if (poll(p, is_guest ? 2 : 1, -1) < 0 && errno != EINTR)
			return 1;
		if (p[1].revents) {
			struct signalfd_siginfo info[8];
			while (read(signals, info, sizeof info) > 0)
				;
			reap();
		}
		if (p[0].revents)
			serve_one();
	}
}
