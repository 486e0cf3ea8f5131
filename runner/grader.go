package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"path"
	"slices"
	"strings"

	"github.com/paddock-run/paddock/policies"
	"github.com/paddock-run/paddock/sandbox"
)

// DefaultGraderPolicy locks graders down unless they say otherwise.
const DefaultGraderPolicy = "strict"

// Bounds and places of a grader.
const (
	// DefaultGraderDir is where a grader's files are.
	DefaultGraderDir = "/grader"
	// InputDir holds what a grader reads: trajectory.jsonl, capture.json, answer.json,
	// spec.json.
	InputDir         = "/paddock"
	maxGraderBytes   = 64 << 20
	maxGraderFiles   = 10_000
	gradersDocuments = "graders"
)

// PutGrader keeps a grader and returns its digest; equal graders have equal digests.
func (r *Runner) PutGrader(ctx context.Context, spec GraderSpec) (digest string, err error) {
	if err := r.checkGrader(&spec); err != nil {
		return "", err
	}
	doc, err := canonical(spec)
	if err != nil {
		return "", fmt.Errorf("encode grader: %w", err)
	}
	digest = sha256Of(doc)
	if err := r.cfg.Record.PutDocument(ctx, gradersDocuments, digest, doc, Written); err != nil {
		return "", fmt.Errorf("record grader: %w", err)
	}
	return digest, nil
}

// Grader returns a grader by digest.
func (r *Runner) Grader(ctx context.Context, digest string) (GraderSpec, error) {
	doc, err := r.cfg.Record.Document(ctx, gradersDocuments, digest)
	if KindOf(err) == KindNotFound {
		return GraderSpec{}, &Error{Kind: KindUnknownGrader, Detail: fmt.Sprintf("no grader %q", digest)}
	}
	if err != nil {
		return GraderSpec{}, fmt.Errorf("look up grader: %w", err)
	}
	var spec GraderSpec
	if err := json.Unmarshal(doc, &spec); err != nil {
		return GraderSpec{}, &Error{Kind: KindRecordDamaged, Detail: "grader " + digest + ": " + err.Error()}
	}
	return spec, nil
}

// checkGrader checks a grader and fills in its defaults, so that they are in its digest.
func (r *Runner) checkGrader(g *GraderSpec) error {
	setDefault(&g.Dir, DefaultGraderDir)
	setDefault(&g.Policy, DefaultGraderPolicy)
	setDefault(&g.Verdict, "json")
	setDefault(&g.Mode, "fresh")
	setDefault(&g.OnTamper, "report")
	if g.RewardRange == nil {
		g.RewardRange = &[2]float64{0, 1}
	}
	if g.OnNoVerdict == nil {
		zero := 0.0
		g.OnNoVerdict = &zero
	}
	pol, err := r.graderPolicy(g)
	if err != nil {
		return err
	}
	n, err := planNetwork(g.Network, nil, pol)
	if err == nil {
		err = r.checkNetwork(&n)
	}
	if err != nil {
		return err
	}
	for _, c := range []struct {
		field, value string
		allowed      []string
	}{
		{"verdict", g.Verdict, []string{"json", "exit_code"}},
		{"mode", g.Mode, []string{"fresh", "boot"}},
		{"on_tamper", g.OnTamper, []string{"report", "zero"}},
	} {
		if !slices.Contains(c.allowed, c.value) {
			return badField(c.field, "%q is not one of %q", c.value, c.allowed)
		}
	}
	if len(g.Command) == 0 {
		return badField("command", "is missing")
	}
	if (g.Mode == "boot") != (len(g.Boot) > 0) {
		return badField("boot", "start commands go with mode boot, and mode boot needs them")
	}
	low, high := g.RewardRange[0], g.RewardRange[1]
	if math.IsNaN(low) || math.IsInf(low, 0) || math.IsNaN(high) || math.IsInf(high, 0) || low > high {
		return badField("reward_range", "[%v, %v] is no range", low, high)
	}
	if n := *g.OnNoVerdict; math.IsNaN(n) || n < low || n > high {
		return badField("on_no_verdict", "%v is outside the reward range", n)
	}
	if err := checkEnv("env", g.Env); err != nil {
		return err
	}
	if err := r.checkGraderCommand(g); err != nil {
		return err
	}
	return checkGraderPaths(g)
}

