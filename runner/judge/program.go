package judge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/paddock-run/paddock/runner"
)

// workDir is where the code is, and the working directory of everything that is run.
const workDir = "/judge"

// harnessDir holds harnesses and what they read, below workDir.
const harnessDir = ".paddock"

// build is what is compiled: sources, and the command that makes a program of them.
type build struct {
	lang    *Language
	files   map[string][]byte
	command []string
	env     map[string]string
	limits  Limits
	// patience is no part of the key: it does not change what comes out.
	patience time.Duration
}

// program is code that can be run, any number of times, until close.
type program struct {
	lang   *Language
	ground *runner.Ground
	// files are written before each run: all of an interpreted program, none of a compiled one.
	files map[string][]byte
	env   map[string]string
	// patience bounds the wait for each run's turn.
	patience time.Duration
	// compile is nil where nothing was compiled; found says that an earlier one had.
	compile *Stage
	found   bool
	release func()
}

func (p *program) close() {
	if p.ground != nil {
		p.ground.Close()
	}
	if p.release != nil {
		p.release()
	}
}

// failed says that there is nothing to run.
func (p *program) failed() bool { return p.compile != nil && p.compile.Verdict != OK }

func (s *Source) check() (*Language, error) {
	if s.Language == "" {
		return nil, badField("language", "is missing")
	}
	lang, ok := findLanguage(s.Language)
	if !ok {
		return nil, badField("language", "%q is not one of %s", s.Language, strings.Join(names(), ", "))
	}
	return lang, nil
}

func names() []string {
	var out []string
	for _, l := range Languages() {
		out = append(out, l.Name)
	}
	return out
}

// prepare makes a program of a source. test, when set, is a test file that is compiled
// with it, in place of the code alone.
func (j *Judge) prepare(ctx context.Context, src *Source, test *TestFile, testText []byte) (*program, error) {
	lang, err := src.check()
	if err != nil {
		return nil, err
	}
	b := &build{lang: lang, files: maps.Clone(src.Files), command: lang.Compile, env: maps.Clone(lang.Env), limits: src.CompileLimits.effective(DefaultCompile), patience: src.Patience}
	if b.files == nil {
		b.files = map[string][]byte{}
	}
	b.files[lang.Source] = []byte(src.Code)
	if test != nil {
		b.files[test.Source], b.command = testText, test.Compile
	}
	if b.env == nil {
		b.env = map[string]string{}
	}
	maps.Copy(b.env, src.Env)
	bare, err := j.grounds.Ground(ctx, runner.GroundSpec{World: src.World})
	if err != nil {
		return nil, err
	}
	if len(b.command) == 0 {
		return &program{lang: lang, ground: bare, files: b.files, env: b.env, patience: b.patience}, nil
	}
	defer bare.Close()
	return j.compiled(ctx, b, bare)
}

// compiled compiles, unless the same was compiled before.
func (j *Judge) compiled(ctx context.Context, b *build, bare *runner.Ground) (*program, error) {
	key, err := b.key(bare.World())
	if err != nil {
		return nil, err
	}
	out, found, release, err := j.kept.get(ctx, key, func() (compiled, bool, error) { return b.compile(ctx, bare) })
	if err != nil {
		return nil, err
	}
	p := &program{lang: b.lang, env: b.env, patience: b.patience, compile: &out.stage, found: found, release: release}
	if out.layer == nil {
		return p, nil
	}
	p.ground, err = j.grounds.Ground(ctx, runner.GroundSpec{World: bare.World(), On: out.layer})
	if err != nil {
		release()
		return nil, err
	}
	return p, nil
}

func (b *build) key(world string) (string, error) {
	doc, err := json.Marshal(map[string]any{
		"world": world, "language": b.lang.digest, "files": b.files, "command": b.command, "env": b.env, "limits": b.limits,
	})
	if err != nil {
		return "", fmt.Errorf("name the compiled state: %w", err)
	}
	return digest(doc), nil
}

