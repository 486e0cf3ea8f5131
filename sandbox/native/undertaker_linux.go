package native

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync/atomic"

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
// sandboxes waiting. Its processes, one for four CPUs, have the weight of one sandbox that
// computes.
type undertaker struct {
	tree   *tree
	all    []*helper
	free   chan *helper
	buried atomic.Int64
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
	n := max(1, runtime.NumCPU()/4)
	u := &undertaker{tree: t, free: make(chan *helper, n)}
	for range n {
		h, err := startHelper(program, null)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("start undertaker: %w", err), u.close())
		}
		u.all = append(u.all, h)
		u.free <- h
	}
	if err := u.settle(); err != nil {
		return nil, errors.Join(fmt.Errorf("undertaker's cgroup: %w", err), u.close())
	}
	return u, nil
}

// settle puts the processes among the sandboxes.
func (u *undertaker) settle() error {
	for _, dir := range u.dirs() {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
		for _, h := range u.all {
			if err := write(dir, "cgroup.procs", strconv.Itoa(h.cmd.Process.Pid)); err != nil {
				return err
			}
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

// close ends the processes, when they have buried what they were given, and removes their
// cgroups. A later burial is at once.
func (u *undertaker) close() error {
	for range u.all {
		h := <-u.free
		_ = unix.Close(h.socket)
		_ = h.cmd.Wait() // how it ended does not matter
	}
	u.all = nil
	close(u.free)
	var errs []error
	for _, dir := range u.dirs() {
		if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("remove the undertaker's cgroup: %w", err))
		}
	}
	return errors.Join(errs...)
}

// bury closes files of a writable layer that nobody else holds, at once or by a process.
// The memory is given back when it returns.
func (u *undertaker) bury(layer *os.File, files []*os.File) {
	if !large(layer) || u.take(files) != nil {
		closeAll(files)
	}
}

// take has a process close the files as the last that holds them. Those of one that died
// are closed by that.
func (u *undertaker) take(files []*os.File) error {
	h, ok := <-u.free
	if !ok {
		return os.ErrClosed
	}
	defer func() { u.free <- h }()
	fds := make([]int, len(files))
	for i, f := range files {
		fds[i] = int(f.Fd())
	}
	if err := unix.Sendmsg(h.socket, guest.KeepFrame(), unix.UnixRights(fds...), nil, unix.MSG_NOSIGNAL); err != nil {
		return err
	}
	closeAll(files)
	u.buried.Add(1)
	if unix.Sendmsg(h.socket, guest.BuryFrame(0), nil, nil, unix.MSG_NOSIGNAL) == nil {
		_, _, _ = receiveRaw(h.socket, make([]byte, 64), nil)
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
