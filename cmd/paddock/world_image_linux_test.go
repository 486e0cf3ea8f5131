package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/paddock-run/paddock/internal/need"
)

// A world goes to a registry and from there to a second store, where an episode runs on it:
// the digest is the same all the way.
func TestAWorldGoesThroughARegistryToAnEpisodeElsewhere(t *testing.T) {
	t.Parallel()
	registry := need.StartRegistry(t)
	here, there := newHost(t), newHost(t)
	here.serve(t)
	there.serve(t)
	here.must(t, "world", "build", "--busybox", "--name", "base")
	src := t.TempDir()
	if err := os.WriteFile(src+"/task", []byte("do it\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	here.must(t, "world", "build", src, "--base", "base", "--into", "/workdir", "--workdir", "/workdir", "--name", "task")
	ref := registry.Addr + "/team/task:1"
	pushed := strings.TrimSpace(here.must(t, "world", "push", "task", ref))
	if !strings.HasPrefix(pushed, registry.Addr+"/team/task@sha256:") {
		t.Fatalf("pushed %q", pushed)
	}
	id := worldID(t, here, "task")
	if got := strings.TrimSpace(there.must(t, "world", "pull", pushed, "--name", "by-digest")); got != id {
		t.Errorf("pulled by digest %q, want %q", got, id)
	}
	there.must(t, "world", "pull", ref)
	if got := worldID(t, there, ref); got != id {
		t.Errorf("pulled by tag %q, want %q", got, id)
	}
	if out := there.must(t, "run", ref, "--", "cat", "task"); out != "do it\n" {
		t.Errorf("the episode read %q", out)
	}
	code, _, errs := there.paddock(t, nil, "world", "pull", registry.Addr+"/team/none:1")
	if code == 0 || !strings.Contains(errs, "registry_not_found") {
		t.Errorf("pull of nothing: exit code %d, %s", code, errs)
	}
}

func worldID(t *testing.T, h host, ref string) string {
	t.Helper()
	var w struct{ ID string }
	if err := json.Unmarshal([]byte(h.must(t, "world", "inspect", ref)), &w); err != nil {
		t.Fatal(err)
	}
	return w.ID
}

// Docker Engine and paddock name an image by the same digest, and hand it over both ways.
func TestAWorldGoesThroughADockerEngine(t *testing.T) {
	engine := need.StartEngine(t)
	t.Setenv("DOCKER_HOST", engine)
	h := newHost(t)
	h.serve(t)
	h.must(t, "world", "build", "--busybox", "--name", "base")
	id := worldID(t, h, "base")
	if got := strings.TrimSpace(h.must(t, "world", "export", "base", "--to", "docker:paddock/base:1")); got != id {
		t.Errorf("the engine calls the image %q, want %q", got, id)
	}
	other := newHost(t)
	other.serve(t)
	if got := strings.TrimSpace(other.must(t, "world", "import", "docker:paddock/base:1", "--name", "back")); got != id {
		t.Errorf("back from the engine: %q, want %q", got, id)
	}
	if out := other.must(t, "run", "back", "--", "echo", "hello"); out != "hello\n" {
		t.Errorf("the episode said %q", out)
	}
	// The engine builds a Dockerfile, too, and what it made is a world with the base's layers.
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/f", []byte("copied\n"), 0o644); err != nil { //nolint:gosec // as people's files are
		t.Fatal(err)
	}
	dockerfile := filepath.Join(t.TempDir(), "Dockerfile")
	if err := os.WriteFile(dockerfile, []byte("FROM paddock/base:1\nARG WHO\nCOPY . /c/\nRUN echo $WHO >> /c/f; ls -A /c >> /c/f\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	other.must(t, "world", "build", "-f", dockerfile, "--builder", "docker", "--build-arg", "WHO=me", "--name", "built", dir)
	if out := other.must(t, "run", "built", "--", "cat", "/c/f"); out != "copied\nme\nf\n" {
		t.Errorf("the engine built %q", out)
	}
	code, _, errs := other.paddock(t, strings.NewReader("FROM paddock/base:1\nRUN exit 3\n"), "world", "build", "-f", "-", "--builder", "docker", dir)
	if code == 0 || !strings.Contains(errs, "returned a non-zero code: 3") {
		t.Errorf("a step of the engine's failed: exit code %d, %s", code, errs)
	}
	code, _, errs = other.paddock(t, nil, "world", "import", "docker:paddock/none:1")
	if code == 0 || !strings.Contains(errs, "paddock/none:1") {
		t.Errorf("import of nothing: exit code %d, %s", code, errs)
	}
}

func TestALayoutDirectoryGoesOutAndIn(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.serve(t)
	h.must(t, "world", "build", "--busybox", "--name", "base")
	id := worldID(t, h, "base")
	dir := filepath.Join(t.TempDir(), "layout")
	h.must(t, "world", "export", "base", "--to", "oci:"+dir)
	h.must(t, "world", "rm", "base")
	if got := strings.TrimSpace(h.must(t, "world", "import", dir)); got != id {
		t.Errorf("imported %q, want %q", got, id)
	}
	if code, _, _ := h.paddock(t, nil, "world", "export", id, "--to", "oci:"+dir); code == 0 {
		t.Error("an export went over a layout that was there")
	}
}

func TestAliasesResolveAsEnginesNamesDo(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.serve(t)
	h.must(t, "world", "build", "--busybox", "--name", "base")
	id := worldID(t, h, "base")
	h.must(t, "world", "alias", "python:3.12-slim", "base")
	h.must(t, "world", "alias", "ubuntu", "base")
	for _, ref := range []string{"python:3.12-slim", "docker.io/library/python:3.12-slim", "library/python:3.12-slim", "ubuntu", "ubuntu:latest", "docker.io/ubuntu"} {
		if got := worldID(t, h, ref); got != id {
			t.Errorf("%s is %q, want %q", ref, got, id)
		}
	}
	for _, ref := range []string{"python:3.12", "python", "ghcr.io/library/python:3.12-slim"} {
		if code, _, _ := h.paddock(t, nil, "world", "inspect", ref); code == 0 {
			t.Errorf("%s is a world", ref)
		}
	}
	if out := h.must(t, "run", "docker.io/library/python:3.12-slim", "--", "echo", "hello"); out != "hello\n" {
		t.Errorf("the episode said %q", out)
	}
	h.must(t, "world", "rm", "docker.io/library/ubuntu:latest") // takes the name away alone
	worldID(t, h, "python:3.12-slim")
	if code, _, _ := h.paddock(t, nil, "world", "inspect", "ubuntu"); code == 0 {
		t.Error("a removed alias still resolves")
	}
}

// What an episode, live or kept, was made of outlives every collection.
func TestCollectionLeavesWhatIsNeeded(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.serve(t, "--warm", "0") // warm sandboxes hold their worlds for a while
	made := map[string]string{}
	for _, name := range []string{"live", "kept", "free", "named"} {
		dir := t.TempDir()
		if err := os.WriteFile(dir+"/f", bytes.Repeat([]byte(name), 1<<18), 0o644); err != nil {
			t.Fatal(err)
		}
		h.must(t, "world", "build", "--busybox", "--name", "base")
		h.must(t, "world", "build", dir, "--base", "base", "--name", name)
		made[name] = worldID(t, h, name)
	}
	h.must(t, "episode", "create", "live", "--id", "live")
	h.must(t, "episode", "create", "kept", "--id", "kept")
	h.must(t, "episode", "call", "kept", "--", "sh", "-c", "echo 1 >/tmp/answer")
	h.must(t, "episode", "finish", "kept")
	var done struct {
		Removed []struct{ ID string }
		Freed   int64 `json:"freed_bytes"`
	}
	collect := func(flags ...string) {
		t.Helper()
		if err := json.Unmarshal([]byte(h.must(t, append([]string{"world", "gc", "--json"}, flags...)...)), &done); err != nil {
			t.Fatal(err)
		}
	}
	if collect(); len(done.Removed) != 0 {
		t.Errorf("worlds with a name went: %+v", done)
	}
	h.must(t, "world", "alias", "named2", "named")
	if collect("--all", "--max", "1GiB"); len(done.Removed) != 0 {
		t.Errorf("worlds went though they take less than the bound: %+v", done)
	}
	if collect("--all", "--dry-run"); len(done.Removed) != 3 { // base, free, named
		t.Errorf("a dry run names %+v", done)
	}
	collect("--all")
	gone := fmt.Sprint(done.Removed)
	if len(done.Removed) != 3 || !strings.Contains(gone, made["free"]) || !strings.Contains(gone, made["named"]) || done.Freed < 2<<20 {
		t.Errorf("collected %+v", done)
	}
	h.must(t, "episode", "call", "live", "--", "cat", "/f")
	h.must(t, "episode", "rm", "live")
	h.must(t, "episode", "rm", "kept")
	if collect("--all"); len(done.Removed) != 2 {
		t.Errorf("after the episodes went: %+v", done)
	}
}

// I19, I21: what the image's config says holds for exec, session, upload and score alike,
// and its entrypoint runs only when asked for.
func TestAnImagesConfigHoldsForEveryCall(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.serve(t)
	busybox, err := os.ReadFile(need.Busybox(t))
	if err != nil {
		t.Fatal(err)
	}
	var layer bytes.Buffer
	tw := tar.NewWriter(&layer)
	add := func(hd tar.Header, text string) {
		hd.Size = int64(len(text))
		if err := tw.WriteHeader(&hd); err != nil {
			t.Fatal(err)
		}
		if _, err := tw.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	add(tar.Header{Name: "bin/busybox", Mode: 0o755}, string(busybox))
	for _, name := range []string{"sh", "id", "pwd", "cat", "stat", "echo", "sleep", "env"} {
		add(tar.Header{Name: "bin/" + name, Typeflag: tar.TypeSymlink, Linkname: "busybox", Mode: 0o777}, "")
	}
	add(tar.Header{Name: "etc/passwd", Mode: 0o644}, "root:x:0:0::/root:/bin/sh\nappuser:x:1500:1500::/home/app:/bin/sh\n")
	add(tar.Header{Name: "etc/group", Mode: 0o644}, "root:x:0:\nappuser:x:1500:\nextra:x:1234:appuser\n")
	add(tar.Header{Name: "home/app/", Typeflag: tar.TypeDir, Mode: 0o755, Uid: 1500, Gid: 1500}, "")
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	config := `"User":"appuser","WorkingDir":"/srv/app","Env":["APP_X=1","PATH=/opt/b:/bin"],"Entrypoint":["/bin/sh","-c","echo entry >/tmp/ran"],"Cmd":["x"]`
	archive := filepath.Join(t.TempDir(), "image.tar")
	if err := os.WriteFile(archive, dockerArchive(t, config, layer.Bytes()), 0o644); err != nil {
		t.Fatal(err)
	}
	h.must(t, "world", "import", archive, "--name", "app")
	h.must(t, "episode", "create", "app", "--id", "e")
	want := "1500 1500\n1500 1234\n/srv/app\n1\n/opt/b:/bin\n/home/app\n/bin/sh\n"
	script := `echo $(id -u) $(id -g); id -G; pwd; echo "$APP_X"; echo "$PATH"; echo "$HOME"; echo "$SHELL"`
	if out := h.must(t, "episode", "call", "e", "--", "sh", "-c", script); out != want {
		t.Errorf("exec says %q, want %q", out, want)
	}
	if out := session(t, h, "e", script); out != want {
		t.Errorf("a session says %q, want %q", out, want)
	}
	if code, out, errs := h.paddock(t, nil, "episode", "call", "e", "--user", "root", "--cwd", "/", "--", "sh", "-c", "id -u; pwd; echo $APP_X"); code != 0 || out != "0\n/\n1\n" {
		t.Errorf("a call of its own: %q %s", out, errs)
	}
	var up bytes.Buffer
	utw := tar.NewWriter(&up)
	if err := errors.Join(utw.WriteHeader(&tar.Header{Name: "f", Mode: 0o644, Size: 1}), second(utw.Write([]byte("x"))), utw.Close()); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := h.paddock(t, &up, "episode", "put", "e", "/home/app"); code != 0 {
		t.Errorf("upload: %s", errs)
	}
	if out := h.must(t, "episode", "call", "e", "--", "stat", "-c", "%u %g", "/home/app/f", "/srv/app"); out != "1500 1500\n0 0\n" {
		t.Errorf("owners of an uploaded file and of the working directory, which the image does not have: %q", out)
	}
	if out := h.must(t, "episode", "call", "e", "--", "sh", "-c", "test -e /tmp/ran && echo ran || echo no"); out != "no\n" {
		t.Errorf("the entrypoint ran unasked: %q", out)
	}
}

// See above: an entrypoint that is asked for takes the image's CMD, or words in its place.
func TestTheEntrypointRunsWhenAskedFor(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.serve(t)
	h.must(t, "world", "build", "--busybox", "--name", "base")
	base, err := os.ReadFile(need.Busybox(t))
	if err != nil {
		t.Fatal(err)
	}
	layer := tarOf(t, map[string]string{"bin/busybox": string(base)})
	archive := filepath.Join(t.TempDir(), "image.tar")
	if err := os.WriteFile(archive, dockerArchive(t, `"Entrypoint":["/bin/busybox","echo"],"Cmd":["from","cmd"]`, layer), 0o644); err != nil {
		t.Fatal(err)
	}
	h.must(t, "world", "import", archive, "--name", "app")
	if out := h.must(t, "run", "app", "--entrypoint"); out != "from cmd\n" {
		t.Errorf("with its CMD: %q", out)
	}
	if out := h.must(t, "run", "app", "--entrypoint", "--", "other", "words"); out != "other words\n" {
		t.Errorf("with words: %q", out)
	}
	if code, _, errs := h.paddock(t, nil, "run", "app"); code != 2 || !strings.Contains(errs, "--entrypoint") {
		t.Errorf("without a command: exit code %d, %s", code, errs)
	}
	if code, _, errs := h.paddock(t, nil, "run", "base", "--entrypoint"); code != 2 || !strings.Contains(errs, "neither ENTRYPOINT") {
		t.Errorf("of a world without: exit code %d, %s", code, errs)
	}
}

func second(_ int, err error) error { return err }

// session runs a text in a new session and returns what it printed.
func session(t *testing.T, h host, id, text string) string {
	t.Helper()
	h.must(t, "episode", "call", id, "--tool", "session_open", "--session", "main")
	return h.must(t, "episode", "call", id, "--session", "main", "--", text)
}

// dockerArchive is an image as `docker save` wrote it before version 25.
func dockerArchive(t *testing.T, config string, layers ...[]byte) []byte {
	t.Helper()
	var out bytes.Buffer
	tw := tar.NewWriter(&out)
	add := func(name string, data []byte) {
		if err := errors.Join(tw.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(data))}), second(tw.Write(data))); err != nil {
			t.Fatal(err)
		}
	}
	var diffIDs, names []string
	for i, l := range layers {
		diffIDs = append(diffIDs, fmt.Sprintf(`"sha256:%x"`, sha256.Sum256(l)))
		names = append(names, fmt.Sprintf(`"%d/layer.tar"`, i))
		add(fmt.Sprintf("%d/layer.tar", i), l)
	}
	add("config.json", fmt.Appendf(nil, `{"architecture":%q,"os":"linux","config":{%s},"rootfs":{"type":"layers","diff_ids":[%s]}}`, runtime.GOARCH, config, strings.Join(diffIDs, ",")))
	add("manifest.json", fmt.Appendf(nil, `[{"Config":"config.json","RepoTags":["app:1"],"Layers":[%s]}]`, strings.Join(names, ",")))
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// tarOf is a tar of files that everybody may run.
func tarOf(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var out bytes.Buffer
	tw := tar.NewWriter(&out)
	for name, text := range files {
		if err := errors.Join(tw.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(text))}), second(tw.Write([]byte(text)))); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// I18: a world of many layers runs episodes like any other, and its capture is right.
func TestWorldsOfManyLayersRun(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.serve(t)
	busybox, err := os.ReadFile(need.Busybox(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{300, 480} {
		layers := [][]byte{tarOf(t, map[string]string{"bin/busybox": string(busybox)})}
		for i := 1; i < n; i++ {
			layers = append(layers, tarOf(t, map[string]string{"last": fmt.Sprint(i), fmt.Sprintf("d/f%d", i): ""}))
		}
		archive := filepath.Join(t.TempDir(), "image.tar")
		if err := os.WriteFile(archive, dockerArchive(t, "", layers...), 0o644); err != nil {
			t.Fatal(err)
		}
		name := fmt.Sprintf("deep:%d", n)
		h.must(t, "world", "import", archive, "--name", name)
		id := fmt.Sprint("e", n)
		h.must(t, "episode", "create", name, "--id", id)
		script := "/bin/busybox cat /last; echo; /bin/busybox ls /d | /bin/busybox wc -l; echo x >/d/new; /bin/busybox rm /d/f1"
		if out := h.must(t, "episode", "call", id, "--user", "0", "--", "/bin/busybox", "sh", "-c", script); out != fmt.Sprintf("%d\n%d\n", n-1, n-1) {
			t.Errorf("%d layers: %q", n, out)
		}
		h.must(t, "episode", "finish", id)
		if out := h.must(t, "episode", "diff", id); !strings.Contains(out, "/d/new") || !strings.Contains(out, "/d/f1") || strings.Contains(out, "/d/f2\n") {
			t.Errorf("%d layers: the capture is %q", n, out)
		}
	}
}
