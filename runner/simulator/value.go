package simulator

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	jsonv2 "github.com/go-json-experiment/json"
)

// A value of the protocol is JSON in which an array is an object:
//
//	{"$array": "<f8", "shape": [17], "b64": "..."}   its bytes in base64, or
//	{"$array": "|u1", "shape": [210, 160, 3], "frame": 0}   the message's raw frame 0
type array struct {
	Type  string  `json:"$array"`
	Shape []int64 `json:"shape"`
	B64   *string `json:"b64"`
	Frame *int    `json:"frame"`
}

// Bounds of values.
const (
	maxDims  = 32
	maxDepth = 16
)

// space is what is checked of a value: a tree whose leaves are arrays or anything.
type space struct {
	kind  string // "array", "object", "list", "integer", "sequence" or "any"
	dtype string
	shape []int64
	size  int64  // bytes of an array
	head  string // of an array's usual text, up to its base64
	parts map[string]*space
	items []*space // of a sequence the one of all items
}

// readSpace reads a space: a JSON schema, whose member "space" says what a schema cannot.
func readSpace(raw json.RawMessage) (*space, error) {
	if len(raw) == 0 {
		return nil, errors.New("is missing")
	}
	return readSpaceAt(raw, 0)
}

func readSpaceAt(raw json.RawMessage, depth int) (*space, error) {
	if depth > maxDepth {
		return nil, errors.New("is too deep")
	}
	var s struct {
		Properties map[string]json.RawMessage `json:"properties"`
		Prefix     []json.RawMessage          `json:"prefixItems"`
		Items      json.RawMessage            `json:"items"`
		Space      struct {
			Type  string  `json:"type"`
			Dtype string  `json:"dtype"`
			Shape []int64 `json:"shape"`
			Stack bool    `json:"stack"`
		} `json:"space"`
	}
	if err := json.Unmarshal(raw, &s); err != nil {
		return nil, fmt.Errorf("is no schema: %w", err)
	}
	switch s.Space.Type {
	case "Box", "MultiDiscrete", "MultiBinary":
		size, err := sizeOf(s.Space.Dtype, s.Space.Shape)
		if err != nil {
			return nil, err
		}
		return &space{kind: "array", dtype: s.Space.Dtype, shape: s.Space.Shape, size: size, head: usualHead(s.Space.Dtype, s.Space.Shape)}, nil
	case "Dict":
		out := &space{kind: "object", parts: map[string]*space{}}
		for name, part := range s.Properties {
			sub, err := readSpaceAt(part, depth+1)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			out.parts[name] = sub
		}
		return out, nil
	case "Tuple":
		out := &space{kind: "list"}
		for i, part := range s.Prefix {
			sub, err := readSpaceAt(part, depth+1)
			if err != nil {
				return nil, fmt.Errorf("%d: %w", i, err)
			}
			out.items = append(out.items, sub)
		}
		return out, nil
	case "Discrete":
		return &space{kind: "integer"}, nil
	case "Sequence":
		if s.Space.Stack || len(s.Items) == 0 {
			break
		}
		item, err := readSpaceAt(s.Items, depth+1)
		if err != nil {
			return nil, fmt.Errorf("items: %w", err)
		}
		return &space{kind: "sequence", items: []*space{item}}, nil
	}
	return &space{kind: "any"}, nil
}

// itemSizes are the types of arrays: little-endian numbers and bytes, as NumPy writes them.
var itemSizes = map[string]int64{
	"|b1": 1, "|i1": 1, "|u1": 1, "<i2": 2, "<u2": 2, "<i4": 4, "<u4": 4, "<i8": 8, "<u8": 8, "<f2": 2, "<f4": 4, "<f8": 8,
}

// sizeOf is how many bytes an array has.
func sizeOf(dtype string, shape []int64) (int64, error) {
	n, ok := itemSizes[dtype]
	if !ok {
		return 0, fmt.Errorf("%.16q is no type of arrays", dtype)
	}
	if len(shape) > maxDims {
		return 0, fmt.Errorf("has %d dimensions, at most %d are allowed", len(shape), maxDims)
	}
	for _, d := range shape {
		if d < 0 || (d > 0 && n > math.MaxInt32*8/d) {
			return 0, fmt.Errorf("shape %v is out of bounds", shape)
		}
		n *= d
	}
	return n, nil
}

