package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// module is what the names of packages begin with.
const module = "github.com/kubeqemu/kubeqemu/"

// part is a part of make test. Its times are seconds.
type part struct {
	name       string
	begin, end float64
}

// parseParts returns the parts of the file parts, in the order of their beginnings.
func parseParts(text string) (parts []part, err error) {
	for line := range strings.Lines(text) {
		var p part
		if _, err := fmt.Sscanf(line, "%s %f %f", &p.name, &p.begin, &p.end); err != nil {
			return nil, fmt.Errorf("read the part %q: %w", line, err)
		}
		parts = append(parts, p)
	}
	slices.SortStableFunc(parts, func(a, b part) int { return cmp.Compare(a.begin, b.begin) })
	return parts, nil
}

// taken is how many seconds a package or a test took.
type taken struct {
	name    string
	seconds float64
}

// times are those of packages and of tests.
type times struct {
	packages, tests []taken
}

// event is a line of `go test -json`: see `go doc test2json`.
type event struct {
	Action, Package, Test string
	Elapsed               float64 // seconds
}

// read adds the times in the output of `go test -json`. A run that was killed ends within a line.
func (t *times) read(r io.Reader) error {
	for decoder := json.NewDecoder(r); ; {
		var e event
		err := decoder.Decode(&e)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil
		}
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(e.Package, module)
		switch {
		case e.Action != "pass" && e.Action != "fail":
		case e.Test == "":
			t.packages = append(t.packages, taken{name, e.Elapsed})
		case !strings.Contains(e.Test, "/"): // the time of a test has those of its parts
			t.tests = append(t.tests, taken{name + "." + e.Test, e.Elapsed})
		}
	}
}

// slowest returns the longest, the longest first.
func slowest(all []taken) []taken {
	sorted := slices.Clone(all)
	slices.SortStableFunc(sorted, func(a, b taken) int { return cmp.Compare(b.seconds, a.seconds) })
	return sorted[:min(shown, len(sorted))]
}

// table returns the times as text: when each part began and ended, and the slowest packages and tests.
func table(parts []part, tests times) string {
	var out strings.Builder
	w := tabwriter.NewWriter(&out, 0, 0, 3, ' ', 0)
	if len(parts) > 0 {
		first, last := parts[0].begin, 0.0
		fmt.Fprintln(w, "part\tfrom, s\tto, s\ttook, s")
		for _, p := range parts {
			fmt.Fprintf(w, "%s\t%.0f\t%.0f\t%.0f\n", p.name, p.begin-first, p.end-first, p.end-p.begin)
			last = max(last, p.end-first)
		}
		fmt.Fprintf(w, "all\t0\t%.0f\t%.0f\n\n", last, last)
	}
	for _, list := range []struct {
		title string
		all   []taken
	}{{"packages", tests.packages}, {"tests", tests.tests}} {
		fmt.Fprintf(w, "slowest %s\ts\n", list.title)
		for _, t := range slowest(list.all) {
			fmt.Fprintf(w, "%s\t%.0f\n", t.name, t.seconds)
		}
		fmt.Fprintln(w)
	}
	w.Flush()
	return out.String()
}
