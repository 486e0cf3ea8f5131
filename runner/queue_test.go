package runner_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/paddock-run/paddock/runner"
)

// queue makes an open batch.
func (b *bench) queue(spec runner.BatchSpec) runner.Batch {
	b.t.Helper()
	spec.Open = true
	return b.batch(spec)
}

func (b *bench) add(id string, lines ...runner.BatchEpisode) runner.Added {
	b.t.Helper()
	added, err := b.AddToBatch(b.t.Context(), owner, id, 0, lines)
	if err != nil {
		b.t.Fatalf("AddToBatch: %v", err)
	}
	return added
}

// seal seals the batch "q".
func (b *bench) seal() {
	b.t.Helper()
	if _, err := b.SealBatch(b.t.Context(), owner, "q", 0); err != nil {
		b.t.Fatalf("SealBatch: %v", err)
	}
}

// group waits for the first complete group after a seq.
func (b *bench) group(id string, after int64) runner.GroupResult {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), patience)
	defer cancel()
	var got runner.GroupResult
	enough := errors.New("enough")
	err := b.Groups(ctx, owner, id, after, true, func(g runner.GroupResult) error {
		got = g
		return enough
	})
	if !errors.Is(err, enough) {
		b.t.Fatalf("no group is complete after %d: %v", after, err)
	}
	return got
}

// until waits until the batch "q" is as the test wants it.
func (b *bench) until(want func(runner.Batch) bool) runner.Batch {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), patience)
	defer cancel()
	for {
		now := b.batchNow("q")
		if want(now) {
			return now
		}
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			b.t.Fatalf("the batch stays %+v", now)
		}
	}
}

// client reads a batch's work until it is stopped, and does each piece in a goroutine.
type client struct {
	stop   func()        // closes the reader
	done   chan struct{} // the reader has ended
	err    error         // with this
	leave  func()        // closes the lease's connection
	worker sync.WaitGroup
}

func (b *bench) client(id string, generation int64, do func(runner.Work)) *client {
	b.t.Helper()
	lease, leave := b.OpenLease(owner)
	c := b.reader(id, runner.WorkSpec{Generation: generation, Lease: lease}, do)
	c.leave = leave
	return c
}

func (b *bench) reader(id string, spec runner.WorkSpec, do func(runner.Work)) *client {
	b.t.Helper()
	ctx, stop := context.WithCancel(b.t.Context())
	c := &client{stop: stop, done: make(chan struct{})}
	began := make(chan struct{})
	go func() {
		defer close(c.done)
		c.err = b.Work(ctx, owner, id, spec, func() func(runner.Work) error {
			close(began)
			return func(w runner.Work) error {
				c.worker.Go(func() { do(w) })
				return nil
			}
		})
	}()
	b.t.Cleanup(func() {
		stop()
		<-c.done
		c.worker.Wait()
	})
	select {
	case <-began:
	case <-c.done:
	}
	return c
}

// playMark plays a line by writing a reward into the file that sayMark reads.
func (b *bench) playMark(reward func(runner.Work) string) func(runner.Work) {
	return func(w runner.Work) {
		key := w.Episode.Key
		if _, err := b.Call(context.Background(), key, runner.CallSpec{Tool: "exec", Shell: mark(reward(w)), Attempt: w.Attempt}, runner.CallIO{}); err != nil {
			if k := runner.KindOf(err); k != runner.KindEpisodeEnded && k != runner.KindSuperseded {
				b.t.Errorf("call of %s: %v", key.ID, err)
			}
			return
		}
		if _, err := b.Finish(context.Background(), key, runner.FinishSpec{Attempt: w.Attempt, Payload: []byte("tokens of " + key.ID)}); err != nil && runner.KindOf(err) == "" {
			b.t.Errorf("finish of %s: %v", key.ID, err)
		}
	}
}

func always(reward string) func(runner.Work) string {
	return func(runner.Work) string { return reward }
}

var byClient = runner.AgentSpec{Client: true}

func withWeights(w string) func(*runner.EpisodeSpec) {
	return func(s *runner.EpisodeSpec) { s.Weights = w }
}

