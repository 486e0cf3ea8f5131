package fake

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/paddock-run/paddock/runner"
	"github.com/paddock-run/paddock/sandbox"
)

// tree is a writable directory over read-only ones.
type tree struct {
	mu     sync.Mutex
	upper  string
	lowers []string
}

var _ runner.Files = (*tree)(nil)

func fileError(p string, err error) error {
	if err == nil {
		return nil
	}
	var kind string
	switch {
	case errors.Is(err, syscall.ENOTDIR):
		kind = "not_a_directory"
	case errors.Is(err, fs.ErrNotExist):
		kind = "not_found"
	case errors.Is(err, syscall.EISDIR):
		kind = "is_directory"
	case errors.Is(err, syscall.ENAMETOOLONG):
		kind = "name_too_long"
	default:
		return err
	}
	return &sandbox.FileError{Kind: kind, Path: p}
}

// find returns where p lies on the host.
func (t *tree) find(p string) (string, fs.FileInfo, error) {
	p = path.Clean("/" + p)
	if p != "/" {
		_, parent, err := t.find(path.Dir(p))
		if err != nil {
			return "", nil, err
		}
		if !parent.IsDir() {
			return "", nil, syscall.ENOTDIR
		}
	}
	dir, base := path.Split(p)
	if _, err := os.Lstat(filepath.Join(t.upper, dir, whiteout+base)); err == nil && p != "/" {
		return "", nil, fs.ErrNotExist
	}
	for _, root := range append([]string{t.upper}, t.lowers...) {
		at := filepath.Join(root, p)
		info, err := os.Lstat(at)
		if err == nil {
			return at, info, nil
		}
		if errors.Is(err, syscall.ENAMETOOLONG) {
			return "", nil, err
		}
	}
	return "", nil, fs.ErrNotExist
}

// copyUp makes the directories above p in the upper.
func (t *tree) copyUp(p string) (string, error) {
	p = path.Clean("/" + p)
	_, parent, err := t.find(path.Dir(p))
	if err != nil {
		return "", err
	}
	if !parent.IsDir() {
		return "", syscall.ENOTDIR
	}
	if _, info, err := t.find(p); err == nil && info.IsDir() {
		return "", syscall.EISDIR
	}
	if err := os.MkdirAll(filepath.Join(t.upper, path.Dir(p)), 0o755); err != nil {
		return "", err
	}
	dir, base := path.Split(p)
	err = os.Remove(filepath.Join(t.upper, dir, whiteout+base))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENAMETOOLONG) {
		err = nil
	}
	return filepath.Join(t.upper, p), err
}

func info(fi fs.FileInfo) sandbox.FileInfo {
	out := sandbox.FileInfo{Name: fi.Name(), Type: sandbox.RegularFile, Mode: uint32(fi.Mode().Perm()), Size: fi.Size(), ModTime: fi.ModTime()}
	if fi.IsDir() {
		out.Type = sandbox.Directory
	}
	return out
}

// Read copies at most max bytes from offset off to w.
func (t *tree) Read(_ context.Context, _ sandbox.User, p string, w io.Writer, off, max int64) (sandbox.FileInfo, error) {
	t.mu.Lock()
	at, fi, err := t.find(p)
	t.mu.Unlock()
	if err == nil && fi.IsDir() {
		err = syscall.EISDIR
	}
	if err != nil {
		return sandbox.FileInfo{}, fileError(p, err)
	}
	f, err := os.Open(at)
	if err != nil {
		return sandbox.FileInfo{}, fileError(p, err)
	}
	defer func() { _ = f.Close() }()
	if max < 0 {
		max = fi.Size()
	}
	_, err = io.Copy(w, io.NewSectionReader(f, off, max))
	return info(fi), err
}

// Write replaces a file's contents: all or nothing.
func (t *tree) Write(_ context.Context, _ sandbox.User, p string, r io.Reader, mode uint32) (sandbox.FileInfo, error) {
	text, err := io.ReadAll(r)
	if err != nil {
		return sandbox.FileInfo{}, err
	}
	return t.put(p, text, mode, false)
}

func (t *tree) put(p string, text []byte, mode uint32, add bool) (sandbox.FileInfo, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if add {
		if at, _, err := t.find(p); err == nil {
			old, err := os.ReadFile(at)
			if err != nil {
				return sandbox.FileInfo{}, fileError(p, err)
			}
			text = append(old, text...)
		}
	}
	at, err := t.copyUp(p)
	if err == nil {
		if err = os.WriteFile(at, text, 0o600); err == nil {
			err = os.Chmod(at, fs.FileMode(mode))
		}
	}
	if err != nil {
		return sandbox.FileInfo{}, fileError(p, err)
	}
	fi, err := os.Lstat(at)
	if err != nil {
		return sandbox.FileInfo{}, fileError(p, err)
	}
	return info(fi), nil
}

