package runner

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// The kinds of Error. They are stable: clients compare them.
const (
	KindNotFound          = "not_found"
	KindBadRequest        = "bad_request"
	KindRunExists         = "run_exists"
	KindFenced            = "fenced"
	KindSpecConflict      = "spec_conflict"
	KindAttemptsExhausted = "attempts_exhausted"
	KindSuperseded        = "superseded"
	KindCallConflict      = "call_conflict"
	KindCallCancelled     = "call_cancelled"
	KindEpisodeEnded      = "episode_ended"
	KindNotLive           = "not_live"
	KindOverCapacity      = "over_capacity"
	KindDraining          = "draining"
	KindUnknownPolicy     = "unknown_policy"
	KindUnknownTool       = "unknown_tool"
	KindUnknownWorld      = "unknown_world"
	KindUnknownGrader     = "unknown_grader"
	KindWorldUnhealthy    = "world_unhealthy"
	KindNotRescorable     = "not_rescorable"
	KindTooLarge          = "too_large"
	KindRecordDamaged     = "record_damaged"
	KindInUse             = "in_use"
	KindPrepareFailed     = "prepare_failed"
	KindPermissionDenied  = "permission_denied"
	KindUnknownApp        = "unknown_app"
	KindAppDown           = "app_down"
	KindAppBroken         = "app_broken"
	KindSessionLost       = "session_lost"
	KindUnsupported       = "unsupported"
)

// Error is a refused request: nothing was done. Kind says why; the other fields are set
// where that kind has them.
type Error struct {
	Kind   string
	Detail string
	// Field names the wrong field of a bad_request.
	Field string
	// Diffs are the JSON pointers at which a spec differs, of a spec_conflict.
	Diffs []Diff
	// End is the outcome of an episode_ended or superseded.
	End *End
	// Attempts are all attempts so far, of attempts_exhausted.
	Attempts []Attempt
	// RetryAfter is when to ask again, of over_capacity and draining.
	RetryAfter time.Duration
}

// Diff is one difference between the stored and the asked spec.
type Diff struct {
	Pointer string          `json:"pointer"`
	Old     json.RawMessage `json:"old,omitempty"`
	New     json.RawMessage `json:"new,omitempty"`
}

func (e *Error) Error() string {
	s := e.Kind
	if e.Field != "" {
		s += " " + e.Field
	}
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	return s
}

// KindOf is the Kind of an *Error in err's chain, or "".
func KindOf(err error) string {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	return ""
}

func badField(field, format string, args ...any) *Error {
	return &Error{Kind: KindBadRequest, Field: field, Detail: fmt.Sprintf(format, args...)}
}

func notFound(format string, args ...any) *Error {
	return &Error{Kind: KindNotFound, Detail: fmt.Sprintf(format, args...)}
}