func TestOpenBatchTakesLinesUntilItIsSealed(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	g := b.graderOf(sayMark)
	q := b.queue(runner.BatchSpec{ID: "q"})
	if q.State != runner.BatchRunning || q.Sealed || q.OnVoid != "drop" || q.MinValid != 2 {
		t.Errorf("batch = %+v, want it running and open, with its rules", q)
	}
	line := func(id, weights string) runner.BatchEpisode {
		return b.line(id, id[:2], shellAgent(mark("1")), g, withWeights(weights))
	}
	if a := b.add("q", line("g1/a", "v1"), line("g1/b", "v1")); a.Added != 2 || a.Known != 0 {
		t.Errorf("added %+v, want 2", a)
	}
	first := b.group("q", 0)
	if first.Seq != 1 || first.Group != "g1" || first.Valid != 2 || *first.Mean != 1 || len(first.Results) != 2 || first.Results[0].ID != "g1/a" {
		t.Errorf("first group = %+v", first)
	}
	// The same again is known; other weights under the id are a conflict that says so, and
	// nothing of that request is added.
	if a := b.add("q", line("g1/a", "v1"), line("g2/a", "v1")); a.Added != 1 || a.Known != 1 {
		t.Errorf("added %+v, want 1 and 1 known", a)
	}
	_, err := b.AddToBatch(t.Context(), owner, "q", 0, []runner.BatchEpisode{line("g3/a", "v1"), line("g1/a", "v2")})
	e := wantKind(t, err, runner.KindSpecConflict)
	if e.Field != "episodes/1/id" || len(e.Diffs) != 1 || e.Diffs[0].Pointer != "/weights" {
		t.Errorf("conflict = %+v", e)
	}
	b.seal()
	b.seal()
	_, err = b.AddToBatch(t.Context(), owner, "q", 0, []runner.BatchEpisode{line("g4/a", "v1")})
	wantKind(t, err, runner.KindNotLive)
	if a := b.add("q", line("g1/a", "v1")); a.Known != 1 {
		t.Errorf("a known line after the seal: %+v", a)
	}
	b.follow("q", 0)
	if now := b.batchNow("q"); now.State != runner.BatchDone || now.Total != 3 || now.Valid != 3 || !now.Sealed {
		t.Errorf("batch = %+v, want done with 3", now)
	}
}

func TestQueuesRefuseBadInput(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for field, change := range map[string]func(*runner.BatchSpec){
		"on_void":    func(s *runner.BatchSpec) { s.OnVoid = "refill:0" },
		"min_valid":  func(s *runner.BatchSpec) { s.GroupSize, s.MinValid = 2, 3 },
		"group_size": func(s *runner.BatchSpec) { s.GroupSize = -1 },
		"take":       func(s *runner.BatchSpec) { s.Take = "finished" },
		"deadline_s": func(s *runner.BatchSpec) { s.DeadlineS = -1 },
	} {
		spec := runner.BatchSpec{Open: true}
		change(&spec)
		_, err := b.CreateBatch(t.Context(), owner, spec)
		if e := wantKind(t, err, runner.KindBadRequest); e != nil && e.Field != field {
			t.Errorf("field %q, want %q", e.Field, field)
		}
	}
	b.queue(runner.BatchSpec{ID: "q", OnVoid: "refill:1"})
	b.add("q", b.line("g/a", "g", byClient, nil))
	good := b.line("x", "", byClient, nil)
	for field, lines := range map[string][]runner.BatchEpisode{
		"episodes":             nil,
		"episodes/1/id":        {good, good},
		"episodes/1/world":     {good, b.line("y", "", byClient, nil, func(s *runner.EpisodeSpec) { s.World = "nowhere" })},
		"episodes/0/agent":     {b.line("y", "", runner.AgentSpec{}, nil)},
		"episodes/0/graders/0": {b.line("y", "", byClient, []runner.WeightedGrader{{Grader: "client:no name"}})},
	} {
		_, err := b.AddToBatch(t.Context(), owner, "q", 0, lines)
		if e, isErr := errors.AsType[*runner.Error](err); !isErr || e.Field != field {
			t.Errorf("error %v, want field %s", err, field)
		}
	}
	if now := b.batchNow("q"); now.Total != 1 {
		t.Errorf("%d lines are there, want the first", now.Total)
	}
	for _, c := range []struct {
		spec runner.BatchCancel
		kind string
	}{
		{runner.BatchCancel{Group: "nope"}, runner.KindNotFound},
		{runner.BatchCancel{Prefix: "nope"}, runner.KindNotFound},
		{runner.BatchCancel{Weights: "nope"}, runner.KindNotFound},
		{runner.BatchCancel{Weights: "v", Group: "g"}, runner.KindBadRequest},
	} {
		_, _, err := b.CancelBatch(t.Context(), owner, "q", c.spec)
		wantKind(t, err, c.kind)
	}
	for _, err := range []error{
		func() error {
			_, err := b.AddToBatch(t.Context(), owner, "none", 0, []runner.BatchEpisode{good})
			return err
		}(),
		func() error { _, err := b.SealBatch(t.Context(), owner, "none", 0); return err }(),
		b.Groups(t.Context(), owner, "none", 0, false, nil),
		b.Work(t.Context(), owner, "none", runner.WorkSpec{}, nil),
		b.RewardInBatch(t.Context(), owner, "none", runner.RewardSpec{}),
	} {
		wantKind(t, err, runner.KindNotFound)
	}
	err := b.Work(t.Context(), owner, "q", runner.WorkSpec{Lease: "none"}, nil)
	wantKind(t, err, runner.KindBadRequest)
	wantKind(t, b.RewardInBatch(t.Context(), owner, "q", runner.RewardSpec{ID: "g/a", Name: "n"}), runner.KindNotFound)
}

