package simulator

import (
	"encoding/json"
	"testing"
)

func TestValuesAreHeldAgainstTheirSpace(t *testing.T) {
	t.Parallel()
	box := `{"space":{"type":"Box","dtype":"<f4","shape":[2]}}`
	dict := `{"properties":{"a":` + box + `,"b":{"type":"integer"}},"space":{"type":"Dict"}}`
	tuple := `{"prefixItems":[` + box + `,{}],"space":{"type":"Tuple"}}`
	good := `{"$array":"<f4","shape":[2],"b64":"AACAPwAAAEA="}`
	raw := frames{lengths: []int64{3, 8}, raw: make([]byte, 11)}
	for _, c := range []struct {
		name, space, value string
		ok, nan            bool
	}{
		{"array", box, good, true, false},
		{"frame", box, `{"$array":"<f4","shape":[2],"frame":1}`, true, false},
		{"other frame", box, `{"$array":"<f4","shape":[2],"frame":0}`, false, false},
		{"no frame", box, `{"$array":"<f4","shape":[2],"frame":2}`, false, false},
		{"negative frame", box, `{"$array":"<f4","shape":[2],"frame":-1}`, false, false},
		{"both", box, `{"$array":"<f4","shape":[2],"frame":1,"b64":""}`, false, false},
		{"neither", box, `{"$array":"<f4","shape":[2]}`, false, false},
		{"short", box, `{"$array":"<f4","shape":[2],"b64":"AACAPw=="}`, false, false},
		{"no base64", box, `{"$array":"<f4","shape":[2],"b64":"!"}`, false, false},
		{"type", box, `{"$array":"<f8","shape":[1],"b64":"AACAPwAAAEA="}`, false, false},
		{"objects", box, `{"$array":"|O","shape":[2],"b64":""}`, false, false},
		{"huge", box, `{"$array":"<f4","shape":[4611686018427387904,4],"b64":""}`, false, false},
		{"list", box, `[1,2]`, false, false},
		{"nan", box, `{"$array":"<f4","shape":[2],"b64":"AADAfwAAAEA="}`, false, true},
		{"infinity", box, `{"$array":"<f4","shape":[2],"b64":"AACAPwAAgP8="}`, false, true},
		{"missing", box, ``, false, false},
		{"dict", dict, `{"a":` + good + `,"b":3}`, true, false},
		{"part", dict, `{"a":` + good + `}`, false, false},
		{"no dict", dict, `[]`, false, false},
		{"null", dict, `null`, false, false},
		{"nan in dict", dict, `{"a":{"$array":"<f4","shape":[2],"b64":"AADAfwAAAEA="},"b":3}`, false, true},
		{"tuple", tuple, `[` + good + `,"x"]`, true, false},
		{"short tuple", tuple, `[` + good + `]`, false, false},
		{"anything", `{}`, `"x"`, true, false},
	} {
		s, err := readSpace(json.RawMessage(c.space))
		if err != nil {
			t.Fatal(err)
		}
		verr := s.check(json.RawMessage(c.value), raw, true, false)
		if (verr == nil) != c.ok || (verr != nil && verr.nan != c.nan) {
			t.Errorf("%s: %+v", c.name, verr)
		}
		if c.nan {
			if verr := s.check(json.RawMessage(c.value), raw, true, true); verr != nil {
				t.Errorf("%s, allowed: %v", c.name, verr)
			}
		}
	}
	s, _ := readSpace(json.RawMessage(box))
	if err := s.check(json.RawMessage(`[1,2]`), frames{}, false, false); err != nil {
		t.Errorf("a list as an action: %v", err)
	}
}

func TestFramesMustCoverTheirBytes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		lengths []int64
		whole   bool
	}{{nil, false}, {[]int64{4}, true}, {[]int64{1, 3}, true}, {[]int64{0, 4, 0}, true}, {[]int64{5}, false}, {[]int64{-1, 5}, false}, {[]int64{1 << 62, 1 << 62}, false}} {
		if f := (frames{c.lengths, make([]byte, 4)}); f.whole() != c.whole {
			t.Errorf("%v of 4 bytes: whole %v", c.lengths, f.whole())
		}
	}
}

func FuzzValues(f *testing.F) {
	f.Add(`{"space":{"type":"Box","dtype":"<f4","shape":[2]}}`, `{"$array":"<f4","shape":[2],"frame":0}`, []byte("12345678"))
	f.Add(`{"space":{"type":"Box","dtype":"<f4","shape":[2]}}`, `{"$array":"<f4","shape":[2],"b64":"AACAPwAAAEA="}`, []byte(nil))
	f.Add(`{"space":{"type":"Box","dtype":"<f4","shape":[2]}}`, `{"$array":"<f4","shape":[2],"b64":"AADAfwAAAEA="}`, []byte(nil))
	f.Add(`{"prefixItems":[{}],"space":{"type":"Tuple"}}`, `[1]`, []byte(nil))
	f.Fuzz(func(t *testing.T, schema, value string, raw []byte) {
		s, err := readSpace(json.RawMessage(schema))
		if err != nil {
			return
		}
		if f := (frames{[]int64{1, int64(len(raw)) - 1}, raw}); f.whole() {
			_ = s.check(json.RawMessage(value), f, true, false)
		}
		_ = s.check(json.RawMessage(value), frames{}, false, false)
		if s.kind != "array" || !json.Valid([]byte(value)) {
			return
		}
		short, parsed := s.checkArray(json.RawMessage(value), frames{}, true, false), s.checkParsed(json.RawMessage(value), frames{}, true, false)
		if (short == nil) != (parsed == nil) || (short != nil && *short != *parsed) {
			t.Errorf("%s: %v, but parsed %v", value, short, parsed)
		}
	})
}
