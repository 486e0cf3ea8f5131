package image_test

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/paddock-run/paddock/internal/need"
	"github.com/paddock-run/paddock/overlay"
	"github.com/paddock-run/paddock/overlay/image"
)

func remote(r *need.Registry, name string) *overlay.Remote {
	return &overlay.Remote{Ref: r.Addr + "/" + name}
}

func noise(n int) string {
	b := make([]byte, n)
	rng := rand.NewChaCha8([32]byte{1})
	_, _ = rng.Read(b)
	return string(b)
}

// What goes to a registry comes back as the same world: by tag, by digest, and with the
// same layers, whatever they came as.
func TestAWorldGoesToARegistryAndComesBack(t *testing.T) {
	t.Parallel()
	r := need.StartRegistry(t)
	p := pictureOf(t, tarOf(t, dir("etc"), file("f", "text")), tarOf(t, file("g", "1"), file("g", "2")), tarOf(t))
	s := openStore(t)
	w, err := p.into(t, s)
	must(t, err)
	ref, err := s.Push(t.Context(), w.ID, *remote(r, "team/app:1"), nil)
	must(t, err)
	again, err := s.Push(t.Context(), w.ID, *remote(r, "team/app:2"), nil)
	if err != nil || again != ref || !strings.HasPrefix(ref, r.Addr+"/team/app@sha256:") {
		t.Errorf("pushed %s, again %s, %v", ref, again, err)
	}
	for _, from := range []overlay.Remote{*remote(r, "team/app:1"), {Ref: ref}} {
		other := openStore(t)
		got, err := other.Import(t.Context(), overlay.Source{Remote: &from}, "back", nil)
		if err != nil || got.ID != w.ID || !slices.Equal(got.Layers, p.diffs) {
			t.Fatalf("pulled %+v, %v, want %s", got, err, w.ID)
		}
		if text := see(t, other, "back", "cat f g"); text != "text2" {
			t.Errorf("the pulled world shows %q", text)
		}
		must(t, other.Verify(t.Context(), got.ID, nil))
		if left, err := os.ReadDir(other.Downloads()); err != nil || len(left) > 0 {
			t.Errorf("left of the download: %v, %v", left, err)
		}
	}
}

func TestAPullGoesOnAfterTheRegistryWasKilled(t *testing.T) {
	t.Parallel()
	r := need.StartRegistry(t)
	p := &picture{}
	big := tarOf(t, file("big", noise(64<<20)))
	p.layer(big, big, "application/vnd.oci.image.layer.v1.tar")
	s := openStore(t)
	w, err := p.into(t, s)
	must(t, err)
	_, err = s.Push(t.Context(), w.ID, *remote(r, "app:1"), nil)
	must(t, err)

	other := openStore(t)
	_, err = other.Import(t.Context(), overlay.Source{Remote: remote(r, "app:1")}, "", func(step string, done, _ int64) {
		if step == "pull" && done > 8<<20 {
			r.Kill()
		}
	})
	e, ok := errors.AsType[*overlay.RegistryError](err)
	if !ok || e.Kind != overlay.RegistryUnavailable || e.Kept < 8<<20 {
		t.Fatalf("pull from a killed registry: %v (%+v)", err, e)
	}
	if list, err := other.List(t.Context()); err != nil || len(list) > 0 {
		t.Errorf("a half pulled world is listed: %v, %v", list, err)
	}
	r.Start()
	first := int64(-1)
	got, err := other.Import(t.Context(), overlay.Source{Remote: remote(r, "app:1")}, "", func(step string, done, _ int64) {
		if step == "pull" && first < 0 {
			first = done
		}
	})
	if err != nil || got.ID != w.ID {
		t.Fatalf("the pull went on to %+v, %v", got, err)
	}
	r.Kill()
	if first != e.Kept || !strings.Contains(r.Log(), "http.response.status=206") {
		t.Errorf("the second pull began at byte %d, want %d, and asked for a range: %v", first, e.Kept, strings.Contains(r.Log(), "status=206"))
	}
}

