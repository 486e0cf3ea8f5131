package bench

import (
	"archive/tar"
	"bytes"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/paddock-run/paddock/api"
	"github.com/paddock-run/paddock/internal/engine"
)

// traceFiles are a recorded coding task: a repository with bugs in it, the calls of an agent
// that finds and mends them, and the tests that it is scored by.
//
//go:embed all:trace
var traceFiles embed.FS

// traceCall is one call of the trace, and what must come of it.
type traceCall struct {
	Run  string `json:"run"`
	Exit int    `json:"exit"`
	// Says is part of what it writes.
	Says string `json:"says"`
}

// check says what is wrong with a call's end.
func (c traceCall) check(exit int, said string) error {
	if exit == c.Exit && strings.Contains(said, c.Says) {
		return nil
	}
	return fmt.Errorf("%q exited %d, want %d with %q: %.500s", c.Run, exit, c.Exit, c.Says, said)
}

// traceEnv is the environment of every side's calls.
var traceEnv = map[string]string{
	"HOME": "/root", "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
	"LANG": "C.UTF-8", "TZ": "UTC", "PYTHONHASHSEED": "0",
}

func envList(env map[string]string) []string {
	var out []string
	for name, value := range env {
		out = append(out, name+"="+value)
	}
	return out
}

// readTrace is the trace's calls.
func readTrace() ([]traceCall, error) {
	text, err := traceFiles.ReadFile("trace/calls.jsonl")
	if err != nil {
		return nil, err
	}
	var calls []traceCall
	for d := json.NewDecoder(bytes.NewReader(text)); ; {
		d.DisallowUnknownFields()
		var c traceCall
		if err := d.Decode(&c); errors.Is(err, io.EOF) {
			return calls, nil
		} else if err != nil {
			return nil, fmt.Errorf("calls.jsonl: %w", err)
		}
		calls = append(calls, c)
	}
}

// traceContext is the tar that the trace's world is built from.
func traceContext() (*bytes.Buffer, error) {
	var b bytes.Buffer
	t := tar.NewWriter(&b)
	err := fs.WalkDir(traceFiles, "trace/repo", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := traceFiles.ReadFile(name)
		if err != nil {
			return err
		}
		h := &tar.Header{Typeflag: tar.TypeReg, Name: strings.TrimPrefix(name, "trace/"), Mode: 0o644, Size: int64(len(text))}
		if err := t.WriteHeader(h); err != nil {
			return err
		}
		_, err = t.Write(text)
		return err
	})
	return &b, errors.Join(err, t.Close())
}

// trace is the row: paddock, Docker and the host play the same calls in turn.
type trace struct {
	*bench
	calls []traceCall
	// hidden are the tests that score.
	hidden        []byte
	world, grader string
	// root is the world's files, unpacked.
	root string
}

const traceImage = "paddock-bench-trace:latest"

// traces measures the row.
func (b *bench) traces(ctx context.Context) error {
	t := &trace{bench: b}
	if err := t.prepare(ctx); err != nil {
		return err
	}
	arms := []arm{{
		name: "trace8", what: "a coding trace of 30 calls (git, grep, edits, python, pytest), finish, score in a fresh fork, 8 at a time, wall time per episode; CPU of daemon, sandboxes and driver",
		one: t.episode, cpu: b.heavyTime(),
	}, {
		name: "bare_trace8", what: "the same commands bare on the host (the same programs by chroot alone, each time in a copy of the tree), 8 at a time; CPU of the commands and their driver, making the copies left out",
		before: t.copies, one: t.bare, after: t.dropCopies, cpu: childrenTime,
	}}
	if b.docker != nil {
		stop, err := b.importTree(ctx, traceImage, t.root)
		if err != nil {
			return err
		}
		defer func() { _ = stop() }()
		arms = append(arms, arm{
			name: "docker_trace8", what: "the same commands by docker run and docker exec of the same files, list of changes, score by one more exec, remove, 8 at a time; CPU of the whole host",
			one: t.container, cpu: hostTime,
		})
	}
	rounds, each := 3, 16
	if b.Quick {
		rounds, each = 1, ways
	}
	return b.turns(ctx, arms, rounds, each)
}

// prepare makes the world and the grader, and unpacks the world's files.
func (t *trace) prepare(ctx context.Context) (err error) {
	if t.calls, err = readTrace(); err != nil {
		return err
	}
	if t.hidden, err = traceFiles.ReadFile("trace/hidden.py"); err != nil {
		return err
	}
	text, err := traceFiles.ReadFile("trace/Dockerfile")
	if err != nil {
		return err
	}
	files, err := traceContext()
	if err != nil {
		return err
	}
	if t.world, err = t.buildOn(ctx, "bench-trace", string(text), files); err != nil {
		return err
	}
	t.grader, err = t.Heavy.PutGrader(ctx, api.GraderSpec{
		Files:   map[string]api.GraderFile{"test_hidden.py": {Bytes: t.hidden}},
		Command: []string{"/bin/sh", "-c", "cd /repo && exec " + traceScore + "/grader/test_hidden.py"}, Verdict: "exit_code",
	})
	if err != nil {
		return fmt.Errorf("put the trace's grader: %w", err)
	}
	if t.root, err = unpackWorld(ctx, t.Heavy, t.world, filepath.Join(t.Scratch, "trace")); err != nil {
		return fmt.Errorf("unpack the trace's world: %w", err)
	}
	return nil
}

