package runner

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/paddock-run/paddock/policies"
	"github.com/paddock-run/paddock/sandbox"
)

// Preparer is implemented by launchers that can do ahead what of a Start needs only the
// sandbox's name and ids.
type Preparer interface {
	// Prepare returns when that is done; the Start that asks for both uses it. Until then,
	// or Drop, the ids are in use. After an error nothing of it is left.
	Prepare(ctx context.Context, name string, ids sandbox.IDMap) error
	// Drop takes back a Prepare that no Start will use; without one it does nothing.
	Drop(name string) error
}

// Stock says how much is made ahead of the episodes that will need it. What is made ahead
// was never used and is handed out once.
type Stock struct {
	// Blanks are the sandboxes kept begun that fit any world and policy: namespaces, a
	// guest, cgroups. 0 is none.
	Blanks int
	// Warm bounds the whole sandboxes kept ready for each world, policy and limits that
	// episodes have asked for lately, or that the next episodes of batches will ask for; 0
	// is none.
	Warm int
}

const (
	// MaxWarm bounds the warm sandboxes of all kinds together.
	MaxWarm = 256
	// WarmIdle is how long a warm sandbox waits for an episode.
	WarmIdle = 30 * time.Second
	// warmLeft is how long it waits after the last batch that asked for its kind has begun
	// all of its episodes of that kind.
	warmLeft = 5 * time.Second
	// stockPatience bounds a start that goes on whoever has gone meanwhile.
	stockPatience = 20 * time.Second
)

// kind is what must be equal for an episode to take a warm sandbox.
type kind struct {
	world, policy, workdir string
	limits                 policies.Limits
	listen                 portList
	// layer is the directory of a prepared layer on the world, "" for none. It may be gone
	// any time nobody uses it, so nothing is kept warm on one.
	layer string
}

// box is a sandbox, or the beginning of one, that no episode has.
type box struct {
	name string
	ids  sandbox.IDMap
	// fork and sb are nil in a blank.
	fork Fork
	sb   Sandbox
	made time.Time
}

// maker makes a box of a kind a warm sandbox.
type maker func(context.Context, box) (box, error)

// shelf has the warm sandboxes of one kind. Two things size it: want, which doubles with each
// episode that finds it empty and goes down with each sandbox that waited in vain, and what
// batches expect to need. Its high mark is the greater of both; when fewer than the low mark,
// half of that, are left, it is filled up to the high one, so that not every episode has the
// next sandbox made beside it.
type shelf struct {
	boxes    []box
	want     int
	expected map[string]expectation // by batch
	filling  bool
	// left, unless zero, is since when no batch expects the kind any more; somebody's taking
	// one ends that.
	left time.Time
	make maker
}

// expectation is what a batch will need soon of one kind.
type expectation struct {
	kind     kind
	n        int
	requests Requests // of one episode
	make     maker
}

// keeps says whether sandboxes of the kind can wait: room on the disk is promised to who is
// there, and a layer may be gone when nobody uses it.
func (k kind) keeps() bool { return !k.limits.OnDisk() && k.layer == "" }

// stock keeps what is made ahead. One goroutine fills it, one thing at a time and only
// while no episode waits for capacity: what is ahead of need must not slow what is needed.
type stock struct {
	r        *Runner
	preparer Preparer // nil: this launcher makes no blanks
	cfg      Stock
	wake     chan struct{}

	// filling is held while something is made, from its choice to its place on the shelf.
	filling sync.Mutex

	mu      sync.Mutex
	closed  bool
	blanks  []box
	shelves map[kind]*shelf
}

func newStock(r *Runner, cfg Stock) *stock {
	s := &stock{r: r, cfg: cfg, wake: make(chan struct{}, 1), shelves: map[kind]*shelf{}}
	s.preparer, _ = r.cfg.Launcher.(Preparer)
	if s.preparer == nil {
		s.cfg.Blanks = 0
	}
	if s.cfg.Blanks > 0 || s.cfg.Warm > 0 {
		r.wg.Go(func() { s.keep(r.ctx) })
		s.more()
	}
	return s
}

// take returns the best there is for an episode: a warm sandbox of its kind, a blank, or
// a name and ids alone. fill makes the next warm one.
func (s *stock) take(k kind, fill maker) (box, error) {
	if b, ok := s.takeWarm(k, fill); ok {
		return b, nil
	}
	s.mu.Lock()
	if n := len(s.blanks); n > 0 {
		b := s.blanks[n-1]
		s.blanks = s.blanks[:n-1]
		s.mu.Unlock()
		return b, nil
	}
	s.mu.Unlock()
	return s.newBox()
}

