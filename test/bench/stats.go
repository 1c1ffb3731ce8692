package main

import (
	"math"
	"slices"
)

// summary is the median of some samples, and their quartiles.
type summary struct {
	Median float64 `json:"median"`
	Q1     float64 `json:"q1"`
	Q3     float64 `json:"q3"`
	N      int     `json:"n"`
}

// summarise of no samples has N 0.
func summarise(samples []float64) summary {
	if len(samples) == 0 {
		return summary{}
	}
	sorted := slices.Sorted(slices.Values(samples))
	return summary{Median: quantile(sorted, 0.5), Q1: quantile(sorted, 0.25), Q3: quantile(sorted, 0.75), N: len(sorted)}
}

// quantile of sorted samples, linear between the two nearest ones.
func quantile(sorted []float64, q float64) float64 {
	at := q * float64(len(sorted)-1)
	low := int(math.Floor(at))
	high := int(math.Ceil(at))
	return sorted[low] + (sorted[high]-sorted[low])*(at-float64(low))
}

// ratios of the samples that were taken in the same round. A machine that is slow for a while
// is slow for both, so ratios spread less than samples.
func ratios(ours, theirs []float64) []float64 {
	var r []float64
	for i := range min(len(ours), len(theirs)) {
		if theirs[i] > 0 {
			r = append(r, ours[i]/theirs[i])
		}
	}
	return r
}
