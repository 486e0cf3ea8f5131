package files

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/paddock-run/paddock/internal/safepath"
	"github.com/paddock-run/paddock/sandbox"
)

// kinds are the kinds of the kernel's errors; all others are io.
var kinds = map[unix.Errno]string{
	unix.ENOENT: "not_found", unix.ENOTDIR: "not_a_directory", unix.EISDIR: "is_directory",
	unix.EACCES: "permission_denied", unix.EPERM: "permission_denied",
	unix.EEXIST: "already_exists", unix.ENOTEMPTY: "not_empty",
	unix.ENOSPC: "no_space", unix.EDQUOT: "no_space", unix.EROFS: "read_only",
	unix.ENAMETOOLONG: "name_too_long", unix.ELOOP: "too_many_links",
	unix.EXDEV: "outside_root", unix.EFBIG: "too_large",
	// Opening a socket, or a device without a driver.
	unix.ENXIO: "not_a_regular_file", unix.ENODEV: "not_a_regular_file",
}

// fail is a *sandbox.FileError from whatever went wrong, for path unless it names one
// already; nil stays nil.
func fail(path string, err error) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*sandbox.FileError](err); ok {
		if e.Path == "" {
			e.Path = path
		}
		return e
	}
	if invalid, ok := errors.AsType[*safepath.InvalidError](err); ok {
		return refuse("invalid_path", path, invalid.Error())
	}
	if errno, ok := errors.AsType[unix.Errno](err); ok {
		if kind, known := kinds[errno]; known {
			return &sandbox.FileError{Kind: kind, Path: path}
		}
		return &sandbox.FileError{Kind: "io", Path: path, Detail: errno.Error(), Err: err}
	}
	return &sandbox.FileError{Kind: "io", Path: path, Detail: err.Error(), Err: err}
}

func refuse(kind, path, detail string) error {
	return &sandbox.FileError{Kind: kind, Path: path, Detail: detail}
}

// callers marks an error of the caller's own reader or writer.
func callers(what, path string, err error) error {
	return &sandbox.FileError{Kind: "io", Path: path, Detail: fmt.Sprintf("%s: %v", what, err), Err: err}
}

// cancelled is non-nil once ctx is done.
func cancelled(ctx context.Context, path string) error {
	if ctx.Err() == nil {
		return nil
	}
	cause := context.Cause(ctx)
	return &sandbox.FileError{Kind: "io", Path: path, Detail: cause.Error(), Err: cause}
}

func isErrno(err error, any ...unix.Errno) bool {
	errno, ok := errors.AsType[unix.Errno](err)
	if !ok {
		return false
	}
	return slices.Contains(any, errno)
}
