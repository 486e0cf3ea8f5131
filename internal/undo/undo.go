// Package undo runs a sequence of named steps that can fail midway: each step that
// succeeded is undone, last first, when a later one fails.
package undo

import (
	"errors"
	"fmt"
)

// Step is one step. Undo may be nil; it is called only when Do succeeded.
type Step struct {
	Name string
	Do   func() error
	Undo func() error
}

// Run does the steps in order. On an error it undoes what was done and returns the error
// with the step's name in front, joined with what went wrong in undoing.
func Run(steps ...Step) error {
	for i, s := range steps {
		err := s.Do()
		if err == nil {
			continue
		}
		err = fmt.Errorf("%s: %w", s.Name, err)
		for j := i - 1; j >= 0; j-- {
			if u := steps[j].Undo; u != nil {
				if uerr := u(); uerr != nil {
					err = errors.Join(err, fmt.Errorf("undo %s: %w", steps[j].Name, uerr))
				}
			}
		}
		return err
	}
	return nil
}
