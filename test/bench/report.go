package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// result is what a run found, as it is written to _output/bench/result.json.
type result struct {
	Facts []fact `json:"facts"`
	Rows  []row  `json:"rows"`
}

func (b *bench) resultFile() string { return filepath.Join(b.work, "result.json") }

// save writes the raw figures.
func (b *bench) save(r result) error {
	raw, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(b.resultFile(), append(raw, '\n'), 0o644)
}

// report prints the tables, and writes them and the raw figures.
func (b *bench) report(r result, write bool) error {
	table := markdown(r)
	fmt.Printf("\n%s\n", table)
	if err := b.save(r); err != nil {
		return err
	}
	b.say("raw figures are in %s", b.resultFile())
	if !write {
		return nil
	}
	return errors.Join(
		between(filepath.Join(b.repository, "docs", "benchmarks.md"), table),
		os.WriteFile(filepath.Join(b.repository, "docs", "benchmarks.svg"), []byte(plot(r)), 0o644),
		between(filepath.Join(b.repository, "README.md"), numbers(r)))
}

// What stands between these two lines of a file is written by the bench.
const (
	beginMarker = "<!-- written by make bench -->"
	endMarker   = "<!-- end of what make bench wrote -->"
)

// between replaces the text between the markers of a file.
func between(file, text string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	replaced, err := replaceBetween(string(data), text)
	if err != nil {
		return fmt.Errorf("write into %s: %w", file, err)
	}
	return os.WriteFile(file, []byte(replaced), 0o644)
}

func replaceBetween(whole, text string) (string, error) {
	before, rest, ok := strings.Cut(whole, beginMarker)
	if !ok {
		return "", fmt.Errorf("it has no line %q", beginMarker)
	}
	_, after, ok := strings.Cut(rest, endMarker)
	if !ok {
		return "", fmt.Errorf("it has no line %q", endMarker)
	}
	return before + beginMarker + "\n\n" + strings.TrimSpace(text) + "\n\n" + endMarker + after, nil
}

// markdown is the facts of the machine, the table of rows, and the table of their parts.
func markdown(r result) string {
	var w strings.Builder
	for _, f := range r.Facts {
		fmt.Fprintf(&w, "- %s: %s\n", f.Name, f.Value)
	}
	w.WriteString("\n| what | measured | beside it, in the same run | budget | verdict |\n|---|---|---|---|---|\n")
	for _, row := range r.Rows {
		fmt.Fprintf(&w, "| %s | %s | %s | %s | %s |\n",
			row.What, row.measured(), row.besides(), row.budget(), row.verdict())
	}
	w.WriteString("\nWhere it goes:\n\n| what | of which | |\n|---|---|---|\n")
	for _, row := range r.Rows {
		for _, part := range row.Parts {
			if s := part.summary(); s.N > 0 {
				fmt.Fprintf(&w, "| %s | %s | %s |\n", row.What, part.Name, spread(s, row.Unit))
			}
		}
	}
	for _, row := range r.Rows {
		for _, note := range row.Notes {
			fmt.Fprintf(&w, "\n%s: %s\n", row.What, note)
		}
	}
	return w.String()
}

func (r row) measured() string {
	if r.Failure != "" {
		return "–"
	}
	return "**" + spread(r.Ours.summary(), r.Unit) + "**"
}

func (r row) besides() string {
	var all []string
	for _, s := range r.Beside {
		text := fmt.Sprintf("%s: %s", s.Name, spread(s.summary(), r.Unit))
		if ratio := summarise(ratios(r.Ours.Samples, s.Samples)); ratio.N > 0 {
			text += fmt.Sprintf("; ours is **%s ×** that", number(ratio.Median))
			if ratio.N > 1 {
				text += fmt.Sprintf(" (%s–%s)", number(ratio.Q1), number(ratio.Q3))
			}
		}
		all = append(all, text)
	}
	return strings.Join(all, "<br>")
}

func (r row) budget() string {
	bound := "≤"
	if r.Unit.isRate() {
		bound = "≥"
	}
	switch {
	case r.None:
		return "none"
	case r.Limit == 0:
		return ""
	case r.OfRatio:
		return fmt.Sprintf("%s %g × %s", bound, r.Limit, r.Beside[0].Name)
	}
	return fmt.Sprintf("%s %g %s", bound, r.Limit, r.Unit)
}

// spread is a median with its quartiles, where there are any.
func spread(s summary, u unit) string {
	switch {
	case s.N == 0:
		return "–"
	case s.N == 1 || number(s.Q1) == number(s.Q3):
		return fmt.Sprintf("%s %s", number(s.Median), u)
	}
	return fmt.Sprintf("%s %s (%s–%s)", number(s.Median), u, number(s.Q1), number(s.Q3))
}

// number has no decimals from 100 on, one from 10 on, and one or two below.
func number(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return strings.TrimSuffix(fmt.Sprintf("%.2f", v), "0")
}
