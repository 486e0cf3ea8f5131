package native

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/paddock-run/paddock/guest"
)

// Undertaker is the name of its cgroup beside those of the sandboxes.
const Undertaker = "undertaker"

const (
	// largeInodes and largeBytes are from where a writable layer in memory is worth its way.
	largeInodes = 1000
	largeBytes  = 32 << 20
)

// undertaker takes down the writable layers that hold much. The kernel gives a file system's
// memory back at a stretch, in whoever closes it last: in the daemon that would keep all
// sandboxes waiting. It has the weight of one that computes.
type undertaker struct {
	tree *tree
	cmd  *exec.Cmd

	mu     sync.Mutex // one burial at a time
	socket int        // -1 when it is closed
	nextID uint32
}

func newUndertaker(t *tree) (*undertaker, error) {
	program, err := guestFile()
	if err != nil {
		return nil, err
	}
	defer func() { _ = program.Close() }()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = null.Close() }()
	u := &undertaker{tree: t}
	if u.socket, u.cmd, err = startHelper(program, null); err != nil {
		return nil, fmt.Errorf("start undertaker: %w", err)
	}
	if err := u.settle(); err != nil {
		return nil, errors.Join(fmt.Errorf("undertaker's cgroup: %w", err), u.close())
	}
	return u, nil
}

// settle puts the process among the sandboxes.
func (u *undertaker) settle() error {
	for _, dir := range u.dirs() {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
		if err := write(dir, "cgroup.procs", strconv.Itoa(u.cmd.Process.Pid)); err != nil {
			return err
		}
	}
	return u.tree.setPace(Undertaker, fresh, light)
}

// dirs are its cgroups: the one that it is scheduled by, and the one that a sweep finds it in.
func (u *undertaker) dirs() []string {
	found := "pids"
	if u.tree.unified != "" {
		found = "unified"
	}
	return slices.Compact([]string{u.tree.at("cpu", Undertaker), u.tree.at(found, Undertaker)})
}

// close ends the process and removes its cgroup.
func (u *undertaker) close() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.socket < 0 {
		return nil
	}
	_ = unix.Close(u.socket)
	u.socket = -1
	_ = u.cmd.Wait() // how it ended does not matter
	var errs []error
	for _, dir := range u.dirs() {
		if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("remove the undertaker's cgroup: %w", err))
		}
	}
	return errors.Join(errs...)
}

// bury closes files of a writable layer that nobody else holds, at once or by the process.
// The memory is given back when it returns.
func (u *undertaker) bury(layer *os.File, files []*os.File) {
	if !large(layer) || u.take(files) != nil {
		closeAll(files)
	}
}

// take has the process close the files as the last that holds them. Those of one that died
// are closed by that.
func (u *undertaker) take(files []*os.File) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.socket < 0 {
		return os.ErrClosed
	}
	fds := make([]int, len(files))
	for i, f := range files {
		fds[i] = int(f.Fd())
	}
	if err := unix.Sendmsg(u.socket, guest.KeepFrame(), unix.UnixRights(fds...), nil, unix.MSG_NOSIGNAL); err != nil {
		return err
	}
	closeAll(files)
	u.nextID++
	if unix.Sendmsg(u.socket, guest.BuryFrame(u.nextID), nil, nil, unix.MSG_NOSIGNAL) == nil {
		_, _, _ = receiveRaw(u.socket, make([]byte, 64), nil)
	}
	return nil
}

func large(layer *os.File) bool {
	var st unix.Statfs_t
	if fstatfs(layer, &st) != nil || st.Type != unix.TMPFS_MAGIC {
		return false
	}
	return st.Files-st.Ffree > largeInodes || (st.Blocks-st.Bfree)*uint64(max(1, st.Bsize)) > largeBytes //nolint:gosec // not negative
}
