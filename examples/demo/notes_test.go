package demo

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestNotesSurviveAKillInTheMiddleOfALine(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "completed.jsonl")
	n := open(t, path)
	for _, one := range []note{{ID: "a", Attempt: 1, Payload: "x"}, {ID: "b", Attempt: 2, Payload: "y"}} {
		if err := n.add(one); err != nil {
			t.Fatal(err)
		}
	}
	n.Close()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, text[:len(text)-3], 0o600); err != nil {
		t.Fatal(err)
	}
	n = open(t, path)
	defer n.Close()
	if _, known := n.byID["b"]; known || len(n.byID) != 1 {
		t.Errorf("notes after a cut line = %v, want a alone", n.byID)
	}
	if err := n.add(note{ID: "b", Attempt: 3}); err != nil {
		t.Fatal(err)
	}
	if text, _ = os.ReadFile(path); strings.Count(string(text), "\n") != 2 {
		t.Errorf("journal = %q, want two whole lines", text)
	}
}

func TestAnEpisodeThatCompletesTwiceIsAnError(t *testing.T) {
	t.Parallel()
	n := open(t, filepath.Join(t.TempDir(), "completed.jsonl"))
	defer n.Close()
	for _, test := range []struct {
		name string
		note note
		ok   bool
	}{
		{"first", note{ID: "a", Attempt: 1, Reward: 1, Payload: "x"}, true},
		{"told again", note{ID: "a", Attempt: 1, Reward: 1, Payload: "x"}, true},
		{"another attempt", note{ID: "a", Attempt: 2, Reward: 1, Payload: "x"}, false},
		{"another payload", note{ID: "a", Attempt: 1, Reward: 1, Payload: "y"}, false},
	} {
		if err := n.add(test.note); (err == nil) != test.ok {
			t.Errorf("%s: add() = %v, want ok = %v", test.name, err, test.ok)
		}
	}
}

func open(t *testing.T, path string) *notes {
	t.Helper()
	n, err := openNotes(path)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
