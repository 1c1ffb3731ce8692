package experiment

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Change is a tree that differs from another in one respect.
type Change struct {
	Tree any
	// Paths are the fields that differ.
	Paths []string
	// Whole: what differs is an object or an entry of a list that is not there. That proves nothing about its fields.
	Whole bool
	// Kind: what differs is of which kind an object is.
	Kind bool
	// Old and New are what the change renames; both are empty for another change.
	Old, New string
}

// kinds are the keys of which an object has one, which says what kind of thing the object is, and what an object of
// that kind has at least. A key without that is only found, and not put in another's place.
var kinds = []map[string]map[string]any{
	{"disk": {}, "cdrom": {}, "lun": {}},
	{"bridge": {}, "masquerade": {}, "passtBinding": {}, "sriov": {}, "binding": nil},
	{"emptyDisk": {"capacity": "1Gi"}, "cloudInitNoCloud": {"userData": "#cloud-config"}, "cloudInitConfigDrive": nil,
		"containerDisk": nil, "persistentVolumeClaim": nil, "dataVolume": nil, "ephemeral": nil, "hostDisk": nil,
		"configMap": nil, "secret": nil, "downwardAPI": nil, "serviceAccount": nil, "sysprep": nil},
}

// Changes returns a tree's changes: each leaf has its other values, each object and each entry of a list goes, each
// name is another one in all its places, and each thing that is one of several kinds is of another kind. An entry that
// others know by its name goes with them, and nothing that holds such entries goes. unset are values of fields that are
// not set, by the fields: they are set in turn.
func Changes(tree any, unset map[string][]any) []Change {
	out := changes(tree)
	for _, path := range slices.Sorted(maps.Keys(unset)) {
		out = append(out, with(tree, path, unset[path])...)
	}
	return out
}

// InList reports whether the change is within an entry of a list.
func (c Change) InList() bool { return strings.Contains(c.Paths[0], "[") }

func changes(tree any) (out []Change) {
	named := namesIn(tree)
	walk(tree, "", func(path string, value any) {
		switch v := value.(type) {
		case map[string]any:
			out = append(out, otherKinds(tree, path, v)...)
		case []any:
		default:
			out = append(out, with(tree, path, Others(path, value))...)
			return
		}
		if !named.known(path) {
			out = append(out, gone(tree, path, !isEmpty(value))...)
		}
	})
	other := unusedName(tree)
	for _, name := range slices.SortedFunc(maps.Keys(named), name.compare) {
		out = append(out, renamed(tree, name.text, other, named[name])...)
	}
	for _, paths := range bound {
		out = append(out, together(tree, paths)...)
	}
	return out
}

// bound are fields that bound each other: of a guest that has a limit, one of them alone cannot grow.
var bound = [][]string{
	{"spec.domain.memory.guest", "spec.domain.resources.requests.memory", "spec.domain.resources.limits.memory"},
	{"spec.domain.resources.requests.cpu", "spec.domain.resources.limits.cpu"},
}

// together returns the tree with twice the quantity in each of some fields that are set, if several are.
func together(tree any, paths []string) []Change {
	c := Change{Tree: tree}
	for _, path := range paths {
		text, _ := At(tree, path)
		quantity, err := resource.ParseQuantity(fmt.Sprint(text))
		if err != nil {
			continue
		}
		c.Tree, _ = With(c.Tree, Steps(path), twice(quantity))
		c.Paths = append(c.Paths, path)
	}
	if len(c.Paths) < 2 {
		return nil
	}
	return []Change{c}
}

// Index returns the step of a path that leads to an entry of a list.
func Index(n int) string { return "[" + strconv.Itoa(n) + "]" }

// lastKey returns the name of the field at a path, without an index.
func lastKey(path string) string {
	path = path[strings.LastIndexByte(path, '.')+1:]
	name, _, _ := strings.Cut(path, "[")
	return name
}

// lastKeys returns the name of the field at a path, and before it that of what it is in.
func lastKeys(path string) string {
	end := max(strings.LastIndexByte(path, '.'), 0)
	return lastKey(path[:end]) + "." + lastKey(path)
}

