package runner

import (
	"context"
	"log/slog"
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
	// episodes have asked for lately; 0 is none.
	Warm int
}

const (
	// maxWarm bounds the warm sandboxes of all kinds together.
	maxWarm = 256
	// warmIdle is how long a warm sandbox waits for an episode.
	warmIdle = 30 * time.Second
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

// shelf has the warm sandboxes of one kind. want doubles with each episode that finds it
// empty, and goes down with each sandbox that waited in vain: demand sizes it.
type shelf struct {
	boxes []box
	want  int
	make  func(context.Context, box) (box, error)
}

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
func (s *stock) take(k kind, fill func(context.Context, box) (box, error)) (box, error) {
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

func (s *stock) takeWarm(k kind, fill func(context.Context, box) (box, error)) (box, bool) {
	// Room on the disk is promised to who is there; a layer may be gone when nobody uses it.
	if s.cfg.Warm == 0 || k.limits.OnDisk() || k.layer != "" {
		return box{}, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	sh := s.shelves[k]
	if sh == nil {
		sh = &shelf{}
		s.shelves[k] = sh
	}
	sh.make = fill
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

// more wakes the filling goroutine; whoever took something calls it when it is in nobody's way.
func (s *stock) more() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *stock) keep(ctx context.Context) {
	defer s.close()
	tick := time.NewTicker(warmIdle / 4)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			s.expire(time.Now().Add(-warmIdle))
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

// short says what there is too little of: blanks first, they serve everybody.
func (s *stock) short() (k kind, fill func(context.Context, box) (box, error), blank bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return kind{}, nil, false
	}
	if len(s.blanks) < s.cfg.Blanks {
		return kind{}, nil, true
	}
	if s.warmLocked() >= maxWarm {
		return kind{}, nil, false
	}
	for k, sh := range s.shelves {
		if len(sh.boxes) < sh.want {
			return k, sh.make, false
		}
	}
	return kind{}, nil, false
}

func (s *stock) warmLocked() (n int) {
	for _, sh := range s.shelves {
		n += len(sh.boxes)
	}
	return n
}

func (s *stock) count() (blanks, warm int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.blanks), s.warmLocked()
}

// expire ends what has waited since before then.
func (s *stock) expire(then time.Time) {
	var old []box
	s.mu.Lock()
	for k, sh := range s.shelves {
		for len(sh.boxes) > 0 && sh.boxes[0].made.Before(then) {
			old = append(old, sh.boxes[0])
			sh.boxes = sh.boxes[1:]
			sh.want = len(sh.boxes)
		}
		if sh.want == 0 && len(sh.boxes) == 0 {
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
