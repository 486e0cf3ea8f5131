package runner

import (
	"errors"
	"strings"
	"testing"

	"github.com/paddock-run/paddock/overlay"
	"github.com/paddock-run/paddock/sandbox"
)

func exited(code int) sandbox.Exit { return sandbox.Exit{Code: &code} }

func TestVerdicts(t *testing.T) {
	t.Parallel()
	const none = -100 // no verdict
	const null = -200 // the grader's own null
	for _, c := range []struct {
		name, text string
		exit       sandbox.Exit
		want       float64
		why        string
	}{
		{"number", `{"reward": 0.25}`, exited(0), 0.25, ""},
		{"bad exit after a verdict", `{"reward": 1}`, exited(3), 1, ""},
		{"true is 1", `{"reward": true}`, exited(0), 1, ""},
		{"false is 0", `{"reward": false}`, exited(0), 0, ""},
		{"metrics and reason", `{"reward": 1, "metrics": {"turns": 3}, "reason": "fine"}`, exited(0), 1, ""},
		{"flat with reward", `{"reward": 0.5, "turns": 3}`, exited(0), 0.5, ""},
		{"flat with one key", ` {"score": 0.75} ` + "\n", exited(0), 0.75, ""},
		{"null", `{"reward": null, "reason": "cannot tell"}`, exited(0), null, ""},
		{"nothing", "", exited(0), none, "nothing was written"},
		{"blanks", " \n", exited(0), none, "nothing was written"},
		{"two keys", `{"a": 1, "b": 0}`, exited(0), none, "ambiguous_reward"},
		{"no number at all", `{}`, exited(0), none, "ambiguous_reward"},
		{"text is no number", `{"reward": "1"}`, exited(0), none, "not a number"},
		{"a list is no number", `{"reward": [1]}`, exited(0), none, "not a number"},
		{"NaN", `{"reward": NaN}`, exited(0), none, "malformed"},
		{"infinite", `{"reward": 1e999}`, exited(0), none, "not a number"},
		{"a metric that is no number", `{"reward": 1, "metrics": {"x": "y"}}`, exited(0), none, "metrics/x"},
		{"above the range is not clipped", `{"reward": 1.01}`, exited(0), none, "outside"},
		{"below the range", `{"reward": -0.1}`, exited(0), none, "outside"},
		{"a list", `[1]`, exited(0), none, "not a JSON object"},
		{"a bare number", `1`, exited(0), none, "not a JSON object"},
		{"two objects", `{"reward": 1}{"reward": 1}`, exited(0), none, "follows"},
		{"a key twice", `{"reward": 0, "reward": 1}`, exited(0), none, "twice"},
		{"torn", `{"reward": 1`, exited(0), none, "does not end"},
		{"too long", `{"reward": 1, "reason": "` + strings.Repeat("x", maxVerdict) + `"}`, exited(0), none, "more than"},
		{"killed after a verdict", `{"reward": 1}`, sandbox.Exit{Signal: 9}, none, "killed"},
		{"out of time after a verdict", `{"reward": 1}`, sandbox.Exit{Signal: 9, TimedOut: true}, none, "time passed"},
		{"a child ran out of memory", `{"reward": 0}`, sandbox.Exit{Code: new(int), OOM: true}, 0, ""},
		{"not started", "", sandbox.Exit{NotStarted: &sandbox.StartFailure{Kind: "command_not_found"}}, none, "command_not_found"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			v, err := readVerdict(&GraderSpec{Verdict: "json", RewardRange: &[2]float64{0, 1}}, []byte(c.text), c.exit)
			switch {
			case c.want == none:
				if _, ok := errors.AsType[noVerdictError](err); !ok || !strings.Contains(err.Error(), c.why) {
					t.Errorf("verdict %+v, %v; want none because of %q", v, err, c.why)
				}
			case err != nil:
				t.Errorf("no verdict: %v", err)
			case (c.want == null) != (v.Reward == nil), v.Reward != nil && *v.Reward != c.want:
				t.Errorf("reward %v, want %v", v.Reward, c.want)
			}
		})
	}
}

func TestExitCodeVerdicts(t *testing.T) {
	t.Parallel()
	spec := &GraderSpec{Verdict: "exit_code", RewardRange: &[2]float64{0, 1}}
	for code, want := range map[int]float64{0: 1, 1: 0, 2: -1, 4: -1, 5: -1, 126: -1, 127: -1, 255: -1} {
		v, err := readVerdict(spec, []byte(`{"reward": 0.5}`), exited(code))
		if (want < 0) != (err != nil) || (err == nil && *v.Reward != want) {
			t.Errorf("exit code %d gives %+v, %v; want %v (-1: none)", code, v, err, want)
		}
	}
	if v, err := readVerdict(spec, nil, sandbox.Exit{Signal: 6}); err == nil {
		t.Errorf("a signal gives %+v", v)
	}
}

func TestRewardIsNullUnlessAllIsTheAgents(t *testing.T) {
	t.Parallel()
	score := func(cause Cause, weight, reward float64) ScoreResult {
		return ScoreResult{Cause: cause, Weight: weight, Reward: &reward}
	}
	null := ScoreResult{Cause: GraderBy, Weight: 1}
	for _, c := range []struct {
		name   string
		end    Cause
		scores []ScoreResult
		want   float64 // -1 is null
	}{
		{"one", Agent, []ScoreResult{score(Agent, 1, 0.5)}, 0.5},
		{"weighted", Agent, []ScoreResult{score(Agent, 0.5, 1), score(Agent, 0.25, 1)}, 0.75},
		{"without weight a null is no matter", Agent, []ScoreResult{score(Agent, 1, 1), {Cause: GraderBy}}, 1},
		{"one null of two", Agent, []ScoreResult{score(Agent, 1, 1), null}, -1},
		{"platform's score", Agent, []ScoreResult{score(Platform, 1, 1)}, -1},
		{"platform's end", Platform, []ScoreResult{score(Agent, 1, 1)}, -1},
		{"none", Agent, nil, -1},
	} {
		got := Reward(End{Cause: c.end}, c.scores)
		if (got == nil) != (c.want < 0) || (got != nil && *got != c.want) {
			t.Errorf("%s: reward %v, want %v", c.name, got, c.want)
		}
	}
}

