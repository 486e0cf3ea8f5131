package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/paddock-run/paddock/internal/need"
)

// E06, over the socket: a command that floods a gibibyte costs the daemon no memory, every byte
// is counted, and the next call works.
func TestFloodCostsTheDaemonNoMemory(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	d := h.serve(t)
	h.must(t, "world", "build", "--busybox", "--name", "box")
	h.must(t, "episode", "create", "box", "--id", "e")
	h.must(t, "episode", "call", "e", "--", "true")
	before := rssOf(t, d.cmd.Process.Pid)
	code, out, errs := h.paddock(t, nil, "episode", "call", "e", "--json", "--", "sh", "-c", "dd if=/dev/zero bs=1M count=1024 2>/dev/null; exit 5")
	if code != 5 || !strings.Contains(out, `"stdout_bytes": 1073741824`) {
		t.Errorf("exit code %d, %.300s %s; want 5 and 1073741824 bytes", code, out, errs)
	}
	if grown := rssOf(t, d.cmd.Process.Pid) - before; grown > 64<<20 {
		t.Errorf("the daemon grew by %d MiB", grown>>20)
	}
	h.must(t, "episode", "call", "e", "--", "true")
}

func rssOf(tb testing.TB, pid int) int64 {
	tb.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		tb.Fatal(err)
	}
	pages, err := strconv.ParseInt(strings.Fields(string(b))[1], 10, 64)
	if err != nil {
		tb.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
}

// F11: git in the sandbox takes an uploaded repository for its user's own.
func TestUploadedRepositoryIsOfTheUser(t *testing.T) {
	t.Parallel()
	git := need.Command(t, "git", "git")
	h := newHost(t)
	h.serve(t)
	h.must(t, "world", "build", "--busybox", "--name", "box")
	tree := t.TempDir()
	copyInto(t, tree, git, "/bin/git")
	libs, err := exec.CommandContext(t.Context(), "ldd", git).Output()
	if err != nil {
		t.Fatal(err)
	}
	for word := range strings.FieldsSeq(string(libs)) {
		if strings.HasPrefix(word, "/") {
			copyInto(t, tree, word, word)
		}
	}
	h.must(t, "world", "build", tree, "--base", "box", "--name", "git")
	repo := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), git, "init", "-q", repo).CombinedOutput(); err != nil {
		t.Fatalf("git init: %v\n%s", err, out)
	}
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	if err := errors.Join(w.AddFS(os.DirFS(repo)), w.Close()); err != nil {
		t.Fatal(err)
	}
	h.must(t, "episode", "create", "git", "--id", "e")
	if code, _, errs := h.paddock(t, &archive, "episode", "put", "e", "/workdir"); code != 0 {
		t.Fatalf("put: %d %s", code, errs)
	}
	h.must(t, "episode", "call", "e", "--cwd", "/workdir", "--", "sh", "-c", "git status && git diff --cached")
}

func copyInto(tb testing.TB, tree, from, to string) {
	tb.Helper()
	data, err := os.ReadFile(from)
	if err != nil {
		tb.Fatal(err)
	}
	p := filepath.Join(tree, to)
	if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, data, 0o755)); err != nil {
		tb.Fatal(err)
	}
}
