package main

import (
	"math"
	"slices"
	"testing"
)

func TestSummarise(t *testing.T) {
	tests := map[string]struct {
		samples []float64
		want    summary
	}{
		"none":     {nil, summary{}},
		"one":      {[]float64{7}, summary{7, 7, 7, 1}},
		"two":      {[]float64{3, 1}, summary{2, 1.5, 2.5, 2}},
		"odd":      {[]float64{5, 1, 4, 2, 3}, summary{3, 2, 4, 5}},
		"even":     {[]float64{4, 1, 3, 2}, summary{2.5, 1.75, 3.25, 4}},
		"outliers": {[]float64{1, 1, 1, 1, 1000}, summary{1, 1, 1, 5}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			before := slices.Clone(tt.samples)
			if got := summarise(tt.samples); got != tt.want {
				t.Errorf("%v: got %+v, want %+v", tt.samples, got, tt.want)
			}
			if !slices.Equal(before, tt.samples) {
				t.Errorf("the samples were changed: %v", tt.samples)
			}
		})
	}
}

func TestRatios(t *testing.T) {
	// The second round ran on a machine half as fast; a round without a
	// partner, or with one that took no time, gives none.
	got := ratios([]float64{15, 30, 10, 7}, []float64{10, 20, 0})
	if want := []float64{1.5, 1.5}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if s := summarise(got); math.Abs(s.Median-1.5) > 1e-9 {
		t.Errorf("median %v", s)
	}
}
