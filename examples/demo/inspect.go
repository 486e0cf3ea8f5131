package demo

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/paddock-run/paddock/api"
	"github.com/paddock-run/paddock/internal/timing"
)

// seen is what the record says of one episode.
type seen struct {
	id       string
	folder   Folder
	attempts []api.Attempt
	last     api.Attempt
	reward   *float64
	changes  []api.Change
	calls    []call
	payload  []byte
}

// call is one line of a trajectory, as far as the demo reads it.
type call struct {
	Call struct {
		Tool string `json:"tool"`
		Path string `json:"path"`
	} `json:"call"`
	Result struct {
		Took time.Duration `json:"took"`
	} `json:"result"`
}

// inspect reads back everything that was recorded of the batch.
func (l *loop) inspect(ctx context.Context) ([]seen, error) {
	var all []seen
	for i := range Episodes {
		one, err := l.inspectOne(ctx, runName, episodeID(i))
		if err != nil {
			return nil, fmt.Errorf("episode %s: %w", episodeID(i), err)
		}
		all = append(all, one)
	}
	return all, nil
}

func (l *loop) inspectOne(ctx context.Context, run, id string) (seen, error) {
	key := api.Key{Run: run, ID: id}
	ep, err := l.Client.Episode(ctx, key)
	if err != nil {
		return seen{}, err
	}
	if len(ep.Attempts) == 0 {
		return seen{}, errors.New("no attempt is on record")
	}
	s := seen{id: id, attempts: ep.Attempts, last: *ep.Last(), reward: ep.Reward}
	if s.folder, err = l.folderOfID(id); err != nil {
		return seen{}, err
	}
	var journal bytes.Buffer
	if err := l.Client.Trajectory(ctx, key, s.last.N, &journal); err != nil {
		return seen{}, err
	}
	if s.calls, err = readCalls(&journal); err != nil {
		return seen{}, err
	}
	if s.last.Capture != nil {
		capture, err := l.Client.Changes(ctx, key, s.last.N)
		if err != nil {
			return seen{}, err
		}
		s.changes = capture.Changes
	}
	if s.last.Payload == nil {
		return s, nil // the checks say why
	}
	var payload bytes.Buffer
	err = l.Client.Payload(ctx, key, s.last.N, &payload)
	s.payload = payload.Bytes()
	return s, err
}

func readCalls(journal *bytes.Buffer) ([]call, error) {
	var calls []call
	lines := bufio.NewScanner(journal)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var c call
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			return nil, fmt.Errorf("trajectory: %w", err)
		}
		if c.Call.Tool != "" {
			calls = append(calls, c)
		}
	}
	return calls, lines.Err()
}

// turns counts the documents that were read, and says whether the holder was among them.
func (s seen) turns() (n int, readHolder bool) {
	for _, c := range s.calls {
		if c.Call.Tool != "read_file" {
			continue
		}
		n++
		readHolder = readHolder || path.Base(c.Call.Path) == s.folder.Holder
	}
	return n, readHolder
}

// left says whether a file is among what the episode left behind.
func (s seen) left(file string) bool {
	for _, c := range s.changes {
		if c.Path == file && c.Kind != "deleted" {
			return true
		}
	}
	return false
}

// metric is a number that a grader gave.
func (s seen) metric(name string) (float64, bool) {
	if len(s.last.Scores) == 0 {
		return 0, false
	}
	v, ok := s.last.Scores[0].Metrics[name]
	return v, ok
}

// check says everything that an episode's record has wrong.
func (s seen) check() error {
	var faults []error
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf("episode "+s.id+": "+format, args...))
	}
	if s.reward == nil {
		fault("has no reward (%s)", describe(s.last))
		return errors.Join(faults...)
	}
	for _, a := range s.attempts[:len(s.attempts)-1] {
		if a.End == nil || a.End.Cause != "platform" || a.Reward != nil {
			fault("attempt %d was retried, but %s", a.N, describe(a))
		}
	}
	turns, readHolder := s.turns()
	found, ok := s.metric("found")
	if !ok || (found == 1) != readHolder {
		fault("read the document with the secret: %v, but its grader's metric found is %v", readHolder, found)
	}
	if graded, _ := s.metric("turns"); int(graded) != turns {
		fault("read %d documents, but its grader counted %v", turns, graded)
	}
	if tidy, ok := s.metric("tidy"); !ok || (tidy == 1) == s.left("/workdir/scratch.tmp") {
		fault("left scratch.tmp: %v, but its grader's metric tidy is %v", s.left("/workdir/scratch.tmp"), tidy)
	}
	if !s.left("/workdir/answer.txt") {
		fault("its capture has no answer.txt")
	}
	if n := bytes.Count(s.payload, []byte("\n")); n != turns {
		fault("read %d documents, but its payload has %d turns", turns, n)
	}
	return errors.Join(faults...)
}

func describe(a api.Attempt) string {
	if a.End == nil {
		return "it is " + a.State
	}
	var text strings.Builder
	fmt.Fprintf(&text, "it ended %s by %s %q", a.End.Status, a.End.Cause, a.End.Evidence)
	if a.End.Step != "" {
		text.WriteString(" at " + a.End.Step)
	}
	for _, s := range a.Scores {
		fmt.Fprintf(&text, "; score %s by %s %s %q", s.Status, s.Cause, s.Reason, s.Evidence)
	}
	return text.String()
}

// measure adds an attempt's durations to the phases.
func (p phases) measure(s seen) {
	c := s.last.Clocks
	p.add("setup", timing.Seconds(c.StartS+c.SetupS))
	p.add("agent", timing.Seconds(c.WallS))
	p.add("score", timing.Seconds(c.ScoreS))
	if s.last.Capture != nil {
		p.add("capture", timing.Seconds(s.last.Capture.Seconds))
	}
	for _, one := range s.calls {
		p.add("call", one.Result.Took)
	}
}
