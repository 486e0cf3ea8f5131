package bench

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/cgroups/v3"
	"golang.org/x/sys/unix"
)

// ErrNoAccount says that this host has no cgroup2 hierarchy.
var ErrNoAccount = errors.New("there is no cgroup2 hierarchy, which tells what a tree of processes used")

// Account is a cgroup that tells what a daemon and its sandboxes use, whatever else the
// host does meanwhile:
//
//	NAME/daemon      the daemon, its launcher, and sandboxes until they are in their own
//	NAME/sandboxes   what the daemon is told to put its sandboxes below
type Account struct{ root, name string }

// OpenAccount makes the cgroup. Without a hierarchy for it that is ErrNoAccount.
func OpenAccount(name string) (*Account, error) {
	a := &Account{name: name}
	switch cgroups.Mode() {
	case cgroups.Unified:
		a.root = "/sys/fs/cgroup"
	case cgroups.Hybrid:
		a.root = "/sys/fs/cgroup/unified"
	case cgroups.Legacy, cgroups.Unavailable:
		return nil, ErrNoAccount
	}
	if err := os.MkdirAll(filepath.Dir(a.Procs()), 0o755); err != nil { //nolint:gosec // a cgroup like any other
		return nil, err
	}
	return a, nil
}

// Procs is the file that a process writes its id to, so as to be the daemon.
func (a *Account) Procs() string { return filepath.Join(a.root, a.name, "daemon", "cgroup.procs") }

// CgroupParent is where the daemon puts its sandboxes.
func (a *Account) CgroupParent() string { return filepath.Join(a.name, "sandboxes") }

// Used is the CPU time of all that was ever in it.
func (a *Account) Used() (time.Duration, error) {
	text, err := os.ReadFile(filepath.Join(a.root, a.name, "cpu.stat"))
	if err != nil {
		return 0, err
	}
	return usage(string(text))
}

// usage reads a cpu.stat.
func usage(text string) (time.Duration, error) {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, "usage_usec "); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(rest), 10, 64)
			return time.Duration(n) * time.Microsecond, err
		}
	}
	return 0, fmt.Errorf("no usage_usec in %q", text)
}

// Close removes the cgroup, once the daemon has ended. What the daemon killed in its last
// moment may take a while to be gone.
func (a *Account) Close(ctx context.Context) error {
	dir := filepath.Join(a.root, a.name)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	for _, d := range []string{filepath.Join(dir, "daemon"), dir} {
		err := os.Remove(d)
		for errors.Is(err, unix.EBUSY) && pause(ctx, 10*time.Millisecond) == nil {
			err = os.Remove(d)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
