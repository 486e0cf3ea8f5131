package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/paddock-run/paddock/overlay"
	"github.com/paddock-run/paddock/sandbox"
)

// EndState is what an ended attempt left, for graders. It is valid until scoreAttempt
// returns.
type EndState struct {
	Key     Key
	Plan    Plan
	Attempt Attempt // with End, Answer, Digests
	// Fork pins the world; Upper is the agent's whole upper directory, with owners
	// shifted by IDs.HostID. No process of the agent is left. A nil Upper is the untouched
	// world.
	Fork    Fork
	Upper   *os.File
	IDs     sandbox.IDMap
	Capture overlay.Capture
	// Dir is the attempt's directory: trajectory.jsonl is there and whole.
	Dir string
}

// Tries of one scoring.
const (
	maxPlatformTries = 3
	maxVerdictTries  = 2
	controlTries     = 2
)

// scoreAttempt grades an end state with graders, in their order, and returns one result
// for each. It never changes the record: attachScores does.
func (r *Runner) scoreAttempt(ctx context.Context, in EndState, graders []WeightedGrader) []ScoreResult {
	weights := weigh(graders)
	results := make([]ScoreResult, len(graders))
	for i, g := range graders {
		began := time.Now()
		results[i] = r.scoreOne(ctx, &in, g.Grader)
		results[i].Grader, results[i].Weight = g.Grader, weights[i]
		results[i].Seconds = time.Since(began).Seconds()
	}
	return results
}

// scoreOne settles one grader's score: a verdict, or who kept it from one. The client's are
// pending until it writes them.
func (r *Runner) scoreOne(ctx context.Context, in *EndState, digest string) ScoreResult {
	if isClientGrader(digest) {
		return pendingScore(digest)
	}
	spec, err := r.Grader(ctx, digest)
	if err != nil {
		return platformScore("grader", err)
	}
	key, err := r.scoreKey(in, digest, &spec)
	if err != nil {
		return platformScore("key", err)
	}
	if s, ok := r.cachedScore(ctx, key); ok {
		return s
	}
	g := grading{r: r, in: in, digest: digest, spec: &spec}
	s := g.score(ctx)
	g.tamper(&s)
	if s.Cause == Agent && s.Reward != nil && !slices.Contains(s.Flags, "no_verdict") {
		r.cacheScore(ctx, key, s)
	}
	return s
}

func platformScore(step string, err error) ScoreResult {
	return ScoreResult{Status: Errored, Cause: Platform, Step: step, Evidence: []string{err.Error()}}
}

// grading is one grader on one end state.
type grading struct {
	r      *Runner
	in     *EndState
	digest string
	spec   *GraderSpec
	// network is what its sandbox reaches.
	network PlanNetwork
}

// score settles the score on what the grader takes of the end state.
func (g *grading) score(ctx context.Context) ScoreResult {
	release, whole, err := g.takeKept(ctx)
	if err != nil {
		return platformScore("keep", err)
	}
	defer release()
	if !whole {
		return g.blame(ctx, ScoreResult{
			Status: Limit, Cause: Agent, Step: "keep",
			Evidence: []string{"the directories that the grader keeps hold more than was stored of the end state"},
		})
	}
	return g.settle(ctx)
}

// settle runs the grader until there is a verdict or it is known who is to blame: a
// second run in a new fork, then the same grader on the untouched world.
func (g *grading) settle(ctx context.Context) ScoreResult {
	var s ScoreResult
	platform, empty := 0, 0
	for tries := 1; ; tries++ {
		run, err := g.run(ctx)
		if err != nil {
			platform++
			s = platformScore("start", err)
			s.Tries = tries
			if platform >= maxPlatformTries || ctx.Err() != nil {
				return s
			}
			continue
		}
		v, err := run.read(g.spec)
		s = ScoreResult{Status: run.status(), Cause: Agent, Tries: tries, Stdout: run.stdout, Stderr: run.stderr, Network: run.network}
		if err == nil {
			return g.spoken(s, v)
		}
		s.Evidence = append(s.Evidence, err.Error())
		if empty++; empty >= maxVerdictTries {
			return g.blame(ctx, s)
		}
	}
}

// read reads the run's verdict.
func (r graderRun) read(spec *GraderSpec) (verdict, error) {
	if r.bootFailed {
		return verdict{}, noVerdictError("no verdict: a start command failed: " + gradeExit(r.exit))
	}
	return readVerdict(spec, r.verdict, r.exit)
}

// spoken is the score of a verdict.
func (g *grading) spoken(s ScoreResult, v verdict) ScoreResult {
	s.Status, s.Reward, s.Metrics, s.Reason = OK, v.Reward, v.Metrics, v.Reason
	if v.Reward == nil {
		s.Status, s.Cause = Errored, GraderBy
	}
	return s
}