func TestTampersSeesWhatIsAtBelowAndTakenFromAbove(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		change overlay.Change
		want   bool
	}{
		{overlay.Change{Path: "/a/tests", Kind: overlay.Modified}, true},
		{overlay.Change{Path: "/a/tests/x", Kind: overlay.Created}, true},
		{overlay.Change{Path: "/a/tests2", Kind: overlay.Created}, false},
		{overlay.Change{Path: "/a", Kind: overlay.Modified}, false},
		{overlay.Change{Path: "/a", Kind: overlay.Deleted}, true},
		{overlay.Change{Path: "/a", Kind: overlay.TypeChanged}, true},
		{overlay.Change{Path: "/a", Kind: overlay.Modified, Opaque: true}, true},
		{overlay.Change{Path: "/b", Kind: overlay.Deleted}, false},
	} {
		if got := tampers(&c.change, "/a/tests"); got != c.want {
			t.Errorf("tampers(%s %s) = %v, want %v", c.change.Kind, c.change.Path, got, c.want)
		}
	}
}

func TestDegradedNeedsOneStepOften(t *testing.T) {
	t.Parallel()
	seen := func(fine, start, queue int) (all []attemptSeen) {
		for range fine {
			all = append(all, attemptSeen{})
		}
		for range start {
			all = append(all, attemptSeen{step: "start"})
		}
		for range queue {
			all = append(all, attemptSeen{step: "queue"})
		}
		return all
	}
	for _, c := range []struct {
		fine, start, queue int
		want               string
	}{
		{0, 9, 0, ""}, {0, 10, 0, "start"}, {40, 10, 0, ""}, {39, 10, 0, "start"}, {30, 6, 6, ""}, {0, 9, 12, "queue"},
	} {
		if step, _ := degradedStep(seen(c.fine, c.start, c.queue)); step != c.want {
			t.Errorf("%d fine, %d start, %d queue: %q, want %q", c.fine, c.start, c.queue, step, c.want)
		}
	}
}

func TestAttemptsCutShortByTheDaemonAreNoRetries(t *testing.T) {
	t.Parallel()
	died := &End{Status: Interrupted, Cause: Platform, Step: "live"}
	drained := &End{Status: Cancelled, Cause: Operator, Step: "drain"}
	failed := &End{Status: Errored, Cause: Platform, Step: "start"}
	honest := &End{Status: Timeout, Cause: Agent}
	cancelled := &End{Status: Cancelled, Cause: Client}
	for _, c := range []struct {
		name    string
		ends    []*End
		retries int
		want    bool
	}{
		{"died", []*End{died}, 0, true},
		{"died often", []*End{died, died, drained}, 0, true},
		{"failed without retries", []*End{failed}, 0, false},
		{"failed with one", []*End{failed}, 1, true},
		{"failed after a death", []*End{died, failed}, 1, true},
		{"failed twice with one", []*End{failed, failed}, 1, false},
		{"the agent's end", []*End{honest}, 5, false},
		{"the client's cancel", []*End{cancelled}, 5, false},
	} {
		ep := Episode{}
		for i, end := range c.ends {
			ep.Attempts = append(ep.Attempts, Attempt{N: i + 1, State: Done, End: end})
		}
		line := &BatchEpisode{}
		line.Retries = c.retries
		if got := (&liveBatch{}).again(&ep, line); got != c.want {
			t.Errorf("%s: again = %v, want %v", c.name, got, c.want)
		}
	}
}

func FuzzJSONVerdict(f *testing.F) {
	for _, s := range []string{`{"reward": 1}`, `{"a": 0.5}`, `{"reward": null}`, `{"reward": 1, "metrics": {"x": 1}}`, `{"reward":1e999}`, `[`} {
		f.Add([]byte(s))
	}
	spec := &GraderSpec{Verdict: "json", RewardRange: &[2]float64{0, 1}}
	f.Fuzz(func(t *testing.T, text []byte) {
		v, err := readVerdict(spec, text, exited(0))
		if err == nil && v.Reward != nil && !(*v.Reward >= 0 && *v.Reward <= 1) {
			t.Errorf("reward %v from %q", *v.Reward, text)
		}
	})
}

func TestGraderGuardsWhatItRunsOn(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ command, changed string }{
		{"/opt/check", "/opt/check"},
		{"sh", "/usr/local/bin/sh"},
		{"python3", "/usr/bin/python3"},
		{"/opt/check", "/etc/ld.so.preload"},
		{"/opt/check", "/bin/busybox"},
	} {
		g := GraderSpec{Command: []string{c.command}, Protected: []string{"/tests"}}
		changes := []overlay.Change{{Path: c.changed, Kind: overlay.Modified}, {Path: "/tests/a", Kind: overlay.Created}, {Path: "/workdir/a", Kind: overlay.Created}}
		if got := tamperings(changes, g.guarded()); len(got) != 2 {
			t.Errorf("%s with %s changed: %d tamperings, want that and /tests/a", c.command, c.changed, len(got))
		}
	}
}
