package runner

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// digestVersion is in front of each of the four digests, so that a change of what they
// cover never looks like a change of behaviour.
const digestVersion = "v1:"

// maxDiffs bounds the differences that a spec_conflict lists.
const maxDiffs = 64

// canonical is v as JSON with sorted keys, no blanks and numbers as they were written.
func canonical(v any) ([]byte, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	text := jsontext.Value(raw)
	err = text.Format(jsontext.ReorderRawObjects(true), jsontext.EscapeForJS(true), jsontext.SpaceAfterColon(false), jsontext.SpaceAfterComma(false))
	if err != nil {
		return nil, fmt.Errorf("sort keys: %w", err)
	}
	return text, nil
}

func decodeTree(raw []byte) (any, error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var tree any
	if err := dec.Decode(&tree); err != nil {
		return nil, fmt.Errorf("decode: %w", err)
	}
	return tree, nil
}

func sha256Of(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// digestOf hashes the canonical form of v.
func digestOf(v any) (string, error) {
	b, err := canonical(v)
	if err != nil {
		return "", err
	}
	return sha256Of(b), nil
}

// seedOf is semantics section 5's H: the first four bytes of SHA-256 over the parts,
// each with its length before it so that no two lists of parts are alike.
func seedOf(parts ...string) uint32 {
	h := sha256.New()
	for _, p := range parts {
		_, _ = fmt.Fprintf(h, "%d:%s", len(p), p) // a hash never fails
	}
	return binary.BigEndian.Uint32(h.Sum(nil))
}

func envSeed(spec *EpisodeSpec, runSeed uint32, id string) uint32 {
	if spec.EnvSeed != nil {
		return *spec.EnvSeed
	}
	about := spec.Group
	if about == "" {
		about = id
	}
	return seedOf("env", strconv.FormatUint(uint64(runSeed), 10), about)
}

func sampleSeed(spec *EpisodeSpec, runSeed uint32, id string, attempt int) uint32 {
	run := strconv.FormatUint(uint64(runSeed), 10)
	base := seedOf("sample", run, id)
	if spec.SampleSeed != nil {
		base = *spec.SampleSeed
	}
	if spec.RetrySeed == "fresh" && attempt > 1 {
		return seedOf("sample", strconv.FormatUint(uint64(base), 10), id, strconv.Itoa(attempt))
	}
	return base
}

// digestDoc is what the spec digest covers: everything that decides the result, with
// names resolved and defaults filled in.
func digestDoc(p *Plan) map[string]any {
	doc := map[string]any{
		"world": p.World, "policy": p.PolicyHash, "limits": p.Limits, "budgets": p.Budgets,
		"env_seed": p.EnvSeed, "sample_seed": p.SampleSeed,
	}
	set := func(name string, v any, unset bool) {
		if !unset {
			doc[name] = v
		}
	}
	s := &p.Spec
	set("task", s.Task, s.Task == "")
	set("input", s.Input, len(s.Input) == 0)
	set("group", s.Group, s.Group == "")
	set("weights", s.Weights, s.Weights == "")
	set("env", s.Env, len(s.Env) == 0)
	set("tools", s.Tools, len(s.Tools) == 0)
	set("graders", s.Graders, len(s.Graders) == 0)
	set("prepare", s.Prepare, s.Prepare == nil)
	set("leftovers", s.Leftovers, s.Leftovers == "")
	set("retry_seed", s.RetrySeed, s.RetrySeed == "")
	if n := p.Network; len(s.Network.Allow) > 0 || len(n.Secrets) > 0 {
		doc["network"] = NetworkSpec{Allow: n.Allow, Secrets: n.Secrets}
	}
	// Where an endpoint leads is left out: a server that was started anew elsewhere is the
	// same service. So are its port's other names in the environment.
	set("endpoints", p.Network.Endpoints, len(p.Network.Endpoints) == 0)
	return doc
}

// planDiffs lists where two plans' digest documents differ.
func planDiffs(old, asked *Plan) []Diff {
	a, errA := docTree(old)
	b, errB := docTree(asked)
	if errA != nil || errB != nil {
		return nil
	}
	var diffs []Diff
	diffTrees("", a, b, &diffs)
	return diffs
}

func docTree(p *Plan) (any, error) {
	raw, err := canonical(digestDoc(p))
	if err != nil {
		return nil, err
	}
	return decodeTree(raw)
}

func diffTrees(at string, a, b any, out *[]Diff) {
	if len(*out) >= maxDiffs {
		return
	}
	ma, okA := a.(map[string]any)
	mb, okB := b.(map[string]any)
	if okA && okB {
		diffMaps(at, ma, mb, out)
		return
	}
	sa, okA := a.([]any)
	sb, okB := b.([]any)
	if okA && okB && len(sa) == len(sb) {
		for i := range sa {
			diffTrees(at+"/"+strconv.Itoa(i), sa[i], sb[i], out)
		}
		return
	}
	ja, jb := mustTree(a), mustTree(b)
	if !bytes.Equal(ja, jb) {
		*out = append(*out, Diff{Pointer: at, Old: ja, New: jb})
	}
}

func diffMaps(at string, a, b map[string]any, out *[]Diff) {
	var names []string
	for name := range a {
		names = append(names, name)
	}
	for name := range b {
		if _, ok := a[name]; !ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		va, okA := a[name]
		vb, okB := b[name]
		p := at + "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
		switch {
		case okA && okB:
			diffTrees(p, va, vb, out)
		case okA:
			*out = append(*out, Diff{Pointer: p, Old: mustTree(va)})
		default:
			*out = append(*out, Diff{Pointer: p, New: mustTree(vb)})
		}
	}
}

// mustTree encodes what was decoded from JSON, which cannot fail.
func mustTree(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		return json.RawMessage(`null`)
	}
	return b
}

