package bench

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/paddock-run/paddock/api"
)

func TestVerdictOfTakesJudgementsOfThisRequestAlone(t *testing.T) {
	t.Parallel()
	yes, no, run := true, false, &api.JudgeStage{}
	one := func(c api.JudgeCaseResult) api.JudgeResult { return api.JudgeResult{Cases: []api.JudgeCaseResult{c}} }
	for _, test := range []struct {
		name   string
		result api.JudgeResult
		passed bool
		ok     bool
	}{
		{"passed", one(api.JudgeCaseResult{Passed: &yes, Run: run}), true, true},
		{"did not", one(api.JudgeCaseResult{Passed: &no, Run: run}), false, true},
		{"platform", one(api.JudgeCaseResult{Run: run}), false, false},
		{"not run", one(api.JudgeCaseResult{Passed: &no}), false, false},
		{"compiled before", api.JudgeResult{Kept: true, Cases: one(api.JudgeCaseResult{Passed: &yes, Run: run}).Cases}, false, false},
		{"no case", api.JudgeResult{}, false, false},
	} {
		if got, err := verdictOf(test.result); got != test.passed || (err == nil) != test.ok {
			t.Errorf("%s: verdictOf() = %v, %v, want %v", test.name, got, err, test.passed)
		}
	}
}

func TestGoJudgeIsBelievedOnlyWhenItAccepts(t *testing.T) {
	t.Parallel()
	var answer string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(answer)) }))
	t.Cleanup(server.Close)
	for text, ok := range map[string]bool{
		`[{"status":"Accepted","files":{"stdout":"42\n","stderr":""}}]`:       true,
		`[{"status":"Nonzero Exit Status","files":{"stdout":"42\n"}}]`:        false,
		`[{"status":"Accepted","files":{}},{"status":"Accepted","files":{}}]`: false,
		`[]`: false, `{"error":"no"}`: false, ``: false,
	} {
		answer = text
		said, err := goJudge{url: server.URL}.run(t.Context(), "", nil, "/bin/true")
		if (err == nil) != ok || (ok && said != "42\n") {
			t.Errorf("run() of %s = %q, %v", text, said, err)
		}
	}
}

func TestNoOneLinerIsTheSameTwice(t *testing.T) {
	t.Parallel()
	b := &bench{}
	if x, y := b.oneLiner(), b.oneLiner(); x.code == y.code || x.stdout == y.stdout {
		t.Errorf("oneLiner() = %+v, then %+v", x, y)
	}
}