// compile compiles. What ended for a limit or a signal may go otherwise another time and is
// not kept.
func (b *build) compile(ctx context.Context, bare *runner.Ground) (compiled, bool, error) {
	spec := trialSpec(b.files, b.env, b.limits)
	spec.Argv, spec.Drop, spec.Patience = b.command, b.lang.Drop, b.patience
	res, layer, err := bare.Prepare(ctx, spec)
	if err != nil {
		return compiled{}, false, err
	}
	if err := missing(b.lang, b.command, &res.Exit); err != nil {
		return compiled{}, false, err
	}
	if res.NoSpace {
		return compiled{}, false, badField("files", "do not fit the disk of the compilation, %d bytes", res.Limits.DiskBytes)
	}
	return compiled{stage: stage(&res), layer: layer}, res.Exit.Code != nil, nil
}

func trialSpec(files map[string][]byte, env map[string]string, l Limits) runner.TrialSpec {
	s := runner.TrialSpec{
		Dir: workDir, Env: env, WallS: l.WallSeconds, Files: make(map[string]runner.GraderFile, len(files)),
		Limits: runner.Limits{
			CPUSeconds: l.CPUSeconds, MemoryBytes: l.MemoryBytes, DiskBytes: l.DiskBytes, Pids: l.Pids, OutputBytes: l.OutputBytes,
		},
	}
	for name, b := range files {
		s.Files[name] = runner.GraderFile{Bytes: b}
	}
	return s
}

// runSpec is one run of a program.
type runSpec struct {
	argv   []string
	files  map[string][]byte
	env    map[string]string
	stdin  []byte
	limits Limits
	said   bool
	fetch  []string
}

func (p *program) run(ctx context.Context, r runSpec) (Stage, map[string][]byte, error) {
	files, env := p.files, p.env
	if len(r.files) > 0 {
		files = maps.Clone(p.files)
		if files == nil {
			files = map[string][]byte{}
		}
		maps.Copy(files, r.files)
	}
	if len(r.env) > 0 {
		env = maps.Clone(p.env)
		maps.Copy(env, r.env)
	}
	spec := trialSpec(files, env, r.limits)
	spec.Argv, spec.Stdin, spec.Said, spec.Fetch, spec.Patience = r.argv, r.stdin, r.said, r.fetch, p.patience
	res, err := p.ground.Try(ctx, spec)
	if err != nil {
		return Stage{}, nil, err
	}
	if err := missing(p.lang, r.argv, &res.Exit); err != nil {
		return Stage{}, nil, err
	}
	if res.NoSpace {
		return Stage{}, nil, badField("files", "do not fit the disk of %d bytes", res.Limits.DiskBytes)
	}
	return stage(&res), res.Fetched, nil
}

// RunSpec is code to run once, with nothing to compare.
type RunSpec struct {
	Source
	Stdin  []byte
	Args   []string
	Limits Limits
	// Fetch are files to read back; those that are not there are left out.
	Fetch []string
}

// RunResult is how it went. Run is nil where the compilation failed.
type RunResult struct {
	World    string
	Language string
	Compile  *Stage
	Kept     bool
	Run      *Stage
	Files    map[string][]byte
}

// Run compiles and runs code once.
func (j *Judge) Run(ctx context.Context, spec RunSpec) (RunResult, error) {
	p, err := j.prepare(ctx, &spec.Source, nil, nil)
	if err != nil {
		return RunResult{}, err
	}
	defer p.close()
	out := RunResult{Language: p.lang.Name, Compile: p.compile, Kept: p.found}
	if p.failed() {
		return out, nil
	}
	out.World = p.ground.World()
	s, files, err := p.run(ctx, runSpec{
		argv: append(append([]string{}, p.lang.Run...), spec.Args...), stdin: spec.Stdin, limits: spec.Limits.effective(DefaultLimits), fetch: spec.Fetch,
	})
	if err != nil {
		return RunResult{}, err
	}
	out.Run, out.Files = &s, files
	return out, nil
}

// refused says whether an error is the request's fault or a state of the daemon, which is
// an answer of its own, rather than a platform's failure in the middle of a judgement.
func refused(err error) bool {
	_, ok := errors.AsType[*runner.Error](err)
	return ok
}