func TestClientPlaysLinesWhileItIsThere(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	g := b.graderOf(sayMark)
	b.queue(runner.BatchSpec{ID: "q"})
	b.add("q", b.line("g/a", "g", byClient, g), b.line("g/b", "g", byClient, g), b.line("h", "", shellAgent(mark("0.5")), g))
	// The line that needs no client is not held up by those that wait for one.
	if h := b.group("q", 0); h.Group != "h" || *h.Mean != 0.5 {
		t.Errorf("group = %+v, want h", h)
	}
	b.client("q", 0, b.playMark(func(w runner.Work) string {
		if w.Kind != runner.WorkPlay || w.Attempt != 1 || w.Episode.State != runner.Live {
			t.Errorf("work = %+v", w)
		}
		return map[string]string{"g/a": "1", "g/b": "0"}[w.Episode.Key.ID]
	}))
	got := b.group("q", 1)
	if got.Group != "g" || *got.Mean != 0.5 || *got.Std != 0.5 || got.Results[1].Payload == nil {
		t.Errorf("group = %+v", got)
	}
	payload, err := b.Payload(t.Context(), b.key("g/b"), 0)
	if err != nil || string(payload) != "tokens of g/b" {
		t.Errorf("payload %q, %v", payload, err)
	}
}

// What a client does that goes away begins again, from a new fork, for the next one, and
// that does not count against retries.
func TestWorkOfALostClientBeginsAgain(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	g := b.graderOf(sayMark)
	run, err := b.OpenRun(t.Context(), owner, runner.RunSpec{Name: "r", Resume: "auto"})
	if err != nil {
		t.Fatal(err)
	}
	b.queue(runner.BatchSpec{ID: "q", Run: "r", Generation: run.Generation})
	b.add("q", b.line("a", "g", byClient, g), b.line("b", "g", byClient, g))
	asked := make(chan runner.Work, 8)
	first := b.client("q", run.Generation, func(w runner.Work) { asked <- w })
	<-asked
	<-asked
	// Its process has died, and another one resumes the run: nothing waits for the grace.
	if run, err = b.OpenRun(t.Context(), owner, runner.RunSpec{Name: "r", Resume: "resume"}); err != nil {
		t.Fatal(err)
	}
	b.client("q", run.Generation, b.playMark(always("1")))
	got := b.group("q", 0)
	if got.Valid != 2 || got.Results[0].Attempt != 2 || got.Results[1].Attempt != 2 {
		t.Errorf("group = %+v, want two second attempts", got)
	}
	<-first.done
	wantKind(t, first.err, runner.KindFenced)
	ep, err := b.Get(t.Context(), runner.Key{Owner: owner, Run: "r", ID: "a"})
	if err != nil {
		t.Fatal(err)
	}
	wantEnd(t, ep.Attempts[0], runner.Expired, runner.Client, "")
	// The earlier driver is refused whatever it asks.
	_, err = b.AddToBatch(t.Context(), owner, "q", run.Generation-1, []runner.BatchEpisode{b.line("c", "", byClient, g)})
	wantKind(t, err, runner.KindFenced)
	_, err = b.SealBatch(t.Context(), owner, "q", run.Generation-1)
	wantKind(t, err, runner.KindFenced)
	_, _, err = b.CancelBatch(t.Context(), owner, "q", runner.BatchCancel{Generation: run.Generation - 1})
	wantKind(t, err, runner.KindFenced)
}

// A reader that comes back with its lease is asked again what it has not done, and the
// attempts are the same.
func TestReaderThatComesBackIsAskedAgain(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.queue(runner.BatchSpec{ID: "q"})
	lease, leave := b.OpenLease(owner)
	defer leave()
	asked := make(chan runner.Work, 8)
	spec := runner.WorkSpec{Lease: lease}
	first := b.reader("q", spec, func(w runner.Work) { asked <- w })
	b.add("q", b.line("a", "", byClient, b.graderOf(sayMark)))
	before := <-asked
	first.stop()
	<-first.done
	b.reader("q", spec, func(w runner.Work) {
		asked <- w
		b.playMark(always("1"))(w)
	})
	if again := <-asked; again.Attempt != before.Attempt || again.Episode.Key != before.Episode.Key {
		t.Errorf("asked %+v, then %+v", before, again)
	}
	if got := b.group("q", 0); got.Results[0].Attempt != 1 || !got.Results[0].Valid {
		t.Errorf("group = %+v, want its first attempt", got)
	}
}

func TestMostBoundsWhatAClientIsAsked(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.queue(runner.BatchSpec{ID: "q"})
	lease, leave := b.OpenLease(owner)
	defer leave()
	asked := make(chan runner.Work, 8)
	b.reader("q", runner.WorkSpec{Lease: lease, Most: 1}, func(w runner.Work) { asked <- w })
	b.add("q", b.line("a", "", byClient, nil), b.line("b", "", byClient, nil))
	w := <-asked
	if now := b.batchNow("q"); now.Playing != 1 || now.Clients != 1 {
		t.Errorf("%d are playing with %d clients, want 1 and 1", now.Playing, now.Clients)
	}
	b.finish(w.Episode.Key)
	b.finish((<-asked).Episode.Key)
}

// lose lets a line's attempts end by the client's error, which may be retried.
func (b *bench) abortWork(w runner.Work) {
	if _, err := b.Abort(context.Background(), w.Episode.Key, "inference is down"); err != nil {
		b.t.Errorf("abort: %v", err)
	}
}

