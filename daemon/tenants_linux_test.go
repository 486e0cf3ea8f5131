package daemon

import (
	"net/url"
	"strings"
	"testing"

	"github.com/paddock-run/paddock/api"
	"github.com/paddock-run/paddock/internal/need"
)

// Every route that names an episode or a batch answers one tenant about another's as it
// answers about what was never there, and does nothing.
func TestOneTenantReachesNothingOfAnother(t *testing.T) {
	t.Parallel()
	s := newSecrets(t)
	f := serveEpisodes(t, func(c *Config) { c.Remote = s.options() })
	alice := s.client(t, f, aliceToken)
	made, err := alice.Create(t.Context(), api.EpisodeSpec{ID: "secret/1", World: world})
	if err != nil {
		t.Fatal(err)
	}
	batch, err := alice.CreateBatch(t.Context(), api.BatchSpec{ID: "b", Episodes: []api.BatchEpisode{{
		EpisodeSpec: api.EpisodeSpec{ID: "in-batch", World: world}, Agent: api.AgentSpec{Command: &api.CallSpec{Tool: "exec", Argv: []string{"true"}}},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	graders := `{"graders":[{"grader":"` + f.grader(t, verdict()) + `"}]}`
	bodies := map[string]string{
		"call": `{"tool":"exec","argv":["true"]}`, "finishEpisode": `{"answer":1}`, "scoreEpisode": graders, "scoreBatch": graders,
		"writeReward": `{"name":"me","reward":1}`, "abortEpisode": `{}`, "cancelBatch": `{}`, "forkEpisode": `{"ids":["f"]}`, "cancelCall": `{"seq":1}`,
	}
	asked := 0
	for _, r := range routes() {
		if !strings.Contains(r.Path, "{id}") && !strings.Contains(r.Path, "{batch}") {
			continue
		}
		asked++
		ask := func(run, id, batch string) (int, api.Kind) {
			path := strings.NewReplacer("{run}", run, "{id}", url.PathEscape(id), "{batch}", batch).Replace(r.Path)
			headers := []string{"Authorization: Bearer " + bobToken}
			if r.ID == "upload" {
				headers = append(headers, "Content-Type: "+api.MediaTar)
			}
			if strings.Contains(r.Path, "archive") {
				path += "?path=/tmp"
			}
			status, kind, _ := s.ask(t, f, r.Method, path, bodies[r.ID], headers...)
			return status, kind
		}
		status, kind := ask(made.Episode.Run, made.Episode.ID, batch.ID)
		never, neverKind := ask(made.Episode.Run, "never", "never")
		if status != never || kind != neverKind || kind != api.NotFound {
			t.Errorf("%s of another's: %d %s, of what never was: %d %s; want not_found twice (bodies has one that is good for each route)", r.ID, status, kind, never, neverKind)
		}
	}
	if asked < 15 {
		t.Errorf("only %d routes were asked", asked)
	}
	bob := s.client(t, f, bobToken)
	if page, err := bob.Episodes(t.Context(), api.ListOptions{Run: made.Episode.Run}); err != nil || len(page.Episodes) != 0 {
		t.Errorf("bob lists %+v, %v", page, err)
	}
	if all, err := bob.Batches(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("bob lists batches %+v, %v", all, err)
	}
	if status, _, _ := s.ask(t, f, "POST", "/v1/runs/default/cancel", `{"prefix":"secret"}`, "Authorization: Bearer "+bobToken); status != 200 {
		t.Errorf("bob cancels his own: %d", status)
	}
	if r, err := alice.Call(t.Context(), made.Episode.Key(), api.CallSpec{Tool: "exec", Argv: []string{"echo", "here"}}); err != nil || r.Stdout != "here\n" {
		t.Errorf("alice's episode after all of that: %+v, %v", r, err)
	}
}

// Local users are tenants of their own unless the operator gives some one name.
func TestLocalUsersAreTenants(t *testing.T) {
	t.Parallel()
	need.Root(t)
	g := newGate(54321)
	g.tenants = map[uint32]string{1000: "team", 1001: "team"}
	for uid, want := range map[uint32]string{0: "0", 1000: "team", 1001: "team", 1002: "1002"} {
		if got := g.tenant(uid); got != want {
			t.Errorf("tenant(%d) = %q, want %q", uid, got, want)
		}
	}
	f := serve(t, func(c *Config) {
		c.Socket.Group = "54321"
		c.Tenants = map[uint32]string{12345: "team", 12346: "team"}
	})
	f.open(t)
	for uid, want := range map[uint32]string{12345: "team", 12346: "team", 12347: "12347"} {
		if a := askAs(t, f.socket, uid, 54321); a.Problem != nil || a.Owner != want {
			t.Errorf("uid %d drives the runs of %q (%+v), want %q", uid, a.Owner, a.Problem, want)
		}
	}
}

// Problems hold answers and tests: one tenant's are none of another's.
func TestDatasetsAreEachTenantsOwn(t *testing.T) {
	t.Parallel()
	f, s := serveRemote(t)
	ask := func(token, method, path, body string) (int, api.Kind) {
		status, kind, _ := s.ask(t, f, method, path, body, "Authorization: Bearer "+token, "Content-Type: "+api.MediaBytes)
		return status, kind
	}
	const set = "{\"id\":\"p\",\"prompt\":\"6*7\",\"answer\":\"42\"}\n"
	if status, kind := ask(aliceToken, "POST", "/v1/datasets?name=sums&id=id&prompt=prompt&answer=answer", set); status != 200 {
		t.Fatalf("alice's data set: %d %s", status, kind)
	}
	for _, r := range [][2]string{{"GET", "/v1/datasets/sums"}, {"GET", "/v1/datasets/sums/sample?iteration=0&n=1"}, {"DELETE", "/v1/datasets/sums"}} {
		if status, kind := ask(bobToken, r[0], r[1], ""); kind != api.UnknownDataset {
			t.Errorf("bob: %s %s of alice's: %d %q, want unknown_dataset", r[0], r[1], status, kind)
		}
	}
	if status, kind := ask(aliceToken, "GET", "/v1/datasets/sums", ""); status != 200 {
		t.Errorf("alice's after all of that: %d %q", status, kind)
	}
}
