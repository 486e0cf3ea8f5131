package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/paddock-run/paddock/api"
	"github.com/paddock-run/paddock/examples/humaneval/problems"
)

const (
	setName = "humaneval"
	epochs  = 3
	// perIteration divides no epoch, so that iterations lie over the ends of epochs.
	perIteration = 32
	scored       = 24
)

// putSet keeps the problems as a data set whose tests are HumanEval's own, run after the
// code of a completion.
func putSet(ctx context.Context, client *api.Client, all []problems.Problem, world string) error {
	var lines bytes.Buffer
	enc := json.NewEncoder(&lines)
	for _, p := range all {
		tests := api.JudgeSpec{World: world, Language: "python", Cases: []api.JudgeCase{{Assert: p.Test + "\ncheck(" + p.EntryPoint + ")\n"}}}
		if err := enc.Encode(map[string]any{"id": p.TaskID, "prompt": p.Prompt, "tests": tests}); err != nil {
			return err
		}
	}
	put, err := client.PutDataset(ctx, api.PutDataset{Name: setName}, &lines)
	if err == nil && put.Problems != problems.Count {
		err = fmt.Errorf("the data set has %d problems, want %d", put.Problems, problems.Count)
	}
	return err
}

// draw asks for the iterations of three epochs.
func draw(ctx context.Context, client *api.Client) (ids []string, err error) {
	for i := int64(0); len(ids) < epochs*problems.Count; i++ {
		s, err := client.Sample(ctx, setName, api.SampleSpec{Iteration: i, N: perIteration, Seed: 1})
		if err != nil {
			return nil, fmt.Errorf("sample iteration %d: %w", i, err)
		}
		for _, p := range s.Problems {
			ids = append(ids, p.ID)
		}
	}
	return ids, nil
}

// sample draws three epochs, each of which must be every problem once, and keeps the order
// in a file. When the file is there the order must be that of the file: the daemon is
// another one than that which wrote it.
func sample(ctx context.Context, client *api.Client, file string) error {
	ids, err := draw(ctx, client)
	if err != nil {
		return err
	}
	for e := range epochs {
		epoch := slices.Sorted(slices.Values(ids[e*problems.Count : (e+1)*problems.Count]))
		if len(slices.Compact(epoch)) != problems.Count {
			return fmt.Errorf("epoch %d has a problem twice", e)
		}
	}
	text, err := json.Marshal(ids)
	if err != nil {
		return err
	}
	kept, err := os.ReadFile(file)
	switch {
	case errors.Is(err, os.ErrNotExist):
		fmt.Printf("humaneval data set: %d epochs of %d problems, each one once\n", epochs, problems.Count)
		return os.WriteFile(file, text, 0o600)
	case err != nil:
		return err
	case !bytes.Equal(kept, text):
		return errors.New("a restarted daemon samples in another order")
	}
	fmt.Printf("humaneval data set: the same %d problems in the same order after a restart\n", len(ids))
	return nil
}

// scoreSet scores what the first iterations draw: canonical solutions and stubs.
func scoreSet(ctx context.Context, client *api.Client, all []problems.Problem) error {
	byID := map[string]problems.Problem{}
	for _, p := range all {
		byID[p.TaskID] = p
	}
	drawn, err := client.Sample(ctx, setName, api.SampleSpec{N: scored, Seed: 1})
	if err != nil {
		return err
	}
	for _, v := range variants {
		spec := api.ScoreItems{Dataset: setName, Rule: "code"}
		for _, d := range drawn.Problems {
			p := byID[d.ID]
			spec.Items = append(spec.Items, api.ScoreItem{ID: d.ID, Completion: "```python\n" + p.Prompt + v.body(p) + "\n```"})
		}
		scores, err := client.ScoreItems(ctx, spec, nil)
		if err != nil {
			return fmt.Errorf("score %s: %w", v.name, err)
		}
		right := 0
		for _, s := range scores {
			switch {
			case s.Score == nil || (*s.Score == 1) != v.passes:
				return fmt.Errorf("%s %s: %+v", v.name, s.ID, s)
			case v.passes:
				right++
			}
		}
		fmt.Printf("humaneval data set %s %d/%d\n", v.name, right, len(scores))
	}
	return nil
}
