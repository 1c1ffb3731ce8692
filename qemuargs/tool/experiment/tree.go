// Package experiment changes a tree of JSON in one place at a time. Whoever makes something of the tree makes it anew
// of each change, and sees what the place is for. So nobody has to write down what is made of what.
package experiment

import (
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Tree returns a value as JSON has it: maps, lists, texts, numbers and booleans. The value can be written as JSON.
func Tree(value any) any {
	data, err := json.Marshal(value)
	var out any
	if err == nil {
		err = json.Unmarshal(data, &out)
	}
	if err != nil {
		panic("experiment: " + err.Error()) // plain data can be written and read back
	}
	return out
}

// Leaves returns the values of a tree that are neither lists nor objects, or are empty, by their paths. A path is such
// as spec.disks[0].name; a key with a dot or a slash, or of an object whose keys are names, is in brackets.
func Leaves(tree any) map[string]any {
	out := map[string]any{}
	walk(tree, "", func(path string, value any) {
		if isEmpty(value) {
			out[path] = value
		}
	})
	return out
}

// isEmpty reports whether a value holds no other.
func isEmpty(value any) bool {
	switch v := value.(type) {
	case map[string]any:
		return len(v) == 0
	case []any:
		return len(v) == 0
	}
	return true
}

// walk calls see for each value of a tree, the whole before its parts.
func walk(tree any, path string, see func(path string, value any)) {
	if path != "" {
		see(path, tree)
	}
	switch v := tree.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			below := path + "." + key
			if strings.ContainsAny(key, "./") || areNames.MatchString(path) {
				below = path + "[" + key + "]"
			}
			walk(v[key], strings.TrimPrefix(below, "."), see)
		}
	case []any:
		for i, child := range v {
			walk(child, path+"["+strconv.Itoa(i)+"]", see)
		}
	}
}

// areNames matches the facts of a host whose keys are names of disks and interfaces.
var areNames = regexp.MustCompile(`^(containerDisks|claims|configVolumes|nics)$`)

// At returns the value at a path of a tree. ok is false where there is none.
func At(tree any, path string) (value any, ok bool) { return Value(tree, Steps(path)) }

// Value does what At does, for the steps of a path.
func Value(tree any, steps []string) (value any, ok bool) {
	for _, step := range steps {
		switch v := tree.(type) {
		case map[string]any:
			child, ok := v[step]
			if !ok {
				return nil, false
			}
			tree = child
		case []any:
			i, err := strconv.Atoi(step)
			if err != nil || i < 0 || i >= len(v) {
				return nil, false
			}
			tree = v[i]
		default:
			return nil, false
		}
	}
	return tree, true
}

// With returns a copy of a tree with another value at the steps of a path; nil takes it away, also from a list, whose
// other entries move up. ok is false where the path leads nowhere.
func With(tree any, steps []string, value any) (changed any, ok bool) {
	if len(steps) == 0 {
		return value, true
	}
	if tree == nil {
		tree = map[string]any{}
	}
	switch v := tree.(type) {
	case map[string]any:
		child, ok := With(v[steps[0]], steps[1:], value)
		out := maps.Clone(v)
		if out[steps[0]] = child; child == nil {
			delete(out, steps[0])
		}
		return out, ok
	case []any:
		i, err := strconv.Atoi(steps[0])
		if err != nil || i < 0 || i >= len(v) {
			return nil, false
		}
		child, ok := With(v[i], steps[1:], value)
		out := slices.Clone(v)
		if out[i] = child; child == nil {
			out = slices.Delete(out, i, i+1)
		}
		return out, ok
	}
	return nil, false
}

// Steps splits a path such as spec.disks[0].labels[a.b/c] into its fields, indexes and keys.
func Steps(path string) []string {
	var out []string
	for path != "" {
		end := strings.IndexAny(path, ".[")
		if path[0] == '[' {
			if end = strings.IndexByte(path, ']'); end < 0 {
				return append(out, path[1:])
			}
			out, path = append(out, path[1:end]), strings.TrimPrefix(path[end+1:], ".")
			continue
		}
		if end < 0 {
			return append(out, path)
		}
		if end > 0 {
			out = append(out, path[:end])
		}
		path = strings.TrimPrefix(path[end:], ".")
	}
	return out
}
