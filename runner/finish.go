package runner

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/paddock-run/paddock/overlay"
)

// Bounds of an attempt's end.
const (
	// MaxPayload bounds what finish keeps.
	MaxPayload = 64 << 20
	maxAnswer  = 16 << 20
	// stopPatience bounds how long the end of the calls in flight, and the sandbox's stop,
	// may each take.
	stopPatience = 10 * time.Second
)

// Finish ends the agent's phase with status ok, scores where graders are given, and
// returns the outcome, which is on disk by then. To finish twice with the same answer
// and payload is to ask again for the outcome.
func (r *Runner) Finish(ctx context.Context, key Key, spec FinishSpec) (Episode, error) {
	return r.endAttempt(ctx, key, spec, End{Status: OK, Cause: Agent})
}

// Abort ends the live attempt as the client's error.
func (r *Runner) Abort(ctx context.Context, key Key, reason string) (Episode, error) {
	return r.endAttempt(ctx, key, FinishSpec{}, End{Status: Errored, Cause: Client, Step: "rollout", Reason: cut(reason)})
}

// EndAs ends the live attempt as end says: for the shapes of environment that the runner
// does not know, which see ends of their own.
func (r *Runner) EndAs(ctx context.Context, key Key, spec FinishSpec, end End) (Episode, error) {
	return r.endAttempt(ctx, key, spec, end)
}

// AwaitEnd returns the episode once its live attempt, if there is one, is over. It asks for
// no end.
func (r *Runner) AwaitEnd(ctx context.Context, key Key) (Episode, error) {
	if a := r.liveOf(key); a != nil {
		select {
		case <-a.over:
		case <-ctx.Done():
			return Episode{}, context.Cause(ctx)
		}
	}
	return r.Get(ctx, key)
}

func cut(s string) string { return s[:min(len(s), 4096)] }

// endAttempt ends the live attempt as end says and waits until it is done, scores
// included. An attempt that has ended another way is episode_ended with that end.
func (r *Runner) endAttempt(ctx context.Context, key Key, spec FinishSpec, end End) (Episode, error) {
	if len(spec.Payload) > MaxPayload {
		return Episode{}, &Error{Kind: KindTooLarge, Field: "payload", Detail: fmt.Sprintf("has %d bytes, at most %d are allowed", len(spec.Payload), MaxPayload)}
	}
	if len(spec.Answer) > maxAnswer || (len(spec.Answer) > 0 && !json.Valid(spec.Answer)) {
		return Episode{}, badField("answer", "is not JSON of at most %d bytes", maxAnswer)
	}
	if err := r.fence(ctx, key, spec.Generation); err != nil {
		return Episode{}, err
	}
	a, err := r.liveAttempt(ctx, key, spec.Attempt)
	if err != nil {
		return r.finishedBefore(ctx, key, spec, end, err)
	}
	select {
	case <-a.ready:
	case <-ctx.Done():
		return Episode{}, context.Cause(ctx)
	}
	if a.breakAt >= 0 {
		a.breakNow(ctx)
	}
	a.mu.Lock()
	if a.endAsked == nil {
		a.answer, a.payload = spec.Answer, spec.Payload
	}
	first := a.askLocked(end)
	a.mu.Unlock()
	select {
	case <-a.over:
	case <-ctx.Done():
		return Episode{}, context.Cause(ctx)
	}
	if !first {
		return r.finishedBefore(ctx, key, spec, end, a.endedError())
	}
	return r.episodeOf(ctx, a)
}

// finishedBefore answers a finish that comes after the end: with the outcome where it is
// the same finish again, else with why not.
func (r *Runner) finishedBefore(ctx context.Context, key Key, spec FinishSpec, end End, why error) (Episode, error) {
	if KindOf(why) != KindEpisodeEnded || end.Status != OK {
		return Episode{}, why
	}
	ep, err := r.Get(ctx, key)
	if err != nil {
		return Episode{}, err
	}
	last := ep.Last()
	same := last.End != nil && last.End.Status == OK && bytes.Equal(last.Answer, spec.Answer) &&
		(last.Payload == nil) == (spec.Payload == nil) &&
		(last.Payload == nil || last.Payload.SHA256 == hexSum(spec.Payload))
	if !same {
		return Episode{}, why
	}
	return ep, nil
}

