package main

import (
	"math"
	"slices"
	"time"
)

// sample is a set of durations of one kind.
type sample []time.Duration

// summary is what a table or a report says of a sample, in milliseconds.
type summary struct {
	N   int     `json:"n"`
	Min float64 `json:"min_ms"`
	P50 float64 `json:"p50_ms"`
	P90 float64 `json:"p90_ms"`
	P99 float64 `json:"p99_ms"`
}

// summarize sorts a copy; an empty sample gives zeros.
func (s sample) summarize() summary {
	if len(s) == 0 {
		return summary{}
	}
	sorted := slices.Sorted(slices.Values(s))
	return summary{
		N: len(s), Min: milliseconds(sorted[0]),
		P50: quantile(sorted, 0.50), P90: quantile(sorted, 0.90), P99: quantile(sorted, 0.99),
	}
}

// quantile is the nearest rank: a value that was measured, never one between two.
func quantile(sorted []time.Duration, q float64) float64 {
	rank := max(int(math.Ceil(q*float64(len(sorted)))), 1)
	return milliseconds(sorted[rank-1])
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
