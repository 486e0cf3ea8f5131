package contract

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/paddock-run/paddock/runner"
)

// Record runs the suite of runner.Record. open opens the record below root, again after
// it was closed.
func Record(t *testing.T, open func(t *testing.T, root string) runner.Record) {
	t.Helper()
	for _, c := range []struct {
		name string
		run  func(context.Context, *testing.T, runner.Record)
	}{
		{"Runs", recordRuns},
		{"Attempts", recordAttempts},
		{"ListByPrefix", recordList},
		{"Journal", recordJournal},
		{"Payloads", recordPayloads},
		{"Delete", recordDelete},
		{"Documents", recordDocuments},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			r := open(t, t.TempDir())
			c.run(ctx, t, r)
			if err := r.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
		})
	}
	t.Run("SurvivesReopen", func(t *testing.T) { recordReopen(t, open) })
	t.Run("TornLine", func(t *testing.T) { recordTorn(t, open) })
}

var recordKey = runner.Key{Owner: "1000", Run: "exp", ID: "it1/task/s1"}

func insertNow(ctx context.Context, r runner.Record, key runner.Key, plan runner.Plan, a runner.Attempt) error {
	kept, err := r.InsertAttempt(ctx, key, plan, a)
	if err != nil {
		return err
	}
	return kept()
}

func insert(ctx context.Context, t *testing.T, r runner.Record, key runner.Key, n int, state runner.State) runner.Attempt {
	t.Helper()
	a := runner.Attempt{N: n, State: state, Created: time.Unix(1, 0).UTC()}
	if err := insertNow(ctx, r, key, runner.Plan{Digest: fmt.Sprint("plan of ", n)}, a); err != nil {
		t.Fatalf("InsertAttempt %d: %v", n, err)
	}
	return a
}

func wantMissing(t *testing.T, what string, err error) {
	t.Helper()
	if runner.KindOf(err) != runner.KindNotFound {
		t.Errorf("%s: %v, want not_found", what, err)
	}
}

