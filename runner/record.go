package runner

import (
	"context"
	"encoding/json"
	"io"
)

// Durability is how far a write must have come before it returns.
type Durability int

// Lazy writes are done soon, each attempt's in order, and not at all where a later one
// replaces them. Written ones survive the daemon's death, Synced ones the host's.
const (
	Lazy Durability = iota
	Written
	Synced
)

// Record is the durable record. Errors of its own are no *Error; what is not there is
// KindNotFound, a damaged journal is KindRecordDamaged. runner/contract holds its suite.
type Record interface {
	RunRecord
	AttemptRecord
	AttemptFiles
	Documents
	// Close waits for what is queued.
	Close() error
}

// RunRecord keeps runs.
type RunRecord interface {
	SaveRun(ctx context.Context, run Run) error
	Run(ctx context.Context, owner, name string) (Run, error)
	Runs(ctx context.Context, owner string) ([]Run, error)
}

// AttemptRecord keeps attempts, keyed by (Key, N).
type AttemptRecord interface {
	// InsertAttempt begins to keep a new attempt: whatever is written of it afterwards comes
	// after it. It is Written when kept returns nil, which is to be called once; an attempt
	// that is there is kept's error.
	InsertAttempt(ctx context.Context, key Key, plan Plan, a Attempt) (kept func() error, err error)
	// UpdateAttempt replaces what is kept of it, but the plan.
	UpdateAttempt(ctx context.Context, key Key, a Attempt, d Durability) error
	// Attempts are all attempts of an episode, the first first, with the last one's
	// plan; none is KindNotFound.
	Attempts(ctx context.Context, key Key) (Plan, []Attempt, error)
	// Plan is the plan of one attempt.
	Plan(ctx context.Context, key Key, n int) (Plan, error)
	// List lists keys whose id is prefix or below it (prefix + "/"), or starts with a
	// prefix ending in "/"; in byte order, after the given id, at most max.
	List(ctx context.Context, owner, run, prefix, after string, max int) (keys []Key, more bool, err error)
	Surveys
}

// Surveys look at the attempts of all owners.
type Surveys interface {
	// Unfinished lists the attempts whose state is not Done.
	Unfinished(ctx context.Context) ([]Stored, error)
	// Worlds are the ids of the worlds that kept attempts were made of, each once.
	Worlds(ctx context.Context) ([]string, error)
}

// Stored is an attempt with its key.
type Stored struct {
	Key     Key
	Attempt Attempt
}

// AttemptFiles keeps an attempt's journal of calls, capture and payload.
type AttemptFiles interface {
	// Dir is the attempt's directory, made when missing.
	Dir(key Key, n int) (string, error)
	// Journal opens the journal of calls for appending.
	Journal(key Key, n int) (Journal, error)
	// Trajectory reads the journal: whole lines only. A torn last line is dropped with a
	// note, damage before it is KindRecordDamaged.
	Trajectory(ctx context.Context, key Key, n int) (r io.ReadCloser, note string, err error)
	// SavePayload keeps a payload; it is durable with the next Synced UpdateAttempt.
	SavePayload(ctx context.Context, key Key, n int, payload []byte) error
	Payload(ctx context.Context, key Key, n int) ([]byte, error)
	// DeleteEpisode removes every attempt and all files of it.
	DeleteEpisode(ctx context.Context, key Key) error
}

// Journal appends lines; one goroutine at a time.
type Journal interface {
	// Append writes one line (without its newline) and returns where it begins. When it
	// returns, the line survives the daemon's death.
	Append(line []byte) (offset int64, err error)
	// Line reads back a line that Append wrote.
	Line(offset int64) ([]byte, error)
	// Sync makes what was appended survive the host's death, and the names of all files
	// that the attempt's directory has by then.
	Sync() error
	Close() error
}

// Documents keeps JSON documents of other kinds: graders, score cache, batches. A
// collection's name is [a-z_]+; keys are any text.
type Documents interface {
	PutDocument(ctx context.Context, collection, key string, doc json.RawMessage, d Durability) error
	// Document returns KindNotFound for what is not there.
	Document(ctx context.Context, collection, key string) (json.RawMessage, error)
	// Documents lists those whose key starts with prefix, in key order, after the given
	// key, at most max.
	Documents(ctx context.Context, collection, prefix, after string, max int) ([]Document, error)
	DeleteDocuments(ctx context.Context, collection, prefix string) error
}

// Document is one kept document.
type Document struct {
	Key string
	Doc json.RawMessage
}
