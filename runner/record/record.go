// Package record is the durable record: one SQLite database (WAL) for runs, attempts and
// documents, and one directory per attempt for what is large or grows.
//
//	<root>/paddock.db
//	<root>/episodes/<hash of the key>/<attempt>/{trajectory.jsonl, capture.json, payload, pack}
//
// One goroutine writes the database and commits together what waits together. A commit
// survives the daemon's death. What must survive the host's is followed by a sync of the
// write-ahead log, which one sync gives to all who wait for it.
package record

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/paddock-run/paddock/runner"
)

const schema = `
CREATE TABLE IF NOT EXISTS runs (
	owner TEXT NOT NULL, name TEXT NOT NULL, doc TEXT NOT NULL,
	PRIMARY KEY (owner, name)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS attempts (
	owner TEXT NOT NULL, run TEXT NOT NULL, id TEXT NOT NULL, n INTEGER NOT NULL,
	done INTEGER NOT NULL, doc TEXT NOT NULL, plan TEXT NOT NULL,
	PRIMARY KEY (owner, run, id, n));
CREATE INDEX IF NOT EXISTS attempts_unfinished ON attempts (done) WHERE done = 0;
CREATE TABLE IF NOT EXISTS payloads (
	owner TEXT NOT NULL, run TEXT NOT NULL, id TEXT NOT NULL, n INTEGER NOT NULL, bytes BLOB NOT NULL,
	PRIMARY KEY (owner, run, id, n));
CREATE TABLE IF NOT EXISTS documents (
	collection TEXT NOT NULL, key TEXT NOT NULL, doc TEXT NOT NULL,
	PRIMARY KEY (collection, key)) WITHOUT ROWID;
`

// Bounds of the writer.
const (
	maxBatch = 256
	// inlinePayload is the size up to which a payload lies in the database, where it is
	// synced together with the outcome.
	inlinePayload = 256 << 10
)

// Record is an open record. Its methods may be called from any goroutine.
type Record struct {
	root string
	db   *sql.DB // reads
	wal  *os.File
	lock *os.File

	// statements are those of reads, by their text.
	statements sync.Map

	writes chan *write
	done   chan struct{}
	syncs  syncer

	mu     sync.RWMutex
	closed bool
}

var _ runner.Record = (*Record)(nil)

// write is one statement for the writer.
type write struct {
	query string
	args  []any
	done  chan error // nil when nobody waits
	// must says that no changed row is an error: the row is not there.
	must bool
	// attempt names the attempt whose state this is. Where nobody waits for it, it may be
	// done a moment later, or not at all when a later state comes before.
	attempt attemptKey
	// ends says that no state of the episode that was asked for before is to be done after.
	ends runner.Key
}

// patient says that the write may be done a moment later.
func (w *write) patient() bool { return w.done == nil && w.attempt != attemptKey{} }

// attemptKey names one attempt.
type attemptKey struct {
	runner.Key
	n int
}

var errClosed = errors.New("record is closed")

// Open opens or makes the record below root. A root that another process has open is an
// error.
func Open(ctx context.Context, root string) (*Record, error) {
	if err := os.MkdirAll(filepath.Join(root, episodesDir), 0o700); err != nil {
		return nil, fmt.Errorf("record: %w", err)
	}
	lock, err := lockFile(filepath.Join(root, "paddock.db.lock"))
	if err != nil {
		return nil, fmt.Errorf("record: %w", err)
	}
	r := &Record{root: root, lock: lock, writes: make(chan *write, maxBatch), done: make(chan struct{})}
	path := filepath.Join(root, "paddock.db")
	// The root may be entered by the users of agents; SQLite gives its other files the
	// mode of this one.
	if err := private(path); err != nil {
		return nil, errors.Join(fmt.Errorf("record: %w", err), lock.Close())
	}
	w, err := openDB(ctx, path, schema)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("record: %w", err), lock.Close())
	}
	conn, err := w.Conn(ctx)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("record: %w", err), w.Close(), lock.Close())
	}
	// A second handle for reads: a long list must not hold up the writer.
	if r.db, err = openDB(ctx, path, ""); err == nil {
		r.wal, err = os.OpenFile(path+"-wal", os.O_RDWR, 0)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("record: %w", err), w.Close(), lock.Close())
	}
	r.syncs.file = r.wal
	go r.writer(context.WithoutCancel(ctx), w, conn)
	return r, nil
}

