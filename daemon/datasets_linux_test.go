package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/paddock-run/paddock/api"
)

func TestDatasetsOverTheSocket(t *testing.T) {
	t.Parallel()
	f := serveEpisodes(t)
	var file strings.Builder
	for i := range 20 {
		fmt.Fprintf(&file, `{"id":"p%d","question":"%d+%d","answer":%d,"tests":{"language":"sh","code":"{{completion}}\nadd %d %d","cases":[{"stdout":"%d"}]}}`+"\n", i, i, i, 2*i, i, i, 2*i)
	}
	put, err := f.client.PutDataset(t.Context(), api.PutDataset{Name: "sums", Prompt: "question"}, strings.NewReader(file.String()))
	if err != nil {
		t.Fatal(err)
	}
	if put.Problems != 20 || !slices.Equal(put.Names, []string{"sums"}) || !strings.HasPrefix(put.Digest, "sha256:") {
		t.Errorf("put %+v", put)
	}
	if list, err := f.client.Datasets(t.Context()); err != nil || len(list) != 1 || list[0].Digest != put.Digest {
		t.Errorf("list %+v, %v", list, err)
	}
	seen := map[string]int{}
	for i := range int64(4) {
		s, err := f.client.Sample(t.Context(), "sums", api.SampleSpec{Iteration: i, N: 5, Seed: 3})
		if err != nil {
			t.Fatal(err)
		}
		again, err := f.client.Sample(t.Context(), put.Digest, api.SampleSpec{Iteration: i, N: 5, Seed: 3})
		if err != nil || again.Problems[0].ID != s.Problems[0].ID || s.Epoch != 0 || s.Position != int(i)*5 {
			t.Errorf("sample %+v, again %+v, %v", s, again, err)
		}
		for _, p := range s.Problems {
			seen[p.ID]++
		}
	}
	if len(seen) != 20 {
		t.Errorf("an epoch has %d of 20 problems", len(seen))
	}
	spec := api.ScoreItems{Dataset: "sums", Rule: "number", Items: []api.ScoreItem{
		{ID: "p3", Completion: "so 3+3 = \\boxed{6}"}, {ID: "p4", Completion: "it is 9"}, {ID: "p4", Completion: "it is 9", Answer: json.RawMessage("9")},
	}}
	for _, done := range []func(api.ItemScore){nil, func(api.ItemScore) {}} {
		scores, err := f.client.ScoreItems(t.Context(), spec, done)
		if err != nil || len(scores) != 3 || *scores[0].Score != 1 || *scores[1].Score != 0 || *scores[2].Score != 1 || scores[1].Extracted != "9" {
			t.Errorf("scores %+v, %v", scores, err)
		}
	}
	code := api.ScoreItems{Dataset: "sums", Rule: "code", Items: []api.ScoreItem{
		{ID: "p5", Completion: "```sh\nadd() { echo $(($1+$2)); }\n```"}, {ID: "p6", Completion: "```sh\nadd() { echo 1; }\n```"},
	}}
	for _, cached := range []bool{false, true} {
		scores, err := f.client.ScoreItems(t.Context(), code, nil)
		if err != nil || *scores[0].Score != 1 || *scores[1].Score != 0 || scores[0].Cached != cached || !strings.Contains(scores[1].Detail, "wrong: 0 of 1") {
			t.Errorf("code, cached %v: %+v, %v", cached, scores, err)
		}
	}
	if err := f.client.RemoveDataset(t.Context(), "sums"); err != nil {
		t.Fatal(err)
	}
	if _, err := f.client.Dataset(t.Context(), "sums"); !errors.Is(err, &api.Error{Kind: api.UnknownDataset}) {
		t.Errorf("a removed one: %v", err)
	}
}

func TestDatasetsRefuseByField(t *testing.T) {
	t.Parallel()
	f := serve(t, nil)
	for _, tt := range []struct {
		method, path, media, body, field string
		kind                             api.Kind
	}{
		{http.MethodPost, "/v1/datasets", api.MediaBytes, "{", "/body", api.BadRequest},
		{http.MethodPost, "/v1/datasets?format=xml", api.MediaBytes, "{}", "/format", api.BadRequest},
		{http.MethodPost, "/v1/datasets?name=a%2Fb", api.MediaBytes, "{}", "/name", api.BadRequest},
		{http.MethodGet, "/v1/datasets/none", "", "", "/dataset", api.UnknownDataset},
		{http.MethodGet, "/v1/datasets/none/sample?n=0", "", "", "n", api.BadRequest},
		{http.MethodPost, "/v1/scores", api.MediaJSON, `{"rule":"number","items":[{"completion":"1"}]}`, "/items/0/answer", api.BadRequest},
		{http.MethodPost, "/v1/scores", api.MediaJSON, `{"rule":"code","items":[{"completion":"1","tests":{"lang":""}}]}`, "/items/0/tests/lang", api.BadRequest},
		{http.MethodPost, "/v1/scores", api.MediaJSON, `{"rule":"exact","extract":[{"kind":"x"}],"items":[{"completion":"1","answer":1}]}`, "/extract/0/kind", api.BadRequest},
	} {
		resp, body := f.raw(t, tt.method, tt.path, tt.media, tt.body)
		if p := problemOf(t, resp, body); p.Kind != tt.kind || p.Field != tt.field {
			t.Errorf("%s %s: %s at %q (%s), want %s at %q", tt.path, tt.body, p.Kind, p.Field, p.Detail, tt.kind, tt.field)
		}
	}
}
