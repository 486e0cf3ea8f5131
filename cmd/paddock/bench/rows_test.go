package bench

import (
	"strings"
	"testing"
)

func TestPickRows(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		names []string
		quick bool
		want  []string
	}{
		{"none is all", nil, false, RowNames()},
		{"quick leaves out what takes long", nil, true, []string{RowRounds, RowIdle, RowCapture}},
		{"named ones alone", []string{RowTrace}, false, []string{RowTrace}},
		{"named ones, quick or not", []string{RowLive, RowTrace}, true, []string{RowLive, RowTrace}},
	} {
		got, err := PickRows(test.names, test.quick)
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
		}
		for _, row := range RowNames() {
			want := strings.Contains(strings.Join(test.want, " "), row)
			if got[row] != want {
				t.Errorf("%s: %s = %v, want %v", test.name, row, got[row], want)
			}
		}
	}
}

func TestPickRowsNamesThoseThatThereAre(t *testing.T) {
	t.Parallel()
	_, err := PickRows([]string{RowTrace, "speed"}, false)
	if err == nil || !strings.Contains(err.Error(), `"speed"`) || !strings.Contains(err.Error(), RowBurst) {
		t.Errorf("PickRows() = %v, want the wrong name and the right ones", err)
	}
}
