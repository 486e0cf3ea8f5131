package dataset

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/parquet-go/parquet-go"
)

// The formats of files.
const (
	JSONL   = "jsonl"
	JSON    = "json"
	CSV     = "csv"
	Parquet = "parquet"
)

// Columns say which column of a file is what; an empty one is the field's own name. What no
// field takes becomes metadata.
type Columns struct {
	ID, Prompt, Answer, Tests string
}

// Read reads a file into a set, and returns its canonical form. A file without ids gets
// the numbers of its lines, from 0.
func Read(data []byte, format string, c Columns) (*Set, []byte, error) {
	if len(data) > MaxBytes {
		return nil, nil, badField("body", "has %d bytes, at most %d are allowed", len(data), MaxBytes)
	}
	var rows []row
	var err error
	switch format {
	case "", JSONL:
		rows, err = readJSONL(data)
	case JSON:
		rows, err = readJSON(data)
	case CSV:
		rows, err = readCSV(data)
	case Parquet:
		rows, err = readParquet(data)
	default:
		return nil, nil, badField("format", "%q is not one of %s", format, strings.Join([]string{JSONL, JSON, CSV, Parquet}, ", "))
	}
	if err != nil {
		return nil, nil, badField("body", "%v", err)
	}
	problems := make([]Problem, len(rows))
	for i, r := range rows {
		if problems[i], err = c.problem(r, i); err != nil {
			return nil, nil, badField(fmt.Sprintf("problems/%d", i), "%v", err)
		}
	}
	if err := c.found(rows); err != nil {
		return nil, nil, err
	}
	return newSet(problems)
}

// row is one line of a file.
type row map[string]json.RawMessage

func (c *Columns) problem(r row, i int) (Problem, error) {
	p := Problem{ID: strconv.Itoa(i)}
	rest := row{}
	own := map[string]func(json.RawMessage) error{
		or(c.ID, "id"): func(v json.RawMessage) error {
			id, err := idOf(v)
			p.ID = id
			return err
		},
		or(c.Prompt, "prompt"): func(v json.RawMessage) error { p.Prompt = v; return nil },
		or(c.Answer, "answer"): func(v json.RawMessage) error { p.Answer = v; return nil },
		or(c.Tests, "tests"):   func(v json.RawMessage) error { p.Tests = v; return nil },
	}
	for name, value := range r {
		var small bytes.Buffer
		if err := json.Compact(&small, value); err != nil {
			return p, fmt.Errorf("%q: %w", name, err)
		}
		v := json.RawMessage(small.Bytes())
		if string(v) == "null" {
			continue
		}
		if take, ok := own[name]; ok {
			if err := take(v); err != nil {
				return p, fmt.Errorf("%q: %w", name, err)
			}
			continue
		}
		rest[name] = v
	}
	return p, p.describe(rest)
}

// describe keeps what is left of a row as metadata. A row's own metadata object, when it is
// all that is left, is taken as it is, so that a canonical form read again is the same set.
func (p *Problem) describe(rest row) error {
	if len(rest) == 0 {
		return nil
	}
	if v, ok := rest["metadata"]; ok && len(rest) == 1 && len(v) > 0 && v[0] == '{' {
		p.Metadata = v
		return nil
	}
	doc, err := json.Marshal(rest) // keys are sorted
	p.Metadata = doc
	return err
}

// found refuses names of columns that no row has.
func (c *Columns) found(rows []row) error {
	for field, name := range map[string]string{"id": c.ID, "prompt": c.Prompt, "answer": c.Answer, "tests": c.Tests} {
		if name != "" && !slices.ContainsFunc(rows, func(r row) bool { _, ok := r[name]; return ok }) {
			return badField(field, "no row has a column %q", name)
		}
	}
	return nil
}

func or(s, d string) string {
	if s == "" {
		return d
	}
	return s
}

// idOf makes a text or a number an id.
func idOf(v json.RawMessage) (string, error) {
	var text string
	if json.Unmarshal(v, &text) == nil {
		return text, nil
	}
	var n json.Number
	if json.Unmarshal(v, &n) == nil {
		return n.String(), nil
	}
	return "", errors.New("want a text or a number")
}