// with returns the tree with each of some values at a path.
func with(tree any, path string, values []any) (out []Change) {
	steps := Steps(path)
	for _, value := range values {
		if changed, ok := With(tree, steps, value); ok {
			out = append(out, Change{Tree: changed, Paths: []string{path}})
		}
	}
	return out
}

// gone returns the tree without an object or a list, or an entry of a list. An entry has its name's path.
func gone(tree any, path string, whole bool) []Change {
	changed, ok := With(tree, Steps(path), nil)
	if !ok {
		return nil
	}
	if _, isNamed := At(tree, path+".name"); isNamed && strings.HasSuffix(path, "]") {
		path += ".name"
	}
	return []Change{{Tree: changed, Paths: []string{path}, Whole: whole}}
}

// otherKinds returns the tree with an object of another kind.
func otherKinds(tree any, path string, object map[string]any) (out []Change) {
	for _, kind := range kinds {
		for _, is := range slices.Sorted(maps.Keys(kind)) {
			content, ok := object[is].(map[string]any)
			if !ok {
				continue
			}
			without, _ := With(tree, Steps(path+"."+is), nil)
			for _, other := range slices.Sorted(maps.Keys(kind)) {
				if least := kind[other]; least != nil && other != is {
					changed, _ := With(without, Steps(path+"."+other), least)
					c := Change{Tree: changed, Paths: []string{path + "." + is}, Whole: len(content) > 0, Kind: true}
					out = append(out, c)
				}
			}
		}
	}
	return out
}

// name is a name of things that know each other by it: a disk has that of its volume, and an interface that of its
// network.
type name struct{ of, text string }

func (n name) compare(other name) int {
	return cmp.Or(cmp.Compare(n.of, other.of), cmp.Compare(n.text, other.text))
}

func nameOf(path, text string) name {
	switch list := path[:strings.LastIndexByte(path, '[')+1]; list {
	case "spec.networks[", "spec.domain.devices.interfaces[":
		return name{"network", text}
	case "", "spec.volumes[", "spec.domain.devices.disks[", "spec.domain.devices.filesystems[":
		return name{"volume", text}
	default:
		return name{list, text}
	}
}

// places are the paths at which names are.
type places map[name][]string

// known reports whether something else has the name of an entry at a path, or of one within what is there.
func (p places) known(path string) bool {
	isAt := func(place string) bool {
		rest, ok := strings.CutPrefix(place, path)
		return ok && strings.HasSuffix(rest, ".name") && (rest[0] == '.' || rest[0] == '[')
	}
	for _, at := range p {
		if len(at) > 1 && slices.ContainsFunc(at, isAt) {
			return true
		}
	}
	return false
}

// namesIn returns the places of a tree's names.
func namesIn(tree any) places {
	named := places{}
	walk(tree, "", func(path string, value any) {
		text, ok := value.(string)
		if ok && (strings.HasSuffix(path, "].name") || strings.HasSuffix(path, "NameRef")) {
			named[nameOf(path, text)] = append(named[nameOf(path, text)], path)
		}
	})
	return named
}

// unusedName returns a name that no text of a tree has in it: where it turns up, the change has brought it.
func unusedName(tree any) string {
	text, err := json.Marshal(tree)
	if err != nil {
		panic("experiment: " + err.Error()) // it was made of JSON
	}
	other := "other"
	for strings.Contains(string(text), other) {
		other += "z"
	}
	return other
}

// renamed returns the tree in which a name is another one in all its places, and the tree without the entries of the
// name.
func renamed(tree any, name, unused string, paths []string) []Change {
	other := Change{Tree: tree, Paths: paths, Old: name, New: unused}
	without := Change{Tree: tree, Paths: paths, Whole: true}
	for _, path := range slices.Backward(paths) { // from the end: an entry that goes moves those behind it
		other.Tree, _ = With(other.Tree, Steps(path), other.New)
		without.Tree, _ = With(without.Tree, Steps(strings.TrimSuffix(path, ".name")), nil)
	}
	return []Change{other, without}
}
