package disk

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// keptFree is what volumes leave of a disk to the store and the rest of the host.
const keptFree = 256 << 20

// promises keeps the volumes' limits within what the disk has, so that a layer that is
// within its own limit never meets the host's. Who else fills the disk is not seen ahead.
type promises struct {
	dir string
	mu  sync.Mutex
	all map[*Volume]int64
}

func newPromises(dir string) *promises { return &promises{dir: dir, all: map[*Volume]int64{}} }

// Room is the largest volume that could be promised below dir now.
func Room(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, fmt.Errorf("look at the store's disk: %w", err)
	}
	return max(0, int64(st.Bavail)*st.Bsize-keptFree), nil //nolint:gosec // no file system has 8 EiB
}

// give promises a volume that make makes, or says ErrFull.
func (p *promises) give(size Size, make func() (*Volume, error)) (*Volume, error) {
	free, err := Room(p.dir)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	for v, bytes := range p.all {
		free -= max(0, bytes-v.used())
	}
	if size.Bytes > free {
		p.mu.Unlock()
		return nil, fmt.Errorf("%w: %d bytes asked for, %d are not promised: %w", ErrFull, size.Bytes, max(0, free), unix.ENOSPC)
	}
	placeholder := &Volume{used: func() int64 { return 0 }}
	p.all[placeholder] = size.Bytes
	p.mu.Unlock()
	v, err := make()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.all, placeholder)
	if err == nil {
		p.all[v] = size.Bytes
	}
	return v, err
}

// back takes a promise back.
func (p *promises) back(v *Volume) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.all, v)
}
