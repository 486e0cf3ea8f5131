package overlay

import (
	"context"
	"io"
	"os"
)

// Import reads a world from an OCI image layout tar.
func (s *Store) Import(ctx context.Context, r io.Reader, name string, p Progress) (World, error) {
	return World{}, refuse("bad_archive", "", "not built yet")
}

// Export writes a world as an OCI image layout tar.
func (s *Store) Export(ctx context.Context, ref string, w io.Writer) error {
	return refuse("bad_archive", "", "not built yet")
}

// Restore makes a capture again as a layer directory.
func (f *Fork) Restore(ctx context.Context, c Capture, pack string, dir *os.File, hostID uint32) error {
	return refuse("bad_archive", "", "not built yet")
}
