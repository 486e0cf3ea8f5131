package files

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/paddock-run/paddock/internal/safepath"
	"github.com/paddock-run/paddock/sandbox"
)

// Bounds of an archive where the caller sets none, and those that no caller sets.
const (
	defaultTarBytes   = 16 << 30
	defaultTarEntries = 1 << 20
	// maxNameBytes bounds all names of an archive together; each is bounded by PATH_MAX.
	maxNameBytes = 256 << 20
	// smallFile is the size up to which a file is read before it is made, in one go.
	smallFile = 64 << 10
)

// Untar unpacks a tar (plain, gzip or zstd by its first bytes) under dir, which is made
// with its parents when missing. Everything belongs to the user; set-id bits are dropped.
// A name that is absolute or holds "..", a hard link to such a name, a device, a name that
// leads through a link out of dir, and a second entry for a file are refused and end the
// unpacking; what came before stays. Symlinks keep their text whatever it is: they lead
// nowhere but into the sandbox's own tree. Existing files are replaced, each at once and
// complete; existing directories are kept with their mode.
func (t *Tree) Untar(ctx context.Context, as sandbox.User, dir string, r io.Reader, limits sandbox.TarLimits) (entries int64, err error) {
	if err := checkAbs(dir); err != nil {
		return 0, err
	}
	if limits.Bytes <= 0 {
		limits.Bytes = defaultTarBytes
	}
	if limits.Entries <= 0 {
		limits.Entries = defaultTarEntries
	}
	u := &unpacker{
		ctx: ctx, t: t, as: as, dir: dir, limits: limits, dest: -1, parent: -1,
		seen: map[uint64]struct{}{}, seed: maphash.MakeSeed(),
	}
	defer u.close()
	if err := t.as(as, u.openDest); err != nil {
		return 0, fail(dir, err)
	}
	in, err := openArchive(ctx, dir, r, limits)
	if err != nil {
		return 0, err
	}
	defer in.close()
	if err := u.all(in); err != nil {
		return u.entries, fail(dir, err)
	}
	return u.entries, nil
}

// unpacker is one Untar on its way.
type unpacker struct {
	ctx    context.Context //nolint:containedctx // lives as long as the one call
	t      *Tree
	as     sandbox.User
	dir    string
	limits sandbox.TarLimits

	dest  int
	paths safepath.Root
	// parent is the directory of the entry before, kept open: most entries share it.
	parent     int
	parentName string

	entries, bytes, nameBytes int64
	// seen holds hashes of the names of all entries but directories.
	seen map[uint64]struct{}
	seed maphash.Seed
	// later are directories that the user could not have filled with their final mode.
	later []dirMode
}

type dirMode struct {
	name string
	mode uint32
}

func (u *unpacker) close() {
	for _, fd := range []int{u.dest, u.parent} {
		if fd >= 0 {
			closeFD(fd)
		}
	}
}

// openDest opens the directory to unpack under, and makes it when it is missing.
func (u *unpacker) openDest(s *session) error {
	fd, err := u.t.makeAll(s, u.dir)
	if err != nil {
		return err
	}
	u.dest = fd
	u.paths = safepath.Beneath(fd)
	var root, dest unix.Stat_t
	if err := errors.Join(unix.Fstat(int(u.t.root.Fd()), &root), unix.Fstat(fd, &dest)); err != nil {
		return err
	}
	if root.Dev == dest.Dev && root.Ino == dest.Ino {
		// Unpacked at the top, the world's absolute links (/lib -> /usr/lib) stay inside.
		u.paths = safepath.InRoot(fd)
	}
	return u.t.mayChange(fd, u.dir)
}

// makeAll opens a directory, and makes it and its parents where they are missing.
func (t *Tree) makeAll(s *session, dir string) (int, error) {
	fd, err := t.paths().Open(dir, unix.O_PATH|unix.O_DIRECTORY)
	if !isErrno(err, unix.ENOENT) {
		return fd, err
	}
	up, base, err := t.paths().Parent(dir)
	if isErrno(err, unix.ENOENT) {
		// The path becomes shorter with each call, so this ends at the root.
		var made int
		if made, err = t.makeAll(s, above(dir)); err != nil {
			return -1, err
		}
		closeFD(made)
		up, base, err = t.paths().Parent(dir)
	}
	if err != nil {
		return -1, err
	}
	defer closeFD(up)
	if err := t.mayChange(up, dir); err != nil {
		return -1, err
	}
	return makeDir(s, up, base, 0o755)
}

