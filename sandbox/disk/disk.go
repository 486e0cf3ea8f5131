// Package disk makes the writable layers of sandboxes that are to hold more than memory
// can: directories on a file system of the host that bound bytes and inodes each.
//
// Which of the ways works is the kernel's and the file system's to say, so each is tried
// before it is believed (Probe):
//
//	project  a directory with a project id and a limit for that id; the store lies on an XFS
//	         or ext4 that is mounted with prjquota
//	loop     an ext4 of its own in a sparse, nameless file, by a loop device; anywhere
//	btrfs    a subvolume with a limit of its qgroup; the store lies on a btrfs. Its bytes
//	         bound its inodes, too, and what is full is EDQUOT inside, not ENOSPC
//	none     a plain directory: no limit at all
//
// A Volume is empty and new, never used before: nothing of an earlier sandbox can be in it.
package disk

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
)

// Kind names a way to bound what is on a disk.
type Kind string

// The kinds. Auto is the first of project, btrfs and loop that works; Tmpfs means that there is
// no disk, so that all layers are in memory.
const (
	Auto    Kind = "auto"
	Tmpfs   Kind = "tmpfs"
	Project Kind = "project"
	Btrfs   Kind = "btrfs"
	Loop    Kind = "loop"
	None    Kind = "none"
)

// Kinds are what can be asked for, in the order of the documentation.
func Kinds() []Kind { return []Kind{Auto, Tmpfs, Project, Loop, Btrfs, None} }

// ErrFull says that the host's disk has no room for a volume of that size beside what was
// promised to others. It is the platform's fault; ask again later.
var ErrFull = errors.New("the store's disk has no room for a writable layer of that size")

// Size bounds one volume.
type Size struct {
	// Bytes of contents, and number of files, at most: one more is ENOSPC.
	Bytes, Inodes int64
}

// Backend makes volumes. Its methods may be called from any goroutine.
type Backend interface {
	Kind() Kind
	// New makes an empty volume. The name is unique among live ones. After an error nothing
	// of it is left.
	New(ctx context.Context, name string, size Size) (*Volume, error)
	// Close waits until what was removed is gone. No volume may be in use.
	Close() error
}

// Volume is an empty directory of root's, as a detached mount.
type Volume struct {
	mount *os.File
	// used tells how many bytes of the promise are on the disk by now.
	used   func() int64
	remove func() error
	done   bool
}

// Mount is the volume's root. It stays the volume's.
func (v *Volume) Mount() *os.File { return v.mount }

// Close gives the volume up with all that is in it. Other descriptors of it must be closed
// before. It returns once it is out of sight; its room may come back a little later.
func (v *Volume) Close() error {
	if v == nil || v.done {
		return nil
	}
	v.done = true
	return errors.Join(v.mount.Close(), v.remove())
}

// Config says where volumes are made.
type Config struct {
	// Dir is a directory of the backend's own; what is in it is removed by Open.
	Dir string
	Log *slog.Logger
}

// Finding is what the probe of one kind found.
type Finding struct {
	Kind Kind
	// Err is nil when volumes of that kind can be made and hold their limits.
	Err error
}

// probes are the kinds that can fail, in the order of preference.
var probes = []struct {
	kind Kind
	open func(Config) (Backend, error)
}{{Project, openProject}, {Btrfs, openBtrfs}, {Loop, openLoop}}

// Probe tries every kind below dir, which exists, and leaves nothing there.
func Probe(ctx context.Context, dir string) []Finding {
	var all []Finding
	for _, p := range probes {
		all = append(all, Finding{p.kind, probe(ctx, dir, p.open)})
	}
	return all
}

// probe makes a volume and fills it.
func probe(ctx context.Context, dir string, open func(Config) (Backend, error)) error {
	scratch, err := os.MkdirTemp(dir, ".probe-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(scratch) }()
	b, err := open(Config{Dir: scratch, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	return errors.Join(holds(ctx, b), b.Close())
}

// Open makes the backend of a kind; Auto is the best that works here. Nil, without an
// error, is Tmpfs: there is no disk.
func Open(ctx context.Context, kind Kind, cfg Config) (Backend, error) {
	if kind == Tmpfs {
		return nil, nil
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, err
	}
	if err := sweep(cfg.Dir); err != nil {
		return nil, fmt.Errorf("remove what a dead daemon left: %w", err)
	}
	if kind == None {
		return openPlain(cfg)
	}
	for _, p := range probes {
		if kind != Auto && kind != p.kind {
			continue
		}
		if kind == Auto && p.kind == Loop && inMemory(cfg.Dir) {
			continue // images on a tmpfs would save no memory
		}
		err := probe(ctx, cfg.Dir, p.open)
		if err == nil {
			return p.open(cfg)
		}
		if kind != Auto {
			return nil, fmt.Errorf("disk limits by %s: %w", kind, err)
		}
	}
	if kind != Auto {
		return nil, fmt.Errorf("disk limits by %q: want one of %v", kind, Kinds())
	}
	return nil, nil
}