// checkGraderCommand refuses what could never start: a scoring that fails for it would
// look like a fault of the platform.
func (r *Runner) checkGraderCommand(g *GraderSpec) error {
	commands := append([][]string{g.Command}, g.Boot...)
	for i, argv := range commands {
		field := "command"
		if i > 0 {
			field = fmt.Sprintf("boot/%d", i-1)
		}
		if len(argv) == 0 || argv[0] == "" {
			return badField(field, "names no program")
		}
		total := 0
		for _, arg := range argv {
			if total += len(arg) + 1; strings.ContainsRune(arg, 0) {
				return badField(field, "holds a NUL")
			}
		}
		if len(argv) > maxArgv || total > maxArgText {
			return badField(field, "has %d entries and %d bytes, at most %d and %d are allowed", len(argv), total, maxArgv, maxArgText)
		}
	}
	if g.User == "" {
		return nil
	}
	who, _, _, err := sandbox.LookupUser(nil, nil, g.User)
	if err != nil {
		return badField("user", "%v; name it by its id, as the passwd file of an end state is the agent's", err)
	}
	pol, err := r.graderPolicy(g)
	if err != nil {
		return err
	}
	if err := pol.CheckUser(who.UID); err != nil {
		return badField("user", "%v", err)
	}
	return nil
}

func setDefault(s *string, value string) {
	if *s == "" {
		*s = value
	}
}

// reservedDirs cannot hold a grader's files: they are the launcher's, or the inputs'.
var reservedDirs = []string{"/proc", "/dev", "/sys", "/etc", InputDir}

func checkGraderPaths(g *GraderSpec) error {
	if !path.IsAbs(g.Dir) || path.Clean(g.Dir) != g.Dir || g.Dir == "/" || strings.ContainsRune(g.Dir, 0) || len(g.Dir) > 1024 || !shortNames(g.Dir) {
		return badField("dir", "%q is not a clean absolute path below /", g.Dir)
	}
	for _, d := range reservedDirs {
		if g.Dir == d || strings.HasPrefix(g.Dir, d+"/") {
			return badField("dir", "%q is reserved", d)
		}
	}
	if len(g.Files) > maxGraderFiles {
		return badField("files", "has %d, at most %d are allowed", len(g.Files), maxGraderFiles)
	}
	var total int
	for name, f := range g.Files {
		if name == "" || path.IsAbs(name) || path.Clean(name) != name || strings.HasPrefix(name, "../") || name == ".." || name == "." ||
			strings.ContainsRune(name, 0) || len(name) > 1024 || !shortNames(name) {
			return badField("files", "%q is not a clean relative path", name)
		}
		if f.Mode&^0o777 != 0 {
			return badField("files", "%q: mode %o has bits beyond 0777", name, f.Mode)
		}
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			if _, both := g.Files[dir]; both {
				return badField("files", "%q is both a file and a directory", dir)
			}
		}
		total += len(f.Bytes)
	}
	if total > maxGraderBytes {
		return badField("files", "have %d bytes, at most %d are allowed", total, maxGraderBytes)
	}
	for _, p := range g.Protected {
		if !path.IsAbs(p) || path.Clean(p) != p {
			return badField("protected", "%q is not a clean absolute path", p)
		}
	}
	return g.checkKeep()
}

// shortNames says whether every segment of a path is short enough for a file system.
func shortNames(p string) bool {
	for name := range strings.SplitSeq(p, "/") {
		if len(name) > 255 {
			return false
		}
	}
	return true
}

// graderPolicy is a grader's policy with its effective limits, or why it cannot be.
func (r *Runner) graderPolicy(g *GraderSpec) (*policies.Policy, error) {
	pol, err := r.policy(g.Policy)
	if err != nil {
		return nil, err
	}
	if _, err := graderLimits(pol, g, r.cfg.Host); err != nil {
		return nil, err
	}
	return pol, nil
}

func graderLimits(pol *policies.Policy, g *GraderSpec, host policies.Host) (policies.Limits, error) {
	eff, _, err := pol.Effective(policies.Limits{
		CPUs: g.Limits.CPUs, MemoryBytes: g.Limits.MemoryBytes, DiskBytes: g.Limits.DiskBytes,
		Inodes: g.Limits.Inodes, Pids: g.Limits.Pids,
	}, host)
	if le, ok := errors.AsType[*policies.LimitError](err); ok {
		return eff, badField("limits/"+le.Field, "%v", err)
	}
	return eff, err
}

// weigh fills in default weights: the first grader's is 1, the others' 0.
func weigh(graders []WeightedGrader) []float64 {
	w := make([]float64, len(graders))
	for i, g := range graders {
		switch {
		case g.Weight != nil:
			w[i] = *g.Weight
		case i == 0:
			w[i] = 1
		}
	}
	return w
}