func (s *stock) newBox() (box, error) {
	ids, err := s.r.cfg.IDs.Acquire()
	if err != nil {
		return box{}, err
	}
	return box{name: s.r.sandboxName(), ids: ids, made: time.Now()}, nil
}

func (s *stock) takeWarm(k kind, fill maker) (box, bool) {
	if s.cfg.Warm == 0 || !k.keeps() {
		return box{}, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	sh := s.shelfLocked(k)
	sh.make, sh.left = fill, time.Time{}
	for len(sh.boxes) > 0 {
		b := sh.boxes[0]
		sh.boxes = sh.boxes[1:]
		if stopped(b.sb.Done()) { // killed from outside while it waited
			s.r.wg.Go(func() { s.drop(b) })
			continue
		}
		return b, true
	}
	sh.want = min(max(1, 2*sh.want), s.cfg.Warm)
	return box{}, false
}

func (s *stock) shelfLocked(k kind) *shelf {
	sh := s.shelves[k]
	if sh == nil {
		sh = &shelf{expected: map[string]expectation{}}
		s.shelves[k] = sh
	}
	return sh
}

// expect says what a batch will need soon, in place of what it said before. A kind that
// nobody expects any more is let go shortly after.
func (s *stock) expect(batch string, all []expectation) {
	if s.cfg.Warm == 0 {
		return
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	before := map[*shelf]int{}
	for _, sh := range s.shelves {
		e, was := sh.expected[batch]
		if !was {
			continue
		}
		before[sh] = e.n
		if delete(sh.expected, batch); len(sh.expected) == 0 {
			sh.left = time.Now()
		}
	}
	for _, e := range all {
		if !e.kind.keeps() {
			continue
		}
		sh := s.shelfLocked(e.kind)
		sh.expected[batch], sh.make, sh.left = e, e.make, time.Time{}
		sh.filling = sh.filling || e.n > before[sh] // what was not foreseen is not there yet
	}
	s.mu.Unlock()
	s.more()
}

// marksLocked are between how many sandboxes a shelf is kept. More than could be let in at
// once are not expected: who comes later finds those made meanwhile.
func (s *stock) marksLocked(sh *shelf) (low, high int) {
	soon := 0
	for _, e := range sh.expected {
		soon += min(e.n, s.r.admission.room(e.requests))
	}
	high = min(max(sh.want, soon), s.cfg.Warm)
	return (high + 1) / 2, high
}

// more wakes the filling goroutine; whoever took something calls it when it is in nobody's way.
func (s *stock) more() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *stock) keep(ctx context.Context) {
	defer s.close()
	tick := time.NewTicker(warmLeft / 2)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			s.expire(time.Now())
		case <-s.wake:
			for ctx.Err() == nil && s.makeOne(ctx) {
			}
		}
	}
}

// makeOne makes the next thing that is short; false is that nothing is, or cannot be made.
func (s *stock) makeOne(ctx context.Context) bool {
	if s.r.admission.busy() {
		return false
	}
	s.filling.Lock()
	defer s.filling.Unlock()
	k, fill, blank := s.short()
	if fill == nil && !blank {
		return false
	}
	b, err := s.newBox()
	if err != nil {
		return false
	}
	// What was begun is finished, so that it can be ended and its ids given back: the
	// runner's end waits for it.
	ctx = context.WithoutCancel(ctx)
	if blank {
		err = s.preparer.Prepare(ctx, b.name, b.ids)
	} else {
		b, err = fill(ctx, b)
	}
	if err != nil {
		s.r.cfg.Log.Warn("make ahead", slog.String("sandbox", b.name), slog.Any("error", err))
		s.drop(b)
		return false
	}
	b.made = time.Now()
	if !s.put(k, blank, b) { // its world was forgotten meanwhile
		s.drop(b)
	}
	return true
}

func (s *stock) put(k kind, blank bool, b box) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	sh := s.shelves[k]
	switch {
	case blank:
		s.blanks = append(s.blanks, b)
	case sh == nil:
		return false
	default:
		sh.boxes = append(sh.boxes, b)
	}
	return true
}