// startDigest covers what every attempt of a spec starts from.
func startDigest(p *Plan) (string, error) {
	d, err := digestOf(map[string]any{
		"world": p.World, "policy": p.PolicyHash, "limits": p.Limits, "env_seed": p.EnvSeed, "env": p.Env,
	})
	return digestVersion + d, err
}

// ledger gathers the actions and observations digests, whatever order calls end in.
type ledger struct {
	actions, observations map[int64][sha256.Size]byte
}

func newLedger() ledger {
	return ledger{actions: map[int64][sha256.Size]byte{}, observations: map[int64][sha256.Size]byte{}}
}

func (l *ledger) digests() (actions, observations string) {
	return sumInOrder("actions", l.actions), sumInOrder("observations", l.observations)
}

func sumInOrder(what string, m map[int64][sha256.Size]byte) string {
	seqs := make([]int64, 0, len(m))
	for s := range m {
		seqs = append(seqs, s)
	}
	slices.Sort(seqs)
	h := sha256.New()
	h.Write([]byte(what + "\n"))
	for _, s := range seqs {
		sum := m[s]
		h.Write(sum[:])
	}
	return digestVersion + "sha256:" + hex.EncodeToString(h.Sum(nil))
}

// actionSum hashes a call: tool, arguments and what went into stdin or a file, not the
// number it came under nor what only steers the daemon.
func actionSum(spec *CallSpec, stdinSHA string) ([sha256.Size]byte, error) {
	c := *spec
	c.Seq, c.Attempt, c.Generation, c.Weights, c.Parallel = 0, 0, 0, "", false
	c.MaxStdout, c.MaxStderr = 0, 0
	c.Stdin = nil
	content := sha256.Sum256(c.Content)
	c.Content = nil
	b, err := canonical(map[string]any{"call": c, "stdin": stdinSHA, "content": content[:]})
	if err != nil {
		return [sha256.Size]byte{}, err
	}
	return sha256.Sum256(b), nil
}

// observationSum hashes what a call showed the agent, without what differs from one host
// and hour to the next.
func observationSum(res *CallResult) ([sha256.Size]byte, error) {
	type stream struct {
		N   int64
		SHA string
	}
	var entries []any
	for _, e := range res.Entries {
		entries = append(entries, []any{e.Name, e.Type, e.Mode, e.UID, e.GID, e.Size, e.Target})
	}
	errKind := ""
	if res.Error != nil {
		errKind = res.Error.Kind
	}
	content := sha256.Sum256(res.Content)
	b, err := canonical([]any{
		res.Code, res.Signal, errKind, res.TimedOut, res.CPUTimedOut, res.OOM,
		stream{res.Stdout.Bytes, res.Stdout.SHA256},
		stream{res.Stderr.Bytes, res.Stderr.SHA256},
		entries, content[:],
	})
	if err != nil {
		return [sha256.Size]byte{}, err
	}
	return sha256.Sum256(b), nil
}