func TestVoidMembersAreRefilled(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	g := b.graderOf(sayMark)
	b.queue(runner.BatchSpec{ID: "q", OnVoid: "refill:2"})
	var mu sync.Mutex
	tried := map[string]int{}
	b.client("q", 0, func(w runner.Work) {
		id := w.Episode.Key.ID
		mu.Lock()
		tried[id]++
		mu.Unlock()
		if id == "g/a" || id == "g/a~1" {
			b.abortWork(w)
			return
		}
		b.playMark(always("1"))(w)
	})
	retry := func(s *runner.EpisodeSpec) { s.Retries = 1 }
	b.add("q", b.line("g/a", "g", byClient, g, retry), b.line("g/b", "g", byClient, g, retry))
	got := b.group("q", 0)
	if want := []string{"g/a", "g/b", "g/a~1", "g/a~2"}; !slices.Equal(got.IDs, want) {
		t.Errorf("members %q, want %q", got.IDs, want)
	}
	if got.Wanted != 2 || got.Valid != 2 || got.Void != 2 || got.Refills != 2 || got.IsVoid || got.Rewards[0] != nil || *got.Rewards[3] != 1 {
		t.Errorf("group = %+v", got.BatchGroup)
	}
	if got.Results[3].RefillOf != "g/a" {
		t.Errorf("refill of %q, want g/a", got.Results[3].RefillOf)
	}
	mu.Lock()
	defer mu.Unlock()
	for id, want := range map[string]int{"g/a": 2, "g/b": 1, "g/a~1": 2, "g/a~2": 1} {
		if tried[id] != want {
			t.Errorf("%s was tried %d times, want %d", id, tried[id], want)
		}
	}
	a, errA := b.Get(t.Context(), b.key("g/a"))
	r, errR := b.Get(t.Context(), b.key("g/a~1"))
	if errA != nil || errR != nil || a.Plan.EnvSeed != r.Plan.EnvSeed || a.Plan.SampleSeed == r.Plan.SampleSeed {
		t.Errorf("seeds of a %d, %d; of its refill %d, %d; want one start and another sample", a.Plan.EnvSeed, a.Plan.SampleSeed, r.Plan.EnvSeed, r.Plan.SampleSeed)
	}
}

func TestGroupsThatAreVoid(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	g := b.graderOf(sayMark)
	for _, c := range []struct {
		onVoid   string
		minValid int
		want     bool
	}{{"drop", 0, false}, {"drop", 3, true}, {"void_group", 0, true}} {
		id := fmt.Sprintf("q-%s-%d", c.onVoid, c.minValid)
		b.queue(runner.BatchSpec{ID: id, OnVoid: c.onVoid, MinValid: c.minValid})
		b.client(id, 0, func(w runner.Work) {
			if w.Episode.Plan.Spec.Task == "bad" {
				b.abortWork(w)
				return
			}
			b.playMark(always("1"))(w)
		})
		var lines []runner.BatchEpisode
		for i := range 3 {
			lines = append(lines, b.line(fmt.Sprintf("%s/%d", id, i), id, byClient, g, func(s *runner.EpisodeSpec) {
				if i == 1 {
					s.Task = "bad"
				}
			}))
		}
		b.add(id, lines...)
		if got := b.group(id, 0); got.IsVoid != c.want || got.Valid != 2 || got.Void != 1 || *got.Mean != 1 || got.Causes["error/client"] != 1 {
			t.Errorf("%s with at least %d: %+v, want void %v", c.onVoid, c.minValid, got.BatchGroup, c.want)
		}
	}
}

func TestSurplusMembersAreCancelled(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	g := b.graderOf(sayMark)
	b.queue(runner.BatchSpec{ID: "q", GroupSize: 2, Take: "finished"})
	asked := make(chan runner.Work, 8)
	b.client("q", 0, func(w runner.Work) { asked <- w })
	b.add("q", b.line("g/a", "g", byClient, g), b.line("g/b", "g", byClient, g), b.line("g/c", "g", byClient, g))
	work := map[string]runner.Work{}
	for range 3 {
		w := <-asked
		work[w.Episode.Key.ID] = w
	}
	b.playMark(always("1"))(work["g/c"])
	b.playMark(always("0"))(work["g/b"])
	got := b.group("q", 0)
	if want := []string{"g/b", "g/c"}; !slices.Equal(got.IDs, want) || *got.Mean != 0.5 || !got.Biased || got.Surplus != 1 {
		t.Errorf("group = %+v, want b and c", got.BatchGroup)
	}
	wantEnd(t, b.ended(b.key("g/a")), runner.Cancelled, runner.Client, "surplus")
	now := b.until(func(now runner.Batch) bool { return now.Done == 3 })
	if now.Surplus != 1 || now.Void != 0 || now.Valid != 2 {
		t.Errorf("batch = %+v, want one surplus and none void", now)
	}
	_, err := b.AddToBatch(t.Context(), owner, "q", 0, []runner.BatchEpisode{b.line("g/d", "g", byClient, g)})
	if e := wantKind(t, err, runner.KindNotLive); e != nil && e.Field != "episodes/0/group" {
		t.Errorf("adding to a complete group: %+v", e)
	}
}

