package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
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

// TestEveryRowIsMeasured: the files that measure name each row that there is, and add samples to no other. The IDs of
// some rows end with what varies, after a hyphen.
func TestEveryRowIsMeasured(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	names := func(literal, id string) bool {
		return literal == id || strings.HasSuffix(literal, "-") && strings.HasPrefix(id, literal)
	}
	var ids, literals []string
	for _, g := range groups() {
		for _, r := range g.rows {
			ids = append(ids, r.ID)
		}
	}
	added := regexp.MustCompile(`\.(?:add(?:[A-Z]\w*)?|row)\("([a-z0-9-]+)"`)
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") || slices.Contains([]string{"rows.go", "numbers.go", "plot.go"}, file) {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range regexp.MustCompile(`"([a-z0-9-]+)"`).FindAllStringSubmatch(string(text), -1) {
			literals = append(literals, match[1])
		}
		for _, match := range added.FindAllStringSubmatch(string(text), -1) {
			if !slices.ContainsFunc(ids, func(id string) bool { return names(match[1], id) }) {
				t.Errorf("%s measures %s, which is no row", file, match[1])
			}
		}
	}
	for _, id := range ids {
		if !slices.ContainsFunc(literals, func(literal string) bool { return names(literal, id) }) {
			t.Errorf("no file measures the row %s", id)
		}
	}
	if slices.Sort(ids); len(slices.Compact(slices.Clone(ids))) != len(ids) {
		t.Errorf("two rows have one ID: %q", ids)
	}
}
