package overlay

import (
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"time"
)

// Words of entry.kind and Change.Type.
const (
	typeFile    = "file"
	typeDir     = "dir"
	typeSymlink = "symlink"
	typeFIFO    = "fifo"
	typeSocket  = "socket"
	typeChar    = "char"
	typeBlock   = "block"
	// typeWhiteout is an entry that hides what lower layers have at its path.
	typeWhiteout = "whiteout"
	// typeHardlink is one more name of a file that came before.
	typeHardlink = "hardlink"
)

const (
	opaqueXattr  = "trusted.overlay.opaque"
	whiteoutMark = ".wh."
	opaqueMark   = ".wh..wh..opq"
	rootMode     = 0o755
	modeBits     = 0o7777
	// idSpan is how many user ids a sandbox has; a file of a higher one would be nobody's.
	idSpan     = 65536
	overflowID = 65534
	maxName    = 255
	maxPath    = 4095
)

// entry is one path of a layer. Paths are relative to the layer's root, without "./" or a
// slash at either end; the root itself is "".
type entry struct {
	path   string
	kind   string
	mode   uint32 // permission bits with setuid, setgid and sticky
	uid    uint32
	gid    uint32
	size   int64
	mtime  time.Time
	target string // of a symlink, or the path of a hard link's first name
	xattrs map[string][]byte
	opaque bool
}

// literal says whether an image would read the entry's name as a deletion, which it is not.
func (e *entry) literal() bool {
	return e.kind != typeWhiteout && strings.HasPrefix(path.Base(e.path), whiteoutMark)
}

// before is the canonical order: a directory, then what is in it, names in byte order.
func before(a, b string) int {
	for i := range min(len(a), len(b)) {
		if a[i] == b[i] {
			continue
		}
		if a[i] == '/' || (b[i] != '/' && a[i] < b[i]) {
			return -1
		}
		return 1
	}
	return len(a) - len(b)
}

// keptXattr says whether a layer holds that attribute. Attributes that steer overlayfs or
// belong to this host's security modules are not the world's.
func keptXattr(name string) bool {
	if strings.HasPrefix(name, "user.overlay.") || strings.Contains(name, "=") {
		return false
	}
	return strings.HasPrefix(name, "user.") || name == "security.capability"
}

// mounted are the directories that a launcher mounts on or writes to; a world may not
// have anything else there.
var mounted = []string{"dev", "etc", "proc", "sys", "tmp", "run"}

// checkEntry refuses what no layer may hold.
func checkEntry(e *entry) error {
	if err := checkPath(e.path); err != nil {
		return err
	}
	switch e.kind {
	case typeChar, typeBlock, typeSocket:
		return refuse("unsupported_entry", e.path, "a world holds no %s", map[string]string{
			typeChar: "device nodes", typeBlock: "device nodes", typeSocket: "sockets",
		}[e.kind])
	case typeSymlink:
		if e.target == "" || len(e.target) > maxPath || strings.Contains(e.target, "\x00") {
			return refuse("bad_archive", e.path, "a symlink's target is empty or too long")
		}
	}
	if e.uid >= idSpan || e.gid >= idSpan {
		return refuse("world_invalid", e.path, "owner %d:%d: a sandbox has the ids below %d", e.uid, e.gid, idSpan)
	}
	if e.kind != typeDir && slices.Contains(mounted, e.path) {
		return refuse("world_invalid", "/"+e.path, "must be a directory, is a %s", e.kind)
	}
	return nil
}

// checkPath refuses paths that are not clean, relative and representable.
func checkPath(p string) error {
	if len(p) > maxPath {
		return refuse("invalid_path", p[:64]+"...", "longer than %d bytes", maxPath)
	}
	for name := range strings.SplitSeq(p, "/") {
		switch {
		case name == "" || name == ".":
			return refuse("invalid_path", p, "not a clean relative path")
		case name == "..":
			return refuse("outside_root", p, "leads out of the world")
		case len(name) > maxName:
			return refuse("invalid_path", p, "a name is longer than %d bytes", maxName)
		case strings.Contains(name, "\x00"):
			return refuse("invalid_path", p, "a name holds a NUL byte")
		}
	}
	return nil
}

// cleanPath makes an archive's name an entry's path.
func cleanPath(name string) (string, error) {
	if strings.HasPrefix(name, "/") {
		return "", refuse("invalid_path", name, "absolute; names in an archive are relative")
	}
	if slices.Contains(strings.Split(name, "/"), "..") {
		return "", refuse("outside_root", name, "leads out of the archive")
	}
	p := path.Clean(name)
	if p == "." {
		return "", nil
	}
	return p, checkPath(p)
}

// climbs says whether a relative symlink at p leads, by its text, above the world's root.
// Inside a sandbox it would end at the root; that is never what the author meant.
func climbs(p, target string) bool {
	if strings.HasPrefix(target, "/") {
		return false
	}
	depth := strings.Count(p, "/")
	for name := range strings.SplitSeq(target, "/") {
		switch name {
		case "", ".":
		case "..":
			depth--
		default:
			depth++
		}
		if depth < 0 {
			return true
		}
	}
	return false
}

func refuse(kind, p, format string, args ...any) error {
	return &RecipeError{Kind: kind, Path: p, Detail: fmt.Sprintf(format, args...)}
}

// sink takes a layer's entries, parents first. body is read for files only.
type sink interface {
	add(e *entry, body io.Reader) error
}
