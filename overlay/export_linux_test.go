package overlay

import (
	"context"
	"os"
)

// MergeDirs merges directories of layers, the topmost first, as they lie on those below, into
// an empty directory, and answers the diffID of what it wrote and of what is there.
func MergeDirs(ctx context.Context, top, below []string, into string) (written, found string, err error) {
	dir, err := os.Open(into)
	if err != nil {
		return "", "", err
	}
	defer func() { _ = dir.Close() }()
	l, err := mergeDirs(ctx, top, below, newTree(int(dir.Fd()), Limits{}.orDefault()))
	if err != nil {
		return "", "", err
	}
	there, err := measure(ctx, int(dir.Fd()), func(string, int64, int64) {})
	return l.DiffID, there.DiffID, err
}
