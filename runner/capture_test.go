package runner

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/paddock-run/paddock/overlay"
)

func TestACaptureIsReadBackAsItWasSaved(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	saved := overlay.Capture{
		Changes: []overlay.Change{
			{Path: "/workdir/a\nb\xff", Kind: overlay.Created, Type: "file", Size: 3, SHA256: "ab"},
			{Path: "/workdir/link", Kind: overlay.Created, Type: "symlink", Target: "\xfe/x"},
			{Path: "/workdir/other", Kind: overlay.Created, Type: "file", LinkedTo: "/workdir/a\nb\xff"},
		},
		State: "sha256:1", Bytes: 3, Rescorable: true,
	}
	if err := saveCapture(dir, saved); err != nil {
		t.Fatal(err)
	}
	got, err := loadCapture(dir)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(saved, got); diff != "" {
		t.Errorf("loadCapture() differs from what was saved:\n%s", diff)
	}
}
