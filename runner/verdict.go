package runner

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"sort"

	"github.com/paddock-run/paddock/sandbox"
)

// maxVerdict bounds what a grader may write to its verdict descriptor.
const maxVerdict = 1 << 20

// verdict is what a grader said.
type verdict struct {
	// Reward is nil when the grader itself said null.
	Reward  *float64
	Metrics map[string]float64
	Reason  string
}

// noVerdictError says why what a grader gave is no verdict; its text is evidence.
type noVerdictError string

func (n noVerdictError) Error() string { return string(n) }

// readVerdict turns a grader's end into a verdict, or says why there is none. It is the
// reward rule (semantics section 3, rules 1 to 4), and pure.
func readVerdict(spec *GraderSpec, text []byte, exit sandbox.Exit) (verdict, error) {
	switch {
	case exit.NotStarted != nil, exit.TimedOut, exit.CPUTimedOut:
		return verdict{}, noVerdictError("no verdict: " + gradeExit(exit))
	case exit.Code == nil:
		// A grader that was killed did not end its work: code under test that reaches its
		// descriptor could write a verdict and kill it before it writes its own.
		return verdict{}, noVerdictError("no verdict: the grader was killed: " + gradeExit(exit))
	case spec.Verdict == "exit_code":
		return exitVerdict(exit)
	case len(text) > maxVerdict:
		return verdict{}, noVerdictError(fmt.Sprintf("no verdict: more than %d bytes", maxVerdict))
	case len(bytes.TrimSpace(text)) == 0:
		return verdict{}, noVerdictError("no verdict: nothing was written to the verdict descriptor; " + gradeExit(exit))
	}
	return jsonVerdict(spec, text)
}

func gradeExit(e sandbox.Exit) string {
	switch {
	case e.TimedOut:
		return "the grader's time passed"
	case e.CPUTimedOut:
		return "the grader's CPU time passed"
	case e.OOM:
		return "the grader ran out of memory"
	}
	return exitText(e)
}

// exitVerdict: 0 and 1 are verdicts, everything else (a usage error of the test runner, a
// signal) is not.
func exitVerdict(e sandbox.Exit) (verdict, error) {
	if e.Code != nil && (*e.Code == 0 || *e.Code == 1) {
		reward := float64(1 - *e.Code)
		return verdict{Reward: &reward}, nil
	}
	return verdict{}, noVerdictError("no verdict: " + gradeExit(e))
}

func jsonVerdict(spec *GraderSpec, text []byte) (verdict, error) {
	fields, err := flatObject(text)
	if err != nil {
		return verdict{}, noVerdictError("malformed verdict: " + err.Error())
	}
	v := verdict{Metrics: map[string]float64{}}
	_, structured := fields["metrics"]
	if raw, ok := fields["reason"]; ok {
		if err := json.Unmarshal(raw, &v.Reason); err != nil {
			return verdict{}, noVerdictError("malformed verdict: reason is not text")
		}
		v.Reason = cut(v.Reason)
		delete(fields, "reason")
	}
	if structured {
		nested, err := flatObject(fields["metrics"])
		if err != nil {
			return verdict{}, noVerdictError("malformed verdict: metrics: " + err.Error())
		}
		delete(fields, "metrics")
		for k, raw := range nested {
			if v.Metrics[k], err = number(raw); err != nil {
				return verdict{}, noVerdictError(fmt.Sprintf("malformed verdict: metrics/%s: %v", k, err))
			}
		}
	}
	key, err := rewardKey(fields)
	if err != nil {
		return verdict{}, err
	}
	raw := fields[key]
	delete(fields, key)
	for k, f := range fields {
		n, err := number(f)
		if err != nil {
			return verdict{}, noVerdictError(fmt.Sprintf("malformed verdict: %s: %v", k, err))
		}
		v.Metrics[k] = n
	}
	if key == "reward" && string(raw) == "null" {
		return v, nil
	}
	n, err := number(raw)
	if err != nil {
		return verdict{}, noVerdictError(fmt.Sprintf("malformed verdict: %s: %v", key, err))
	}
	low, high := 0.0, 1.0
	if spec.RewardRange != nil {
		low, high = spec.RewardRange[0], spec.RewardRange[1]
	}
	if n < low || n > high {
		return verdict{}, noVerdictError(fmt.Sprintf("reward %v is outside the declared range [%v, %v]", n, low, high))
	}
	v.Reward = &n
	return v, nil
}

// rewardKey finds the reward: the key of that name, else the only one.
func rewardKey(fields map[string]json.RawMessage) (string, error) {
	if _, ok := fields["reward"]; ok {
		return "reward", nil
	}
	if len(fields) != 1 {
		keys := make([]string, 0, len(fields))
		for k := range fields {
			keys = append(keys, k)
		}
		sort.Strings(keys)
		return "", noVerdictError(fmt.Sprintf("ambiguous_reward: no key \"reward\" among %q", keys))
	}
	for k := range fields {
		return k, nil
	}
	return "", nil
}

// flatObject reads exactly one JSON object without repeated keys.
func flatObject(text []byte) (map[string]json.RawMessage, error) {
	dec := json.NewDecoder(bytes.NewReader(text))
	open, err := dec.Token()
	if err != nil || open != json.Delim('{') {
		return nil, errors.New("not a JSON object")
	}
	fields := map[string]json.RawMessage{}
	for dec.More() {
		tok, err := dec.Token()
		key, ok := tok.(string)
		if err != nil || !ok {
			return nil, errors.New("not a JSON object")
		}
		if _, twice := fields[key]; twice {
			return nil, fmt.Errorf("key %q stands twice", key)
		}
		var raw json.RawMessage
		if err := dec.Decode(&raw); err != nil {
			return nil, fmt.Errorf("key %q: not JSON", key)
		}
		fields[key] = raw
	}
	if _, err := dec.Token(); err != nil {
		return nil, errors.New("the object does not end")
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the object")
	}
	return fields, nil
}

// number reads a finite number; true and false are 1 and 0, text is not a number.
func number(raw json.RawMessage) (float64, error) {
	switch string(raw) {
	case "true":
		return 1, nil
	case "false":
		return 0, nil
	case "null":
		return 0, errors.New("null is not a number")
	}
	var n float64
	if err := json.Unmarshal(raw, &n); err != nil {
		return 0, fmt.Errorf("%.40s is not a number", raw)
	}
	if math.IsNaN(n) || math.IsInf(n, 0) {
		return 0, errors.New("not finite")
	}
	return n, nil
}
