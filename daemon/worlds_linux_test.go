package daemon

import (
	"bytes"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/paddock-run/paddock/api"
)

func TestBuildStreamsProgressThenTheWorld(t *testing.T) {
	t.Parallel()
	f := serve(t, nil)
	var steps []api.Progress
	built, err := f.client.BuildWorld(t.Context(), api.Recipe{Busybox: true}, func(p api.Progress) { steps = append(steps, p) })
	if err != nil || built.World.ID != theWorld.ID || len(steps) != 2 || steps[1] != (api.Progress{Step: "copy", Done: 2, Total: 2}) {
		t.Errorf("BuildWorld() = %+v, %v after %+v", built, err, steps)
	}
}

func TestBuildThatIsRefusedSaysSoBeforeAndAfterItBegan(t *testing.T) {
	t.Parallel()
	f := serve(t, nil)
	_, err := f.client.BuildWorld(t.Context(), api.Recipe{}, nil)
	if p := wantKind(t, err, api.BadRecipe); p.Status != http.StatusUnprocessableEntity || p.Field != "bad_recipe" {
		t.Errorf("before: %+v", p)
	}
	_, err = f.client.BuildWorld(t.Context(), api.Recipe{Busybox: true, Name: "bad"}, nil)
	if p := wantKind(t, err, api.BadArchive); !strings.Contains(p.Detail, "../x") {
		t.Errorf("after: %+v", p)
	}
	_, err = f.client.BuildWorld(t.Context(), api.Recipe{Busybox: true, Name: "broken"}, nil)
	if p := wantKind(t, err, api.BuildFailed); p.Status != http.StatusUnprocessableEntity || !strings.HasSuffix(p.Detail, "E: no mirror") || p.Hint == "" {
		t.Errorf("a tool that failed: %+v", p)
	}
}

func TestWorldIsBuiltFromWhatTheClientSends(t *testing.T) {
	t.Parallel()
	spool := t.TempDir()
	f := serve(t, func(c *Config) { c.Spool = spool })
	built, err := f.client.BuildWorldFrom(t.Context(), api.Recipe{Name: "w\u00fc"}, strings.NewReader("the tar"), nil)
	if err != nil || built.World.Recipe != "the tar" {
		t.Errorf("BuildWorldFrom() = %+v, %v", built, err)
	}
	if left, err := os.ReadDir(spool); err != nil || len(left) > 0 {
		t.Errorf("left of the upload: %v, %v", left, err)
	}
	_, err = f.client.BuildWorldFrom(t.Context(), api.Recipe{Dir: "/etc"}, strings.NewReader("the tar"), nil)
	wantKind(t, err, api.BadRequest)
}

// The daemon reads as root, so a member of its group who names a path of the host would
// read any file.
func TestPathsOfTheHostAreForRootAlone(t *testing.T) {
	t.Parallel()
	f := serve(t, nil)
	for _, recipe := range []string{`{"dir":"/etc"}`, `{"tar":"/etc/shadow"}`} {
		q := &request{Request: newRequest(t, recipe), peer: peer{uid: 1000}, route: &route{maxBody: smallBody}}
		_, _, err := f.readRecipe(q)
		if p := wantKind(t, err, api.PermissionDenied); p.Hint == "" {
			t.Errorf("%s: %+v", recipe, p)
		}
	}
}

func TestImagesComeInAndGoOut(t *testing.T) {
	t.Parallel()
	f := serve(t, nil)
	w, err := f.client.ImportWorld(t.Context(), api.ImportSpec{Name: "n"}, strings.NewReader("an image"), nil)
	if err != nil || w.ID != theWorld.ID {
		t.Errorf("ImportWorld() = %+v, %v", w, err)
	}
	var out bytes.Buffer
	if err := f.client.ExportWorld(t.Context(), world, &out); err != nil || out.String() != "an image" {
		t.Errorf("ExportWorld() = %q, %v", out.String(), err)
	}
	wantKind(t, f.client.ExportWorld(t.Context(), "atlantis", &out), api.UnknownWorld)
	wantKind(t, f.client.RemoveWorld(t.Context(), "atlantis"), api.UnknownWorld)
}

func TestWorldsGoToARegistry(t *testing.T) {
	t.Parallel()
	f := serve(t, nil)
	pushed, err := f.client.PushWorld(t.Context(), world, api.Registry{Ref: "host/app:1", Username: "me"}, nil)
	if err != nil || pushed != "host/app:1 by me" {
		t.Errorf("PushWorld() = %q, %v", pushed, err)
	}
	_, err = f.client.PushWorld(t.Context(), world, api.Registry{Ref: "down/app:1"}, nil)
	if p := wantKind(t, err, api.RegistryDown); p.Status != http.StatusBadGateway || p.Hint == "" || p.Field != "/registry/ref" {
		t.Errorf("an unreachable registry: %+v", p)
	}
	if _, err := f.client.ImportWorldFrom(t.Context(), api.ImportSpec{Registry: &api.Registry{Ref: "host/app:1"}}, nil); err != nil {
		t.Errorf("ImportWorldFrom() = %v", err)
	}
}

// A client of another host must not use the daemon's place in its network, nor its files.
func TestARemoteClientNamesNoRegistryAndNoPath(t *testing.T) {
	t.Parallel()
	for _, spec := range []string{`{"registry":{"ref":"host/app:1"}}`, `{"path":"/etc/shadow"}`} {
		q := &request{Request: newRequest(t, spec), peer: peer{remote: "192.0.2.1:1"}, route: &route{maxBody: smallBody}}
		_, _, err := readImport(q)
		if p := wantKind(t, err, api.PermissionDenied); p.Hint == "" {
			t.Errorf("%s: %+v", spec, p)
		}
	}
	q := &request{Request: newRequest(t, `{"path":"etc"}`), peer: peer{uid: 0}, route: &route{maxBody: smallBody}}
	_, _, err := readImport(q)
	wantKind(t, err, api.BadRequest)
}

func TestWorldsAreNamedAndCollected(t *testing.T) {
	t.Parallel()
	f := serve(t, nil)
	w, err := f.client.NameWorld(t.Context(), "python:3.12-slim", world)
	if err != nil || len(w.Names) != 1 || w.Names[0] != "python:3.12-slim" {
		t.Errorf("NameWorld() = %+v, %v", w, err)
	}
	_, err = f.client.NameWorld(t.Context(), "x", "atlantis")
	wantKind(t, err, api.UnknownWorld)
	done, err := f.client.CollectWorlds(t.Context(), api.Collection{MaxBytes: 5})
	if err != nil || len(done.Removed) != 1 || done.FreedBytes != 5 {
		t.Errorf("CollectWorlds() = %+v, %v", done, err)
	}
	_, err = f.client.CollectWorlds(t.Context(), api.Collection{MaxBytes: -1})
	wantKind(t, err, api.BadRequest)
}
