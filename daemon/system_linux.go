package daemon

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/paddock-run/paddock/api"
	"github.com/paddock-run/paddock/sandbox"
)

// translateSystem names what the host lacks: a full disk and the like are faults of the
// platform that a later request may not meet.
func translateSystem(err error) *api.Error {
	switch {
	case errors.Is(err, sandbox.ErrNoIDs):
		return &api.Error{Kind: api.OverCapacity, Detail: err.Error()}
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return &api.Error{Kind: api.PlatformFault, Detail: err.Error(), Hint: "the store's disk is full: make room, then ask again"}
	case errors.Is(err, unix.ENOMEM), errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.EIO):
		return &api.Error{Kind: api.PlatformFault, Detail: err.Error()}
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return &api.Error{Kind: api.PlatformFault, Detail: err.Error(), Hint: "the request was cut off before it was done; ask again"}
	}
	return nil
}
