package resolve

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Decision is how one part of a Machine was decided.
type Decision struct {
	// Fields of the defaulted VMI, such as spec.domain.cpu.cores. In place of an index, * stands
	// for every entry of a list, and 0-3 for the first four.
	Fields []string
	// Facts are paths in Host, such as qemuVersion.
	Facts []string
	// Rule says in words what was made of the fields and facts. It is empty where the part is
	// the field's or fact's own value.
	Rule string
}

// Decisions are those of a Machine, by the part: a path as qemuargs.Part has it, such as
// disks[root].queues. Each stands in the code beside the decision itself. On a nil Decisions
// the methods do nothing: who does not ask pays nothing.
type Decisions struct{ byPart map[string]Decision }

// Of returns how a part was decided. ok is false for a part that the machine does not have.
func (d *Decisions) Of(part string) (decision Decision, ok bool) {
	decision, ok = d.byPart[part]
	return decision, ok
}

// Naming returns the parts that were decided by a field, or by a field within it, in order.
func (d *Decisions) Naming(field string) []string {
	var parts []string
	for part, decision := range d.byPart {
		if slices.ContainsFunc(decision.Fields, func(path string) bool { return Names(path, field) }) {
			parts = append(parts, part)
		}
	}
	slices.Sort(parts)
	return parts
}

// add records a decision. by holds paths with spaces between them: fields of the VMI, facts as
// host.accelerator, and =PART for what another part was decided by.
func (d *Decisions) add(part, by, rule string) {
	if d == nil {
		return
	}
	decision := Decision{Rule: rule}
	for path := range strings.FieldsSeq(by) {
		other, same := strings.CutPrefix(path, "=")
		fact, known := strings.CutPrefix(path, "host.")
		switch {
		case same:
			decision.Fields = append(decision.Fields, d.byPart[other].Fields...)
			decision.Facts = append(decision.Facts, d.byPart[other].Facts...)
		case known:
			decision.Facts = append(decision.Facts, fact)
		default:
			decision.Fields = append(decision.Fields, path)
		}
	}
	d.byPart[part] = decision
}

// entry records the decisions about one entry of a list of the Machine, which an entry of a
// list of the VMI makes.
type entry struct {
	to         *Decisions
	list, name string // in the Machine, such as disks and root
	field      string // the list in the VMI
	index      int
	volume     int // the disk's
}

// add records a decision about a part of the entry; "" is the entry itself. In by, a path that
// begins with a dot is below the VMI's entry, and volume is the disk's volume. [..] stands for
// all entries up to this one, and [] for this one's name.
func (e entry) add(part, by, rule string) {
	if e.to == nil {
		return
	}
	upTo := "[0-" + strconv.Itoa(e.index) + "]"
	if e.index == 0 {
		upTo = "[0]"
	}
	var paths []string
	for path := range strings.FieldsSeq(by) {
		below, isVolume := strings.CutPrefix(path, "volume")
		switch {
		case path[0] == '.':
			path = fmt.Sprintf("%s[%d]%s", e.field, e.index, path)
		case isVolume:
			path = fmt.Sprintf("spec.volumes[%d]%s", e.volume, below)
		}
		paths = append(paths, strings.NewReplacer("[..]", upTo, "[]", "["+e.name+"]").Replace(path))
	}
	key := e.list + "[" + e.name + "]"
	if part != "" {
		key += "." + part
	}
	e.to.add(key, strings.Join(paths, " "), rule)
}

// Names says whether a path of a Decision names a field: it is the field's, or that of a field
// within it.
func Names(path, field string) bool {
	a, b := steps(path), steps(field)
	if len(a) < len(b) {
		return false
	}
	for i := range b {
		if !sameStep(a[i], b[i]) && !sameStep(b[i], a[i]) {
			return false
		}
	}
	return true
}

// steps splits a.b[0].c into a, b, [0] and c. Names in brackets may have dots.
func steps(path string) []string {
	var out []string
	for path != "" {
		end := strings.IndexAny(path[1:], ".[") + 1
		if path[0] == '[' {
			end = strings.IndexByte(path, ']') + 1
		}
		if end <= 0 {
			end = len(path)
		}
		out = append(out, path[:end])
		path = strings.TrimPrefix(path[end:], ".")
	}
	return out
}

func sameStep(pattern, step string) bool {
	if pattern == step || pattern == "[*]" && step[0] == '[' {
		return true
	}
	last, isRange := strings.CutPrefix(pattern, "[0-")
	if !isRange {
		return false
	}
	n, err := strconv.Atoi(strings.TrimSuffix(last, "]"))
	index, notIndex := strconv.Atoi(strings.Trim(step, "[]"))
	return err == nil && notIndex == nil && index <= n
}