// private makes path, when it is missing, a file of the daemon's alone.
func private(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(f.Chmod(0o600), f.Close())
}

func openDB(ctx context.Context, path, setup string) (*sql.DB, error) {
	q := url.Values{"_pragma": {"journal_mode(WAL)", "synchronous(NORMAL)", "busy_timeout(10000)", "temp_store(MEMORY)"}}
	db, err := sql.Open("sqlite", "file:"+path+"?"+q.Encode())
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	if setup != "" {
		db.SetMaxOpenConns(1)
		if _, err := db.ExecContext(ctx, setup); err != nil {
			return nil, errors.Join(fmt.Errorf("set up %s: %w", path, err), db.Close())
		}
		return db, nil
	}
	db.SetMaxOpenConns(4)
	db.SetMaxIdleConns(4)
	if err := db.PingContext(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", path, err), db.Close())
	}
	return db, nil
}

// Close waits for what is queued.
func (r *Record) Close() error {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return nil
	}
	r.closed = true
	close(r.writes)
	r.mu.Unlock()
	<-r.done
	return errors.Join(r.syncs.sync(), r.wal.Close(), r.db.Close(), r.lock.Close())
}

// do hands a write to the writer and waits as d says.
func (r *Record) do(ctx context.Context, d runner.Durability, w write) error {
	wait, err := r.begin(ctx, d, w)
	if err != nil {
		return err
	}
	return wait()
}

