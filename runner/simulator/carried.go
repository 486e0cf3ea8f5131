package simulator

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Bounds of what a program says beside its arrays: what every client's parser takes.
const (
	maxNested = 64
	maxDigits = 1024
)

// carried holds a value without a space against what clients can read: text that is UTF-8,
// numbers that are finite and of few digits, few levels, and arrays that are whole. One
// connection steps many environments, so what breaks its client breaks the others, too.
func carried(raw json.RawMessage, f frames) *valueError {
	if string(raw) == "{}" {
		return nil
	}
	if !utf8.Valid(raw) {
		return wrong("is no UTF-8")
	}
	// Half a surrogate pair is text to Python, which writes such for bytes that are none.
	lax := []jsontext.Options{jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)}
	w := carrying{raw: raw, frames: f, dec: jsontext.NewDecoder(bytes.NewBuffer(raw), lax...)}
	for {
		token, err := w.dec.ReadToken()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return wrong("is no JSON that every client reads: %v", err)
		}
		if bad := w.token(token); bad != nil {
			return bad
		}
	}
}

// carrying is a walk through one value.
type carrying struct {
	raw    []byte
	frames frames
	dec    *jsontext.Decoder
	open   [maxNested + 1]struct {
		from int64
		mark string // the name that makes an object stand for something else
	}
}

func (w *carrying) token(t jsontext.Token) *valueError {
	depth := w.dec.StackDepth()
	switch t.Kind() { //nolint:exhaustive // the others are as they are everywhere
	case '{', '[':
		if depth > maxNested {
			return wrong("has more than %d levels", maxNested)
		}
		w.open[depth].from, w.open[depth].mark = w.dec.InputOffset()-1, ""
	case '"':
		if kind, n := w.dec.StackIndex(depth); kind == '{' && n%2 == 1 {
			if name := t.String(); name == "$array" || name == "$float" && w.open[depth].mark == "" {
				w.open[depth].mark = name
			}
		}
	case '0':
		return carriedNumber(t.String())
	case '}':
		o := &w.open[depth+1]
		switch object := w.raw[o.from:w.dec.InputOffset()]; o.mark {
		case "$array":
			return carriedArray(object, w.frames)
		case "$float":
			return carriedFloat(object)
		}
	}
	return nil
}

func carriedNumber(text string) *valueError {
	if v, err := strconv.ParseFloat(text, 64); err != nil || math.IsInf(v, 0) || len(text) > maxDigits {
		return wrong("holds the number %.64s", text)
	}
	return nil
}

// carriedFloat checks {"$float": "nan"}: what Python's float takes.
func carriedFloat(object []byte) *valueError {
	var v struct {
		Float json.RawMessage `json:"$float"`
	}
	if err := jsonv2.Unmarshal(object, &v); err != nil {
		return wrong("holds a $float that is none: %v", err)
	}
	var text string
	if json.Unmarshal(v.Float, &text) != nil {
		text = string(v.Float)
	}
	if _, err := strconv.ParseFloat(text, 64); (err != nil && !errors.Is(err, strconv.ErrRange)) || strings.ContainsAny(text, "xX_") || len(text) > maxDigits {
		return wrong("holds the $float %.64q", text)
	}
	return nil
}

// carriedArray checks an array that no space describes: NumPy has more types than spaces do.
func carriedArray(object []byte, f frames) *valueError {
	var a array
	if err := jsonv2.Unmarshal(object, &a); err != nil {
		return wrong("holds no array: %v", err)
	}
	item, ok := carriedItem(a.Type)
	if !ok || a.Shape == nil || len(a.Shape) > maxDims {
		return wrong("holds an array of type %.16q and %d dimensions", a.Type, len(a.Shape))
	}
	data, bad := a.data(f)
	if bad != nil {
		return bad
	}
	size, room := item, item
	for _, n := range a.Shape {
		if n < 0 || room > math.MaxInt32*8/max(n, 1) {
			return wrong("holds an array whose shape is out of bounds")
		}
		size, room = size*n, room*max(n, 1)
	}
	if int64(len(data)) != size {
		return wrong("holds an array of %d bytes, not %d", len(data), size)
	}
	if strings.HasPrefix(a.Type, "<U") {
		for ; len(data) >= 4; data = data[4:] {
			if binary.LittleEndian.Uint32(data) > unicode.MaxRune {
				return wrong("holds an array of text that is none")
			}
		}
	}
	return nil
}

// timeUnits are those of NumPy's times.
var timeUnits = []string{"Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as"}

// carriedItem is how many bytes an element of a type has, as NumPy names it.
func carriedItem(dtype string) (int64, bool) {
	if n, ok := itemSizes[dtype]; ok {
		return n, true
	}
	switch dtype {
	case "<c8":
		return 8, true
	case "<c16", "<f16":
		return 16, true
	}
	if unit, ok := strings.CutSuffix(dtype, "]"); ok {
		head, unit, _ := strings.Cut(unit, "[")
		return 8, slices.Contains(timeUnits, unit) && (head == "<M8" || head == "<m8")
	}
	for prefix, size := range map[string]int64{"<U": 4, "|S": 1, "|V": 1} {
		if text, ok := strings.CutPrefix(dtype, prefix); ok && text != "" && text[0] >= '1' && text[0] <= '9' {
			n, err := strconv.ParseInt(text, 10, 32)
			return n * size, err == nil
		}
	}
	return 0, false
}

// carriedInfo holds an info against what clients can read: an object, or none.
func carriedInfo(raw json.RawMessage, f frames) *valueError {
	if len(raw) == 0 || string(raw) == "null" {
		return nil
	}
	if bad := carried(raw, f); bad != nil {
		return bad
	}
	if string(raw) == "{}" {
		return nil
	}
	var parts map[string]json.RawMessage
	if json.Unmarshal(raw, &parts) != nil {
		return wrong("is no object")
	}
	for _, mark := range []string{"$array", "$float", "$repr"} {
		if _, there := parts[mark]; there {
			return wrong("is no object, but stands for a %s", mark[1:])
		}
	}
	return nil
}

// observed holds an observation against the space and against what clients can read.
func (s *space) observed(raw json.RawMessage, f frames, allowNaN bool) *valueError {
	if s.kind == "array" {
		var room [maxUsual + 2]byte
		if data, ok := s.usual(raw, &room); ok {
			return finiteness(s.dtype, data, allowNaN)
		}
	}
	if len(raw) > 0 {
		if bad := carried(raw, f); bad != nil {
			return bad
		}
	}
	return s.check(raw, f, true, allowNaN)
}
