package disk

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/paddock-run/paddock/internal/mount"
	"github.com/paddock-run/paddock/internal/undo"
)

// Project ids of volumes: a range that neither people nor Docker count up to.
const (
	firstProject = 1 << 30
	projects     = 1 << 16
)

// project makes volumes of an XFS or ext4 with project quotas.
type project struct {
	cfg Config
	// top is the directory of all volumes.
	top      *os.File
	remover  *remover
	promises *promises

	mu   sync.Mutex
	next uint32
	used map[uint32]bool
}

func openProject(cfg Config) (Backend, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(cfg.Dir, &st); err != nil {
		return nil, err
	}
	if st.Type != unix.XFS_SUPER_MAGIC && st.Type != unix.EXT4_SUPER_MAGIC {
		return nil, errors.New("the store is on neither XFS nor ext4")
	}
	top, err := os.Open(cfg.Dir)
	if err != nil {
		return nil, err
	}
	if _, err := quotaOf(top, firstProject); err != nil && !errors.Is(err, unix.ENOENT) {
		return nil, errors.Join(fmt.Errorf("no project quota here (is it mounted with prjquota, and does the kernel have it?): %w", err), top.Close())
	}
	return &project{cfg: cfg, top: top, remover: newRemover(cfg.Dir), promises: newPromises(cfg.Dir), used: map[uint32]bool{}}, nil
}

func (p *project) Kind() Kind { return Project }

func (p *project) Close() error {
	p.remover.close()
	return p.top.Close()
}

// acquire finds a project id that has nothing: neither of ours nor of another's.
func (p *project) acquire() (uint32, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for range projects {
		id := firstProject + p.next%projects
		p.next++
		if p.used[id] {
			continue
		}
		q, err := quotaOf(p.top, id)
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return 0, err
		}
		if q.space == 0 && q.inodes == 0 {
			p.used[id] = true
			return id, nil
		}
	}
	return 0, errors.New("every project id is in use")
}

func (p *project) release(id uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.used, id)
}

// New implements Backend. The limit stands before the first file does.
func (p *project) New(_ context.Context, name string, size Size) (*Volume, error) {
	return p.promises.give(size, func() (*Volume, error) {
		path := filepath.Join(p.cfg.Dir, name)
		v := &Volume{}
		var id uint32
		err := undo.Run(
			undo.Step{Name: "project id", Do: func() (err error) { id, err = p.acquire(); return }, Undo: func() error { p.release(id); return nil }},
			undo.Step{
				Name: "limit", Do: func() error { return limitProject(p.top, id, size) },
				Undo: func() error { return limitProject(p.top, id, Size{}) },
			},
			undo.Step{Name: "directory", Do: func() error { return os.Mkdir(path, 0o700) }, Undo: func() error { return os.Remove(path) }},
			undo.Step{Name: "project", Do: func() error { return p.assign(path, id) }},
			undo.Step{Name: "mount", Do: func() (err error) { v.mount, err = mount.ClonePath(path); return }},
		)
		if err != nil {
			return nil, fmt.Errorf("volume %s: %w", name, err)
		}
		v.used = func() int64 {
			q, err := quotaOf(p.top, id)
			if err != nil {
				return 0
			}
			return int64(q.space) //nolint:gosec // no file system has 8 EiB
		}
		v.remove = func() error {
			p.promises.back(v)
			return p.remover.remove(path, func(err error) { p.removed(id, err) })
		}
		return v, nil
	})
}

func (p *project) assign(path string, id uint32) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	return setProject(dir, id)
}

// removed gives the id back. One whose files could not be removed is never used again.
func (p *project) removed(id uint32, err error) {
	if err != nil {
		p.cfg.Log.Error("a writable layer is left on the disk", slog.Any("error", err))
		return
	}
	if err := limitProject(p.top, id, Size{}); err != nil {
		p.cfg.Log.Error("a project keeps its limit", slog.Any("error", err))
	}
	p.release(id)
}
