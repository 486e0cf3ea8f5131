package runner

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
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
		err = schema.Validate(value)
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
