package runner

import (
	"slices"
	"strings"
)

// fieldsOf are the fields that each tool uses, beside those that every call has (tool, seq,
// attempt, generation, weights, parallel, timeout_s). The empty name is a tool of the
// world or spec.
var fieldsOf = map[string][]string{
	"exec":          strings.Fields("argv shell stdin cwd env user cpu_s max_stdout max_stderr leftovers pty"),
	"":              strings.Fields("args stdin cwd env user cpu_s max_stdout max_stderr leftovers pty"),
	"session_open":  strings.Fields("session cwd env user cpu_s leftovers"),
	"session":       strings.Fields("session shell max_stdout max_stderr"),
	"session_close": strings.Fields("session"),
	"read_file":     strings.Fields("path user offset max max_stdout"),
	"write_file":    strings.Fields("path user content stdin mode"),
	"list_dir":      strings.Fields("path user max"),
	"stat":          strings.Fields("path user"),
	"remove":        strings.Fields("path user"),
	"upload":        strings.Fields("path user stdin"),
	"download":      strings.Fields("path user"),
}

// checkFields refuses a field that the tool does not use: what was asked for there would
// be lost without a word.
func checkFields(s *CallSpec, own bool) error {
	name := s.Tool
	if own {
		name = ""
	}
	used := fieldsOf[name]
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"argv", len(s.Argv) > 0},
		{"shell", s.Shell != ""},
		{"stdin", len(s.Stdin) > 0},
		{"cwd", s.Cwd != ""},
		{"env", len(s.Env) > 0},
		{"user", s.User != ""},
		{"cpu_s", s.CPUS != 0},
		{"max_stdout", s.MaxStdout != 0},
		{"max_stderr", s.MaxStderr != 0},
		{"leftovers", s.Leftovers != ""},
		{"pty", s.PTY != nil},
		{"session", s.Session != ""},
		{"args", len(s.Args) > 0},
		{"path", s.Path != ""},
		{"content", len(s.Content) > 0},
		{"mode", s.Mode != 0},
		{"offset", s.Offset != 0},
		{"max", s.Max != 0},
	} {
		if f.set && !slices.Contains(used, f.name) {
			return badField(f.name, "is not used by %s", s.Tool)
		}
	}
	for field, v := range map[string]int64{"max_stdout": s.MaxStdout, "max_stderr": s.MaxStderr, "max": s.Max, "offset": s.Offset} {
		if v < 0 {
			return badField(field, "%d is negative", v)
		}
	}
	if s.Mode&^0o7777 != 0 {
		return badField("mode", "%o has bits beyond 07777", s.Mode)
	}
	return nil
}
