package runner

import (
	"context"
	"encoding/json"
	"fmt"
)

// What is recorded of a batch:
//
//	batches        its header: spec, state, and how many lines count
//	batch_lines    its lines, chunkLines to a document, keyed by the first one's number
//	batch_results  one document a result, keyed by its seq
//	batch_groups   one document a complete group, keyed by the group's seq
//
// The header is written after the lines it counts, so an add is there whole or not at all:
// lines beyond its number were never answered for, and the next add writes over them.
const (
	batchDocuments  = "batches"
	lineDocuments   = "batch_lines"
	resultDocuments = "batch_results"
	groupDocuments  = "batch_groups"
	resultsPage     = 500
	chunksPage      = 16
	chunkLines      = 64
)

// keptBatch is the header.
type keptBatch struct {
	// Batch has the counts of its end; while it runs they are behind.
	Batch Batch `json:"batch"`
	// Spec is without its lines.
	Spec   BatchSpec `json:"spec"`
	Digest string    `json:"digest"`
	// Graders are those of a batch that scores again; Home is then the batch that has the
	// lines, and Without are the lines that it leaves out.
	Graders []WeightedGrader `json:"graders,omitempty"`
	Home    string           `json:"home,omitempty"`
	Without []int            `json:"without,omitempty"`
	Lines   int              `json:"lines"`
}

// keptLine is one line.
type keptLine struct {
	Line BatchEpisode `json:"line"`
	// Digest tells whether the same line is asked again.
	Digest   string `json:"digest"`
	RefillOf string `json:"refill_of,omitempty"`
}

// keptGroup says that a group was complete, and which lines counted.
type keptGroup struct {
	Seq     int64  `json:"seq"`
	Group   string `json:"group"`
	Counted []int  `json:"counted"`
}

func batchKey(owner, id string) string { return owner + "/" + id }

func numberedKey(owner, id string, n int64) string { return fmt.Sprintf("%s/%s/%012d", owner, id, n) }

// home is the batch under which the lines are kept.
func (k *keptBatch) home() string {
	if k.Home != "" {
		return k.Home
	}
	return k.Batch.ID
}

func (r *Runner) saveBatch(ctx context.Context, kept *keptBatch) error {
	return r.putJSON(ctx, batchDocuments, batchKey(kept.Batch.Owner, kept.Batch.ID), kept, Synced)
}

func (r *Runner) putJSON(ctx context.Context, collection, key string, v any, d Durability) error {
	doc, err := json.Marshal(v)
	if err == nil {
		err = r.cfg.Record.PutDocument(ctx, collection, key, doc, d)
	}
	if err != nil {
		return fmt.Errorf("record %s: %w", collection, err)
	}
	return nil
}

func (r *Runner) loadBatch(ctx context.Context, owner, id string) (keptBatch, error) {
	doc, err := r.cfg.Record.Document(ctx, batchDocuments, batchKey(owner, id))
	if KindOf(err) == KindNotFound {
		return keptBatch{}, notFound("no batch %q", id)
	}
	if err != nil {
		return keptBatch{}, fmt.Errorf("look up batch: %w", err)
	}
	return decodeDoc[keptBatch](batchDocuments, doc)
}

func decodeDoc[T any](what string, doc json.RawMessage) (v T, err error) {
	if err := json.Unmarshal(doc, &v); err != nil {
		return v, &Error{Kind: KindRecordDamaged, Detail: what + ": " + err.Error()}
	}
	return v, nil
}

// putLines records lines from a number on; they count once the header says so. It returns
// the number of each line's chunk.
func (r *Runner) putLines(ctx context.Context, kept *keptBatch, lines []keptLine) (chunks []int, err error) {
	for first := 0; first < len(lines); first += chunkLines {
		some := lines[first:min(first+chunkLines, len(lines))]
		at := kept.Lines + first
		// The header that counts them is synced, and they with it.
		if err := r.putJSON(ctx, lineDocuments, numberedKey(kept.Batch.Owner, kept.Batch.ID, int64(at)), some, Written); err != nil {
			return nil, err
		}
		for range some {
			chunks = append(chunks, at)
		}
	}
	return chunks, nil
}

