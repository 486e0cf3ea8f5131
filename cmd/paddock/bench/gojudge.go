package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// goJudge is a go-judge server.
type goJudge struct{ url string }

// goJudgeFile is text that a file has, or a stream that is collected.
type goJudgeFile struct {
	Content *string `json:"content,omitempty"`
	Name    string  `json:"name,omitempty"`
	Max     int     `json:"max,omitempty"`
}

// goJudgeCmd is a command to run.
type goJudgeCmd struct {
	Args        []string               `json:"args"`
	Env         []string               `json:"env"`
	Files       []goJudgeFile          `json:"files"`
	CPULimit    int64                  `json:"cpuLimit"`
	MemoryLimit int64                  `json:"memoryLimit"`
	ProcLimit   int                    `json:"procLimit"`
	CopyIn      map[string]goJudgeFile `json:"copyIn,omitempty"`
}

// run runs a command with an input and returns its standard output.
func (g goJudge) run(ctx context.Context, stdin string, files map[string]string, argv ...string) (stdout string, err error) {
	const streamBytes = 64 << 10
	cmd := goJudgeCmd{
		Args: argv, Env: []string{"PATH=/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE=1"},
		Files:    []goJudgeFile{{Content: &stdin}, {Name: "stdout", Max: streamBytes}, {Name: "stderr", Max: streamBytes}},
		CPULimit: int64(10 * time.Second), MemoryLimit: 512 << 20, ProcLimit: 128, CopyIn: map[string]goJudgeFile{},
	}
	for name, text := range files {
		cmd.CopyIn[name] = goJudgeFile{Content: &text}
	}
	body, err := json.Marshal(map[string][]goJudgeCmd{"cmd": {cmd}})
	if err != nil {
		return "", err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(g.url, "/")+"/run", bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return "", err
	}
	var answer []struct {
		Status string
		Files  struct{ Stdout string }
	}
	if err := json.Unmarshal(raw, &answer); err != nil || len(answer) != 1 || answer[0].Status != "Accepted" {
		return "", fmt.Errorf("go-judge answered %.500s", raw)
	}
	return answer[0].Files.Stdout, nil
}

// true runs true once.
func (g goJudge) true(ctx context.Context) (time.Duration, error) {
	began := time.Now()
	_, err := g.run(ctx, "", nil, "/bin/true")
	return time.Since(began), err
}
