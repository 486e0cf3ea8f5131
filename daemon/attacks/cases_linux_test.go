package attacks

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paddock-run/paddock/internal/need"
	"github.com/paddock-run/paddock/overlay"
	"github.com/paddock-run/paddock/policies"
	"github.com/paddock-run/paddock/sandbox"
	"github.com/paddock-run/paddock/sandbox/oci"
)

func command(script string) sandbox.Command {
	return sandbox.Command{Argv: []string{"/bin/sh", "-c", script}}
}

func cmdOf(program, arg string, b *box) sandbox.Command {
	return sandbox.Command{Argv: []string{program, arg}, User: b.user}
}

// Group P: processes and resources.
var processes = []attack{
	{id: "X-P01", does: "fork bomb", run: "(f() { f | f & }; f); while :; do :; done", timeout: patient(time.Second), typed: func(c call) bool { return c.PidsLimit && c.TimedOut }},
	{id: "X-P02", does: "memory bomb", run: "dd if=/dev/zero of=/dev/null bs=400M count=1; echo $?", want: "137", typed: func(c call) bool {
		return c.OOM && c.Code != nil && c.Usage.MemoryPeakBytes > small.MemoryBytes/2 && c.Usage.MemoryPeakBytes <= small.MemoryBytes+small.DiskBytes+1<<20 // the kernel charges ahead
	}},
	{id: "X-P03", does: "memory bomb that no process maps", run: "attack memfd_bomb; echo $?", want: "*", typed: func(c call) bool { return c.OOM }},
	{id: "X-P03b", does: "fills /dev/shm and /tmp", run: "dd if=/dev/zero of=/dev/shm/x bs=1M 2>/dev/null; dd if=/dev/zero of=/tmp/x bs=1M 2>/dev/null; echo full", want: "full"},
	{id: "X-P04", does: "computes without end, four at a time", run: "for i in 1 2 3 4; do while :; do :; done & done; wait", timeout: time.Second, typed: func(c call) bool {
		// A quota of one CPU; beyond it only what the kernel's own periods allow.
		return c.TimedOut && c.Usage.CPU <= c.Usage.Wall*5/4+300*time.Millisecond
	}},
	{id: "X-P05", does: "ignores every signal at its deadline", run: "trap '' TERM INT HUP QUIT; echo partial; while :; do sleep 0.05; done", want: "partial", timeout: patient(300 * time.Millisecond), typed: func(c call) bool { return c.TimedOut }},
	{
		id: "X-P07", does: "leaves a daemon of another session behind", run: "(setsid sh -c 'trap \"\" HUP TERM; sleep 1000' >/dev/null 2>&1 &); echo gone", want: "gone",
		typed: func(c call) bool { return c.Code != nil && (c.Leftover > 0 || differences[under()]["X-P07"].why != "") },
	},
	{id: "X-P08", does: "ends with a child that holds its output", run: "sleep 1000 & echo ended", want: "ended", typed: func(c call) bool { return c.OutputHeld && c.Code != nil && c.Usage.Wall < 20*time.Second }},
	{id: "X-P10", does: "floods its output", run: "echo", then: flood},
	{id: "X-P11", does: "prints NULs, broken UTF-8, escapes and one long line", run: `printf '\0\377\376\033[2J'; head -c 5000000 /dev/zero | tr '\0' a | wc -c`, want: "\x00\xff\xfe\x1b[2J5000000"},
	{
		id: "X-P12", does: "signals PID 1 and everybody", run: "kill -9 1; kill -STOP 1; kill -TERM 1; kill -SEGV 1; kill -9 -1",
		typed: func(c call) bool { return c.Signal == int(unix.SIGKILL) || c.Code != nil },
	},
	{
		id: "X-P13", does: "reads and writes PID 1's memory, descriptors, limits", run: "attack init_memory",
		want: "vm_readv EPERM\nvm_writev EPERM\nseize EPERM\nmem EACCES\ntask-mem EACCES\nsyscall " + either(hasSyscallFile, "EACCES", "ENOENT") + "\nkcmp EPERM\nfds 0\nprlimit EPERM\nsetscheduler EPERM",
	},
	{id: "X-P14", does: "writes to its own and PID 1's program", run: "attack exe", want: "self ETXTBSY\ninit EACCES\ninit-task EACCES\ntruncate ETXTBSY", strict: "self EACCES\ninit EACCES\ninit-task EACCES\ntruncate EACCES"},
	{id: "X-P14b", does: "has PID 1 run #!/proc/self/exe and takes hold of that", run: "attack hunt_exe 1 >/tmp/hunt 2>&1 &", then: huntExe},
	{
		id: "X-P16", does: "takes all descriptors, watches and timers", run: "attack exhaust",
		want: "files EMFILE\ninotify EMFILE\nepoll EMFILE\ntimerfd EMFILE\npipes EMFILE\ntimers EAGAIN",
	},
	{
		id: "X-P16b", does: "keeps all that the kernel counts by user", run: "attack hold >/tmp/held 2>&1 & until grep -q held /tmp/held; do sleep 0.05; done; cat /tmp/held", want: "held ok",
		typed: func(c call) bool { return c.Code != nil && c.Leftover > 0 }, then: othersHaveTheirShare,
	},
	{id: "X-P17", does: "makes IPC objects and keys", run: "attack ipc", want: "shm ok\nsem ok\nmsg ok\nmq EMFILE\nkeyring EPERM", strict: "shm EPERM\nsem EPERM\nmsg EPERM\nmq EPERM\nkeyring EPERM"},
	{
		id: "X-P18", does: "raises priorities and limits", run: "attack privileges",
		want: "nice EACCES\nfifo EPERM\ndeadline EPERM\nioprio EPERM\nmlock ENOMEM\nmlockall ENOMEM\nnofile EPERM\ncore EPERM\noom EACCES",
	},
	{id: "X-P19", does: "fsync and sync storm", run: "attack sync_storm", want: "storm ok"},
}