// A registry behind a proxy that cuts every answer, ignores ranges, or lies.
func TestAPullOverABadLine(t *testing.T) {
	t.Parallel()
	r := need.StartRegistry(t)
	p := &picture{}
	big := tarOf(t, file("big", noise(1<<20)))
	p.layer(big, big, "application/vnd.oci.image.layer.v1.tar")
	s := openStore(t)
	w, err := p.into(t, s)
	must(t, err)
	_, err = s.Push(t.Context(), w.ID, *remote(r, "app:1"), nil)
	must(t, err)
	for name, c := range map[string]struct {
		edit func(w http.ResponseWriter, q *http.Request) http.ResponseWriter
		kind string
	}{
		"every answer is cut": {func(w http.ResponseWriter, _ *http.Request) http.ResponseWriter {
			return &cutting{ResponseWriter: w, left: 300_000}
		}, ""},
		"ranges are ignored": {func(w http.ResponseWriter, q *http.Request) http.ResponseWriter {
			q.Header.Del("Range")
			return &cutting{ResponseWriter: w, left: 2 << 20}
		}, ""},
		"nothing comes": {func(w http.ResponseWriter, _ *http.Request) http.ResponseWriter {
			return &cutting{ResponseWriter: w, left: 0}
		}, overlay.RegistryUnavailable},
		"other bytes": {func(w http.ResponseWriter, _ *http.Request) http.ResponseWriter { return &lying{w} }, "bad_archive"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: r.Addr})
			proxy.ErrorLog = nil
			front := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, q *http.Request) {
				defer func() {
					if e := recover(); e != nil {
						panic(http.ErrAbortHandler)
					}
				}()
				if strings.Contains(q.URL.Path, "/blobs/") && !strings.Contains(q.URL.Path, digestOf(p.configText())) {
					rw = c.edit(rw, q)
				}
				proxy.ServeHTTP(rw, q)
			}))
			defer front.Close()
			other := openStore(t)
			got, err := other.Import(t.Context(), overlay.Source{Remote: &overlay.Remote{Ref: strings.TrimPrefix(front.URL, "http://") + "/app:1"}}, "", nil)
			switch c.kind {
			case "":
				if err != nil || got.ID != w.ID {
					t.Errorf("pulled %+v, %v", got, err)
				}
			case "bad_archive":
				wantKind(t, err, c.kind)
			default:
				if e, ok := errors.AsType[*overlay.RegistryError](err); !ok || e.Kind != c.kind {
					t.Errorf("error %v, want %s", err, c.kind)
				}
			}
		})
	}
}

// cutting ends an answer's body after some bytes.
type cutting struct {
	http.ResponseWriter
	left int
}

func (c *cutting) Write(p []byte) (int, error) {
	if len(p) > c.left {
		_, _ = c.ResponseWriter.Write(p[:c.left])
		c.ResponseWriter.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}
	c.left -= len(p)
	return c.ResponseWriter.Write(p)
}

// lying gives other bytes than those asked for.
type lying struct{ http.ResponseWriter }

func (l *lying) Write(p []byte) (int, error) {
	return l.ResponseWriter.Write(bytes.Repeat([]byte("x"), len(p)))
}

func TestCredentialsComeFromTheDockerConfigAndAreNeeded(t *testing.T) {
	r := need.StartRegistry(t)
	s := openStore(t)
	w, err := pictureOf(t, tarOf(t, file("f", "x"))).into(t, s)
	must(t, err)
	_, err = s.Push(t.Context(), w.ID, *remote(r, "app:1"), nil)
	must(t, err)
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: r.Addr})
	guarded := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, q *http.Request) {
		if user, password, ok := q.BasicAuth(); !ok || user != "me" || password != "secret" {
			rw.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			rw.WriteHeader(http.StatusUnauthorized)
			return
		}
		proxy.ServeHTTP(rw, q)
	}))
	defer guarded.Close()
	host := strings.TrimPrefix(guarded.URL, "http://")
	pull := func(from overlay.Remote) error {
		from.Ref = host + "/app:1"
		_, err := openStore(t).Import(t.Context(), overlay.Source{Remote: &from}, "", nil)
		return err
	}
	denied := func(err error) {
		t.Helper()
		if e, ok := errors.AsType[*overlay.RegistryError](err); !ok || e.Kind != overlay.RegistryDenied {
			t.Errorf("error %v, want %s", err, overlay.RegistryDenied)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("the error tells the password: %v", err)
		}
	}
	denied(pull(overlay.Remote{}))
	denied(pull(overlay.Remote{Username: "me", Password: "not the secret"}))
	must(t, pull(overlay.Remote{Username: "me", Password: "secret"}))
	at := t.TempDir()
	t.Setenv("DOCKER_CONFIG", at)
	must(t, os.WriteFile(at+"/config.json", fmt.Appendf(nil, `{"auths":{%q:{"auth":%q}}}`, host, base64.StdEncoding.EncodeToString([]byte("me:secret"))), 0o600))
	must(t, pull(overlay.Remote{Config: true}))
	user, password, token, err := image.Credentials(host + "/app:1")
	if user != "me" || password != "secret" || token != "" || err != nil {
		t.Errorf("Credentials() = %q, %q, %q, %v", user, password, token, err)
	}
}

