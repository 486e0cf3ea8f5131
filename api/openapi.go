package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Operation describes one route for the document.
type Operation struct {
	ID      string
	Method  string
	Path    string // as net/http's patterns: /v1/worlds/{world}
	Summary string
	Query   []Param
	Headers []Param
	// Request and Response are the types of the bodies, nil for none or for raw bytes.
	Request  reflect.Type
	Response reflect.Type
	// RequestMedia and ResponseMedia are their media types. Of a stream, Response is the
	// type of one line.
	RequestMedia  []string
	ResponseMedia []string
	Status        int
	// Kinds are the errors that this route may answer with, by status.
	Kinds map[int][]Kind
}

// Param is a parameter of the query or a header.
type Param struct {
	Name    string
	Summary string
	Type    string // string, integer or boolean
}

type object = map[string]any

// Document is the OpenAPI 3.1 document of the operations.
func Document(version string, ops []Operation) ([]byte, error) {
	g := &schemas{byName: object{}, types: map[string]reflect.Type{}, input: map[reflect.Type]bool{}}
	for _, op := range ops {
		g.markInput(op.Request)
	}
	paths := object{}
	for _, op := range ops {
		item, ok := paths[op.Path].(object)
		if !ok {
			item = object{}
			paths[op.Path] = item
		}
		item[strings.ToLower(op.Method)] = g.operation(op)
	}
	if g.err != nil {
		return nil, g.err
	}
	return json.MarshalIndent(object{
		"openapi": "3.1.0",
		"info": object{
			"title": "paddock", "version": version,
			"description": "Sealed worlds, one locked-down sandbox per episode, capture and scores. HTTP/1.1 over a unix socket.",
			"license":     object{"name": "Apache-2.0", "identifier": "Apache-2.0"},
		},
		"servers":    []any{object{"url": "http://paddock", "description": "the daemon's unix socket, " + DefaultSocket + " by default"}},
		"paths":      paths,
		"components": object{"schemas": g.byName},
	}, "", " ")
}

// schemas gathers the types that were met.
type schemas struct {
	byName object
	types  map[string]reflect.Type
	// input are the types that a request may hold: strict, and nothing is required.
	input map[reflect.Type]bool
	err   error
}

var pathParam = regexp.MustCompile(`\{(\w+)\}`)

func (g *schemas) operation(op Operation) object {
	o := object{"operationId": op.ID, "summary": op.Summary}
	if params := g.params(op); len(params) > 0 {
		o["parameters"] = params
	}
	if len(op.RequestMedia) > 0 {
		o["requestBody"] = object{"content": g.content(op.RequestMedia, op.Request)}
	}
	responses := object{}
	ok := object{"description": http.StatusText(op.Status)}
	if len(op.ResponseMedia) > 0 {
		ok["content"] = g.content(op.ResponseMedia, op.Response)
	}
	responses[strconv.Itoa(op.Status)] = ok
	for status, kinds := range op.Kinds {
		names := make([]string, len(kinds))
		for i, k := range kinds {
			names[i] = string(k)
		}
		responses[strconv.Itoa(status)] = object{
			"description": "kind: " + strings.Join(names, ", "),
			"content":     g.content([]string{MediaProblem}, reflect.TypeFor[Error]()),
		}
	}
	o["responses"] = responses
	return o
}

func (g *schemas) params(op Operation) []any {
	var all []any
	for _, m := range pathParam.FindAllStringSubmatch(op.Path, -1) {
		all = append(all, object{
			"name": m[1], "in": "path", "required": true, "schema": object{"type": "string"},
			"description": "one percent-encoded segment",
		})
	}
	add := func(in string, params []Param) {
		for _, p := range params {
			all = append(all, object{"name": p.Name, "in": in, "description": p.Summary, "schema": object{"type": p.Type}})
		}
	}
	add("query", op.Query)
	add("header", op.Headers)
	return all
}

func (g *schemas) content(media []string, t reflect.Type) object {
	c := object{}
	for _, m := range media {
		schema := object{}
		if m != MediaBytes && m != MediaTar && t != nil {
			schema = g.schema(t)
		}
		c[m] = object{"schema": schema}
	}
	return c
}

// markInput finds every type below t.
func (g *schemas) markInput(t reflect.Type) {
	if t == nil || g.input[t] {
		return
	}
	switch t.Kind() { //nolint:exhaustive // the other kinds hold no types
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
		g.markInput(t.Elem())
	case reflect.Struct:
		g.input[t] = true
		for f := range t.Fields() {
			g.markInput(f.Type)
		}
	}
}

func (g *schemas) schema(t reflect.Type) object {
	switch t {
	case reflect.TypeFor[Size]():
		return object{"type": []string{"integer", "string"}, "description": `bytes, or a text such as "2GiB"`}
	case reflect.TypeFor[json.RawMessage](), reflect.TypeFor[any]():
		return object{}
	case reflect.TypeFor[time.Time]():
		return object{"type": "string", "format": "date-time"}
	case reflect.TypeFor[[]byte]():
		return object{"type": "string", "contentEncoding": "base64"}
	}
	switch t.Kind() { //nolint:exhaustive // default refuses what no wire type may hold
	case reflect.Pointer:
		return object{"anyOf": []any{g.schema(t.Elem()), object{"type": "null"}}}
	case reflect.Slice, reflect.Array:
		return object{"type": "array", "items": g.schema(t.Elem())}
	case reflect.Map:
		return object{"type": "object", "additionalProperties": g.schema(t.Elem())}
	case reflect.String:
		return object{"type": "string"}
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.Float64:
		return object{"type": "number"}
	case reflect.Int, reflect.Int64, reflect.Int32:
		return object{"type": "integer"}
	case reflect.Uint32, reflect.Uint16, reflect.Uint64, reflect.Uint8:
		return object{"type": "integer", "minimum": 0}
	case reflect.Struct:
		return g.reference(t)
	default:
		g.err = fmt.Errorf("openapi: no schema for %v", t)
		return object{}
	}
}

func (g *schemas) reference(t reflect.Type) object {
	name := t.Name()
	ref := object{"$ref": "#/components/schemas/" + name}
	if other, known := g.types[name]; known {
		if other != t {
			g.err = fmt.Errorf("openapi: two types are called %s", name)
		}
		return ref
	}
	g.types[name] = t
	properties, required := object{}, []string{}
	g.fields(t, properties, &required)
	s := object{"type": "object", "properties": properties}
	if g.input[t] {
		s["additionalProperties"] = false
	} else if len(required) > 0 {
		s["required"] = required
	}
	g.byName[name] = s
	return ref
}

func (g *schemas) fields(t reflect.Type, properties object, required *[]string) {
	for f := range t.Fields() {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "-" || !f.IsExported() {
			continue
		}
		if f.Anonymous && name == "" {
			g.fields(f.Type, properties, required)
			continue
		}
		if name == "" {
			g.err = fmt.Errorf("openapi: %v.%s has no JSON name", t, f.Name)
			return
		}
		p := g.schema(f.Type)
		if doc := f.Tag.Get("doc"); doc != "" {
			p["description"] = doc
		}
		properties[name] = p
		if !strings.Contains(options, "omit") {
			*required = append(*required, name)
		}
	}
}
