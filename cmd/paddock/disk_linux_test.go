package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/paddock-run/paddock/api"
	"github.com/paddock-run/paddock/internal/need"
)

// X-F18 with a disk: an episode writes more than its memory holds, is stopped at its limit,
// is told so, and is scored like another; a killed daemon leaves no loop device.
func TestEpisodesOnALoopDisk(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	d := h.serve(t, "--disk", "loop", "--disk-above", "64MiB")
	h.must(t, "world", "build", "--busybox", "--name", "box")
	if out := h.must(t, "version"); !strings.Contains(out, "disk loop") {
		t.Errorf("version says %q, want disk loop", out)
	}
	h.must(t, "episode", "create", "box", "--id", "small", "--disk", "64MiB")
	h.must(t, "episode", "create", "box", "--id", "large", "--disk", "300MiB", "--memory", "64MiB")
	for id, want := range map[string]string{"small": "tmpfs", "large": "loop"} {
		var ep api.Episode
		if err := json.Unmarshal([]byte(h.must(t, "--json", "episode", "show", id)), &ep); err != nil || ep.Effective.DiskOn != want {
			t.Errorf("%s is on %q, %v; want %s", id, ep.Effective.DiskOn, err, want)
		}
	}
	h.must(t, "episode", "call", "large", "--", "dd", "if=/dev/zero", "of=/tmp/f", "bs=1M", "count=250")
	code, out, errs := h.paddock(t, nil, "episode", "call", "large", "--json", "--", "dd", "if=/dev/zero", "of=/tmp/g", "bs=1M", "count=250")
	if code != 1 || !strings.Contains(out, "No space left") || !strings.Contains(out, `"name": "disk"`) {
		t.Errorf("a full disk: exit code %d %.600s %s; want ENOSPC and the limit's name", code, out, errs)
	}
	h.must(t, "episode", "call", "small", "--", "true")
	h.must(t, "episode", "call", "large", "--", "sh", "-c", "rm /tmp/f /tmp/g; echo 42 > /tmp/answer")
	h.must(t, "episode", "finish", "large")
	grader := filepath.Join(filepath.Dir(h.socket), "grader")
	script := `[ $(cat /tmp/answer) = 42 ] && r=1 || r=0; echo "{\"reward\": $r}" >&$PADDOCK_VERDICT_FD`
	if err := os.Mkdir(grader, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(grader, "g.sh"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	digest := strings.TrimSpace(h.must(t, "grader", "put", grader, "--", "sh", "/grader/g.sh"))
	if out := h.must(t, "score", "large", "--grader", digest); !strings.Contains(out, "reward 1") {
		t.Errorf("score: %s", out)
	}
	h.must(t, "episode", "create", "box", "--id", "killed", "--disk", "300MiB")
	d.kill()
	for deadline := time.Now().Add(20 * time.Second); loops(t, h.root) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d loop devices are left", loops(t, h.root))
		}
	}
	h.serve(t, "--disk", "tmpfs").stop(t)
	h.noStrays(t)
}

// loops counts the loop devices with files in a store.
func loops(tb testing.TB, root string) int {
	tb.Helper()
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		tb.Fatal(err)
	}
	n := 0
	for _, f := range files {
		if text, err := os.ReadFile(f); err == nil && strings.HasPrefix(string(text), root+"/") {
			n++
		}
	}
	return n
}

func TestDisksThatCannotBe(t *testing.T) {
	t.Parallel()
	need.Root(t)
	h := newHost(t)
	for _, c := range []struct {
		flags []string
		code  int
		says  string
	}{
		{[]string{"--disk", "floppy"}, exitUsage, "want one of"},
		{[]string{"--disk", "none"}, exitUsage, "--i-want-no-disk-limits"},
		{[]string{"--i-want-no-disk-limits"}, exitUsage, "--disk none"},
		{[]string{"--disk-above", "much"}, exitUsage, "--disk-above"},
	} {
		code, _, errs := h.paddock(t, nil, append([]string{"serve", "--root", h.root}, c.flags...)...)
		if code != c.code || !strings.Contains(errs, c.says) {
			t.Errorf("serve %v: exit code %d, %q; want %d and %q", c.flags, code, errs, c.code, c.says)
		}
	}
	d := h.serve(t, "--disk", "none", "--i-want-no-disk-limits")
	h.must(t, "world", "build", "--busybox", "--name", "box")
	h.must(t, "run", "box", "--disk", "1MiB", "--", "dd", "if=/dev/zero", "of=/tmp/f", "bs=1M", "count=8")
	d.stop(t)
	if !strings.Contains(d.log.String(), "NO DISK LIMITS") {
		t.Errorf("the daemon said nothing loud:\n%s", d.log)
	}
	h.noStrays(t)
}
