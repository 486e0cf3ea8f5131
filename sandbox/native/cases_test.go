package native_test

import (
	"bytes"
	"context"
	"fmt"
	"math/bits"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/paddock-run/paddock/internal/need"
	"github.com/paddock-run/paddock/policies"
	"github.com/paddock-run/paddock/sandbox"
	"github.com/paddock-run/paddock/sandbox/native"
)

// small limits make the bombs quick.
var small = policies.Limits{CPUs: 1, MemoryBytes: 64 << 20, DiskBytes: 16 << 20, Inodes: 2000, Pids: 48}

func start(t *testing.T, l launcher, policy string, limits policies.Limits) *native.Sandbox {
	t.Helper()
	name := "case-" + strconv.FormatInt(boxes.Add(1), 10)
	s, err := l.Launcher.Start(t.Context(), specOf(policy, limits)(t, name))
	if err != nil {
		t.Fatalf("Start: %v", err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}

var boxes atomic.Int64

type result struct {
	sandbox.Exit
	out, err string
	took     time.Duration
}

func script(text string) sandbox.Command {
	return sandbox.Command{Argv: []string{"/bin/sh", "-c", text}, Env: []string{"PATH=/bin"}, Dir: "/"}
}

func run(t *testing.T, s *native.Sandbox, cmd sandbox.Command) result {
	t.Helper()
	var out, errOut bytes.Buffer
	if cmd.Stdout == nil {
		cmd.Stdout = &out
	}
	cmd.Stderr = &errOut
	began := time.Now()
	p, err := s.Start(t.Context(), cmd)
	if err != nil {
		t.Fatalf("Start %q: %v", cmd.Argv, err)
	}
	e := p.Wait()
	return result{Exit: e, out: out.String(), err: errOut.String(), took: time.Since(began)}
}

func code(r result) int {
	if r.Code == nil {
		return -1
	}
	return *r.Code
}

func mustWork(t *testing.T, s *native.Sandbox) {
	t.Helper()
	if r := run(t, s, script("echo ok")); r.out != "ok\n" || code(r) != 0 {
		t.Errorf("the next call: code %d out %q err %q, want ok", code(r), r.out, r.err)
	}
}

// E01, E22: a call that runs over its time is gone with all its processes, whatever it
// does to its own.
func TestTimeoutEndsTheWholeTree(t *testing.T) {
	s := start(t, newLauncher(t), "default", small)
	for _, text := range []string{"while :; do :; done", "trap '' TERM INT HUP; while :; do sleep 1; done", "kill -STOP 0", "setsid sleep 100 & sleep 100"} {
		cmd := script(text)
		cmd.Timeout = 200 * time.Millisecond
		r := run(t, s, cmd)
		if !r.TimedOut || r.Code != nil || r.took > 3*time.Second {
			t.Errorf("%s: timed out %v code %d signal %d after %s err %q, want a prompt timeout", text, r.TimedOut, code(r), r.Signal, r.took, r.err)
		}
	}
	if r := run(t, s, script("ps -o comm | grep -c sleep")); strings.TrimSpace(r.out) != "0" {
		t.Errorf("processes left after timeouts: %q", r.out)
	}
	before, _ := s.Usage(t.Context())
	mustWork(t, s)
	after, _ := s.Usage(t.Context())
	if used := after.CPU - before.CPU; used > time.Second {
		t.Errorf("CPU went on after the timeouts: %s", used)
	}
}

// E03: a grandchild of another session holds stdout; the call answers at once.
func TestHeldOutputDoesNotHoldTheCall(t *testing.T) {
	s := start(t, newLauncher(t), "default", small)
	r := run(t, s, script("setsid sleep 60 & echo hi"))
	if r.out != "hi\n" || code(r) != 0 || !r.OutputHeld || r.took > 2*time.Second {
		t.Errorf("code %d out %q held %v after %s", code(r), r.out, r.OutputHeld, r.took)
	}
	mustWork(t, s)
}

// A server that was started in one call and logs to that call's stderr answers in the next.
func TestServerOfOneCallAnswersInTheNext(t *testing.T) {
	s := start(t, newLauncher(t), "default", small)
	r := run(t, s, script("mkdir -p /srv && echo hello >/srv/index.html && httpd -f -vv -p 127.0.0.1:8080 -h /srv & sleep 0.3"))
	if code(r) != 0 {
		t.Fatalf("server: code %d err %q", code(r), r.err)
	}
	for range 3 {
		if r := run(t, s, script("wget -q -O - http://localhost:8080/")); r.out != "hello\n" {
			t.Errorf("wget: %q %q", r.out, r.err)
		}
	}
}

// counter counts and drops.
type counter struct{ n atomic.Int64 }

func (c *counter) Write(p []byte) (int, error) {
	c.n.Add(int64(len(p)))
	return len(p), nil
}

// E06, X-P10: a flood costs no memory and every byte is counted.
func TestFloodIsCountedAndDropped(t *testing.T) {
	s := start(t, newLauncher(t), "default", small)
	before := rss(t)
	var n counter
	cmd := script("dd if=/dev/zero bs=1M count=6144 2>/dev/null; exit 5")
	cmd.Stdout = &n
	r := run(t, s, cmd)
	if n.n.Load() != 6442450944 || code(r) != 5 {
		t.Errorf("counted %d bytes, code %d, want 6 GiB and 5", n.n.Load(), code(r))
	}
	if grown := rss(t) - before; grown > 64<<20 {
		t.Errorf("the daemon grew by %d bytes", grown)
	}
}

func rss(t *testing.T) int64 {
	t.Helper()
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	pages, _ := strconv.ParseInt(strings.Fields(string(b))[1], 10, 64)
	return pages * int64(os.Getpagesize())
}

// E08: one stream's flood takes nothing from the other.
func TestStreamsDoNotShareABudget(t *testing.T) {
	s := start(t, newLauncher(t), "default", small)
	r := run(t, s, script("head -c 3000000 /dev/zero; echo boom >&2; exit 3"))
	if len(r.out) != 3000000 || r.err != "boom\n" || code(r) != 3 {
		t.Errorf("out %d bytes err %q code %d", len(r.out), r.err, code(r))
	}
}

// E10: the exit is told after the output, also with many at once.
func TestOutputIsWholeBeforeTheExit(t *testing.T) {
	s := start(t, newLauncher(t), "default", policies.Limits{})
	gate := make(chan struct{}, 16)
	var wg sync.WaitGroup
	for range 200 {
		gate <- struct{}{}
		wg.Go(func() {
			defer func() { <-gate }()
			if r := run(t, s, script(`head -c 300000 /dev/zero | tr "\0" a; exit 7`)); len(r.out) != 300000 || code(r) != 7 {
				t.Errorf("%d bytes, code %d, want 300000 and 7", len(r.out), code(r))
			}
		})
	}
	wg.Wait()
}

// E24, X-P12: orphans are reaped and PID 1 survives whatever is thrown at it.
func TestInitReapsAndSurvives(t *testing.T) {
	l := newLauncher(t)
	limits := small
	limits.Pids = 200 // fewer than the orphans, more than are asleep at a time
	s := start(t, l, "default", limits)
	before := l.charged(t)
	for range 400 {
		if r := run(t, s, script("(sleep .05 &)")); code(r) != 0 {
			t.Fatalf("code %d err %q, want room for every orphan", code(r), r.err)
		}
	}
	for _, text := range []string{"kill -9 -1", "kill -9 1", "kill -STOP 1", "kill -TERM 1"} {
		run(t, s, script(text))
		mustWork(t, s)
	}
	if r := run(t, s, script("sleep 0.2; ps -o stat | grep -c Z")); strings.TrimSpace(r.out) != "0" {
		t.Errorf("zombies: %q", r.out)
	}
	deadline := time.Now().Add(20 * time.Second)
	for l.charged(t) != before {
		if time.Now().After(deadline) {
			t.Fatalf("%d processes are charged, want the %d of the start", l.charged(t), before)
		}
		time.Sleep(time.Millisecond)
	}
}

// charged is how many processes and threads, zombies too, the kernel counts against the
// limits of a launcher's sandboxes.
func (l launcher) charged(t *testing.T) int {
	t.Helper()
	sum, found := 0, false
	for _, hierarchy := range []string{"", "pids"} {
		files, err := filepath.Glob(filepath.Join("/sys/fs/cgroup", hierarchy, l.parent, "*/c/pids.current"))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			text, err := os.ReadFile(f)
			n, errNumber := strconv.Atoi(strings.TrimSpace(string(text)))
			if err != nil || errNumber != nil {
				t.Fatal(err, errNumber)
			}
			sum, found = sum+n, true
		}
	}
	if !found {
		t.Fatal("no pids.current of a sandbox is there")
	}
	return sum
}

// E28: nothing of the image is needed: one static program is a world.
func TestWorldOfOneProgramKeepsItsTimeout(t *testing.T) {
	l := newLauncher(t)
	spec := specOf("default", small)(t, "one-program")
	dir := t.TempDir() // no tmpfs: kernel 6.1 cannot idmap one
	busybox, err := os.ReadFile(need.Busybox(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"dev", "proc", "sys"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "sleep"), busybox, 0o755); err != nil {
		t.Fatal(err)
	}
	spec.Root.Lowers = []sandbox.Lower{{Path: dir}}
	s, err := l.Launcher.Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	r := run(t, s, sandbox.Command{Argv: []string{"/sleep", "60"}, Dir: "/", Timeout: 300 * time.Millisecond})
	if !r.TimedOut {
		t.Errorf("exit %+v, want a timeout", r.Exit)
	}
}

// L01, X-P02: the kernel takes the hog, the call says so, its shell and the episode go on.
func TestMemoryBombIsToldAndContained(t *testing.T) {
	s := start(t, newLauncher(t), "default", small)
	for range 2 {
		r := run(t, s, script("dd if=/dev/zero of=/dev/null bs=400M count=1; echo rc=$?"))
		if r.out != "rc=137\n" || !r.OOM || code(r) != 0 || r.Usage.MemoryPeakBytes < 32<<20 {
			t.Errorf("out %q oom %v code %d peak %d", r.out, r.OOM, code(r), r.Usage.MemoryPeakBytes)
		}
	}
	mustWork(t, s)
}

// X-P03, X-F18: a full disk is ENOSPC, never the OOM killer, and the next call works.
func TestFullDiskIsENOSPC(t *testing.T) {
	s := start(t, newLauncher(t), "default", small)
	r := run(t, s, script("dd if=/dev/zero of=/big bs=1M; rm -f /big"))
	if !strings.Contains(r.err, "No space left") || r.OOM {
		t.Errorf("err %q oom %v, want ENOSPC", r.err, r.OOM)
	}
	r = run(t, s, script("i=0; while : >/tmp/f$i; do i=$((i+1)); done"))
	if !strings.Contains(r.err, "No space left") {
		t.Errorf("inodes: err %q", r.err)
	}
	run(t, s, script("rm -f /tmp/f*"))
	r = run(t, s, script("dd if=/dev/zero of=/dev/shm/big bs=1M"))
	if !strings.Contains(r.err, "No space left") || r.OOM {
		t.Errorf("/dev/shm: err %q oom %v", r.err, r.OOM)
	}
	mustWork(t, s)
}

// L04: CPU time and wall time are told apart.
func TestCPUTimeIsNotWallTime(t *testing.T) {
	s := start(t, newLauncher(t), "default", small)
	busy := script("while :; do :; done & while :; do :; done & while :; do :; done")
	busy.CPUTime, busy.Timeout = 300*time.Millisecond, 20*time.Second
	if r := run(t, s, busy); !r.CPUTimedOut || r.TimedOut || r.Usage.CPU < 250*time.Millisecond || r.Usage.CPU > 2*time.Second {
		t.Errorf("busy: %+v", r.Exit)
	}
	idle := script("sleep 10")
	idle.CPUTime, idle.Timeout = 300*time.Millisecond, 300*time.Millisecond
	if r := run(t, s, idle); r.CPUTimedOut || !r.TimedOut || r.Usage.CPU > 100*time.Millisecond {
		t.Errorf("idle: %+v", r.Exit)
	}
}

// X-P01, L06: a fork bomb ends at its own limit, also where all run as one user. Its
// neighbours keep the processes they have and fork freely.
func TestForkBombStaysInItsSandbox(t *testing.T) {
	const sandboxes, each = 20, 60
	l := newLauncher(t)
	limits := small
	limits.Pids = 2 * each
	asAgent := func(text string) sandbox.Command {
		cmd := script(text)
		cmd.User = sandbox.User{UID: 1000, GID: 1000}
		return cmd
	}
	bomb := start(t, l, "default", limits)
	var neighbours []*native.Sandbox
	for range sandboxes - 1 {
		s := start(t, l, "default", limits)
		if r := run(t, s, asAgent(fmt.Sprintf("for i in $(seq %d); do sleep 300 & done", each))); code(r) != 0 {
			t.Fatalf("neighbour: code %d err %q", code(r), r.err)
		}
		neighbours = append(neighbours, s)
	}
	explode := asAgent("f() { f | f & }; f; sleep 30")
	explode.Timeout = 2 * time.Second
	done := make(chan result)
	go func() { done <- run(t, bomb, explode) }()
	for i, s := range neighbours {
		if r := run(t, s, asAgent("(echo ok | cat) && ps -o comm | grep -c sleep")); r.out != fmt.Sprintf("ok\n%d\n", each) || r.PidsLimit {
			t.Errorf("neighbour %d: out %q err %q at its limit %v, want its %d processes and a new one", i, r.out, r.err, r.PidsLimit, each)
		}
	}
	if r := <-done; !r.PidsLimit {
		t.Errorf("bomb: %+v, want the pids limit", r.Exit)
	}
	mustWork(t, bomb)
	mustWork(t, start(t, l, "default", limits))
}

// L08: programs see as many CPUs as they may use.
// L08: everything that tells the number of CPUs tells the limit, rounded up, so that no
// library starts a thread for each CPU of the host.
func TestVisibleCPUsFollowTheLimit(t *testing.T) {
	const ask = `nproc; cat /sys/devices/system/cpu/online /sys/devices/system/cpu/possible; ls -d /sys/devices/system/cpu/cpu[0-9]* | wc -l
grep -c '^processor' /proc/cpuinfo; grep -E '^(siblings|cpu cores)' /proc/cpuinfo | sort -u | while read -r l; do [ "${l##*: }" -le "$(nproc)" ] || echo "$l"; done
taskset -p $$ | sed 's/.*: //'`
	l := newLauncher(t)
	for _, c := range []struct {
		cpus float64
		want int
	}{{0.5, 1}, {1, 1}, {1.5, 2}, {2, 2}} {
		if c.want > runtime.NumCPU() {
			c.want = runtime.NumCPU() // a host of one CPU shows one
		}
		s := start(t, l, "default", policies.Limits{CPUs: c.cpus})
		list := "0"
		if c.want > 1 {
			list = fmt.Sprintf("0-%d", c.want-1)
		}
		r := run(t, s, script(ask))
		lines := strings.Fields(r.out)
		if len(lines) != 6 {
			t.Fatalf("%v CPUs: %q, err %q", c.cpus, r.out, r.err)
		}
		n := strconv.Itoa(c.want)
		if !slices.Equal(lines[:5], []string{n, list, list, n, n}) {
			t.Errorf("%v CPUs: nproc, online, possible, directories, cpuinfo = %q, want %s CPUs in each", c.cpus, lines[:5], n)
		}
		if mask, err := strconv.ParseUint(lines[5], 16, 64); err != nil || bits.OnesCount64(mask) != c.want {
			t.Errorf("%v CPUs: affinity %q, want %s CPUs", c.cpus, lines[5], n)
		}
	}
}

// X-K17: nothing but the three streams reaches a program, nor an environment of ours.
func TestNoDescriptorLeaks(t *testing.T) {
	s := start(t, newLauncher(t), "default", small)
	if r := run(t, s, script("ls /proc/self/fd | tr '\\n' ' '")); r.out != "0 1 2 3 " { // 3 is ls's own
		t.Errorf("descriptors %q", r.out)
	}
	if r := run(t, s, script("env")); strings.Contains(r.out, "PADDOCK") {
		t.Errorf("environment %q", r.out)
	}
	if r := run(t, s, script("cat /proc/1/environ /proc/1/fd/* | wc -c; ls -l /proc/1/fd | grep -c -e '->'")); r.out != "0\n0\n" {
		t.Errorf("PID 1 is open to its children: %q", r.out)
	}
}

// What the launcher puts into a sandbox is not in its upper.
func TestUpperIsEmptyAfterCallsThatWriteNothing(t *testing.T) {
	s := start(t, newLauncher(t), "default", small)
	mustWork(t, s)
	run(t, s, script("cat /etc/hosts /etc/hostname /etc/resolv.conf; hostname; ls -la / /dev /sys /proc/1"))
	entries, err := os.ReadDir(fmt.Sprintf("/proc/self/fd/%d", s.Upper().Fd()))
	if err != nil || len(entries) != 0 {
		t.Errorf("upper holds %v (%v), want nothing", entries, err)
	}
}

func TestStrictIsReadOnlyButForTmp(t *testing.T) {
	s := start(t, newLauncher(t), "strict", policies.Limits{})
	cmd := script("id -u; echo x >/tmp/a && cat /tmp/a; echo y >/home/b; cat /proc/self/status | grep -E 'CapEff|NoNewPrivs|Seccomp:'")
	cmd.User = sandbox.User{UID: 1000, GID: 1000}
	r := run(t, s, cmd)
	if !strings.Contains(r.err, "Read-only file system") || !strings.HasPrefix(r.out, "1000\nx\n") ||
		!strings.Contains(r.out, "CapEff:\t0000000000000000") || !strings.Contains(r.out, "NoNewPrivs:\t1") || !strings.Contains(r.out, "Seccomp:\t2") {
		t.Errorf("out %q err %q", r.out, r.err)
	}
}

func TestTerminal(t *testing.T) {
	s := start(t, newLauncher(t), "default", small)
	cmd := script("tty; stty size; echo err >&2; read x; echo got $x")
	cmd.PTY = &sandbox.WindowSize{Rows: 33, Cols: 77}
	cmd.Stdin = strings.NewReader("line\n")
	r := run(t, s, cmd)
	for _, want := range []string{"/dev/pts/0", "33 77", "err", "got line"} {
		if !strings.Contains(r.out, want) {
			t.Errorf("terminal said %q, want %q in it", r.out, want)
		}
	}
}

// The launcher's death is a platform fault of what it held, never a hang, and the next
// start brings up another.
func TestLauncherDeathIsToldAndMended(t *testing.T) {
	l := newLauncher(t)
	s := start(t, l, "default", small)
	p, err := s.Start(t.Context(), script("sleep 100"))
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(l.ProcessID(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-s.Done()
	p.Wait()
	if f := s.Fate(); f.Kind != sandbox.LauncherDied {
		t.Errorf("fate %+v, want launcher_died", f)
	}
	if _, err := s.Start(t.Context(), script("true")); err == nil {
		t.Error("a call in a dead sandbox did not fail")
	}
	mustWork(t, start(t, l, "default", small))
}

func TestKillFromOutsideIsTold(t *testing.T) {
	s := start(t, newLauncher(t), "default", small)
	if err := s.Break(); err != nil {
		t.Fatal(err)
	}
	<-s.Done()
	if f := s.Fate(); f.Kind != sandbox.Killed {
		t.Errorf("fate %+v, want killed_outside", f)
	}
}

func TestDaemonDeathLeavesNothing(t *testing.T) {
	l := newLauncher(t)
	s := start(t, l, "default", small)
	if _, err := s.Start(t.Context(), script("sleep 100")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := s.Stop(ctx); err != nil {
		t.Errorf("Stop: %v", err)
	}
	if f := s.Fate(); f.Kind != sandbox.Stopped {
		t.Errorf("fate %+v, want stopped", f)
	}
}

// The probe tries about eighty things from inside; the table is what each policy allows.
func TestProbe(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "probe")
	buildProbe(t, binary)
	program, err := os.ReadFile(binary)
	if err != nil {
		t.Fatal(err)
	}
	for _, policy := range []string{"build", "default", "networked-allowlist", "strict"} {
		t.Run(policy, func(t *testing.T) {
			s := start(t, newLauncher(t), policy, policies.Limits{})
			user := sandbox.User{}
			if policy == "strict" {
				user = sandbox.User{UID: 1000, GID: 1000}
			}
			if _, err := s.Files().Write(t.Context(), sandbox.User{}, "/tmp/probe", bytes.NewReader(program), 0o755); err != nil {
				t.Fatal(err)
			}
			r := run(t, s, sandbox.Command{Argv: []string{"/tmp/probe"}, Dir: "/", User: user, Timeout: time.Minute})
			probeGolden(t, binary, "testdata/probe."+policy+".golden", r.out)
		})
	}
}

// A sandbox cannot offer itself to the host's OOM killer: that end would be the platform's.
func TestInitsOOMScoreStays(t *testing.T) {
	s := start(t, newLauncher(t), "default", small)
	for _, file := range []string{"oom_score_adj", "oom_adj", "task/1/oom_score_adj", "task/1/oom_adj"} {
		before := run(t, s, script("cat /proc/1/"+file)).out
		r := run(t, s, script("echo 10 >/proc/1/"+file))
		if code(r) == 0 || !strings.Contains(r.err, "Read-only file system") {
			t.Errorf("%s: code %d err %q, want a read-only file", file, code(r), r.err)
		}
		if after := run(t, s, script("cat /proc/1/"+file)).out; after != before || after == "" {
			t.Errorf("%s was %q and is %q", file, before, after)
		}
	}
	mustWork(t, s)
}

// All sandboxes together weigh as much as a busy process for each CPU, not as one.
func TestSandboxesWeighAsMuchAsTheHostHasCPUs(t *testing.T) {
	l := newLauncher(t)
	start(t, l, "default", small)
	glob := fmt.Sprintf("/sys/fs/cgroup/cpu/paddock-test-%d-*/cpu.shares", os.Getpid())
	want := strconv.Itoa(1024 * runtime.NumCPU())
	if l.Info().Cgroup == "v2" {
		glob = fmt.Sprintf("/sys/fs/cgroup/paddock-test-%d-*/cpu.weight", os.Getpid())
		want = strconv.Itoa(100 * runtime.NumCPU())
	}
	files, err := filepath.Glob(glob)
	if err != nil || len(files) == 0 {
		t.Fatalf("no %s: %v", glob, err)
	}
	for _, f := range files {
		if got, err := os.ReadFile(f); err != nil || strings.TrimSpace(string(got)) != want {
			t.Errorf("%s = %q, %v; want %s", f, got, err, want)
		}
	}
}