// By order of start no member is left out for being slow.
func TestSurplusIsTakenByOrderOfStart(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	g := b.graderOf(sayMark)
	b.queue(runner.BatchSpec{ID: "q", GroupSize: 2})
	asked := make(chan runner.Work, 8)
	b.client("q", 0, func(w runner.Work) { asked <- w })
	b.add("q", b.line("g/a", "g", byClient, g), b.line("g/b", "g", byClient, g), b.line("g/c", "g", byClient, g))
	work := map[string]runner.Work{}
	for range 3 {
		w := <-asked
		work[w.Episode.Key.ID] = w
	}
	b.playMark(always("1"))(work["g/b"])
	b.playMark(always("1"))(work["g/c"])
	now := b.until(func(now runner.Batch) bool { return now.Done == 2 })
	if now.Groups[0].Complete {
		t.Errorf("group = %+v, complete before its first member", now.Groups[0])
	}
	b.playMark(always("0"))(work["g/a"])
	got := b.group("q", 0)
	if want := []string{"g/a", "g/b"}; !slices.Equal(got.IDs, want) || *got.Mean != 0.5 || got.Biased || got.Surplus != 1 || len(got.Results) != 2 {
		t.Errorf("group = %+v, want a and b", got.BatchGroup)
	}
}

func TestCancelByPrefixGroupAndWeights(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	g := b.graderOf(sayMark)
	b.queue(runner.BatchSpec{ID: "q"})
	line := func(id, group, weights string) runner.BatchEpisode {
		return b.line(id, group, byClient, g, withWeights(weights))
	}
	b.add("q", line("i1/a", "g1", "v1"), line("i1/b", "g1", "v1"), line("i2/a", "g2", "v2"), line("i2/b", "g3", "v2"), line("i3/a", "g4", "v3"), line("i3/b", "g5", ""))
	cancel := func(spec runner.BatchCancel, want int) {
		t.Helper()
		now, n, err := b.CancelBatch(t.Context(), owner, "q", spec)
		if err != nil || n != want || now.State != runner.BatchRunning {
			t.Errorf("cancel %+v: %d lines, %s, %v; want %d of a batch that runs on", spec, n, now.State, err, want)
		}
	}
	cancel(runner.BatchCancel{Prefix: "i1/a", Reason: "stale"}, 1)
	cancel(runner.BatchCancel{Group: "g2"}, 1)
	cancel(runner.BatchCancel{Group: "g2"}, 0)
	cancel(runner.BatchCancel{WeightsBefore: "v2"}, 1) // i1/b
	asked := make(chan runner.Work, 8)
	b.client("q", 0, func(w runner.Work) { asked <- w })
	for range 3 {
		<-asked
	}
	cancel(runner.BatchCancel{Weights: "v2"}, 1)       // i2/b, which is live
	cancel(runner.BatchCancel{WeightsBefore: "v4"}, 1) // i3/a: v4 will be used later than all
	wantEnd(t, b.ended(b.key("i2/b")), runner.Cancelled, runner.Client, "cancel")
	now := b.batchNow("q")
	if now.Done != 5 || now.Causes["cancelled/client"] != 5 || now.GroupSeq != 4 {
		t.Errorf("batch = %+v, want five lines cancelled in four groups", now)
	}
	if got := b.resultsNow("q"); got[0].ID != "i1/a" || got[0].Reason != "stale" || got[0].Attempt != 0 {
		t.Errorf("first result = %+v", got[0])
	}
}

// The order is that of the whole run, episodes outside of the batch included, and survives
// the daemon. What was refused is no use.
func TestWeightsAreOrderedByTheirFirstUse(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.finish(b.live("outside", withWeights("v1")))
	b.queue(runner.BatchSpec{ID: "q"})
	line := func(id, weights string) runner.BatchEpisode {
		return b.line(id, "", byClient, nil, withWeights(weights))
	}
	b.add("q", line("c", "v3"), line("b", "v2"), line("a", "v1"))
	bad := line("d", "v0")
	bad.World = "nowhere"
	if _, err := b.AddToBatch(t.Context(), owner, "q", 0, []runner.BatchEpisode{bad}); err == nil {
		t.Error("a line of an unknown world was added")
	}
	if err := b.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.restart()
	b.add("q", line("z", "v0"))
	for _, c := range []struct {
		before string
		want   []string
	}{{"v1", nil}, {"v3", []string{"a"}}, {"v2", []string{"a", "c"}}, {"v9", []string{"a", "b", "c", "z"}}} {
		if _, _, err := b.CancelBatch(t.Context(), owner, "q", runner.BatchCancel{WeightsBefore: c.before}); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, r := range b.resultsNow("q") {
			got = append(got, r.ID)
		}
		if slices.Sort(got); !slices.Equal(got, c.want) {
			t.Errorf("before %s: %q, want %q", c.before, got, c.want)
		}
	}
	// What is cancelled stays so, though it was cancelled while nothing ran.
	if _, err := b.ResumeBatch(t.Context(), owner, "q", 0); err != nil {
		t.Fatal(err)
	}
	b.seal()
	b.follow("q", 4)
	if now := b.batchNow("q"); now.State != runner.BatchDone || now.Causes["cancelled/client"] != 4 || now.GroupSeq != 4 {
		t.Errorf("batch = %+v, want four cancelled lines and no more", now)
	}
}

// resultsNow reads the results that are there.
func (b *bench) resultsNow(id string) []runner.BatchResult {
	b.t.Helper()
	var got []runner.BatchResult
	if err := b.Results(b.t.Context(), owner, id, 0, false, func(r runner.BatchResult) error {
		got = append(got, r)
		return nil
	}); err != nil {
		b.t.Fatal(err)
	}
	return got
}