func recordRuns(ctx context.Context, t *testing.T, r runner.Record) {
	_, err := r.Run(ctx, "1000", "exp")
	wantMissing(t, "Run", err)
	for gen := range int64(3) {
		if err := r.SaveRun(ctx, runner.Run{Owner: "1000", Name: "exp", Seed: 7, Generation: gen}); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.SaveRun(ctx, runner.Run{Owner: "2000", Name: "exp"}); err != nil {
		t.Fatal(err)
	}
	got, err := r.Run(ctx, "1000", "exp")
	if err != nil || got.Generation != 2 || got.Seed != 7 {
		t.Errorf("Run = %+v, %v; want the last one saved", got, err)
	}
	if runs, err := r.Runs(ctx, "1000"); err != nil || len(runs) != 1 {
		t.Errorf("Runs = %v, %v; want the owner's one", runs, err)
	}
}

func recordAttempts(ctx context.Context, t *testing.T, r runner.Record) {
	_, _, err := r.Attempts(ctx, recordKey)
	wantMissing(t, "Attempts", err)
	wantMissing(t, "UpdateAttempt", r.UpdateAttempt(ctx, recordKey, runner.Attempt{N: 1}, runner.Written))
	a := insert(ctx, t, r, recordKey, 1, runner.Queued)
	if err := insertNow(ctx, r, recordKey, runner.Plan{}, a); err == nil {
		t.Error("an attempt was inserted twice")
	}
	reward := 0.5
	for _, d := range []runner.Durability{runner.Lazy, runner.Written, runner.Synced} {
		a.State, a.Reward, a.Calls = runner.Done, &reward, int64(d)
		if err := r.UpdateAttempt(ctx, recordKey, a, d); err != nil {
			t.Fatal(err)
		}
	}
	insert(ctx, t, r, recordKey, 2, runner.Live)
	plan, all, err := r.Attempts(ctx, recordKey)
	if err != nil || len(all) != 2 || plan.Digest != "plan of 2" {
		t.Fatalf("Attempts = plan %q, %d, %v", plan.Digest, len(all), err)
	}
	if all[0].Reward == nil || *all[0].Reward != reward || all[0].Calls != int64(runner.Synced) {
		t.Errorf("first attempt = %+v, want the last update", all[0])
	}
	if p, err := r.Plan(ctx, recordKey, 1); err != nil || p.Digest != "plan of 1" {
		t.Errorf("Plan of 1 = %q, %v", p.Digest, err)
	}
	left, err := r.Unfinished(ctx)
	if err != nil || len(left) != 1 || left[0].Key != recordKey || left[0].Attempt.N != 2 {
		t.Errorf("Unfinished = %+v, %v; want attempt 2", left, err)
	}
	other := runner.Key{Owner: "1001", Run: "exp", ID: "x"}
	for n, world := range []string{"sha256:aa", "sha256:bb", "sha256:bb"} {
		if err := insertNow(ctx, r, other, runner.Plan{World: world}, runner.Attempt{N: n + 1, State: runner.Done}); err != nil {
			t.Fatal(err)
		}
	}
	worlds, err := r.Worlds(ctx)
	slices.Sort(worlds)
	if err != nil || !slices.Equal(slices.DeleteFunc(worlds, func(id string) bool { return id == "" }), []string{"sha256:aa", "sha256:bb"}) {
		t.Errorf("Worlds = %q, %v; want each once, of every attempt", worlds, err)
	}
}

func recordList(ctx context.Context, t *testing.T, r runner.Record) {
	for _, id := range []string{"a/1", "a/2", "a", "ab", "b/1/x", "b/1", "b/10"} {
		insert(ctx, t, r, runner.Key{Owner: "1000", Run: "exp", ID: id}, 1, runner.Done)
	}
	insert(ctx, t, r, runner.Key{Owner: "1000", Run: "exp", ID: "a/1"}, 2, runner.Done)
	insert(ctx, t, r, runner.Key{Owner: "1000", Run: "other", ID: "a/9"}, 1, runner.Done)
	for _, c := range []struct {
		prefix, after string
		max           int
		want          []string
		more          bool
	}{
		{"", "", 100, []string{"a", "a/1", "a/2", "ab", "b/1", "b/1/x", "b/10"}, false},
		{"a", "", 100, []string{"a", "a/1", "a/2"}, false},
		{"a/", "", 100, []string{"a/1", "a/2"}, false},
		{"b/1", "", 100, []string{"b/1", "b/1/x"}, false},
		{"", "a/2", 2, []string{"ab", "b/1"}, true},
	} {
		keys, more, err := r.List(ctx, "1000", "exp", c.prefix, c.after, c.max)
		var got []string
		for _, k := range keys {
			got = append(got, k.ID)
		}
		if err != nil || !slices.Equal(got, c.want) || more != c.more {
			t.Errorf("List(%q, after %q, %d) = %q, more %v, %v; want %q, more %v", c.prefix, c.after, c.max, got, more, err, c.want, c.more)
		}
	}
}

func readAll(ctx context.Context, t *testing.T, r runner.Record) (string, string) {
	t.Helper()
	rd, note, err := r.Trajectory(ctx, recordKey, 1)
	if err != nil {
		t.Fatalf("Trajectory: %v", err)
	}
	defer func() { _ = rd.Close() }()
	text, err := io.ReadAll(rd)
	if err != nil {
		t.Fatal(err)
	}
	return string(text), note
}

func recordJournal(ctx context.Context, t *testing.T, r runner.Record) {
	if text, note := readAll(ctx, t, r); text != "" || note != "" {
		t.Errorf("journal of no calls = %q, note %q", text, note)
	}
	j, err := r.Journal(recordKey, 1)
	if err != nil {
		t.Fatal(err)
	}
	lines := []string{`{"seq":1}`, `{"seq":2,"text":"` + string(bytes.Repeat([]byte("x"), 100000)) + `"}`, `{"seq":3}`}
	var at []int64
	for _, l := range lines {
		off, err := j.Append([]byte(l))
		if err != nil {
			t.Fatal(err)
		}
		at = append(at, off)
	}
	for i, l := range lines {
		if got, err := j.Line(at[i]); err != nil || string(got) != l {
			t.Errorf("Line %d = %d bytes, %v; want %d", i, len(got), err, len(l))
		}
	}
	if _, err := j.Append([]byte("a\nb")); err == nil {
		t.Error("a line with a newline was appended")
	}
	if err := j.Sync(); err != nil {
		t.Errorf("Sync: %v", err)
	}
	if text, _ := readAll(ctx, t, r); text != lines[0]+"\n"+lines[1]+"\n"+lines[2]+"\n" {
		t.Errorf("Trajectory has %d bytes", len(text))
	}
	if err := j.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}

func recordPayloads(ctx context.Context, t *testing.T, r runner.Record) {
	_, err := r.Payload(ctx, recordKey, 1)
	wantMissing(t, "Payload", err)
	insert(ctx, t, r, recordKey, 1, runner.Live)
	for n, want := range map[int][]byte{1: {0, 255, 10}, 2: bytes.Repeat([]byte{7}, 3<<20), 3: {}} {
		if err := r.SavePayload(ctx, recordKey, n, want); err != nil {
			t.Fatal(err)
		}
		if got, err := r.Payload(ctx, recordKey, n); err != nil || !bytes.Equal(got, want) {
			t.Errorf("payload %d = %d bytes, %v; want %d", n, len(got), err, len(want))
		}
	}
}

func recordDelete(ctx context.Context, t *testing.T, r runner.Record) {
	wantMissing(t, "DeleteEpisode", r.DeleteEpisode(ctx, recordKey))
	insert(ctx, t, r, recordKey, 1, runner.Done)
	dir, err := r.Dir(recordKey, 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.SavePayload(ctx, recordKey, 1, []byte("x")); err != nil {
		t.Fatal(err)
	}
	if err := r.DeleteEpisode(ctx, recordKey); err != nil {
		t.Fatal(err)
	}
	_, _, err = r.Attempts(ctx, recordKey)
	wantMissing(t, "Attempts", err)
	_, err = r.Payload(ctx, recordKey, 1)
	wantMissing(t, "Payload", err)
	if _, err := os.Stat(dir); err == nil {
		t.Errorf("%s is still there", filepath.Base(dir))
	}
}

func recordDocuments(ctx context.Context, t *testing.T, r runner.Record) {
	_, err := r.Document(ctx, "graders", "k")
	wantMissing(t, "Document", err)
	for _, k := range []string{"b/1", "b/2", "b/3", "c"} {
		if err := r.PutDocument(ctx, "results", k, json.RawMessage(`{"k":"`+k+`"}`), runner.Synced); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.PutDocument(ctx, "results", "c", json.RawMessage(`1`), runner.Written); err != nil {
		t.Fatal(err)
	}
	if doc, err := r.Document(ctx, "results", "c"); err != nil || string(doc) != "1" {
		t.Errorf("Document = %s, %v; want the last put", doc, err)
	}
	docs, err := r.Documents(ctx, "results", "b/", "b/1", 10)
	if err != nil || len(docs) != 2 || docs[0].Key != "b/2" || string(docs[1].Doc) != `{"k":"b/3"}` {
		t.Errorf("Documents = %s, %v; want b/2 and b/3", docs, err)
	}
	if err := r.DeleteDocuments(ctx, "results", "b/"); err != nil {
		t.Fatal(err)
	}
	if docs, err := r.Documents(ctx, "results", "", "", 10); err != nil || len(docs) != 1 {
		t.Errorf("after the deletion %d documents, %v; want 1", len(docs), err)
	}
}

func recordReopen(t *testing.T, open func(*testing.T, string) runner.Record) {
	t.Helper()
	ctx, root := t.Context(), t.TempDir()
	r := open(t, root)
	insert(ctx, t, r, recordKey, 1, runner.Live)
	if err := r.SavePayload(ctx, recordKey, 1, []byte("payload")); err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	r = open(t, root)
	left, err := r.Unfinished(ctx)
	if err != nil || len(left) != 1 {
		t.Errorf("after reopening: %d unfinished, %v; want 1", len(left), err)
	}
	if got, err := r.Payload(ctx, recordKey, 1); err != nil || string(got) != "payload" {
		t.Errorf("after reopening: payload %q, %v", got, err)
	}
	if err := r.UpdateAttempt(ctx, recordKey, runner.Attempt{N: 1, State: runner.Done}, runner.Synced); err != nil {
		t.Errorf("after reopening: %v", err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

// recordTorn cuts the journal at every byte of its last line, and damages one before.
func recordTorn(t *testing.T, open func(*testing.T, string) runner.Record) {
	t.Helper()
	ctx := t.Context()
	r := open(t, t.TempDir())
	defer func() { _ = r.Close() }()
	j, err := r.Journal(recordKey, 1)
	if err != nil {
		t.Fatal(err)
	}
	whole := `{"seq":1,"x":"y"}` + "\n"
	last := `{"seq":2,"x":"z"}`
	for _, l := range []string{whole[:len(whole)-1], last} {
		if _, err := j.Append([]byte(l)); err != nil {
			t.Fatal(err)
		}
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	dir, err := r.Dir(recordKey, 1)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "trajectory.jsonl")
	for cutAt := len(whole) + len(last); cutAt > len(whole); cutAt-- {
		if err := os.Truncate(path, int64(cutAt)); err != nil {
			t.Fatal(err)
		}
		if text, note := readAll(ctx, t, r); text != whole || note == "" {
			t.Fatalf("cut at %d: %q, note %q; want the whole line and a note", cutAt, text, note)
		}
	}
	j, err = r.Journal(recordKey, 1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := j.Append([]byte(`{"seq":3}`)); err != nil {
		t.Fatal(err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if text, note := readAll(ctx, t, r); text != whole+`{"seq":3}`+"\n" || note != "" {
		t.Errorf("appended after a torn line: %q, note %q", text, note)
	}
	if err := os.WriteFile(path, []byte(`{"seq":1,"x":`+"\n"+`{"seq":3}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := r.Trajectory(ctx, recordKey, 1); runner.KindOf(err) != runner.KindRecordDamaged {
		t.Errorf("damage in the middle: %v, want record_damaged", err)
	}
}
