package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/paddock-run/paddock/internal/mount"
	"github.com/paddock-run/paddock/internal/undo"
)

// btrfs makes volumes of a btrfs with quotas: a subvolume each, whose qgroup has a limit.
type btrfs struct {
	cfg      Config
	top      *os.File
	promises *promises

	mu sync.Mutex
	// ended are qgroups whose subvolume the kernel is still taking apart.
	ended []uint64
}

func openBtrfs(cfg Config) (Backend, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(cfg.Dir, &st); err != nil {
		return nil, err
	}
	if st.Type != unix.BTRFS_SUPER_MAGIC {
		return nil, errors.New("the store is not on a btrfs")
	}
	top, err := os.Open(cfg.Dir)
	if err != nil {
		return nil, err
	}
	return &btrfs{cfg: cfg, top: top, promises: newPromises(cfg.Dir)}, nil
}

func (b *btrfs) Kind() Kind { return Btrfs }

func (b *btrfs) Close() error {
	b.forget()
	return b.top.Close()
}

// New implements Backend.
func (b *btrfs) New(_ context.Context, name string, size Size) (*Volume, error) {
	b.forget()
	return b.promises.give(size, func() (*Volume, error) {
		v := &Volume{used: func() int64 { return 0 }}
		var id uint64
		path := filepath.Join(b.cfg.Dir, name)
		err := undo.Run(
			undo.Step{
				Name: "make", Do: func() error { return subvolume(b.top, subvolCreate, name) },
				Undo: func() error { return subvolume(b.top, subvolDestroy, name) },
			},
			undo.Step{Name: "limit", Do: func() (err error) { id, err = b.limit(path, size.Bytes); return }},
			undo.Step{Name: "mount", Do: func() (err error) { v.mount, err = mount.ClonePath(path); return }},
		)
		if err != nil {
			return nil, fmt.Errorf("volume %s: %w", name, err)
		}
		v.remove = func() error {
			b.promises.back(v)
			b.mu.Lock()
			b.ended = append(b.ended, id)
			b.mu.Unlock()
			return subvolume(b.top, subvolDestroy, name)
		}
		return v, nil
	})
}

func (b *btrfs) limit(path string, bytes int64) (uint64, error) {
	dir, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer func() { _ = dir.Close() }()
	if err := os.Chmod(path, 0o700); err != nil {
		return 0, err
	}
	id, err := subvolumeID(dir)
	if err != nil {
		return 0, err
	}
	err = limitSubvolume(dir, bytes)
	if errors.Is(err, unix.ENOTCONN) {
		return 0, fmt.Errorf("quotas are off (btrfs quota enable): %w", err)
	}
	return id, err
}

// forget removes the qgroups of what is gone, as far as the kernel is with that.
func (b *btrfs) forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	var busy []uint64
	for _, id := range b.ended {
		if err := forgetGroup(b.top, id); errors.Is(err, unix.EBUSY) {
			busy = append(busy, id)
		}
	}
	b.ended = busy
}