// othersHaveTheirShare holds that another sandbox and the host still get what this one took
// all of.
func othersHaveTheirShare(t *testing.T, b *box, _ call) {
	t.Helper()
	const both = "inotify ok\ntimers ok\n"
	if b.sh(t, "attack take").out == both {
		t.Error("the sandbox itself gets more: it did not hold all")
	}
	others := b.h.bystander.sh(t, "attack take")
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err == nil {
		err = unix.Close(fd)
	}
	if b.h.differs("X-P16b").shared {
		if !strings.HasPrefix(others.out, "inotify EMFILE\n") || err == nil {
			t.Errorf("the bystander %q, the host %v: what is declared to be shared is not", others.out, err)
		}
		return
	}
	if others.out != both || err != nil {
		t.Errorf("the bystander: %q %q, want %q; the host: %v", others.out, others.err, both, err)
	}
}

// huntExe runs the world's script with the interpreter /proc/self/exe, while a hunter in
// the sandbox opens the program of every process (CVE-2019-5736). The digest of the host
// holds this binary; PID 1's own text is shared by all sandboxes, so the bystander tells.
func huntExe(t *testing.T, b *box, _ call) {
	t.Helper()
	for range 5 {
		b.run(t, sandbox.Command{Argv: []string{"/bin/selfexe"}, User: b.user, Timeout: 100 * time.Millisecond})
	}
	c := b.sh(t, "while ! grep -q written /tmp/hunt; do sleep 0.1; done; cat /tmp/hunt")
	if c.out != "written 0\n" {
		t.Errorf("the hunter: %q %q", c.out, c.err)
	}
}

// flood is a call whose output nobody keeps; every byte of it is counted.
func flood(t *testing.T, b *box, _ call) {
	t.Helper()
	const size = 256 << 20
	var n counter
	p, err := b.Start(t.Context(), sandbox.Command{
		Argv: []string{"/bin/dd", "if=/dev/zero", "bs=1M", "count=256"}, Dir: "/", User: b.user, Stdout: &n, Stderr: io.Discard, Timeout: time.Minute,
	})
	if err != nil {
		t.Fatal(err)
	}
	if e := p.Wait(); e.Code == nil || *e.Code != 0 || n != size {
		t.Errorf("ended %+v with %d bytes of output, want %d", e, n, size)
	}
}

