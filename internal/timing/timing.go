// Package timing summarises measured durations.
package timing

import (
	"math"
	"slices"
	"time"
)

// Sample is a set of durations of one kind.
type Sample []time.Duration

// Summary is what a table or a report says of a sample, in milliseconds.
type Summary struct {
	N   int     `json:"n"`
	Min float64 `json:"min_ms"`
	P10 float64 `json:"p10_ms"`
	P50 float64 `json:"p50_ms"`
	P90 float64 `json:"p90_ms"`
	P99 float64 `json:"p99_ms"`
}

// Summarize leaves the sample as it is; an empty one gives zeros.
func (s Sample) Summarize() Summary {
	if len(s) == 0 {
		return Summary{}
	}
	sorted := slices.Sorted(slices.Values(s))
	return Summary{
		N: len(s), Min: milliseconds(sorted[0]), P10: quantile(sorted, 0.10),
		P50: quantile(sorted, 0.50), P90: quantile(sorted, 0.90), P99: quantile(sorted, 0.99),
	}
}

// quantile is the nearest rank: a value that was measured, never one between two.
func quantile(sorted []time.Duration, q float64) float64 {
	rank := max(int(math.Ceil(q*float64(len(sorted)))), 1)
	return milliseconds(sorted[rank-1])
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// Seconds turns the wire's seconds into a duration.
func Seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
