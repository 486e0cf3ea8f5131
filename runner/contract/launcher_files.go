package contract

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/paddock-run/paddock/runner"
	"github.com/paddock-run/paddock/sandbox"
)

func filesRoundTrip(ctx context.Context, t *testing.T, sb runner.Sandbox) {
	f, as := sb.Files(), sandbox.User{}
	for _, name := range []string{"plain", "a b", "-rf", "x\ny", "\xff\xfe", strings.Repeat("n", 255)} {
		want := strings.Repeat("\x00\xff\r\n", 5000)
		if _, err := f.Write(ctx, as, "/tmp/"+name, strings.NewReader(want), 0o640); err != nil {
			t.Fatalf("Write %q: %v", name, err)
		}
		var got bytes.Buffer
		info, err := f.Read(ctx, as, "/tmp/"+name, &got, 0, -1)
		if err != nil || got.String() != want || info.Size != int64(len(want)) || info.Mode != 0o640 {
			t.Errorf("Read %q: %d bytes, info %+v, %v", name, got.Len(), info, err)
		}
	}
	var part bytes.Buffer
	if _, err := f.Read(ctx, as, "/tmp/plain", &part, 1, 3); err != nil || part.String() != "\xff\r\n" {
		t.Errorf("Read of a part = %q, %v", part.String(), err)
	}
	entries, more, err := f.List(ctx, as, "/tmp", 3)
	if err != nil || len(entries) != 3 || !more || entries[0].Name != "-rf" {
		t.Errorf("List = %v, more %v, %v; want 3 of more, in byte order", entries, more, err)
	}
	if err := f.Remove(ctx, as, "/tmp/plain"); err != nil {
		t.Errorf("Remove: %v", err)
	}
	wantFileError(t, "not_found", func() error { _, err := f.Stat(ctx, as, "/tmp/plain"); return err })
}

func wantFileError(t *testing.T, kind string, do func() error) {
	t.Helper()
	err := do()
	fe, ok := errors.AsType[*sandbox.FileError](err)
	if !ok || fe.Kind != kind {
		t.Errorf("error %v, want a FileError of kind %s", err, kind)
	}
}

func fileErrors(ctx context.Context, t *testing.T, sb runner.Sandbox) {
	f, as := sb.Files(), sandbox.User{}
	read := func(path string) func() error {
		return func() error { _, err := f.Read(ctx, as, path, io.Discard, 0, -1); return err }
	}
	wantFileError(t, "not_found", read("/no/such"))
	wantFileError(t, "is_directory", read("/tmp"))
	wantFileError(t, "not_a_directory", read("/etc/passwd/x"))
	wantFileError(t, "not_a_directory", func() error {
		_, err := f.Write(ctx, as, "/etc/passwd/x", strings.NewReader("x"), 0o644)
		return err
	})
	wantFileError(t, "not_found", func() error { _, _, err := f.List(ctx, as, "/no/such", 1); return err })
	wantFileError(t, "not_found", func() error { return f.Remove(ctx, as, "/no/such") })
}

func brokenWrite(ctx context.Context, t *testing.T, sb runner.Sandbox) {
	f, as := sb.Files(), sandbox.User{}
	if _, err := f.Write(ctx, as, "/tmp/f", strings.NewReader("old contents"), 0o644); err != nil {
		t.Fatal(err)
	}
	broken := io.MultiReader(strings.NewReader("new"), errReader{})
	if _, err := f.Write(ctx, as, "/tmp/f", broken, 0o644); err == nil {
		t.Error("Write from a broken reader succeeded")
	}
	var got bytes.Buffer
	if _, err := f.Read(ctx, as, "/tmp/f", &got, 0, -1); err != nil || got.String() != "old contents" {
		t.Errorf("after a broken write: %q, %v", got.String(), err)
	}
	entries, _, err := f.List(ctx, as, "/tmp", 100)
	if err != nil || len(entries) != 1 {
		t.Errorf("after a broken write /tmp has %v, %v; want one file", entries, err)
	}
	if _, err := f.Write(ctx, as, "/tmp/f", strings.NewReader("B"), 0o644); err != nil {
		t.Fatal(err)
	}
	got.Reset()
	if _, err := f.Read(ctx, as, "/tmp/f", &got, 0, -1); err != nil || got.String() != "B" {
		t.Errorf("short after long: %q, %v", got.String(), err)
	}
}

type errReader struct{}

func (errReader) Read([]byte) (int, error) { return 0, errors.New("connection cut") }

func archives(ctx context.Context, t *testing.T, sb runner.Sandbox) {
	f, as := sb.Files(), sandbox.User{}
	if _, err := f.Write(ctx, as, "/tmp/a", strings.NewReader("contents"), 0o600); err != nil {
		t.Fatal(err)
	}
	var tarball bytes.Buffer
	if err := f.Tar(ctx, as, "/tmp", &tarball); err != nil {
		t.Fatalf("Tar: %v", err)
	}
	n, err := f.Untar(ctx, as, "/tmp/made", bytes.NewReader(tarball.Bytes()), sandbox.TarLimits{})
	if err != nil || n < 2 {
		t.Fatalf("Untar = %d, %v; want the directory and the file", n, err)
	}
	var got bytes.Buffer
	info, err := f.Read(ctx, as, "/tmp/made/tmp/a", &got, 0, -1)
	if err != nil || got.String() != "contents" || info.Mode != 0o600 {
		t.Errorf("after Untar: %q mode %o, %v", got.String(), info.Mode, err)
	}
	if err := f.Remove(ctx, as, "/tmp/made"); err != nil {
		t.Errorf("Remove of a tree: %v", err)
	}
}

func sharedTree(ctx context.Context, t *testing.T, sb runner.Sandbox) {
	f, as := sb.Files(), sandbox.User{}
	wantCode(t, run(ctx, t, sb, sh("echo from inside > /tmp/in")), 0)
	var got bytes.Buffer
	if _, err := f.Read(ctx, as, "/tmp/in", &got, 0, -1); err != nil || got.String() != "from inside\n" {
		t.Errorf("Read of a process's file = %q, %v", got.String(), err)
	}
	if _, err := f.Write(ctx, as, "/tmp/out", strings.NewReader("from outside\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if r := run(ctx, t, sb, command("cat", "/tmp/out")); r.out != "from outside\n" {
		t.Errorf("a process read %q", r.out)
	}
}

func upperHolds(ctx context.Context, t *testing.T, sb runner.Sandbox) {
	wantCode(t, run(ctx, t, sb, sh("echo x > /tmp/new")), 0)
	if err := sb.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", sb.Upper().Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	if b, err := fs.ReadFile(root.FS(), "tmp/new"); err != nil || string(b) != "x\n" {
		t.Errorf("upper has tmp/new = %q, %v", b, err)
	}
	// Directories may have been copied up; what was put into the sandbox is in no capture.
	var files []string
	err = fs.WalkDir(root.FS(), ".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			files = append(files, path)
		}
		return err
	})
	if err != nil || !slices.Equal(files, []string{"tmp/new"}) {
		t.Errorf("upper has the files %q, %v; want that one alone", files, err)
	}
}

// refused holds that what a launcher says it lacks is a typed error, not done by halves.
func refused(t *testing.T, err error) {
	t.Helper()
	if _, ok := errors.AsType[*sandbox.UnsupportedError](err); !ok {
		t.Errorf("error %v, want an UnsupportedError", err)
	}
}
