package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/paddock-run/paddock/api"
	"github.com/paddock-run/paddock/internal/doctor"
	"github.com/paddock-run/paddock/policies"
	"github.com/paddock-run/paddock/sandbox/disk"
)

// memoryShare is the part of the host's memory up to which, by default, a disk limit is
// kept in a tmpfs: more would take the memory that programs need.
const memoryShare = 4

// diskOptions are the flags of `paddock serve` that say where writable layers stand.
type diskOptions struct {
	kind, above string
	unlimited   bool
}

// check finds what makes no sense before anything is opened.
func (o diskOptions) check() error {
	switch kind := disk.Kind(o.kind); {
	case !slices.Contains(disk.Kinds(), kind):
		return usageError{fmt.Errorf("--disk %q: want one of %v", o.kind, disk.Kinds())}
	case kind == disk.None && !o.unlimited:
		return usageError{errors.New("--disk none bounds nothing: any episode can fill the store's disk; give --i-want-no-disk-limits too if that is meant")}
	case kind != disk.None && o.unlimited:
		return usageError{errors.New("--i-want-no-disk-limits goes with --disk none")}
	}
	_, err := o.aboveBytes(0)
	return err
}

// aboveBytes is the largest limit that is kept in memory though there is a disk.
func (o diskOptions) aboveBytes(memory int64) (int64, error) {
	switch {
	case o.above != "":
		n, err := api.ParseSize(o.above)
		if err != nil {
			return 0, usageError{fmt.Errorf("--disk-above: %w", err)}
		}
		return int64(n), nil
	case disk.Kind(o.kind) == disk.Auto:
		return memory / memoryShare, nil
	}
	return 0, nil
}

// open opens the disk, nil where all is in memory, and notes in host what it holds.
func (o diskOptions) open(ctx context.Context, dir string, host *policies.Host, log *slog.Logger) (disk.Backend, error) {
	b, err := disk.Open(ctx, disk.Kind(o.kind), disk.Config{Dir: dir, Log: log})
	if err != nil || b == nil {
		return nil, err
	}
	if b.Kind() == disk.None {
		log.Warn("NO DISK LIMITS: any episode can fill the disk of the store; this is for hosts whose code is trusted")
	}
	host.Disk.Kind = string(b.Kind())
	if host.Disk.Above, err = o.aboveBytes(host.MemoryBytes); err == nil {
		host.Disk.Bytes, err = disk.Room(dir)
	}
	if err != nil {
		return nil, errors.Join(err, b.Close())
	}
	log.Info("disk", slog.String("kind", host.Disk.Kind), slog.Int64("above", host.Disk.Above), slog.Int64("room", host.Disk.Bytes))
	return b, nil
}

func closeDisk(b disk.Backend) error {
	if b == nil {
		return nil
	}
	return b.Close()
}

// diskCheck says for `paddock doctor` which kinds work at the store.
func diskCheck(ctx context.Context, dir string) doctor.Check {
	if os.Geteuid() != 0 {
		return doctor.Check{Level: doctor.OK, Found: "tmpfs; the others are tried as root"}
	}
	var works, lacks []string
	for _, f := range disk.Probe(ctx, dir) {
		if f.Err == nil {
			works = append(works, string(f.Kind))
		} else {
			lacks = append(lacks, fmt.Sprintf("no %s: %v", f.Kind, f.Err))
		}
	}
	c := doctor.Check{Level: doctor.OK}
	above := api.Size(hostLimits().MemoryBytes / memoryShare)
	switch {
	case len(works) == 0:
		c.Level, c.Do = doctor.Warn, "for episodes that write more than memory holds: mount the store's XFS with prjquota, or install e2fsprogs and modprobe loop"
		c.Found = "tmpfs alone"
	case onTmpfs(dir) && works[0] == string(disk.Loop):
		c.Found = "tmpfs alone, as the store is on one; serve --disk loop would make images in memory"
	default:
		c.Found = fmt.Sprintf("auto: tmpfs up to %s, %s above", above, works[0])
	}
	c.Found = strings.Join(append([]string{c.Found}, lacks...), "; ")
	return c
}

func onTmpfs(dir string) bool {
	var st unix.Statfs_t
	return unix.Statfs(dir, &st) == nil && st.Type == unix.TMPFS_MAGIC
}
