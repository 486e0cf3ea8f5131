package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/paddock-run/paddock/internal/mount"
)

// loop makes each volume an ext4 of its own. The file system is made once for each size,
// into a template; a volume is a copy of the few blocks that have data. Templates and
// images have no names, so that whatever becomes of the daemon nothing of them is left.
type loop struct {
	cfg      Config
	mkfs     string
	promises *promises

	mu        sync.Mutex
	templates map[Size]*template
}

// template is an image that is never mounted for writing.
type template struct {
	once sync.Once
	file *os.File
	err  error
}

// maxTemplates bounds the sizes that are kept; each is a descriptor and some hundred KiB.
const maxTemplates = 32

func openLoop(cfg Config) (Backend, error) {
	mkfs, err := exec.LookPath("mkfs.ext4")
	if err != nil {
		return nil, errors.New("mkfs.ext4 is not there: install e2fsprogs")
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		return nil, fmt.Errorf("no loop devices (modprobe loop): %w", err)
	}
	return &loop{cfg: cfg, mkfs: mkfs, promises: newPromises(cfg.Dir), templates: map[Size]*template{}}, nil
}

func (l *loop) Kind() Kind { return Loop }

func (l *loop) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all error
	for _, t := range l.templates {
		if t.file != nil {
			all = errors.Join(all, t.file.Close())
		}
	}
	clear(l.templates)
	return all
}

// New implements Backend.
func (l *loop) New(ctx context.Context, name string, size Size) (*Volume, error) {
	return l.promises.give(size, func() (*Volume, error) {
		v, err := l.make(ctx, size)
		if err != nil {
			return nil, fmt.Errorf("volume %s: %w", name, err)
		}
		return v, nil
	})
}

func (l *loop) make(ctx context.Context, size Size) (*Volume, error) {
	from, err := l.template(ctx, size)
	if err != nil {
		return nil, err
	}
	image, err := l.nameless()
	if err != nil {
		return nil, err
	}
	if err := copySparse(image, from); err != nil {
		return nil, errors.Join(fmt.Errorf("copy the empty file system: %w", err), image.Close())
	}
	m, err := mountImage(image, "ext4", mount.Option{Key: "noinit_itable"})
	if err != nil {
		return nil, errors.Join(err, image.Close())
	}
	if err := unix.Unlinkat(int(m.Fd()), "lost+found", unix.AT_REMOVEDIR); err != nil {
		return nil, errors.Join(err, m.Close(), image.Close())
	}
	v := &Volume{mount: m}
	v.used = func() int64 {
		var st unix.Stat_t
		if unix.Fstat(int(image.Fd()), &st) != nil {
			return 0
		}
		return st.Blocks * 512
	}
	// The loop device lets go of the image by itself once nothing has it mounted.
	v.remove = func() error {
		l.promises.back(v)
		return image.Close()
	}
	return v, nil
}

func (l *loop) nameless() (*os.File, error) {
	fd, err := unix.Open(l.cfg.Dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("make an image: %w", err)
	}
	return os.NewFile(uintptr(fd), "image"), nil
}

// template returns the empty file system of a size, made on first use.
func (l *loop) template(ctx context.Context, size Size) (*os.File, error) {
	l.mu.Lock()
	t := l.templates[size]
	if t == nil {
		l.dropOneLocked()
		t = &template{}
		l.templates[size] = t
	}
	l.mu.Unlock()
	t.once.Do(func() { t.file, t.err = l.makeTemplate(context.WithoutCancel(ctx), size) })
	if t.err != nil { // the next one tries again
		l.mu.Lock()
		if l.templates[size] == t {
			delete(l.templates, size)
		}
		l.mu.Unlock()
	}
	return t.file, t.err
}

// dropOneLocked forgets some size when there are too many. Its file is closed by the
// collector, since a volume may be copying it.
func (l *loop) dropOneLocked() {
	if len(l.templates) < maxTemplates {
		return
	}
	for size := range l.templates {
		delete(l.templates, size)
		return
	}
}

// What an ext4 of 4 KiB blocks needs for itself.
const (
	block       = 4096
	inodeBytes  = 256
	groupBytes  = 128 << 20
	perGroup    = 4 * block // bitmaps and descriptors, some twice
	fixed       = 1 << 20
	ownInodes   = 12 // the file system's own and the root
	makeTries   = 6
	maxMkfsText = 512
)

