package runner

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/paddock-run/paddock/overlay"
)

// checkCall refuses a call that means nothing, before anything of it is done.
func (a *attempt) checkCall(c *callState) error {
	s := &c.spec
	if builtin[s.Tool] == nil {
		if c.tool = a.tool(s.Tool); c.tool == nil {
			return &Error{Kind: KindUnknownTool, Field: "tool", Detail: fmt.Sprintf("the world has no tool %q", s.Tool)}
		}
		if len(s.Args) > 0 && (!json.Valid(s.Args) || s.Args[0] != '{') {
			return badField("args", "is not a JSON object")
		}
	}
	if s.Seq < 0 {
		return badField("seq", "%d is negative", s.Seq)
	}
	for field, v := range map[string]float64{"timeout_s": s.TimeoutS, "cpu_s": s.CPUS} {
		if !(v >= 0 && v <= maxSeconds) {
			return badField(field, "%v is not in 0 to %d seconds", v, int(maxSeconds))
		}
	}
	if s.Leftovers != "" && s.Leftovers != "keep" && s.Leftovers != "kill" {
		return badField("leftovers", "%q is not keep or kill", s.Leftovers)
	}
	if s.Cwd != "" && !strings.HasPrefix(s.Cwd, "/") {
		return badField("cwd", "%q is not absolute", s.Cwd)
	}
	for field, text := range map[string]string{"shell": s.Shell, "cwd": s.Cwd, "path": s.Path, "user": s.User} {
		if strings.ContainsRune(text, 0) {
			return badField(field, "holds a NUL")
		}
	}
	if err := checkEnv("env", s.Env); err != nil {
		return err
	}
	if c.io.Stdin != nil && len(s.Stdin) > 0 {
		return badField("stdin", "is given twice")
	}
	if err := checkFields(s, c.tool != nil); err != nil {
		return err
	}
	if info := a.r.cfg.Launcher.Info(); s.PTY != nil && !info.PTY {
		return info.Lacks("pty")
	}
	return checkTool(s)
}

func checkTool(s *CallSpec) error {
	switch s.Tool {
	case "exec":
		return checkArgv(s)
	case "read_file", "write_file", "list_dir", "stat", "remove", "upload", "download":
		if s.Path == "" {
			return badField("path", "is missing")
		}
	case "session":
		if s.Session == "" {
			return badField("session", "is missing")
		}
		if len(s.Shell) > maxArgText {
			return badField("shell", "has %d bytes, at most %d are allowed", len(s.Shell), maxArgText)
		}
	case "session_open":
		if s.PTY != nil {
			return badField("pty", "a session has no terminal; exec has")
		}
		if s.Session != "" && !segment.MatchString(s.Session) {
			return badField("session", "%q is out of form", s.Session)
		}
	}
	return nil
}

func checkArgv(s *CallSpec) error {
	if (len(s.Argv) == 0) == (s.Shell == "") {
		return badField("argv", "exactly one of argv and shell must be set")
	}
	total := len(s.Shell)
	for i, arg := range s.Argv {
		if strings.ContainsRune(arg, 0) {
			return badField(fmt.Sprintf("argv/%d", i), "holds a NUL")
		}
		total += len(arg)
	}
	if len(s.Argv) > maxArgv || total > maxArgText {
		return badField("argv", "has %d entries and %d bytes, at most %d and %d are allowed", len(s.Argv), total, maxArgv, maxArgText)
	}
	if len(s.Argv) > 0 && s.Argv[0] == "" {
		return badField("argv/0", "is empty")
	}
	return nil
}

// tool finds a tool of the spec or the world; the spec's comes first.
func (a *attempt) tool(name string) *overlay.Tool {
	for _, list := range [][]overlay.Tool{a.plan.Spec.Tools, a.world.Config.Tools} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}