// counter counts what is written to it.
type counter int64

func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}

// Group K: kernel surface.
var kernel = []attack{
	// X-K01, X-K02, X-K04 to X-K09 and X-K20 are lines of the probe.
	{id: "X-K01", does: "asks for all that the kernel has: mounts, namespaces, bpf, io_uring, keys, modules, 32-bit calls", run: "echo", then: probed},
	{id: "X-K09", does: "asks for every address family", run: "attack families", want: either(hasIPv6, "1 2 10 16", "1 2 16")},
	{
		id: "X-K03", does: "joins PID 1's namespaces", run: "attack join",
		want: "net EACCES\nmnt EACCES\nuser EACCES\npid EACCES\nipc EACCES\nuts EACCES\ncgroup EACCES\nsetns EPERM\nbind EPERM",
	},
	{
		id: "X-K10", does: "looks at /dev", run: "echo $(ls /dev); mknod /tmp/a b 8 0 2>&1; mknod /dev/a c 1 1 2>&1",
		want: "fd full null ptmx pts random shm stderr stdin stdout tty urandom zero\nmknod: /tmp/a: Operation not permitted\nmknod: /dev/a: Operation not permitted", typed: anyEnd,
	},
	{id: "X-K11", does: "opens all of /proc and /sys for writing", run: "attack kernel_files", want: "walked, 0 writable"},
	{id: "X-K12", does: "reads what the kernel knows of the host", run: "cat /proc/kcore /proc/keys /proc/timer_list /proc/interrupts /proc/sched_debug /sys/firmware/* /sys/devices/virtual/powercap/* /dev/kmsg /proc/kmsg 2>/dev/null | wc -c", want: "0"},
	{
		id: "X-K13", does: "reaches for the cgroups", run: "attack cgroup; ls /sys/fs/cgroup 2>/dev/null | wc -l",
		want: "v1 EPERM\nv2 EPERM\nrelease_agent ENOENT\nmemory.max ENOENT\nprocs ENOENT\n0",
	},
	{id: "X-K15", does: "opens inodes of the host by handle", run: "attack shocker", want: "handle EPERM\nhandle EPERM\nhandle EPERM"},
	{id: "X-K16", does: "runs set-id programs, the world's and its own", run: "cp /bin/attack /tmp/s; chmod 6755 /tmp/s; stat -c %a /tmp/s", want: "6755", then: setID},
	{id: "X-K17", does: "starts calls in directories of /proc", run: "ls /proc/self/fd | tr '\\n' ' '; cat /proc/1/environ 2>/dev/null | wc -c", want: "0 1 2 3 0", then: workingDirs},
	{id: "X-K21", does: "looks for others and for the host", run: lookAround, want: "*", then: seesOnlyItself},
	{id: "X-K23", does: "looks for capabilities to inherit", run: "grep -E 'CapInh|CapAmb|NoNewPrivs' /proc/self/status | tr '\\t' ' '", want: "CapInh: 0000000000000000\nCapAmb: 0000000000000000\nNoNewPrivs: 1"},
	{id: "X-K23b", does: "looks for capabilities beyond its policy's", run: "sed -n 's/^Cap\\(Prm\\|Eff\\|Bnd\\):.//p' /proc/self/status", want: "*", then: onlyItsCapabilities},
	{id: "X-K24", does: "looks for a mount with devices or set-id bits", run: "cat /proc/self/mountinfo", want: "*", then: mountsAreTame},
	{id: "X-K22", does: "reads the flag by every way to the host's root", run: readFlag, want: "0"},
}

// probed holds what a program finds against the table of its policy.
func probed(t *testing.T, b *box, _ call) {
	t.Helper()
	table := probes + "probe." + b.policy.Name() + ".golden"
	if g := b.h.differs("X-K01").golden; g != "" {
		table = g + b.policy.Name() + ".golden"
	}
	want := need.ProbeTable(t, b.h.probe, table)
	for native, here := range b.h.differs("X-K01").lines {
		want = strings.Replace(want, native+"\n", here+"\n", 1)
	}
	if c := b.run(t, sandbox.Command{Argv: []string{"/bin/probe"}, User: b.user}); c.out != want {
		t.Errorf("the probe found\n%s\nwant\n%s\n(%q, %+v)", c.out, want, c.err, c.Exit)
	}
}

