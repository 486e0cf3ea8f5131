package daemon

import (
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"testing"
	"unicode/utf8"

	"github.com/paddock-run/paddock/api"
)

// FuzzBodies feeds every type that a request may hold, by the table of routes: decoding ends
// in a value or in a typed error that is itself valid JSON, and what was decoded can be
// handed on.
func FuzzBodies(f *testing.F) {
	for _, seed := range []string{
		`{}`, `null`, `[]`, `{"world":"w","limits":{"memory":"2GiB","disk":1e9},"env_seed":4294967295}`,
		`{"tool":"exec","argv":["sh","-c","true"],"stdin":"aGk=","pty":{"rows":24,"cols":80}}`,
		`{"files":{"a":{"bytes":"aGk=","mode":420}},"command":["x"],"reward_range":[0,1]}`,
		`{"answer":{"a":[1,2,{"b":null}]},"payload":"aGk="}`, `{"a":1,"a":2}`, "{\"world\":\"\xff\"}", `{"limits":{"memory":-1}}`,
		`{"id":"b","episodes":[{"id":"e","world":"w","agent":{"calls":[{"tool":"exec"}],"command":{"tool":"exec"}}}]}`,
		`{"world":"w","language":"python","code":"x","cases":[{"name":"a","call":{"function":"f","args":[1]}}],"compare":{"rule":"float","abs":1e-9}}`,
		`{"debian":{"suite":"bookworm","packages":["a"]},"config":{"tools":[{"name":"t","command":["c"],"schema":{}}],"setup":["s"]}}`,
		`{"name":"shop","world":"w","port":8000,"health":{"path":"/healthz"},"scale":{"min":1,"max":3}}`,
		`{"policy":"networked-allowlist","network":{"allow":["*.a.b:443","10.0.0.0/8:*"]},"endpoints":{"m":{"target":"127.0.0.1:1","port":5}}}`,
	} {
		f.Add([]byte(seed))
	}
	var bodies []reflect.Type
	for _, r := range routes() {
		if r.Request != nil && r.Request.Kind() == reflect.Struct && !slices.Contains(bodies, r.Request) {
			bodies = append(bodies, r.Request)
		}
	}
	if len(bodies) < 12 {
		f.Fatalf("only %d types of bodies", len(bodies))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, kind := range bodies {
			into := reflect.New(kind).Interface()
			err := decode(body, into)
			if err == nil {
				if _, err := json.Marshal(into); err != nil {
					t.Errorf("%T does not encode again: %v", into, err)
				}
				handOn(into)
				continue
			}
			p, ok := errors.AsType[*api.Error](err)
			if !ok || p.Kind == "" || p.Detail == "" {
				t.Fatalf("%T: %v is no typed error", into, err)
			}
			if out, err := json.Marshal(p); err != nil || !utf8.Valid(out) {
				t.Errorf("problem %q does not encode: %v", p.Detail, err)
			}
		}
	})
}

// handOn turns a body into the runner's words, as its route does.
func handOn(body any) {
	switch in := body.(type) {
	case *api.EpisodeSpec:
		_ = episodeSpec(*in)
	case *api.CallSpec:
		_ = callSpec(*in, 0)
	case *api.GraderSpec:
		_ = graderSpec(*in)
	case *api.BatchSpec:
		_ = batchSpec(*in, 0)
	case *api.BatchLines:
		_ = mapAll(in.Episodes, batchEpisode)
	case *api.Recipe:
		_ = recipe(*in)
	case *api.SimulatorSpec:
		_ = simulatorSpec(*in)
	case *api.AppSpec:
		_ = appSpec(*in)
	case *api.JudgeSpec:
		_, _ = new(Server).judgeSpec(in)
	}
}

// FuzzChunks cuts output anywhere: what arrives is what was written, and text is only
// ever UTF-8.
func FuzzChunks(f *testing.F) {
	f.Add([]byte("caf\xc3\xa9 \xff\xfe"), uint8(4))
	f.Add([]byte("\xf0\x9f\x98"), uint8(1))
	f.Fuzz(func(t *testing.T, output []byte, step uint8) {
		var got collector
		c := &chunks{to: &got, name: "stdout"}
		for rest := output; len(rest) > 0; {
			n := min(len(rest), int(step)+1)
			if _, err := c.Write(rest[:n]); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		c.close()
		if string(got.all) != string(output) {
			t.Errorf("got %q, want %q", got.all, output)
		}
		if utf8.Valid(output) && got.binary {
			t.Errorf("%q went as base64", output)
		}
	})
}

type collector struct {
	all    []byte
	binary bool
}

func (c *collector) send(v any) error {
	e, ok := v.(api.CallEvent)
	if !ok {
		return errors.New("not an event")
	}
	c.binary = c.binary || e.B64 != nil
	c.all = append(c.all, api.Bytes(e.Text, e.B64)...)
	return nil
}
