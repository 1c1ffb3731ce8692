package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// tally is what was counted in one place.
type tally struct {
	comments int // functions whose comments do not say what the function does
	lines    int // too long
	cells    int // of tables, too long
}

// counts are the tallies by place: a folder with Go files, or a page.
type counts map[string]tally

// add adds to a place's tally.
func (c counts) add(place string, more tally) {
	t := c[place]
	c[place] = tally{t.comments + more.comments, t.lines + more.lines, t.cells + more.cells}
}

// text returns the counts as they are written down: a line for each place that has any.
func (c counts) text() []byte {
	var out strings.Builder
	out.WriteString("# What tools/prose has counted. A count may only fall: go -C tools run ./prose -update ..\n")
	for _, place := range slices.Sorted(maps.Keys(c)) {
		if t := c[place]; t != (tally{}) {
			fmt.Fprintf(&out, "%s comments %d lines %d cells %d\n", place, t.comments, t.lines, t.cells)
		}
	}
	return []byte(out.String())
}

// parse reads what text wrote.
func parse(text string) (counts, error) {
	out := counts{}
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if strings.HasPrefix(line, "#") {
			continue
		}
		var place string
		var t tally
		if _, err := fmt.Sscanf(line, "%s comments %d lines %d cells %d", &place, &t.comments, &t.lines, &t.cells); err != nil {
			return nil, fmt.Errorf("read the line %q: %w", line, err)
		}
		out[place] = t
	}
	return out, nil
}

// lowered returns the counts, and those of found where they are lower. A place that is new may have none.
func (c counts) lowered(found counts) counts {
	out := counts{}
	for place, was := range c {
		is := found[place]
		out[place] = tally{min(was.comments, is.comments), min(was.lines, is.lines), min(was.cells, is.cells)}
	}
	return out
}

// against returns an error that names the places where the counts are not those that are written.
func (c counts) against(written counts) error {
	var problems []error
	all := maps.Clone(c)
	maps.Copy(all, written)
	for _, place := range slices.Sorted(maps.Keys(all)) {
		is, was := c[place], written[place]
		for _, one := range []struct {
			what    string
			is, was int
		}{
			{"functions whose comments do not begin with the name and what it does (returns, reports whether, writes)", is.comments, was.comments},
			{"lines of more than 120 characters", is.lines, was.lines},
			{"cells of tables of more than 160 characters", is.cells, was.cells},
		} {
			switch {
			case one.is > one.was:
				problems = append(problems, fmt.Errorf("%s has %d %s; there were %d, and there may only be fewer", place, one.is, one.what, one.was))
			case one.is < one.was:
				problems = append(problems, fmt.Errorf("%s has only %d %s, of %d: write that down with go -C tools run ./prose -update ..", place, one.is, one.what, one.was))
			}
		}
	}
	return errors.Join(problems...)
}