// graded adds graders of the client's to a list.
func graded(graders []runner.WeightedGrader, names ...string) []runner.WeightedGrader {
	for _, name := range names {
		one := 1.0
		graders = append(graders, runner.WeightedGrader{Grader: "client:" + name, Weight: &one})
	}
	return graders
}

// judging plays lines, and writes rewards by name for what is to be scored.
func (b *bench) judging(id string, reward func(w runner.Work, name string) *float64) func(runner.Work) {
	return func(w runner.Work) {
		if w.Kind == runner.WorkPlay {
			b.playMark(always("0.5"))(w)
			return
		}
		for _, name := range w.Graders {
			err := b.RewardInBatch(context.Background(), owner, id, runner.RewardSpec{
				ID: w.Episode.Key.ID, Attempt: w.Attempt, Name: name, Reward: reward(w, name),
			})
			if err != nil {
				b.t.Errorf("reward %s of %s: %v", name, w.Episode.Key.ID, err)
			}
		}
	}
}

func TestClientsRewardFunctionIsAGrader(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	g := graded(b.graderOf(sayMark), "judge", "turns")
	b.queue(runner.BatchSpec{ID: "q"})
	b.client("q", 0, b.judging("q", func(w runner.Work, name string) *float64 {
		if w.Episode.Last().End.Status != runner.OK || w.Episode.Valid {
			t.Errorf("asked to score %+v", w.Episode.Last())
		}
		r := map[string]float64{"judge": 0.25, "turns": -1}[name]
		return &r
	}))
	b.add("q", b.line("a", "", byClient, g), b.line("b", "", shellAgent(mark("1")), g))
	for id, want := range map[string]float64{"a": 0.5 + 0.25 - 1, "b": 1 + 0.25 - 1} {
		b.until(func(now runner.Batch) bool { return now.Done == 2 })
		ep, err := b.Get(t.Context(), b.key(id))
		if err != nil || ep.Reward == nil || *ep.Reward != want || len(ep.Last().Scores) != 3 || ep.Last().Calls != 1 {
			t.Errorf("%s: %+v, %v; want reward %v from three scores", id, ep.Last(), err, want)
		}
	}
	for _, r := range b.resultsNow("q") {
		if !r.Valid || r.Scores[1].Source != "client" || r.Scores[1].Weight != 1 {
			t.Errorf("result = %+v", r)
		}
	}
}

// A judge that fails is null by the client, never 0, after it was asked three times; a
// resume asks it again, and no agent runs again.
func TestRewardThatTheClientCannotFindIsNull(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.queue(runner.BatchSpec{ID: "q"})
	var mu sync.Mutex
	asked := 0
	var answer *float64
	do := b.judging("q", func(runner.Work, string) *float64 {
		mu.Lock()
		defer mu.Unlock()
		asked++
		return answer
	})
	first := b.client("q", 0, do)
	b.add("q", b.line("a", "", byClient, graded(nil, "judge")), b.line("hold", "", byClient, nil, func(s *runner.EpisodeSpec) { s.World = "base" }))
	r := b.until(func(now runner.Batch) bool { return now.Done == 2 })
	if r.Causes["error/client"] != 1 || asked != 1+2 {
		t.Errorf("causes %v after %d askings, want null by the client after 3", r.Causes, asked)
	}
	first.stop()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := b.Close(ctx); err != nil {
		t.Fatal(err)
	}
	b.restart()
	one := 1.0
	mu.Lock()
	answer = &one
	mu.Unlock()
	if _, err := b.ResumeBatch(t.Context(), owner, "q", 0); err != nil {
		t.Fatal(err)
	}
	b.client("q", 0, do)
	b.until(func(now runner.Batch) bool { return now.Valid == 1 })
	ep, err := b.Get(t.Context(), b.key("a"))
	if err != nil || len(ep.Attempts) != 1 || *ep.Reward != 1 || ep.Last().Calls != 1 {
		t.Errorf("episode = %+v, %v; want its one attempt scored later", ep, err)
	}
}

func TestScoreBatchAsksTheClient(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.queue(runner.BatchSpec{ID: "q"})
	c := b.client("q", 0, b.playMark(always("0.5")))
	b.add("q", b.line("a", "g", byClient, b.graderOf(sayMark)), b.line("b", "g", byClient, b.graderOf(sayMark)))
	b.group("q", 0)
	_, err := b.ScoreBatch(t.Context(), owner, "q", graded(nil, "judge"))
	wantKind(t, err, runner.KindInUse)
	b.seal()
	b.follow("q", 0)
	<-c.done
	again, err := b.ScoreBatch(t.Context(), owner, "q", graded(b.graderOf(sayOne), "judge"))
	if err != nil {
		t.Fatal(err)
	}
	b.client(again.ID, 0, b.judging(again.ID, func(w runner.Work, _ string) *float64 {
		if w.Kind != runner.WorkScore {
			t.Errorf("work = %+v, want a scoring", w)
		}
		r := map[string]float64{"a": 0.25, "b": -0.25}[w.Episode.Key.ID]
		return &r
	}))
	if g := b.group(again.ID, 0); *g.Mean != 1 || *g.Rewards[0] != 1.25 || *g.Rewards[1] != 0.75 {
		t.Errorf("group = %+v", g)
	}
	ep, err := b.Get(t.Context(), b.key("a"))
	if err != nil || *ep.Reward != 0.5 || len(ep.Last().Scores) != 1 {
		t.Errorf("the episode is %+v, %v; want it as it was", ep.Last(), err)
	}
	one := 1.0
	err = b.RewardInBatch(t.Context(), owner, again.ID, runner.RewardSpec{ID: "a", Name: "judge", Reward: &one})
	wantKind(t, err, runner.KindNotLive)
}

