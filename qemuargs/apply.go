package qemuargs

import (
	"reflect"
	"slices"
	"strings"
)

// Apply returns the machine after a change. It changes nothing that the machine shares with others.
func (m Machine) Apply(c Change) Machine {
	if c.Part == "" {
		return c.Entry.(Machine)
	}
	path, entry, listed := strings.Cut(c.Part, "[")
	at := reflect.ValueOf(&m).Elem()
	for name := range strings.SplitSeq(path, ".") {
		if at.Kind() == reflect.Pointer {
			own := reflect.New(at.Type().Elem())
			if !at.IsNil() {
				own.Elem().Set(at.Elem())
			}
			at.Set(own)
			at = own.Elem()
		}
		at = at.FieldByIndex(fieldOf(at.Type(), name).Index)
	}
	switch {
	case listed:
		at.Set(withEntry(at, strings.TrimSuffix(entry, "]"), c.Entry))
	case c.Entry == nil:
		at.SetZero()
	default:
		at.Set(reflect.ValueOf(c.Entry))
	}
	return m
}

// withEntry returns a list in which the entry of a name is another one; a new one is last, and nil is none.
func withEntry(list reflect.Value, name string, entry any) reflect.Value {
	out, found := reflect.MakeSlice(list.Type(), 0, list.Len()+1), false
	for i := range list.Len() {
		e := list.Index(i)
		if nameOf(e) != name {
			out = reflect.Append(out, e)
			continue
		}
		if found = true; entry != nil {
			out = reflect.Append(out, reflect.ValueOf(entry))
		}
	}
	if !found && entry != nil {
		out = reflect.Append(out, reflect.ValueOf(entry))
	}
	if out.Len() == 0 {
		return reflect.Zero(list.Type()) // as in a machine that never had an entry
	}
	return out
}

// nameOf returns the name of a list's entry, or an empty text for an entry without one.
func nameOf(entry reflect.Value) string {
	if entry.Kind() != reflect.Struct {
		return ""
	}
	for _, field := range []string{"Name", "ID"} {
		if f := entry.FieldByName(field); f.IsValid() && f.Kind() == reflect.String {
			return f.String()
		}
	}
	return ""
}

// fieldOf returns the field of a struct that has a name in JSON.
func fieldOf(t reflect.Type, name string) reflect.StructField {
	for i := range t.NumField() {
		if jsonName(t.Field(i)) == name {
			return t.Field(i)
		}
	}
	panic("qemuargs: " + t.Name() + " has no field " + name) // the parts' names are the fields'
}

func jsonName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}

// differences returns the paths at which two machines differ. An entry of a list that has names is found by its name,
// wherever it stands.
func differences(a, b reflect.Value, path string) []string {
	switch {
	case reflect.DeepEqual(a.Interface(), b.Interface()):
		return nil
	case a.Kind() == reflect.Pointer && !a.IsNil() && !b.IsNil():
		return differences(a.Elem(), b.Elem(), path)
	case a.Kind() == reflect.Struct && !hasSecrets(a.Type()):
		var out []string
		for i := range a.NumField() {
			name := strings.TrimPrefix(path+"."+jsonName(a.Type().Field(i)), ".")
			if a.Type().Field(i).Anonymous {
				name = path
			}
			out = append(out, differences(a.Field(i), b.Field(i), name)...)
		}
		return out
	case a.Kind() == reflect.Slice && hasNames(a) && hasNames(b):
		return entries(a, b, path)
	}
	return []string{path}
}

// entries returns the paths at which two lists differ.
func entries(a, b reflect.Value, path string) (out []string) {
	named := func(list reflect.Value, name string) (reflect.Value, bool) {
		for i := range list.Len() {
			if nameOf(list.Index(i)) == name {
				return list.Index(i), true
			}
		}
		return reflect.Value{}, false
	}
	for i := range a.Len() {
		name := nameOf(a.Index(i))
		at := path + "[" + name + "]"
		if other, ok := named(b, name); ok {
			out = append(out, differences(a.Index(i), other, at)...)
		} else {
			out = append(out, at)
		}
	}
	for i := range b.Len() {
		if name := nameOf(b.Index(i)); !slices.Contains(out, path+"["+name+"]") {
			if _, ok := named(a, name); !ok {
				out = append(out, path+"["+name+"]")
			}
		}
	}
	return out
}

func hasNames(list reflect.Value) bool {
	for i := range list.Len() {
		if nameOf(list.Index(i)) == "" {
			return false
		}
	}
	return true
}

// hasSecrets reports whether a struct has fields that only its package sees.
func hasSecrets(t reflect.Type) bool {
	for i := range t.NumField() {
		if !t.Field(i).IsExported() {
			return true
		}
	}
	return false
}
