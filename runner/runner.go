// Package runner owns the life of episodes: create, calls, capture, scores, batches. It
// decides outcomes and rewards; it knows launchers, worlds and the record only through
// the interfaces in deps.go.
package runner