// Nobody reads the new batch's work: that a client played the lines does not matter.
func TestScoreBatchOfPlayedLinesNeedsNoClient(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.queue(runner.BatchSpec{ID: "q"})
	c := b.client("q", 0, b.playMark(always("0.5")))
	b.add("q", b.line("a", "g", byClient, b.graderOf(sayMark)), b.line("b", "g", byClient, b.graderOf(sayMark)))
	b.group("q", 0)
	b.seal()
	b.follow("q", 0)
	<-c.done
	again, err := b.ScoreBatch(t.Context(), owner, "q", graded(b.graderOf(sayOne)))
	if err != nil {
		t.Fatal(err)
	}
	if g := b.group(again.ID, 0); *g.Mean != 1 || g.Valid != 2 {
		t.Errorf("group = %+v", g)
	}
}

func TestScoreBatchLeavesSurplusOut(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	g := b.graderOf(sayMark)
	b.queue(runner.BatchSpec{ID: "q", GroupSize: 2, Take: "finished", Parallel: 1})
	var lines []runner.BatchEpisode
	for _, id := range []string{"g/a", "g/b", "g/c"} {
		lines = append(lines, b.line(id, "g", shellAgent(mark("0.5")), g))
	}
	b.add("q", lines...)
	b.seal()
	b.follow("q", 0)
	again, err := b.ScoreBatch(t.Context(), owner, "q", b.graderOf(sayOne))
	if err != nil {
		t.Fatal(err)
	}
	b.follow(again.ID, 0)
	now := b.batchNow(again.ID)
	if now.State != runner.BatchDone || now.Total != 2 || now.Valid != 2 || now.Void != 0 || !slices.Equal(now.Groups[0].IDs, []string{"g/a", "g/b"}) {
		t.Errorf("batch = %+v, want the two that counted", now)
	}
	third, err := b.ScoreBatch(t.Context(), owner, again.ID, g)
	if err != nil || third.Total != 2 {
		t.Errorf("scored a third time: %+v, %v", third, err)
	}
	b.follow(third.ID, 0)
}

// What was done is done, what the daemon's end cut short is made again, and groups and
// their cursor are as before.
func TestQueueGoesOnAfterTheDaemon(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	g := b.graderOf(sayMark)
	b.queue(runner.BatchSpec{ID: "q", OnVoid: "refill:1"})
	asked := make(chan runner.Work, 8)
	c := b.client("q", 0, func(w runner.Work) {
		switch w.Episode.Key.ID {
		case "g1/a":
			b.abortWork(w)
		case "g1/b", "g1/a~1":
			b.playMark(always("1"))(w)
		default:
			asked <- w
		}
	})
	lines := []runner.BatchEpisode{
		b.line("g1/a", "g1", byClient, g), b.line("g1/b", "g1", byClient, g),
		b.line("g2/a", "g2", byClient, g), b.line("g2/b", "g2", byClient, g),
	}
	b.add("q", lines...)
	first := b.group("q", 0)
	for range 2 {
		w := <-asked
		if w.Episode.Key.ID == "g2/a" {
			b.playMark(always("0"))(w)
		}
	}
	b.until(func(now runner.Batch) bool { return now.Done == 4 })
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := b.Close(ctx); err != nil {
		t.Fatal(err)
	}
	<-c.done
	b.restart()
	now := b.batchNow("q")
	if now.State != runner.BatchInterrupted || now.Done != 4 || now.Total != 5 || now.GroupSeq != 1 {
		t.Fatalf("after the stop: %+v", now)
	}
	// Known lines are known while it is interrupted, and new ones are taken.
	more := append(slices.Clone(lines), b.line("g3/a", "g3", byClient, g), b.line("g3/b", "g3", byClient, g))
	if a := b.add("q", more...); a.Known != 4 || a.Added != 2 {
		t.Errorf("added %+v, want 4 known and 2 new", a)
	}
	err := b.Work(t.Context(), owner, "q", runner.WorkSpec{}, nil)
	wantKind(t, err, runner.KindNotLive)
	if _, err := b.ResumeBatch(t.Context(), owner, "q", 0); err != nil {
		t.Fatal(err)
	}
	if same := b.group("q", 0); same.Seq != first.Seq || !slices.Equal(same.IDs, first.IDs) || *same.Mean != *first.Mean {
		t.Errorf("first group is %+v, was %+v", same.BatchGroup, first.BatchGroup)
	}
	b.client("q", 0, b.playMark(always("1")))
	g2, g3 := b.group("q", 1), b.group("q", 2)
	if g2.Group != "g2" { // they were played at the same time
		g2, g3 = g3, g2
	}
	if g2.Group != "g2" || *g2.Mean != 0.5 || g2.Results[0].Attempt != 1 || g2.Results[1].Attempt != 2 {
		t.Errorf("second group = %+v", g2)
	}
	if g3.Group != "g3" || g3.Valid != 2 {
		t.Errorf("third group = %+v", g3)
	}
}