// onlyItsCapabilities holds that permitted, effective and bounding sets are the policy's.
func onlyItsCapabilities(t *testing.T, b *box, c call) {
	t.Helper()
	spec, err := b.policy.Spec(b.policy.Defaults(), "paddock", "/")
	if err != nil {
		t.Fatal(err)
	}
	var want uint64
	allowed := spec.Process.Capabilities.Bounding
	if !b.h.launcher.Info().Root {
		allowed = nil
	}
	for _, name := range allowed {
		bit, known := capabilities[name]
		if !known {
			t.Fatalf("%s: not one that the test knows", name)
		}
		want |= 1 << bit
	}
	sets := strings.Fields(c.out)
	if len(sets) != 3 {
		t.Fatalf("sets %q", c.out)
	}
	for _, set := range sets {
		if got, err := strconv.ParseUint(set, 16, 64); err != nil || got != want {
			t.Errorf("permitted, effective, bounding = %v, want %016x in each", sets, want)
		}
	}
}

var capabilities = map[string]int{
	"CAP_CHOWN": unix.CAP_CHOWN, "CAP_DAC_OVERRIDE": unix.CAP_DAC_OVERRIDE, "CAP_FOWNER": unix.CAP_FOWNER, "CAP_FSETID": unix.CAP_FSETID,
	"CAP_KILL": unix.CAP_KILL, "CAP_NET_BIND_SERVICE": unix.CAP_NET_BIND_SERVICE, "CAP_SETGID": unix.CAP_SETGID, "CAP_SETUID": unix.CAP_SETUID,
	"CAP_SETFCAP": unix.CAP_SETFCAP, "CAP_SYS_CHROOT": unix.CAP_SYS_CHROOT,
}

// mountsAreTame holds that no mount honours set-id bits, that devices are in /dev alone,
// that the root follows no redirects, and that no cgroup is mounted.
func mountsAreTame(t *testing.T, b *box, c call) {
	t.Helper()
	masks := b.h.differs("X-K24").why != ""
	if under() == string(oci.Runsc) {
		return // none of them is of the host's kernel
	}
	for line := range strings.Lines(c.out) {
		words := strings.Fields(line)
		dash := slices.Index(words, "-")
		if dash < 0 || len(words) < dash+4 {
			t.Fatalf("mountinfo line %q", line)
		}
		at, options, kind, super := words[4], strings.Split(words[5], ","), words[dash+1], strings.Split(words[dash+3], ",")
		if masks && strings.HasPrefix(at, "/proc/") && (words[3] == "/null" || slices.Contains(options, "ro")) {
			continue // a mask, or a part of /proc that is read-only
		}
		if !slices.Contains(options, "nosuid") {
			t.Errorf("%s honours set-id bits: %s", at, line)
		}
		device := at == "/dev" || strings.HasPrefix(at, "/dev/pts") || words[dash+1] == "tmpfs" && strings.HasPrefix(words[3], "/dev/null")
		if !slices.Contains(options, "nodev") && !device && !strings.HasSuffix(words[3], "/dev/null") {
			t.Errorf("%s has devices: %s", at, line)
		}
		if strings.HasPrefix(kind, "cgroup") {
			t.Errorf("a cgroup is mounted: %s", line)
		}
		if kind == "overlay" && (slices.Contains(super, "redirect_dir=on") || slices.Contains(super, "redirect_dir=follow") || slices.Contains(super, "metacopy=on") || slices.Contains(super, "userxattr")) {
			t.Errorf("the root follows what is written in it: %s", line)
		}
	}
}