func readJSONL(data []byte) ([]row, error) {
	var rows []row
	n := 0
	for line := range bytes.Lines(data) {
		n++
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		if len(rows) == MaxProblems {
			return nil, fmt.Errorf("has more than %d problems", MaxProblems)
		}
		var r row
		if err := json.Unmarshal(line, &r); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		if r == nil {
			return nil, fmt.Errorf("line %d: want an object", n)
		}
		rows = append(rows, r)
	}
	return rows, nil
}

// readJSON reads a list of objects, or an object whose only list is the rows.
func readJSON(data []byte) ([]row, error) {
	var rows []row
	if err := json.Unmarshal(data, &rows); err == nil {
		return rows, nil
	}
	var outer map[string]json.RawMessage
	if err := json.Unmarshal(data, &outer); err != nil {
		return nil, fmt.Errorf("want a list of objects: %w", err)
	}
	for _, v := range outer {
		var inner []row
		if json.Unmarshal(v, &inner) == nil && len(inner) > 0 {
			if rows != nil {
				return nil, errors.New("want a list of objects; this object has several")
			}
			rows = inner
		}
	}
	if rows == nil {
		return nil, errors.New("want a list of objects")
	}
	return rows, nil
}

// readCSV reads a file whose first line names the columns; every value is a text.
func readCSV(data []byte) ([]row, error) {
	in := csv.NewReader(bytes.NewReader(bytes.TrimPrefix(data, []byte("\ufeff"))))
	head, err := in.Read()
	if err != nil {
		return nil, fmt.Errorf("head: %w", err)
	}
	var rows []row
	for {
		values, err := in.Read()
		if errors.Is(err, io.EOF) {
			return rows, nil
		}
		if err != nil {
			return nil, err
		}
		if len(rows) == MaxProblems {
			return nil, fmt.Errorf("has more than %d problems", MaxProblems)
		}
		r := row{}
		for i, v := range values {
			if !utf8.ValidString(v) {
				return nil, fmt.Errorf("row %d, column %q: not UTF-8", len(rows), head[i])
			}
			text, err := json.Marshal(v)
			if err != nil {
				return nil, err
			}
			r[head[i]] = text
		}
		rows = append(rows, r)
	}
}

func readParquet(data []byte) (rows []row, err error) {
	defer func() { // the library panics on some files that are out of form
		if what := recover(); what != nil {
			rows, err = nil, fmt.Errorf("parquet: %v", what)
		}
	}()
	f, err := parquet.OpenFile(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		return nil, fmt.Errorf("parquet: %w", err)
	}
	if f.NumRows() > MaxProblems {
		return nil, fmt.Errorf("has %d problems, at most %d are allowed", f.NumRows(), MaxProblems)
	}
	in := parquet.NewReader(f)
	defer func() { _ = in.Close() }()
	for range f.NumRows() {
		values := map[string]any{}
		if err := in.Read(&values); err != nil {
			return nil, fmt.Errorf("parquet: row %d: %w", len(rows), err)
		}
		r := row{}
		for name, v := range values {
			doc, err := json.Marshal(plain(v))
			if err != nil {
				return nil, fmt.Errorf("parquet: row %d, column %q: %w", len(rows), name, err)
			}
			r[name] = doc
		}
		rows = append(rows, r)
	}
	return rows, nil
}

// plain makes what parquet gives JSON's: bytes are texts, what is no number is null.
func plain(v any) any {
	switch x := v.(type) {
	case []byte:
		return strings.ToValidUTF8(string(x), "\uFFFD")
	case float64:
		if math.IsNaN(x) || math.IsInf(x, 0) {
			return nil
		}
	case float32:
		return plain(float64(x))
	case []any:
		for i := range x {
			x[i] = plain(x[i])
		}
	case map[string]any:
		for k := range x {
			x[k] = plain(x[k])
		}
	}
	return v
}
