package overlay

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// unpackers is how many layers of one image are unpacked at a time.
const unpackers = 2

// Add makes an image a world, names it when name is not empty, and answers the world that
// is there already when it is. Only layers that the store does not have are opened, and one
// that two images bring at a time is unpacked once. A refused image is a *RecipeError and
// leaves nothing.
func (s *Store) Add(ctx context.Context, img Image, name string, p Progress) (World, error) {
	if p == nil {
		p = func(string, int64, int64) {}
	}
	if name != "" {
		if err := checkName(name); err != nil {
			return World{}, err
		}
	}
	config, diffIDs, err := decodeImage(img.Config)
	if err != nil {
		return World{}, err
	}
	if len(diffIDs) != len(img.Layers) {
		return World{}, refuse("bad_archive", "manifest", "%d layers, the config says %d", len(img.Layers), len(diffIDs))
	}
	_, drop, err := s.Scratch() // tells Strays that tmp is in use
	if err != nil {
		return World{}, err
	}
	defer drop()
	a := &adding{store: s, image: img, diffIDs: diffIDs, progress: serial(p), made: make([]*arrived, len(diffIDs)), ready: make([]chan struct{}, len(diffIDs))}
	defer a.release()
	if err := a.layers(ctx); err != nil {
		return World{}, err
	}
	w, err := a.seal(ctx, config)
	if err != nil {
		return World{}, err
	}
	if err := s.point(name, w.ID); err != nil {
		return World{}, err
	}
	return s.World(ctx, w.ID)
}

// serial lets several goroutines tell how far they are.
func serial(p Progress) Progress {
	var mu sync.Mutex
	return func(step string, done, total int64) {
		mu.Lock()
		defer mu.Unlock()
		p(step, done, total)
	}
}

// adding is one call of Add.
type adding struct {
	store    *Store
	image    Image
	diffIDs  []string
	progress Progress
	made     []*arrived
	ready    []chan struct{} // made[i] is set
	written  *flusher
}

func (a *adding) release() {
	for _, m := range a.made {
		if m != nil {
			a.store.leave(m)
		}
	}
}

// layers brings every layer, two at a time, the lower ones first.
func (a *adding) layers(ctx context.Context) error {
	for i := range a.ready {
		a.ready[i] = make(chan struct{})
	}
	a.written = newFlusher()
	defer a.written.close()
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(unpackers)
	for i := range a.diffIDs {
		g.Go(func() error {
			m, err := a.store.arrive(ctx, chain(a.diffIDs[:i+1]), a.diffIDs[i], func() (*arrived, error) { return a.layer(ctx, i) })
			if err != nil {
				return err
			}
			a.made[i] = m
			close(a.ready[i])
			a.progress("layers", int64(i+1), int64(len(a.diffIDs)))
			return nil
		})
	}
	return g.Wait()
}

// chain names a layer with all below it: what a directory that its tar only implies is
// like depends on them, and who waits for a chain waits for shorter ones only.
func chain(diffIDs []string) string { return sum([]byte(strings.Join(diffIDs, " "))) }

// below are the directories of the layers under the one with number i, the topmost first,
// once they are there.
func (a *adding) below(ctx context.Context, i int) (lowerDir, error) {
	var d lowerDir
	for j := i - 1; j >= 0; j-- {
		select {
		case <-a.ready[j]:
		case <-ctx.Done():
			d.close()
			return nil, context.Cause(ctx)
		}
		fd, err := a.made[j].open(a.store)
		if err != nil {
			d.close()
			return nil, err
		}
		d = append(d, fd)
	}
	return d, nil
}

// layer unpacks the layer with number i.
func (a *adding) layer(ctx context.Context, i int) (m *arrived, err error) {
	st, err := a.store.newStage()
	if err != nil {
		return nil, err
	}
	m = &arrived{stage: st, blobs: map[string]string{}}
	defer func() {
		if err != nil {
			m.discard()
		}
	}()
	u := &layerUnpacking{
		store: a.store, blob: a.image.Layers[i], diffID: a.diffIDs[i], progress: a.progress, into: m, written: a.written,
		below: sync.OnceValues(func() (lowerDir, error) { return a.below(ctx, i) }),
	}
	defer u.close()
	return m, u.run(ctx)
}

