package daemon

import (
	"errors"
	"net/http"
	"slices"
	"testing"

	"github.com/paddock-run/paddock/api"
)

func TestJudgeOverTheSocket(t *testing.T) {
	t.Parallel()
	f := serveEpisodes(t)
	text := func(s string) *string { return &s }
	spec := api.JudgeSpec{
		Language: "shell", Code: "read x; echo $((x*2)); [ ! -e data ] || cat data", Stdin: "4\n",
		Cases: []api.JudgeCase{
			{Name: "own stdin", Stdin: text("21\n"), Stdout: text("42")},
			{Name: "the spec's", Stdout: text("8")},
			{Name: "wrong", Stdout: text("9")},
			{Name: "bytes", StdinB64: []byte("1\n"), StdoutB64: []byte("2\n\xff"), Files: map[string]api.JudgeFile{"data": {B64: []byte("\xff")}}},
			{Name: "exit code", Args: []string{}, Stdin: text("x y\n"), Limits: api.JudgeLimits{WallS: 20}},
		},
	}
	res, err := f.client.Judge(t.Context(), spec, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"ok", "ok", "wrong", "ok", "runtime_error"}
	for i, c := range res.Cases {
		if c.Verdict != want[i] || c.Passed == nil || *c.Passed != (want[i] == "ok") || c.Index != i || c.Name != spec.Cases[i].Name {
			t.Errorf("case %d: %+v, run %+v, want %s", i, c, c.Run, want[i])
		}
	}
	if res.Language != "sh" || res.World != theWorld.ID || res.Verdict != "wrong" || res.Passed != 3 || res.Score == nil || *res.Score != 0.6 {
		t.Errorf("result %+v, want the verdict of the first that did not pass, and 3 of 5", res)
	}
	if l := res.Cases[4].Run.Limits; l.CPUS != 10 || l.WallS != 20 || l.Memory != 512<<20 || l.Pids != 128 {
		t.Errorf("limits %+v, want the effective ones told", l)
	}
	var told []int
	streamed, err := f.client.Judge(t.Context(), spec, func(c api.JudgeCaseResult) { told = append(told, c.Index) })
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(told)
	if !slices.Equal(told, []int{0, 1, 2, 3, 4}) || streamed.Passed != res.Passed || streamed.Cases[2].Verdict != "wrong" {
		t.Errorf("streamed %v, result %+v", told, streamed)
	}
}

func TestJudgeRefusesByField(t *testing.T) {
	t.Parallel()
	f := serveEpisodes(t)
	for _, tt := range []struct {
		name, body, field string
		kind              api.Kind
	}{
		{"unknown field", `{"language":"sh","cases":[{}],"codes":""}`, "/codes", api.UnknownField},
		{"no case", `{"language":"sh"}`, "/cases", api.BadRequest},
		{"two streams", `{"language":"sh","cases":[{},{"stdin":"","stdin_b64":""}]}`, "/cases/1", api.BadRequest},
		{"two contents", `{"language":"sh","cases":[{"files":{"a":{"text":"x","b64":"eA=="}}}]}`, "/cases/0/files", api.BadRequest},
		{"limit", `{"language":"sh","cases":[{"limits":{"pids":1}}]}`, "/cases/0/limits/pids", api.BadRequest},
		{"world", `{"language":"sh","world":"none","cases":[{}]}`, "/world", api.UnknownWorld},
		{"tool", `{"language":"ruby","cases":[{}]}`, "/language", api.NoTool},
	} {
		resp, body := f.raw(t, http.MethodPost, "/v1/judge", api.MediaJSON, tt.body)
		if p := problemOf(t, resp, body); p.Kind != tt.kind || p.Field != tt.field {
			t.Errorf("%s: %s at %q (%s), want %s at %q", tt.name, p.Kind, p.Field, p.Detail, tt.kind, tt.field)
		}
	}
	_, err := f.client.Judge(t.Context(), api.JudgeSpec{Language: "ruby", Cases: []api.JudgeCase{{}}}, func(api.JudgeCaseResult) {})
	if !errors.Is(err, &api.Error{Kind: api.NoTool}) {
		t.Errorf("streamed: %v, want the refusal as an answer of its own", err)
	}
}

func TestLanguagesAreListed(t *testing.T) {
	t.Parallel()
	f := serve(t, nil)
	all, err := f.client.Languages(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(all, func(l api.Language) bool { return l.Name == "python" })
	if i < 0 || !slices.Equal(all[i].Cases, []string{"stdout", "call", "assert", "test"}) || !slices.Equal(all[i].Packages, []string{"python3"}) {
		t.Errorf("languages %+v, want python with all kinds of cases", all)
	}
}
