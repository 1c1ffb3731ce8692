package compare

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// Arguments returns the arguments as text, one line each.
func Arguments(args []qemuargs.Arg) []Argument {
	var out []Argument
	for _, a := range args {
		line := strings.Join(qemuargs.Strings([]qemuargs.Arg{a}), " ")
		out = append(out, Argument(oneLine.Replace(line)))
	}
	return out
}

// Words returns the arguments of a process, one line each: a flag with its value. The value of -append may begin with a
// dash. No other value of Kubeqemu's does.
func Words(words []string) []Argument {
	var out []Argument
	for i := 0; i < len(words); i++ {
		line := words[i]
		if i+1 < len(words) && (line == "-append" || !strings.HasPrefix(words[i+1], "-")) {
			i++
			line += " " + words[i]
		}
		out = append(out, Argument(oneLine.Replace(line)))
	}
	return out
}

// oneLine keeps a line feed in an argument, in -append say, from ending the line.
var oneLine = strings.NewReplacer("\n", `\n`, "\r", `\r`)

// Change is what becomes of one part of a machine.
type Change struct {
	// Part is such as "disk root" or "cpu".
	Part string
	// Guest says whether the guest sees the change.
	Guest bool
	// Before and After are the arguments that go, and those that come.
	Before, After []Argument
}

// Diff returns the changes from one command line to another, in the order of the parts. It
// passes over the numbers of inherited files.
func Diff(before, after []Argument) []Change {
	old, now := byPart(before), byPart(after)
	var changes []Change
	for _, part := range slices.Compact(slices.Concat(now.order, old.order)) {
		if slices.ContainsFunc(changes, func(c Change) bool { return c.Part == part }) {
			continue
		}
		if c, differs := change(part, old.args[part], now.args[part]); differs {
			changes = append(changes, c)
		}
	}
	return changes
}

func change(part string, old, now []Argument) (c Change, differs bool) {
	c = Change{Part: part, Before: without(old, now), After: without(now, old)}
	if len(c.Before)+len(c.After) == 0 {
		if slices.EqualFunc(old, now, same) {
			return c, false
		}
		c.Before, c.After = old, now // in another order
	}
	for _, p := range pairs(c.Before, c.After) {
		c.Guest = c.Guest || guestSees(p[0], p[1])
	}
	return c, true
}

// parted are the arguments of each part, and the parts in the order in which they come.
type parted struct {
	order []string
	args  map[string][]Argument
}

// Parts returns the parts of the machine that arguments are of, one for each argument.
func Parts(args []Argument) []string {
	out := make([]string, len(args))
	for i, a := range args {
		out[i] = a.Part()
		if a.flag() == "-add-fd" && i+1 < len(args) {
			out[i] = args[i+1].Part() // the file is for the disk that follows
		}
	}
	return out
}

func byPart(args []Argument) parted {
	p := parted{args: map[string][]Argument{}}
	parts := Parts(args)
	for i, a := range args {
		part := parts[i]
		if p.args[part] == nil {
			p.order = append(p.order, part)
		}
		p.args[part] = append(p.args[part], a)
	}
	return p
}

// without returns the arguments that others lack.
func without(args, others []Argument) []Argument {
	return slices.DeleteFunc(slices.Clone(args), func(a Argument) bool {
		return slices.ContainsFunc(others, func(b Argument) bool { return same(a, b) })
	})
}

// pairs puts an argument that goes beside the argument that comes in its place: of the same
// flag and, if it has one, of the same id.
func pairs(before, after []Argument) [][2]Argument {
	var out [][2]Argument
	rest := slices.Clone(after)
	for _, b := range before {
		pair := [2]Argument{b}
		if i := slices.IndexFunc(rest, func(a Argument) bool { return a.flag() == b.flag() && a.id() == b.id() }); i >= 0 {
			pair[1] = rest[i]
			rest = slices.Delete(rest, i, i+1)
		}
		out = append(out, pair)
	}
	for _, a := range rest {
		out = append(out, [2]Argument{"", a})
	}
	return out
}

// String returns the change as a reviewer reads it: the part, whether the guest sees the change, and
// the arguments. "-" marks an argument that goes, "+" an argument that comes, and "~" an argument
// of which some properties change.
func (c Change) String() string {
	seenBy := "the host alone"
	if c.Guest {
		seenBy = "the guest sees it"
	}
	var s strings.Builder
	fmt.Fprintf(&s, "%s (%s)\n", c.Part, seenBy)
	for _, p := range pairs(c.Before, c.After) {
		writePair(&s, p[0], p[1])
	}
	return s.String()
}

func writePair(s *strings.Builder, before, after Argument) {
	old, oldOK := before.properties()
	now, nowOK := after.properties()
	if oldOK && nowOK {
		fmt.Fprintf(s, "  ~ %s %s\n", after.flag(), after.id())
		for _, key := range slices.Sorted(maps.Keys(union(old, now))) {
			if a, b := property(old, key), property(now, key); a != b {
				fmt.Fprintf(s, "      %s: %s → %s\n", key, a, b)
			}
		}
		return
	}
	if before != "" {
		fmt.Fprintf(s, "  - %s\n", before)
	}
	if after != "" {
		fmt.Fprintf(s, "  + %s\n", after)
	}
}

func union(a, b map[string]any) map[string]any {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}

// property returns a property's value as JSON.
func property(of map[string]any, key string) string {
	value, ok := of[key]
	if !ok {
		return "unset"
	}
	data, err := json.Marshal(value)
	if err != nil {
		panic(err) // it was decoded from JSON
	}
	return string(data)
}