// seal syncs what came, digests it meanwhile, and makes the world.
func (a *adding) seal(ctx context.Context, config Config) (World, error) {
	in := sealing{
		world: World{Recipe: a.image.Origin, Created: time.Now().UTC()}, config: config, image: a.image.Config,
		stages: map[string]*staging{}, blobs: map[string]string{},
	}
	a.progress("seal", 0, 0)
	var fresh []*arrived
	first := map[string]*arrived{} // by diffID: an image may have a layer twice
	for i, m := range a.made {
		if first[a.diffIDs[i]] != nil {
			continue
		}
		first[a.diffIDs[i]] = m
		if m.stage != nil {
			in.stages[a.diffIDs[i]] = m.stage
			fresh = append(fresh, m)
		}
		maps.Copy(in.blobs, m.blobs)
	}
	if err := a.settle(ctx, fresh); err != nil {
		return World{}, err
	}
	for _, id := range a.diffIDs {
		in.layers = append(in.layers, first[id].layer)
	}
	return a.store.seal(in)
}

// settle waits for the disk and for the digests of what was unpacked: one is the disk's
// work and the other the processor's.
func (a *adding) settle(ctx context.Context, fresh []*arrived) error {
	if len(fresh) == 0 {
		return nil
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		for _, m := range fresh {
			if err := unix.Fchmod(m.stage.fd, rootMode); err != nil {
				return err
			}
		}
		return fresh[0].stage.sync() // of the whole file system
	})
	g.Go(func() error {
		for _, m := range fresh {
			if err := m.measure(ctx, a.progress); err != nil {
				return err
			}
		}
		return nil
	})
	return g.Wait()
}

// arrival is a layer on its way, for all who wait for it.
type arrival struct {
	done chan struct{}
	made *arrived // set before done is closed, nil when it failed
}

// arrived is a layer that came: in the store, or in a stage that those who wait for it
// share.
type arrived struct {
	layer layer
	stage *staging
	blobs map[string]string // of the layer: digest in hex to a file beside the stage
	// whole: files came from below, so the diffID does not cover every byte.
	whole bool
	chain string
	users int // guarded by the store's mu

	measuring sync.Mutex // guards what is below, and layer while it is measured
	measured  bool
}

