package record

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/paddock-run/paddock/runner"
)

func missing(format string, args ...any) error {
	return &runner.Error{Kind: runner.KindNotFound, Detail: fmt.Sprintf(format, args...)}
}

// SaveRun keeps a run; it is synced, since a generation that went back would let a fenced
// driver in again.
func (r *Record) SaveRun(ctx context.Context, run runner.Run) error {
	doc, err := encode(run)
	if err != nil {
		return err
	}
	return r.do(ctx, runner.Synced, write{
		query: "INSERT INTO runs (owner, name, doc) VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET doc = excluded.doc",
		args:  []any{run.Owner, run.Name, doc},
	})
}

// Run returns one run.
func (r *Record) Run(ctx context.Context, owner, name string) (runner.Run, error) {
	var run runner.Run
	err := r.one(ctx, &run, "SELECT doc FROM runs WHERE owner = ? AND name = ?", owner, name)
	if errors.Is(err, sql.ErrNoRows) {
		err = missing("no run %q", name)
	}
	return run, err
}

// one decodes a query's only column.
func (r *Record) one(ctx context.Context, into any, query string, args ...any) error {
	var doc []byte
	st, err := r.statement(ctx, query)
	if err != nil {
		return err
	}
	if err := st.QueryRowContext(context.WithoutCancel(ctx), args...).Scan(&doc); err != nil {
		return err
	}
	return decode(doc, into)
}

// statement parses a query once. Queries are constants of this package, but for List's,
// which are two.
func (r *Record) statement(ctx context.Context, query string) (*sql.Stmt, error) {
	if st, ok := r.statements.Load(query); ok {
		return st.(*sql.Stmt), nil //nolint:forcetypeassert // nothing else is stored
	}
	st, err := r.db.PrepareContext(context.WithoutCancel(ctx), query)
	if err != nil {
		return nil, err
	}
	if kept, loaded := r.statements.LoadOrStore(query, st); loaded {
		return kept.(*sql.Stmt), st.Close() //nolint:forcetypeassert // as above
	}
	return st, nil
}

func decode(doc []byte, into any) error {
	if err := json.Unmarshal(doc, into); err != nil {
		return &runner.Error{Kind: runner.KindRecordDamaged, Detail: err.Error()}
	}
	return nil
}

// Runs lists an owner's runs by name.
func (r *Record) Runs(ctx context.Context, owner string) ([]runner.Run, error) {
	var runs []runner.Run
	err := r.each(ctx, func(rows *sql.Rows) error {
		var doc []byte
		var run runner.Run
		if err := rows.Scan(&doc); err != nil {
			return err
		}
		if err := decode(doc, &run); err != nil {
			return err
		}
		runs = append(runs, run)
		return nil
	}, "SELECT doc FROM runs WHERE owner = ? ORDER BY name", owner)
	return runs, err
}