// readLines yields the lines that count, in order of their numbers.
func (r *Runner) readLines(ctx context.Context, kept *keptBatch, yield func(n, chunk int, line *keptLine)) error {
	prefix := batchKey(kept.Batch.Owner, kept.home()) + "/"
	next := 0
	for after := ""; next < kept.Lines; {
		docs, err := r.cfg.Record.Documents(ctx, lineDocuments, prefix, after, chunksPage)
		if err != nil {
			return fmt.Errorf("read lines: %w", err)
		}
		for _, d := range docs {
			after = d.Key
			// One that does not follow is left of an add that failed.
			if d.Key != numberedKey(kept.Batch.Owner, kept.home(), int64(next)) {
				continue
			}
			some, err := decodeDoc[[]keptLine](lineDocuments, d.Doc)
			if err != nil {
				return err
			}
			chunk := next
			for i := range some {
				if next < kept.Lines {
					yield(next, chunk, &some[i])
				}
				next++
			}
		}
		if len(docs) < chunksPage {
			break
		}
	}
	if next < kept.Lines {
		return &Error{Kind: KindRecordDamaged, Detail: fmt.Sprintf("batch %s has %d of its %d lines", kept.Batch.ID, next, kept.Lines)}
	}
	return nil
}

// readChunk reads the chunk that begins with a number.
func (r *Runner) readChunk(ctx context.Context, kept *keptBatch, chunk int) ([]keptLine, error) {
	doc, err := r.cfg.Record.Document(ctx, lineDocuments, numberedKey(kept.Batch.Owner, kept.home(), int64(chunk)))
	if err != nil {
		return nil, fmt.Errorf("read line: %w", err)
	}
	return decodeDoc[[]keptLine](lineDocuments, doc)
}

// readResults yields what is kept after a sequence number.
func (r *Runner) readResults(ctx context.Context, owner, id string, after int64, yield func(*BatchResult) error) error {
	return readNumbered(ctx, r, resultDocuments, owner, id, after, yield)
}

func readNumbered[T any](ctx context.Context, r *Runner, collection, owner, id string, after int64, yield func(*T) error) error {
	for from := numberedKey(owner, id, after); ; {
		docs, err := r.cfg.Record.Documents(ctx, collection, batchKey(owner, id)+"/", from, resultsPage)
		if err != nil {
			return fmt.Errorf("read %s: %w", collection, err)
		}
		for _, d := range docs {
			one, err := decodeDoc[T](collection, d.Doc)
			if err != nil {
				return err
			}
			if err := yield(&one); err != nil {
				return err
			}
			from = d.Key
		}
		if len(docs) < resultsPage {
			return nil
		}
	}
}

// loadBook reads a batch's lines, results and complete groups.
func (r *Runner) loadBook(ctx context.Context, kept *keptBatch) (*book, error) {
	k := newBook(&kept.Spec, kept.Batch.Sealed)
	if err := r.readLines(ctx, kept, func(n, chunk int, line *keptLine) {
		m := k.enter(n, chunk, line)
		if kept.Batch.Of != "" { // nobody plays there: only its own graders may need the client
			m.client = clientGraded(kept.Graders)
		}
	}); err != nil {
		return nil, err
	}
	for _, n := range kept.Without {
		if n < len(k.members) {
			k.drop(k.members[n])
		}
	}
	owner, id := kept.Batch.Owner, kept.Batch.ID
	if err := r.readResults(ctx, owner, id, 0, func(res *BatchResult) error {
		k.settle(res)
		return nil
	}); err != nil {
		return nil, err
	}
	return k, readNumbered(ctx, r, groupDocuments, owner, id, 0, func(g *keptGroup) error {
		k.complete(g)
		return nil
	})
}