// frames are the raw parts of a message.
type frames struct {
	lengths []int64
	raw     []byte
}

// whole says whether the lengths cover the raw bytes, no more and no less.
func (f frames) whole() bool {
	var sum int64
	for _, n := range f.lengths {
		if n < 0 || n > int64(len(f.raw)) {
			return false
		}
		sum += n
	}
	return sum == int64(len(f.raw))
}

// at is a part of frames that are whole.
func (f frames) at(i int) ([]byte, bool) {
	if i < 0 || i >= len(f.lengths) {
		return nil, false
	}
	var from int64
	for _, n := range f.lengths[:i] {
		from += n
	}
	return f.raw[from : from+f.lengths[i]], true
}

// valueError says what is wrong with a value; nan tells numbers that are not finite from
// everything else.
type valueError struct {
	text string
	nan  bool
}

func (e *valueError) Error() string { return e.text }

func wrong(format string, args ...any) *valueError {
	return &valueError{text: fmt.Sprintf(format, args...)}
}

// check holds a value against the space. strict refuses an array in another form than
// the array's object: an action may be a plain list, which the program turns into one.
func (s *space) check(raw json.RawMessage, f frames, strict, allowNaN bool) *valueError {
	if len(raw) == 0 {
		return wrong("is missing")
	}
	switch s.kind {
	case "object":
		var parts map[string]json.RawMessage
		if json.Unmarshal(raw, &parts) != nil || parts == nil {
			return wrong("is no object")
		}
		for name, sub := range s.parts {
			if err := sub.check(parts[name], f, strict, allowNaN); err != nil {
				err.text = strconv.Quote(name) + " " + err.text
				return err
			}
		}
	case "list":
		var items []json.RawMessage
		if json.Unmarshal(raw, &items) != nil || len(items) != len(s.items) {
			return wrong("is no list of %d parts", len(s.items))
		}
		for i, sub := range s.items {
			if err := sub.check(items[i], f, strict, allowNaN); err != nil {
				err.text = strconv.Itoa(i) + " " + err.text
				return err
			}
		}
	case "integer":
		if strict {
			return checkInteger(raw, f)
		}
	case "sequence":
		if strict {
			return s.checkSequence(raw, f, allowNaN)
		}
	case "array":
		if raw[0] != '{' {
			if strict {
				return wrong("is no array")
			}
			return nil
		}
		return s.checkArray(raw, f, strict, allowNaN)
	}
	return nil
}

// checkInteger takes a number, or an array of no dimensions, as NumPy's integers travel.
func checkInteger(raw json.RawMessage, f frames) *valueError {
	if raw[0] != '{' {
		if _, err := strconv.ParseInt(string(raw), 10, 64); err != nil {
			return wrong("is no integer")
		}
		return nil
	}
	var a array
	if err := jsonv2.Unmarshal(raw, &a); err != nil {
		return wrong("is no integer: %v", err)
	}
	n, ok := itemSizes[a.Type]
	data, bad := a.data(f)
	if bad != nil || !ok || a.Type[1] == 'f' || a.Shape == nil || len(a.Shape) > 0 || int64(len(data)) != n {
		return wrong("is no integer")
	}
	return nil
}

func (s *space) checkSequence(raw json.RawMessage, f frames, allowNaN bool) *valueError {
	var items []json.RawMessage
	if json.Unmarshal(raw, &items) != nil || items == nil {
		return wrong("is no list")
	}
	for i, item := range items {
		if err := s.items[0].check(item, f, true, allowNaN); err != nil {
			err.text = strconv.Itoa(i) + " " + err.text
			return err
		}
	}
	return nil
}