// each calls do with each row. A query of one episode is over sooner than a watch of ctx
// would be set up; callers that may get many rows pass their ctx.
func (r *Record) each(ctx context.Context, do func(*sql.Rows) error, query string, args ...any) error {
	st, err := r.statement(ctx, query)
	if err != nil {
		return err
	}
	rows, err := st.QueryContext(ctx, args...)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		if err := do(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// InsertAttempt begins to keep a new attempt.
func (r *Record) InsertAttempt(ctx context.Context, key runner.Key, plan runner.Plan, a runner.Attempt) (kept func() error, err error) {
	return r.begin(ctx, runner.Written, write{
		query: "INSERT INTO attempts (owner, run, id, n, done, doc, plan) VALUES (?, ?, ?, ?, ?, ?, ?)",
		args:  []any{key.Owner, key.Run, key.ID, a.N, a.State == runner.Done, document{a}, document{plan}},
	})
}

// UpdateAttempt replaces what is kept of an attempt, but the plan.
func (r *Record) UpdateAttempt(ctx context.Context, key runner.Key, a runner.Attempt, d runner.Durability) error {
	return r.do(ctx, d, write{
		query: "UPDATE attempts SET done = ?, doc = ? WHERE owner = ? AND run = ? AND id = ? AND n = ?",
		args:  []any{a.State == runner.Done, document{a}, key.Owner, key.Run, key.ID, a.N},
		must:  true, attempt: attemptKey{key, a.N},
	})
}

// Attempts are all attempts of an episode with the last one's plan.
func (r *Record) Attempts(ctx context.Context, key runner.Key) (runner.Plan, []runner.Attempt, error) {
	var all []runner.Attempt
	var lastPlan []byte
	err := r.each(context.WithoutCancel(ctx), func(rows *sql.Rows) error {
		var doc, plan []byte
		var a runner.Attempt
		if err := rows.Scan(&doc, &plan); err != nil {
			return err
		}
		lastPlan = plan
		if err := decode(doc, &a); err != nil {
			return err
		}
		all = append(all, a)
		return nil
	}, "SELECT doc, plan FROM attempts WHERE owner = ? AND run = ? AND id = ? ORDER BY n", key.Owner, key.Run, key.ID)
	if err != nil {
		return runner.Plan{}, nil, err
	}
	if len(all) == 0 {
		return runner.Plan{}, nil, missing("no episode %q in run %q", key.ID, key.Run)
	}
	var plan runner.Plan
	err = decode(lastPlan, &plan)
	return plan, all, err
}

// Plan is the plan of one attempt.
func (r *Record) Plan(ctx context.Context, key runner.Key, n int) (runner.Plan, error) {
	var plan runner.Plan
	err := r.one(ctx, &plan, "SELECT plan FROM attempts WHERE owner = ? AND run = ? AND id = ? AND n = ?", key.Owner, key.Run, key.ID, n)
	if errors.Is(err, sql.ErrNoRows) {
		err = missing("no attempt %d of %q", n, key.ID)
	}
	return plan, err
}

// List lists keys at and below a prefix, in byte order.
func (r *Record) List(ctx context.Context, owner, run, prefix, after string, max int) (keys []runner.Key, more bool, err error) {
	query := "SELECT DISTINCT id FROM attempts WHERE owner = ? AND run = ? AND id > ?"
	args := []any{owner, run, after}
	if prefix != "" {
		// "0" follows "/" in byte order: the range is what lies below the prefix.
		base := strings.TrimSuffix(prefix, "/")
		query += " AND ((id >= ? AND id < ?) OR id = ?)"
		args = append(args, base+"/", base+"0", prefix)
	}
	err = r.each(ctx, func(rows *sql.Rows) error {
		key := runner.Key{Owner: owner, Run: run}
		if err := rows.Scan(&key.ID); err != nil {
			return err
		}
		keys = append(keys, key)
		return nil
	}, query+" ORDER BY id LIMIT ?", append(args, max+1)...)
	if len(keys) > max {
		return keys[:max], true, err
	}
	return keys, false, err
}

// Unfinished lists the attempts whose state is not done.
func (r *Record) Unfinished(ctx context.Context) ([]runner.Stored, error) {
	var all []runner.Stored
	err := r.each(ctx, func(rows *sql.Rows) error {
		var s runner.Stored
		var doc []byte
		if err := rows.Scan(&s.Key.Owner, &s.Key.Run, &s.Key.ID, &doc); err != nil {
			return err
		}
		if err := decode(doc, &s.Attempt); err != nil {
			return err
		}
		all = append(all, s)
		return nil
	}, "SELECT owner, run, id, doc FROM attempts WHERE done = 0 ORDER BY owner, run, id, n")
	return all, err
}

// Worlds are the ids of the worlds that kept attempts were made of, each once.
func (r *Record) Worlds(ctx context.Context) ([]string, error) {
	var all []string
	err := r.each(ctx, func(rows *sql.Rows) error {
		var id string
		if err := rows.Scan(&id); err != nil {
			return err
		}
		all = append(all, id)
		return nil
	}, "SELECT DISTINCT coalesce(json_extract(plan, '$.world'), '') FROM attempts")
	return all, err
}

// PutDocument keeps a document.
func (r *Record) PutDocument(ctx context.Context, collection, key string, doc json.RawMessage, d runner.Durability) error {
	return r.do(ctx, d, write{
		query: "INSERT INTO documents (collection, key, doc) VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET doc = excluded.doc",
		args:  []any{collection, key, string(doc)},
	})
}

// Document returns one document.
func (r *Record) Document(ctx context.Context, collection, key string) (json.RawMessage, error) {
	var doc []byte
	err := r.db.QueryRowContext(ctx, "SELECT doc FROM documents WHERE collection = ? AND key = ?", collection, key).Scan(&doc)
	if errors.Is(err, sql.ErrNoRows) {
		err = missing("no %s %q", collection, key)
	}
	return doc, err
}

// Documents lists documents by prefix of the key.
func (r *Record) Documents(ctx context.Context, collection, prefix, after string, max int) ([]runner.Document, error) {
	var docs []runner.Document
	err := r.each(ctx, func(rows *sql.Rows) error {
		var d runner.Document
		var doc []byte
		if err := rows.Scan(&d.Key, &doc); err != nil {
			return err
		}
		d.Doc = doc
		docs = append(docs, d)
		return nil
	}, `SELECT key, doc FROM documents WHERE collection = ? AND key > ? AND key >= ? AND substr(key, 1, length(?)) = ?
		ORDER BY key LIMIT ?`, collection, after, prefix, prefix, prefix, max)
	return docs, err
}

// DeleteDocuments removes documents by prefix of the key.
func (r *Record) DeleteDocuments(ctx context.Context, collection, prefix string) error {
	return r.do(ctx, runner.Written, write{
		query: "DELETE FROM documents WHERE collection = ? AND substr(key, 1, length(?)) = ?",
		args:  []any{collection, prefix, prefix},
	})
}
