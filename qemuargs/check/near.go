package check

import (
	"slices"
	"strings"
)

// longest bounds the names that are compared, in bytes.
const longest = 64

// near finds the known name that is nearest to a wrong one; it is empty if none is near.
func near(name string, known []string) string {
	if name == "" || len(name) > longest {
		return ""
	}
	best, distance := "", max(1, len(name)/3)+1
	meant := alike(name)
	for _, k := range slices.Sorted(slices.Values(known)) {
		if len(k) > longest || max(len(k)-len(name), len(name)-len(k)) > distance {
			continue
		}
		switch d := edits(meant, alike(k), distance); {
		case d < distance, d == distance && len(k) == len(name) && len(best) != len(name):
			best, distance = k, d
		}
	}
	return best
}

// alike leaves out what names differ in without a meaning.
func alike(name string) string { return strings.ReplaceAll(strings.ToLower(name), "_", "-") }

// edits is how many letters must be put in, taken out, changed, or swapped with the next, to make one text the other.
// It counts no further than to one more than most.
func edits(a, b string, most int) int {
	var before, last []int
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before, last, row = last, row, make([]int, len(b)+1)
		row[0] = i + 1
		least := row[0]
		for j := range len(b) {
			cost := last[j]
			if a[i] != b[j] {
				cost = 1 + min(last[j], row[j], last[j+1])
			}
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				cost = min(cost, before[j-1]+1)
			}
			row[j+1] = cost
			least = min(least, cost)
		}
		if least > most {
			return least
		}
	}
	return row[len(b)]
}
