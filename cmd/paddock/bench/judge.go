package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/paddock-run/paddock/api"
	"github.com/paddock-run/paddock/internal/timing"
)

// oneLiner is a Python program of one line with a case. No two have the same text, so that
// nothing of an earlier one can be used for a later.
type oneLiner struct{ code, stdin, stdout string }

func (b *bench) oneLiner() oneLiner {
	n := b.episodes.Add(1)
	return oneLiner{code: fmt.Sprintf("print(int(input()) * 2 + %d)\n", n), stdin: "21\n", stdout: fmt.Sprintln(42 + n)}
}

// judges measures the row: programs judged here, and by go-judge where there is one.
func (b *bench) judges(ctx context.Context) error {
	arms := []arm{{
		name: "judge8", what: "a Python one-liner and one case of standard input and output by POST /v1/judge, in a fork of its own, 8 at a time, wall time of one; CPU of daemon, sandboxes and driver",
		one: b.right(b.judged), cpu: b.heavyTime(),
	}}
	if b.GoJudge != "" {
		arms = append(arms, arm{
			name: "gojudge_judge8", what: "the same by go-judge's /run with this host's python3, the output compared by the bench; CPU of the whole host",
			one: b.right(b.goJudged), cpu: hostTime,
		})
	} else {
		b.report.Absent["go-judge"] = "no --go-judge URL was given"
	}
	for _, judge := range []func(context.Context, oneLiner) (bool, error){b.judged, b.goJudged}[:len(arms)] {
		wrong := b.oneLiner()
		wrong.stdout = "0\n"
		if passed, err := judge(ctx, wrong); err != nil || passed {
			return errors.Join(err, fmt.Errorf("a program with a wrong output passes: %v", passed))
		}
	}
	rounds, each := 5, 160
	if b.Quick {
		rounds, each = 3, 8*ways
	}
	return b.turns(ctx, arms, rounds, each)
}

// right judges a program that must pass.
func (b *bench) right(judge func(context.Context, oneLiner) (bool, error)) func(context.Context, int) error {
	return func(ctx context.Context, _ int) error {
		passed, err := judge(ctx, b.oneLiner())
		if err == nil && !passed {
			err = errors.New("a program with the right output does not pass")
		}
		return err
	}
}

func (b *bench) judged(ctx context.Context, p oneLiner) (bool, error) {
	result, err := b.Heavy.Judge(ctx, api.JudgeSpec{
		World: debianWorld, Language: "python", Code: p.code, Cases: []api.JudgeCase{{Stdin: &p.stdin, Stdout: &p.stdout}},
	}, nil)
	if err != nil {
		return false, err
	}
	return verdictOf(result)
}

// verdictOf says whether a program with one case passed. What is no judgement of it is an
// error, and so is one that was not run for this request.
func verdictOf(r api.JudgeResult) (bool, error) {
	if len(r.Cases) != 1 || r.Cases[0].Passed == nil || r.Cases[0].Run == nil || r.Kept {
		return false, fmt.Errorf("%s is no judgement of one case that was run: %+v", r.Verdict, r.Cases)
	}
	return *r.Cases[0].Passed, nil
}

func (b *bench) goJudged(ctx context.Context, p oneLiner) (bool, error) {
	said, err := goJudge{url: b.GoJudge}.run(ctx, p.stdin, map[string]string{"main.py": p.code}, "/usr/bin/python3", "main.py")
	return strings.TrimSpace(said) == strings.TrimSpace(p.stdout), err
}

// texts is how many completions a second are compared with a data set's answers, in requests
// of 5,000. Every other completion is right.
func (b *bench) texts(ctx context.Context) error {
	const problems, items, rounds = 1000, 5000, 5
	var file bytes.Buffer
	lines := json.NewEncoder(&file)
	answer := func(i int) string { return fmt.Sprintf("The answer to %d is the number %d.", i, i*i) }
	for i := range problems {
		if err := lines.Encode(map[string]string{"id": fmt.Sprint(i), "prompt": fmt.Sprintf("%d*%d", i, i), "answer": answer(i)}); err != nil {
			return err
		}
	}
	set, err := b.Client.PutDataset(ctx, api.PutDataset{Format: "jsonl"}, &file)
	if err != nil {
		return err
	}
	var took timing.Sample
	for round := range rounds {
		spec := api.ScoreItems{Dataset: set.Digest, Rule: "text"}
		for i := range items {
			text := fmt.Sprintf("the Answer to %d is number %d", i%problems, (i%problems)*(i%problems)) // articles and case do not count
			if i%2 == 1 {
				text = fmt.Sprintf("%s or %d", text, round)
			}
			spec.Items = append(spec.Items, api.ScoreItem{ID: fmt.Sprint(i % problems), Completion: text})
		}
		began := time.Now()
		scores, err := b.Client.ScoreItems(ctx, spec, nil)
		took = append(took, time.Since(began))
		if err != nil {
			return err
		}
		if right := rightOf(scores); len(scores) != items || right != items/2 {
			return fmt.Errorf("%d of %d completions are right, want %d of %d", right, len(scores), items/2, items)
		}
	}
	b.report.Figures["texts_per_s"] = items / (took.Summarize().P50 / 1000)
	return b.Client.RemoveDataset(ctx, set.Digest)
}

func rightOf(scores []api.ItemScore) (n int) {
	for _, s := range scores {
		if s.Score != nil && *s.Score == 1 {
			n++
		}
	}
	return n
}
