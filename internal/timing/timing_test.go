package timing

import (
	"testing"
	"time"
)

func TestSummarizeTakesNearestRanks(t *testing.T) {
	t.Parallel()
	hundred := make(Sample, 100)
	for i := range hundred {
		hundred[i] = time.Duration(100-i) * time.Millisecond
	}
	for _, test := range []struct {
		name string
		in   Sample
		want Summary
	}{
		{"nothing", nil, Summary{}},
		{"one", Sample{2 * time.Millisecond}, Summary{N: 1, Min: 2, P10: 2, P50: 2, P90: 2, P99: 2}},
		{"hundred", hundred, Summary{N: 100, Min: 1, P10: 10, P50: 50, P90: 90, P99: 99}},
	} {
		if got := test.in.Summarize(); got != test.want {
			t.Errorf("%s: Summarize() = %+v, want %+v", test.name, got, test.want)
		}
	}
}
