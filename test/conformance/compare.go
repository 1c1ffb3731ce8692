package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
)

// outcome is how a run of the suite and the list agree.
type outcome struct {
	ran, passed int
	by          map[class]int // what did not pass, and is in the list
	unlisted    []spec        // what did not pass, and is not in the list
	better      []entry       // what passed, and is in the list
	absent      []entry       // what is in the list, and did not run
}

// green reports whether the run and the list say the same.
func (o outcome) green() bool { return len(o.unlisted)+len(o.better)+len(o.absent) == 0 }

// compare holds the specs of a run against the list. An entry stands for all specs of its place: it is right if one of them does not pass,
// or if chance decides.
func compare(specs []spec, list map[string]entry) outcome {
	o := outcome{by: map[class]int{}}
	failed := map[string]bool{}
	ran := map[string]bool{}
	for _, s := range specs {
		o.ran++
		ran[s.place] = true
		e, listed := list[s.place]
		switch {
		case s.passed():
			o.passed++
		case listed:
			o.by[e.class]++
			failed[s.place] = true
		default:
			o.unlisted = append(o.unlisted, s)
		}
	}
	for place, e := range list {
		switch {
		case !ran[place]:
			o.absent = append(o.absent, e)
		case !failed[place] && !e.chance:
			o.better = append(o.better, e)
		}
	}
	slices.SortFunc(o.unlisted, func(a, b spec) int { return cmp.Or(strings.Compare(a.place, b.place), strings.Compare(a.text, b.text)) })
	byLine := func(a, b entry) int { return cmp.Compare(a.line, b.line) }
	slices.SortFunc(o.better, byLine)
	slices.SortFunc(o.absent, byLine)
	return o
}

// longestMessage is how much of a failure's message is printed, in bytes: some have whole objects in them.
const longestMessage = 600

// write writes what a reader of the run wants to know: the numbers, and each difference.
func (o outcome) write(w io.Writer) {
	for _, s := range o.unlisted {
		message := strings.Join(strings.Fields(s.message), " ")
		if len(message) > longestMessage {
			message = strings.ToValidUTF8(message[:longestMessage], "") + " ..."
		}
		fmt.Fprintf(w, "NOT IN THE LIST: %s %s (%.0f s): %s\n\tat %s: %s\n", s.place, s.state, s.took.Seconds(), s.text, s.at, message)
	}
	for _, e := range o.better {
		fmt.Fprintf(w, "PASSES NOW: %s: take line %d out of the list (%s: %s)\n", e.place, e.line, e.class, e.reason)
	}
	for _, e := range o.absent {
		fmt.Fprintf(w, "DID NOT RUN: %s, line %d of the list (%s: %s)\n", e.place, e.line, e.class, e.reason)
	}
	fmt.Fprintf(w, "%d specs, %d passed", o.ran, o.passed)
	for _, c := range classes() {
		if o.by[c] > 0 {
			fmt.Fprintf(w, ", %d %s", o.by[c], c)
		}
	}
	if len(o.unlisted) > 0 {
		fmt.Fprintf(w, ", %d not in the list", len(o.unlisted))
	}
	fmt.Fprintln(w)
}
