package policies

import (
	"fmt"
	"strings"
)

// UnknownError says that there is no policy of that name. The request is wrong; nothing
// was done.
type UnknownError struct {
	Name  string
	Known []string
}

func (e *UnknownError) Error() string {
	return fmt.Sprintf("unknown policy %q; there are: %s", e.Name, strings.Join(e.Known, ", "))
}

// LimitError says that a limit was asked that means nothing. Field is its name in JSON.
type LimitError struct {
	Field  string
	Detail string
}

func (e *LimitError) Error() string { return fmt.Sprintf("limit %s: %s", e.Field, e.Detail) }

// RefusalError says what a policy refuses, in words for the caller.
type RefusalError struct {
	Policy string
	// Kind is user_refused.
	Kind   string
	Detail string
}

func (e *RefusalError) Error() string { return e.Detail }
