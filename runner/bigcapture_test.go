package runner

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/paddock-run/paddock/overlay"
)

func TestTamperingsAreBoundedAndOnlyOfProtectedPaths(t *testing.T) {
	t.Parallel()
	var changes []overlay.Change
	for i := range 3 * maxTampered {
		changes = append(changes,
			overlay.Change{Path: fmt.Sprintf("/junk/%d", i), Kind: overlay.Created},
			overlay.Change{Path: fmt.Sprintf("/tests/%d", i), Kind: overlay.Created})
	}
	for name, c := range map[string]struct {
		protected []string
		want      int
	}{
		"nothing is protected": {nil, 0},
		"nothing was touched":  {[]string{"/app", "/tes"}, 0},
		"one file":             {[]string{"/tests/7"}, 1},
		"a directory":          {[]string{"/tests"}, maxTampered},
	} {
		found := tamperings(changes, c.protected)
		if len(found) != c.want {
			t.Errorf("%s: %d found, want %d", name, len(found), c.want)
		}
		if again := tamperings(found, c.protected); !cmp.Equal(again, found) {
			t.Errorf("%s: what was kept is judged otherwise", name)
		}
	}
}
