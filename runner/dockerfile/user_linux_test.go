package dockerfile_test

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/paddock-run/paddock/internal/egress"
	"github.com/paddock-run/paddock/internal/engine"
	"github.com/paddock-run/paddock/internal/need"
	"github.com/paddock-run/paddock/overlay"
	"github.com/paddock-run/paddock/overlay/image"
	"github.com/paddock-run/paddock/runner/dockerfile"
)

// asUsers is a Dockerfile as people have them.
const asUsers = `# syntax=docker/dockerfile:1
ARG BASE=python:3.11-slim
FROM ${BASE} AS build
ARG VERSION=0.0
ENV APP=/opt/app \
    PIP_NO_INDEX=1 PYTHONDONTWRITEBYTECODE=1
RUN echo "deb [trusted=yes] http://deb.test/debian ./" > /etc/apt/sources.list \
 && apt-get update \
 && apt-get install -y --no-install-recommends greet=${VERSION} \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/* /var/cache/ldconfig
WORKDIR /src
COPY wheels/ wheels/
RUN python3 "$(echo wheels/pip-*.whl)/pip" install --no-compile --root-user-action=ignore --target $APP wheels/tinypkg-*.whl
COPY pyproject.toml *.md ./
RUN greet > $APP/greeting && echo "$VERSION" > $APP/version

FROM ${BASE}
LABEL org.opencontainers.image.title="an app"
ENV APP=/opt/app
ENV PYTHONPATH=$APP PATH=$APP/bin:$PATH PYTHONDONTWRITEBYTECODE=1
RUN groupadd --gid 1500 app && useradd --no-log-init --uid 1500 --gid app --create-home app \
 && install -d -o app -g app -m 2775 /data && rm -rf /etc/*- /var/log/*
WORKDIR /srv/app
COPY --from=build /opt/app $APP
COPY --from=build /usr/bin/greet /usr/local/bin/
COPY --chown=app:app src/ ./
COPY --chown=app config.json /etc/app/config.json
USER app
RUN greet && python3 -c "import tinypkg; print(tinypkg.answer)" > /data/answer && id -un >> /data/answer
WORKDIR /data
EXPOSE 8000
HEALTHCHECK --interval=30s CMD ["greet"]
ENTRYPOINT ["python3", "/srv/app/main.py"]
CMD ["--help"]
`

// A Dockerfile as people have them is built through the proxy, is found again whole in less
// than a second, and is what Docker makes of it.
func TestAUsersDockerfile(t *testing.T) {
	t.Parallel()
	mirror := newMirror(t)
	b := newBenchOn(t, mirror.outside())
	b.debian("python:3.11-slim")
	dir := contextOf(t, map[string]string{
		"Dockerfile": asUsers, ".dockerignore": ".git\n**/__pycache__\n*.md\n!README.md\nsecrets\n", ".git/HEAD": "x", "README.md": "read", "OTHER.md": "not",
		"src/main.py": "0755 import tinypkg\n", "src/pkg/__init__.py": "", "src/pkg/__pycache__/x.pyc": "x", "src/data.csv": "0640 1,2\n", "config.json": "{}", "pyproject.toml": "[project]\n",
		"secrets/key": "k", "wheels/tinypkg-1.0-py3-none-any.whl": string(wheel(t)),
	})
	copyPip(t, filepath.Join(dir, "wheels"))
	r := dockerfile.Recipe{
		Dir: dir, Name: "app", Args: map[string]string{"VERSION": "1.2"}, Network: dockerfile.Network{Allow: []string{"deb.test:80"}},
	}
	first, log := b.build(r)
	asked := mirror.count()
	if first.Hit || !first.Network || first.World.Recipe != "dockerfile, network deb.test:80" || asked == 0 {
		t.Errorf("hit %v, network %v, recipe %q, %d requests\n%s", first.Hit, first.Network, first.World.Recipe, asked, log)
	}
	if n := first.Steps[0].Network; n == nil || len(n.Seen) != 1 || n.Seen[0].Host != "deb.test" || n.Seen[0].Verdict != egress.Allowed {
		t.Errorf("the step asked for %+v, want deb.test alone", n)
	}
	again, log := b.build(r)
	t.Logf("first build %v, second %v", first.Took, again.Took)
	if !again.Hit || again.World.ID != first.World.ID || again.Took >= time.Second || mirror.count() != asked {
		t.Errorf("the second: hit %v in %v, world %s, want %s; %d requests\n%s", again.Hit, again.Took, again.World.ID, first.World.ID, mirror.count()-asked, log)
	}
	// Without the host the same RUN is another one, and fails with its name.
	r.Network.Allow = nil
	if err := b.refused(r); !strings.Contains(err.Error(), "deb.test:80: host_refused") {
		t.Errorf("without a network: %v", err)
	}
	docker, err := engine.Dial(t.Context(), need.StartEngine(t))
	must(t, err)
	t.Cleanup(func() { must(t, docker.Close()) })
	b.give(docker, "python:3.11-slim")
	theirs := b.take(docker, dir, engine.BuildSpec{Network: "host", Args: map[string]string{"VERSION": "1.2", "http_proxy": mirror.URL}})
	if diff := difference(b.files(theirs.ID), b.files(first.World.ID)); diff != "" {
		t.Errorf("the files differ:\n%s", diff)
	}
	if diff := cmp.Diff(theirs.Config, first.World.Config, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("config, - is Docker's:\n%s", diff)
	}
	if text := b.read(first.World.ID, "/data/answer"); text != "42\napp\n" {
		t.Errorf("/data/answer is %q", text)
	}
}

