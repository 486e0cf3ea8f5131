package dockerfile_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/paddock-run/paddock/internal/egress"
	"github.com/paddock-run/paddock/internal/need"
	"github.com/paddock-run/paddock/overlay"
	"github.com/paddock-run/paddock/overlay/image"
	"github.com/paddock-run/paddock/policies"
	"github.com/paddock-run/paddock/runner"
	"github.com/paddock-run/paddock/runner/dockerfile"
	"github.com/paddock-run/paddock/runner/record"
	"github.com/paddock-run/paddock/sandbox"
	"github.com/paddock-run/paddock/sandbox/native"
)

type launcher struct{ *native.Launcher }

func (l launcher) Start(ctx context.Context, spec sandbox.Spec) (runner.Sandbox, error) {
	s, err := l.Launcher.Start(ctx, spec)
	if err != nil {
		return nil, err
	}
	return box{s}, nil
}

type box struct{ *native.Sandbox }

func (b box) Files() runner.Files { return b.Sandbox.Files() }

type worlds struct{ image.Worlds }

func (w worlds) Fork(ctx context.Context, id string) (runner.Fork, error) {
	f, err := w.Worlds.Fork(ctx, id)
	if err != nil {
		return nil, err
	}
	return fork{f}, nil
}

type fork struct{ *overlay.Fork }

func (f fork) Track(upper *os.File, hostID uint32) runner.Tracker { return f.Fork.Track(upper, hostID) }

var benches atomic.Int64

// root is the tenant that root of the host is.
const root = "0"

// bench is a builder on real sandboxes, with a world "box" of busybox.
type bench struct {
	*dockerfile.Builder
	t     *testing.T
	store *overlay.Store
	ids   *sandbox.IDPool
}

// newBench is a bench whose RUNs reach what outside reaches.
func newBench(t *testing.T) *bench {
	t.Helper()
	return newBenchOn(t, egress.NewHost(nil, nil))
}

func newBenchOn(t *testing.T, outside *egress.Host) *bench {
	t.Helper()
	need.Root(t)
	need.Overlay(t)
	need.Busybox(t)
	dir := need.Tmpfs(t)
	set, err := policies.Load()
	must(t, err)
	store, err := overlay.Open(dir, overlay.Options{})
	must(t, err)
	rec, err := record.Open(t.Context(), dir)
	must(t, err)
	run := filepath.Join(dir, "run", "launcher")
	must(t, os.MkdirAll(run, 0o700))
	l, err := native.New(native.Config{Dir: run, CgroupParent: fmt.Sprintf("paddock-dockerfile-%d-%d", os.Getpid(), benches.Add(1))})
	must(t, err)
	ids, err := sandbox.HostIDPool(64)
	must(t, err)
	r, err := runner.New(t.Context(), runner.Config{
		Root: dir, Launcher: launcher{l}, Worlds: worlds{image.Worlds{Store: store}}, Record: rec, Policies: set, IDs: ids,
		Host: policies.Host{CPUs: 4, MemoryBytes: 16 << 30}, Egress: outside,
	})
	must(t, err)
	b := &bench{Builder: dockerfile.New(r, store), t: t, store: store, ids: ids}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		strays, err := store.Strays()
		if err != nil || len(strays) > 0 {
			t.Errorf("left in the store: %q, %v", strays, err)
		}
		must(t, errors.Join(r.Close(ctx), l.Close(), rec.Close(), store.Close()))
		if free := ids.Free(); free != 64 {
			t.Errorf("%d of 64 id ranges are free", free)
		}
	})
	_, err = store.Build(t.Context(), overlay.Recipe{Busybox: true, Name: "box"}, nil)
	must(t, err)
	return b
}

