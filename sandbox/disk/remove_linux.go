package disk

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// maxDoomed bounds the trees that wait for their removal: who ends one more waits, so that
// volumes are not made faster than they can be removed.
const maxDoomed = 64

// remover removes trees behind the back of who gave them up.
type remover struct {
	dir   string
	queue chan doomed
	wg    sync.WaitGroup
	mu    sync.Mutex
	next  int64
}

type doomed struct {
	path string
	gone func(error)
}

func newRemover(dir string) *remover {
	r := &remover{dir: dir, queue: make(chan doomed, maxDoomed)}
	r.wg.Go(func() {
		for d := range r.queue {
			d.gone(removeTree(d.path))
		}
	})
	return r
}

// remove takes a directory out of sight and calls gone when nothing of it is left.
func (r *remover) remove(path string, gone func(error)) error {
	r.mu.Lock()
	r.next++
	to := filepath.Join(r.dir, ".gone-"+strconv.FormatInt(r.next, 10))
	r.mu.Unlock()
	if err := os.Rename(path, to); err != nil {
		return err
	}
	r.queue <- doomed{to, gone}
	return nil
}

func (r *remover) close() {
	close(r.queue)
	r.wg.Wait()
}

// sweep removes everything in dir.
func sweep(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var all error
	for _, e := range entries {
		all = errors.Join(all, removeTree(filepath.Join(dir, e.Name())))
	}
	return all
}

// removeTree removes a tree that a stranger made, however deep it is, with few descriptors:
// directories below the first level are moved up to it until nothing is left. Nobody else
// may be writing to it. It follows no symlink and crosses no mount.
func removeTree(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return os.Remove(path)
	}
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	top := os.NewFile(uintptr(fd), path)
	defer func() { _ = top.Close() }()
	if err := emptyTop(top); err != nil {
		return fmt.Errorf("remove %s: %w", path, err)
	}
	return unix.Rmdir(path)
}

func emptyTop(top *os.File) error {
	for moved := 0; ; {
		names, err := firstNames(top)
		if err != nil || len(names) == 0 {
			return err
		}
		for _, name := range names {
			if err := unix.Unlinkat(int(top.Fd()), name, 0); err == nil {
				continue
			} else if !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM) {
				return err
			}
			if err := hoist(top, name, &moved); err != nil {
				return err
			}
			if err := unix.Unlinkat(int(top.Fd()), name, unix.AT_REMOVEDIR); err != nil {
				return err
			}
		}
	}
}

// hoist empties a directory of top: files go, directories become top's.
func hoist(top *os.File, name string, moved *int) error {
	fd, err := unix.Openat(int(top.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	dir := os.NewFile(uintptr(fd), name)
	defer func() { _ = dir.Close() }()
	for {
		names, err := firstNames(dir)
		if err != nil || len(names) == 0 {
			return err
		}
		for _, n := range names {
			if err := unix.Unlinkat(fd, n, 0); err == nil {
				continue
			} else if !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM) {
				return err
			}
			if err := unix.Unlinkat(fd, n, unix.AT_REMOVEDIR); err == nil {
				continue
			}
			if err := rise(fd, n, top, moved); err != nil {
				return err
			}
		}
	}
}

// rise moves a directory up under a free name.
func rise(from int, name string, top *os.File, moved *int) error {
	for {
		*moved++
		err := unix.Renameat2(from, name, int(top.Fd()), ".up-"+strconv.Itoa(*moved), unix.RENAME_NOREPLACE)
		if !errors.Is(err, unix.EEXIST) {
			return err
		}
	}
}

// firstNames are some of a directory's names, none when it is empty.
func firstNames(dir *os.File) ([]string, error) {
	if _, err := dir.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	names, err := dir.Readdirnames(1024)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return names, err
}

// inMemory says whether dir lies on a tmpfs.
func inMemory(dir string) bool {
	var st unix.Statfs_t
	return unix.Statfs(dir, &st) == nil && st.Type == unix.TMPFS_MAGIC
}
