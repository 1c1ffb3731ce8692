package main

import (
	"errors"
	"strings"
	"testing"
)

// TestFailedGroup: the rows that a group has not measured hold the error. A cluster that failed fails no group that
// does not need it.
func TestFailedGroup(t *testing.T) {
	cluster := errors.New("no cluster")
	half := func(r *run) { r.add("first", 1) }
	breaks := func(r *run) { half(r); fail("it broke") }
	whole := func(r *run) { half(r); r.add("second", 2) }
	for name, tt := range map[string]struct {
		group         group
		first, second string // why it was not measured
	}{
		"whole":            {group{measure: whole}, "", ""},
		"whole on cluster": {group{measure: whole, cluster: true}, "no cluster", "no cluster"},
		"breaks":           {group{measure: breaks}, "", "it broke"},
		"half":             {group{measure: half}, "", "row second has no sample"},
	} {
		tt.group.rows = []row{{ID: "first"}, {ID: "second"}}
		rows, err := (&bench{}).measureGroup(t.Context(), tt.group, cluster)
		for i, want := range []string{tt.first, tt.second} {
			if got := rows[i].Failure; (got == "") != (want == "") || !strings.HasSuffix(got, want) {
				t.Errorf("%s: row %s was not measured because %q, want %q", name, rows[i].ID, got, want)
			}
		}
		if (err == nil) != (tt.second == "") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
