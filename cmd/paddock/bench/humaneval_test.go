package bench

import (
	"testing"

	"github.com/paddock-run/paddock/api"
	"github.com/paddock-run/paddock/examples/humaneval/problems"
)

func TestVerdictOfTheGraderInDocker(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		exit   int
		said   string
		reward float64
		ok     bool
	}{
		{"passes", 0, `{"reward": 1.0, "reason": "all tests pass"}`, 1, true},
		{"fails", 0, `{"reward": 0.0, "reason": "AssertionError: "}` + "\n", 0, true},
		{"says nothing", 0, "", 0, false},
		{"no number", 0, `{"reward": null}`, 0, false},
		{"ends badly after its verdict", 1, `{"reward": 1.0}`, 0, false},
		{"somebody else talks, too", 0, `{"reward": 1.0} {"reward": 1.0}`, 0, false},
	} {
		got, err := verdict(test.exit, test.said)
		if got != test.reward || (err == nil) != test.ok {
			t.Errorf("%s: verdict() = %v, %v, want %v", test.name, got, err, test.reward)
		}
	}
}

func TestOnlyScoresComputedAnewCount(t *testing.T) {
	t.Parallel()
	one := 1.0
	for _, test := range []struct {
		name   string
		reward *float64
		scores []api.Score
		ok     bool
	}{
		{"computed", &one, []api.Score{{Reward: &one}}, true},
		{"from the cache", &one, []api.Score{{Reward: &one, Flags: []string{"cached"}}}, false},
		{"null", nil, []api.Score{{}}, false},
		{"by no grader", &one, nil, false},
	} {
		if _, err := scoredAnew(test.reward, test.scores); (err == nil) != test.ok {
			t.Errorf("%s: scoredAnew() = %v", test.name, err)
		}
	}
}

func TestNoSolutionIsTheSameTwice(t *testing.T) {
	t.Parallel()
	h := &humanEval{bench: &bench{}}
	p := problems.Problem{Prompt: "def f():\n", Canonical: "    return 1\n"}
	if a, b := h.solution(p), h.solution(p); a == b {
		t.Errorf("solution() = %q twice: its score would come from the cache", a)
	}
}