// names lists a directory of the joined tree.
func (t *tree) names(p string) ([]string, error) {
	_, fi, err := t.find(p)
	if err == nil && !fi.IsDir() {
		err = syscall.ENOTDIR
	}
	if err != nil {
		return nil, err
	}
	var out []string
	for _, root := range append([]string{t.upper}, t.lowers...) {
		entries, err := os.ReadDir(filepath.Join(root, p))
		if err != nil {
			continue
		}
		for _, e := range entries {
			out = append(out, e.Name())
		}
	}
	slices.Sort(out)
	out = slices.Compact(out)
	return slices.DeleteFunc(out, func(n string) bool {
		return strings.HasPrefix(n, whiteout) || slices.Contains(out, whiteout+n)
	}), nil
}

// List lists a directory in byte order.
func (t *tree) List(_ context.Context, _ sandbox.User, p string, max int) ([]sandbox.FileInfo, bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	names, err := t.names(p)
	if err != nil {
		return nil, false, fileError(p, err)
	}
	var out []sandbox.FileInfo
	for _, n := range names {
		if len(out) == max {
			return out, true, nil
		}
		_, fi, err := t.find(path.Join(p, n))
		if err != nil {
			return nil, false, fileError(p, err)
		}
		out = append(out, info(fi))
	}
	return out, false, nil
}

// Stat describes one entry.
func (t *tree) Stat(_ context.Context, _ sandbox.User, p string) (sandbox.FileInfo, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, fi, err := t.find(p)
	if err != nil {
		return sandbox.FileInfo{}, fileError(p, err)
	}
	return info(fi), nil
}

// Remove deletes a file or a tree.
func (t *tree) Remove(_ context.Context, _ sandbox.User, p string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, _, err := t.find(p); err != nil {
		return fileError(p, err)
	}
	p = path.Clean("/" + p)
	if err := os.RemoveAll(filepath.Join(t.upper, p)); err != nil {
		return fileError(p, err)
	}
	if _, _, err := t.find(p); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	dir, base := path.Split(p)
	if err := os.MkdirAll(filepath.Join(t.upper, dir), 0o755); err != nil {
		return fileError(p, err)
	}
	return fileError(p, os.WriteFile(filepath.Join(t.upper, dir, whiteout+base), nil, 0o600))
}

// Untar unpacks a plain tar.
func (t *tree) Untar(ctx context.Context, as sandbox.User, dir string, r io.Reader, _ sandbox.TarLimits) (int64, error) {
	if err := t.mkdir(dir); err != nil {
		return 0, fileError(dir, err)
	}
	tr := tar.NewReader(r)
	for n := int64(0); ; n++ {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return n, &sandbox.FileError{Kind: "invalid_archive", Path: dir, Detail: err.Error()}
		}
		if h.Typeflag == tar.TypeDir {
			err = fileError(h.Name, t.mkdir(path.Join(dir, h.Name)))
		} else if err = t.mkdir(path.Join(dir, path.Dir(h.Name))); err == nil {
			_, err = t.Write(ctx, as, path.Join(dir, h.Name), tr, uint32(h.Mode))
		}
		if err != nil {
			return n, err
		}
	}
}

func (t *tree) mkdir(p string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	p = path.Clean("/" + p)
	if err := os.MkdirAll(filepath.Join(t.upper, p), 0o755); err != nil {
		return err
	}
	dir, base := path.Split(p)
	if err := os.Remove(filepath.Join(t.upper, dir, whiteout+base)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Tar writes a file or a tree.
func (t *tree) Tar(_ context.Context, _ sandbox.User, p string, w io.Writer) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	tw := tar.NewWriter(w)
	p = path.Clean("/" + p)
	if err := t.tarOne(tw, p, path.Base(p)); err != nil {
		return fileError(p, err)
	}
	return tw.Close()
}

func (t *tree) tarOne(tw *tar.Writer, p, name string) error {
	at, fi, err := t.find(p)
	if err != nil {
		return err
	}
	if err := tw.WriteHeader(entryHeader(name, fi)); err != nil {
		return err
	}
	if !fi.IsDir() {
		text, err := os.ReadFile(at)
		if err == nil {
			_, err = tw.Write(text)
		}
		return err
	}
	names, err := t.names(p)
	for _, n := range names {
		if err == nil {
			err = t.tarOne(tw, path.Join(p, n), path.Join(name, n))
		}
	}
	return err
}