// blame decides who broke a scoring by the control: the same grader on the untouched
// world. Only a grader that cannot even judge that makes a null.
func (g *grading) blame(ctx context.Context, s ScoreResult) ScoreResult {
	passes, evidence, err := g.r.control(ctx, g.in, g.digest, g.spec)
	if err != nil {
		p := platformScore("control", err)
		p.Tries = s.Tries
		return p
	}
	s.Flags = append(s.Flags, "no_verdict")
	s.Evidence = append(s.Evidence, evidence)
	if passes {
		reward := *g.spec.OnNoVerdict
		s.Cause, s.Reward = Agent, &reward
		return s
	}
	s.Cause, s.Reward = GraderBy, nil
	return s
}

// maxTampered bounds the paths that a tamper report names.
const maxTampered = 20

// tamper reports what the agent wrote below paths that the grader protects.
func (g *grading) tamper(s *ScoreResult) {
	var found []string
	for _, ch := range tamperings(g.in.Capture.Changes, g.spec.guarded()) {
		found = append(found, fmt.Sprintf("tampered: %s %q", ch.Kind, ch.Path))
	}
	if g.in.Capture.Truncated && len(g.spec.Protected) > 0 {
		found = append(found, "tampered: perhaps; the capture has more changes than it lists")
	}
	if len(found) == 0 {
		return
	}
	s.Flags = append(s.Flags, "tampered")
	s.Evidence = append(s.Evidence, found...)
	if g.spec.OnTamper == "zero" && s.Cause == Agent && s.Reward != nil {
		zero := 0.0
		s.Reward = &zero
	}
}

// ownPrograms are what nearly every grader runs on, whatever its command: an agent that
// replaced one of them has the grader's verdict in its hands.
var ownPrograms = []string{
	"/bin/busybox", "/bin/sh", "/etc/ld.so.preload", "/lib/ld-musl-x86_64.so.1", "/lib64/ld-linux-x86-64.so.2",
	"/usr/bin/dash", "/usr/bin/sh", "/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2",
}

// guarded are the paths whose change is a tampering: those that the grader protects, its
// own program, and ownPrograms. The grader runs on the agent's whole tree, so its program
// and loader are there for an agent that was root to replace.
func (g *GraderSpec) guarded() []string {
	all := append(slices.Clone(g.Protected), ownPrograms...)
	if len(g.Command) == 0 {
		return all
	}
	switch program := g.Command[0]; {
	case path.IsAbs(program):
		all = append(all, path.Clean(program))
	case !strings.Contains(program, "/"):
		for _, dir := range []string{"/bin", "/sbin", "/usr/bin", "/usr/local/bin", "/usr/local/sbin", "/usr/sbin"} {
			all = append(all, path.Join(dir, program))
		}
	}
	return all
}

// tampers says whether a change is to a protected path: at or below it, or one above it
// that took it away.
func tampers(ch *overlay.Change, protected string) bool {
	within := func(dir, p string) bool { return p == dir || strings.HasPrefix(p, strings.TrimSuffix(dir, "/")+"/") }
	if within(protected, ch.Path) {
		return true
	}
	gone := ch.Opaque || ch.Kind == overlay.Deleted || ch.Kind == overlay.TypeChanged
	return gone && within(ch.Path, protected)
}

// scoreKey names a score in the cache. Beside what semantics section 3 lists, a grader
// may read the answer, the calls and the spec, so they are in it.
func (r *Runner) scoreKey(in *EndState, digest string, spec *GraderSpec) (string, error) {
	pol, err := r.graderPolicy(spec)
	if err != nil {
		return "", err
	}
	return digestOf(map[string]any{
		"world": in.Plan.World, "state": in.Attempt.Digests.StateFull, "grader": digest, "policy": pol.Hash(),
		"host": r.cfg.Host, "env_seed": in.Plan.EnvSeed, "answer": sha256Of(in.Attempt.Answer), "spec": specForGrader(&in.Plan),
		"actions": in.Attempt.Digests.Actions, "observations": in.Attempt.Digests.Observations,
	})
}

const scoresDocuments = "score_cache"

func (r *Runner) cachedScore(ctx context.Context, key string) (ScoreResult, bool) {
	doc, err := r.cfg.Record.Document(ctx, scoresDocuments, key)
	if err != nil {
		return ScoreResult{}, false
	}
	var s ScoreResult
	if err := json.Unmarshal(doc, &s); err != nil || s.Reward == nil {
		return ScoreResult{}, false
	}
	s.Flags = append(s.Flags, "cached")
	return s, true
}

