package simulator

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/paddock-run/paddock/runner"
)

// This file takes the state of an environment and puts it back. Whose program it is says
// whether and how: a Snapshot is the program's bytes and what is counted here beside them.

// Kinds of errors by which nothing was done.
const (
	kindUnsupported = "snapshot_unsupported"
	kindTooLarge    = "snapshot_too_large"
	kindBadSnapshot = "bad_snapshot"
)

// refuses says whether a program's error means that it did nothing.
func refuses(op, kind string) bool {
	switch kind {
	case "bad_action":
		return true
	case kindUnsupported, kindTooLarge:
		return op == "snapshot" || op == "trial"
	case kindBadSnapshot:
		return op == "restore"
	}
	return false
}

// offer is what a program's first message says of snapshots: "" nothing, so it has none,
// "yes", or "trial": it says so in an answer to the message trial, after which it is not
// used for anything else.
type offer string

func readOffer(raw json.RawMessage) (offer, error) {
	switch string(raw) {
	case "", "null", "false":
		return "", nil
	case "true":
		return "yes", nil
	case `"trial"`:
		return "trial", nil
	}
	return "", fmt.Errorf("snapshots: %.64s is not true, false or \"trial\"", raw)
}

// kind is what environments have in common that a snapshot of one may be put into another:
// the world by its digest, and the program.
type kind struct {
	World   string            `json:"world"`
	Env     string            `json:"env"`
	Kwargs  json.RawMessage   `json:"kwargs"`
	Command []string          `json:"command"`
	Vars    map[string]string `json:"vars"`
	User    string            `json:"user"`
	Cwd     string            `json:"cwd"`
}

func kindOf(s *Spec, world string) kind {
	k := kind{World: world, Env: s.Env, Command: s.Command, Vars: s.Vars, User: s.User, Cwd: s.Cwd}
	var kwargs map[string]any
	if dec := json.NewDecoder(bytes.NewReader(s.Kwargs)); len(s.Kwargs) > 0 {
		dec.UseNumber()
		_ = dec.Decode(&kwargs) // was checked when the simulator was opened
	}
	k.Kwargs, _ = json.Marshal(kwargs) //nolint:errchkjson // what JSON gave; sorted by name
	return k
}

// differs says where a snapshot's kind is another than that of an environment.
func (k kind) differs(env kind) []runner.Diff {
	was, is := k.fields(), env.fields()
	var all []runner.Diff
	for _, name := range slices.Sorted(maps.Keys(was)) {
		if !bytes.Equal(was[name], is[name]) {
			all = append(all, runner.Diff{Pointer: "/" + name, Old: was[name], New: is[name]})
		}
	}
	return all
}

func (k kind) fields() (out map[string]json.RawMessage) {
	raw, _ := json.Marshal(k)     //nolint:errchkjson // texts and what was JSON
	_ = json.Unmarshal(raw, &out) // an object
	return out
}

// Snapshot takes the environment's state, which goes on as if nothing had been done. An
// environment that offers none is an Error of the Result. Every snapshot is a call on
// record, of which the bytes are not kept.
func (e *Env) Snapshot(ctx context.Context) (Snapshot, Result, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ended != nil {
		return Snapshot{}, Result{Ended: e.ended}, nil
	}
	if !e.begun {
		return Snapshot{}, Result{Error: needsReset()}, nil
	}
	way, fault, err := e.way(ctx)
	if err != nil || fault != nil {
		return Snapshot{}, Result{Error: fault}, err
	}
	body, err := json.Marshal(snapshotArgs{Max: e.o.Spec.MaxSnapshot, Way: way})
	if err != nil {
		return Snapshot{}, Result{}, err
	}
	res, err := e.say(ctx, message{op: "snapshot", body: body})
	if err != nil || res.Error != nil || res.Ended != nil {
		return Snapshot{}, res, err
	}
	snap, err := e.s.shelves.put(Snapshot{
		Of: e.key, Attempt: e.attempt, Seq: res.seq, EnvSeed: e.seed,
		Rollouts: e.rollouts, Steps: e.steps, Return: e.total, Terminated: e.terminated, Truncated: e.truncated,
	}, e.kind, res.state)
	return snap, Result{}, err
}

func needsReset() *runner.CallError {
	return &runner.CallError{Kind: "needs_reset", Detail: "a reset must come first"}
}

type snapshotArgs struct {
	Max int64  `json:"max"`
	Way string `json:"way,omitempty"`
}

// readSnapshot takes a program's state from its answer.
func (e *Env) readSnapshot(raw json.RawMessage, f frames) (res Result, fault *runner.CallError) {
	var a array
	if err := json.Unmarshal(raw, &a); err != nil || a.Type != "|u1" || len(a.Shape) != 1 {
		return res, &runner.CallError{Kind: "bad_reply", Detail: "the snapshot is no array of bytes"}
	}
	data, err := a.data(f)
	if err != nil {
		return res, &runner.CallError{Kind: "bad_reply", Detail: "the snapshot " + err.Error()}
	}
	if int64(len(data)) != a.Shape[0] {
		return res, &runner.CallError{Kind: "bad_reply", Detail: fmt.Sprintf("the snapshot has %d bytes, not %d", len(data), a.Shape[0])}
	}
	if most := e.o.Spec.MaxSnapshot; int64(len(data)) > most {
		res.Error = &runner.CallError{Kind: kindTooLarge, Detail: fmt.Sprintf("the snapshot has %d bytes, at most %d are allowed (max_snapshot)", len(data), most)}
		return res, nil
	}
	res.state = data
	return res, nil
}

