package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"

	"github.com/paddock-run/paddock/api"
)

// task is what an episode's input tells the agent.
type task struct {
	// Documents is the directory to read, Published the sha256 of the secret to find.
	Documents string `json:"documents"`
	Published string `json:"published"`
	Prior     Prior  `json:"prior"`
	MaxTurns  int    `json:"max_turns"`
}

// turn is one line of the agent's own log, the payload of finish.
type turn struct {
	Turn     int    `json:"turn"`
	Document string `json:"document"`
	SHA256   string `json:"sha256"`
	Found    bool   `json:"found"`
}

// agent plays one episode through a socket that reaches that episode only.
type agent struct {
	client *api.Client
	key    api.Key
}

// PlayEpisode is the demo's agent: it stands where a language model's rollout would. It
// reads documents one tool call at a time, in an order drawn from the episode's seed and
// the task's prior, until it finds the secret or has used its turns; notes what it reads
// in scratch.tmp, which it sometimes forgets to remove; and finishes with its answer.
func PlayEpisode(ctx context.Context, client *api.Client, key api.Key) error {
	a := agent{client: client, key: key}
	ep, err := client.Episode(ctx, key)
	if err != nil {
		return err
	}
	var t task
	if err := json.Unmarshal(ep.Input, &t); err != nil {
		return fmt.Errorf("read the episode's input: %w", err)
	}
	names, err := a.list(ctx, t.Documents)
	if err != nil {
		return err
	}
	var log bytes.Buffer
	answer := ""
	for n, name := range Order(ep.SampleSeed, t.Prior, names)[:min(t.MaxTurns, len(names))] {
		text, err := a.read(ctx, path.Join(t.Documents, name))
		if err != nil {
			return err
		}
		secret, found := Secret(text, t.Published)
		line, err := json.Marshal(turn{Turn: n + 1, Document: name, SHA256: hash(text), Found: found})
		if err != nil {
			return err
		}
		log.Write(append(line, '\n'))
		if err := a.shell(ctx, "echo 'read "+name+"' >>scratch.tmp"); err != nil {
			return err
		}
		if found {
			answer = secret
			break
		}
	}
	if err := a.write(ctx, "/workdir/answer.txt", []byte(answer)); err != nil {
		return err
	}
	if !untidy(ep.SampleSeed) {
		if err := a.shell(ctx, "rm scratch.tmp"); err != nil {
			return err
		}
	}
	quoted, err := json.Marshal(answer)
	if err != nil {
		return err
	}
	_, err = client.Finish(ctx, key, api.FinishSpec{Answer: quoted, Payload: log.Bytes()})
	return err
}

// call makes a tool call that must do what it was asked to.
func (a agent) call(ctx context.Context, spec api.CallSpec) (api.CallResult, error) {
	result, err := a.client.Call(ctx, a.key, spec)
	if err != nil {
		return result, err
	}
	if result.Fault != nil {
		return result, fmt.Errorf("%s: %s %s", spec.Tool, result.Fault.Kind, result.Fault.Detail)
	}
	return result, nil
}

func (a agent) list(ctx context.Context, dir string) ([]string, error) {
	result, err := a.call(ctx, api.CallSpec{Tool: "list_dir", Path: dir})
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range result.Entries {
		names = append(names, e.Name)
	}
	if len(names) == 0 {
		return nil, errors.New("there are no documents")
	}
	return names, nil
}

func (a agent) read(ctx context.Context, path string) ([]byte, error) {
	result, err := a.call(ctx, api.CallSpec{Tool: "read_file", Path: path})
	return result.ContentRaw(), err
}

func (a agent) write(ctx context.Context, path string, content []byte) error {
	_, err := a.call(ctx, api.CallSpec{Tool: "write_file", Path: path, Content: content})
	return err
}

func (a agent) shell(ctx context.Context, command string) error {
	result, err := a.call(ctx, api.CallSpec{Tool: "exec", Shell: command})
	if err == nil && (result.ExitCode == nil || *result.ExitCode != 0) {
		err = fmt.Errorf("%s: exit code %v", command, result.ExitCode)
	}
	return err
}