// on is the bench for a subtest.
func (b *bench) on(t *testing.T) *bench {
	t.Helper()
	return &bench{Builder: b.Builder, t: t, store: b.store, ids: b.ids}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// build builds a recipe that is to work.
func (b *bench) build(r dockerfile.Recipe) (dockerfile.Result, string) {
	b.t.Helper()
	var log bytes.Buffer
	res, err := b.Build(b.t.Context(), root, r, &log, nil)
	if err != nil {
		b.t.Fatalf("%v\n%s", err, log.String())
	}
	return res, log.String()
}

// refused builds a recipe that is to fail.
func (b *bench) refused(r dockerfile.Recipe) error {
	b.t.Helper()
	var log bytes.Buffer
	res, err := b.Build(b.t.Context(), root, r, &log, nil)
	if err == nil {
		b.t.Fatalf("was built: %+v\n%s", res, log.String())
	}
	return err
}

// context writes a context: text by path; "/" makes a directory, "-> x" a symlink, "= x" a
// hard link; "0755 text" sets the mode.
func contextOf(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	var names []string
	for name := range files {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		text, at := files[name], filepath.Join(dir, name)
		must(t, os.MkdirAll(filepath.Dir(at), 0o755))
		var mode os.FileMode
		if rest, ok := strings.CutPrefix(text, "0"); ok && len(rest) > 3 && rest[3] == ' ' {
			_, err := fmt.Sscanf(text[:4], "%o", &mode)
			must(t, err)
			text = rest[4:]
		}
		switch {
		case strings.HasPrefix(text, "-> "):
			must(t, os.Symlink(text[3:], at))
			continue
		case strings.HasPrefix(text, "= "):
			must(t, os.Link(filepath.Join(dir, text[2:]), at))
			continue
		case strings.HasSuffix(name, "/"):
			must(t, os.MkdirAll(at, 0o755))
		default:
			must(t, os.WriteFile(at, []byte(text), 0o644)) //nolint:gosec // a test's file
		}
		if mode != 0 {
			must(t, os.Chmod(at, mode|os.FileMode(0)))
			if mode&0o4000 != 0 {
				must(t, os.Chmod(at, mode.Perm()|os.ModeSetuid))
			}
		}
	}
	return dir
}

// files is a world's tree, a line for each path, read from the tars of its layers as an
// engine would read them.
func (b *bench) files(world string) []string {
	b.t.Helper()
	held, err := b.store.Hold(world)
	must(b.t, err)
	defer held.Release()
	all := map[string]string{}
	for i := range held.Blobs {
		pr, pw := io.Pipe()
		go func() { pw.CloseWithError(held.Write(b.t.Context(), i, pw)) }()
		layer(b.t, pr, all)
	}
	var out []string
	for p, line := range all {
		out = append(out, p+" "+line)
	}
	slices.Sort(out)
	return out
}

// difference lists the lines that one tree has and the other has not.
func difference(theirs, ours []string) string {
	var out strings.Builder
	for _, l := range theirs {
		if !slices.Contains(ours, l) {
			fmt.Fprintln(&out, "docker: ", l)
		}
	}
	for _, l := range ours {
		if !slices.Contains(theirs, l) {
			fmt.Fprintln(&out, "paddock:", l)
		}
	}
	return out.String()
}

// layer puts a layer's tar on a tree.
func layer(t *testing.T, r io.Reader, all map[string]string) {
	t.Helper()
	made := map[string]string{}
	hide := func(p string, itself bool) {
		for have := range all {
			if (itself && have == p) || strings.HasPrefix(have, p+"/") {
				delete(all, have)
			}
		}
	}
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
		p := path.Clean("/" + h.Name)
		dir, base := path.Split(p)
		switch hidden, ok := strings.CutPrefix(base, ".wh."); {
		case base == ".wh..wh..opq":
			hide(path.Clean(dir), false)
			continue
		case ok:
			hide(path.Join(dir, hidden), true)
			continue
		}
		text := fmt.Sprintf("%c %04o %d:%d", h.Typeflag, h.Mode&0o7777, h.Uid, h.Gid)
		switch h.Typeflag {
		case tar.TypeReg:
			sum := sha256.New()
			_, err := io.Copy(sum, tr)
			must(t, err)
			text += fmt.Sprintf(" %x", sum.Sum(nil)[:8])
		case tar.TypeSymlink:
			text += " -> " + h.Linkname
		case tar.TypeLink:
			first := path.Clean("/" + h.Linkname)
			text = made[first]
		}
		if h.Typeflag != tar.TypeDir {
			hide(p, false)
		}
		made[p], all[p] = text, text
	}
	_, err := io.Copy(io.Discard, r)
	must(t, err)
}

// sent is a directory as a client sends it.
func (b *bench) sent(dir, file, text string) io.Reader {
	b.t.Helper()
	var buf bytes.Buffer
	must(b.t, dockerfile.Context{Dir: dir, File: file, Text: text}.Write(b.t.Context(), &buf))
	return &buf
}
