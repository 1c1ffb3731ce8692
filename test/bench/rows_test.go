package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kubeqemu/kubeqemu/internal/testkit/golden"
)

// TestRows holds what is measured, beside what, in which unit and with which budget.
func TestRows(t *testing.T) {
	var w strings.Builder
	for _, g := range groups() {
		for _, r := range g.rows {
			fmt.Fprintf(&w, "%s %s: %s\n  unit %s, budget %g, of ratio %t, none %t, on the cluster %t\n  ours: %s\n",
				g.name, r.ID, r.What, r.Unit, r.Limit, r.OfRatio, r.None, g.cluster, r.Ours.Name)
			list(&w, "beside", r.Beside)
			list(&w, "parts", r.Parts)
			list(&w, "notes", named(r.Notes...))
		}
	}
	golden.Compare(t, "testdata/rows.golden", w.String())
}

func list(w *strings.Builder, what string, all []series) {
	var names []string
	for _, s := range all {
		name := s.Name
		if s.Reference {
			name += " (reference)"
		}
		names = append(names, name)
	}
	if len(names) > 0 {
		fmt.Fprintf(w, "  %s: %s\n", what, strings.Join(names, " | "))
	}
}
