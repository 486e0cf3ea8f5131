// Package files reads and writes a sandbox's tree from outside, as one of its users, so
// that owners and permission errors are the kernel's own and no process of the sandbox
// has to be trusted or even alive.
package files

import (
	"context"
	"errors"
	"io"
	"os"

	"github.com/paddock-run/paddock/sandbox"
)

var errNotBuilt = errors.New("not built yet")

// Tree is the tree below a root. Its methods may be called from any goroutine.
type Tree struct {
	root *os.File
	ids  sandbox.IDMap
}

// New returns the tree below root, whose owners are those of ids. The caller keeps
// ownership of root, and closes it after the last call has returned.
func New(root *os.File, ids sandbox.IDMap) *Tree { return &Tree{root: root, ids: ids} }

// Read copies at most max bytes from offset off to w (max < 0: all).
func (t *Tree) Read(ctx context.Context, as sandbox.User, path string, w io.Writer, off, max int64) (sandbox.FileInfo, error) {
	return sandbox.FileInfo{}, errNotBuilt
}

// Write makes or replaces the file's contents, atomically.
func (t *Tree) Write(ctx context.Context, as sandbox.User, path string, r io.Reader, mode uint32) (sandbox.FileInfo, error) {
	return sandbox.FileInfo{}, errNotBuilt
}

// List lists a directory in byte order, at most max entries.
func (t *Tree) List(ctx context.Context, as sandbox.User, path string, max int) (entries []sandbox.FileInfo, more bool, err error) {
	return nil, false, errNotBuilt
}

// Stat does not follow a final symlink.
func (t *Tree) Stat(ctx context.Context, as sandbox.User, path string) (sandbox.FileInfo, error) {
	return sandbox.FileInfo{}, errNotBuilt
}

// Untar unpacks a tar (plain, gzip or zstd) under dir.
func (t *Tree) Untar(ctx context.Context, as sandbox.User, dir string, r io.Reader, limits sandbox.TarLimits) (entries int64, err error) {
	return 0, errNotBuilt
}

// Tar writes path (a file or a tree) as a PAX tar.
func (t *Tree) Tar(ctx context.Context, as sandbox.User, path string, w io.Writer) error {
	return errNotBuilt
}

// Remove deletes a file or, recursively, a directory.
func (t *Tree) Remove(ctx context.Context, as sandbox.User, path string) error { return errNotBuilt }
