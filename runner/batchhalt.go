package runner

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// Rules of when a batch stops by itself.
const (
	// A batch is degraded when, within degradedWindow, more than degradedShare of its
	// attempts and at least degradedLeast of them were null with one platform step.
	degradedWindow = time.Minute
	degradedShare  = 0.2
	degradedLeast  = 10
	// brokenAfter is how many scorings in a row a broken grader may spoil.
	brokenAfter = 3
)

var (
	errDegraded     = errors.New("degraded")
	errGraderBroken = errors.New("grader_broken")
)

// attemptSeen is one attempt's end for the rule of degraded; step is empty unless it was
// the platform's fault.
type attemptSeen struct {
	at   time.Time
	step string
}

// seen counts an attempt for the rule of degraded. What the fault switch does was asked for.
func (b *liveBatch) seen(end *End) {
	one := attemptSeen{at: time.Now()}
	if end != nil && end.Cause == Platform && end.Status != Interrupted && (b.r.cfg.Faults == nil || end.Step != "killed_outside") {
		one.step = end.Step
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.recent = append(b.recent, one)
	for len(b.recent) > 0 && one.at.Sub(b.recent[0].at) > degradedWindow {
		b.recent = b.recent[1:]
	}
	if step, n := degradedStep(b.recent); n > 0 && b.halt == nil {
		b.halt = fmt.Errorf("%w: %d of the last %d attempts ended by the platform's fault in step %q", errDegraded, n, len(b.recent), step)
		b.poke()
	}
}

// degradedStep names the step in which too many attempts failed; n 0 is none.
func degradedStep(recent []attemptSeen) (step string, n int) {
	count := map[string]int{}
	for _, s := range recent {
		if s.step == "" {
			continue
		}
		if count[s.step]++; count[s.step] > n {
			step, n = s.step, count[s.step]
		}
	}
	if n < degradedLeast || float64(n) <= degradedShare*float64(len(recent)) {
		return "", 0
	}
	return step, n
}

// countBrokenLocked stops the batch after brokenAfter scorings in a row that a grader
// spoiled which cannot judge the untouched world either.
func (b *liveBatch) countBrokenLocked(res *BatchResult) {
	for _, s := range res.Scores {
		if s.Cause != GraderBy || !slices.Contains(s.Flags, "no_verdict") {
			b.broken[s.Grader] = 0
			continue
		}
		if b.broken[s.Grader]++; b.broken[s.Grader] >= brokenAfter && b.halt == nil {
			b.halt = fmt.Errorf("%w: %s gave no verdict %d times in a row, on the untouched world neither", errGraderBroken, s.Grader, brokenAfter)
		}
	}
}