// The host's network is asked for by name, is another key, and is in the world's record.
func TestTheHostsNetworkIsSaid(t *testing.T) {
	t.Parallel()
	mirror := newMirror(t)
	b := newBenchOn(t, mirror.outside())
	r := dockerfile.Recipe{
		Text:    "FROM box\nRUN --network=none ! wget -q -O- http://deb.test/debian/Release\nRUN --network=host wget -q -O- http://deb.test/debian/Release > /r\n",
		Network: dockerfile.Network{Host: true},
	}
	res, _ := b.build(r)
	if !res.Network || res.World.Recipe != "dockerfile, network host" || !strings.Contains(b.read(res.World.ID, "/r"), "Origin: test") {
		t.Errorf("network %v, recipe %q", res.Network, res.World.Recipe)
	}
	if n := res.Steps[0].Network; n == nil || n.Seen[0].Verdict != egress.HostRefused {
		t.Errorf("without a network a step asked for %+v, want deb.test refused", n)
	}
	r.Text = strings.Replace(r.Text, "--network=host", "", 1)
	if again, _ := b.build(r); !again.Hit {
		t.Error("--network=host and the build's own network are two keys")
	}
	r.Network = dockerfile.Network{Allow: []string{"deb.test"}}
	if other, _ := b.build(r); other.Hit || !other.Steps[0].Hit || other.World.Recipe != "dockerfile, network deb.test:80,443" {
		t.Errorf("an allow list: hit %v, recipe %q", other.Hit, other.World.Recipe)
	}
}

// debian is the world of Debian with Python. It is kept as an image in the user's cache,
// since a build takes most of a minute and the network.
func (b *bench) debian(name string) {
	b.t.Helper()
	cache, err := os.UserCacheDir()
	must(b.t, err)
	kept := filepath.Join(cache, "paddock", "worlds", "debian-bookworm-python3.tar")
	store := image.Worlds{Store: b.store}
	if _, err := store.Import(b.t.Context(), overlay.Source{Path: kept}, name, nil); err == nil {
		return
	}
	need.Command(b.t, "mmdebstrap", "mmdebstrap")
	built, err := b.store.Build(b.t.Context(), overlay.Recipe{Debian: &overlay.Debian{Suite: "bookworm", Packages: []string{"python3"}}, Name: name}, nil)
	must(b.t, err)
	must(b.t, os.MkdirAll(filepath.Dir(kept), 0o755))
	f, err := os.CreateTemp(filepath.Dir(kept), ".new-*")
	must(b.t, err)
	must(b.t, errors.Join(store.Export(b.t.Context(), built.World.ID, f), f.Close(), os.Rename(f.Name(), kept)))
}

