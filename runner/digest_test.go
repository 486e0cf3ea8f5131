package runner

import (
	"encoding/json"
	"testing"
)

// Digests that are on record stay comparable: the text that they are made of is this one.
func TestCanonicalFormIsPinned(t *testing.T) {
	t.Parallel()
	in := map[string]any{
		"z": []any{1, 2.5, json.Number("1e3"), json.Number("-0"), uint64(18446744073709551615), nil, true},
		"a": map[string]string{"é": "<&>\u2028\x01\"\\/", "b": "\xff", "B": ""},
		"r": json.RawMessage(`{ "y" : 1.0 , "x" : [ ] }`),
	}
	const want = `{"a":{"B":"","b":"` + "\ufffd" + `","é":"<&>\u2028\u0001\"\\/"},"r":{"x":[],"y":1.0},"z":[1,2.5,1e3,-0,18446744073709551615,null,true]}`
	got, err := canonical(in)
	if err != nil || string(got) != want {
		t.Errorf("canonical = %s (%v)\nwant %s", got, err, want)
	}
}
