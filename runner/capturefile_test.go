package runner

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/paddock-run/paddock/overlay"
)

// A capture is read back as it was kept, whatever bytes names are made of: a lost path is
// an end state that cannot be made again.
func TestKeptCaptureIsReadBackWhole(t *testing.T) {
	t.Parallel()
	want := overlay.Capture{
		State: "v1:sha256:0", StateFull: "v1:sha256:1", Bytes: 3, Stored: 3, Rescorable: true,
		Changes: []overlay.Change{
			{Path: "/a", Kind: overlay.Created, Type: "file", Mode: 0o644, Size: 3, SHA256: "00", Offset: 512},
			{Path: "/b\xff\n", Kind: overlay.Created, Type: "symlink", Target: "\xfe", Offset: -1},
			{Path: "/c", Kind: overlay.Created, Type: "file", LinkedTo: "/b\xff\n", Offset: -1, Xattrs: map[string][]byte{"user.x": {0, 255}, "user.\xff": {1}}},
			{Path: "/c\"<\u2028>", Kind: overlay.Modified, Type: "char", Rdev: 1 << 40, UID: 7, GID: 8, Opaque: true, Offset: 0, ModTime: time.Unix(1790000000, 5).UTC()},
			{Path: "/d", Kind: overlay.Deleted, Offset: -1},
		},
	}
	dir := t.TempDir()
	if err := saveCapture(dir, want); err != nil {
		t.Fatal(err)
	}
	got, err := loadCapture(dir)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("loadCapture() differs (-want +got):\n%s", diff)
	}
}