// Restore puts a snapshot's state into the environment, whatever its own was; the Result has
// the observation at which it was taken. Rewards and counts go on from those of the
// snapshot. One of another world or program is a *runner.Error of kind spec_conflict, one
// that is not kept not_found; nothing is done then.
func (e *Env) Restore(ctx context.Context, id string) (Result, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ended != nil {
		return Result{Ended: e.ended}, nil
	}
	k, err := e.s.shelves.pin(e.key.Owner, id)
	if err != nil {
		return Result{}, err
	}
	if diffs := k.kind.differs(e.kind); len(diffs) > 0 {
		return Result{}, errors.Join(&runner.Error{
			Kind: runner.KindSpecConflict, Field: "snapshot", Detail: "the snapshot is of another kind of environment", Diffs: diffs,
		}, e.s.shelves.unpin(k))
	}
	body, err := json.Marshal(restoreArgs{ID: k.ID, SHA256: k.SHA256, Of: snapshotCall{Run: k.Of.Run, ID: k.Of.ID, Attempt: k.Attempt, Seq: k.Seq}})
	if err != nil {
		return Result{}, errors.Join(err, e.s.shelves.unpin(k))
	}
	// What is said from here on follows from the snapshot alone.
	before := e.said
	e.said = said{from: k}
	res, err := e.say(ctx, message{op: "restore", body: body, state: k})
	if e.ended != nil { // and has nothing more to say
		return res, errors.Join(err, e.release(before))
	}
	if err != nil || res.Error != nil {
		now := e.said
		e.said = before
		return res, errors.Join(err, e.release(now))
	}
	e.begun, e.restores = true, e.restores+1
	e.rollouts, e.steps, e.total, e.terminated, e.truncated = k.Rollouts, k.Steps, k.Return, k.Terminated, k.Truncated
	res.Terminated, res.Truncated = k.Terminated, k.Truncated
	return res, e.release(before)
}

// restoreArgs is what the record has of a restore: which snapshot, and whose call took it.
type restoreArgs struct {
	ID     string       `json:"id"`
	SHA256 string       `json:"sha256"`
	Of     snapshotCall `json:"of"`
}

type snapshotCall struct {
	Run     string `json:"run"`
	ID      string `json:"id"`
	Attempt int    `json:"attempt"`
	Seq     int64  `json:"seq"`
}

// maxLog bounds what is kept of messages to say them again after a fault, in bytes.
const maxLog = 64 << 20

// said are the messages since the last reset with a seed or restore, which is the first of
// them: what the environment's state follows from.
type said struct {
	messages []message
	size     int
	forgot   bool  // they are too many to be kept
	from     *kept // what was restored, pinned
}

type message struct {
	op    string
	body  json.RawMessage // for the record
	state *kept           // of a restore: what the program gets
}

// keep notes a message, to say it again after a fault.
func (s *said) keep(m message) {
	s.size += len(m.body) + 64
	if s.forgot = s.forgot || s.size > maxLog; s.forgot {
		s.messages = nil
		return
	}
	s.messages = append(s.messages, m)
}

// takeBack forgets the last message: nothing came of it.
func (s *said) takeBack() {
	if n := len(s.messages); n > 0 {
		s.size -= len(s.messages[n-1].body) + 64
		s.messages = s.messages[:n-1]
	}
}

// forget begins anew with nothing said.
func (e *Env) forget() error {
	before := e.said
	e.said = said{}
	return e.release(before)
}

func (e *Env) release(s said) error {
	if s.from == nil {
		return nil
	}
	return e.s.shelves.unpin(s.from)
}

// tell is a message as it is said to a program.
func (e *Env) tell(m message) (runner.Message, error) {
	out := runner.Message{Op: m.op, Body: m.body, TimeoutS: e.patience(m.op)}
	if m.state == nil {
		return out, nil
	}
	data, err := e.s.shelves.read(m.state)
	if err != nil {
		return runner.Message{}, err
	}
	told := append(make([]byte, 0, base64.StdEncoding.EncodedLen(len(data))+32), `{"snapshot":"`...)
	out.Told = append(base64.StdEncoding.AppendEncode(told, data), `"}`...)
	return out, nil
}

// Snapshots returns an owner's snapshots in the order of their ids, at most so many after
// one, and what all of them take.
func (s *Service) Snapshots(owner, after string, most int) ([]Snapshot, SnapshotUse) {
	return s.shelves.list(owner, after, most)
}

// GetSnapshot returns one of an owner's snapshots.
func (s *Service) GetSnapshot(owner, id string) (Snapshot, error) {
	k, err := s.shelves.get(owner, id)
	if err != nil {
		return Snapshot{}, err
	}
	return k.Snapshot, nil
}

