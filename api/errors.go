package api

import (
	"fmt"
	"path"
	"strings"
)

// Kind is the stable name of an error. Each says what it asks of the caller.
type Kind string

// Kinds that are the request's fault: change it before asking again.
const (
	BadRequest       Kind = "bad_request"   // malformed; Field says what
	UnknownField     Kind = "unknown_field" // Field is a JSON pointer to it
	TooLarge         Kind = "too_large"     // a body or a value beyond its bound
	UnsupportedMedia Kind = "unsupported_media_type"
	NotFound         Kind = "not_found"
	RouteNotFound    Kind = "route_not_found"
	MethodNotAllowed Kind = "method_not_allowed"
	UnknownWorld     Kind = "unknown_world"
	UnknownPolicy    Kind = "unknown_policy"
	UnknownTool      Kind = "unknown_tool"
	UnknownGrader    Kind = "unknown_grader"
	UnknownUser      Kind = "unknown_user"
	UnknownDataset   Kind = "unknown_dataset"
	UnknownApp       Kind = "unknown_app"
	NoTool           Kind = "no_tool" // the world lacks a tool of the language
	RefusedByPolicy  Kind = "refused_by_policy"
	BadRecipe        Kind = "bad_recipe"
	BadArchive       Kind = "bad_archive"
	PrepareFailed    Kind = "prepare_failed"     // the world's program did not get ready; Detail ends in its last words
	BuildFailed      Kind = "build_failed"       // a tool of the recipe failed; Detail ends in its last words
	RegistryDenied   Kind = "registry_denied"    // other or more credentials are needed
	RegistryNotFound Kind = "registry_not_found" // it has no such image
	ForeignOrigin    Kind = "foreign_origin"     // a browser's request, or one for another host
	PermissionDenied Kind = "permission_denied"
	Unsupported      Kind = "unsupported"     // the daemon's launcher cannot do it; version says what it can
	Unauthenticated  Kind = "unauthenticated" // over TCP: no token, or one that is not the daemon's
)

// Kinds that say what stands already: look at it, then go on from there.
const (
	RunExists         Kind = "run_exists"
	Fenced            Kind = "fenced"
	SpecConflict      Kind = "spec_conflict" // Pointers say what differs
	CallConflict      Kind = "call_conflict"
	CallCancelled     Kind = "call_cancelled" // its client no longer waits for it
	Superseded        Kind = "superseded"
	AttemptsExhausted Kind = "attempts_exhausted"
	EpisodeEnded      Kind = "episode_ended" // Outcome says how
	EpisodeDeleted    Kind = "episode_deleted"
	NotRescorable     Kind = "not_rescorable"
	WrongState        Kind = "wrong_state"
	InUse             Kind = "in_use"
	WorldUnhealthy    Kind = "world_unhealthy" // its set-up failed too often in a row
	SessionLost       Kind = "session_lost"    // the app's replica with the session's state is gone
)

// Kinds that are not the request's fault: the same request may do later.
const (
	OverCapacity   Kind = "over_capacity" // RetryAfter says when
	Draining       Kind = "draining"
	TooManyConns   Kind = "too_many_connections"
	PlatformFault  Kind = "platform"
	Corrupt        Kind = "corrupt"
	AppDown        Kind = "app_down"             // no replica of the app is ready
	AppBroken      Kind = "app_broken"           // the app broke its answer off, or gave none
	RegistryDown   Kind = "registry_unavailable" // it did not answer, or broke off; what arrived is kept
	Internal       Kind = "internal"             // Incident names the daemon's log line
	Unavailable    Kind = "unavailable"          // made by the client: nobody answers
	ConnectionLost Kind = "connection_lost"      // made by the client: the answer broke off
)

// Error is a problem document (RFC 9457): the body of every answer that is no success,
// and what the client returns as a Go error.
type Error struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`
	Kind   Kind   `json:"kind"`
	// Hint says in a sentence what to do about it.
	Hint string `json:"hint,omitempty"`
	// Field is the JSON pointer, or the name, of what was wrong in the request.
	Field string `json:"field,omitempty"`
	// Pointers say what differs from what is kept (spec_conflict).
	Pointers []Difference `json:"pointers,omitempty"`
	// Outcome is how the episode ended (episode_ended).
	Outcome *End `json:"outcome,omitempty"`
	// Outcomes are those of all attempts (attempts_exhausted).
	Outcomes []End `json:"outcomes,omitempty"`
	// RetryAfter is in seconds.
	RetryAfter float64 `json:"retry_after,omitempty"`
	// Incident names the line in the daemon's log (internal).
	Incident string `json:"incident,omitempty"`
}

// Difference is one value that differs from what is kept.
type Difference struct {
	Pointer string `json:"pointer"`
	Old     any    `json:"old"`
	New     any    `json:"new"`
}

// Error says what was wrong, and what to do where that is known.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(string(e.Kind))
	if e.Detail != "" {
		b.WriteString(": " + e.Detail)
	}
	if e.Field != "" && !strings.Contains(e.Detail, path.Base(e.Field)) {
		fmt.Fprintf(&b, " (at %s)", e.Field)
	}
	for _, d := range e.Pointers {
		fmt.Fprintf(&b, "; %s: %v, now %v", d.Pointer, d.Old, d.New)
	}
	if e.Outcome != nil {
		fmt.Fprintf(&b, " (%s by %s)", e.Outcome.Status, e.Outcome.Cause)
	}
	return b.String()
}

// Is makes errors.Is(err, &Error{Kind: k}) a question for the kind.
func (e *Error) Is(target error) bool {
	other, ok := target.(*Error)
	return ok && other.Kind == e.Kind
}
