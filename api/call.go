package api

import (
	"encoding/json"
	"time"
)

// CallSpec is one tool call; only the fields that Tool uses may be set. Large stdin (or
// the content of write_file) comes raw, as the body, with the rest in Paddock-Call.
type CallSpec struct {
	Tool     string `json:"tool" doc:"exec, read_file, write_file, list_dir, stat, remove, session_open, session, session_close, or a tool of the world"`
	Seq      int64  `json:"seq,omitempty" doc:"idempotency key within the attempt: a repeated one returns the kept answer; unset lets the daemon number it"`
	Attempt  int    `json:"attempt,omitempty" doc:"unset is the live one"`
	Weights  string `json:"weights,omitempty"`
	Parallel bool   `json:"parallel,omitempty" doc:"run beside other calls; otherwise one after another"`

	Argv      []string          `json:"argv,omitempty"`
	Shell     string            `json:"shell,omitempty" doc:"command text"`
	Stdin     []byte            `json:"stdin,omitempty"`
	Cwd       string            `json:"cwd,omitempty"`
	Env       map[string]string `json:"env,omitempty"`
	User      string            `json:"user,omitempty"`
	TimeoutS  float64           `json:"timeout_s,omitempty"`
	CPUS      float64           `json:"cpu_s,omitempty"`
	MaxStdout Size              `json:"max_stdout,omitempty"`
	MaxStderr Size              `json:"max_stderr,omitempty"`
	Leftovers string            `json:"leftovers,omitempty" doc:"keep or kill"`
	PTY       *PTY              `json:"pty,omitempty"`
	Session   string            `json:"session,omitempty"`
	Args      json.RawMessage   `json:"args,omitempty" doc:"of a world's tool, handed to it as JSON on stdin"`

	Path    string `json:"path,omitempty"`
	PathB64 []byte `json:"path_b64,omitempty" doc:"instead of path, where it is no UTF-8"`
	Content []byte `json:"content,omitempty"`
	Mode    uint32 `json:"mode,omitempty"`
	Offset  int64  `json:"offset,omitempty"`
	Max     Size   `json:"max,omitempty"`
}

// CancelCall names a numbered call that nobody waits for.
type CancelCall struct {
	Attempt int   `json:"attempt,omitempty" doc:"unset is the live one"`
	Seq     int64 `json:"seq" doc:"the call's; it is not used again, also where the call comes after this"`
}

// PTY asks for a terminal.
type PTY struct {
	Rows uint16 `json:"rows"`
	Cols uint16 `json:"cols"`
}

// CallEvent is one line of a streamed call: stdout and stderr as they come, then, always
// last, the result or an error.
type CallEvent struct {
	Type   string      `json:"type" doc:"stdout, stderr, result or error"`
	Text   string      `json:"text,omitempty"`
	B64    []byte      `json:"b64,omitempty" doc:"instead of text, where the bytes are no UTF-8, or 4 KiB and more of which an eighth is control characters"`
	Result *CallResult `json:"result,omitempty"`
	Error  *Error      `json:"error,omitempty"`
}

// FileInfo describes one entry of a sandbox's tree.
type FileInfo struct {
	Name      string    `json:"name"`
	NameB64   []byte    `json:"name_b64,omitempty"`
	Type      string    `json:"type"`
	Mode      uint32    `json:"mode"`
	UID       uint32    `json:"uid"`
	GID       uint32    `json:"gid"`
	Size      int64     `json:"size"`
	ModTime   time.Time `json:"mtime"`
	Target    string    `json:"target,omitempty"`
	TargetB64 []byte    `json:"target_b64,omitempty"`
}
