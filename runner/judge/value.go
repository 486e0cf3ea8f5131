package judge

import (
	"bytes"
	"encoding/json"
)

// sameValue compares two JSON values. Numbers are compared as numbers (1 and 1.0 are the
// same), within the tolerance of the rule Floats where that is the rule.
func sameValue(got, want []byte, c *Compare) bool {
	a, errA := decodeValue(got)
	b, errB := decodeValue(want)
	if errA != nil || errB != nil {
		return false
	}
	var abs, rel float64
	if c.Rule == Floats {
		abs, rel = c.tolerances()
	}
	return same(a, b, abs, rel)
}

func decodeValue(b []byte) (any, error) {
	in := json.NewDecoder(bytes.NewReader(b))
	in.UseNumber()
	var v any
	err := in.Decode(&v)
	return v, err
}

func same(a, b any, abs, rel float64) bool {
	switch x := a.(type) {
	case json.Number:
		y, ok := b.(json.Number)
		return ok && near([]byte(x), []byte(y), abs, rel)
	case []any:
		y, ok := b.([]any)
		if !ok || len(x) != len(y) {
			return false
		}
		for i := range x {
			if !same(x[i], y[i], abs, rel) {
				return false
			}
		}
		return true
	case map[string]any:
		y, ok := b.(map[string]any)
		if !ok || len(x) != len(y) {
			return false
		}
		for k, v := range x {
			other, ok := y[k]
			if !ok || !same(v, other, abs, rel) {
				return false
			}
		}
		return true
	}
	return a == b
}