const lookAround = `cat /proc/self/mountinfo /proc/self/cgroup /proc/1/cgroup /proc/mounts /proc/net/unix /proc/self/maps /proc/cmdline /etc/hosts /etc/hostname /etc/resolv.conf; for f in /proc/[0-9]*/cmdline; do tr '\0' ' ' <$f; done; env; echo host=$(hostname)
echo procs=$(ls -d /proc/[0-9]* | wc -l); :`

const readFlag = `for p in "$FLAG" "/proc/1/root$FLAG" "/proc/self/root$FLAG" "/proc/self/cwd/../../../../..$FLAG" "/proc/self/fd/0/../../../..$FLAG" "/proc/1/cwd/../../..$FLAG" "/dev/fd/3$FLAG" "/sys/../..$FLAG"; do
cat "$p"; echo x >>"$p"; ln "$p" /tmp/hard; cp "$p" /tmp/copy; done 2>/dev/null | wc -c`

func anyEnd(call) bool { return true }

func setID(t *testing.T, b *box, _ call) {
	t.Helper()
	for _, program := range []string{"/bin/suid", "/tmp/s"} {
		c := b.run(t, sandbox.Command{Argv: []string{program, "ids"}, User: sandbox.User{UID: 1000, GID: 1000}})
		if c.out != fmt.Sprintf("%[1]d %[1]d %[1]d %[1]d\n", b.seen(1000)) {
			t.Errorf("%s run by user 1000 is %q, want no gain", program, c.out)
		}
	}
}

// workingDirs is the lesson of CVE-2024-21626: nothing of the host is an open directory.
func workingDirs(t *testing.T, b *box, _ call) {
	t.Helper()
	for i := range 40 {
		for _, dir := range []string{fmt.Sprintf("/proc/self/fd/%d", i), fmt.Sprintf("/proc/1/fd/%d", i)} {
			c := b.run(t, sandbox.Command{Argv: []string{"/bin/pwd"}, Dir: dir, User: b.user})
			if c.NotStarted == nil {
				t.Errorf("a call ran in %s: %q %+v", dir, c.out, c.Exit)
			}
		}
	}
	for _, dir := range []string{"/proc/1/root", "/proc/1/cwd"} {
		if c := b.run(t, sandbox.Command{Argv: []string{"/bin/pwd"}, Dir: dir, User: b.user}); c.NotStarted == nil && c.out != "/\n" {
			t.Errorf("a call ran in %s: %q", dir, c.out)
		}
	}
}

func seesOnlyItself(t *testing.T, b *box, c call) {
	t.Helper()
	for _, word := range b.h.private {
		if strings.Contains(strings.ReplaceAll(c.out, "FLAG="+b.h.flag, ""), word) {
			t.Errorf("a sandbox sees %q of the host:\n%s", word, c.out)
		}
	}
	if strings.Contains(c.out, b.name) || strings.Contains(c.out, "bystander") {
		t.Errorf("a sandbox sees names of sandboxes:\n%s", c.out)
	}
	if !strings.Contains(c.out, "host=paddock\n") || !strings.Contains(c.out, "procs=") {
		t.Errorf("hostname or processes: %q", c.out)
	}
}

