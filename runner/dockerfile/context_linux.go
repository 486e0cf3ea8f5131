package dockerfile

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/moby/patternmatcher/ignorefile"
)

// Context is a directory that is sent to who builds.
type Context struct {
	Dir string
	// File is the Dockerfile's path in the directory; where it is empty, Text is sent in its
	// place, as SentDockerfile.
	File, Text string
	// ForEngine says that a Docker Engine builds, which does not know SentDockerfile for what
	// it is.
	ForEngine bool
}

// Write writes the directory as a tar: everything that is not ignored, root's, and what says
// what is ignored.
func (c Context) Write(ctx context.Context, w io.Writer) error {
	root, err := os.OpenRoot(c.Dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	t := &contextTar{ctx: ctx, root: root, w: tar.NewWriter(w), links: map[inode]string{}, always: map[string]bool{".dockerignore": true}}
	if c.File != "" {
		t.always[c.File], t.always[c.File+".dockerignore"] = true, true
	}
	if err := t.readIgnore(c.File); err != nil {
		return err
	}
	if c.File == "" {
		if err := t.sent(c); err != nil {
			return err
		}
	}
	if err := fs.WalkDir(root.FS(), ".", t.entry); err != nil {
		return err
	}
	return t.w.Close()
}

type inode struct{ dev, ino uint64 }

// contextTar is one call of Write.
type contextTar struct {
	ctx  context.Context //nolint:containedctx // lives as long as the one call
	root *os.Root
	w    *tar.Writer
	skip func(string) (skip, prune bool)
	// always are sent though they are ignored: who builds ignores them itself.
	always map[string]bool
	links  map[inode]string
}

func (t *contextTar) readIgnore(file string) error {
	names := []string{".dockerignore"}
	if file != "" {
		names = []string{file + ".dockerignore", ".dockerignore"}
	}
	t.skip = func(string) (bool, bool) { return false, false }
	for _, name := range names {
		text, err := t.root.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		patterns, err := ignorefile.ReadAll(bytes.NewReader(text))
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		skip, err := skipper(patterns)
		if err == nil && skip != nil {
			t.skip = skip
		}
		return err
	}
	return nil
}

// sent sends a Dockerfile from elsewhere. An engine is told to ignore it, in a list that is
// ignored as well, as Docker's own client does.
func (t *contextTar) sent(c Context) error {
	skip := t.skip
	t.skip = func(p string) (bool, bool) {
		if p == SentDockerfile || c.ForEngine && p == ".dockerignore" {
			return true, true
		}
		return skip(p)
	}
	if err := t.file(SentDockerfile, []byte(c.Text)); err != nil || !c.ForEngine {
		return err
	}
	t.always = nil
	ignore, err := t.root.ReadFile(".dockerignore")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return t.file(".dockerignore", append(ignore, "\n.dockerignore\n"+SentDockerfile+"\n"...))
}

func (t *contextTar) file(name string, data []byte) error {
	if err := t.w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(data))}); err != nil {
		return err
	}
	_, err := t.w.Write(data)
	return err
}

func (t *contextTar) entry(p string, d fs.DirEntry, err error) error {
	if err != nil || p == "." {
		return err
	}
	if t.ctx.Err() != nil {
		return context.Cause(t.ctx)
	}
	if skip, prune := t.skip(p); skip && !t.always[p] {
		if d.IsDir() && prune && !t.holdsAlways(p) {
			return fs.SkipDir
		}
		return nil
	}
	info, err := d.Info()
	if err != nil {
		return err
	}
	if info.Mode()&fs.ModeSocket != 0 {
		return nil
	}
	return t.write(p, info)
}

// holdsAlways says whether something that is sent always is below an ignored directory.
func (t *contextTar) holdsAlways(dir string) bool {
	for p := range t.always {
		if rel, err := filepath.Rel(dir, p); err == nil && filepath.IsLocal(rel) {
			return true
		}
	}
	return false
}

func (t *contextTar) write(p string, info fs.FileInfo) error {
	target := ""
	if info.Mode()&fs.ModeSymlink != 0 {
		var err error
		if target, err = t.root.Readlink(p); err != nil {
			return err
		}
	}
	h, err := tar.FileInfoHeader(info, target)
	if err != nil {
		return err
	}
	h.Name, h.Uid, h.Gid, h.Uname, h.Gname, h.Format = p, 0, 0, "", "", tar.FormatPAX
	if info.IsDir() {
		h.Name += "/"
	}
	h.AccessTime, h.ChangeTime = info.ModTime(), info.ModTime()
	if st, ok := info.Sys().(*syscall.Stat_t); ok && info.Mode().IsRegular() && st.Nlink > 1 {
		id := inode{st.Dev, st.Ino}
		if first := t.links[id]; first != "" {
			h.Typeflag, h.Linkname, h.Size = tar.TypeLink, first, 0
			return t.w.WriteHeader(h)
		}
		t.links[id] = p
	}
	if err := t.w.WriteHeader(h); err != nil || !info.Mode().IsRegular() {
		return err
	}
	f, err := t.root.Open(p)
	if err != nil {
		return err
	}
	_, err = io.CopyN(t.w, f, h.Size)
	return errors.Join(err, f.Close())
}
