package runner

import (
	"fmt"
	"strings"
	"testing"

	"github.com/paddock-run/paddock/overlay"
)

func TestKeptIsWhatIsBelowItsDirectories(t *testing.T) {
	t.Parallel()
	file := func(path string, offset int64) overlay.Change {
		return overlay.Change{Path: path, Kind: overlay.Created, Type: "file", Offset: offset}
	}
	link := func(path, to string) overlay.Change {
		return overlay.Change{Path: path, Kind: overlay.Created, Type: "file", LinkedTo: to, Offset: -1}
	}
	for name, c := range map[string]struct {
		changes []overlay.Change
		want    string
		whole   bool
	}{
		"below and at, not beside": {
			[]overlay.Change{file("/a/b", 1), {Path: "/app", Kind: overlay.Modified, Type: "dir"}, file("/app/x", 2), file("/apple", 3)},
			"modified /app, created /app/x@2", true,
		},
		"directories above that were made, not those that were changed": {
			[]overlay.Change{{Path: "/", Kind: overlay.Modified, Type: "dir"}, {Path: "/srv", Kind: overlay.Created, Type: "dir"}, {Path: "/srv/w", Kind: overlay.Created, Type: "dir"}, file("/srv/w/x", 1)},
			"created /srv, created /srv/w, created /srv/w/x@1", true,
		},
		"one above that was taken away": {
			[]overlay.Change{{Path: "/srv", Kind: overlay.Deleted}}, "deleted /srv/w", true,
		},
		"one above that is a link now": {
			[]overlay.Change{{Path: "/srv", Kind: overlay.TypeChanged, Type: "symlink", Target: "/tmp/fake"}}, "deleted /srv/w", true,
		},
		"a file whose first name is not kept": {
			[]overlay.Change{file("/a", 7), link("/app/x", "/a"), link("/app/y", "/a"), link("/b", "/a")},
			"created /app/x@7, created /app/y=/app/x", true,
		},
		"bytes that were not stored":            {[]overlay.Change{file("/app/x", -1)}, "created /app/x@-1", false},
		"bytes that were not stored, elsewhere": {[]overlay.Change{file("/big", -1), file("/app/x", 0)}, "created /app/x@0", true},
	} {
		got := keptOf(overlay.Capture{Changes: c.changes}, []string{"/app", "/srv/w"}, true)
		var said []string
		for _, ch := range got.Changes {
			s := fmt.Sprintf("%s %s", ch.Kind, ch.Path)
			if ch.LinkedTo != "" {
				s += "=" + ch.LinkedTo
			} else if ch.Type == "file" {
				s += fmt.Sprintf("@%d", ch.Offset)
			}
			said = append(said, s)
		}
		if text := strings.Join(said, ", "); text != c.want || got.Rescorable != c.whole {
			t.Errorf("%s: %s, whole %v; want %s, %v", name, text, got.Rescorable, c.want, c.whole)
		}
	}
	if keptOf(overlay.Capture{Truncated: true, Rescorable: true}, []string{"/app"}, true).Rescorable {
		t.Error("a capture that was cut short passes for whole")
	}
}
