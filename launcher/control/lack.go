package control

import (
	"encoding"
	"encoding/json"
	"iter"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// Lack reports whether a launcher knows a command, and returns the fields that the arguments set and the launcher
// does not know. It names no field below one that it names.
func (c Commands) Lack(command string, arguments any) (known bool, fields []string) {
	has, ok := c[command]
	if !ok || arguments == nil {
		return ok, nil
	}
	lacking := map[string]bool{}
	setFields(reflect.ValueOf(arguments), "", func(path string) bool {
		if _, ok := slices.BinarySearch(has, path); !ok {
			lacking[path] = true
			return false
		}
		return true
	})
	return true, slices.Sorted(maps.Keys(lacking))
}

// setFields calls below with the path of each field that JSON of a value has. Where below returns false, setFields
// leaves out the fields below that one.
func setFields(v reflect.Value, prefix string, below func(path string) bool) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			setFields(v.Elem(), prefix, below)
		}
	case reflect.Slice, reflect.Array:
		if holdsFields(v.Type()) {
			for i := range v.Len() {
				setFields(v.Index(i), prefix, below)
			}
		}
	case reflect.Map:
		if holdsFields(v.Type()) {
			for entries := v.MapRange(); entries.Next(); {
				setFields(entries.Value(), prefix, below)
			}
		}
	case reflect.Struct:
		for f := range fieldsOf(v.Type()) {
			if value := v.FieldByIndex(f.Index); f.isShown(value) && below(prefix+f.name) {
				setFields(value, prefix+f.name+".", below)
			}
		}
	}
}

// holdsFields reports whether a type's elements are structs with fields.
func holdsFields(t reflect.Type) bool {
	for range fieldsOf(elementOf(t)) {
		return true
	}
	return false
}

// elementOf returns the type below pointers, lists and maps.
func elementOf(t reflect.Type) reflect.Type {
	for {
		switch t.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
			t = t.Elem()
		default:
			return t
		}
	}
}

// jsonField is a field of a struct, by its name in JSON.
type jsonField struct {
	reflect.StructField
	name, options string
}

// fieldsOf yields the fields of a struct that JSON may show, with those of embedded structs. A type that writes its
// JSON itself has none.
func fieldsOf(t reflect.Type) iter.Seq[jsonField] {
	return func(yield func(jsonField) bool) {
		if t.Kind() != reflect.Struct || writesItself(t) {
			return
		}
		for _, f := range reflect.VisibleFields(t) {
			name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
			if name == "-" || f.Anonymous && name == "" || !f.IsExported() {
				continue
			}
			if name == "" {
				name = f.Name
			}
			if !yield(jsonField{f, name, options}) {
				return
			}
		}
	}
}

// isShown reports whether JSON shows the field with a value.
func (f jsonField) isShown(v reflect.Value) bool {
	for option := range strings.SplitSeq(f.options, ",") {
		switch option {
		case "omitzero":
			if v.IsZero() {
				return false
			}
		case "omitempty":
			switch v.Kind() {
			case reflect.Slice, reflect.Map, reflect.Array, reflect.String:
				if v.Len() == 0 {
					return false
				}
			case reflect.Struct:
			default:
				if v.IsZero() {
					return false
				}
			}
		}
	}
	return true
}

var (
	jsonMarshaler = reflect.TypeFor[json.Marshaler]()
	textMarshaler = reflect.TypeFor[encoding.TextMarshaler]()
)

// writesItself reports whether a type has a JSON of its own, in which nobody looks for fields.
func writesItself(t reflect.Type) bool {
	p := reflect.PointerTo(t)
	return p.Implements(jsonMarshaler) || p.Implements(textMarshaler)
}
