package runner

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/paddock-run/paddock/overlay"
)

func TestArgumentsAreHeldAgainstTheSchema(t *testing.T) {
	t.Parallel()
	const schema = `{"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}, "s": {"$ref": "#/$defs/s"}},
		"required": ["n"], "additionalProperties": false, "$defs": {"s": {"type": "string"}}}`
	for name, c := range map[string]struct{ schema, args, kind, detail string }{
		"fits":            {schema, `{"n": 1, "s": "x"}`, "", ""},
		"no schema":       {"", `{"anything": 1}`, "", ""},
		"missing":         {schema, "", "invalid_arguments", "n"},
		"wrong type":      {schema, `{"n": "1"}`, "invalid_arguments", "/n"},
		"out of range":    {schema, `{"n": 0}`, "invalid_arguments", "/n"},
		"by reference":    {schema, `{"n": 1, "s": 2}`, "invalid_arguments", "/s"},
		"unknown":         {schema, `{"n": 1, "x": 2}`, "invalid_arguments", "x"},
		"large number":    {schema, `{"n": 12345678901234567890123}`, "", ""},
		"no schema at it": {`{"type": 7}`, `{}`, "invalid_tool", "schema"},
		"no JSON at it":   {`{`, `{}`, "invalid_tool", "JSON"},
		"reads files":     {`{"$ref": "file:///etc/passwd"}`, `{}`, "invalid_tool", "itself"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := checkArguments(&overlay.Tool{Name: "t", Parameters: json.RawMessage(c.schema)}, json.RawMessage(c.args))
			if c.kind == "" {
				if err != nil {
					t.Errorf("refused: %+v", err)
				}
				return
			}
			if err == nil || err.Kind != c.kind || !strings.Contains(err.Detail, c.detail) {
				t.Errorf("error = %+v, want %s about %q", err, c.kind, c.detail)
			}
		})
	}
}