const traceScore = "python3 -m pytest -q -p no:cacheprovider "

// scored is the grader's command for those who have no grader: the tests come with it.
func (t *trace) scored() traceCall {
	return traceCall{Run: "mkdir .grader && printf %s \"$1\" >.grader/test_hidden.py && exec " + traceScore + ".grader/test_hidden.py", Says: "3 passed"}
}

// argv is how every side runs a call.
func (t *trace) argv(c traceCall) []string {
	return []string{"/bin/sh", "-c", c.Run, "sh", string(t.hidden)}
}

// episode plays the trace with paddock.
func (t *trace) episode(ctx context.Context, _ int) error {
	id := fmt.Sprintf("trace-%d-%d", os.Getpid(), t.episodes.Add(1))
	_, err := t.Heavy.Create(ctx, api.EpisodeSpec{
		Run: benchRun, ID: id, World: t.world, Env: traceEnv, Graders: []api.WeightedGrader{{Grader: t.grader}},
	})
	if err != nil {
		return err
	}
	for _, c := range t.calls {
		r, err := t.Heavy.Call(ctx, key(id), api.CallSpec{Tool: "exec", Argv: []string{"/bin/sh", "-c", c.Run}, Cwd: "/repo"})
		if err != nil {
			return err
		}
		if r.ExitCode == nil {
			return fmt.Errorf("%q ended by signal %d: %v", c.Run, r.Signal, r.Fault)
		}
		if err := c.check(*r.ExitCode, r.Stdout+r.Stderr); err != nil {
			return err
		}
	}
	ep, err := t.Heavy.Finish(ctx, key(id), api.FinishSpec{})
	if err != nil {
		return err
	}
	last := ep.Last()
	if last.Capture == nil || last.Capture.Changes == 0 {
		return fmt.Errorf("the trace ended with capture %+v, want changes", last.Capture)
	}
	if reward, err := scoredAnew(last.Reward, last.Scores); err != nil || reward != 1 {
		return errors.Join(err, fmt.Errorf("the trace ended with reward %v, scores %+v; want 1", reward, last.Scores))
	}
	return t.Heavy.Delete(ctx, key(id))
}

// scoredAnew is an episode's reward. A score that is null, or that was computed for another
// episode before, is an error: it is not what is measured.
func scoredAnew(reward *float64, scores []api.Score) (float64, error) {
	for _, s := range scores {
		if slices.Contains(s.Flags, "cached") {
			return 0, fmt.Errorf("a score from the cache: %+v", s)
		}
	}
	if reward == nil || len(scores) == 0 {
		return 0, fmt.Errorf("no reward: %+v", scores)
	}
	return *reward, nil
}

// container plays the trace with Docker.
func (t *trace) container(ctx context.Context, _ int) (err error) {
	id, err := t.docker.Start(ctx, engine.Container{Image: traceImage, Argv: []string{"/bin/sleep", "3600"}, Dir: "/repo", Env: envList(traceEnv)})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.docker.Remove(ctx, id)) }()
	play := func(c traceCall) error {
		exit, said, err := t.docker.ExecOutput(ctx, id, t.argv(c))
		return errors.Join(err, c.check(exit, said))
	}
	for _, c := range t.calls {
		if err := play(c); err != nil {
			return err
		}
	}
	n, err := t.docker.Changes(ctx, id)
	if err != nil || n == 0 {
		return errors.Join(err, fmt.Errorf("%d changes", n))
	}
	return play(t.scored())
}

func (t *trace) copyOf(i int) string { return fmt.Sprintf("/tmp/repo-%d", i) }

// copies makes a tree for each bare run.
func (t *trace) copies(ctx context.Context, n int) error {
	for i := range n {
		if err := run(ctx, "cp", "-a", filepath.Join(t.root, "repo"), filepath.Join(t.root, t.copyOf(i))); err != nil {
			return err
		}
	}
	return nil
}

func (t *trace) dropCopies(_ context.Context, n int) (err error) {
	for i := range n {
		err = errors.Join(err, os.RemoveAll(filepath.Join(t.root, t.copyOf(i))))
	}
	return err
}

// bare plays the trace by fork, chroot and exec alone.
func (t *trace) bare(ctx context.Context, i int) error {
	for _, c := range append(slices.Clone(t.calls), t.scored()) {
		cmd := exec.CommandContext(ctx, "/bin/sh")
		cmd.Args, cmd.Dir, cmd.Env = t.argv(c), t.copyOf(i), envList(traceEnv)
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: t.root}
		said, err := cmd.CombinedOutput()
		if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
			return err
		}
		if err := c.check(cmd.ProcessState.ExitCode(), string(said)); err != nil {
			return err
		}
	}
	return nil
}
