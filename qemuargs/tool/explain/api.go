package explain

import (
	"cmp"
	"encoding/json"
	"reflect"
	"slices"
	"strings"

	poolv1beta1 "github.com/kubeqemu/kubeqemu/api/pool/v1beta1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// This file knows the API's fields by its types.

var vmiType = reflect.TypeFor[v1.VirtualMachineInstance]()

// objectTypes are the types of the objects that VMIs are made of.
var objectTypes = map[string]reflect.Type{
	"VirtualMachineInstance": vmiType, "VirtualMachine": reflect.TypeFor[v1.VirtualMachine](),
	"VirtualMachineInstanceReplicaSet": reflect.TypeFor[v1.VirtualMachineInstanceReplicaSet](), "VirtualMachinePool": reflect.TypeFor[poolv1beta1.VirtualMachinePool](),
}

// lookUp finds a field of a type. It returns the path with [*] where an index of a list was left
// out, and whether the API refuses the field. Below a refused field nothing is known: the path
// ends there.
func lookUp(t reflect.Type, path string) (full string, refused, ok bool) {
	for _, step := range pathSteps(path) {
		name, index := step, ""
		if bracket := strings.IndexByte(step, '['); bracket >= 0 {
			name, index = step[:bracket], step[bracket:]
		}
		if t = plainType(t); t.Kind() == reflect.Slice {
			t, full = plainType(t.Elem()), full+"[*]"
		}
		if t.Kind() == reflect.Map {
			if t, full = t.Elem(), full+"."+step; index != "" {
				return "", false, false
			}
			continue
		}
		field, found := fieldOf(t, name)
		if !found {
			return "", false, false
		}
		t = field
		full = strings.TrimPrefix(full+"."+name, ".")
		if isRefused(t) || plainType(t).Kind() == reflect.Slice && isRefused(plainType(t).Elem()) {
			return full, true, true
		}
		full += index
		switch {
		case index != "" && plainType(t).Kind() == reflect.Slice, index != "" && plainType(t).Kind() == reflect.Map:
			t = plainType(t).Elem()
		case index != "":
			return "", false, false
		}
	}
	return full, false, full != "" && full != "spec" && full != "status" && !strings.HasPrefix(full, "status.")
}

// pathSteps splits at the dots outside of brackets.
func pathSteps(path string) []string {
	depth := 0
	return strings.FieldsFunc(path, func(r rune) bool {
		switch r {
		case '[':
			depth++
		case ']':
			depth--
		}
		return r == '.' && depth == 0
	})
}

func plainType(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t
}

// fieldOf returns the type of a struct's field by its name in JSON.
func fieldOf(t reflect.Type, name string) (reflect.Type, bool) {
	if t = plainType(t); t.Kind() != reflect.Struct || isLeaf(t) {
		return nil, false
	}
	for i := range t.NumField() {
		f := t.Field(i)
		tag, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if tag == name && name != "" {
			return f.Type, true
		}
		if tag == "" && (f.Anonymous || strings.Contains(options, "inline")) {
			if found, ok := fieldOf(f.Type, name); ok {
				return found, true
			}
		}
	}
	return nil, false
}

// isLeaf reports whether a type writes its JSON itself, as quantities and times do.
func isLeaf(t reflect.Type) bool {
	return t.Implements(reflect.TypeFor[json.Marshaler]()) || reflect.PointerTo(t).Implements(reflect.TypeFor[json.Marshaler]())
}

// isRefused reports whether the type stands for what is not supported.
func isRefused(t reflect.Type) bool {
	t = plainType(t)
	return t.PkgPath() == vmiType.PkgPath() && strings.HasPrefix(t.Name(), "Unsupported")
}

// fields returns all fields of the VMI's spec that are not refused, with [*] for entries of lists.
func fields() []string {
	var out []string
	var walk, walkStruct func(t reflect.Type, path string)
	walk = func(t reflect.Type, path string) {
		switch t = plainType(t); {
		case isRefused(t):
			return
		case t.Kind() == reflect.Slice:
			out = append(out, path)
			if !isRefused(t.Elem()) {
				walkStruct(plainType(t.Elem()), path+"[*]")
			}
		default:
			out = append(out, path)
			walkStruct(t, path)
		}
	}
	walkStruct = func(t reflect.Type, path string) {
		if t.Kind() != reflect.Struct || isLeaf(t) {
			return
		}
		for i := range t.NumField() {
			f := t.Field(i)
			tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if below := path + "." + tag; tag != "" {
				walk(f.Type, below)
			} else if f.Anonymous {
				walkStruct(plainType(f.Type), path)
			}
		}
	}
	walk(reflect.TypeFor[v1.VirtualMachineInstanceSpec](), "spec")
	return out[1:] // without spec itself
}

// nearest returns the fields whose names are most like the last of a path, three at most.
func nearest(path string) []string {
	last := func(path string) string {
		path = strings.ReplaceAll(path, "[*]", "")
		if end := strings.LastIndexByte(path, '.'); end >= 0 {
			path = path[end+1:]
		}
		path, _, _ = strings.Cut(path, "[")
		return strings.ToLower(path)
	}
	name := last(path)
	type near struct {
		path        string
		own, across int
	}
	var found []near
	for _, f := range fields() {
		if own := distance(name, last(f)); own <= 1+len(name)/4 {
			found = append(found, near{f, own, distance(path, f)})
		}
	}
	slices.SortStableFunc(found, func(a, b near) int { return cmp.Or(cmp.Compare(a.own, b.own), cmp.Compare(a.across, b.across)) })
	var out []string
	for _, n := range found[:min(len(found), 3)] {
		out = append(out, n.path)
	}
	return out
}

// distance returns the number of letters to add, drop or replace between two texts. Of a long text
// only the beginning counts.
func distance(a, b string) int {
	const longest = 128
	a, b = a[:min(len(a), longest)], b[:min(len(b), longest)]
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
