package native

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/paddock-run/paddock/internal/mount"
)

// templates are what every sandbox of a launcher shares, read-only: /dev, an empty
// directory for masks, /sys for a number of CPUs, and the files of /etc that are not the
// world's. Each sandbox gets a fresh clone, so nothing of them is in its upper.
type templates struct {
	base *os.File // one tmpfs for all
	dir  string   // its path by descriptor

	mu  sync.Mutex
	sys map[int]string
	etc map[string]string
}

// etcFiles are the files that replace the world's, where the world has them.
var etcFiles = []string{"/etc/hostname", "/etc/hosts", "/etc/resolv.conf"}

// cpuinfo is mounted like those, over the kernel's.
const cpuinfo = "/proc/cpuinfo"

func newTemplates() (*templates, error) {
	base, err := mount.Tmpfs(8<<20, 1<<14, 0o755, mount.NoSUID|mount.NoExec)
	if err != nil {
		return nil, err
	}
	t := &templates{base: base, dir: fmt.Sprintf("/proc/self/fd/%d", base.Fd()), sys: map[int]string{}, etc: map[string]string{}}
	if err := os.Mkdir(t.path("empty"), 0o555); err != nil {
		return nil, err
	}
	return t, t.makeDev()
}

func (t *templates) path(p string) string { return filepath.Join(t.dir, p) }

var devices = []struct {
	name         string
	major, minor uint32
}{{"null", 1, 3}, {"zero", 1, 5}, {"full", 1, 7}, {"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0}}

func (t *templates) makeDev() error {
	for _, d := range []string{"dev", "dev/pts", "dev/shm"} {
		if err := os.Mkdir(t.path(d), 0o755); err != nil {
			return err
		}
	}
	// A runtime gives the mount on a directory the mode of that.
	if err := os.Chmod(t.path("dev/shm"), 0o777|os.ModeSticky); err != nil {
		return err
	}
	for _, d := range devices {
		p := t.path("dev/" + d.name)
		if err := unix.Mknod(p, unix.S_IFCHR|0o666, int(unix.Mkdev(d.major, d.minor))); err != nil {
			return fmt.Errorf("make device %s: %w", d.name, err)
		}
		if err := os.Chmod(p, 0o666); err != nil {
			return err
		}
	}
	for name, to := range map[string]string{
		"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2", "ptmx": "pts/ptmx",
	} {
		if err := os.Symlink(to, t.path("dev/"+name)); err != nil {
			return err
		}
	}
	return nil
}

// clone makes a detached, read-only mount of a part; devices are honoured in /dev alone.
func (t *templates) clone(part string) (*os.File, error) {
	m, err := mount.CloneAt(t.base, part)
	if err != nil {
		return nil, err
	}
	attrs := uint64(mount.ReadOnly)
	if part != "dev" {
		attrs |= mount.NoDev
	}
	if err := mount.SetAttrs(m, attrs, nil); err != nil {
		_ = m.Close()
		return nil, err
	}
	return m, nil
}

// prove makes sure that parts can be cloned: kernels before 6.15 want the mount attached,
// which at is for.
func (t *templates) prove(at string) error {
	m, err := t.clone("empty")
	if err == nil {
		return m.Close()
	}
	if !errors.Is(err, unix.EINVAL) {
		return err
	}
	return t.attach(at)
}

// attach gives the parts a path in the launcher's mount namespace.
func (t *templates) attach(at string) error {
	if err := os.Mkdir(at, 0o755); errors.Is(err, fs.ErrExist) {
		return nil // prove has
	} else if err != nil {
		return err
	}
	return mount.Attach(t.base, at)
}

// sysFor is the /sys of a sandbox that sees n CPUs, so that programs which count the
// host's CPUs there start no more threads than that.
func (t *templates) sysFor(n int) (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p, ok := t.sys[n]; ok {
		return p, nil
	}
	root := fmt.Sprintf("sys%d", n)
	cpus := root + "/devices/system/cpu"
	if err := os.MkdirAll(t.path(cpus), 0o755); err != nil {
		return "", err
	}
	all := "0\n"
	if n > 1 {
		all = fmt.Sprintf("0-%d\n", n-1)
	}
	for _, f := range []string{"online", "possible", "present"} {
		if err := os.WriteFile(t.path(cpus+"/"+f), []byte(all), 0o444); err != nil {
			return "", err
		}
	}
	for i := range n {
		if err := os.Mkdir(t.path(fmt.Sprintf("%s/cpu%d", cpus, i)), 0o755); err != nil {
			return "", err
		}
	}
	host, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(t.path(cpuinfoPart(root)), firstCPUs(string(host), n), 0o444); err != nil {
		return "", err
	}
	t.sys[n] = root
	return root, nil
}

// cpuinfoPart is the /proc/cpuinfo that goes with a /sys.
func cpuinfoPart(sys string) string { return sys + ".cpuinfo" }

// firstCPUs keeps the first n processors of a /proc/cpuinfo, and the counts of them within
// n; what is about no single processor stays.
func firstCPUs(cpuinfo string, n int) []byte {
	var kept []string
	for block := range strings.SplitSeq(strings.TrimSpace(cpuinfo), "\n\n") {
		if strings.HasPrefix(block, "processor") {
			if n == 0 {
				continue
			}
			n--
		}
		kept = append(kept, block)
	}
	processors := 0
	for _, b := range kept {
		processors += strings.Count("\n"+b, "\nprocessor")
	}
	for i, b := range kept {
		kept[i] = counted.ReplaceAllStringFunc(b, func(line string) string {
			m := counted.FindStringSubmatch(line)
			if count, err := strconv.Atoi(m[2]); err == nil && count > processors {
				return m[1] + strconv.Itoa(processors)
			}
			return line
		})
	}
	return []byte(strings.Join(kept, "\n\n") + "\n\n")
}

var counted = regexp.MustCompile(`(?m)^((?:siblings|cpu cores)\s*:\s*)(\d+)$`)

// maxHostnames bounds the sets of /etc files; beyond it, the oldest names share one.
const maxHostnames = 256

// etcFor is the directory with the /etc files of a host name.
func (t *templates) etcFor(hostname string) (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p, ok := t.etc[hostname]; ok {
		return p, nil
	}
	if len(t.etc) >= maxHostnames {
		return "", fmt.Errorf("more than %d host names", maxHostnames)
	}
	root := fmt.Sprintf("etc%d", len(t.etc))
	if err := os.Mkdir(t.path(root), 0o755); err != nil {
		return "", err
	}
	for file, text := range map[string]string{
		"hostname":    hostname + "\n",
		"hosts":       "127.0.0.1 localhost " + hostname + "\n::1 localhost ip6-localhost ip6-loopback\n",
		"resolv.conf": "# no name server: the network is loopback only\n",
	} {
		if err := os.WriteFile(t.path(root+"/"+file), []byte(text), 0o644); err != nil {
			return "", err
		}
	}
	t.etc[hostname] = root
	return root, nil
}

func etcPart(root, file string) string { return root + strings.TrimPrefix(file, "/etc") }