// DropSnapshot forgets a snapshot. Environments that were restored from it go on.
func (s *Service) DropSnapshot(owner, id string) error { return s.shelves.drop(owner, id) }

// Trials.

const (
	maxTrials = 1024 // that are remembered
	maxWay    = 64   // bytes
	// trialResets is how long a trial may take, in times of a reset.
	trialResets = 4
	// trialRoom bounds the wait for a sandbox that a trial can have.
	trialRoom = 2 * time.Minute
)

// trialKey names what was tried: a simulator of an owner, on the world that it stood for.
type trialKey struct{ owner, sim, world string }

// tried is what came of a trial, once there is a verdict. Who has the turn makes it.
type tried struct {
	turn    chan struct{}
	verdict atomic.Pointer[verdict]
}

type verdict struct {
	way   string
	fault *runner.CallError
}

type trials struct {
	mu  sync.Mutex
	all map[trialKey]*tried
}

func (t *trials) of(key trialKey) *tried {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.all[key] == nil {
		if len(t.all) >= maxTrials {
			clear(t.all)
		}
		t.all[key] = &tried{turn: make(chan struct{}, 1)}
	}
	return t.all[key]
}

// forgetFaults has what failed tried again.
func (t *trials) forgetFaults(owner, sim string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(t.all, func(k trialKey, one *tried) bool {
		v := one.verdict.Load()
		return k.owner == owner && k.sim == sim && v != nil && v.fault != nil
	})
}

// way is how the program is to take a snapshot, or why it offers none. Where that must be
// tried it is, once, in a sandbox that nothing else is done in.
func (e *Env) way(ctx context.Context) (string, *runner.CallError, error) {
	switch e.o.snapshots {
	case "":
		return "", &runner.CallError{Kind: kindUnsupported, Detail: "the program does not offer snapshots"}, nil
	case "yes":
		return "", nil, nil
	}
	t := e.s.trials.of(trialKey{e.key.Owner, e.o.ID, e.kind.World})
	select {
	case t.turn <- struct{}{}:
		defer func() { <-t.turn }()
	case <-ctx.Done():
		return "", nil, context.Cause(ctx)
	}
	v := t.verdict.Load()
	if v == nil {
		var err error
		if v, err = e.try(ctx); err != nil {
			return "", nil, err
		}
		t.verdict.Store(v)
	}
	return v.way, v.fault, nil
}

func (e *Env) try(ctx context.Context) (*verdict, error) {
	room, cancel := context.WithTimeoutCause(ctx, trialRoom, &runner.Error{
		Kind: runner.KindOverCapacity, Detail: "no sandbox was free to try the simulator's snapshots in", RetryAfter: time.Second,
	})
	defer cancel()
	key, done, err := e.aside(room, "trial")
	if err != nil {
		return nil, err
	}
	defer done()
	body, err := json.Marshal(snapshotArgs{Max: e.o.Spec.MaxSnapshot})
	if err != nil {
		return nil, err
	}
	reply, err := e.s.run.Message(ctx, key, runner.Message{Op: "trial", Body: body, TimeoutS: trialResets * e.o.Spec.ResetS, Keep: keepNothing})
	switch at, ended := trialEnd(err); {
	case ended && at.Cause != runner.Agent && at.Cause != runner.WorldBad:
		return nil, &runner.Error{
			Kind: runner.KindOverCapacity, RetryAfter: time.Second,
			Detail: fmt.Sprintf("the sandbox in which the simulator's snapshots were tried ended as %s by %s, which says nothing of them", at.Status, at.Cause),
		}
	case err != nil && !ended:
		return nil, err
	}
	return readTrial(&reply, err), nil
}

// trialEnd is how the trial's episode ended, if that is what an error says.
func trialEnd(err error) (at runner.End, ended bool) {
	re, ok := errors.AsType[*runner.Error](err)
	if !ok || re.Kind != runner.KindEpisodeEnded || re.End == nil {
		return runner.End{}, false
	}
	return *re.End, true
}

func readTrial(reply *runner.Reply, err error) *verdict {
	var answer struct {
		Way   string            `json:"way"`
		Error *runner.CallError `json:"error"`
	}
	failed := func(why string) *verdict {
		return &verdict{fault: &runner.CallError{Kind: kindUnsupported, Detail: "in a trial: " + cut(why)}}
	}
	switch {
	case err != nil:
		return failed(err.Error())
	case reply.Result.Error != nil:
		return failed(reply.Result.Error.Kind + ": " + reply.Result.Error.Detail)
	}
	if err := json.Unmarshal(reply.Frame.Line, &answer); err != nil {
		return failed(err.Error())
	}
	switch {
	case answer.Error != nil && refuses("trial", answer.Error.Kind):
		return &verdict{fault: answer.Error}
	case answer.Error != nil:
		return failed(answer.Error.Kind + ": " + answer.Error.Detail)
	case answer.Way == "" || len(answer.Way) > maxWay:
		return failed(fmt.Sprintf("%.64q is no way", answer.Way))
	}
	return &verdict{way: answer.Way}
}
