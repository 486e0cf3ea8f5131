package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"reflect"
	"strconv"
	"strings"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/paddock-run/paddock/api"
)

// maxDepth bounds how deep a body may nest.
const maxDepth = 64

// decodeBody reads a request's JSON body into out, strictly: unknown fields, fields named
// twice, data after the value, invalid UTF-8, and too much or too deep a body are refused
// by name. An empty body is the zero value.
func decodeBody(r *http.Request, max int64, out any) error {
	if err := checkMedia(r, api.MediaJSON); err != nil {
		return err
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, max+1))
	switch {
	case err != nil:
		return &api.Error{Kind: api.BadRequest, Detail: "the body broke off: " + err.Error()}
	case int64(len(body)) > max:
		return &api.Error{Kind: api.TooLarge, Detail: fmt.Sprintf("the body has more than %d bytes, the bound of this route", max)}
	case len(bytes.TrimSpace(body)) == 0:
		return nil
	}
	return decode(body, out)
}

// decode is the strict decoding of one JSON value.
func decode(body []byte, out any) error {
	if deep(body) {
		return &api.Error{Kind: api.BadRequest, Detail: fmt.Sprintf("the body nests deeper than %d levels", maxDepth)}
	}
	err := jsonv2.Unmarshal(body, out, jsonv2.RejectUnknownMembers(true))
	if err == nil {
		return nil
	}
	return explainJSON(body, err)
}

// deep says whether JSON text nests too deep; it need not be valid.
func deep(body []byte) bool {
	depth, inText := 0, false
	for i := 0; i < len(body); i++ {
		switch c := body[i]; {
		case inText:
			switch c {
			case '\\':
				i++
			case '"':
				inText = false
			}
		case c == '"':
			inText = true
		case c == '{' || c == '[':
			if depth++; depth > maxDepth {
				return true
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return false
}

// explainJSON says what was wrong in words of JSON, not of Go.
func explainJSON(body []byte, err error) error {
	if semantic, ok := errors.AsType[*jsonv2.SemanticError](err); ok {
		field := string(semantic.JSONPointer)
		if errors.Is(semantic.Err, jsonv2.ErrUnknownName) {
			return &api.Error{
				Kind: api.UnknownField, Field: field,
				Detail: fmt.Sprintf("unknown field %q", semantic.JSONPointer.LastToken()),
			}
		}
		return &api.Error{Kind: api.BadRequest, Field: field, Detail: explainValue(semantic, field)}
	}
	if syntax, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		detail := "malformed JSON"
		if errors.Is(syntax.Err, jsontext.ErrDuplicateName) {
			detail = fmt.Sprintf("field %q is there twice", syntax.JSONPointer.LastToken())
		} else if syntax.Err != nil {
			detail += ": " + strings.TrimPrefix(syntax.Err.Error(), "jsontext: ")
		}
		line := 1 + bytes.Count(body[:min(int(syntax.ByteOffset), len(body))], []byte("\n"))
		return &api.Error{
			Kind: api.BadRequest, Field: string(syntax.JSONPointer),
			Detail: fmt.Sprintf("%s (byte %d, line %d)", detail, syntax.ByteOffset, line),
		}
	}
	return &api.Error{Kind: api.BadRequest, Detail: "malformed JSON: " + err.Error()}
}

func explainValue(e *jsonv2.SemanticError, field string) string {
	if field == "" {
		field = "the body"
	}
	want := "another value"
	if e.GoType != nil {
		want = jsonName(e.GoType)
	}
	switch {
	case e.GoType == reflect.TypeFor[api.Size]() && e.Err != nil:
		return fmt.Sprintf("%s: %v", field, e.Err)
	case e.JSONKind != 0 && e.Err != nil && len(e.JSONValue) > 0 && len(e.JSONValue) < 64:
		return fmt.Sprintf("%s: want %s, got %s", field, want, e.JSONValue)
	case e.JSONKind != 0:
		return fmt.Sprintf("%s: want %s, got %s", field, want, kindName(e.JSONKind))
	}
	return fmt.Sprintf("%s: want %s", field, want)
}

func jsonName(t reflect.Type) string {
	switch t.Kind() { //nolint:exhaustive // what no wire type holds falls to the last line
	case reflect.String:
		return "a text"
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int32, reflect.Int64:
		return "a whole number"
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return "a whole number from 0 to " + strconv.FormatUint(1<<t.Bits()-1, 10)
	case reflect.Float64:
		return "a number"
	case reflect.Slice, reflect.Array:
		if t.Elem().Kind() == reflect.Uint8 {
			return "base64 text"
		}
		return "a list"
	case reflect.Map, reflect.Struct:
		return "an object"
	case reflect.Pointer:
		return jsonName(t.Elem())
	}
	return "another value"
}

func kindName(k jsontext.Kind) string {
	switch k { //nolint:exhaustive // kinds that begin no value do not come here
	case 'n':
		return "null"
	case 't', 'f':
		return "true or false"
	case '"':
		return "a text"
	case '0':
		return "a number"
	case '{':
		return "an object"
	case '[':
		return "a list"
	}
	return "something else"
}

// checkMedia refuses a body of another type than one of allowed. curl sends a form's type
// unless told otherwise, so the answer says what to send.
func checkMedia(r *http.Request, allowed ...string) error {
	value := r.Header.Get("Content-Type")
	if value == "" || r.ContentLength == 0 {
		return nil
	}
	media, _, err := mime.ParseMediaType(value)
	for _, a := range allowed {
		if err == nil && media == a {
			return nil
		}
	}
	return &api.Error{
		Kind: api.UnsupportedMedia, Field: "Content-Type",
		Detail: fmt.Sprintf("content type %q is not taken here", value),
		Hint:   "send Content-Type: " + strings.Join(allowed, " or "),
	}
}

// query reads the parameters of a URL, strictly.
type query struct {
	values map[string][]string
	err    error
}

func newQuery(r *http.Request, known []api.Param) (*query, error) {
	q := &query{values: r.URL.Query()}
	for name, values := range q.values {
		found := false
		for _, p := range known {
			found = found || p.Name == name
		}
		if !found {
			return nil, &api.Error{Kind: api.UnknownField, Field: name, Detail: fmt.Sprintf("unknown parameter %q", name)}
		}
		if len(values) > 1 {
			return nil, &api.Error{Kind: api.BadRequest, Field: name, Detail: fmt.Sprintf("parameter %q is there twice", name)}
		}
	}
	return q, nil
}

func (q *query) text(name string) string {
	if v := q.values[name]; len(v) > 0 {
		return v[0]
	}
	return ""
}

func (q *query) number(name string, least, most int64) int64 {
	text := q.text(name)
	if text == "" {
		return 0
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < least || n > most {
		q.fail(name, fmt.Sprintf("%s=%s: want a whole number from %d to %d", name, text, least, most))
		return 0
	}
	return n
}

func (q *query) flag(name string) bool {
	switch text := q.text(name); text {
	case "", "0", "false":
		return false
	case "1", "true":
		return true
	default:
		q.fail(name, fmt.Sprintf("%s=%s: want true or false", name, text))
		return false
	}
}

func (q *query) fail(name, detail string) {
	if q.err == nil {
		q.err = &api.Error{Kind: api.BadRequest, Field: name, Detail: detail}
	}
}