// Group F: files and their capture.
var files = []attack{
	{
		id: "X-F01", does: "links that lead to the host", run: `ln -s "$FLAG" /tmp/l; ln -s "/proc/1/root$FLAG" /tmp/m; ln -s "${FLAG%/flag}" /tmp/d; ln -s / /tmp/r; ln -s "../../../../../../..$FLAG" /tmp/u; echo made`, want: "made",
		then: readsNothing, captured: func(t *testing.T, changes map[string]overlay.Change) {
			t.Helper()
			if l := changes["/tmp/l"]; l.Type != "symlink" || !strings.HasSuffix(l.Target, "/flag") {
				t.Errorf("the link is captured as %+v", l)
			}
		},
	},
	{id: "X-F03", does: "swaps a file, a link, a directory and a FIFO 100,000 times", run: `: >/tmp/swapped; attack swap 100000 "$FLAG" "${FLAG%/flag}" >>/tmp/swapped 2>&1 &`, then: readsWhileSwapped},
	{
		id: "X-F04", does: "FIFO, socket and devices in the tree", run: "attack sockets", want: "bind ok\nfifo ok\ndevice EPERM\nwhiteout EPERM", then: specials,
		captured: func(t *testing.T, changes map[string]overlay.Change) {
			t.Helper()
			kept := differences[under()]["X-F04"].why == ""
			if kept != (changes["/tmp/fifo"].Type == "fifo" && changes["/tmp/socket"].Type == "socket") {
				t.Errorf("captured %+v", changes)
			}
		},
	},
	{
		id: "X-F06", does: "set-id and sticky bits", run: "echo x >/tmp/f; chmod 6755 /tmp/f; mkdir /tmp/g; chmod 1777 /tmp/g; echo made", want: "made",
		captured: func(t *testing.T, changes map[string]overlay.Change) {
			t.Helper()
			if changes["/tmp/f"].Mode&0o7777 != 0o6755 || changes["/tmp/g"].Mode&0o7777 != 0o1777 {
				t.Errorf("modes %o and %o, want 6755 and 1777", changes["/tmp/f"].Mode, changes["/tmp/g"].Mode)
			}
		},
	},
	{
		id: "X-F08", does: "attributes that steer overlayfs", run: "attack xattrs", want: "opaque EPERM\nredirect EPERM\ncapability EPERM",
		only: map[string]string{"build": "opaque EPERM\nredirect EPERM\ncapability ok"}, // of its own user namespace
		captured: func(t *testing.T, changes map[string]overlay.Change) {
			t.Helper()
			for path, ch := range changes {
				for name := range ch.Xattrs {
					if strings.HasPrefix(name, "trusted.") || strings.HasPrefix(name, "user.overlay.") {
						t.Errorf("%s is captured with %s", path, name)
					}
				}
			}
		},
	},
	{id: "X-F14", does: "small files without end", run: "i=0; while : >/tmp/f$i; do i=$((i+1)); done", typed: func(c call) bool { return strings.Contains(c.err, "No space") }},
	{
		id: "X-F15", does: "names of any bytes", run: "attack names", want: "chdir ok" + strings.Repeat("\nname ok", 7), then: listsNames,
		captured: func(t *testing.T, changes map[string]overlay.Change) {
			t.Helper()
			for _, n := range []string{"a\nb", "\xff\xfe", strings.Repeat("n", 255), "-rf", "%2e%2e", " ", "\x1b[31m"} {
				if changes["/tmp/names/"+n].Kind != overlay.Created {
					t.Errorf("%q is not captured", n)
				}
			}
		},
	},
	{
		id: "X-F17", does: "hard links by the thousand", run: "attack links; ln /bin/busybox /tmp/b; echo", want: "links ok",
		captured: func(t *testing.T, changes map[string]overlay.Change) {
			t.Helper()
			stored := 0
			for path, ch := range changes {
				if strings.HasPrefix(path, "/tmp/links/") && ch.LinkedTo == "" {
					stored++
				}
			}
			if stored > 1 {
				t.Errorf("one file of 1001 names is stored %d times", stored)
			}
		},
	},
	{id: "X-F18", does: "fills the disk", run: "dd if=/dev/zero of=/tmp/big bs=1M 2>&1 | grep -c 'No space'", want: "1"},
	{id: "X-F20", does: "files that do not want to be deleted", run: "attack flags", want: "immutable EPERM\nxattr EPERM\nchmod ok"},
	{id: "X-F22", does: "a link where the daemon will put a file", run: `ln -s "$FLAG" /tmp/put; ln -s "${FLAG%/flag}" /tmp/dir; ln -s "/proc/1/root${FLAG%/flag}/canary" /tmp/canary; echo made`, want: "made", then: putsInside},
}

func typedError(t *testing.T, what string, err error) {
	t.Helper()
	if _, ok := errors.AsType[*sandbox.FileError](err); err != nil && !ok {
		t.Errorf("%s: %v is not typed", what, err)
	}
}

