package runner

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

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

// TestArgumentsCostTheDaemonLittle: the model writes the arguments, and the daemon's CPU is
// nobody's limit.
func TestArgumentsCostTheDaemonLittle(t *testing.T) {
	const tree = `"anyOf":[{"properties":{"a":{"$ref":"#"}},"required":["x"]},{"properties":{"a":{"$ref":"#"}},"required":["y"]}]`
	deep := strings.Repeat(`{"a":`, 60) + `{}` + strings.Repeat(`}`, 60)
	for name, c := range map[string]struct{ schema, args, detail string }{
		"large exponents":     {`{"properties":{"n":{"items":{"type":"integer"}}}}`, `{"n":[` + strings.Repeat("1e999999,", 1000) + `1]}`, "the number 1e999999"},
		"small exponents":     {`{"properties":{"n":{"items":{"minimum":1}}}}`, `{"n":[` + strings.Repeat("1E-999999,", 1000) + `1]}`, "the number 1E-999999"},
		"endless exponent":    {`{"properties":{"n":{"type":"integer"}}}`, `{"n":1e99999999999999999999999}`, "the number 1e9999"},
		"many digits":         {`{"properties":{"n":{"multipleOf":3}}}`, `{"n":` + strings.Repeat("7", 1<<20) + `}`, "a number of 1048576 digits"},
		"2 to the 60th":       {`{` + tree + `}`, deep, "takes too long"},
		"the same in draft 7": {`{"$schema":"http://json-schema.org/draft-07/schema#",` + tree + `}`, deep, "takes too long"},
	} {
		t.Run(name, func(t *testing.T) {
			began := time.Now()
			err := checkArguments(&overlay.Tool{Name: "t", Parameters: json.RawMessage(c.schema)}, json.RawMessage(c.args))
			if err == nil || err.Kind != "invalid_arguments" || !strings.Contains(err.Detail, c.detail) {
				t.Errorf("%+v", err)
			}
			if took := time.Since(began); took > 30*time.Second { // on any machine; it was hours
				t.Errorf("it took %v", took)
			}
		})
	}
	wide := `{"n":[` + strings.Repeat(`{"x":1.5e300,"y":-12},`, 40_000) + `{}]}`
	if err := checkArguments(&overlay.Tool{Name: "t", Parameters: json.RawMessage(`{"properties":{"n":{"items":{"properties":{"x":{"type":"number"},"y":{"type":"integer"}}}}}}`)}, json.RawMessage(wide)); err != nil {
		t.Errorf("many arguments: %+v", err)
	}
}
