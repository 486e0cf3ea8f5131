package runner

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/paddock-run/paddock/overlay"
	"github.com/paddock-run/paddock/policies"
)

// Defaults of budgets and requests (semantics sections 7 and 8).
const (
	DefaultSetupS = 60
	DefaultAgentS = 300
	DefaultCallS  = 60
	DefaultScoreS = 120
	DefaultCPUs   = 0.05
	DefaultMemory = 64 << 20
	// DefaultPolicy is the policy of specs that name none.
	DefaultPolicy = "default"
)

// Bounds of a spec.
const (
	maxInput   = 16 << 20
	maxEnv     = 256
	maxEnvText = 128 << 10
	maxTools   = 256
	maxGraders = 16
	maxLabels  = 64
	maxText    = 1024
	maxRetries = 100
	maxSeconds = 30 * 24 * 3600
)

var (
	segment = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:@=+~-]{0,127}$`)
	envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

// CheckID says what is wrong with an episode id, group or prefix; nil is nothing.
func CheckID(field, id string) error {
	if id == "" || len(id) > 512 {
		return badField(field, "has %d bytes, must have 1 to 512", len(id))
	}
	parts := strings.Split(id, "/")
	if len(parts) > 8 {
		return badField(field, "%q has %d segments, at most 8 are allowed", id, len(parts))
	}
	for _, p := range parts {
		if !segment.MatchString(p) {
			return badField(field, "segment %q of %q is not [A-Za-z0-9][A-Za-z0-9._:@=+~-]{0,127}", p, id)
		}
	}
	return nil
}

// checkSpec checks what needs no look at the world or policy.
func checkSpec(s *EpisodeSpec) error {
	if err := CheckID("id", s.ID); err != nil {
		return err
	}
	if s.Group != "" {
		if err := CheckID("group", s.Group); err != nil {
			return err
		}
	}
	if s.World == "" {
		return badField("world", "is missing")
	}
	if len(s.Input) > maxInput {
		return badField("input", "has %d bytes, at most %d are allowed", len(s.Input), maxInput)
	}
	if len(s.Input) > 0 && !json.Valid(s.Input) {
		return badField("input", "is not JSON")
	}
	if s.Retries < 0 || s.Retries > maxRetries {
		return badField("retries", "%d is not in 0 to %d", s.Retries, maxRetries)
	}
	if err := checkChoices(s); err != nil {
		return err
	}
	for field, text := range map[string]string{"task": s.Task, "weights": s.Weights} {
		if len(text) > maxText {
			return badField(field, "has %d bytes, at most %d are allowed", len(text), maxText)
		}
	}
	if len(s.Labels) > maxLabels {
		return badField("labels", "has %d, at most %d are allowed", len(s.Labels), maxLabels)
	}
	if len(s.Graders) > maxGraders {
		return badField("graders", "has %d, at most %d are allowed", len(s.Graders), maxGraders)
	}
	if err := checkEnv("env", s.Env); err != nil {
		return err
	}
	if err := checkTools(s.Tools); err != nil {
		return err
	}
	if err := checkProgram(s.Prepare); err != nil {
		return err
	}
	return checkNumbers(s)
}

func checkChoices(s *EpisodeSpec) error {
	for _, c := range []struct {
		field, value string
		allowed      []string
	}{
		{"leftovers", s.Leftovers, []string{"", "keep", "kill"}},
		{"retry_seed", s.RetrySeed, []string{"", "same", "fresh"}},
		{"on_conflict", s.OnConflict, []string{"", "supersede"}},
		{"attempt", s.Attempt, []string{"", "next"}},
		{"lease/kind", s.Lease.Kind, []string{"", "connection", "ttl", "daemon"}},
	} {
		if !slices.Contains(c.allowed, c.value) {
			return badField(c.field, "%q is not one of %q", c.value, c.allowed[1:])
		}
	}
	return nil
}

func checkNumbers(s *EpisodeSpec) error {
	b, l := &s.Budgets, &s.Limits
	for field, v := range map[string]float64{
		"budgets/queue_s": b.QueueS, "budgets/setup_s": b.SetupS, "budgets/agent_s": b.AgentS,
		"budgets/call_s": b.CallS, "budgets/wall_s": b.WallS, "budgets/score_s": b.ScoreS,
		"limits/cpu_s": l.CPUSeconds, "lease/ttl_s": s.Lease.TTLS,
	} {
		if !(v >= 0 && v <= maxSeconds) {
			return badField(field, "%v is not in 0 to %d seconds", v, int(maxSeconds))
		}
	}
	if l.OutputBytes < 0 || l.Calls < 0 {
		return badField("limits", "output_total and calls must not be negative")
	}
	if !(s.Requests.CPUs >= 0) || s.Requests.MemoryBytes < 0 {
		return badField("requests", "must not be negative")
	}
	return nil
}

func checkEnv(field string, env map[string]string) error {
	if len(env) > maxEnv {
		return badField(field, "has %d variables, at most %d are allowed", len(env), maxEnv)
	}
	total := 0
	for name, value := range env {
		total += len(name) + len(value)
		if !envName.MatchString(name) {
			return badField(field, "%q is no name of a variable", name)
		}
		if strings.ContainsRune(value, 0) {
			return badField(field, "the value of %s holds a NUL", name)
		}
	}
	if total > maxEnvText {
		return badField(field, "has %d bytes, at most %d are allowed", total, maxEnvText)
	}
	return nil
}

func checkTools(tools []overlay.Tool) error {
	if len(tools) > maxTools {
		return badField("tools", "has %d, at most %d are allowed", len(tools), maxTools)
	}
	seen := map[string]bool{}
	for i, tool := range tools {
		at := fmt.Sprintf("tools/%d", i)
		switch {
		case !segment.MatchString(tool.Name):
			return badField(at+"/name", "%q is out of form", tool.Name)
		case builtin[tool.Name] != nil:
			return badField(at+"/name", "%q is a built-in tool", tool.Name)
		case seen[tool.Name]:
			return badField(at+"/name", "%q is there twice", tool.Name)
		case len(tool.Command) == 0:
			return badField(at+"/command", "is missing")
		case !(tool.TimeoutS >= 0 && tool.TimeoutS <= maxSeconds):
			return badField(at+"/timeout_s", "%v is not in 0 to %d", tool.TimeoutS, int(maxSeconds))
		}
		seen[tool.Name] = true
		if _, err := compileSchema(&tool); err != nil {
			return badField(at+"/parameters", "%v", err)
		}
	}
	return nil
}

// makePlan fixes everything that decides the result. It touches nothing.
func makePlan(spec *EpisodeSpec, run Run, world overlay.World, pol *policies.Policy, host policies.Host) (Plan, error) {
	eff, clamped, err := pol.Effective(policies.Limits{
		CPUs: spec.Limits.CPUs, MemoryBytes: spec.Limits.MemoryBytes, DiskBytes: spec.Limits.DiskBytes,
		Inodes: spec.Limits.Inodes, Pids: spec.Limits.Pids,
	}, host)
	if le, ok := errors.AsType[*policies.LimitError](err); ok {
		return Plan{}, badField("limits/"+le.Field, "%s", le.Detail)
	}
	if err != nil {
		return Plan{}, fmt.Errorf("effective limits: %w", err)
	}
	p := Plan{
		Spec: *spec, World: world.ID, Policy: pol.Name(), PolicyHash: pol.Hash(), Clamped: clamped, DiskOn: eff.DiskOn,
		Limits: Limits{
			CPUs: eff.CPUs, MemoryBytes: eff.MemoryBytes, DiskBytes: eff.DiskBytes, Inodes: eff.Inodes, Pids: eff.Pids,
			CPUSeconds: spec.Limits.CPUSeconds, OutputBytes: spec.Limits.OutputBytes, Calls: spec.Limits.Calls,
		},
		Requests: requestsOf(spec.Requests, host),
		Budgets:  budgetsOf(spec.Budgets),
		EnvSeed:  envSeed(spec, run.Seed, spec.ID), SampleSeed: sampleSeed(spec, run.Seed, spec.ID, 1),
	}
	if p.Network, err = planNetwork(spec.Network, spec.Endpoints, pol); err != nil {
		return Plan{}, err
	}
	// After the world's: an image may still name the proxy of the host that built it.
	p.Env = mergeEnv(pol.Env(p.EnvSeed), world.Config.Env, p.Network.env(), envList(spec.Env))
	if p.Digest, err = digestOf(digestDoc(&p)); err != nil {
		return Plan{}, err
	}
	return p, nil
}

// effective are the plan's limits as policies know them.
func (p *Plan) effective() policies.Limits {
	return policies.Limits{
		CPUs: p.Limits.CPUs, MemoryBytes: p.Limits.MemoryBytes, DiskBytes: p.Limits.DiskBytes,
		Inodes: p.Limits.Inodes, Pids: p.Limits.Pids, DiskOn: p.DiskOn,
	}
}

// requestsOf fills in the defaults. More than the host has would wait for ever, so it is
// lowered like any other limit.
func requestsOf(q Requests, host policies.Host) Requests {
	if q.CPUs == 0 {
		q.CPUs = DefaultCPUs
	}
	if q.MemoryBytes == 0 {
		q.MemoryBytes = DefaultMemory
	}
	if host.CPUs > 0 {
		q.CPUs = min(q.CPUs, host.CPUs)
	}
	if host.MemoryBytes > 0 {
		q.MemoryBytes = min(q.MemoryBytes, host.MemoryBytes)
	}
	return q
}

func budgetsOf(b Budgets) Budgets {
	def := func(v *float64, d float64) {
		if *v == 0 {
			*v = d
		}
	}
	def(&b.SetupS, DefaultSetupS)
	def(&b.AgentS, DefaultAgentS)
	def(&b.CallS, DefaultCallS)
	def(&b.ScoreS, DefaultScoreS)
	return b
}

func envList(m map[string]string) []string {
	out := make([]string, 0, len(m))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, k+"="+m[k])
	}
	return out
}

// mergeEnv joins environments; of one name the last counts. The result is sorted.
func mergeEnv(lists ...[]string) []string {
	m := map[string]string{}
	for _, l := range lists {
		for _, kv := range l {
			if k, v, ok := strings.Cut(kv, "="); ok && k != "" {
				m[k] = v
			}
		}
	}
	return envList(m)
}
