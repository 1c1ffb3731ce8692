// Package live says what a change of a manifest does to a guest that runs: which steps QEMU takes, and what waits for a
// restart.
package live

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/tool/manifest"
)

// Result is what becomes of one object's guest.
type Result struct {
	// File is that of the new manifest, and Object such as VirtualMachine default/web.
	File, Object string
	// New: there was no such object, so no guest runs. Gone: there is no such object any more.
	New, Gone bool
	Changes   []qemuargs.Change
	// Restart are what no step changes: paths in the Machine, such as disks[data].serial.
	Restart []string
}

// isNothing reports whether the guest runs on as it is.
func (r Result) isNothing() bool { return !r.New && !r.Gone && len(r.Changes)+len(r.Restart) == 0 }

// String returns the result as a person reads it: a line for each step, below the part that it is of.
func (r Result) String() string {
	var s strings.Builder
	fmt.Fprintf(&s, "%s: %s\n", r.File, r.Object)
	switch {
	case r.New:
		s.WriteString("  is new: no guest of it runs\n")
	case r.Gone:
		s.WriteString("  is gone, and its guest with it\n")
	}
	for _, c := range r.Changes {
		if len(c.Steps) > 0 {
			fmt.Fprintf(&s, "  %s\n", c.Part)
		}
		for _, step := range c.Steps {
			fmt.Fprintf(&s, "    %s\n", step)
		}
	}
	for _, path := range r.Restart {
		fmt.Fprintf(&s, "  needs a restart: %s\n", path)
	}
	if len(r.Restart) > 0 && len(r.Changes) > 0 {
		s.WriteString("  the guest runs on as it is until then: a launcher takes all of the steps, or none\n")
	}
	return s.String()
}

// Compare returns what becomes of the guests of the old manifests when the new ones are applied, on one host. Objects
// are the same by kind, namespace and name. Where both sides have one object, the two are compared, whatever their
// names.
func Compare(old, now manifest.Set, host manifest.Host) ([]Result, error) {
	before, err := old.Instances()
	after, err2 := now.Instances()
	if err := errors.Join(err, err2); err != nil {
		return nil, err
	}
	single := len(before) == 1 && len(after) == 1
	var results []Result
	for _, i := range after {
		r := Result{File: i.Document.File, Object: i.Object()}
		at := slices.IndexFunc(before, func(b manifest.Instance) bool { return single || b.Object() == r.Object })
		if at < 0 {
			r.New = true
		} else if r.Changes, r.Restart, err = become(before[at], i, host); err != nil {
			return nil, err
		}
		if !r.isNothing() {
			results = append(results, r)
		}
	}
	for _, b := range before {
		if !single && !slices.ContainsFunc(after, func(i manifest.Instance) bool { return i.Object() == b.Object() }) {
			results = append(results, Result{File: b.Document.File, Object: b.Object(), Gone: true})
		}
	}
	return results, nil
}

// become returns what becomes of a guest that was started by one manifest, and is to follow another.
func become(from, to manifest.Instance, host manifest.Host) ([]qemuargs.Change, []string, error) {
	running, err := from.Machine(host)
	if err != nil {
		return nil, nil, err
	}
	next, err := to.Amend(host, from, running)
	if err != nil {
		return nil, nil, err
	}
	changes, restart := qemuargs.Become(running, next, running.Sets())
	return changes, restart, nil
}