func (r *Runner) cacheScore(ctx context.Context, key string, s ScoreResult) {
	doc, err := json.Marshal(s)
	if err == nil {
		err = r.cfg.Record.PutDocument(ctx, scoresDocuments, key, doc, Lazy)
	}
	if err != nil {
		r.cfg.Log.Warn("score cache", slog.Any("error", err))
	}
}

// controlResult is what a control run said, kept per world, grader and task.
type controlResult struct {
	Passes   bool   `json:"passes"`
	Evidence string `json:"evidence"`
}

const controlsDocuments = "controls"

// control says whether the grader gives a verdict on the untouched world within half of
// its limits.
func (r *Runner) control(ctx context.Context, in *EndState, digest string, spec *GraderSpec) (passes bool, evidence string, err error) {
	// One grader often judges many tasks of one world, told apart by their input.
	task, err := digestOf(map[string]any{"task": in.Plan.Spec.Task, "input": specForGrader(&in.Plan).Input})
	if err != nil {
		return false, "", err
	}
	key := in.Plan.World + " " + digest + " " + task
	if doc, err := r.cfg.Record.Document(ctx, controlsDocuments, key); err == nil {
		var c controlResult
		if json.Unmarshal(doc, &c) == nil {
			return c.Passes, c.Evidence, nil
		}
	}
	ids, err := r.cfg.IDs.Acquire()
	if err != nil {
		return false, "", fmt.Errorf("user ids: %w", err)
	}
	defer r.cfg.IDs.Release(ids)
	untouched := EndState{Key: in.Key, Plan: in.Plan, Fork: in.Fork, IDs: ids}
	untouched.Attempt.Answer = json.RawMessage("null")
	g := grading{r: r, in: &untouched, digest: digest, spec: spec}
	var c controlResult
	// A failure is kept for good and makes nulls, so a busy host must not be its reason.
	for range controlTries {
		run, err := g.run(ctx)
		if err != nil {
			return false, "", fmt.Errorf("control run: %w", err)
		}
		if c = g.judgeControl(run); c.Passes {
			break
		}
	}
	doc, err := json.Marshal(c)
	if err == nil {
		err = r.cfg.Record.PutDocument(ctx, controlsDocuments, key, doc, Written)
	}
	return c.Passes, c.Evidence, err
}

func (g *grading) judgeControl(run graderRun) controlResult {
	v, err := run.read(g.spec)
	used, budget := run.exit.Usage, g.budget()
	switch {
	case err != nil:
		return controlResult{Evidence: "control on the untouched world: " + err.Error()}
	case v.Reward == nil:
		return controlResult{Evidence: "control on the untouched world: the grader said null: " + v.Reason}
	case used.Wall > budget/2:
		return controlResult{Evidence: fmt.Sprintf("control on the untouched world: took %s of %s", used.Wall, budget)}
	case used.MemoryPeakBytes > run.memory/2:
		return controlResult{Evidence: fmt.Sprintf("control on the untouched world: used %d of %d bytes", used.MemoryPeakBytes, run.memory)}
	}
	return controlResult{Passes: true, Evidence: "control on the untouched world: gave a verdict"}
}

func (g *grading) budget() time.Duration { return seconds(g.in.Plan.Budgets.ScoreS) }

// scratchDir is a directory under the store's run/, for as long as a scoring takes.
type scratchDir struct {
	path string
	dir  *os.File
}

func (r *Runner) scratch(what string) (*scratchDir, error) {
	parent := filepath.Join(r.cfg.Root, "run", "scratch")
	if err := os.MkdirAll(parent, 0o711); err != nil {
		return nil, fmt.Errorf("scratch directory: %w", err)
	}
	path, err := os.MkdirTemp(parent, what+"-")
	if err != nil {
		return nil, fmt.Errorf("scratch directory: %w", err)
	}
	// It becomes the root directory of a layer, so its mode is what / has.
	err = os.Chmod(path, 0o755)
	dir, oerr := os.Open(path)
	if err = errors.Join(err, oerr); err != nil {
		return nil, errors.Join(fmt.Errorf("scratch directory: %w", err), os.RemoveAll(path))
	}
	return &scratchDir{path: path, dir: dir}, nil
}

func (s *scratchDir) remove() {
	_ = s.dir.Close()
	_ = os.RemoveAll(s.path)
}

// sweepScratch removes what scorings of a dead daemon left.
func (r *Runner) sweepScratch() error {
	if r.cfg.Root == "" {
		return nil
	}
	return os.RemoveAll(filepath.Join(r.cfg.Root, "run", "scratch"))
}