// above is dir without its last element; "/" at least.
func above(dir string) string {
	dir = strings.TrimRight(dir, "/")
	return dir[:strings.LastIndexByte(dir, '/')+1]
}

// makeDir makes the directory name in parent, or takes the one that is there, and
// returns it as O_PATH.
func makeDir(s *session, parent int, name string, mode uint32) (int, error) {
	if err := s.onDir(parent); err != nil {
		return -1, err
	}
	err := unix.Mkdirat(parent, name, 0o700)
	if err != nil && !isErrno(err, unix.EEXIST) {
		return -1, err
	}
	fd, childErr := safepath.Child(parent, name, unix.O_PATH|unix.O_DIRECTORY)
	if childErr != nil || err != nil {
		return fd, childErr
	}
	// Not by mkdir, whose mode the daemon's umask cuts.
	if err := chmodDir(s, fd, mode); err != nil {
		closeFD(fd)
		return -1, err
	}
	return fd, nil
}

func chmodDir(s *session, fd int, mode uint32) error {
	dir, err := s.openDir(fd)
	if err != nil {
		return err
	}
	defer closeFD(dir)
	return unix.Fchmod(dir, mode)
}

func (u *unpacker) all(in *archive) error {
	for {
		if err := cancelled(u.ctx, u.dir); err != nil {
			return err
		}
		h, err := in.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if err := u.count(h); err != nil {
			return err
		}
		if err := u.entry(h, in); err != nil {
			return fail(clipName(h.Name), err)
		}
		u.entries++
	}
	if err := in.finish(); err != nil {
		return err
	}
	return u.t.as(u.as, u.settleDirs)
}

// count holds an entry against the limits, by what its header claims.
func (u *unpacker) count(h *tar.Header) error {
	name := clipName(h.Name)
	u.nameBytes += int64(len(h.Name) + len(h.Linkname))
	switch {
	case u.entries >= u.limits.Entries:
		return refuse("too_large", name, fmt.Sprintf("the archive has more than %d entries", u.limits.Entries))
	case h.Size < 0:
		return refuse("invalid_archive", name, "negative size")
	case h.Size > u.limits.Bytes-u.bytes:
		return refuse("too_large", name, fmt.Sprintf("the archive holds more than %d bytes", u.limits.Bytes))
	case u.nameBytes > maxNameBytes:
		return refuse("too_large", name, "the archive's names are too long together")
	}
	u.bytes += h.Size
	return nil
}

func clipName(name string) string { return name[:min(len(name), 256)] }

// entry makes one entry.
func (u *unpacker) entry(h *tar.Header, in *archive) error {
	name, err := entryName(h.Name)
	if err != nil {
		return err
	}
	if h.Typeflag == tar.TypeDir {
		return u.t.as(u.as, func(s *session) error { return u.mkdir(s, name, uint32(h.Mode)&0o1777) })
	}
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	if name == "." {
		return refuse("invalid_archive", "", "the entry has no name")
	}
	hash := maphash.String(u.seed, name)
	if _, twice := u.seen[hash]; twice {
		return refuse("invalid_archive", "", "the archive has two entries of this name")
	}
	u.seen[hash] = struct{}{}
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeGNUSparse:
		return u.file(name, h, in)
	case tar.TypeSymlink:
		return u.put(name, func(dir int, as string) error { return unix.Symlinkat(h.Linkname, dir, as) })
	case tar.TypeLink:
		return u.hardLink(name, h.Linkname)
	case tar.TypeFifo:
		mode := unix.S_IFIFO | uint32(h.Mode)&0o777
		return u.put(name, func(dir int, as string) error { return unix.Mknodat(dir, as, mode, 0) })
	case tar.TypeChar, tar.TypeBlock:
		return refuse("invalid_archive", "", "the archive holds a device")
	}
	return refuse("invalid_archive", "", fmt.Sprintf("entry of unknown type %q", h.Typeflag))
}

