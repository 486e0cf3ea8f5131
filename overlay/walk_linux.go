package overlay

import (
	"context"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Entries are read in batches, several at a time, and judged in order. What a batch may
// hold bounds memory and descriptors, whatever the guest left.
const (
	batchEntries = 512
	batchBytes   = 4 << 20
	batchDirs    = 256
	// batchSmall is up to where a file is read whole; a larger one is streamed.
	batchSmall = 256 << 10
	// batchAlone is how many entries one goroutine reads faster than two.
	batchAlone = 64
	// batchWorkers is enough to hide the system calls' time behind the hashing's.
	batchWorkers = 2
)

// walk goes through an upper directory and the world's layers beside it.
type walk struct {
	capture *capture
	*room
	size int64
	held []lowerDir     // what the batch still needs
	seen map[inode]bool // files of several names
}

// room is memory that captures use one after another.
type room struct {
	batch []met
	arena []byte
}

var rooms = sync.Pool{New: func() any { return new(room) }}

func newWalk(c *capture) *walk {
	return &walk{capture: c, room: rooms.Get().(*room), seen: map[inode]bool{}} //nolint:forcetypeassert // of our own pool
}

// place is a directory of the upper beside what the world has there.
type place struct {
	path  string
	depth int
	fd    int
	below lowerDir
	// hidden: this one or some directory above hides what the world has.
	hidden bool
}

// close ends the walk, wherever it is. Nothing may still refer to bytes that it read.
func (w *walk) close() {
	w.empty()
	rooms.Put(w.room)
	w.room = nil
}

// empty forgets the batch.
func (w *walk) empty() {
	clear(w.batch)
	w.batch, w.size = w.batch[:0], 0
	for _, d := range w.held {
		d.close()
	}
	w.held = w.held[:0]
}

// root compares the world's own root directory, which the launcher made, then its entries.
func (w *walk) root(ctx context.Context, upper int, below lowerDir) error {
	fd, err := unix.Openat(upper, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer closeFD(fd)
	m := met{path: "/"}
	if err := unix.Fstat(fd, &m.st); err != nil {
		return err
	}
	if err := m.directory(fd, w.capture.owner, &entry{kind: typeDir, mode: rootMode}); err != nil {
		return err
	}
	m.old = typeDir
	if err := w.add(ctx, &m); err != nil {
		return err
	}
	if err := w.dir(ctx, place{fd: fd, below: below, hidden: m.entry.opaque}); err != nil {
		return err
	}
	return w.flush(ctx)
}

// dir goes through a directory of the upper, and through the world's where it is hidden.
func (w *walk) dir(ctx context.Context, at place) error {
	if at.depth >= maxDepth {
		// What is beside it is still read: one deep path must not hide the others.
		w.capture.out.Truncated, w.capture.whole = true, false
		return nil
	}
	list, err := namesOf(at.fd)
	if err != nil {
		return fmt.Errorf("list %q: %w", at.path, err)
	}
	var gone map[string]bool
	if at.hidden && len(at.below) > 0 {
		if list, gone, err = hiddenNames(list, at.below); err != nil {
			return fmt.Errorf("list %q of the world: %w", at.path, err)
		}
	}
	for _, name := range list {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if gone[name] {
			err = w.add(ctx, &met{path: at.path + "/" + name, gone: true})
		} else {
			err = w.entry(ctx, &at, name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// hiddenNames adds to a list the names that only the world has.
func hiddenNames(list []string, below lowerDir) (all []string, gone map[string]bool, err error) {
	old, err := below.list()
	if err != nil {
		return nil, nil, err
	}
	gone = map[string]bool{}
	for _, name := range old {
		if _, there := slices.BinarySearch(list, name); !there {
			gone[name] = true
		}
	}
	list = slices.AppendSeq(list, maps.Keys(gone))
	slices.Sort(list)
	return list, gone, nil
}

func (w *walk) entry(ctx context.Context, at *place, name string) error {
	m := met{path: at.path + "/" + name, dir: at.fd, name: name}
	var err error
	if m.st, err = look(at.fd, name); err != nil {
		return fmt.Errorf("look at %q: %w", m.path, err)
	}
	if m.below, err = at.below.lookup(name); err != nil {
		return fmt.Errorf("%q: %w", m.path, err)
	}
	if m.below != nil {
		m.old = kindOf(&m.below.st)
	}
	switch kindOf(&m.st) {
	case typeWhiteout:
		m.gone = true
		m.below.close()
		if m.below == nil {
			return nil // hides nothing
		}
	case typeDir:
		return w.directory(ctx, at, &m)
	default:
		m.below.close() // a directory that is another thing now
		if m.st.Nlink > 1 {
			m.id = inode{m.st.Dev, m.st.Ino}
			m.again = w.seen[m.id]
			w.seen[m.id] = true
		}
	}
	return w.add(ctx, &m)
}

func (w *walk) directory(ctx context.Context, at *place, m *met) error {
	fd, err := openSame(m.dir, m.name, &m.st)
	if err != nil {
		m.below.close()
		return fmt.Errorf("open %q: %w", m.path, err)
	}
	in := place{path: m.path, depth: at.depth + 1, fd: fd}
	if m.below != nil {
		in.below = m.below.dirs
	}
	defer w.leave(append(lowerDir{fd}, in.below...))
	var old *entry
	if in.below != nil {
		if old, err = m.below.describe(); err != nil {
			return fmt.Errorf("read %q of the world: %w", m.path, err)
		}
	}
	if err := m.directory(fd, w.capture.owner, old); err != nil {
		return fmt.Errorf("read %q: %w", m.path, err)
	}
	m.hides = m.entry.opaque && old != nil
	in.hidden = at.hidden || m.entry.opaque
	if !m.same || m.hides || m.cut {
		if err := w.add(ctx, m); err != nil {
			return err
		}
	}
	return w.dir(ctx, in)
}

// leave closes a directory's descriptors, later when the batch needs them.
func (w *walk) leave(d lowerDir) {
	if len(w.batch) == 0 {
		d.close()
		return
	}
	w.held = append(w.held, d)
}

func (w *walk) add(ctx context.Context, m *met) error {
	if m.small() {
		w.size += m.st.Size
	}
	w.batch = append(w.batch, *m)
	if len(w.batch) < batchEntries && w.size < batchBytes && len(w.held) < batchDirs {
		return nil
	}
	return w.flush(ctx)
}

// flush reads a batch and has it judged.
func (w *walk) flush(ctx context.Context) error {
	w.read()
	var err error
	for i := range w.batch {
		if err = w.capture.take(ctx, &w.batch[i]); err != nil {
			break
		}
	}
	if flushed := w.capture.pack.flush(); flushed != nil { // the bytes' room is used again
		err = flushed
	}
	w.empty()
	return err
}

// read reads what the batch's entries are, several at a time.
func (w *walk) read() {
	if int64(len(w.arena)) < w.size {
		w.arena = make([]byte, max(w.size, 64<<10))
	}
	rest := w.arena
	for i := range w.batch {
		m := &w.batch[i]
		if m.small() {
			m.data, rest = rest[:m.st.Size], rest[m.st.Size:]
		}
	}
	workers := 1
	if len(w.batch) > batchAlone {
		workers = min(batchWorkers, runtime.GOMAXPROCS(0))
	}
	var next atomic.Int64
	work := func() {
		for buf := []byte(nil); ; {
			i := int(next.Add(1)) - 1
			if i >= len(w.batch) {
				return
			}
			buf = w.batch[i].learn(w.capture.owner, buf)
		}
	}
	var all sync.WaitGroup
	for range workers - 1 {
		all.Go(work)
	}
	work()
	all.Wait()
}
