package runner

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// maxManifestLine bounds one line of a manifest.
const maxManifestLine = 32 << 20

// ReadManifest reads a batch's episodes from JSONL: one BatchEpisode a line, blank lines
// are skipped. An error is a bad_request that names line and field.
func ReadManifest(rd io.Reader) ([]BatchEpisode, error) {
	lines := bufio.NewScanner(rd)
	lines.Buffer(make([]byte, 0, 64<<10), maxManifestLine)
	var episodes []BatchEpisode
	for n := 1; lines.Scan(); n++ {
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		if len(episodes) >= MaxBatch {
			return nil, badField(fmt.Sprintf("line %d", n), "a batch has at most %d episodes", MaxBatch)
		}
		e, err := readLine(line)
		if err != nil {
			err.Field = strings.TrimSuffix(fmt.Sprintf("line %d: %s", n, err.Field), ": ")
			return nil, err
		}
		episodes = append(episodes, e)
	}
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		return nil, badField("manifest", "a line has more than %d bytes", maxManifestLine)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read manifest: %w", err)
	}
	return episodes, nil
}

func readLine(line []byte) (BatchEpisode, *Error) {
	var e BatchEpisode
	dec := json.NewDecoder(bytes.NewReader(line))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&e); err != nil {
		return e, jsonError(err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return e, badField("", "something follows the object")
	}
	if err := checkLine(&e, ""); err != nil {
		if re, ok := errors.AsType[*Error](err); ok {
			return e, re
		}
		return e, badField("", "%v", err)
	}
	return e, nil
}

// jsonError names the field that a decoder stumbled over.
func jsonError(err error) *Error {
	if te, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return badField(strings.ReplaceAll(te.Field, ".", "/"), "is %s, which is of the wrong type", te.Value)
	}
	// The decoder has no type for this one.
	if _, name, ok := strings.Cut(err.Error(), "unknown field "); ok {
		return badField(strings.Trim(name, `"`), "is unknown")
	}
	return badField("", "is not JSON: %v", err)
}

// checkBatch checks a batch and its lines, as checkLines does, and fills in its defaults.
func checkBatch(s *BatchSpec) error {
	if s.ID != "" && !segment.MatchString(s.ID) {
		return badField("id", "%q is not [A-Za-z0-9][A-Za-z0-9._:@=+~-]{0,127}", s.ID)
	}
	if s.Run == "" {
		s.Run = DefaultRun
	}
	if s.Parallel < 0 || s.Parallel > maxParallel {
		return badField("parallel", "%d is not in 0 to %d", s.Parallel, maxParallel)
	}
	if !(s.DeadlineS >= 0 && s.DeadlineS <= maxSeconds) {
		return badField("deadline_s", "%v is not in 0 to %d seconds", s.DeadlineS, int(maxSeconds))
	}
	if err := checkGroups(s); err != nil {
		return err
	}
	if s.Open && len(s.Episodes) == 0 {
		return nil
	}
	return checkLines(s, s.Episodes)
}

const (
	onVoidDrop   = "drop"
	onVoidRefill = "refill:"
)

// checkGroups checks a batch's rules for groups and fills in their defaults.
func checkGroups(s *BatchSpec) error {
	if s.GroupSize < 0 || s.GroupSize > MaxGroupSize {
		return badField("group_size", "%d is not in 0 to %d", s.GroupSize, MaxGroupSize)
	}
	if s.Take != "" && s.GroupSize == 0 {
		return badField("take", "goes with group_size")
	}
	if s.GroupSize > 0 {
		setDefault(&s.Take, takeStarted)
		if s.Take != takeStarted && s.Take != takeFinished {
			return badField("take", "%q is not one of %s, %s", s.Take, takeStarted, takeFinished)
		}
	}
	setDefault(&s.OnVoid, onVoidDrop)
	if _, err := refillsOf(s.OnVoid); err != nil {
		return err
	}
	if s.MinValid < 0 || s.MinValid > MaxGroupSize {
		return badField("min_valid", "%d is not in 0 to %d", s.MinValid, MaxGroupSize)
	}
	if s.GroupSize > 0 && s.MinValid > s.GroupSize {
		return badField("min_valid", "%d is more than group_size, %d", s.MinValid, s.GroupSize)
	}
	return nil
}