// readsNothing reads through every link as the daemon does for a client.
func readsNothing(t *testing.T, b *box, _ call) {
	t.Helper()
	for _, name := range []string{"/tmp/l", "/tmp/m", "/tmp/d/flag", "/tmp/u", "/tmp/r" + b.h.flag, "/tmp/../../.." + b.h.flag, b.h.flag, "/proc/1/root" + b.h.flag, "/tmp/l\x00", "/dev/../.." + b.h.flag} {
		var out bytes.Buffer
		_, err := b.Files().Read(t.Context(), sandbox.User{}, name, &out, 0, -1)
		typedError(t, name, err)
		if err == nil || out.Len() > 0 {
			t.Errorf("%q reads %d bytes", name, out.Len())
		}
	}
	var tar bytes.Buffer
	typedError(t, "tar", b.Files().Tar(t.Context(), sandbox.User{}, "/tmp", &tar))
	if bytes.Contains(tar.Bytes(), []byte(b.h.canary)) {
		t.Error("the download holds the host's flag")
	}
}

// readsWhileSwapped reads, lists, downloads and captures while the guest swaps.
func readsWhileSwapped(t *testing.T, b *box, _ call) {
	t.Helper()
	over := false
	for !over {
		var out bytes.Buffer
		for _, name := range []string{"/tmp/at", "/tmp/at/flag"} {
			_, err := b.Files().Read(t.Context(), sandbox.User{}, name, &out, 0, -1)
			typedError(t, name, err)
		}
		_, _, err := b.Files().List(t.Context(), sandbox.User{}, "/tmp/at", 10)
		typedError(t, "list", err)
		typedError(t, "tar", b.Files().Tar(t.Context(), sandbox.User{}, "/tmp", &out))
		_, err = b.fork.Capture(t.Context(), overlay.CaptureInput{Upper: b.Upper(), HostID: b.ids.HostID})
		if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EXDEV) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("Capture: %v", err)
		}
		if bytes.Contains(out.Bytes(), []byte(b.h.canary)) {
			t.Fatal("a swap led to the host's flag")
		}
		out.Reset()
		if _, err := b.Files().Read(t.Context(), sandbox.User{}, "/tmp/swapped", &out, 0, -1); err != nil {
			t.Fatal(err)
		}
		over = strings.Contains(out.String(), "swap")
		if over && !strings.HasSuffix(out.String(), "swapped 100000\n") {
			t.Errorf("the swaps: %q", out.String())
		}
	}
}

func specials(t *testing.T, b *box, _ call) {
	t.Helper()
	for _, name := range []string{"/tmp/fifo", "/tmp/socket", "/dev/null", "/dev/zero"} {
		_, err := b.Files().Read(t.Context(), sandbox.User{}, name, io.Discard, 0, 10)
		if err == nil {
			t.Errorf("%s was read", name)
		}
		typedError(t, name, err)
	}
	typedError(t, "tar", b.Files().Tar(t.Context(), sandbox.User{}, "/tmp", io.Discard))
}

func listsNames(t *testing.T, b *box, _ call) {
	t.Helper()
	entries, more, err := b.Files().List(t.Context(), sandbox.User{}, "/tmp/names", 0)
	if err != nil || more || len(entries) != 7 {
		t.Errorf("List: %d entries, %v", len(entries), err)
	}
}

func putsInside(t *testing.T, b *box, _ call) {
	t.Helper()
	for _, name := range []string{"/tmp/put", "/tmp/dir/canary", "/tmp/dir/new", "/tmp/canary", "/tmp/../../../.." + filepath.Dir(b.h.flag) + "/new"} {
		_, err := b.Files().Write(t.Context(), sandbox.User{}, name, strings.NewReader("written by the daemon"), 0o644)
		typedError(t, name, err)
	}
	typedError(t, "remove", b.Files().Remove(t.Context(), sandbox.User{}, "/tmp/dir/flag"))
	typedError(t, "remove", b.Files().Remove(t.Context(), sandbox.User{}, "/tmp/dir"))
}

// Group N: the network. The same program reaches all of these from the host of the test.
var hosts = [][2]string{
	{"tcp", internet},
	{"tcp", metadata},
	{"tcp", gateway},
	{"tcp", v6},
	{"udp", internet},
	{"udp", metadata},
	{"udp", v6},
	{"icmp", internet},
	{"ping", internet},
}