// open opens the layer's directory, wherever it is by now.
func (m *arrived) open(s *Store) (int, error) {
	if m.stage != nil {
		return unix.Openat(m.stage.fd, ".", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	}
	return openDir(s.layerDir(m.layer))
}

func (m *arrived) discard() {
	for _, p := range m.blobs {
		_ = os.Remove(p)
	}
	if m.stage != nil {
		m.stage.discard()
	}
}

// arrive answers the layer when the store has it, waits for it when it is on its way, and
// else makes it. Each answer is left with leave.
func (s *Store) arrive(ctx context.Context, chain, diffID string, unpack func() (*arrived, error)) (*arrived, error) {
	for {
		s.mu.Lock()
		if l, ok := s.haveLocked(diffID); ok {
			s.mu.Unlock()
			return &arrived{layer: l, users: 1}, nil
		}
		other, busy := s.coming[chain]
		if busy && other.made != nil && other.made.users > 0 {
			other.made.users++
			s.mu.Unlock()
			return other.made, nil
		}
		if !busy {
			mine := &arrival{done: make(chan struct{})}
			s.coming[chain] = mine
			s.mu.Unlock()
			return s.bring(chain, mine, unpack)
		}
		s.mu.Unlock()
		select {
		case <-other.done: // made, or failed and mine to try
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func (s *Store) bring(chain string, mine *arrival, unpack func() (*arrived, error)) (*arrived, error) {
	made, err := unpack()
	s.mu.Lock()
	defer s.mu.Unlock()
	defer close(mine.done)
	if err != nil {
		delete(s.coming, chain)
		return nil, err
	}
	made.chain, made.users = chain, 1
	mine.made = made
	return made, nil
}

// leave lets go of a layer; the last to do so removes what was not sealed.
func (s *Store) leave(m *arrived) {
	s.mu.Lock()
	m.users--
	last := m.users == 0 && m.chain != ""
	if last {
		delete(s.coming, m.chain)
	}
	s.mu.Unlock()
	if last {
		m.discard()
	}
}

func (s *Store) haveLocked(diffID string) (layer, bool) {
	l, ok := s.index.Layers[diffID]
	return l, ok && !s.corrupt[diffID]
}

// measure counts and digests what was unpacked, once.
func (m *arrived) measure(ctx context.Context, p Progress) error {
	m.measuring.Lock()
	defer m.measuring.Unlock()
	if m.measured {
		return nil
	}
	attrs := &attributes{sha256.New()}
	counter := &counting{sink: attrs, limits: Limits{Bytes: 1 << 62, Entries: 1 << 62}, progress: p, step: "digest"}
	if m.layer.Split != "" && !m.whole {
		if err := readTree(ctx, m.stage.fd, counter, nil); err != nil {
			return err
		}
		m.layer.Attributes, m.layer.Size, m.layer.Entries = attrs.digest(), counter.bytes, counter.entries
	} else {
		l, err := measure(ctx, m.stage.fd, p)
		if err != nil {
			return err
		}
		m.layer.Tree, m.layer.Size, m.layer.Entries = l.Tree, l.Size, l.Entries
	}
	m.measured = true
	return nil
}

// notes keeps the first of what an import tells, and how many there are.
type notes struct {
	list []string
	n    int
}

const maxNotes = 32

func (n *notes) add(text string) {
	if n.n++; len(n.list) < maxNotes && !slices.Contains(n.list, text) {
		n.list = append(n.list, text)
	}
}

func (n *notes) all() []string {
	if more := n.n - len(n.list); more > 0 {
		return append(slices.Clone(n.list), fmt.Sprintf("and %d more", more))
	}
	return n.list
}

// copyAll writes all of a stream to a file of tmp and answers its path.
func (s *Store) copyAll(r io.Reader) (p string, n int64, err error) {
	f, err := os.CreateTemp(s.path("tmp"), tmpPrefix+"blob-*")
	if err != nil {
		return "", 0, err
	}
	n, err = io.Copy(f, r)
	if err = errors.Join(err, f.Close()); err != nil {
		return "", 0, errors.Join(err, os.Remove(f.Name()))
	}
	return f.Name(), n, nil
}

// Decompress reads a stream that is plain, gzip or zstd, told apart by its content, within
// the store's limits. The function ends it; the stream stays the caller's.
func (s *Store) Decompress(r io.Reader) (io.Reader, func(), error) {
	return decompress(r, s.opts.Limits)
}

// Once waits until nobody else is at what key names; done lets the next one.
func (s *Store) Once(ctx context.Context, key string) (done func(), err error) {
	return s.takeOff(ctx, key)
}

// Downloads is where a pull keeps what has arrived of a blob, under its digest in hex. It
// outlives a restart; Collect removes what lies there for long.
func (s *Store) Downloads() string { return s.path("downloads") }

// Scratch makes a directory for what is imported, which Strays and a restart know for
// unfinished. drop removes it.
func (s *Store) Scratch() (dir string, drop func(), err error) {
	if dir, err = os.MkdirTemp(s.path("tmp"), tmpPrefix+"import-*"); err != nil {
		return "", nil, err
	}
	s.mu.Lock()
	s.flights[dir] = make(chan struct{})
	s.mu.Unlock()
	return dir, func() {
		_ = os.RemoveAll(dir)
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.flights, dir)
	}, nil
}
