package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// FileSystem says what a store lies on.
type FileSystem struct {
	Type string `json:"type"`
	// Journal is false for an ext4 without one: file-heavy work there becomes many times
	// slower after deletes, so no figure from it is worth quoting.
	Journal bool `json:"journal"`
}

// fit says whether figures from this store may be quoted.
func (f FileSystem) fit() bool { return f.Type != "ext4" || f.Journal }

// lookAt looks at the file system that holds dir.
func lookAt(dir string) (FileSystem, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return FileSystem{}, fmt.Errorf("look at the file system of %s: %w", dir, err)
	}
	switch fs.Type {
	case unix.TMPFS_MAGIC:
		return FileSystem{Type: "tmpfs", Journal: true}, nil
	case unix.XFS_SUPER_MAGIC:
		return FileSystem{Type: "xfs", Journal: true}, nil
	case unix.BTRFS_SUPER_MAGIC:
		return FileSystem{Type: "btrfs", Journal: true}, nil
	case unix.OVERLAYFS_SUPER_MAGIC:
		return FileSystem{Type: "overlay", Journal: true}, nil
	case unix.EXT4_SUPER_MAGIC:
		var st unix.Stat_t
		if err := unix.Stat(dir, &st); err != nil {
			return FileSystem{}, fmt.Errorf("look at %s: %w", dir, err)
		}
		return FileSystem{Type: "ext4", Journal: hasJournal(st.Dev)}, nil
	}
	return FileSystem{Type: fmt.Sprintf("0x%x", uint32(fs.Type)), Journal: true}, nil
}

// hasJournal looks for the kernel's journal thread of a block device.
func hasJournal(dev uint64) bool {
	link, err := os.Readlink(fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(dev), unix.Minor(dev)))
	if err != nil {
		return true // an unknown device is not accused
	}
	entries, err := os.ReadDir("/proc/fs/jbd2")
	if err != nil {
		return false
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), filepath.Base(link)+"-") {
			return true
		}
	}
	return false
}
