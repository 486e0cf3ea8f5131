// Package dataset keeps sets of verifiable problems, samples them, and scores completions.
//
// A set is immutable and named by the digest of its canonical form, one JSON object a
// line; a name may point at it. Which problems an iteration gets is a function of the
// digest, the seed and the iteration alone, so nothing has to be remembered between two
// runs of a trainer. Scoring reads a completion as text: it extracts the answer and
// compares; only a rule of code runs anything, and that is the caller's to do.
package dataset

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/paddock-run/paddock/runner"
)

// Bounds of a set.
const (
	MaxProblems = 2_000_000
	// MaxBytes bounds the canonical form, and the file that it is read from.
	MaxBytes = 512 << 20
	maxID    = 512
)

// Problem is one problem of a set.
type Problem struct {
	ID string `json:"id"`
	// Prompt is any JSON: a text, or a list of messages.
	Prompt json.RawMessage `json:"prompt,omitempty"`
	// Answer is any JSON; a list means that each of its entries is right.
	Answer json.RawMessage `json:"answer,omitempty"`
	// Tests are for the rule code.
	Tests    json.RawMessage `json:"tests,omitempty"`
	Metadata json.RawMessage `json:"metadata,omitempty"`
}

// Set is a set of problems. It is immutable.
type Set struct {
	Digest   string
	Bytes    int64
	Problems []Problem
	byID     map[string]int
}

// Find returns the problem of an id.
func (s *Set) Find(id string) (*Problem, bool) {
	i, ok := s.byID[id]
	if !ok {
		return nil, false
	}
	return &s.Problems[i], true
}

// newSet makes a set of problems: values become compact, ids are checked.
func newSet(problems []Problem) (*Set, []byte, error) {
	if len(problems) == 0 {
		return nil, nil, badField("body", "has no problems")
	}
	if len(problems) > MaxProblems {
		return nil, nil, badField("body", "has %d problems, at most %d are allowed", len(problems), MaxProblems)
	}
	s := &Set{Problems: problems, byID: make(map[string]int, len(problems))}
	var doc bytes.Buffer
	for i := range problems {
		p := &problems[i]
		where := fmt.Sprintf("problems/%d", i)
		if p.ID == "" || len(p.ID) > maxID {
			return nil, nil, badField(where+"/id", "has %d bytes, must have 1 to %d", len(p.ID), maxID)
		}
		if first, twice := s.byID[p.ID]; twice {
			return nil, nil, badField(where+"/id", "%q is that of problem %d, too", p.ID, first)
		}
		s.byID[p.ID] = i
		line, err := json.Marshal(p)
		if err != nil {
			return nil, nil, badField(where, "%v", err)
		}
		doc.Write(line)
		doc.WriteByte('\n')
		if doc.Len() > MaxBytes {
			return nil, nil, badField("body", "comes to more than %d bytes", MaxBytes)
		}
	}
	sum := sha256.Sum256(doc.Bytes())
	s.Digest, s.Bytes = "sha256:"+hex.EncodeToString(sum[:]), int64(doc.Len())
	return s, doc.Bytes(), nil
}

func badField(field, format string, args ...any) *runner.Error {
	return &runner.Error{Kind: runner.KindBadRequest, Field: field, Detail: fmt.Sprintf(format, args...)}
}

// KindUnknown is the kind of a runner.Error: there is no such set.
const KindUnknown = "unknown_dataset"
