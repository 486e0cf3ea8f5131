package judge

import (
	"container/list"
	"context"
	"sync"

	"github.com/paddock-run/paddock/runner"
)

// Bounds of what is kept of compilations: how many, and what their layers come to.
const (
	maxKeptStates = 256
	maxKeptBytes  = 1 << 30
)

// compiled is the outcome of one compilation. It is immutable.
type compiled struct {
	stage Stage
	layer *runner.Prepared // nil when it failed
}

// kept holds compiled states by what went into them, the least lately used ones first to
// go. Who asks for a state that is being made waits for it. A layer in use is never
// removed.
type kept struct {
	mu    sync.Mutex
	bytes int64
	byKey map[string]*state
	order *list.List // of *state, the latest first
}

type state struct {
	key  string
	made chan struct{} // closed once out and err are set
	out  compiled
	err  error
	refs int
	elem *list.Element // nil while it is being made, and once it is out
}

func newKept() *kept { return &kept{byKey: map[string]*state{}, order: list.New()} }

// get returns the state of a key, made by one of those who ask for it; release must be
// called once its layer is no longer used. found says that it was there. An error is not
// kept, and who waited for it tries by itself.
func (k *kept) get(ctx context.Context, key string, build func() (compiled, bool, error)) (_ compiled, found bool, release func(), err error) {
	for {
		k.mu.Lock()
		s, ok := k.byKey[key]
		if !ok {
			s = &state{key: key, made: make(chan struct{}), refs: 1}
			k.byKey[key] = s
			k.mu.Unlock()
			return k.fill(s, build)
		}
		s.refs++
		k.mu.Unlock()
		select {
		case <-s.made:
		case <-ctx.Done():
			k.release(s)
			return compiled{}, false, nil, context.Cause(ctx)
		}
		if s.err == nil {
			return s.out, true, func() { k.release(s) }, nil
		}
		k.release(s)
	}
}

func (k *kept) fill(s *state, build func() (compiled, bool, error)) (compiled, bool, func(), error) {
	out, keep, err := build()
	k.mu.Lock()
	s.out, s.err = out, err
	if err != nil || !keep {
		delete(k.byKey, s.key)
	} else {
		s.elem = k.order.PushFront(s)
		k.bytes += s.size()
	}
	close(s.made)
	gone := k.trimLocked()
	k.mu.Unlock()
	remove(gone)
	if err != nil {
		k.release(s)
		return compiled{}, false, nil, err
	}
	return out, false, func() { k.release(s) }, nil
}

func (s *state) size() int64 {
	if s.out.layer == nil {
		return 0
	}
	return s.out.layer.Bytes()
}

// trimLocked takes out what is too much and not in use.
func (k *kept) trimLocked() []*state {
	var gone []*state
	for e := k.order.Back(); e != nil && (k.order.Len() > maxKeptStates || k.bytes > maxKeptBytes); {
		s, before := e.Value.(*state), e.Prev() // nothing else is put in
		if s.refs == 0 {
			k.dropLocked(s)
			gone = append(gone, s)
		}
		e = before
	}
	return gone
}

func (k *kept) dropLocked(s *state) {
	k.order.Remove(s.elem)
	s.elem = nil
	k.bytes -= s.size()
	delete(k.byKey, s.key)
}

func (k *kept) release(s *state) {
	k.mu.Lock()
	s.refs--
	var gone []*state
	switch {
	case s.elem != nil:
		k.order.MoveToFront(s.elem)
		gone = k.trimLocked()
	case s.refs == 0:
		gone = []*state{s} // it was not kept
	}
	k.mu.Unlock()
	remove(gone)
}

func (k *kept) clear() {
	k.mu.Lock()
	var gone []*state
	for _, s := range k.byKey {
		if s.elem != nil {
			gone = append(gone, s)
		}
	}
	for _, s := range gone {
		k.dropLocked(s)
	}
	k.mu.Unlock()
	remove(gone)
}

func remove(states []*state) {
	for _, s := range states {
		if s.out.layer != nil {
			s.out.layer.Remove()
		}
	}
}