func hexSum(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// breakNow is the fault switch: it kills the sandbox as somebody outside would, and
// returns when that is seen.
func (a *attempt) breakNow(ctx context.Context) {
	b, ok := a.sb.(Breaker)
	if !ok {
		return
	}
	if err := b.Break(); err != nil {
		a.log.Warn("fault switch", slog.Any("error", err))
		return
	}
	select {
	case <-a.sb.Done():
		a.ask(fateEnd(a.sb.Fate()))
	case <-ctx.Done():
	}
}

// finish takes an attempt whose end was asked to done. Its steps go on whatever fails:
// the end is recorded and everything released in any case.
func (a *attempt) finish(ctx context.Context) {
	began := time.Now()
	a.agent.stop()
	a.wall.stop()
	a.paused.stop()
	if err := a.to(ctx, Stopping, Lazy, nil); err != nil {
		a.log.Error("end", slog.Any("error", err))
	}
	end := a.quiesce(ctx)
	state := a.captureEnd(ctx, &end)
	graded := state != nil && len(a.plan.Spec.Graders) > 0
	a.recordEnd(ctx, &end, graded, began)
	if graded && a.state() == Ended {
		a.score(ctx, state)
	}
	a.letGo()
	a.r.forget(a)
	close(a.over)
	// Who waits for the outcome does not wait for the kernel to clear away. Room for
	// others is given back only after that, so clearing away cannot fall behind.
	a.release()
	a.recordAgain()
}

// recordAgain keeps an end that could not be put on record, as on a full disk, until it
// can: else the record would tell of a live attempt until the daemon's next start.
func (a *attempt) recordAgain() {
	if !a.unrecorded {
		return
	}
	every := time.NewTicker(time.Second)
	defer every.Stop()
	for {
		select {
		case <-every.C:
		case <-a.r.ctx.Done():
			return // the next start finds it live, and makes it interrupted
		}
		a.mu.Lock()
		rec := a.rec
		a.mu.Unlock()
		err := a.r.cfg.Record.UpdateAttempt(a.r.ctx, a.key, rec, Synced)
		if err == nil || KindOf(err) == KindNotFound {
			a.log.Info("end is on record after all")
			return
		}
	}
}

// quiesce stops calls, sessions and the sandbox. It returns the end, corrected by what
// became of the sandbox.
func (a *attempt) quiesce(ctx context.Context) End {
	a.mu.Lock()
	end := *a.endAsked
	idle := a.idle
	a.mu.Unlock()
	if a.sb == nil {
		return end
	}
	if fate, dead := a.fate(); dead && end.Cause == Agent && end.Status == OK {
		// It was dead before it was finished.
		end = fateEnd(fate)
	}
	select { // calls in flight see a.stop and end by themselves
	case <-idle:
	case <-time.After(stopPatience):
	}
	a.closeSessions()
	stopCtx, cancel := context.WithTimeout(ctx, stopPatience)
	defer cancel()
	if err := a.sb.Stop(stopCtx); err != nil {
		a.note("stop: " + err.Error())
		if end.Cause == Agent {
			// Processes that may still be there cannot be graded beside.
			end = End{Status: Errored, Cause: Platform, Step: "stop", Evidence: []string{err.Error()}}
		}
	}
	a.closeNetwork()
	if fate := a.sb.Fate(); fate.Kind == "launcher_died" && end.Cause == Agent {
		end = fateEnd(fate)
	}
	<-idle
	return end
}

func (a *attempt) note(text string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.rec.Notes) < 32 {
		a.rec.Notes = append(a.rec.Notes, text)
	}
}

