package runner

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/paddock-run/paddock/overlay"
)

// Bounds of a tool's schema and of arguments that are held against one.
const (
	maxSchema     = 256 << 10
	maxSchemaText = 4096
)

// noLoader refuses references to other documents: a world's author must not have the
// daemon read files.
type noLoader struct{}

func (noLoader) Load(url string) (any, error) {
	return nil, fmt.Errorf("%s: a tool's schema may refer to itself only", url)
}

// maxSchemaWork bounds how often a part of a schema is held against a part of the arguments:
// one that has itself in several alternatives is tried twice as often with every level that
// the arguments are deep, and how deep is up to the model.
const maxSchemaWork = 1 << 18

// worked is in every part of a schema and counts its uses.
type worked struct{ left *int }

// errSchemaWork is thrown by worked and caught by validate.
var errSchemaWork = errors.New("holding the arguments against the tool's parameters takes too long")

func (w worked) Validate(*jsonschema.ValidatorContext, any) {
	if *w.left--; *w.left < 0 {
		panic(errSchemaWork)
	}
}

// validate is schema.Validate with its end.
func validate(schema *jsonschema.Schema, value any) (err error) {
	defer func() {
		switch r := recover(); r {
		case nil:
		case errSchemaWork:
			err = errSchemaWork
		default:
			panic(r)
		}
	}()
	return schema.Validate(value)
}

// Bounds of a number in arguments: what a double holds, in as many digits as anybody needs.
// The library computes with all digits, and 1e999999 has a million.
const (
	maxNumberText = 400
	maxExponent   = 400
)

// plainNumbers refuses numbers that nobody computes with.
func plainNumbers(value any) error {
	switch v := value.(type) {
	case json.Number:
		at := strings.IndexAny(string(v), "eE")
		if len(v) > maxNumberText {
			return fmt.Errorf("a number of %d digits, at most %d are taken", len(v), maxNumberText)
		}
		if at < 0 {
			return nil
		}
		if e, err := strconv.Atoi(string(v[at+1:])); err != nil || max(e, -e) > maxExponent {
			return fmt.Errorf("the number %s: exponents up to %d are taken", v, maxExponent)
		}
	case []any:
		for _, item := range v {
			if err := plainNumbers(item); err != nil {
				return err
			}
		}
	case map[string]any:
		for _, item := range v {
			if err := plainNumbers(item); err != nil {
				return err
			}
		}
	}
	return nil
}

// compileSchema reads a tool's parameters; nil is a tool that takes anything.
func compileSchema(tool *overlay.Tool) (*jsonschema.Schema, error) {
	if len(tool.Parameters) == 0 {
		return nil, nil //nolint:nilnil // documented: anything goes
	}
	if len(tool.Parameters) > maxSchema {
		return nil, fmt.Errorf("has %d bytes, at most %d are allowed", len(tool.Parameters), maxSchema)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(tool.Parameters))
	if err != nil {
		return nil, fmt.Errorf("is no JSON: %w", err)
	}
	const name = "tool:parameters"
	c := jsonschema.NewCompiler()
	c.UseLoader(noLoader{})
	work := maxSchemaWork
	c.RegisterVocabulary(&jsonschema.Vocabulary{
		URL: "paddock:work",
		Compile: func(*jsonschema.CompilerContext, map[string]any) (jsonschema.SchemaExt, error) {
			return worked{&work}, nil
		},
	})
	c.AssertVocabs()
	if err := c.AddResource(name, doc); err != nil {
		return nil, fmt.Errorf("is no schema: %w", err)
	}
	schema, err := c.Compile(name)
	if err != nil {
		return nil, fmt.Errorf("is no schema: %w", err)
	}
	return schema, nil
}

// checkArguments holds a call's arguments against the tool's schema. What is wrong with
// them is the agent's result.
func checkArguments(tool *overlay.Tool, args json.RawMessage) *CallError {
	schema, err := compileSchema(tool)
	if err != nil {
		return &CallError{Kind: "invalid_tool", Path: Raw(tool.Name), Detail: cutText("the tool's parameters: " + err.Error())}
	}
	if schema == nil {
		return nil
	}
	if len(args) == 0 {
		args = json.RawMessage("{}")
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(args))
	if err == nil {
		err = plainNumbers(value)
	}
	if err == nil {
		err = validate(schema, value)
	}
	if err == nil {
		return nil
	}
	detail := err.Error()
	if _, ok := errors.AsType[*jsonschema.ValidationError](err); ok {
		_, detail, _ = strings.Cut(detail, "\n") // the first line names the schema
	}
	return &CallError{Kind: "invalid_arguments", Path: Raw(tool.Name), Detail: cutText(detail)}
}

func cutText(s string) string {
	return strings.ToValidUTF8(s[:min(len(s), maxSchemaText)], "")
}