// makeTemplate makes a file system in which size fits: mkfs rounds as it likes, so that is
// looked at and made up for.
func (l *loop) makeTemplate(ctx context.Context, size Size) (*os.File, error) {
	inodes := size.Inodes + ownInodes
	total := size.Bytes + inodes*inodeBytes + fixed
	total += (total/groupBytes + 1) * perGroup
	for range makeTries {
		total = (total + block - 1) / block * block
		image, err := l.nameless()
		if err != nil {
			return nil, err
		}
		if err := l.format(ctx, image, total, inodes); err != nil {
			return nil, errors.Join(err, image.Close())
		}
		room, err := roomIn(image)
		if err != nil {
			return nil, errors.Join(err, image.Close())
		}
		if room.Bytes >= size.Bytes && room.Inodes >= size.Inodes {
			return image, nil
		}
		_ = image.Close()
		total += max(0, size.Bytes-room.Bytes) + block
		inodes += max(0, size.Inodes-room.Inodes)
	}
	return nil, fmt.Errorf("no ext4 with room for %d bytes and %d files", size.Bytes, size.Inodes)
}

func (l *loop) format(ctx context.Context, image *os.File, total, inodes int64) error {
	if err := image.Truncate(total); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, l.mkfs, "-q", "-F", "-b", strconv.Itoa(block), "-I", strconv.Itoa(inodeBytes), "-m", "0",
		"-N", strconv.FormatInt(inodes, 10), "-O", "^has_journal,^resize_inode,sparse_super2,extent,flex_bg,metadata_csum,uninit_bg",
		"-E", "nodiscard,lazy_itable_init=1,num_backup_sb=0,root_owner=0:0", "/proc/self/fd/3")
	cmd.ExtraFiles = []*os.File{image}
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "MKE2FS_CONFIG=/dev/null"}
	if out, err := cmd.CombinedOutput(); err != nil {
		text := strings.TrimSpace(string(out))
		return fmt.Errorf("mkfs.ext4: %w: %s", err, text[:min(len(text), maxMkfsText)])
	}
	return nil
}

// roomIn mounts an image for a moment, without writing to it.
func roomIn(image *os.File) (Size, error) {
	m, err := mountImage(image, "ext4", mount.Option{Key: "ro"})
	if err != nil {
		return Size{}, err
	}
	defer func() { _ = m.Close() }()
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(m.Fd()), &st); err != nil {
		return Size{}, err
	}
	return Size{Bytes: int64(st.Bavail) * st.Bsize, Inodes: int64(st.Ffree)}, nil //nolint:gosec // no file system has 8 EiB
}

// copySparse copies what of a file is data to an empty one.
func copySparse(to, from *os.File) error {
	info, err := from.Stat()
	if err != nil {
		return err
	}
	if err := to.Truncate(info.Size()); err != nil {
		return err
	}
	buf := make([]byte, 256<<10)
	for at := int64(0); ; {
		start, err := unix.Seek(int(from.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil
		}
		if err != nil {
			return err
		}
		end, err := unix.Seek(int(from.Fd()), start, unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		for at = start; at < end; {
			n, err := from.ReadAt(buf[:min(int64(len(buf)), end-at)], at)
			if n == 0 {
				return fmt.Errorf("at %d: %w", at, err)
			}
			if _, err := to.WriteAt(buf[:n], at); err != nil {
				return err
			}
			at += int64(n)
		}
	}
}

// loopTries bounds how often another takes the free device first.
const loopTries = 100

// mountImage mounts an image by a loop device that goes with the mount.
func mountImage(image *os.File, fstype string, how ...mount.Option) (*os.File, error) {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = control.Close() }()
	for range loopTries {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("find a loop device: %w", err)
		}
		path := "/dev/loop" + strconv.Itoa(n)
		device, err := openDevice(path, n)
		if err != nil {
			return nil, err
		}
		config := unix.LoopConfig{Fd: uint32(image.Fd()), Size: block} //nolint:gosec // a descriptor
		config.Info.Flags = unix.LO_FLAGS_AUTOCLEAR
		err = unix.IoctlLoopConfigure(int(device.Fd()), &config)
		if errors.Is(err, unix.EBUSY) {
			_ = device.Close()
			continue
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("set up %s: %w", path, err), device.Close())
		}
		m, err := mount.New(fstype, mount.NoSUID|mount.NoDev, append(how, mount.Option{Key: "source", Value: path})...)
		return m, errors.Join(err, device.Close())
	}
	return nil, errors.New("no loop device stays free")
}

// openDevice opens a loop device, whose node may be yet to be made.
func openDevice(path string, n int) (*os.File, error) {
	device, err := os.OpenFile(path, os.O_RDWR, 0)
	if !errors.Is(err, unix.ENOENT) {
		return device, err
	}
	const major = 7
	if err := unix.Mknod(path, unix.S_IFBLK|0o600, int(unix.Mkdev(major, uint32(n)))); err != nil && !errors.Is(err, unix.EEXIST) { //nolint:gosec // a small number
		return nil, err
	}
	return os.OpenFile(path, os.O_RDWR, 0)
}
