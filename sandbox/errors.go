package sandbox

import (
	"errors"
	"fmt"
)

// ErrGone says: the sandbox has ended.
var ErrGone = errors.New("the sandbox has ended")

// UnsupportedError says that a launcher cannot do what it was asked for. Nothing was done;
// Info says beforehand what a launcher can do.
type UnsupportedError struct {
	// Launcher is the launcher's name, Runtime the program behind it, if any.
	Launcher, Runtime string
	// Feature is dial, freeze, listen, pty, or a policy that wants another runtime.
	Feature string
}

func (e *UnsupportedError) Error() string {
	by := e.Launcher
	if e.Runtime != "" {
		by += " (" + e.Runtime + ")"
	}
	return fmt.Sprintf("the launcher %s does not support %s", by, e.Feature)
}

// Lacks is the error for a feature that a launcher lacks.
func (i Info) Lacks(feature string) error {
	return &UnsupportedError{Launcher: i.Name, Runtime: i.Runtime, Feature: feature}
}

// Refuse says what in a spec the launcher cannot do.
func (i Info) Refuse(spec Spec) error {
	if len(spec.Listen) > 0 && !i.Listen {
		return i.Lacks("listen")
	}
	return nil
}
