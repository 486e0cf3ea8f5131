package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/paddock-run/paddock/internal/need"
)

// debian builds the world of Debian with Python. It is kept as an image in the user's
// cache, since a build takes most of a minute and the network.
func (h host) debian(tb testing.TB, name string) {
	tb.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		tb.Fatal(err)
	}
	image := filepath.Join(cache, "paddock", "worlds", "debian-bookworm-python3.tar")
	if _, err := os.Stat(image); err == nil {
		code, _, errs := h.paddock(tb, nil, "world", "import", image, "--name", name)
		if code == 0 {
			return
		}
		tb.Logf("the kept world is built again: %s", errs)
	}
	need.Command(tb, "mmdebstrap", "mmdebstrap")
	h.must(tb, "world", "build", "--debian", "bookworm", "--packages", "python3", "--name", name)
	if err := os.MkdirAll(filepath.Dir(image), 0o755); err != nil {
		tb.Fatal(err)
	}
	h.must(tb, "world", "export", name, "-o", image)
}

// A real server, of a world as people have them, answers in later calls and is gone with
// its episode.
func TestPythonServerOfOneCallAnswersInTheNext(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	d := h.serve(t)
	h.debian(t, "debian")
	h.must(t, "episode", "create", "debian", "--id", "e")
	h.must(t, "episode", "call", "e", "--", "sh", "-c", "mkdir -p /tmp/site && echo hello >/tmp/site/index.html && cd /tmp/site && python3 -m http.server 8000 &")
	fetch := `import urllib.request; print(urllib.request.urlopen("http://localhost:8000/index.html").read().decode(), end="")`
	deadline := time.Now().Add(time.Minute)
	for {
		code, out, errs := h.paddock(t, nil, "episode", "call", "e", "--", "python3", "-c", fetch)
		if code == 0 && out == "hello\n" {
			break
		}
		if !strings.Contains(errs, "Connection refused") || time.Now().After(deadline) {
			t.Fatalf("exit code %d, out %q, errors %s; want an answer once the server listens", code, out, errs)
		}
	}
	if out := h.must(t, "episode", "call", "e", "--", "python3", "-c", fetch); out != "hello\n" {
		t.Errorf("the next call was answered %q", out)
	}
	h.must(t, "episode", "rm", "e")
	d.stop(t)
	h.noStrays(t)
}