// entryName cleans the name of an entry: "." for the directory itself, else relative,
// without empty elements and ".".
func entryName(name string) (string, error) {
	switch {
	case strings.HasPrefix(name, "/"):
		return "", refuse("outside_root", "", "the archive holds an absolute name")
	case len(name) > 4095:
		return "", unix.ENAMETOOLONG
	case strings.ContainsRune(name, 0):
		return "", refuse("invalid_archive", "", "a name holds a NUL byte")
	case name == "":
		return "", refuse("invalid_archive", "", "the entry has no name")
	}
	var kept []string
	for part := range strings.SplitSeq(name, "/") {
		switch part {
		case "", ".":
		case "..":
			return "", refuse("outside_root", "", `the archive holds a name with ".."`)
		default:
			kept = append(kept, part)
		}
	}
	switch {
	case len(kept) == 0:
		return ".", nil
	case len(kept) > maxDepth:
		return "", refuse("too_large", "", fmt.Sprintf("the archive is deeper than %d", maxDepth))
	}
	return strings.Join(kept, "/"), nil
}

// in opens the directory that holds name, and makes it where the archive has no entry
// for it.
func (u *unpacker) in(s *session, name string) (dir int, base string, err error) {
	parent, base := path.Split(name)
	if parent == "" {
		parent = "."
	}
	if u.parent >= 0 && u.parentName == parent {
		return u.parent, base, s.onDir(u.parent)
	}
	fd, err := u.makeParents(s, parent)
	if err != nil {
		return -1, "", err
	}
	if u.parent >= 0 {
		closeFD(u.parent)
	}
	u.parent, u.parentName = fd, parent
	return fd, base, s.onDir(fd)
}

func (u *unpacker) makeParents(s *session, dir string) (int, error) {
	fd, err := u.paths.Open(dir, unix.O_PATH|unix.O_DIRECTORY)
	if err == nil {
		if err := u.t.mayChange(fd, dir); err != nil {
			closeFD(fd)
			return -1, err
		}
		return fd, nil
	}
	if !isErrno(err, unix.ENOENT) {
		return -1, err
	}
	up, base := path.Split(strings.TrimSuffix(dir, "/"))
	if up == "" {
		up = "."
	}
	upper, err := u.makeParents(s, up)
	if err != nil {
		return -1, err
	}
	defer closeFD(upper)
	return makeDir(s, upper, base, 0o755)
}

func (u *unpacker) mkdir(s *session, name string, mode uint32) error {
	if name == "." {
		return nil
	}
	dir, base, err := u.in(s, name)
	if err != nil {
		return err
	}
	var st unix.Stat_t
	err = unix.Fstatat(dir, base, &st, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR:
		return nil
	case err == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK:
		// As every tar does: a link to a directory counts as one, if it stays below.
		fd, err := u.paths.Open(name, unix.O_PATH|unix.O_DIRECTORY)
		if err == nil {
			closeFD(fd)
		}
		return err
	case err == nil:
		return unix.EEXIST
	case !isErrno(err, unix.ENOENT):
		return err
	}
	first := mode
	if mode&0o300 != 0o300 {
		first |= 0o700
		u.later = append(u.later, dirMode{name, mode})
	}
	fd, err := makeDir(s, dir, base, first)
	if err != nil {
		return err
	}
	closeFD(fd)
	return nil
}

// settleDirs gives directories the modes that would have been in the way, the deepest
// first.
func (u *unpacker) settleDirs(s *session) error {
	for _, d := range slices.Backward(u.later) {
		fd, err := u.paths.Open(d.name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW)
		if err != nil {
			return fail(d.name, err)
		}
		err = chmodDir(s, fd, d.mode)
		closeFD(fd)
		if err != nil {
			return fail(d.name, err)
		}
	}
	return nil
}

// put makes an entry that is no regular file, by way of a temporary name where there is
// something already.
func (u *unpacker) put(name string, create func(dir int, as string) error) error {
	return u.t.as(u.as, func(s *session) error {
		dir, base, err := u.in(s, name)
		if err != nil {
			return err
		}
		err = create(dir, base)
		if !isErrno(err, unix.EEXIST) {
			return err
		}
		aside := tempName()
		if err := create(dir, aside); err != nil {
			return err
		}
		if err := unix.Renameat(dir, aside, dir, base); err != nil {
			_ = unix.Unlinkat(dir, aside, 0)
			return err
		}
		// Renaming one link of a file onto another of it does nothing, and leaves both.
		_ = unix.Unlinkat(dir, aside, 0)
		return nil
	})
}

func (u *unpacker) hardLink(name, target string) error {
	from, err := entryName(target)
	if err != nil {
		return err
	}
	return u.put(name, func(dir int, as string) error {
		source, base, err := u.paths.Parent(from)
		if err != nil {
			return err
		}
		defer closeFD(source)
		if err := u.t.mayChange(source, target); err != nil {
			return err
		}
		return unix.Linkat(source, base, dir, as, 0)
	})
}