func TestWhatARegistryHasNot(t *testing.T) {
	t.Parallel()
	r := need.StartRegistry(t)
	s := openStore(t)
	for ref, kind := range map[string]string{
		r.Addr + "/none:1": overlay.RegistryNotFound, r.Addr + "/none@sha256:" + digestOf(nil): overlay.RegistryNotFound,
		"127.0.0.1:1/app:1": overlay.RegistryUnavailable,
	} {
		_, err := s.Import(t.Context(), overlay.Source{Remote: &overlay.Remote{Ref: ref}}, "", nil)
		if e, ok := errors.AsType[*overlay.RegistryError](err); !ok || e.Kind != kind {
			t.Errorf("pull of %s: %v, want %s", ref, err, kind)
		}
	}
	_, err := s.Import(t.Context(), overlay.Source{Remote: &overlay.Remote{Ref: "Not A Name"}}, "", nil)
	wantKind(t, err, "bad_recipe")
	nothingLeft(t, s)
}

func TestManyPullsOfOneImageDownloadItOnce(t *testing.T) {
	t.Parallel()
	r := need.StartRegistry(t)
	p := pictureOf(t, tarOf(t, file("f", noise(4<<20))))
	s := openStore(t)
	w, err := p.into(t, s)
	must(t, err)
	_, err = s.Push(t.Context(), w.ID, *remote(r, "app:1"), nil)
	must(t, err)
	other := openStore(t)
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			got, err := other.Import(t.Context(), overlay.Source{Remote: remote(r, "app:1")}, "", nil)
			if err != nil || got.ID != w.ID {
				t.Errorf("pulled %+v, %v", got, err)
			}
		})
	}
	wg.Wait()
	r.Kill()
	gets := 0
	for line := range strings.Lines(r.Log()) {
		if strings.Contains(line, "response completed") && strings.Contains(line, "http.request.method=GET") && strings.Contains(line, "/blobs/") && !strings.Contains(line, digestOf(p.configText())) {
			gets++
		}
	}
	if gets != 1 {
		t.Errorf("the layer was asked for %d times, want once", gets)
	}
}

// What a pull left is there for the next one, for a day.
func TestDownloadsThatNoPullCameBackForAreCollected(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	fresh, stale := filepath.Join(s.Downloads(), digestOf([]byte("fresh"))), filepath.Join(s.Downloads(), digestOf([]byte("stale")))
	for _, p := range []string{fresh, stale} {
		must(t, os.WriteFile(p, make([]byte, 1000), 0o600))
	}
	old := time.Now().Add(-25 * time.Hour)
	must(t, os.Chtimes(stale, old, old))
	for _, dry := range []bool{true, false} {
		got, err := s.Collect(t.Context(), overlay.Collection{DryRun: dry})
		if err != nil || got.FreedBytes != 1000 {
			t.Errorf("Collect, dry %v = %+v, %v, want 1000 bytes freed", dry, got, err)
		}
		if _, err := os.Stat(stale); (err == nil) != dry {
			t.Errorf("the stale download after a collection, dry %v: %v", dry, err)
		}
	}
	if _, err := os.Stat(fresh); err != nil {
		t.Errorf("the fresh download: %v", err)
	}
}