// copyPip puts this machine's pip, which is a wheel that runs as it is, into a directory.
func copyPip(t *testing.T, dir string) {
	t.Helper()
	found, err := filepath.Glob("/usr/share/python-wheels/pip-*.whl")
	if err != nil || len(found) == 0 {
		t.Fatalf("no pip in /usr/share/python-wheels (%v): install the package python3-pip-whl", err)
	}
	data, err := os.ReadFile(found[0])
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, filepath.Base(found[0])), data, 0o600))
}

// wheel is a small Python package.
func wheel(t *testing.T) []byte {
	t.Helper()
	var buf bytes.Buffer
	z := zip.NewWriter(&buf)
	const info = "tinypkg-1.0.dist-info/"
	for _, f := range [][2]string{
		{"tinypkg/__init__.py", "answer = 42\n"},
		{info + "METADATA", "Metadata-Version: 2.1\nName: tinypkg\nVersion: 1.0\n"},
		{info + "WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"},
		{info + "RECORD", "tinypkg/__init__.py,,\n" + info + "METADATA,,\n" + info + "WHEEL,,\n" + info + "RECORD,,\n"},
	} {
		w, err := z.Create(f[0])
		must(t, err)
		_, err = io.WriteString(w, f[1])
		must(t, err)
	}
	must(t, z.Close())
	return buf.Bytes()
}

// mirror is a repository of one Debian package, and a proxy that leads to it alone.
type mirror struct {
	*httptest.Server
	files map[string][]byte

	mu    sync.Mutex
	asked int
}

func newMirror(t *testing.T) *mirror {
	t.Helper()
	need.Command(t, "dpkg-deb", "dpkg")
	dir := t.TempDir()
	for name, text := range map[string]string{
		"DEBIAN/control": "Package: greet\nVersion: 1.2\nArchitecture: all\nMaintainer: nobody <nobody@deb.test>\nDescription: says hello\n",
		"usr/bin/greet":  "#!/bin/sh\necho hello\n",
	} {
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, "p", name)), 0o755))
		must(t, os.WriteFile(filepath.Join(dir, "p", name), []byte(text), 0o755)) //nolint:gosec // a program
	}
	deb := filepath.Join(dir, "greet.deb")
	if out, err := exec.CommandContext(t.Context(), "dpkg-deb", "--root-owner-group", "--build", filepath.Join(dir, "p"), deb).CombinedOutput(); err != nil {
		t.Fatalf("dpkg-deb: %v\n%s", err, out)
	}
	data, err := os.ReadFile(deb)
	must(t, err)
	packages := fmt.Appendf(nil, "Package: greet\nVersion: 1.2\nArchitecture: all\nMaintainer: nobody <nobody@deb.test>\nFilename: ./greet.deb\nSize: %d\nSHA256: %x\nDescription: says hello\n\n", len(data), sha256.Sum256(data))
	release := fmt.Appendf(nil, "Origin: test\nSuite: test\nDate: Thu, 01 Jan 2026 00:00:00 UTC\nSHA256:\n %x %d Packages\n", sha256.Sum256(packages), len(packages))
	m := &mirror{files: map[string][]byte{"/debian/greet.deb": data, "/debian/Packages": packages, "/debian/Release": release}}
	m.Server = httptest.NewServer(http.HandlerFunc(m.serve))
	t.Cleanup(m.Close)
	return m
}

func (m *mirror) serve(w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	m.asked++
	m.mu.Unlock()
	data, ok := m.files[strings.Replace(r.URL.Path, "/./", "/", 1)]
	if r.Host != "deb.test" || !ok {
		http.NotFound(w, r)
		return
	}
	_, _ = w.Write(data)
}

func (m *mirror) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.asked
}

// outside is a world in which deb.test is the mirror and nothing else is.
func (m *mirror) outside() *egress.Host { return &egress.Host{Resolver: m, Dialer: m, Own: nil} }

// LookupNetIP knows one name.
func (m *mirror) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	if strings.TrimSuffix(host, ".") != "deb.test" {
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	return []netip.Addr{netip.MustParseAddr("203.0.113.10")}, nil
}

// DialContext leads to the mirror.
func (m *mirror) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	if address != "203.0.113.10:80" {
		return nil, fmt.Errorf("dial %s: not in this world", address)
	}
	return (&net.Dialer{}).DialContext(ctx, network, m.Listener.Addr().String())
}
