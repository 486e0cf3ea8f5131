package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/paddock-run/paddock/api"
)

const epochs = 3

// codeKinds are tasks for generated problems: what solve shall do with its arguments, a
// body that does it, and what it then prints.
var codeKinds = []struct {
	prompt, body string
	want         func(a, b int) string
}{
	{"print the sum of both", `echo $(($1 + $2))`, func(a, b int) string { return fmt.Sprint(a + b) }},
	{"print the larger one", `if [ $1 -gt $2 ]; then echo $1; else echo $2; fi`, func(a, b int) string { return fmt.Sprint(max(a, b)) }},
	{"print the sum of all from 1 to the first", `s=0; for i in $(seq $1); do s=$((s + i)); done; echo $s`, func(a, _ int) string { return fmt.Sprint(a * (a + 1) / 2) }},
	{"print the first as many times as it has digits, and the second", `printf '%s-' $(echo $1 | sed "s/./$1 /g"); echo $2`, func(a, b int) string {
		return strings.Repeat(fmt.Sprintf("%d-", a), len(fmt.Sprint(a))) + fmt.Sprint(b)
	}},
}

// codeProblems is a file of n problems with tests, and the code that solves each.
func codeProblems(n int) (file string, solutions map[string]string) {
	var lines strings.Builder
	solutions = map[string]string{}
	for i := range n {
		kind := codeKinds[i%len(codeKinds)]
		a, b := 3+i, 200-i
		want := kind.want(a, b) + "\n"
		line, _ := json.Marshal(map[string]any{
			"id": fmt.Sprintf("code/%d", i), "prompt": "solve is called with two numbers; " + kind.prompt + ".",
			"tests": api.JudgeSpec{
				Language: "sh", Code: fmt.Sprintf("{{completion}}\nsolve %d %d", a, b), Cases: []api.JudgeCase{{Stdout: &want}},
			},
		})
		lines.Write(append(line, '\n'))
		solutions[fmt.Sprintf("code/%d", i)] = "```sh\nsolve() { " + kind.body + "; }\n```"
	}
	return lines.String(), solutions
}

func arithmeticProblems(n int) string {
	var lines strings.Builder
	for i := range n {
		fmt.Fprintf(&lines, `{"id":"sum/%d","prompt":"What is %d+%d?","answer":%d}`+"\n", i, i, 7*i, 8*i)
	}
	return lines.String()
}

// drawn are the ids of the iterations that cover three epochs of a set, one after another.
func drawn(t *testing.T, c *api.Client, set string, size, n int) (ids []string) {
	t.Helper()
	for i := int64(0); len(ids) < epochs*size; i++ {
		s, err := c.Sample(t.Context(), set, api.SampleSpec{Iteration: i, N: n, Seed: 11})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range s.Problems {
			ids = append(ids, p.ID)
		}
	}
	return ids
}

// checkEpochs: each epoch is a permutation of the set, and no two are the same.
func checkEpochs(t *testing.T, set string, ids []string, size int) {
	t.Helper()
	var before []string
	for e := range epochs {
		epoch := ids[e*size : (e+1)*size]
		sorted := slices.Sorted(slices.Values(epoch))
		if got := len(slices.Compact(sorted)); got != size {
			t.Errorf("%s: epoch %d has %d of %d problems", set, e, got, size)
		}
		if slices.Equal(epoch, before) {
			t.Errorf("%s: epochs %d and %d have one order", set, e-1, e)
		}
		before = epoch
	}
}

// A data set of 1,000 sums and one of 164 programs are drawn alike over three epochs by a
// daemon and by the next one after it was killed, and what was drawn is scored.
func TestSamplesAreTheSameAfterTheDaemonWasKilled(t *testing.T) {
	t.Parallel()
	const n = 48 // no divisor of either size: iterations lie over the ends of epochs
	sizes := map[string]int{"sums": 1000, "code": 164}
	h := newHost(t)
	d := h.serve(t, "--judge-world", "busybox")
	h.must(t, "world", "build", "--busybox", "--name", "busybox")
	c := api.NewClient(h.socket)
	code, solutions := codeProblems(sizes["code"])
	before := map[string][]string{}
	for set, file := range map[string]string{"sums": arithmeticProblems(sizes["sums"]), "code": code} {
		put, err := c.PutDataset(t.Context(), api.PutDataset{Name: set}, strings.NewReader(file))
		if err != nil || put.Problems != sizes[set] {
			t.Fatalf("PutDataset(%s) = %+v, %v", set, put, err)
		}
		before[set] = drawn(t, c, set, sizes[set], n)
		checkEpochs(t, set, before[set], sizes[set])
	}
	d.kill()
	h.serve(t, "--judge-world", "busybox")
	for set, ids := range before {
		if got := drawn(t, c, set, sizes[set], n); !slices.Equal(got, ids) {
			t.Errorf("%s: another order after a restart: %v, want %v", set, got[:n], ids[:n])
		}
	}
	checkScores(t, c, before["code"][:12], solutions)
}

// checkScores: what solves a problem scores 1; what does nothing, or prints something else,
// scores 0.
func checkScores(t *testing.T, c *api.Client, ids []string, solutions map[string]string) {
	t.Helper()
	spec := api.ScoreItems{Dataset: "code", Rule: "code"}
	for i, id := range ids {
		wrong := "```sh\nsolve() { :; }\n```"
		if i%2 == 1 {
			wrong = "```sh\nsolve() { echo 1; exit 0; }\n```"
		}
		spec.Items = append(spec.Items, api.ScoreItem{ID: id, Completion: solutions[id]}, api.ScoreItem{ID: id, Completion: wrong})
	}
	scores, err := c.ScoreItems(t.Context(), spec, nil)
	if err != nil || len(scores) != len(spec.Items) {
		t.Fatalf("ScoreItems() = %d scores, %v, want %d", len(scores), err, len(spec.Items))
	}
	for i, s := range scores {
		if want := float64(1 - i%2); s.Score == nil || *s.Score != want {
			t.Errorf("%s, %q: %+v, want %v", s.ID, spec.Items[i].Completion, s, want)
		}
	}
}
