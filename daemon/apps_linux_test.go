package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/paddock-run/paddock/api"
)

// webApp serves what it is told about a request, by CGI.
func webApp(name string, change ...func(*api.AppSpec)) api.AppSpec {
	s := api.AppSpec{
		Name: name, World: world, Port: 8000, Sessions: "none",
		Command: []string{"sh", "-c", `mkdir -p /tmp/w/cgi-bin; echo hello >/tmp/w/index.html
printf '#!/bin/sh\necho; env; cat\n' >/tmp/w/cgi-bin/env; chmod +x /tmp/w/cgi-bin/env
echo begins; exec httpd -f -p 127.0.0.1:$PORT -h /tmp/w`},
	}
	for _, c := range change {
		c(&s)
	}
	return s
}

// problem asks for what is refused.
func (f *front) problem(tb testing.TB, path string, headers ...string) (int, api.Error) {
	tb.Helper()
	a, body := f.raw(tb, "GET", path, "", "", headers...)
	var p api.Error
	if err := json.Unmarshal(body, &p); err != nil || string(p.Kind) != a.Header.Get(api.HeaderError) {
		tb.Errorf("%s is answered by %d %s with %v", path, a.StatusCode, body, a.Header)
	}
	return a.StatusCode, p
}

func TestAnAppOverTheSocket(t *testing.T) {
	t.Parallel()
	f := serveEpisodes(t)
	ctx := t.Context()
	made, err := f.client.DeployApp(ctx, webApp("web"))
	if err != nil || made.URL != "/apps/web/" || made.Spec.StartS != 60 || made.Spec.World != theWorld.ID {
		t.Fatalf("DeployApp() = %+v, %v", made, err)
	}
	if a, body := f.raw(t, "GET", "/apps/web/", "", ""); a.StatusCode != http.StatusOK || string(body) != "hello\n" {
		t.Errorf("GET / = %d %q", a.StatusCode, body)
	}
	a, body := f.raw(t, "POST", "/apps/web/cgi-bin/env?a=1;b=%2f", "text/plain", "the body")
	for _, want := range []string{"REQUEST_METHOD=POST", "QUERY_STRING=a=1;b=%2f", "CONTENT_TYPE=text/plain", "\nthe body"} {
		if !strings.Contains("\n"+string(body), want) {
			t.Errorf("the app was not told %q: %d %s", want, a.StatusCode, body)
		}
	}
	if a, _ := f.raw(t, "GET", "/apps/web/none", "", ""); a.StatusCode != http.StatusNotFound || a.Header.Get(api.HeaderError) != "" {
		t.Errorf("a 404 of the app's own = %+v", a)
	}
	if a, p := f.problem(t, "/apps/none/"); a != 404 || p.Kind != api.UnknownApp {
		t.Errorf("no such app = %d %+v", a, p)
	}
	if _, err := f.client.DeployApp(ctx, webApp("web", func(s *api.AppSpec) { s.Port = 1 })); !errors.Is(err, &api.Error{Kind: api.SpecConflict}) {
		t.Errorf("another spec: %v", err)
	}
	if _, err := f.client.UpdateApp(ctx, "web", webApp("other")); !errors.Is(err, &api.Error{Kind: api.BadRequest}) {
		t.Errorf("another name: %v", err)
	}
	if one, err := f.client.ScaleApp(ctx, "web", api.AppScale{Min: 2}); err != nil || one.Wanted != 2 {
		t.Errorf("ScaleApp() = %+v, %v", one, err)
	}
	if all, err := f.client.Apps(ctx); err != nil || len(all) != 1 || all[0].Name != "web" {
		t.Errorf("Apps() = %+v, %v", all, err)
	}
	var lines []string
	stop := errors.New("enough")
	err = f.client.AppLogs(ctx, "web", "", 0, true, func(l api.AppLine) error {
		if lines = append(lines, l.Stream+" "+l.Text); slices.Contains(lines, "stdout begins") {
			return stop
		}
		return nil
	})
	if !errors.Is(err, stop) {
		t.Errorf("AppLogs() = %v, %q", err, lines)
	}
	if _, err := f.client.BeginAppSession(ctx, "web"); !errors.Is(err, &api.Error{Kind: api.BadRequest}) {
		t.Errorf("a session of an app without any: %v", err)
	}
	if err := f.client.RemoveApp(ctx, "web"); err != nil {
		t.Fatal(err)
	}
	if _, err := f.client.App(ctx, "web"); !errors.Is(err, &api.Error{Kind: api.UnknownApp}) {
		t.Errorf("after its end: %v", err)
	}
}

