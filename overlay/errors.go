package overlay

import (
	"errors"
	"fmt"
)

// ErrCorrupt says that a layer's contents do not match its digest. Fetch or rebuild it.
var ErrCorrupt = errors.New("layer does not match its digest")

// ErrInUse says that the world cannot be removed while an episode or build uses it.
var ErrInUse = errors.New("world is in use")

// ErrLocked says that another daemon has this store open.
var ErrLocked = errors.New("store is in use by another daemon")

// NotFoundError says that no world has that id or name.
type NotFoundError struct{ Ref string }

func (e *NotFoundError) Error() string { return fmt.Sprintf("no world %q", e.Ref) }

// Kinds of RegistryError.
const (
	RegistryDenied   = "registry_denied"    // other or more credentials are needed
	RegistryNotFound = "registry_not_found" // it has no such image, or part of it
	// RegistryUnavailable: it did not answer, or broke off. The same transfer may do later.
	RegistryUnavailable = "registry_unavailable"
)

// RegistryError says that a registry did not do what a transfer needs. Nothing was made a
// world; what arrived is kept, so that the same pull goes on where this one ended.
type RegistryError struct {
	Kind   string
	Ref    string
	Detail string
	// Kept is how many bytes of the layer that broke off have arrived.
	Kept int64
}

func (e *RegistryError) Error() string {
	s := fmt.Sprintf("%s %s: %s", e.Kind, e.Ref, e.Detail)
	if e.Kept > 0 {
		s += fmt.Sprintf("; %d bytes of the layer are kept for the next pull", e.Kept)
	}
	return s
}

// RecipeError says that the recipe, archive or directory is not acceptable; Kind is stable.
type RecipeError struct {
	// Kind is bad_recipe, not_found, invalid_path, outside_root, duplicate_entry,
	// bad_archive, world_invalid, world_too_large, unsupported_entry, missing_tool or
	// build_failed: a tool of the recipe failed, and Detail ends in its last words.
	Kind   string
	Path   string
	Detail string
}

func (e *RecipeError) Error() string {
	s := e.Kind
	if e.Path != "" {
		s += fmt.Sprintf(" %q", e.Path)
	}
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	return s
}
