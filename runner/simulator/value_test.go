package simulator

import (
	"encoding/json"
	"strings"
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

// What clients cannot read is a fault of the environment that said it: the client steps
// others over the same connection.
func TestWhatClientsCannotReadIsAFault(t *testing.T) {
	t.Parallel()
	f := frames{lengths: []int64{3}, raw: make([]byte, 3)}
	deep := func(n int) string { return strings.Repeat(`{"a":`, n) + "1" + strings.Repeat("}", n) }
	for _, c := range []struct {
		info string
		ok   bool
	}{
		{``, true},
		{`null`, true},
		{`{}`, true},
		{`{"a":[1,-2.5e3,"x",null,true,{"b":{}}],"a":2}`, true},
		{`{"a":"\ud800 \u0000"}`, true},
		{`{"n":` + strings.Repeat("9", 300) + `}`, true},
		{deep(maxNested), true},
		{`{"a":{"$float":"nan"},"b":{"$float":"-inf"},"c":{"$repr":"x"}}`, true},
		{`{"a":{"$array":"<f8","shape":[],"b64":"AAAAAAAA8H8="}}`, true},
		{`{"a":{"$array":"|u1","shape":[3],"frame":0}}`, true},
		{`{"a":{"$array":"<U1","shape":[1],"b64":"QQAAAA=="}}`, true},
		{`{"a":{"$array":"<M8[ns]","shape":[1],"b64":"AAAAAAAAAAA="}}`, true},
		{`{"a":{"$array":"<c16","shape":[0,5],"b64":""}}`, true},
		{"{\"a\":\"\xff\"}", false},
		{"{\"\xfe\":1}", false},
		{deep(maxNested + 1), false},
		{`{"a":` + strings.Repeat("[", 9000) + strings.Repeat("]", 9000) + `}`, false},
		{`{"a":1e400}`, false},
		{`{"a":-1e999}`, false},
		{`{"a":` + strings.Repeat("9", 5000) + `}`, false},
		{`{"a":0.` + strings.Repeat("1", 5000) + `}`, false},
		{`[1]`, false},
		{`"x"`, false},
		{`5`, false},
		{`{"$float":"nan"}`, false},
		{`{"$array":"|u1","shape":[3],"frame":0}`, false},
		{`{"\u0024repr":1}`, false},
		{`{"a":{"$float":"x"}}`, false},
		{`{"a":{"$float":"0x1p3"}}`, false},
		{`{"a":{"$float":[]}}`, false},
		{`{"a":{"$array":5}}`, false},
		{`{"a":{"$array":"|u1"}}`, false},
		{`{"a":{"$array":"|u1","shape":null,"b64":"AA=="}}`, false},
		{`{"a":{"$array":"|u1","shape":[1],"B64":"AA=="}}`, false},
		{`{"a":{"x":1,"\u0024array":"|u1","shape":[1],"frame":5}}`, false},
		{`{"a":{"$array":"|u1","shape":[-1],"b64":"AA=="}}`, false},
		{`{"a":{"$array":"|u1","shape":[0,9223372036854775807],"b64":""}}`, false},
		{`{"a":{"$array":"|u1","shape":[9223372036854775807,9223372036854775807],"b64":"AA=="}}`, false},
		{`{"a":{"$array":"<f8","shape":[1],"b64":"AA=="}}`, false},
		{`{"a":{"$array":"nope","shape":[1],"b64":"AA=="}}`, false},
		{`{"a":{"$array":"<U0","shape":[1],"b64":""}}`, false},
		{`{"a":{"$array":"<U1","shape":[],"b64":"AAAA/w=="}}`, false},
		{`{"a":{"$array":"<M8[]","shape":[1],"b64":"AAAAAAAAAAA="}}`, false},
	} {
		if err := carriedInfo(json.RawMessage(c.info), f); (err == nil) != c.ok {
			t.Errorf("info %.80s: %v", c.info, err)
		}
	}
	for _, c := range []struct {
		space, value string
		ok           bool
	}{
		{`{"space":{"type":"Discrete"}}`, `-3`, true},
		{`{"space":{"type":"Discrete"}}`, `{"$array":"<i8","shape":[],"b64":"AAAAAAAAAAA="}`, true},
		{`{"space":{"type":"Discrete"}}`, `1e400`, false},
		{`{"space":{"type":"Discrete"}}`, `1.5`, false},
		{`{"space":{"type":"Discrete"}}`, `"x"`, false},
		{`{"space":{"type":"Discrete"}}`, `null`, false},
		{`{"space":{"type":"Discrete"}}`, `99999999999999999999`, false},
		{`{"space":{"type":"Discrete"}}`, `{"$array":"<i8","shape":[1],"b64":"AAAAAAAAAAA="}`, false},
		{`{"space":{"type":"Sequence"},"items":{"space":{"type":"Discrete"}}}`, `[1,2]`, true},
		{`{"space":{"type":"Sequence"},"items":{"space":{"type":"Discrete"}}}`, `[1,"2"]`, false},
		{`{"space":{"type":"Sequence"},"items":{}}`, `5`, false},
		{`{}`, `[[["x"]]]`, true},
		{`{}`, `[1e999]`, false},
		{`{}`, "\"\xff\"", false},
		{`{}`, ``, false},
		{`{"space":{"type":"Box","dtype":"<f4","shape":[]}}`, `{"$array":"<f4","shape":null,"b64":"AACAPw=="}`, false},
		{`{"space":{"type":"Box","dtype":"<f4","shape":[1]}}`, `{"$array":"<f4","shape":[1],"B64":"AACAPw=="}`, false},
		{`{"space":{"type":"Box","dtype":"<f4","shape":[1]}}`, `{"$array":"<f4","shape":[1],"b64":"AACAPw==","x":` + deep(100) + `}`, false},
		{`{"properties":{},"space":{"type":"Dict"}}`, "{\"x\":\"\xff\"}", false},
	} {
		s, err := readSpace(json.RawMessage(c.space))
		if err != nil {
			t.Fatal(err)
		}
		if err := s.observed(json.RawMessage(c.value), f, false); (err == nil) != c.ok {
			t.Errorf("%s: %.80s: %v", c.space, c.value, err)
		}
	}
}
