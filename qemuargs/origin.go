package qemuargs

import (
	"encoding/json"
	"reflect"
	"strings"
)

// This file lets every argument, and every property of an argument, say what of the Machine it
// is made of. The word stands where the argument is made: as Of and From of an Arg or Option,
// or as the tag "from" beside the tag "json" of a property. What QEMU gets does not depend on
// it, and who does not ask pays for a few words of memory at most.

// Part is a part of a Machine by its path in the Machine's JSON. An entry of a list is named,
// not counted: disks[root], rootPorts[pci.1].
type Part struct {
	// Field of the Machine, such as disks.
	Field string
	// Name of the entry, where the field is a list.
	Name string
	// Below is a part of the entry, such as image.
	Below string
}

// String is the path, such as disks[root].image. It is empty for the whole Machine.
func (p Part) String() string {
	s := p.Field
	if p.Name != "" {
		s += "[" + p.Name + "]"
	}
	if p.Below != "" {
		s += "." + p.Below
	}
	return s
}

// paths turns the text of a From, or of a tag "from", into paths of the Machine. The text
// holds paths below the part, with commas between them. "../" leads to what the part is
// below, and "/" to the Machine itself.
func (p Part) paths(from string) []string {
	var out []string
	for path := range strings.SplitSeq(from, ",") {
		base := p
		switch {
		case path == "":
			continue
		case path[0] == '/':
			base, path = Part{}, path[1:]
		case strings.HasPrefix(path, "../"):
			base.Below, path = "", path[len("../"):]
		}
		if prefix := base.String(); prefix != "" {
			path = prefix + "." + path
		}
		out = append(out, path)
	}
	return out
}

// Property is one property of an argument, and what it comes from: parts of the Machine, or
// a rule of this package, or both.
type Property struct {
	// Name is empty for a value without a name, such as the type in -machine, and for a value
	// that has no properties.
	Name string
	// Value as QEMU gets it: JSON where the argument is JSON.
	Value string
	// From are paths of parts of the Machine.
	From []string
	// Rule says why the builder writes the property, where no part says it.
	Rule string
}

// Because returns what makes the argument be there at all: the paths of parts of the Machine,
// or else a rule.
func (a Arg) Because() (from []string, rule string) {
	if from = a.Of.paths(a.From); len(from) == 0 && a.Of != (Part{}) {
		from = []string{a.Of.String()}
	}
	return from, a.Rule
}

// Properties returns the argument's properties in the order in which QEMU gets them. An
// argument without a value has none.
func (a Arg) Properties() []Property {
	switch v := a.Value.(type) {
	case nil:
		return nil
	case string:
		from, rule := a.Because()
		return []Property{{Value: v, From: from, Rule: rule}}
	case Options:
		var out []Property
		for _, o := range v {
			out = append(out, Property{Name: o.Key, Value: o.Value, From: a.Of.paths(o.From), Rule: o.Rule})
		}
		return out
	}
	return a.Of.properties(reflect.ValueOf(a.Value))
}

// properties are the fields of a struct that JSON shows.
func (p Part) properties(props reflect.Value) []Property {
	var out []Property
	for i := range props.NumField() {
		f, value := props.Type().Field(i), props.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" {
			out = append(out, p.properties(value)...) // embedded
			continue
		}
		if options == "omitempty" && value.IsZero() {
			continue
		}
		text, err := json.Marshal(value.Interface())
		if err != nil {
			panic("qemuargs: " + err.Error()) // the argument was marshaled before
		}
		out = append(out, Property{Name: name, Value: string(text), From: p.paths(f.Tag.Get("from")), Rule: f.Tag.Get("rule")})
	}
	return out
}
