package qemuargs

import (
	"reflect"
	"slices"
)

// Change is what a running machine does to become another, for one part. Some parts take two changes, such as a CD-ROM
// drive that gets another medium: one goes, and then the other comes.
type Change struct {
	// Part is the part's path in the Machine's JSON, in which an entry of a list is named: disks[data]. It is empty where
	// only the order of lists changes.
	Part string
	// Steps follow one another. There are none for what QEMU need not know, such as which root ports are spare.
	Steps []Step
	// Entry is what the Machine has of the part afterwards, such as a Disk; nil if the part is gone. It is the Machine if
	// there is no part.
	Entry any
}

// Become returns the changes by which a running machine becomes another, in their order, and what none of them changes:
// paths in the Machine's JSON, such as disks[data].serial, that need a restart. Devices go before others come, and what
// a device stands on comes before it and goes after it. sets are the descriptor sets that QEMU has.
//
// QEMU gets what it got at the start: a part's arguments are the commands' arguments.
func Become(from, to *Machine, sets Sets) (changes []Change, restart []string) {
	running := liveFiles{sets.clone()}
	was, next := from.live(), to.live()
	for _, p := range slices.Backward(was) {
		if find(next, p.name) == nil && p.plugs() {
			changes = append(changes, Change{Part: p.name, Steps: append(p.parting(), unplug(p, running)...)})
		}
	}
	for _, p := range next {
		switch old := find(was, p.name); {
		case old == nil && p.plugs():
			changes = append(changes, Change{p.name, plug(p, running), p.entry()})
		case old != nil && !reflect.DeepEqual(old.entry(), p.entry()):
			for _, c := range old.become(p.live, running) {
				c.Part = p.name
				changes = append(changes, c)
			}
		}
	}
	now := *from
	for _, c := range changes {
		now = now.Apply(c)
	}
	restart = differences(reflect.ValueOf(now), reflect.ValueOf(*to), "")
	before := from.Conflicts()
	for _, path := range to.Conflicts() {
		if !slices.Contains(before, path) {
			restart = append(restart, path)
		}
	}
	if len(restart) == 0 && !reflect.DeepEqual(now, *to) {
		changes = append(changes, Change{Entry: *to}) // in another order
	}
	return changes, restart
}

// live is a part that a running machine can get, lose or change.
type live interface {
	part
	// plugs reports whether QEMU plugs and unplugs the part. It plugs nothing into the root bus, say.
	plugs() bool
	// parting returns the steps that come before QEMU unplugs the part.
	parting() []Step
	// become returns the changes, without their part's name, by which the part becomes another; none if it cannot.
	become(next live, running liveFiles) []Change
	// entry returns what the Machine has of the part.
	entry() any
}

// liveNamed is such a part and its name.
type liveNamed struct {
	name string
	live
}

func find(parts []liveNamed, name string) *liveNamed {
	if i := slices.IndexFunc(parts, func(p liveNamed) bool { return p.name == name }); i >= 0 {
		return &parts[i]
	}
	return nil
}

// live returns the parts that a running machine can get, lose or change, in the order of the command line.
func (m *Machine) live() (out []liveNamed) {
	for _, p := range m.parts() {
		if l, ok := p.part.(live); ok {
			out = append(out, liveNamed{p.name, l})
		}
	}
	return out
}

// simple is of parts that QEMU unplugs at once.
type simple struct{}

func (simple) parting() []Step { return nil }

// fixed is of parts that QEMU plugs, or leaves, as they are.
type fixed struct{ simple }

func (fixed) become(live, liveFiles) []Change { return nil }

// Sets are the descriptor sets that a running QEMU has, by the files in them. A Machine does not know them: on another
// node they are others.
type Sets map[Inherited]int

// Sets returns the descriptor sets that QEMU has of the machine's command line.
func (m *Machine) Sets() Sets {
	sets := Sets{}
	for file, number := range m.descriptors() {
		if file.isSet() {
			sets[file] = number
		}
	}
	return sets
}

// FirstLiveSet is the number of the first descriptor set that a running QEMU gets. Those of its command line have the
// numbers of descriptors.
const FirstLiveSet = 1000

// add gives a file the first number, from FirstLiveSet on, that no set has.
func (s Sets) add(file Inherited) {
	taken := map[int]bool{}
	for _, number := range s {
		taken[number] = true
	}
	number := FirstLiveSet
	for taken[number] {
		number++
	}
	s[file] = number
}

func (s Sets) clone() Sets {
	out := Sets{}
	for file, number := range s {
		out[file] = number
	}
	return out
}

// liveFiles name the files of a running QEMU. Files that are in no set have the names by which QEMU gets them.
type liveFiles struct{ sets Sets }

func (l liveFiles) descriptor(file Inherited) string { return file.String() }
func (l liveFiles) set(file Inherited) int           { return l.sets[file] }