func TestSessionsOverTheSocket(t *testing.T) {
	t.Parallel()
	f := serveEpisodes(t)
	ctx := t.Context()
	if _, err := f.client.DeployApp(ctx, webApp("web", func(s *api.AppSpec) { s.Sessions = ""; s.Scale.Min = 2 })); err != nil {
		t.Fatal(err)
	}
	one, err := f.client.BeginAppSession(ctx, "web")
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		a, _ := f.raw(t, "GET", "/apps/web/", "", "", api.HeaderSession+": "+one.Session)
		if a.Header.Get(api.HeaderReplica) != one.Replica || a.Header.Get(api.HeaderSession) != one.Session {
			t.Errorf("session %+v is answered by %v", one, a.Header)
		}
	}
	if err := f.client.EndAppSession(ctx, "web", one.Session); err != nil {
		t.Fatal(err)
	}
	status, p := f.problem(t, "/apps/web/", api.HeaderSession+": "+one.Session)
	if status != http.StatusGone || p.Kind != api.SessionLost || p.Hint == "" {
		t.Errorf("after its end = %d %+v", status, p)
	}
	a, _ := f.raw(t, "GET", "/apps/web/", "", "", "Cookie: "+api.CookieSession+"="+one.Session)
	if a.StatusCode != http.StatusGone || !strings.Contains(a.Header.Get("Set-Cookie"), "Max-Age=0") {
		t.Errorf("a cookie of a lost session = %d %v, want it taken back", a.StatusCode, a.Header)
	}
	if status, p := f.problem(t, "/apps/web/", api.HeaderSession+": a b"); status != 400 || p.Kind != api.BadRequest {
		t.Errorf("a malformed session = %d %+v", status, p)
	}
}

// A token of the daemon's is the daemon's: no app gets it. One tenant's apps are no other's.
func TestAppsOfTenants(t *testing.T) {
	t.Parallel()
	s := newSecrets(t)
	f := serveEpisodes(t, func(c *Config) { c.Remote = s.options() })
	alice := s.client(t, f, aliceToken)
	tells := webApp("web", func(s *api.AppSpec) {
		s.Command = []string{"sh", "-c", `cat >/tmp/told <<'END'
told=nothing
while read -r line && [ "${#line}" -gt 1 ]; do
  case $line in Authorization:*) told=${line%?} ;; esac
done
printf 'HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\nX-Told: %s\r\n\r\n{}' "$told"
END
chmod +x /tmp/told; printf '#!/bin/sh\nexec sh /tmp/told\n' >/tmp/run; chmod +x /tmp/run; exec nc -ll -p $PORT -e /tmp/run`}
	})
	if _, err := alice.DeployApp(t.Context(), tells); err != nil {
		t.Fatal(err)
	}
	if _, err := f.client.DeployApp(t.Context(), tells); err != nil { // root's app of the same name
		t.Fatal(err)
	}
	ask := func(token, method, path, body string) (int, api.Kind, string) {
		status, kind, h := s.ask(t, f, method, path, body, "Authorization: Bearer "+token)
		return status, kind, h.Get("X-Told")
	}
	if status, kind, told := ask(aliceToken, "GET", "/apps/web/", ""); status != 200 || told != "nothing" {
		t.Errorf("alice's app = %d %s and was told %q", status, kind, told)
	}
	a, _ := f.raw(t, "GET", "/apps/web/", "", "", "Authorization: Basic mine")
	if told := a.Header.Get("X-Told"); told != "Authorization: Basic mine" {
		t.Errorf("over the unix socket, where tokens mean nothing, root's app was told %q", told)
	}
	asked := 0
	for _, r := range routes() {
		if !strings.Contains(r.Path, "{app}") {
			continue
		}
		asked++
		path := strings.NewReplacer("{app}", "web", "{path}", "", "{session}", "s").Replace(r.Path)
		in := ""
		if r.ID == "updateApp" {
			in = fmt.Sprintf(`{"world":%q,"port":1,"command":["true"]}`, world)
		}
		if status, kind, _ := ask(bobToken, r.Method, path, in); kind != api.UnknownApp {
			t.Errorf("%s by bob of alice's app: %d %s, want unknown_app", r.ID, status, kind)
		}
	}
	if asked < 10 {
		t.Errorf("only %d routes were asked", asked)
	}
	one, err := alice.App(t.Context(), "web")
	if err != nil || one.Revision != 1 || time.Since(one.Created) > time.Hour {
		t.Errorf("alice's app after all of that: %+v, %v", one, err)
	}
}

