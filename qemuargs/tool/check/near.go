package check

import (
	"iter"
	"strings"
)

// longest bounds the names that are compared, in bytes.
const longest = 64

// near finds the known name that is nearest to a wrong one; it is empty if none is near. Of names that are as near it
// finds one of the wrong name's length, and of those the first in the alphabet.
func near(name string, known iter.Seq[string]) string {
	if name == "" || len(name) > longest {
		return ""
	}
	best, distance := "", max(1, len(name)/3)+1
	meant := alike(name)
	if len(meant) > longest {
		return ""
	}
	for k := range known {
		if max(len(k)-len(name), len(name)-len(k)) > distance {
			continue
		}
		other := alike(k)
		if len(other) > longest { // small letters may have more bytes
			continue
		}
		d := edits(meant, other, distance)
		same, bestSame := len(k) == len(name), len(best) == len(name)
		if d < distance || d == distance && (same && !bestSame || same == bestSame && best != "" && k < best) {
			best, distance = k, d
		}
	}
	return best
}

// alike leaves out what names differ in without a meaning.
func alike(name string) string { return strings.ReplaceAll(strings.ToLower(name), "_", "-") }

// edits returns how many letters must be put in, taken out, changed, or swapped with the next, to make one text the
// other. It counts no further than to one more than most. The texts are no longer than longest.
func edits(a, b string, most int) int {
	var rows [3][longest + 1]int
	row := &rows[0]
	for j := range len(b) + 1 {
		row[j] = j
	}
	for i := range len(a) {
		before, last := &rows[(i+2)%3], row
		row = &rows[(i+1)%3]
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
