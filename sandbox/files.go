package sandbox

import (
	"fmt"
	"time"
)

// FileType is the kind of a directory entry.
type FileType string

// The types of entries.
const (
	RegularFile FileType = "file"
	Directory   FileType = "dir"
	Symlink     FileType = "symlink"
	FIFO        FileType = "fifo"
	Socket      FileType = "socket"
	CharDevice  FileType = "char"
	BlockDevice FileType = "block"
)

// FileInfo describes one entry of a sandbox's tree. Names and targets are raw bytes.
type FileInfo struct {
	Name    string // last element, raw bytes
	Type    FileType
	Mode    uint32 // permission, set-id and sticky bits
	UID     uint32 // in the sandbox's ids
	GID     uint32
	Size    int64
	ModTime time.Time
	Target  string // of a symlink
}

// FileError is why a file operation was refused; Kind is stable.
type FileError struct {
	// Kind is not_found, is_directory, not_a_directory, not_a_regular_file,
	// permission_denied, already_exists, not_empty, no_space, read_only, name_too_long,
	// too_many_links, outside_root, invalid_path, too_large, invalid_archive or io.
	Kind string
	Path string
	// Detail is for people; may be empty.
	Detail string
	// Err is the cause where it is not the tree's: the caller's reader, writer or context.
	Err error
}

func (e *FileError) Error() string {
	if e.Detail == "" {
		return fmt.Sprintf("%q: %s", e.Path, e.Kind)
	}
	return fmt.Sprintf("%q: %s: %s", e.Path, e.Kind, e.Detail)
}

// Unwrap returns Err, so that a caller can tell its own failure from the tree's.
func (e *FileError) Unwrap() error { return e.Err }

// TarLimits bound what an archive may unpack to; 0 means the package's default.
type TarLimits struct {
	Bytes   int64
	Entries int64
}