// begin hands a write to the writer; wait waits as d says.
func (r *Record) begin(ctx context.Context, d runner.Durability, w write) (wait func() error, err error) {
	if d != runner.Lazy {
		w.done = make(chan error, 1)
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.closed {
		return nil, errClosed
	}
	select {
	case r.writes <- &w:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	// It is on its way: to say that it was not done would be a lie, so ctx counts no more.
	return func() error {
		if d == runner.Lazy {
			return nil
		}
		if err := <-w.done; err != nil || d == runner.Written {
			return err
		}
		return r.syncs.sync()
	}, nil
}

// writer is the one goroutine that changes the database.
func (r *Record) writer(ctx context.Context, db *sql.DB, conn *sql.Conn) {
	defer close(r.done)
	defer db.Close()   //nolint:errcheck // everything is committed
	defer conn.Close() //nolint:errcheck // as above
	prepared := map[string]*sql.Stmt{}
	held := heldStates{all: map[attemptKey]*write{}}
	for open := true; open; {
		var batch []*write
		if batch, open = held.next(r.writes); len(batch) > 0 {
			commit(ctx, conn, prepared, batch)
		}
	}
}

// linger is how long states that nobody waits for are held: most are overtaken meanwhile,
// since an attempt starts in a few milliseconds, and many end soon after.
const linger = 20 * time.Millisecond

// heldStates are the states that nobody waits for, the last of each attempt.
type heldStates struct {
	all map[attemptKey]*write
	// due is when they are to be done; nil while there are none.
	due <-chan time.Time
}

// next waits for what is to be committed together. Once the writes are closed, it is the last.
func (h *heldStates) next(writes <-chan *write) (batch []*write, open bool) {
	select {
	case w, ok := <-writes:
		if !ok {
			return h.take(nil), false
		}
		batch = h.add(batch, w)
	case <-h.due:
		return h.take(nil), true
	}
	for len(batch) < maxBatch && len(h.all) < maxBatch {
		select {
		case w, ok := <-writes:
			if !ok {
				return h.take(batch), false
			}
			batch = h.add(batch, w)
			continue
		default:
		}
		return batch, true
	}
	return h.take(batch), true
}

// add holds a patient write, and gives up what another overtakes.
func (h *heldStates) add(batch []*write, w *write) []*write {
	if w.patient() {
		if h.due == nil {
			h.due = time.After(linger)
		}
		h.all[w.attempt] = w
		return batch
	}
	delete(h.all, w.attempt)
	if w.ends != (runner.Key{}) {
		for k := range h.all {
			if k.Key == w.ends {
				delete(h.all, k)
			}
		}
	}
	return append(batch, w)
}

// take lets go of all that is held, behind batch.
func (h *heldStates) take(batch []*write) []*write {
	for _, w := range h.all {
		batch = append(batch, w)
	}
	clear(h.all)
	h.due = nil
	return batch
}

// commit does a batch in one transaction. A statement that fails takes only itself out:
// SQLite undoes it alone.
func commit(ctx context.Context, conn *sql.Conn, prepared map[string]*sql.Stmt, batch []*write) {
	errs := make([]error, len(batch))
	var err error
	if len(batch) == 1 { // a statement alone is a transaction
		errs[0] = execute(ctx, conn, prepared, batch[0])
	} else if err = execute(ctx, conn, prepared, &write{query: "BEGIN IMMEDIATE"}); err == nil {
		for i, w := range batch {
			errs[i] = execute(ctx, conn, prepared, w)
		}
		if err = execute(ctx, conn, prepared, &write{query: "COMMIT"}); err != nil {
			// SQLite may have rolled back by itself, as on a full disk. Were it not so, the next
			// BEGIN would say it.
			_, _ = conn.ExecContext(ctx, "ROLLBACK")
		}
	}
	for i, w := range batch {
		if w.done != nil {
			w.done <- named(errors.Join(errs[i], err))
		}
	}
}

// named adds to SQLite's error the system's that it stands for, so that a full disk is one
// to whoever asks.
func named(err error) error {
	se, ok := errors.AsType[*sqlite.Error](err)
	if !ok {
		return err
	}
	const primary = 0xff
	switch se.Code() & primary {
	case sqlite3.SQLITE_FULL:
		return fmt.Errorf("%w: %w", syscall.ENOSPC, err)
	case sqlite3.SQLITE_IOERR:
		return fmt.Errorf("%w: %w", syscall.EIO, err)
	}
	return err
}

func execute(ctx context.Context, conn *sql.Conn, prepared map[string]*sql.Stmt, w *write) error {
	st, ok := prepared[w.query]
	if !ok {
		var err error
		if st, err = conn.PrepareContext(ctx, w.query); err != nil {
			return err
		}
		prepared[w.query] = st
	}
	if err := encodeDocuments(w.args); err != nil {
		return err
	}
	res, err := st.ExecContext(ctx, w.args...)
	if err != nil || !w.must {
		return err
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		return errors.Join(err, &runner.Error{Kind: runner.KindNotFound, Detail: "not on record"})
	}
	return nil
}

// syncer makes one sync of a file serve everybody who asked before it began.
type syncer struct {
	file *os.File

	mu      sync.Mutex
	running bool
	next    *round
}

type round struct {
	done chan struct{}
	err  error
}

func (s *syncer) sync() error {
	s.mu.Lock()
	if s.next == nil {
		s.next = &round{done: make(chan struct{})}
	}
	mine := s.next
	if s.running {
		s.mu.Unlock()
		<-mine.done
		return mine.err
	}
	s.running = true
	for s.next != nil { // the first to come serves those who come meanwhile
		serving := s.next
		s.next = nil
		s.mu.Unlock()
		serving.err = dataSync(s.file)
		close(serving.done)
		s.mu.Lock()
	}
	s.running = false
	s.mu.Unlock()
	return mine.err
}

// document is an argument that the writer encodes: it may be overtaken before.
type document struct{ v any }

func encodeDocuments(args []any) error {
	for i, a := range args {
		if d, ok := a.(document); ok {
			text, err := encode(d.v)
			if err != nil {
				return err
			}
			args[i] = text
		}
	}
	return nil
}

func encode(v any) (string, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return "", fmt.Errorf("encode: %w", err)
	}
	return string(b), nil
}