// usualHead is how the shim and the Python client begin an array whose bytes are in base64.
func usualHead(dtype string, shape []int64) string {
	b := append([]byte(`{"$array":"`), dtype...)
	b = append(b, `","shape":[`...)
	for i, n := range shape {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, n, 10)
	}
	return string(append(b, `],"b64":"`...))
}

// maxUsual bounds the arrays that are looked at without being parsed, in bytes.
const maxUsual = 1024

// usual looks at an array in its usual text: type and shape are the space's when the head
// is, and between quotes base64 stands for itself. What is found otherwise, or says nothing
// sensible, is left to the parser, which knows what is wrong with it.
func (s *space) usual(raw json.RawMessage, room *[maxUsual + 2]byte) (data []byte, ok bool) {
	if s.size > maxUsual || len(raw) < len(s.head)+2 || string(raw[:len(s.head)]) != s.head || string(raw[len(raw)-2:]) != `"}` {
		return nil, false
	}
	text := raw[len(s.head) : len(raw)-2]
	if int64(base64.StdEncoding.EncodedLen(int(s.size))) != int64(len(text)) {
		return nil, false
	}
	n, err := base64.StdEncoding.Decode(room[:], text)
	if err != nil || int64(n) != s.size {
		return nil, false
	}
	return room[:n], true
}

func (s *space) checkArray(raw json.RawMessage, f frames, strict, allowNaN bool) *valueError {
	var room [maxUsual + 2]byte // with what the decoder takes the padding for
	if data, ok := s.usual(raw, &room); ok {
		return finiteness(s.dtype, data, allowNaN)
	}
	return s.checkParsed(raw, f, strict, allowNaN)
}

func (s *space) checkParsed(raw json.RawMessage, f frames, strict, allowNaN bool) *valueError {
	var a array
	if err := jsonv2.Unmarshal(raw, &a); err != nil { // names as they are: clients read them so
		return wrong("is no array: %v", err)
	}
	if a.Shape == nil {
		return wrong("has no shape")
	}
	size, err := sizeOf(a.Type, a.Shape)
	if err != nil {
		return wrong("%v", err)
	}
	if !slices.Equal(a.Shape, s.shape) || (strict && a.Type != s.dtype) {
		return wrong("is an array %s %v, not %s %v", a.Type, a.Shape, s.dtype, s.shape)
	}
	data, bad := a.data(f)
	if bad != nil {
		return bad
	}
	if int64(len(data)) != size {
		return wrong("has %d bytes, not %d", len(data), size)
	}
	return finiteness(a.Type, data, allowNaN)
}

// data is what an array's bytes are.
func (a *array) data(f frames) ([]byte, *valueError) {
	switch {
	case (a.B64 == nil) == (a.Frame == nil):
		return nil, wrong("has not exactly one of b64 and frame")
	case a.Frame != nil:
		got, ok := f.at(*a.Frame)
		if !ok {
			return nil, wrong("names frame %d, which is not there", *a.Frame)
		}
		return got, nil
	}
	got, err := base64.StdEncoding.DecodeString(*a.B64)
	if err != nil {
		return nil, wrong("is no base64: %v", err)
	}
	return got, nil
}

func finiteness(dtype string, data []byte, allowNaN bool) *valueError {
	if !allowNaN && !allFinite(dtype, data) {
		return &valueError{text: "holds a number that is not finite", nan: true}
	}
	return nil
}

// allFinite says whether no number is an infinity or no number at all.
func allFinite(dtype string, data []byte) bool {
	switch dtype {
	case "<f8":
		for ; len(data) >= 8; data = data[8:] {
			if binary.LittleEndian.Uint64(data)>>52&0x7ff == 0x7ff {
				return false
			}
		}
	case "<f4":
		for ; len(data) >= 4; data = data[4:] {
			if binary.LittleEndian.Uint32(data)>>23&0xff == 0xff {
				return false
			}
		}
	case "<f2":
		for ; len(data) >= 2; data = data[2:] {
			if binary.LittleEndian.Uint16(data)>>10&0x1f == 0x1f {
				return false
			}
		}
	}
	return true
}

func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }
