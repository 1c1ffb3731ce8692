package main

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strings"
)

// class is why a spec does not pass.
type class string

const (
	fault    class = "fault"    // Kubeqemu does something else than KubeVirt, and should not
	decision class = "decision" // Kubeqemu does something else on purpose: docs/decisions.md has the reason
	missing  class = "missing"  // a feature that Kubeqemu lacks
	libvirt  class = "libvirt"  // the spec looks at libvirt, or into the container that KubeVirt runs it in
	hardware class = "hardware" // what the test's machine or cluster lacks
	harness  class = "harness"  // what the stand-ins of this folder lack
)

// classes are all classes, in the order of the table that the program prints.
func classes() []class {
	return []class{fault, decision, missing, libvirt, hardware, harness}
}

// entry is a line of the list: the specs at a place in the suite that do not pass.
type entry struct {
	place  string // FILE:LINE below KubeVirt's folder tests
	class  class
	reason string
	chance bool // the spec passes or not by chance
	line   int  // in the list's file
}

// readList returns the entries of a list, by place. Each line is CLASS FILE:LINE REASON. After a class with a question mark
// chance decides whether the spec passes. Empty lines, and lines that begin with #, are left out.
func readList(r io.Reader) (map[string]entry, error) {
	entries := map[string]entry{}
	scanner := bufio.NewScanner(r)
	for n := 1; scanner.Scan(); n++ {
		line := strings.TrimSpace(scanner.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		of, rest, _ := strings.Cut(line, " ")
		place, reason, _ := strings.Cut(strings.TrimSpace(rest), " ")
		of, chance := strings.CutSuffix(of, "?")
		e := entry{place: place, class: class(of), reason: strings.TrimSpace(reason), chance: chance, line: n}
		if !slices.Contains(classes(), e.class) {
			return nil, fmt.Errorf("line %d: no class %q: it is one of %v", n, e.class, classes())
		}
		if file, _, ok := strings.Cut(place, ".go:"); !ok || file == "" || e.reason == "" {
			return nil, fmt.Errorf("line %d: %q is not CLASS FILE:LINE REASON", n, line)
		}
		if other, ok := entries[place]; ok {
			return nil, fmt.Errorf("line %d: %s is in line %d already", n, place, other.line)
		}
		entries[place] = e
	}
	return entries, scanner.Err()
}