// short says what there is too little of: blanks first, they serve everybody, then the kind
// of which the fewest are there.
func (s *stock) short() (k kind, fill maker, blank bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return kind{}, nil, false
	}
	if len(s.blanks) < s.cfg.Blanks {
		return kind{}, nil, true
	}
	if s.warmLocked() >= MaxWarm {
		return kind{}, nil, false
	}
	least := MaxWarm
	for at, sh := range s.shelves {
		low, high := s.marksLocked(sh)
		n := len(sh.boxes)
		sh.filling = n < low || (sh.filling && n < high)
		if sh.filling && n < least {
			k, fill, least = at, sh.make, n
		}
	}
	return k, fill, false
}

func (s *stock) warmLocked() (n int) {
	for _, sh := range s.shelves {
		n += len(sh.boxes)
	}
	return n
}

// StockView is what is in stock and how much is kept.
type StockView struct {
	// Blanks and Warm are there now.
	Blanks, Warm int
	// Keep bounds them: blanks, and warm ones of each kind.
	Keep  Stock
	Kinds []StockKind
}

// StockKind is the warm sandboxes of one world, policy and limits.
type StockKind struct {
	World, PolicyHash string
	Limits            policies.Limits
	// Warm are there now; when fewer than Low are, they are filled up to High.
	Warm, Low, High int
	// Expected is how many the next episodes of batches will need.
	Expected int
}

func (s *stock) view() StockView {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := StockView{Blanks: len(s.blanks), Warm: s.warmLocked(), Keep: s.cfg}
	for k, sh := range s.shelves {
		one := StockKind{World: k.world, PolicyHash: k.policy, Limits: k.limits, Warm: len(sh.boxes)}
		one.Low, one.High = s.marksLocked(sh)
		for _, e := range sh.expected {
			one.Expected += e.n
		}
		v.Kinds = append(v.Kinds, one)
	}
	slices.SortFunc(v.Kinds, func(a, b StockKind) int {
		return cmp.Or(cmp.Compare(a.World, b.World), cmp.Compare(a.PolicyHash, b.PolicyHash), cmp.Compare(a.Limits.MemoryBytes, b.Limits.MemoryBytes))
	})
	return v
}

// expire ends what has waited too long. A batch whose episodes do not come is not believed
// until it says again what it expects, which it does with each that begins.
func (s *stock) expire(now time.Time) {
	var old []box
	s.mu.Lock()
	for k, sh := range s.shelves {
		if !sh.left.IsZero() && now.Sub(sh.left) >= warmLeft {
			old = append(old, sh.boxes...)
			sh.boxes, sh.want = nil, 0
		}
		for len(sh.boxes) > 0 && now.Sub(sh.boxes[0].made) >= WarmIdle {
			old = append(old, sh.boxes[0])
			sh.boxes = sh.boxes[1:]
			sh.want = len(sh.boxes)
			clear(sh.expected)
		}
		if sh.want == 0 && len(sh.boxes) == 0 && len(sh.expected) == 0 {
			delete(s.shelves, k)
		}
	}
	s.mu.Unlock()
	s.dropAll(old)
}

// forget ends the warm sandboxes of a world: somebody wants to remove it.
func (s *stock) forget(world string) {
	var old []box
	s.mu.Lock()
	for k, sh := range s.shelves {
		if k.world == world {
			old = append(old, sh.boxes...)
			delete(s.shelves, k)
		}
	}
	s.mu.Unlock()
	s.dropAll(old)
	// One that was on its way is gone, too, once this can be held.
	s.filling.Lock()
	s.filling.Unlock() //nolint:staticcheck // only waited for
}

// close ends everything in stock, for good.
func (s *stock) close() {
	s.mu.Lock()
	s.closed = true
	old := s.blanks
	s.blanks = nil
	for k, sh := range s.shelves {
		old = append(old, sh.boxes...)
		delete(s.shelves, k)
	}
	s.mu.Unlock()
	s.dropAll(old)
}

func (s *stock) dropAll(boxes []box) {
	for _, b := range boxes {
		s.drop(b)
	}
}

// drop gives back everything of a box.
func (s *stock) drop(b box) {
	var err error
	switch {
	case b.sb != nil:
		err = b.sb.Close()
	case s.preparer != nil:
		err = s.preparer.Drop(b.name)
	}
	if b.fork != nil {
		b.fork.Release()
	}
	s.r.sandboxGone(b.name)
	if err != nil { // ids of a sandbox that may not be gone are never used again
		s.r.cfg.Log.Error("end a sandbox", slog.String("sandbox", b.name), slog.Any("error", err))
		return
	}
	s.r.cfg.IDs.Release(b.ids)
}