// An episode reaches an app through an endpoint, under a policy without a network, always in
// the session that is its own.
func TestAnEpisodeReachesAnAppThroughAnEndpoint(t *testing.T) {
	t.Parallel()
	f := serveEpisodes(t)
	ctx := t.Context()
	counts := webApp("shop", func(s *api.AppSpec) {
		s.Sessions, s.Scale.Min = "sticky", 2
		s.Command[2] = strings.Replace(s.Command[2], "echo; env; cat", "echo; echo x >>/tmp/$HTTP_PADDOCK_SESSION; wc -l </tmp/$HTTP_PADDOCK_SESSION", 1)
	})
	if _, err := f.client.DeployApp(ctx, counts); err != nil {
		t.Fatal(err)
	}
	make := func(id, target string) (api.Created, error) {
		return f.client.Create(ctx, api.EpisodeSpec{ID: id, World: world, Endpoints: map[string]api.EndpointSpec{"shop": {Target: target}}})
	}
	for _, id := range []string{"one", "two"} {
		made, err := make(id, "app:shop")
		if err != nil {
			t.Fatal(err)
		}
		for n := 1; n <= 3; n++ {
			r, err := f.client.Call(ctx, made.Episode.Key(), api.CallSpec{
				Tool: "exec", Shell: `wget -q -O - --header "Paddock-Session: of-another" $PADDOCK_ENDPOINT_SHOP/cgi-bin/env`,
			})
			if err != nil || strings.TrimSpace(r.Stdout) != fmt.Sprint(n) {
				t.Errorf("%s, call %d = %+v, %v", id, n, r, err)
			}
		}
		one, err := f.client.Finish(ctx, made.Episode.Key(), api.FinishSpec{})
		if err != nil || one.Attempts[0].Exchanges == nil || one.Attempts[0].Exchanges.Count != 3 {
			t.Errorf("%s ended as %+v, %v", id, one, err)
		}
	}
	if a, err := f.client.App(ctx, "shop"); err != nil || a.Sessions != 0 {
		t.Errorf("%d sessions are open after the episodes' ends (%v)", a.Sessions, err)
	}
	if _, err := make("three", "app:none"); !errors.Is(err, &api.Error{Kind: api.UnknownApp}) {
		t.Errorf("an app that is not there: %v", err)
	}
	if _, err := make("four", "app:No/Name"); !errors.Is(err, &api.Error{Kind: api.BadRequest}) {
		t.Errorf("a name that is none: %v", err)
	}
	if _, err := f.client.DeployApp(ctx, webApp("down", func(s *api.AppSpec) { s.Command = []string{"false"} })); err != nil {
		t.Fatal(err)
	}
	made, err := make("five", "app:down")
	if err != nil {
		t.Fatal(err)
	}
	end := made.Episode.Attempts[0].End
	if end == nil || end.Status != "error" || end.Cause != "world" || end.Step != "setup" || made.Episode.Reward != nil {
		t.Errorf("an episode whose app is down ended as %+v", end)
	}
}