// captureEnd reads the end state. There is none after a platform's fault or of an attempt
// that never was live.
func (a *attempt) captureEnd(ctx context.Context, end *End) *EndState {
	if a.sb == nil || end.Cause == Platform || end.discard || a.rec.Ready.IsZero() {
		return nil
	}
	c, err := a.captureUpper(ctx)
	if err != nil {
		a.log.Error("capture", slog.Any("error", err))
		if end.Cause == Agent {
			*end = storageEnd("capture", err)
		} else {
			a.note("capture: " + err.Error())
		}
		return nil
	}
	return &EndState{Key: a.key, Plan: a.plan, Fork: a.fork, Upper: a.sb.Upper(), IDs: a.ids, Capture: c, Dir: a.dir}
}

// recordEnd puts the end on disk. An end that cannot be kept is the platform's fault.
func (a *attempt) recordEnd(ctx context.Context, end *End, graded bool, began time.Time) {
	a.mu.Lock()
	payload := a.payload
	a.mu.Unlock()
	if a.journal != nil {
		if err := a.journal.Sync(); err != nil && end.Cause == Agent {
			*end = storageEnd("host_disk", err)
		}
	}
	exchanges, err := a.exchanges.finish()
	if err != nil && end.Cause == Agent {
		*end = storageEnd("host_disk", err)
	}
	if payload != nil {
		if err := a.r.cfg.Record.SavePayload(ctx, a.key, a.n, payload); err != nil && end.Cause == Agent {
			*end = storageEnd("host_disk", err)
		}
	}
	next := Done
	if graded && end.Cause == Agent {
		next = Ended
	}
	err = a.to(ctx, next, Synced, func(rec *Attempt) {
		rec.End = end
		rec.Answer = a.answer
		rec.Network, rec.Exchanges = a.doors.summary(), exchanges
		if payload != nil {
			rec.Payload = &PayloadSummary{Bytes: int64(len(payload)), SHA256: hexSum(payload)}
		}
		rec.Digests.Actions, rec.Digests.Observations = a.ledger.digests()
		rec.Clocks.AgentS, rec.Clocks.WallS = a.agent.elapsed().Seconds(), a.wall.elapsed().Seconds()
		rec.Clocks.PausedS = a.paused.elapsed().Seconds()
		rec.Clocks.EndS = time.Since(began).Seconds()
		rec.Output = a.outputTotal.Load()
		rec.EndedAt = time.Now().UTC()
		if next == Done {
			rec.DoneAt = rec.EndedAt
		}
	})
	if err != nil && a.unkept.Load() {
		return // whoever asked for the attempt is told
	}
	if err != nil {
		a.log.Error("end is not on record", slog.Any("error", err))
		a.unrecorded = true
		failed := storageEnd("host_disk", err)
		*end = failed
		a.mu.Lock()
		a.rec.End = &failed
		rec := a.rec
		a.mu.Unlock()
		// What keeps no outcome may still keep that there is none.
		if err := a.r.cfg.Record.UpdateAttempt(ctx, a.key, rec, Written); err != nil {
			a.log.Error("failed end is not on record either", slog.Any("error", err))
		}
	}
}

// score grades the end state. Scores that cannot be recorded stay pending: the next
// start of the daemon finds them so.
func (a *attempt) score(ctx context.Context, state *EndState) {
	graders := a.plan.Spec.Graders
	if err := a.to(ctx, Scoring, Lazy, nil); err != nil {
		a.log.Error("score", slog.Any("error", err))
		return
	}
	began := time.Now()
	a.mu.Lock()
	state.Attempt = a.rec
	a.mu.Unlock()
	scores := a.r.scoreAttempt(ctx, *state, graders)
	earlier := a.r.earlierReward(ctx, a.key, a.n)
	err := a.to(ctx, Done, Synced, func(rec *Attempt) {
		rec.Scores = scores
		rec.setReward()
		rec.Clocks.ScoreS = time.Since(began).Seconds()
		rec.Superseded = rec.Superseded || (rec.Valid && earlier)
		rec.DoneAt = time.Now().UTC()
	})
	if err != nil {
		a.log.Error("scores are not on record", slog.Any("error", err))
	} else {
		a.unrecorded = false // this write has the end too
	}
}

