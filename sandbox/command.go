package sandbox

import (
	"io"
	"time"
)

// User is whom a process runs as inside the sandbox, in the sandbox's own ids.
type User struct {
	UID    uint32   `json:"uid"`
	GID    uint32   `json:"gid"`
	Groups []uint32 `json:"groups,omitempty"`
}

// Leftovers says what becomes of processes that outlive the command's main process.
type Leftovers string

// KeepLeftovers leaves them running; they never hold a call open. KillLeftovers ends
// them before Wait returns.
const (
	KeepLeftovers Leftovers = "keep"
	KillLeftovers Leftovers = "kill"
)

// WindowSize is a terminal's size in character cells.
type WindowSize struct {
	Rows uint16 `json:"rows"`
	Cols uint16 `json:"cols"`
}

// Command is one program to run in a sandbox, in a cgroup of its own.
type Command struct {
	// Argv is the program and its arguments. A program without a slash is looked up in
	// the PATH of Env, inside the sandbox.
	Argv []string
	// Env is the whole environment, as KEY=value.
	Env []string
	// Dir is the working directory, absolute.
	Dir  string
	User User
	// Umask is the file mode creation mask; the zero value means 0022.
	Umask uint32

	// Stdin is read until EOF or until the program ends; nil is an empty stdin.
	Stdin io.Reader
	// Stdout and Stderr get the raw bytes as they come, each from one goroutine; nil
	// discards. A Write error is ignored: the rest is drained and dropped.
	Stdout, Stderr io.Writer
	// PTY, when set, gives the program a terminal: both outputs arrive at Stdout.
	PTY *WindowSize
	// FD3, when set, makes descriptor 3 of the program a pipe whose bytes arrive here.
	// No other descriptor than 0, 1, 2 (and 3) reaches a program.
	FD3 io.Writer

	// Timeout bounds the wall clock, CPUTime the CPU time of all its processes together,
	// both from the start of the program; 0 is none. When one passes, every process of
	// the command is killed.
	Timeout time.Duration
	CPUTime time.Duration
	// Leftovers is KeepLeftovers unless set.
	Leftovers Leftovers
}

// Exit is how a command ended: always a value, whatever the program did.
type Exit struct {
	// Code is the exit status, nil when the program was ended by a signal or never began.
	Code *int
	// Signal is the number of the signal that ended the main process, 0 for none.
	Signal int
	// NotStarted is set when the program could not be started at all.
	NotStarted *StartFailure

	// TimedOut, CPUTimedOut: the bound of that name killed it.
	TimedOut    bool
	CPUTimedOut bool
	// OOM: the kernel killed at least one process of this command for memory.
	OOM bool
	// HostOOM: it did so though the sandbox had never met its own limit: the host had no
	// memory left.
	HostOOM bool
	// PidsLimit: at least one fork failed at the pids limit while it ran.
	PidsLimit bool
	// Full is FullDisk or FullInodes when the writable layer had none left at its end.
	Full string
	// OutputHeld: a process that outlived the main one still has stdout or stderr open.
	OutputHeld bool
	// Leftover is the number of processes of this command still alive at its end (with
	// KillLeftovers: how many were killed).
	Leftover int

	Usage Usage
}

// What Exit.Full can be.
const (
	FullDisk   = "disk"
	FullInodes = "inodes"
)

// StartFailure says why a program could not be started; Kind is stable.
type StartFailure struct {
	// Kind is cwd_not_found, cwd_not_a_directory, command_not_found, permission_denied,
	// not_executable, pids_limit, argument_list_too_long or start_failed.
	Kind string `json:"kind"`
	// Path is what Kind is about.
	Path string `json:"path,omitempty"`
	// Errno is the kernel's number, 0 where there was none.
	Errno int `json:"errno,omitempty"`
}

// Usage is what a command, or a whole sandbox so far, has used.
type Usage struct {
	CPU  time.Duration `json:"cpu"`
	Wall time.Duration `json:"wall"`
	// MemoryPeakBytes is the peak of the cgroup, page cache of the upper included.
	MemoryPeakBytes int64 `json:"memory_peak_bytes"`
	// RunDelay is how long runnable tasks waited for a CPU, where the kernel tells.
	RunDelay time.Duration `json:"run_delay,omitempty"`
}

// Process is a started command. Wait must be called exactly once; Kill may be called at
// any time, from any goroutine, and kills every process of the command.
type Process interface {
	Wait() Exit
	Kill()
	// Resize sets the window size of a PTY.
	Resize(WindowSize) error
}
