package dataset

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/parquet-go/parquet-go"

	"github.com/paddock-run/paddock/runner"
)

// arithmetic is a thousand problems as a file of lines.
func arithmetic(n int) []byte {
	var b bytes.Buffer
	for i := range n {
		fmt.Fprintf(&b, `{"id":"p%d","prompt":"What is %d+%d?","answer":%d,"level":"easy"}`+"\n", i, i, 2*i, 3*i)
	}
	return b.Bytes()
}

func open(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func ids(s Sampled) (out []string) {
	for _, p := range s.Problems {
		out = append(out, p.ID)
	}
	return out
}

// Three epochs of 1,000 problems by 64: every epoch has each problem once, the same in
// another store, after a restart, and in any order of asking.
func TestSamplingIsAFunctionOfTheIteration(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir)
	info, err := s.Put(arithmetic(1000), JSONL, Columns{}, "arithmetic")
	if err != nil {
		t.Fatal(err)
	}
	set, err := s.Get("arithmetic")
	if err != nil {
		t.Fatal(err)
	}
	const n, iterations = 64, 47 // 3008 draws: three epochs and a bit
	var all []string
	byIteration := map[int64][]string{}
	for i := range int64(iterations) {
		got, err := set.Sample(SampleSpec{Iteration: i, N: n, Seed: 7})
		if err != nil {
			t.Fatal(err)
		}
		if got.Epoch != i*n/1000 || got.Position != int(i*n%1000) || len(got.Problems) != n {
			t.Errorf("iteration %d: epoch %d at %d with %d problems", i, got.Epoch, got.Position, len(got.Problems))
		}
		byIteration[i] = ids(got)
		all = append(all, ids(got)...)
	}
	for e := range 3 {
		epoch := slices.Clone(all[e*1000 : (e+1)*1000])
		slices.Sort(epoch)
		if len(slices.Compact(epoch)) != 1000 {
			t.Errorf("epoch %d has a problem twice", e)
		}
	}
	if slices.Equal(all[:1000], all[1000:2000]) {
		t.Error("two epochs have one order")
	}
	again, err := open(t, dir).Get(info.Digest) // a restart
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range []int64{46, 0, 15, 16, 31} {
		got, err := again.Sample(SampleSpec{Iteration: i, N: n, Seed: 7, Order: Shuffle})
		if err != nil || !slices.Equal(ids(got), byIteration[i]) {
			t.Errorf("iteration %d after a restart: %v (%v), want %v", i, ids(got), err, byIteration[i])
		}
	}
	if other, _ := set.Sample(SampleSpec{N: n, Seed: 8}); slices.Equal(ids(other), byIteration[0]) {
		t.Error("another seed gives the same")
	}
	// The order of version 1 is pinned: a trainer that resumes under a newer paddock goes on as it began.
	if first := byIteration[0][:5]; !slices.Equal(first, pinned) {
		t.Errorf("the first five are %q, want %q", first, pinned)
	}
	rotated, err := set.Sample(SampleSpec{Iteration: 15, N: n, Order: Rotate})
	if err != nil || rotated.Problems[39].ID != "p999" || rotated.Problems[40].ID != "p0" {
		t.Errorf("rotation over the end of an epoch: %v, %v", ids(rotated), err)
	}
	big, err := set.Sample(SampleSpec{N: 2500, Order: Rotate})
	if err != nil || len(big.Problems) != 2500 || big.Problems[2000].ID != "p0" {
		t.Errorf("an iteration of more than two epochs: %d problems, %v", len(big.Problems), err)
	}
	for _, bad := range []SampleSpec{{N: 0}, {N: MaxSample + 1}, {N: 1, Iteration: -1}, {N: 2, Iteration: 1 << 62}, {N: 1, Order: "random"}} {
		if _, err := set.Sample(bad); runner.KindOf(err) != runner.KindBadRequest {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

func TestEqualProblemsAreOneSetWhateverTheFile(t *testing.T) {
	t.Parallel()
	jsonl := []byte("{\"id\":\"1\",\"prompt\":\"p\",\"answer\":\"a\",\"x\":\"y\"}\n\n{\"prompt\":\"q\",\"id\":\"2\",\"answer\":\"b\",\"x\":\"z\"}\n")
	type line struct {
		ID     string `parquet:"id"`
		Prompt string `parquet:"prompt"`
		Answer string `parquet:"answer"`
		X      string `parquet:"x"`
	}
	var pq bytes.Buffer
	if err := parquet.Write(&pq, []line{{"1", "p", "a", "y"}, {"2", "q", "b", "z"}}); err != nil {
		t.Fatal(err)
	}
	want, doc, err := Read(jsonl, JSONL, Columns{})
	if err != nil {
		t.Fatal(err)
	}
	for name, f := range map[string]struct {
		data   []byte
		format string
		c      Columns
	}{
		"json":    {[]byte(`[{"id":"1","prompt":"p","answer":"a","x":"y"},{"id":"2","prompt":"q","answer":"b","x":"z"}]`), JSON, Columns{}},
		"nested":  {[]byte(`{"rows":[{"id":"1","prompt":"p","answer":"a","x":"y"},{"id":"2","prompt":"q","answer":"b","x":"z"}],"n":2}`), JSON, Columns{}},
		"csv":     {[]byte("\ufeffid,prompt,solution,x\n1,p,a,y\n2,q,b,z\n"), CSV, Columns{Answer: "solution"}},
		"parquet": {pq.Bytes(), Parquet, Columns{}},
		"itself":  {doc, JSONL, Columns{}},
	} {
		got, _, err := Read(f.data, f.format, f.c)
		if err != nil || got.Digest != want.Digest {
			t.Errorf("%s: %v, %+v, want %+v", name, err, got, want)
		}
	}
	for name, f := range map[string]struct {
		data, format, field string
		c                   Columns
	}{
		"nothing":          {"", JSONL, "body", Columns{}},
		"no object":        {"[1]", JSONL, "body", Columns{}},
		"null":             {"null", JSONL, "body", Columns{}},
		"broken":           {"{\"id\":1}\n{", JSONL, "body", Columns{}},
		"twice":            {"{\"id\":1}\n{\"id\":\"1\"}", JSONL, "problems/1/id", Columns{}},
		"no text as id":    {"{\"id\":{}}", JSONL, "problems/0", Columns{}},
		"a missing column": {"{\"id\":1}", JSONL, "answer", Columns{Answer: "solution"}},
		"ragged":           {"a,b\n1\n", CSV, "body", Columns{}},
		"no parquet":       {"PAR1xxxxPAR1", Parquet, "body", Columns{}},
		"another format":   {"", "xml", "format", Columns{}},
	} {
		_, _, err := Read([]byte(f.data), f.format, f.c)
		if e, ok := errors.AsType[*runner.Error](err); !ok || e.Kind != runner.KindBadRequest || e.Field != f.field {
			t.Errorf("%s: %v, want a bad request at %s", name, err, f.field)
		}
	}
}

func TestStoreKeepsNamesAndNoticesDamage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir)
	a, err := s.Put(arithmetic(3), JSONL, Columns{}, "a")
	if err != nil {
		t.Fatal(err)
	}
	if again, err := s.Put(arithmetic(3), JSONL, Columns{}, "b"); err != nil || again.Digest != a.Digest || !slices.Equal(again.Names, []string{"a", "b"}) {
		t.Errorf("the same again: %+v, %v", again, err)
	}
	b, err := s.Put(arithmetic(4), JSONL, Columns{}, "a") // the name moves
	if err != nil {
		t.Fatal(err)
	}
	if set, err := s.Get("a"); err != nil || set.Digest != b.Digest {
		t.Errorf("a moved name: %v", err)
	}
	if list, err := s.List(); err != nil || len(list) != 2 {
		t.Errorf("list %+v, %v", list, err)
	}
	if err := s.Remove("a"); err != nil {
		t.Fatal(err)
	}
	for _, ref := range []string{"a", b.Digest, "../names/b", "", "sha256:xy"} {
		if _, err := s.Get(ref); runner.KindOf(err) != KindUnknown {
			t.Errorf("%q: %v, want unknown", ref, err)
		}
	}
	for _, name := range []string{"../x", "sha256:" + strings.Repeat("0", 64), "a/b"} {
		if _, err := s.Put(arithmetic(1), JSONL, Columns{}, name); runner.KindOf(err) != runner.KindBadRequest {
			t.Errorf("name %q: %v", name, err)
		}
	}
	file := filepath.Join(dir, "sets", strings.TrimPrefix(a.Digest, "sha256:")+".jsonl")
	if err := os.WriteFile(file, arithmetic(2), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := open(t, dir).Get("b"); runner.KindOf(err) != runner.KindRecordDamaged {
		t.Errorf("a changed file: %v, want damaged", err)
	}
}

func scores(t *testing.T, s *Scorer, spec ScoreSpec) []Score {
	t.Helper()
	out := make([]Score, len(spec.Items))
	seen := 0
	if err := s.Score(t.Context(), spec, func(one Score) { out[one.Index] = one; seen++ }); err != nil {
		t.Fatal(err)
	}
	if seen != len(spec.Items) {
		t.Errorf("%d of %d scores were told", seen, len(spec.Items))
	}
	return out
}

func TestScoresOfABatch(t *testing.T) {
	t.Parallel()
	store := open(t, t.TempDir())
	if _, err := store.Put(arithmetic(1000), JSONL, Columns{}, "arithmetic"); err != nil {
		t.Fatal(err)
	}
	s := NewScorer(store, nil)
	var items []Item
	for i := range 1000 {
		answer := 3 * i
		if i%10 == 0 {
			answer++
		}
		items = append(items, Item{ID: fmt.Sprintf("p%d", i), Completion: fmt.Sprintf("Let me think, %d and %d. The answer is \\boxed{%d}.", i, 2*i, answer)})
	}
	right := 0
	for i, one := range scores(t, s, ScoreSpec{Dataset: "arithmetic", Items: items, Rule: Number}) {
		if one.ID != items[i].ID || one.Score == nil || (*one.Score == 1) != (i%10 != 0) {
			t.Fatalf("item %d: %+v", i, one)
		}
		right += int(*one.Score)
	}
	if right != 900 {
		t.Errorf("%d right, want 900", right)
	}
	several := scores(t, s, ScoreSpec{Rule: Text, Items: []Item{
		{Completion: "<answer>NYC</answer>", Answer: json.RawMessage(`["New York","nyc"]`)},
		{Completion: "<answer>LA</answer>", Answer: json.RawMessage(`["New York","nyc"]`)},
	}})
	if *several[0].Score != 1 || *several[1].Score != 0 {
		t.Errorf("with several right answers: %+v", several)
	}
	none := scores(t, s, ScoreSpec{Rule: Number, Items: []Item{{Completion: "I do not know", Answer: json.RawMessage("1")}}})
	if *none[0].Score != 0 || none[0].Found || none[0].Detail == "" {
		t.Errorf("without an answer: %+v, want 0 and why", none[0])
	}
	for name, tt := range map[string]struct {
		spec  ScoreSpec
		field string
	}{
		"rule":      {ScoreSpec{Rule: "vibes", Items: items}, "rule"},
		"no items":  {ScoreSpec{Rule: Exact}, "items"},
		"no id":     {ScoreSpec{Rule: Exact, Dataset: "arithmetic", Items: []Item{{ID: "x"}}}, "items/0/id"},
		"no answer": {ScoreSpec{Rule: Exact, Items: []Item{{}}}, "items/0/answer"},
		"no tests":  {ScoreSpec{Rule: Code, Items: []Item{{}}}, "rule"},
		"pattern":   {ScoreSpec{Rule: Regex, Items: []Item{{Answer: json.RawMessage(`"("`)}}}, "items/0/answer"},
		"extract":   {ScoreSpec{Rule: Exact, Items: items, Extract: []Extract{{Kind: "guess"}}}, "extract/0/kind"},
		"tolerance": {ScoreSpec{Rule: Exact, Items: items, Abs: -1}, "tolerance"},
	} {
		err := s.Score(t.Context(), tt.spec, func(Score) {})
		if e, ok := errors.AsType[*runner.Error](err); !ok || e.Kind != runner.KindBadRequest || e.Field != tt.field {
			t.Errorf("%s: %v, want a bad request at %s", name, err, tt.field)
		}
	}
	if err := s.Score(t.Context(), ScoreSpec{Rule: Exact, Dataset: "none", Items: items}, func(Score) {}); runner.KindOf(err) != KindUnknown {
		t.Errorf("a set that is not there: %v", err)
	}
}

func TestCodeIsRunOnceAndAFailureOfPaddockIsNoScore(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	half := 0.5
	s := NewScorer(nil, func(_ context.Context, tests json.RawMessage, code string) (*float64, string, error) {
		runs.Add(1)
		if code == "broken" {
			return nil, "", errors.New("no sandbox")
		}
		if string(tests) != `{"cases":[]}` {
			t.Errorf("tests %s", tests)
		}
		return &half, "half", nil
	})
	item := func(code string) Item {
		return Item{Completion: "Here:\n```python\n" + code + "\n```", Tests: json.RawMessage(`{"cases":[]}`)}
	}
	first := scores(t, s, ScoreSpec{Rule: Code, Items: []Item{item("x")}})[0]
	if first.Extracted != "x" || *first.Score != 0.5 || first.Detail != "half" || first.Cached {
		t.Errorf("first %+v", first)
	}
	if again := scores(t, s, ScoreSpec{Rule: Code, Items: []Item{item("x")}})[0]; !again.Cached || *again.Score != 0.5 || runs.Load() != 1 {
		t.Errorf("again %+v, %d runs", again, runs.Load())
	}
	for range 2 {
		if bad := scores(t, s, ScoreSpec{Rule: Code, Items: []Item{item("broken")}})[0]; bad.Score != nil || bad.Cached || bad.Detail == "" {
			t.Errorf("what paddock failed at: %+v, want no score, and not kept", bad)
		}
	}
}

func BenchmarkTextScores(b *testing.B) {
	s := NewScorer(nil, nil)
	for _, rule := range []string{Text, Number, Math} {
		b.Run(rule, func(b *testing.B) {
			items := make([]Item, 1000)
			for i := range items {
				items[i] = Item{Completion: fmt.Sprintf("%s so it is \\boxed{\\frac{%d}{2}}", strings.Repeat("words ", 200), i), Answer: json.RawMessage(fmt.Sprintf(`"%d/2"`, i))}
			}
			for b.Loop() {
				if err := s.Score(b.Context(), ScoreSpec{Rule: rule, Items: items}, func(Score) {}); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N)*1000/b.Elapsed().Seconds(), "comparisons/s")
		})
	}
}

// pinned are the first problems of TestSamplingIsAFunctionOfTheIteration.
var pinned = []string{"p479", "p412", "p91", "p572", "p488"}