func TestSupersedingLineTakesTheOthersPlace(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	g := b.graderOf(sayMark)
	b.queue(runner.BatchSpec{ID: "q"})
	line := func(id, weights, reward string) runner.BatchEpisode {
		return b.line(id, "g", shellAgent(mark(reward)), g, withWeights(weights), func(s *runner.EpisodeSpec) { s.OnConflict = "supersede" })
	}
	b.add("q", line("a", "v1", "0"), line("b", "v1", "0"))
	b.group("q", 0)
	if a := b.add("q", line("a", "v2", "1"), line("b", "v1", "0")); a.Added != 1 || a.Known != 1 || a.Batch.Total != 2 {
		t.Errorf("added %+v of %d, want one of two", a, a.Batch.Total)
	}
	got := b.group("q", 1)
	if *got.Mean != 0.5 || got.Results[0].Weights != "v2" || got.Results[0].Attempt != 2 {
		t.Errorf("group = %+v", got)
	}
	b.seal()
	b.follow("q", got.Results[0].Seq)
	if now := b.batchNow("q"); now.State != runner.BatchDone || now.Total != 2 || now.Valid != 2 || now.GroupSeq != 2 {
		t.Errorf("batch = %+v", now)
	}
}

func TestDeadlineSealsAQueue(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.queue(runner.BatchSpec{ID: "q", DeadlineS: 0.3, OnVoid: "refill:4", GroupSize: 3})
	b.add("q", b.line("g/a", "g", byClient, nil), b.line("g/b", "g", shellAgent("sleep 1000"), nil))
	got := b.group("q", 0)
	if !got.IsVoid || got.Void != 2 || got.Refills != 0 || got.Causes["cancelled/client"] != 2 {
		t.Errorf("group = %+v, want it void and not refilled", got)
	}
	b.follow("q", 0)
	if now := b.batchNow("q"); now.State != runner.BatchDone || !now.Sealed {
		t.Errorf("batch = %+v, want it done and sealed", now)
	}
}

// Means and deviations of groups that the platform's faults thinned out are those of the
// members that are left, alone.
func TestGroupsOfABatchWithFaultsAreThoseOfTheSurvivors(t *testing.T) {
	t.Parallel()
	b := newBench(t, func(c *runner.Config) { c.Faults = &runner.Faults{Share: 0.1, Seed: 7} })
	g := b.graderOf(sayMark)
	rewardOf := func(i, j int) float64 { return float64((i*7+j*3)%11) / 10 }
	spec := runner.BatchSpec{OnVoid: "drop"}
	for i := range 12 {
		for j := range 8 {
			group := fmt.Sprintf("it1/t%d", i)
			spec.Episodes = append(spec.Episodes, b.line(fmt.Sprintf("%s/s%d", group, j), group, shellAgent(mark(fmt.Sprint(rewardOf(i, j)))), g))
		}
	}
	made := b.batch(spec)
	lost := 0
	b.follow(made.ID, 0)
	err := b.Groups(t.Context(), owner, made.ID, 0, false, func(got runner.GroupResult) error {
		var i int
		if _, err := fmt.Sscanf(got.Group, "it1/t%d", &i); err != nil {
			return err
		}
		var left []float64
		var sum float64
		for j, r := range got.Results {
			if r.Reward == nil {
				lost++
				if r.Cause != runner.Platform || got.Rewards[j] != nil {
					t.Errorf("%s is void by %s with reward %v", r.ID, r.Cause, got.Rewards[j])
				}
				continue
			}
			if *r.Reward != rewardOf(i, j) || *got.Rewards[j] != *r.Reward || got.IDs[j] != r.ID {
				t.Errorf("%s has reward %v, want %v", r.ID, *r.Reward, rewardOf(i, j))
			}
			left = append(left, *r.Reward)
			sum += *r.Reward
		}
		mean := sum / float64(len(left))
		var square float64
		for _, x := range left {
			square += (x - mean) * (x - mean)
		}
		std := math.Sqrt(square / float64(len(left)))
		if *got.Mean != mean || *got.Std != std || got.Valid != len(left) || got.Wanted != 8 {
			t.Errorf("%s: mean %v, std %v of %d; want %v, %v of %d", got.Group, *got.Mean, *got.Std, got.Valid, mean, std, len(left))
		}
		for j, r := range got.Results { // what a trainer makes of it, member by member
			if r.Reward != nil && (*got.Rewards[j]-*got.Mean) != (*r.Reward-mean) {
				t.Errorf("%s: the advantage is not that among the survivors", r.ID)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if now := b.batchNow(made.ID); now.GroupSeq != 12 || now.Void != lost || lost < 3 || lost > 24 {
		t.Errorf("%d groups, %d void, %d lost; want 12 groups and about 10 lost", now.GroupSeq, now.Void, lost)
	}
}
