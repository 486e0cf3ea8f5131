package main

import (
	"testing"
	"time"
)

func TestSummarizeTakesNearestRanks(t *testing.T) {
	t.Parallel()
	hundred := make(sample, 100)
	for i := range hundred {
		hundred[i] = time.Duration(100-i) * time.Millisecond
	}
	for _, test := range []struct {
		name string
		in   sample
		want summary
	}{
		{"nothing", nil, summary{}},
		{"one", sample{2 * time.Millisecond}, summary{N: 1, Min: 2, P50: 2, P90: 2, P99: 2}},
		{"hundred", hundred, summary{N: 100, Min: 1, P50: 50, P90: 90, P99: 99}},
	} {
		if got := test.in.summarize(); got != test.want {
			t.Errorf("%s: summarize() = %+v, want %+v", test.name, got, test.want)
		}
	}
}
