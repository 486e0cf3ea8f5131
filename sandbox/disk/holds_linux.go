package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// probeSize is small, so that the probe is quick, and large enough for every kind.
var probeSize = Size{Bytes: 4 << 20, Inodes: 64}

// holds fills a volume with bytes, then with files, and says whether both were stopped.
func holds(ctx context.Context, b Backend) error {
	v, err := b.New(ctx, "probe", probeSize)
	if err != nil {
		return err
	}
	filled := WithoutResource(func() error { return fill(v.Mount(), b.Kind()) })
	return errors.Join(filled, v.Close())
}

func fill(dir *os.File, kind Kind) error {
	root := fmt.Sprintf("/proc/self/fd/%d/", dir.Fd())
	f, err := os.OpenFile(root+"bytes", os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	chunk := make([]byte, 64<<10)
	var written int64
	for written <= 2*probeSize.Bytes {
		n, err := f.Write(chunk)
		written += int64(n)
		if err == nil && written%(1<<20) == 0 {
			err = unix.Fdatasync(int(f.Fd())) // some count when they write out
		}
		if full(err) {
			break
		}
		if err != nil {
			return err
		}
	}
	if written < probeSize.Bytes/2 || written > 2*probeSize.Bytes {
		return fmt.Errorf("a limit of %d bytes let %d through", probeSize.Bytes, written)
	}
	if kind == Btrfs {
		return nil // has no limit of inodes
	}
	if err := os.Remove(root + "bytes"); err != nil {
		return err
	}
	for n := range 4 * probeSize.Inodes {
		file, err := os.OpenFile(root+strconv.FormatInt(n, 10), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if full(err) {
			return nil
		}
		if err != nil {
			return err
		}
		_ = file.Close()
	}
	return fmt.Errorf("a limit of %d files let %d through", probeSize.Inodes, 4*probeSize.Inodes)
}

func full(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// WithoutResource calls f on a thread of its own that lacks CAP_SYS_RESOURCE: the kernel
// lets who has it exceed an ext4's quotas, and an overlay acts for its sandbox with the
// credentials of the thread that made it.
func WithoutResource(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		err := dropResource()
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

func dropResource() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return fmt.Errorf("read capabilities: %w", err)
	}
	data[0].Effective &^= 1 << unix.CAP_SYS_RESOURCE
	if err := unix.Capset(&header, &data[0]); err != nil {
		return fmt.Errorf("drop CAP_SYS_RESOURCE: %w", err)
	}
	return nil
}