func (at *Attempt) setReward() {
	at.Reward = nil
	if at.End != nil {
		at.Reward = Reward(*at.End, at.Scores)
	}
	at.Valid = at.Reward != nil
}

// earlierReward says that an attempt before n has a reward: the first complete one wins.
func (r *Runner) earlierReward(ctx context.Context, key Key, n int) bool {
	if n == 1 {
		return false
	}
	_, all, err := r.cfg.Record.Attempts(ctx, key)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(all, func(o Attempt) bool { return o.N < n && o.Valid && !o.Superseded })
}

// attachScores keeps scores of an attempt that has ended, in place of what the same
// graders said before, and derives its reward anew.
func (r *Runner) attachScores(ctx context.Context, key Key, n int, scores []ScoreResult) (Episode, error) {
	unlock, err := r.lockKey(ctx, key)
	if err != nil {
		return Episode{}, err
	}
	defer unlock()
	at, err := r.attemptOf(ctx, key, n)
	if err != nil {
		return Episode{}, err
	}
	if at.End == nil {
		return Episode{}, &Error{Kind: KindNotLive, Detail: "the attempt has not ended"}
	}
	for _, s := range scores {
		if i := slices.IndexFunc(at.Scores, func(o ScoreResult) bool { return o.Grader == s.Grader }); i >= 0 {
			if !slices.Contains(s.Flags, flagPending) { // it was written meanwhile
				at.Scores[i] = s
			}
		} else {
			at.Scores = append(at.Scores, s)
		}
	}
	at.setReward()
	at.State = Done
	if at.DoneAt.IsZero() {
		at.DoneAt = time.Now().UTC()
	}
	at.Superseded = at.Superseded || (at.Valid && r.earlierReward(ctx, key, at.N))
	if err := r.cfg.Record.UpdateAttempt(ctx, key, at, Synced); err != nil {
		return Episode{}, fmt.Errorf("record scores: %w", err)
	}
	return r.Get(ctx, key)
}

// release gives back everything the attempt holds. It may be called after any step of start.
func (a *attempt) release() {
	a.closeNetwork()
	if a.sandbox != "" {
		a.r.stock.drop(box{name: a.sandbox, ids: a.ids, sb: a.sb})
	}
	a.r.admission.leave(a.ticket)
}

// letGo gives back what another request may ask for as soon as the outcome is known: the
// attempt's files and the world's layers. No process is left that uses them.
func (a *attempt) letGo() {
	if a.journal != nil {
		if err := a.journal.Close(); err != nil {
			a.log.Warn("close journal", slog.Any("error", err))
		}
	}
	if a.fork != nil {
		a.fork.Release()
	}
}

// CaptureFile is the name of what a capture found, in an attempt's directory.
const CaptureFile = "capture.json"

const packFile = "pack"

// saveCapture writes capture.json: whole or not at all.
func saveCapture(dir string, c overlay.Capture) error {
	raw, err := c.AppendJSON(nil)
	if err != nil {
		return fmt.Errorf("encode capture: %w", err)
	}
	tmp := filepath.Join(dir, CaptureFile+".tmp")
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("capture: %w", err)
	}
	_, err = f.Write(raw)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("capture: %w", err)
	}
	if err := os.Rename(tmp, filepath.Join(dir, CaptureFile)); err != nil {
		return fmt.Errorf("capture: %w", err)
	}
	return nil
}

func loadCapture(dir string) (overlay.Capture, error) {
	raw, err := os.ReadFile(filepath.Join(dir, CaptureFile))
	if errors.Is(err, os.ErrNotExist) {
		return overlay.Capture{}, notFound("the attempt has no capture")
	}
	if err != nil {
		return overlay.Capture{}, fmt.Errorf("capture: %w", err)
	}
	var c overlay.Capture
	if err := json.Unmarshal(raw, &c); err != nil {
		return overlay.Capture{}, &Error{Kind: KindRecordDamaged, Detail: "capture.json: " + err.Error()}
	}
	return c, nil
}