// loopbacks are the loopback addresses of this kernel, as words of a shell.
func loopbacks() string {
	return either(hasIPv6, "127.0.0.1 '[::1]'", "127.0.0.1")
}

func targets() []string {
	var words []string
	for _, h := range hosts {
		words = append(words, h[0], h[1], port)
	}
	return words
}

func answers(errno string) string {
	var b strings.Builder
	for _, h := range hosts {
		answer := errno
		switch {
		case h[1] == v6:
			answer = six(errno)
		case errno == "ok":
		case h[0] == "icmp": // no capability
			answer = "EPERM"
		case h[0] == "ping": // no group of the network namespace's
			answer = "EACCES"
		}
		fmt.Fprintf(&b, "%s %s %s\n", h[0], h[1], answer)
	}
	return b.String()
}

var noNetwork = answers("ENETUNREACH") + "lo\n1"

var network = []attack{
	{
		id: "X-N01", does: "talks to the internet and the metadata service", run: "attack network " + strings.Join(targets(), " ") + "; sed 1,2d /proc/net/dev | cut -d: -f1 | tr -d ' '; cat /proc/net/route | wc -l",
		want: noNetwork,
	},
	{
		id: "X-N02", does: "talks to listeners on the host's loopback", run: "attack network tcp 127.0.0.1 " + port + " tcp ::1 " + port + " tcp 127.8.8.8 " + port,
		want: "tcp 127.0.0.1 ECONNREFUSED\ntcp ::1 " + six("ECONNREFUSED") + "\ntcp 127.8.8.8 ECONNREFUSED",
	},
	{
		id: "X-N03", does: "looks for other sandboxes", run: "attack network udp 224.0.0.1 5353 udp 255.255.255.255 67 udp ff02::1 5353 tcp fe80::1 " + port + "; cat /proc/net/arp | wc -l",
		want: "udp 224.0.0.1 ENETUNREACH\nudp 255.255.255.255 ENETUNREACH\nudp ff02::1 " + six("ENETUNREACH") + "\ntcp fe80::1 " + six("EINVAL") + "\n1", then: othersListen,
	},
	{id: "X-N04", does: "connects to abstract sockets of the host", run: "attack abstract " + abstract, want: "abstract ECONNREFUSED"},
	{id: "X-N05", does: "looks for sockets of the daemon, of engines, of PID 1", run: "find / -xdev -type s 2>/dev/null; ls /var/run/docker.sock /run/docker.sock /run/paddock* /var/run/paddock* 2>/dev/null; sed 1d /proc/net/unix | grep -c /", want: "0", typed: anyEnd},
	{
		id: "N02", does: "serves itself on its own loopback", run: "mkdir -p /tmp/w; echo hello >/tmp/w/i; for a in " + loopbacks() + "; do httpd -p $a:8080 -h /tmp/w; done; for a in localhost " + loopbacks() + "; do wget -q -O - http://$a:8080/i; done; attack network tcp ::1 9",
		want: "hello\nhello\n" + strings.Repeat("hello\n", strings.Count(loopbacks(), "::1")) + "tcp ::1 " + six("ECONNREFUSED"),
	},
}

// othersListen has the bystander listen, which this sandbox does not reach.
func othersListen(t *testing.T, b *box, _ call) {
	t.Helper()
	other := b.h.start(t, "x-other", "default", policies.Limits{})
	defer other.close(t)
	if c := other.sh(t, "mkdir /tmp/w; echo other >/tmp/w/i; for a in "+loopbacks()+"; do httpd -p $a:7777 -h /tmp/w; done; wget -q -O - http://127.0.0.1:7777/i"); c.out != "other\n" {
		t.Fatalf("the other sandbox does not serve: %q %q", c.out, c.err)
	}
	if c := b.sh(t, "attack network tcp 127.0.0.1 7777 tcp ::1 7777"); c.out != "tcp 127.0.0.1 ECONNREFUSED\ntcp ::1 "+six("ECONNREFUSED")+"\n" {
		t.Errorf("reached the other sandbox: %q", c.out)
	}
}
