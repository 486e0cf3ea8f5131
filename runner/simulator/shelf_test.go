package simulator

import (
	"encoding/json"
	"fmt"
	"os"
	"testing"

	"github.com/paddock-run/paddock/runner"
)

func (s *shelves) must(t *testing.T, owner string, seq int64, size int) Snapshot {
	t.Helper()
	snap, err := s.put(Snapshot{Of: runner.Key{Owner: owner, Run: "r", ID: "e"}, Seq: seq}, kind{}, make([]byte, size))
	if err != nil {
		t.Fatal(err)
	}
	return snap
}

func (s *shelves) has(t *testing.T, snap Snapshot) bool {
	t.Helper()
	_, err := s.get(snap.Of.Owner, snap.ID)
	_, file := os.Stat(s.path(snap.ID))
	if (err == nil) != (file == nil) {
		t.Errorf("snapshot %d: %v, its file: %v", snap.Seq, err, file)
	}
	return err == nil
}

func TestTheLongestUnusedSnapshotsGiveWay(t *testing.T) {
	t.Parallel()
	s, err := openShelves(t.TempDir(), 10)
	if err != nil {
		t.Fatal(err)
	}
	first, second, third := s.must(t, "a", 1, 4), s.must(t, "a", 2, 4), s.must(t, "b", 3, 4)
	k, err := s.pin("a", first.ID) // is in use, so it is the last used, and stays
	if err != nil {
		t.Fatal(err)
	}
	fourth := s.must(t, "a", 4, 5)
	if !s.has(t, first) || s.has(t, second) || !s.has(t, third) || !s.has(t, fourth) {
		t.Error("want all but the second kept")
	}
	if _, err := s.put(Snapshot{Of: runner.Key{Owner: "a"}}, kind{}, make([]byte, 7)); runner.KindOf(err) != runner.KindTooLarge {
		t.Errorf("put() beside one in use = %v", err)
	}
	if !s.has(t, fourth) {
		t.Error("a refused snapshot drove another out")
	}
	if err := s.drop("a", first.ID); err != nil {
		t.Fatal(err)
	}
	if data, err := s.read(k); err != nil || len(data) != 4 {
		t.Errorf("read() of a dropped one in use = %d bytes, %v", len(data), err)
	}
	if _, use := s.list("a", "", 10); use.Bytes != 9 || use.Count != 1 {
		t.Errorf("use %+v, want the dropped one's bytes counted", use)
	}
	if err := s.unpin(k); err != nil {
		t.Fatal(err)
	}
	if s.has(t, first) {
		t.Error("the dropped one is still there")
	}
	if _, use := s.list("a", "", 10); use != (SnapshotUse{Bytes: 5, MaxBytes: 10, Count: 1, MaxCount: maxSnapshots}) {
		t.Errorf("use %+v", use)
	}
}

func TestEqualStatesOfTwoCallsAreTwoSnapshots(t *testing.T) {
	t.Parallel()
	s, err := openShelves(t.TempDir(), 0)
	if err != nil {
		t.Fatal(err)
	}
	one, other := s.must(t, "a", 1, 4), s.must(t, "a", 2, 4)
	if one.ID == other.ID || one.SHA256 != other.SHA256 {
		t.Errorf("%+v and %+v", one, other)
	}
	if err := s.drop("a", one.ID); err != nil || s.has(t, one) || !s.has(t, other) {
		t.Errorf("drop() = %v", err)
	}
	if err := s.drop("a", one.ID); runner.KindOf(err) != runner.KindNotFound {
		t.Errorf("drop() again = %v", err)
	}
	for i := range 5 {
		s.must(t, "a", int64(i+3), 1)
	}
	all, _ := s.list("a", "", 4)
	rest, _ := s.list("a", all[3].ID, 4)
	if len(all) != 4 || len(rest) != 2 || rest[0].ID <= all[3].ID {
		t.Errorf("list() = %v, then %v", all, rest)
	}
}

func TestANewStartKnowsNoSnapshots(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, err := openShelves(dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	s.must(t, "a", 1, 4)
	if _, err := openShelves(dir, 0); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("%v are left, %v", left, err)
	}
}

func TestKindsDifferByWhatTheProgramIs(t *testing.T) {
	t.Parallel()
	spec := Spec{Env: "X-v0", Kwargs: json.RawMessage(`{"a": 1.50, "b": [2]}`), Vars: map[string]string{"A": "1"}}
	k := kindOf(&spec, "w1")
	for name, c := range map[string]struct {
		change func(*Spec)
		world  string
		want   string
	}{
		"the same":        {func(s *Spec) { s.Kwargs = json.RawMessage("{\"b\":\n[2],\"a\":1.50}") }, "w1", "[]"},
		"other limits":    {func(s *Spec) { s.StepS, s.MaxSnapshot, s.Record = 7, 8, "ends" }, "w1", "[]"},
		"another world":   {func(*Spec) {}, "w2", "[/world]"},
		"another env":     {func(s *Spec) { s.Env = "Y-v0" }, "w1", "[/env]"},
		"another kwarg":   {func(s *Spec) { s.Kwargs = json.RawMessage(`{"a":1.5}`) }, "w1", "[/kwargs]"},
		"no kwargs":       {func(s *Spec) { s.Kwargs = nil }, "w1", "[/kwargs]"},
		"a command":       {func(s *Spec) { s.Env, s.Kwargs, s.Command = "", nil, []string{"x"} }, "w1", "[/command /env /kwargs]"},
		"other variables": {func(s *Spec) { s.Vars = map[string]string{"A": "2"} }, "w1", "[/vars]"},
		"another user":    {func(s *Spec) { s.User = "root" }, "w1", "[/user]"},
		"elsewhere":       {func(s *Spec) { s.Cwd = "/srv" }, "w1", "[/cwd]"},
	} {
		other := spec
		c.change(&other)
		var got []string
		for _, d := range k.differs(kindOf(&other, c.world)) {
			got = append(got, d.Pointer)
		}
		if fmt.Sprint(got) != c.want {
			t.Errorf("%s: %v, want %s", name, got, c.want)
		}
	}
}