// refillsOf is the K of "refill:K", 0 for the other words of on_void.
func refillsOf(onVoid string) (int, error) {
	text, refill := strings.CutPrefix(onVoid, onVoidRefill)
	if !refill {
		if onVoid != onVoidDrop && onVoid != voidGroup {
			return 0, badField("on_void", "%q is not one of drop, refill:K, void_group", onVoid)
		}
		return 0, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > MaxRefill {
		return 0, badField("on_void", "%q: want refill:K with K from 1 to %d", onVoid, MaxRefill)
	}
	return n, nil
}

// checkLines checks lines of a batch as far as that needs no look at worlds, policies and
// graders, and puts the batch's run and lease into them.
func checkLines(s *BatchSpec, episodes []BatchEpisode) error {
	if len(episodes) == 0 || len(episodes) > MaxBatch {
		return badField("episodes", "has %d lines, must have 1 to %d", len(episodes), MaxBatch)
	}
	refills, err := refillsOf(s.OnVoid)
	if err != nil {
		return err
	}
	known := map[string]bool{}
	for i := range episodes {
		e := &episodes[i]
		if err := checkLine(e, s.Run); err != nil {
			return inLine(i, err)
		}
		if known[e.ID] {
			return inLine(i, badField("id", "%q is there twice", e.ID))
		}
		known[e.ID] = true
		if refills > 0 {
			if err := CheckID("id", e.ID+"~"+strconv.Itoa(MaxRefill)); err != nil {
				return inLine(i, badField("id", "%q leaves no room for the ids of refills", e.ID))
			}
		}
		e.Run, e.Lease = s.Run, LeaseSpec{Kind: "daemon"}
	}
	return nil
}

// inLine says which line an error is about.
func inLine(i int, err error) error {
	e, ok := errors.AsType[*Error](err)
	if !ok {
		return fmt.Errorf("episodes/%d: %w", i, err)
	}
	in := *e
	in.Field = strings.TrimSuffix(fmt.Sprintf("episodes/%d/%s", i, e.Field), "/")
	return &in
}

// checkLine checks one line; run "" lets it name any run.
func checkLine(e *BatchEpisode, run string) error {
	if run != "" && e.Run != "" && e.Run != run {
		return badField("run", "%q is not the batch's, %q", e.Run, run)
	}
	if e.Attempt != "" {
		return badField("attempt", "a batch counts attempts itself")
	}
	if err := checkSpec(&e.EpisodeSpec); err != nil {
		return err
	}
	return checkAgent(&e.Agent)
}

func checkAgent(a *AgentSpec) error {
	kinds := 0
	for _, set := range []bool{a.Calls != nil, a.Command != nil, a.Host != nil, a.Client} {
		if set {
			kinds++
		}
	}
	if kinds != 1 {
		return badField("agent", "has %d of calls, command, host and client, must have exactly one", kinds)
	}
	for i := range a.Calls {
		at := fmt.Sprintf("agent/calls/%d/", i)
		if a.Calls[i].Tool == "" {
			return badField(at+"tool", "is missing")
		}
		if a.Calls[i].Seq != 0 || a.Calls[i].Attempt != 0 || a.Calls[i].Generation != 0 {
			return badField(at+"seq", "the batch numbers calls itself")
		}
		if err := checkTool(&a.Calls[i]); err != nil {
			return under(at, err)
		}
	}
	if a.Command != nil {
		if a.Command.Tool != "" && a.Command.Tool != "exec" {
			return badField("agent/command/tool", "%q is not exec", a.Command.Tool)
		}
		if err := checkArgv(a.Command); err != nil {
			return under("agent/command/", err)
		}
	}
	if a.Host != nil && (len(a.Host) == 0 || !strings.HasPrefix(a.Host[0], "/")) {
		return badField("agent/host", "the program must be an absolute path")
	}
	if len(a.Answer) > maxAnswer || (len(a.Answer) > 0 && !json.Valid(a.Answer)) {
		return badField("agent/answer", "is not JSON of at most %d bytes", maxAnswer)
	}
	if (a.Host != nil || a.Client) && len(a.Answer) > 0 {
		return badField("agent/answer", "such an agent finishes with its own")
	}
	return nil
}

func under(at string, err error) error {
	e, ok := errors.AsType[*Error](err)
	if !ok {
		return err
	}
	in := *e
	in.Field = at + e.Field
	return &in
}
