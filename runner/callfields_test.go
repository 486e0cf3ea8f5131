package runner

import (
	"errors"
	"testing"
)

func TestEveryToolSaysWhichFieldsItUses(t *testing.T) {
	t.Parallel()
	for tool := range builtin {
		if fieldsOf[tool] == nil {
			t.Errorf("tool %s has no row in fieldsOf", tool)
		}
	}
	for tool := range fieldsOf {
		if tool != "" && builtin[tool] == nil {
			t.Errorf("fieldsOf has a row for %s, which is no tool", tool)
		}
	}
}

func TestFieldsThatAToolDoesNotUseAreRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		field string
		own   bool
		spec  CallSpec
	}{
		{"", false, CallSpec{Tool: "exec", Argv: []string{"true"}, Cwd: "/", MaxStdout: 1, TimeoutS: 1, Seq: 1}},
		{"", false, CallSpec{Tool: "write_file", Path: "/a", Content: []byte("x"), Mode: 0o4755}},
		{"", true, CallSpec{Tool: "grep", Args: []byte("{}"), Cwd: "/"}},
		{"path", false, CallSpec{Tool: "exec", Argv: []string{"true"}, Path: "/a"}},
		{"args", false, CallSpec{Tool: "exec", Argv: []string{"true"}, Args: []byte("{}")}},
		{"cwd", false, CallSpec{Tool: "stat", Path: "/a", Cwd: "/"}},
		{"env", false, CallSpec{Tool: "session", Session: "s", Shell: "true", Env: map[string]string{"A": "b"}}},
		{"path", true, CallSpec{Tool: "grep", Path: "/a"}},
		{"max_stdout", false, CallSpec{Tool: "exec", Argv: []string{"true"}, MaxStdout: -1}},
		{"max", false, CallSpec{Tool: "list_dir", Path: "/", Max: -1}},
		{"offset", false, CallSpec{Tool: "read_file", Path: "/a", Offset: -1}},
		{"mode", false, CallSpec{Tool: "write_file", Path: "/a", Mode: 0o10644}},
	} {
		err := checkFields(&c.spec, c.own)
		e, refused := errors.AsType[*Error](err)
		if refused != (c.field != "") || (refused && (e.Kind != KindBadRequest || e.Field != c.field)) {
			t.Errorf("%+v: %v, want field %q refused", c.spec, err, c.field)
		}
	}
}
